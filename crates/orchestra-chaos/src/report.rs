//! What a trial under faults came to: the keys of `orchestra chaos --json`, which are part of the contract with users. Arithmetic only.

use std::time::Duration;

use orchestra_trial::Spread;
use serde::Serialize;

use crate::audit::{Audit, Finding};
use crate::one_run::{Ran, divide};
use crate::quantiles::Quantiles;
use crate::striker::Strikes;
use crate::tracker::{Fault, Strike};

/// Everything that was found. Counts are sums over all rounds, and over the runs with faults unless they say otherwise; times are in
/// seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the workflow.
    pub workflow: String,
    /// Nothing was lost, doubled or leaked, nothing differs, and nothing is unknown.
    pub passed: bool,
    /// Items of each run.
    pub items: u64,
    /// Items that the sources of the workflow name.
    pub items_listed: u64,
    /// Rounds, each with one run without faults and one with them.
    pub runs: u64,
    /// Mean time between two SIGKILLs; `null`: none.
    pub kill_every: Option<f64>,
    /// Mean time between two SIGSTOPs; `null`: none.
    pub stop_every: Option<f64>,
    /// What chose moments and victims.
    pub seed: u64,
    /// Workers that serve, and workers that stand by, as planned.
    pub workers: u64,
    /// See `workers`.
    pub spares: u64,
    /// Items with a record in each of their sinks.
    pub done: u64,
    /// Items with a failure.
    pub failed: u64,
    /// The same in the runs without faults.
    pub failed_without_faults: u64,
    /// Items without an end, in runs with faults or without.
    pub lost: u64,
    /// Items with two ends, in runs with faults or without.
    pub doubled: u64,
    /// Items that ended with faults otherwise than without.
    pub differing: u64,
    /// Lines in result files that are no record of any item, in runs with faults or without.
    pub unknown: u64,
    /// The first items of each flaw.
    pub findings: Vec<Finding>,
    /// Workers that were killed while they served.
    pub kills: u64,
    /// Workers that were stopped while they served.
    pub stops: u64,
    /// Workers that were struck while they stood by.
    pub spares_struck: u64,
    /// Strikes that found nobody.
    pub missed: u64,
    /// Strikes after which no batch was completed in that place any more: there was no work left for it, or it was given up.
    pub unmeasured: u64,
    /// Workers that were replaced.
    pub restarts: u64,
    /// Times that a spare took a worker's place.
    pub spare_takeovers: u64,
    /// Workers that died and that nobody had struck.
    pub other_deaths: u64,
    /// From a kill to the next batch in the same place.
    pub kill_recovery: Option<Quantiles>,
    /// From a kill to the next batch of any other worker of the stage.
    pub kill_stall: Option<Quantiles>,
    /// Of `kill_recovery`: until the process was known to be gone.
    pub kill_notice: Option<Quantiles>,
    /// Of `kill_recovery`: until another worker served in its place. The rest of it is the first batch.
    pub kill_takeover: Option<Quantiles>,
    /// From a stop to the next batch in the same place.
    pub stop_recovery: Option<Quantiles>,
    /// From a stop to the next batch of any other worker of the stage.
    pub stop_stall: Option<Quantiles>,
    /// Of `stop_recovery`: until the process was taken for dead, killed, and known to be gone.
    pub stop_notice: Option<Quantiles>,
    /// Of `stop_recovery`: until another worker served in its place.
    pub stop_takeover: Option<Quantiles>,
    /// Between two batches of one worker, without faults.
    pub batch: Option<Quantiles>,
    /// From the start of a process until its model is loaded and warm, when all start at once: before the first batch, without faults.
    pub load: Option<Quantiles>,
    /// The same with faults, while the others work: of those that were started after the first batch, spares among them.
    pub load_with_faults: Option<Quantiles>,
    /// Medians: `kill_recovery` by `batch`.
    pub recovery_in_batches: Option<f64>,
    /// Medians: `kill_recovery` by `load_with_faults`.
    pub recovery_in_loads: Option<f64>,
    /// Items per second until the last batch was done.
    pub throughput_without_faults: Spread,
    /// The same with faults.
    pub throughput_with_faults: Spread,
    /// Of each round: with faults by without.
    pub throughput_ratio: Spread,
    /// What was left behind, in words.
    pub leaks: Vec<String>,
}

/// What is said of a trial and not measured.
#[derive(Debug)]
pub struct Trial {
    pub workflow: String,
    pub items: u64,
    pub items_listed: u64,
    pub workers: u64,
    pub spares: u64,
    pub strikes: Strikes,
}

/// Both runs of a round, and what was found.
#[derive(Debug)]
pub struct Round {
    pub peace: Ran,
    pub faults: Ran,
    /// Of the run without faults.
    pub audit_of_peace: Audit,
    /// Of the run with faults, against that without.
    pub audit: Audit,
    pub leaks: Vec<String>,
}

impl Report {
    pub(crate) fn new(trial: Trial, rounds: Vec<Round>) -> Self {
        let all = |of: &dyn Fn(&Round) -> u64| rounds.iter().map(of).sum::<u64>();
        let strikes: Vec<Strike> = rounds.iter().flat_map(|r| r.faults.tracker.strikes().copied()).collect();
        let of = |fault: Fault| strikes.iter().filter(move |s| s.fault == fault);
        let recovery = |fault| Quantiles::of(of(fault).filter_map(|s| s.recovery));
        let stall = |fault| Quantiles::of(of(fault).filter_map(|s| s.stall));
        let notice = |fault| Quantiles::of(of(fault).filter_map(|s| s.notice));
        let takeover = |fault| Quantiles::of(of(fault).filter_map(|s| s.takeover));
        let without =
            |of: fn(&Ran) -> &Vec<Duration>| Quantiles::of(rounds.iter().flat_map(|r| of(&r.peace)).copied());
        let (batch, load) = (without(|r| &r.tracker.gaps), without(|r| &r.tracker.first_loads));
        let load_with_faults =
            Quantiles::of(rounds.iter().flat_map(|r| &r.faults.tracker.later_loads).copied());
        let kill_recovery = recovery(Fault::Kill);
        let in_units =
            |unit: Option<Quantiles>| kill_recovery.zip(unit).map(|(r, unit)| divide(r.p50, unit.p50));
        let rates = |of: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
        let mut sum = Audit::default();
        let mut leaks = Vec::new();
        for round in &rounds {
            sum.add(round.audit_of_peace.clone());
            sum.add(round.audit.clone());
            leaks.extend(round.leaks.iter().cloned());
        }
        Self {
            workflow: trial.workflow,
            passed: sum.is_clean() && leaks.is_empty(),
            items: trial.items,
            items_listed: trial.items_listed,
            runs: rounds.len() as u64,
            kill_every: trial.strikes.kill_every.map(|d| d.as_secs_f64()),
            stop_every: trial.strikes.stop_every.map(|d| d.as_secs_f64()),
            seed: trial.strikes.seed,
            workers: trial.workers,
            spares: trial.spares,
            done: all(&|r| r.audit.done),
            failed: all(&|r| r.audit.failed),
            failed_without_faults: all(&|r| r.audit_of_peace.failed),
            lost: sum.lost,
            doubled: sum.doubled,
            differing: sum.differing,
            unknown: sum.unknown,
            findings: sum.findings,
            kills: of(Fault::Kill).count() as u64,
            stops: of(Fault::Stop).count() as u64,
            spares_struck: all(&|r| r.faults.tracker.spares_struck),
            missed: all(&|r| r.faults.missed),
            unmeasured: strikes.iter().filter(|s| s.recovery.is_none()).count() as u64,
            restarts: all(&|r| r.faults.report.devices.iter().map(|d| d.restarts).sum()),
            spare_takeovers: all(&|r| r.faults.tracker.spare_takeovers),
            other_deaths: all(&|r| r.faults.tracker.other_deaths),
            kill_recovery,
            kill_stall: stall(Fault::Kill),
            kill_notice: notice(Fault::Kill),
            kill_takeover: takeover(Fault::Kill),
            stop_recovery: recovery(Fault::Stop),
            stop_stall: stall(Fault::Stop),
            stop_notice: notice(Fault::Stop),
            stop_takeover: takeover(Fault::Stop),
            batch,
            load,
            load_with_faults,
            recovery_in_batches: in_units(batch),
            recovery_in_loads: in_units(load_with_faults),
            throughput_without_faults: rates(&|r| r.peace.items_per_second()),
            throughput_with_faults: rates(&|r| r.faults.items_per_second()),
            throughput_ratio: rates(&|r| divide(r.faults.items_per_second(), r.peace.items_per_second())),
            leaks,
        }
    }
}
