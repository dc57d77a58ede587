//! What a measurement says in the end, as data: medians over the rounds, with their range. Field names are part of the contract with
//! users. It judges through `limit` and `advice`, and prints nothing.

use std::time::Duration;

use orchestra_core::StageId;
use orchestra_core::bottleneck::Bottleneck;
use orchestra_plan::Plan;
use orchestra_trial::{Sample, Spread, source_of};
use serde::Serialize;

use crate::advice::{Advice, Evidence, Pace, advise, judge};
use crate::figures::{DecodeFigures, InferFigures, Measured, RunFigures};
use crate::limit::{Bound, DeviceLoad, Limit, Loads, StageLoad, divide};
use crate::tune::Tuned;

/// A run of this length is long.
const LONG_SECONDS: f64 = 1.0;

/// One round: a run, and the parts as measured beside it.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    pub decode: Vec<DecodeFigures>,
    pub infer: Vec<InferFigures>,
    pub run: RunFigures,
}

/// Everything. `limit_items_per_second`, `run_items_per_second` and `ratio` are medians over the rounds, each by itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the workflow.
    pub workflow: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Items that the sources name.
    pub items_total: u64,
    /// Items of the sample that each round goes through.
    pub items: u64,
    /// Of these, items that cannot be read or decoded.
    pub items_unreadable: u64,
    /// What the machine allows.
    pub limit_items_per_second: f64,
    /// What a run reaches.
    pub run_items_per_second: f64,
    /// The second by the first.
    pub ratio: f64,
    /// What sets the pace: `loading`, `inference`, `cpu` (both share the cores), `sinks` or `overhead`.
    pub bottleneck: Pace,
    /// `cores`, or the name of the GPU that bounds the limit.
    pub limited_by: String,
    /// What the cores alone allow, in items per second.
    pub cores_items_per_second: Spread,
    /// The limit and its range.
    pub limit: Spread,
    /// The ratio and its range.
    pub ratio_spread: Spread,
    /// The ratio that a machine with nothing else to do would show, where the cores are the limit: the useful part of the run's CPU time,
    /// times the part of the time in which cores were not idle. Both can be told apart from what other programs do.
    pub ratio_by_cpu_time: Option<Spread>,
    /// Reading, decoding and preparing, by source.
    pub decode: Vec<DecodePart>,
    /// Infer stages, by device.
    pub infer: Vec<InferPart>,
    /// The whole run.
    pub run: RunPart,
    /// Every round.
    pub rounds: Vec<RoundReport>,
    /// What to change, the most promising first.
    pub advice: Vec<Advice>,
    /// What came of trying, if that was asked for.
    pub tune: Option<Tuned>,
}

/// Reading, decoding and preparing the items of one source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodePart {
    /// Which source.
    pub source: String,
    /// Share of all items that are its, 0 to 1.
    pub weight: f64,
    /// Threads.
    pub threads: usize,
    /// With all cores.
    pub items_per_second: Spread,
    /// The same for each core.
    pub items_per_second_per_core: Spread,
    /// Seconds of one core per item.
    pub core_seconds_per_item: Spread,
    /// Of these, seconds in which the core really computed.
    pub cpu_seconds_per_item: Spread,
}

/// An infer stage on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InferPart {
    /// Which stage.
    pub stage: String,
    /// Where.
    pub device: String,
    /// Share of all items that go through the stage, 0 to 1.
    pub weight: f64,
    /// Worker processes.
    pub workers: usize,
    /// Threads of each one's session.
    pub threads: usize,
    /// Batches that each runs at once.
    pub streams: usize,
    /// Items of a batch.
    pub batch: usize,
    /// Of all of these workers, with inputs ready.
    pub items_per_second: Spread,
    /// The same for each core that they keep busy; none on a GPU.
    pub items_per_second_per_core: Option<Spread>,
    /// Seconds of one core per item; none on a GPU.
    pub core_seconds_per_item: Option<Spread>,
    /// CPU time of the workers per item.
    pub cpu_seconds_per_item: Spread,
}

/// The whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunPart {
    /// Its rate, as `measured` says.
    pub items_per_second: Spread,
    /// Whether that is the rate of its steady state or of the whole of it, start included.
    pub measured: Measured,
    /// Items by seconds from start to end.
    pub whole_items_per_second: Spread,
    /// From start to end.
    pub seconds: Spread,
    /// Of these, until a worker had finished the first batch.
    pub seconds_starting: Spread,
    /// CPU time per item of this process and its workers, less what workers need to start.
    pub cpu_seconds_per_item: Spread,
    /// Of these, what is neither decoding nor inference.
    pub overhead_seconds_per_item: Spread,
    /// Decoding and inference by all CPU time, 0 to 1. Unlike the ratio, it does not suffer from what else the machine does.
    pub useful_cpu_share: Spread,
    /// Share of the time of all cores in which they had nothing to do, 0 to 1, over the time that the rate is over; none if unknown.
    pub idle_share: Option<Spread>,
    /// Share of the time of all cores that went to other programs, 0 to 1; none if unknown. Where this is not small, rates and ratio are
    /// those of a busy machine.
    pub others_share: Option<Spread>,
    /// What the run itself calls its bottleneck.
    pub bottleneck: Bottleneck,
}

/// One round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoundReport {
    /// What the machine allows.
    pub limit_items_per_second: f64,
    /// What the run reached.
    pub run_items_per_second: f64,
    /// The second by the first.
    pub ratio: f64,
}

/// What the rounds are judged with.
pub(crate) struct Judged<'a> {
    pub plan: &'a Plan,
    pub sample: &'a Sample,
    pub cores: usize,
    pub items_total: u64,
}

impl Judged<'_> {
    /// Share of the items that go through a stage.
    fn weight(&self, stage: StageId) -> f64 {
        source_of(self.plan, stage).map_or(0.0, |source| self.sample.weight(source))
    }

    /// Cores that all workers of a stage on the CPU can keep busy.
    fn lanes(&self, infer: &[InferFigures], stage: StageId) -> usize {
        infer.iter().filter(|f| f.stage == stage && f.on_cpu).map(InferFigures::lanes).sum()
    }

    /// The parts of a round, in the form that the arithmetic takes.
    pub fn loads(&self, decode: &[DecodeFigures], infer: &[InferFigures]) -> Loads {
        let decode_seconds =
            decode.iter().map(|d| self.sample.weight(d.source) * d.core_seconds(self.cores)).sum();
        let stages = self.plan.infer_stages().map(|(stage, _)| StageLoad {
            weight: self.weight(stage),
            devices: infer
                .iter()
                .filter(|f| f.stage == stage)
                .map(|f| DeviceLoad {
                    device: f.device.index(),
                    on_cpu: f.on_cpu,
                    rate: f.rate,
                    core_seconds: f.core_seconds(self.cores, self.lanes(infer, stage)),
                })
                .collect(),
        });
        Loads { cores: self.cores, decode_seconds, stages: stages.collect() }
    }

    /// Sums up. There is at least one round.
    pub fn report(&self, rounds: &[Round]) -> Report {
        let limits: Vec<Limit> = rounds.iter().map(|r| self.loads(&r.decode, &r.infer).limit()).collect();
        let rounds_out: Vec<RoundReport> = rounds
            .iter()
            .zip(&limits)
            .map(|(round, limit)| RoundReport {
                limit_items_per_second: limit.items_per_second,
                run_items_per_second: round.run.rate,
                ratio: divide(round.run.rate, limit.items_per_second),
            })
            .collect();
        let limit = Spread::of(limits.iter().map(|l| l.items_per_second));
        let ratio = Spread::of(rounds_out.iter().map(|r| r.ratio));
        let run = self.run_part(rounds);
        let decode = self.decode_parts(rounds);
        let infer = self.infer_parts(rounds);
        let by_cpu_time = self.ratio_by_cpu_time(rounds, &limits);
        let evidence = self.evidence(&limits, &run, by_cpu_time.unwrap_or(ratio).median);
        let failed = rounds.iter().map(|r| r.run.failed).max().unwrap_or(0);
        Report {
            workflow: self.plan.name.clone(),
            cores: self.cores,
            items_total: self.items_total,
            items: self.sample.n_items(),
            items_unreadable: failed,
            limit_items_per_second: limit.median,
            run_items_per_second: run.items_per_second.median,
            ratio: ratio.median,
            bottleneck: judge(&evidence),
            limited_by: match evidence.limit.bound {
                Bound::Cores => "cores".to_owned(),
                Bound::Device(d) => self.plan.devices[d].spec.name.clone(),
            },
            cores_items_per_second: Spread::of(limits.iter().map(|l| l.cores_items_per_second)),
            limit,
            ratio_spread: ratio,
            ratio_by_cpu_time: by_cpu_time,
            advice: advise(&evidence, self.plan, self.cores),
            decode,
            infer,
            run,
            rounds: rounds_out,
            tune: None,
        }
    }

    /// What the judgement rests on: the median of each figure.
    fn evidence(&self, limits: &[Limit], run: &RunPart, ratio: f64) -> Evidence {
        let median = |of: fn(&Limit) -> f64| Spread::of(limits.iter().map(of)).median;
        let mut sorted: Vec<&Limit> = limits.iter().collect();
        sorted.sort_by(|a, b| a.items_per_second.total_cmp(&b.items_per_second));
        let limit = Limit {
            items_per_second: median(|l| l.items_per_second),
            bound: sorted.get(sorted.len() / 2).map_or(Bound::Cores, |l| l.bound),
            decode_seconds: median(|l| l.decode_seconds),
            infer_seconds: median(|l| l.infer_seconds),
            cores_items_per_second: median(|l| l.cores_items_per_second),
            devices_items_per_second: median(|l| l.devices_items_per_second),
        };
        Evidence {
            limit,
            ratio,
            measured: run.measured,
            is_long: run.seconds.median >= LONG_SECONDS,
            run_says_sinks: run.bottleneck == Bottleneck::Sinks,
            overhead_seconds: run.overhead_seconds_per_item.median,
        }
    }

    fn decode_parts(&self, rounds: &[Round]) -> Vec<DecodePart> {
        let first = rounds.first().map_or(&[][..], |r| &r.decode);
        let part = |(i, figures): (usize, &DecodeFigures)| {
            let all =
                |of: &dyn Fn(&DecodeFigures) -> f64| Spread::of(rounds.iter().map(|r| of(&r.decode[i])));
            let used = figures.threads.min(self.cores) as f64;
            DecodePart {
                source: self.plan.sources[figures.source.index()].name.clone(),
                weight: self.sample.weight(figures.source),
                threads: figures.threads,
                items_per_second: all(&DecodeFigures::rate),
                items_per_second_per_core: all(&|d| divide(d.rate(), used)),
                core_seconds_per_item: all(&|d| d.core_seconds(self.cores)),
                cpu_seconds_per_item: all(&DecodeFigures::cpu_seconds),
            }
        };
        first.iter().enumerate().map(part).collect()
    }

    fn infer_parts(&self, rounds: &[Round]) -> Vec<InferPart> {
        let first = rounds.first().map_or(&[][..], |r| &r.infer);
        let part = |(i, figures): (usize, &InferFigures)| {
            let all = |of: &dyn Fn(&InferFigures) -> f64| Spread::of(rounds.iter().map(|r| of(&r.infer[i])));
            let core_seconds =
                |r: &Round| r.infer[i].core_seconds(self.cores, self.lanes(&r.infer, figures.stage));
            let on_cores = |of: &dyn Fn(f64) -> f64| {
                figures.on_cpu.then(|| Spread::of(rounds.iter().map(|r| of(core_seconds(r)))))
            };
            InferPart {
                stage: self.plan.stages[figures.stage.index()].name.clone(),
                device: self.plan.devices[figures.device.index()].spec.name.clone(),
                weight: self.weight(figures.stage),
                workers: figures.workers,
                threads: figures.threads,
                streams: figures.streams,
                batch: figures.batch,
                items_per_second: all(&|f| f.rate),
                items_per_second_per_core: on_cores(&|seconds| divide(1.0, seconds)),
                core_seconds_per_item: on_cores(&|seconds| seconds),
                cpu_seconds_per_item: all(&|f| f.cpu_seconds),
            }
        };
        first.iter().enumerate().map(part).collect()
    }

    fn run_part(&self, rounds: &[Round]) -> RunPart {
        let all = |of: &dyn Fn(&RunFigures) -> f64| Spread::of(rounds.iter().map(|r| of(&r.run)));
        let steady = rounds.iter().all(|r| r.run.measured == Measured::Steady);
        let middle = rounds.get(rounds.len() / 2);
        RunPart {
            items_per_second: all(&|r| r.rate),
            measured: if steady { Measured::Steady } else { Measured::Whole },
            whole_items_per_second: all(&RunFigures::whole_rate),
            seconds: all(&|r| r.elapsed.as_secs_f64()),
            seconds_starting: all(&|r| r.starting.as_secs_f64()),
            cpu_seconds_per_item: Spread::of(rounds.iter().map(run_cpu_seconds)),
            overhead_seconds_per_item: Spread::of(rounds.iter().map(|r| self.overhead_seconds(r))),
            useful_cpu_share: Spread::of(rounds.iter().map(|r| self.useful_cpu_share(r))),
            idle_share: known(rounds, |r| r.idle_share),
            others_share: known(rounds, |r| r.others_share),
            bottleneck: middle.map_or(Bottleneck::Unknown, |r| r.run.bottleneck),
        }
    }

    fn ratio_by_cpu_time(&self, rounds: &[Round], limits: &[Limit]) -> Option<Spread> {
        let of_round = |(round, limit): (&Round, &Limit)| {
            let not_idle = 1.0 - round.run.idle_share.filter(|_| limit.bound == Bound::Cores)?;
            Some(self.useful_cpu_share(round) * not_idle)
        };
        let all: Option<Vec<f64>> = rounds.iter().zip(limits).map(of_round).collect();
        all.map(Spread::of)
    }

    /// Decoding and inference by all CPU time of the run.
    fn useful_cpu_share(&self, round: &Round) -> f64 {
        let all = run_cpu_seconds(round);
        divide(all - self.overhead_seconds(round), all)
    }

    /// CPU time per item that is neither decoding nor inference. Below zero it is noise.
    fn overhead_seconds(&self, round: &Round) -> f64 {
        let decode: f64 = round.decode.iter().map(|d| self.sample.weight(d.source) * d.cpu_seconds()).sum();
        let stage = |stage: StageId| {
            let here = || round.infer.iter().filter(move |f| f.stage == stage);
            let rate: f64 = here().map(|f| f.rate).sum();
            here().map(|f| divide(f.rate, rate) * f.cpu_seconds).sum::<f64>()
        };
        let infer: f64 = self.plan.infer_stages().map(|(id, _)| self.weight(id) * stage(id)).sum();
        run_cpu_seconds(round) - decode - infer
    }
}

fn known(rounds: &[Round], of: impl Fn(&RunFigures) -> Option<f64>) -> Option<Spread> {
    let all: Option<Vec<f64>> = rounds.iter().map(|r| of(&r.run)).collect();
    all.map(Spread::of)
}

fn run_cpu_seconds(round: &Round) -> f64 {
    let starting: Duration = round.infer.iter().map(|f| f.start_cpu).sum();
    divide(round.run.cpu.saturating_sub(starting).as_secs_f64(), round.run.items as f64)
}
