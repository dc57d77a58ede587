//! `orchestra bench`: measure the limit of this machine for a workflow, and how close a run comes. Each part is an ordinary run of a plan of its own.

use std::num::NonZero;
use std::time::Duration;

use orchestra_core::compare_numbers;
use orchestra_launch::{Bottleneck, DeviceKind, Plan, StageId};
use serde::Serialize;

use crate::Failed;
use crate::args::{BenchArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::lab::{Lab, LabRun, LabSetting};
use crate::notices::Notices;
use crate::stdout;
use crate::surroundings::Surroundings;

mod limit;
mod parts;
mod steady;
mod table;

use limit::{Limit, LimitBound, Pace, PartCost, divide, limit, pace};
use steady::{prepared_before, steady_rate};

/// Items whose rows models are measured with.
const FIRST_LOOK: u64 = 256;
/// A whole run lasts so many times as long as a part, so that its steady state lasts about as long as that.
const RUN_BY_PART: u32 = 2;
/// A run that lasts so long at its limit has a steady state.
const LONG_ENOUGH_SECONDS: f64 = 4.0;

/// What is measured. Rates are medians over the rounds, each by itself. Field names are the keys of `orchestra bench --json`.
#[derive(Debug, Serialize)]
struct BenchReport {
    workflow: String,
    /// Cores that this process may use.
    cores: usize,
    /// Items that the sources name.
    items_total: u64,
    /// Items of each run; more than `items_total` where the list comes again and again.
    items: u64,
    /// Of these, items that failed.
    items_failed: u64,
    limit_items_per_second: f64,
    /// What a run reaches: in its steady state, or from start to end where `too_short`.
    run_items_per_second: f64,
    /// The second by the first; `null` where `too_short`.
    ratio: Option<f64>,
    /// A run has no steady state of a second: how far it is below the limit says more about its start.
    too_short: bool,
    bottleneck: Pace,
    /// `cores`, or the name of the GPU that bounds the limit.
    limited_by: String,
    limit: Spread,
    run: Spread,
    ratio_spread: Option<Spread>,
    /// Reading, decoding and preparing.
    loading: Spread,
    /// Stages with a model, each alone with its rows ready.
    models: Vec<ModelReport>,
}

#[derive(Debug, Serialize)]
struct ModelReport {
    stage: String,
    /// Rows of it that an item has, on average.
    rows_per_item: f64,
    rows_per_second: Spread,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    median: f64,
    min: f64,
    max: f64,
}

/// A plan that is run in each round.
struct MeasuredPart {
    /// For people.
    name: String,
    plan: Plan,
    /// Its rows are ready: its items are those of no source.
    is_ready: bool,
    /// Of its items, where nothing else is said.
    most: u64,
    lasting: Duration,
    /// Items of its run, once that is known.
    items: Option<u64>,
}

struct PartRun {
    ran: LabRun,
    /// Items per second in its steady state, if it had one.
    steady: Option<f64>,
}

struct MeasuredModel {
    stage: StageId,
    part: MeasuredPart,
}

struct BenchRound {
    loading: f64,
    /// In the order of the models.
    models: Vec<PartCost>,
    run: PartRun,
    limit: Limit,
}

pub fn bench(
    args: &BenchArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let (notices, level) = (Notices { quiet: verbosity.quiet }, verbosity.terminal_level());
    let mut lab = Lab::open(&LabSetting { args: &args.lab, surroundings, level, otlp: None, notices })?;
    let report = measure(&mut lab, args);
    lab.close();
    let report = report?;
    if args.json { stdout::print_json(&report) } else { stdout::print(&table::table(&report, args)) }
}

fn measure(lab: &mut Lab, args: &BenchArgs) -> Result<BenchReport, Failed> {
    let lasting = Duration::from_secs_f64(args.seconds);
    let (recording, rows) = parts::recording(&lab.plan);
    let first = lab.over(&recording, FIRST_LOOK.min(lab.items_listed))?.0;
    lab.run(first, "a first look at the items", None)?;
    let part = |name: String, plan: Plan| MeasuredPart {
        name,
        plan,
        is_ready: false,
        most: u64::MAX,
        lasting,
        items: None,
    };
    let mut loading = part("loading".into(), parts::loading(&lab.plan));
    // No row of the first items reaches the others.
    let reached = rows.into_iter().filter(|(_, rows)| !rows.is_empty());
    let model = |(stage, rows)| {
        let name = format!("stage {}", lab.plan.stages[StageId::index(stage)].name);
        let plan = parts::alone(&lab.plan, stage, &rows);
        MeasuredModel { stage, part: MeasuredPart { is_ready: true, ..part(name, plan) } }
    };
    let mut models: Vec<MeasuredModel> = reached.map(model).collect();
    let most = lab.items_listed.saturating_mul(args.repeat);
    let items = args.items.map(|items| items.min(most));
    let whole = part("run".into(), lab.plan.clone());
    let mut whole = MeasuredPart { most, lasting: lasting * RUN_BY_PART, items, ..whole };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut rounds = Vec::with_capacity(args.runs);
    for round in 1..=args.runs {
        let in_round = |part: &str| format!("round {round} of {}: {part}", args.runs);
        let loaded = loading.measure(lab, &in_round)?;
        let rates = models.iter_mut().map(|model| Ok(model.part.measure(lab, &in_round)?.rate()));
        let rates: Vec<f64> = rates.collect::<Result<_, Failed>>()?;
        let run = whole.measure(lab, &in_round)?;
        let loads = models.iter().zip(rates).map(|(model, rate)| model.load(&lab.plan, rate, &run.ran));
        let loads: Vec<PartCost> = loads.collect();
        let rate = loaded.rate();
        let of_loading = PartCost { per_item: 1.0, rate, threads: lab.plan.n_loaders(), gpus: Vec::new() };
        let limit = limit(cores, &of_loading, &loads);
        rounds.push(BenchRound { loading: rate, models: loads, run, limit });
    }
    Ok(report(lab, cores, &models, &rounds))
}

impl MeasuredPart {
    /// Runs it, the first time with as many items as it takes.
    fn measure(&mut self, lab: &mut Lab, in_round: &dyn Fn(&str) -> String) -> Result<PartRun, Failed> {
        let what = in_round(&self.name);
        let run = |lab: &mut Lab, n: u64| {
            let plan = if self.is_ready { parts::over(&self.plan, n) } else { lab.over(&self.plan, n)?.0 };
            lab.run(plan, &what, None)
        };
        let items = match self.items {
            Some(items) => items,
            None => lab.items_lasting(self.lasting, self.most, run)?,
        };
        let ran = run(lab, items)?;
        self.items = Some(items);
        let steady = steady_rate(&ran.moments, prepared_before(&self.plan), ran.report.items.read);
        Ok(PartRun { ran, steady })
    }
}

impl PartRun {
    /// Items per second: in the steady state, else since the first batch.
    fn rate(&self) -> f64 {
        self.steady.unwrap_or_else(|| divide(self.ran.report.items.read as f64, self.ran.seconds_at_work()))
    }

    /// Items per second from start to end.
    fn whole_rate(&self) -> f64 {
        divide(self.ran.report.items.read as f64, self.ran.report.seconds)
    }
}

impl MeasuredModel {
    /// What it costs at this rate, with as many rows as a whole run has of it.
    fn load(&self, plan: &Plan, rate: f64, whole: &LabRun) -> PartCost {
        let stage = &plan.stages[self.stage.index()];
        let batch = stage.batch().expect("a model is a stage with batches");
        let entered = whole.report.stages[self.stage.index()].entered;
        let is_on_cpu = |device: usize| plan.devices[device].spec.kind == DeviceKind::Cpu;
        let devices = batch.workers.iter().map(|workers| workers.device.index());
        let gpus: Vec<usize> = devices.filter(|device| !is_on_cpu(*device)).collect();
        let threads = batch.workers.iter().map(|w| w.most() * (w.threads + batch.streams - 1)).sum();
        PartCost {
            per_item: divide(entered as f64, whole.report.items.read as f64),
            rate,
            threads: if gpus.is_empty() { threads } else { 0 },
            gpus,
        }
    }
}

/// Sums up. There is at least one round.
fn report(lab: &Lab, cores: usize, models: &[MeasuredModel], rounds: &[BenchRound]) -> BenchReport {
    let too_short = rounds.iter().any(|round| round.run.steady.is_none());
    let rate = |round: &BenchRound| if too_short { round.run.whole_rate() } else { round.run.rate() };
    let all = |of: &dyn Fn(&BenchRound) -> f64| Spread::of(rounds.iter().map(of));
    let (limit, run) = (all(&|round| round.limit.items_per_second), all(&rate));
    let ratio = (!too_short).then(|| all(&|round| divide(rate(round), round.limit.items_per_second)));
    let mut sorted: Vec<&BenchRound> = rounds.iter().collect();
    sorted.sort_by(|a, b| compare_numbers(a.limit.items_per_second, b.limit.items_per_second));
    let middle = sorted[sorted.len() / 2];
    let last = &middle.run.ran.report;
    let models = models.iter().enumerate().map(|(at, model)| ModelReport {
        stage: lab.plan.stages[model.stage.index()].name.clone(),
        rows_per_item: middle.models[at].per_item,
        rows_per_second: all(&|round| round.models[at].rate),
    });
    BenchReport {
        workflow: lab.plan.name.clone(),
        cores,
        items_total: lab.items_listed,
        items: last.items.read,
        items_failed: last.items.failed,
        limit_items_per_second: limit.median,
        run_items_per_second: run.median,
        ratio: ratio.map(|ratio| ratio.median),
        too_short,
        bottleneck: pace(&middle.limit, ratio.map(|r| r.median), last.bottleneck == Bottleneck::Sinks),
        limited_by: match middle.limit.bound {
            LimitBound::Cores => "cores".to_owned(),
            LimitBound::Device(device) => lab.plan.devices[device].spec.name.clone(),
        },
        limit,
        run,
        ratio_spread: ratio,
        loading: all(&|round| round.loading),
        models: models.collect(),
    }
}

impl Spread {
    /// Zeros of no values.
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(|a, b| compare_numbers(*a, *b));
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let middle = sorted.len() / 2;
        let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[middle]);
        Self { median, min, max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_of_any_order() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of([]), Spread::default());
    }
}
