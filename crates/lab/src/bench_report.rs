//! What a measurement comes to: medians over the rounds, with their range. Field names are the keys of `orchestra bench --json`.

use orchestra_core::StageId;
use orchestra_core::bottleneck::Bottleneck;
use orchestra_plan::Plan;
use serde::Serialize;

use crate::decode::DecodeFigures;
use crate::infer::InferFigures;
use crate::item_lists::Lists;
use crate::limit::{Bound, DeviceLoad, Limit, Loads, StageLoad, pace};
use crate::run::source_of;
use crate::stats::{Spread, divide};
use crate::whole_run::RunFigures;

pub use crate::limit::Pace;

/// A run that lasts so long at its limit has a steady state.
const LONG_ENOUGH_SECONDS: f64 = 4.0;

#[derive(Debug, Clone)]
pub(crate) struct Round {
    pub decode: Vec<DecodeFigures>,
    pub infer: Vec<InferFigures>,
    pub run: RunFigures,
}

/// Everything. `limit_items_per_second`, `run_items_per_second` and `ratio` are medians over the rounds, each by itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub workflow: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Items that the sources name.
    pub items_total: u64,
    /// Items of each run; more than `items_total` where the list comes again and again.
    pub items: u64,
    /// Of these, items that cannot be read or decoded.
    pub items_unreadable: u64,
    pub limit_items_per_second: f64,
    /// What a run reaches: in its steady state, or from start to end where `too_short`.
    pub run_items_per_second: f64,
    /// The second by the first; `null` where `too_short`.
    pub ratio: Option<f64>,
    /// A run has no steady state of a second: how far it is below the limit says more about its start.
    pub too_short: bool,
    /// Items that a run with a steady state would have.
    pub items_needed: u64,
    /// What sets the pace: `loading`, `inference`, `cpu` (both share the cores), `sinks` or `overhead`.
    pub bottleneck: Pace,
    /// `cores`, or the name of the GPU that bounds the limit.
    pub limited_by: String,
    pub limit: Spread,
    pub ratio_spread: Option<Spread>,
    /// Reading, decoding and preparing, by source.
    pub decode: Vec<DecodePart>,
    /// Stages with a model, by device.
    pub infer: Vec<InferPart>,
    pub run: RunPart,
    pub rounds: Vec<RoundReport>,
}

/// Reading, decoding and preparing the items of one source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodePart {
    pub source: String,
    pub weight: f64,
    pub threads: usize,
    pub items_per_second: Spread,
    pub core_seconds_per_item: Spread,
}

/// A stage with a model on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InferPart {
    pub stage: String,
    pub device: String,
    /// Share of all items that go through the stage, 0 to 1.
    pub weight: f64,
    pub workers: usize,
    /// Threads of each one's session.
    pub threads: usize,
    /// Batches that each runs at once.
    pub streams: usize,
    pub batch: usize,
    /// Of all of these workers, with inputs ready.
    pub items_per_second: Spread,
    /// Seconds of one core per item: of computing it on the CPU, or of driving a GPU.
    pub core_seconds_per_item: Spread,
    pub cpu_seconds_per_item: Spread,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunPart {
    /// See [`Report::run_items_per_second`].
    pub items_per_second: Spread,
    /// Items by seconds from start to end.
    pub whole_items_per_second: Spread,
    pub seconds: Spread,
    /// Of these, until a worker had finished the first batch.
    pub seconds_starting: Spread,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoundReport {
    pub limit_items_per_second: f64,
    pub run_items_per_second: f64,
    /// The second by the first; `null` where the run was too short.
    pub ratio: Option<f64>,
}

/// What batches of each size are worth in a bare loop.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchSizeReport {
    pub workflow: String,
    pub batch_sizes: Vec<InferFigures>,
}

pub(crate) struct Judge<'a> {
    pub plan: &'a Plan,
    pub lists: &'a Lists,
    pub cores: usize,
}

impl Judge<'_> {
    /// What the parts of a round allow.
    pub fn limit(&self, decode: &[DecodeFigures], infer: &[InferFigures]) -> Limit {
        let decode_seconds =
            decode.iter().map(|d| self.lists.weight(d.source) * d.core_seconds(self.cores)).sum();
        let device = |f: &InferFigures| DeviceLoad {
            device: f.device_id.index(),
            on_cpu: f.on_cpu,
            rate: f.items_per_second,
            core_seconds: self.core_seconds(infer, f),
        };
        let stages = self.plan.batch_stages().map(|(stage, _)| StageLoad {
            weight: self.weight(stage),
            devices: infer.iter().filter(|f| f.stage_id == stage).map(device).collect(),
        });
        Loads { cores: self.cores, decode_seconds, stages: stages.collect() }.limit()
    }

    /// Sums up. There is at least one round.
    pub fn report(&self, rounds: &[Round], items_total: u64) -> Report {
        let limits: Vec<Limit> = rounds.iter().map(|r| self.limit(&r.decode, &r.infer)).collect();
        let too_short = rounds.iter().any(|r| r.run.steady_rate.is_none());
        let rate = |r: &RunFigures| r.steady_rate.filter(|_| !too_short).unwrap_or_else(|| r.whole_rate());
        let round = |(round, limit): (&Round, &Limit)| RoundReport {
            limit_items_per_second: limit.items_per_second,
            run_items_per_second: rate(&round.run),
            ratio: (!too_short).then(|| divide(rate(&round.run), limit.items_per_second)),
        };
        let rounds_out: Vec<RoundReport> = rounds.iter().zip(&limits).map(round).collect();
        let limit = Spread::of(limits.iter().map(|l| l.items_per_second));
        let ratio = (!too_short).then(|| Spread::of(rounds_out.iter().filter_map(|r| r.ratio)));
        let middle = self.middle(&limits);
        let run = self.run_part(rounds, &rate);
        let waits_for_sinks = rounds[rounds.len() / 2].run.bottleneck == Bottleneck::Sinks;
        Report {
            workflow: self.plan.name.clone(),
            cores: self.cores,
            items_total,
            items: self.lists.total(),
            items_unreadable: rounds.iter().map(|r| r.run.failed).max().unwrap_or(0),
            limit_items_per_second: limit.median,
            run_items_per_second: run.items_per_second.median,
            ratio: ratio.map(|r| r.median),
            too_short,
            items_needed: (limit.median * LONG_ENOUGH_SECONDS) as u64, // saturates
            bottleneck: pace(&middle, ratio.map(|r| r.median), waits_for_sinks),
            limited_by: match middle.bound {
                Bound::Cores => "cores".to_owned(),
                Bound::Device(d) => self.plan.devices[d].spec.name.clone(),
            },
            limit,
            ratio_spread: ratio,
            decode: self.decode_parts(rounds),
            infer: self.infer_parts(rounds),
            run,
            rounds: rounds_out,
        }
    }

    /// Share of the items that go through a stage.
    fn weight(&self, stage: StageId) -> f64 {
        source_of(self.plan, stage).map_or(0.0, |source| self.lists.weight(source))
    }

    fn core_seconds(&self, all: &[InferFigures], of: &InferFigures) -> f64 {
        let lanes =
            all.iter().filter(|f| f.stage_id == of.stage_id && f.on_cpu).map(InferFigures::lanes).sum();
        of.core_seconds(self.cores, lanes)
    }

    /// The median of each figure of the limit, with what bounds the limit in the middle.
    fn middle(&self, limits: &[Limit]) -> Limit {
        let median = |of: fn(&Limit) -> f64| Spread::of(limits.iter().map(of)).median;
        let mut sorted: Vec<&Limit> = limits.iter().collect();
        sorted.sort_by(|a, b| a.items_per_second.total_cmp(&b.items_per_second));
        Limit {
            items_per_second: median(|l| l.items_per_second),
            bound: sorted.get(sorted.len() / 2).map_or(Bound::Cores, |l| l.bound),
            decode_seconds: median(|l| l.decode_seconds),
            infer_seconds: median(|l| l.infer_seconds),
            drive_seconds: median(|l| l.drive_seconds),
        }
    }

    fn decode_parts(&self, rounds: &[Round]) -> Vec<DecodePart> {
        let part = |(i, figures): (usize, &DecodeFigures)| {
            let all =
                |of: &dyn Fn(&DecodeFigures) -> f64| Spread::of(rounds.iter().map(|r| of(&r.decode[i])));
            DecodePart {
                source: self.plan.sources[figures.source.index()].name.clone(),
                weight: self.lists.weight(figures.source),
                threads: figures.threads,
                items_per_second: all(&DecodeFigures::rate),
                core_seconds_per_item: all(&|d| d.core_seconds(self.cores)),
            }
        };
        rounds[0].decode.iter().enumerate().map(part).collect()
    }

    fn infer_parts(&self, rounds: &[Round]) -> Vec<InferPart> {
        let part = |(i, figures): (usize, &InferFigures)| {
            let all = |of: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
            InferPart {
                stage: figures.stage.clone(),
                device: figures.device.clone(),
                weight: self.weight(figures.stage_id),
                workers: figures.workers,
                threads: figures.threads,
                streams: figures.streams,
                batch: figures.batch,
                items_per_second: all(&|r| r.infer[i].items_per_second),
                core_seconds_per_item: all(&|r| self.core_seconds(&r.infer, &r.infer[i])),
                cpu_seconds_per_item: all(&|r| r.infer[i].cpu_seconds_per_item),
            }
        };
        rounds[0].infer.iter().enumerate().map(part).collect()
    }

    fn run_part(&self, rounds: &[Round], rate: &dyn Fn(&RunFigures) -> f64) -> RunPart {
        let all = |of: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
        RunPart {
            items_per_second: all(&|r| rate(&r.run)),
            whole_items_per_second: all(&|r| r.run.whole_rate()),
            seconds: all(&|r| r.run.elapsed.as_secs_f64()),
            seconds_starting: all(&|r| r.run.starting.as_secs_f64()),
        }
    }
}
