//! The order of a measurement: list, sample, then rounds of decode, infer and run. The parts are measured elsewhere, and what the figures
//! mean is said elsewhere.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use orchestra_plan::{Plan, ladder};
use orchestra_trial::{Catalogue, Cause, Spread, scratch_folder};
use tempfile::TempDir;

use crate::error::BenchError;
use crate::figures::RunFigures;
use crate::own_time::OwnTime;
use crate::part::{Job, Part, Said};
use crate::report::{Judged, Report, Round};
use crate::rungs::{Rung, RungReport};
use crate::tune::{self, Settings, Tuned};
use crate::turns::{self, Order};
use crate::workbench::{Tools, Workbench};

/// Items that are looked at to find out how many are worth measuring.
const FIRST_LOOK: u64 = 256;
/// Fewest items of a sample, where there are so many.
const LEAST_ITEMS: u64 = 64;
/// A run lasts so many times as long as a part, so that its steady state lasts about as long as that.
const RUN_BY_PART: f64 = 2.0;
/// Runs of each of two settings that are compared, at least.
const LEAST_RUNS_COMPARED: usize = 3;
/// What a session takes on the CPU, in sizes of the model's file: the file, what is made of it, and what a batch needs.
const SESSION_BY_FILE: u64 = 3;

/// Gives the command of a process that calls [`crate::serve`] for the same workflow, with these settings changed.
pub type PartCommand = Arc<dyn Fn(&Settings, &Job) -> Command + Send + Sync>;

/// How to measure.
#[derive(Clone)]
pub struct Options {
    /// Rounds, at least 1.
    pub rounds: usize,
    /// How long each part is measured in each round. A part that goes over all items goes on to the last one.
    pub part: Duration,
    /// Items of the sample; `None`: as many as keep a run busy for about twice `part`.
    pub items: Option<u64>,
    /// What is needed to run.
    pub tools: Tools,
    /// Main memory that may be taken, in bytes.
    pub memory: u64,
    /// Starts processes that measure parts.
    pub command: PartCommand,
    /// Where the measured runs write: a folder in it is made, and removed in the end. `None`: where temporary files go.
    pub folder: Option<PathBuf>,
}

/// What is being done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The items are listed.
    Listing,
    /// A first look at how fast it all is.
    FirstLook,
    /// The sample is chosen.
    Chosen {
        /// Its items.
        items: u64,
        /// All items.
        of: u64,
    },
    /// A round begins.
    Round {
        /// From 1.
        round: usize,
        /// How many there will be.
        of: usize,
    },
    /// A stage is measured alone.
    Stage(&'a str),
    /// A setting is tried.
    Trying {
        /// From 1.
        trial: usize,
        /// At most so many.
        of: usize,
        /// Its key.
        key: &'a str,
        /// Its value.
        value: u64,
    },
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Listing => f.write_str("listing the items"),
            Progress::FirstLook => f.write_str("a first look at how long it takes"),
            Progress::Chosen { items, of } if items == of => write!(f, "measuring with all {of} items"),
            Progress::Chosen { items, of } => write!(f, "measuring with {items} of {of} items"),
            Progress::Round { round, of } => {
                write!(f, "round {round} of {of}: decode, infer and run in turns")
            }
            Progress::Stage(name) => write!(f, "infer {name}"),
            Progress::Trying { trial, of, key, value } => {
                write!(f, "trial {trial} of at most {of}: {key} = {value}")
            }
        }
    }
}

/// Plans the workflow with settings changed, keys with dots and their values; `None`: it cannot be planned so.
pub type Replan<'a> = &'a mut dyn FnMut(&Settings) -> Option<Plan>;

/// Told what is being done.
pub type Tell<'a> = &'a mut dyn FnMut(Progress<'_>);

/// A workflow that is ready to be measured. Dropping it removes all of its files.
pub struct Bench {
    bench: Workbench,
    options: Options,
    items_total: u64,
    folder: TempDir,
}

impl Bench {
    /// Lists the items, looks how fast it all is, and chooses the sample. Blocks, as all of this does; never call it within a tokio
    /// runtime, and keep its thread: what it starts ends with that.
    ///
    /// # Errors
    /// There is no infer stage or no item, no item can be decoded, a worker cannot load, or memory and disk do not suffice.
    pub fn prepare(plan: Plan, options: Options, tell: Tell<'_>) -> Result<Self, BenchError> {
        let folder = scratch_folder("orchestra-bench-", options.folder.as_deref())?;
        tell(Progress::Listing);
        let catalogue = Catalogue::list(&plan, folder.path(), &options.tools.cancel)?;
        let items_total = catalogue.total();
        let first = catalogue.sample(options.items.unwrap_or(FIRST_LOOK).min(FIRST_LOOK))?;
        let bench = Workbench::new(plan, first, options.tools.clone())?;
        let mut bench = Self { bench, options, items_total, folder };
        tell(Progress::FirstLook);
        bench.bench.make_ready()?;
        let items = match bench.options.items {
            Some(items) => items,
            None => bench.enough_items()?,
        };
        bench.bench.sample = catalogue.sample(items.clamp(1, items_total))?;
        bench.bench.sample.manifests(bench.folder.path())?;
        tell(Progress::Chosen { items: bench.bench.sample.n_items(), of: items_total });
        Ok(bench)
    }

    /// As many items as keep a run busy for a while, found by a short look at both parts.
    fn enough_items(&self) -> Result<u64, BenchError> {
        let (look, time) = (self.options.part / 4, OwnTime::undivided());
        let decode = self.bench.decode(look, &time)?;
        let infer = self.bench.infer(look, &time)?;
        let limit = self.judged().loads(&decode, &infer).limit().items_per_second;
        // Saturates where nothing limits it.
        Ok(((limit * self.options.part.as_secs_f64() * RUN_BY_PART) as u64).max(LEAST_ITEMS))
    }

    /// Each infer stage alone, in a bare loop, with batches of 1, 2, 4 and so on up to the largest: what a size is worth on a device.
    ///
    /// # Errors
    /// A worker fails, or it is cancelled.
    pub fn rungs(&mut self, tell: Tell<'_>) -> Result<RungReport, BenchError> {
        let plan = &self.bench.plan;
        let mut rungs = Vec::new();
        for (stage, infer) in plan.infer_stages() {
            let name = &plan.stages[stage.index()].name;
            tell(Progress::Stage(name));
            let sizes = infer.fixed_batch.map_or_else(|| ladder(infer.max_batch), |only| vec![only]);
            let figures = self.bench.sizes((stage, infer), &sizes, self.options.part)?;
            rungs.extend(figures.iter().map(|f| Rung {
                stage: name.clone(),
                device: plan.devices[f.device.index()].spec.name.clone(),
                workers: f.workers,
                threads: f.threads,
                batch: f.batch,
                items_per_second: f.rate,
                cpu_seconds_per_item: f.cpu_seconds,
                first_batch_seconds: f.first_batch.as_secs_f64(),
                median_batch_seconds: f.usual_batch.as_secs_f64(),
                switched_batch_seconds: f.switched_batch.map(|taken| taken.as_secs_f64()),
            }));
        }
        Ok(RungReport { workflow: plan.name.clone(), rungs })
    }

    /// All rounds.
    ///
    /// # Errors
    /// A worker fails, the measured run does not end well, or it is cancelled.
    pub fn measure(&mut self, tell: Tell<'_>) -> Result<Report, BenchError> {
        let of = self.options.rounds.max(1);
        let mut rounds = Vec::with_capacity(of);
        for round in 1..=of {
            tell(Progress::Round { round, of });
            rounds.push(self.round(round)?);
        }
        Ok(self.judged().report(&rounds))
    }

    fn round(&self, round: usize) -> Result<Round, BenchError> {
        let mut parts = [Part::Decode, Part::Infer, Part::Run];
        // Back and forth, so that what drifts falls on all alike.
        if round.is_multiple_of(2) {
            parts.reverse();
        }
        let unchanged: &Settings = &[];
        let jobs: Vec<_> = parts.iter().map(|part| (unchanged, *part)).collect();
        let (mut decode, mut infer, mut run) = (None, None, None);
        for said in self.take(&jobs, self.order(&[&self.bench.plan]))? {
            match said {
                Said::Decoded(figures) => decode = Some(figures),
                Said::Inferred(figures) => infer = Some(figures),
                Said::Ran(figures) => run = Some(figures),
                Said::Ready | Said::Started => {}
            }
        }
        match (decode, infer, run) {
            (Some(decode), Some(infer), Some(run)) => Ok(Round { decode, infer, run }),
            _ => Err(BenchError::Bug("a part of a round was not measured".into())),
        }
    }

    /// Has parts measured by processes of their own.
    fn take(&self, parts: &[(&Settings, Part)], order: Order) -> Result<Vec<Said>, BenchError> {
        let job = |(seat, &(_, part)): (usize, &(&Settings, Part))| Job {
            part,
            lasting: self.options.part,
            folder: self.folder.path().to_owned(),
            seat,
        };
        let jobs: Vec<Job> = parts.iter().enumerate().map(job).collect();
        let command = |job: &Job| (self.options.command)(parts[job.seat].0, job);
        turns::take(&jobs, order, self.bench.cores, &command, &self.bench.tools.cancel)
    }

    /// Parts take turns where all of them can be there at the same time: a GPU's memory is planned for one run.
    fn order(&self, plans: &[&Plan]) -> Order {
        let needed: u64 = plans.iter().map(|plan| memory_of(plan)).sum();
        // The parts of a run need as much again as it does, and others live here, too.
        if plans.iter().all(|plan| plan.is_on_cpu()) && needed <= self.options.memory / 4 {
            Order::InTurns
        } else {
            Order::OneAfterAnother
        }
    }

    /// Tries other settings, at most `trials` of them, each side by side with the best so far. `replan` plans the workflow with settings
    /// changed; `None`: it cannot be planned so.
    ///
    /// # Errors
    /// As for [`Bench::measure`]. A setting with which a run does not start or end well is only not taken.
    pub fn tune(&mut self, trials: usize, replan: Replan<'_>, tell: Tell<'_>) -> Result<Tuned, BenchError> {
        let knobs = tune::knobs(&self.bench.plan, self.bench.cores);
        let runs = self.options.rounds.max(LEAST_RUNS_COMPARED);
        let mut trial = 0;
        let mut compare = |best: &Settings, other: &Settings, (key, value): (&str, u64)| {
            trial += 1;
            tell(Progress::Trying { trial, of: trials, key, value });
            let (Some(best_plan), Some(other_plan)) = (replan(best), replan(other)) else { return Ok(None) };
            let order = self.order(&[&best_plan, &other_plan]);
            self.compare(best, other, order, runs)
        };
        tune::descend(&knobs, trials, &mut compare)
    }

    /// Runs of both, the order changing, so that what drifts falls on both alike.
    fn compare(
        &self,
        best: &Settings,
        other: &Settings,
        order: Order,
        runs: usize,
    ) -> Result<Option<(Spread, Spread)>, BenchError> {
        let mut rates = [Vec::new(), Vec::new()];
        for turn in 0..runs {
            let mut pair = [(best, Part::Run), (other, Part::Run)];
            let swapped = !turn.is_multiple_of(2);
            if swapped {
                pair.reverse();
            }
            let mut ran = match self.take(&pair, order) {
                Ok(said) => said.into_iter().filter_map(rate_of).collect::<Vec<_>>(),
                Err(error) if matches!(error.cause(), Cause::Interrupted | Cause::Bug) => return Err(error),
                // The best one has run before, so this is what the other setting does: too little memory, for example.
                Err(_) => return Ok(None),
            };
            if swapped {
                ran.reverse();
            }
            rates.iter_mut().zip(ran).for_each(|(rates, rate)| rates.push(rate));
        }
        let [best, other] = rates.map(Spread::of);
        Ok(Some((best, other)))
    }

    fn judged(&self) -> Judged<'_> {
        let Workbench { plan, sample, cores, .. } = &self.bench;
        Judged { plan, sample, cores: *cores, items_total: self.items_total }
    }
}

fn rate_of(said: Said) -> Option<f64> {
    match said {
        Said::Ran(RunFigures { rate, .. }) => Some(rate),
        _ => None,
    }
}

/// Main memory that a run takes, in bytes, by what is known before it.
fn memory_of(plan: &Plan) -> u64 {
    let stage = |infer: &orchestra_plan::InferPlan| {
        // A file that cannot be looked at is an error of the run.
        let file = std::fs::metadata(&plan.models[infer.model.index()].path).map_or(0, |m| m.len());
        let workers: usize = infer.workers.iter().map(|w| w.count).sum();
        infer.layout.total_bytes() as u64 + workers as u64 * file * SESSION_BY_FILE
    };
    plan.infer_stages().map(|(_, infer)| stage(infer)).sum()
}
