//! What chaos comes to. The keys of `orchestra chaos --json` are the rows of its table; `docs/reliability.md` says what each means.

use std::time::Duration;

use orchestra_plan::Plan;
use serde::{Serialize, Serializer};

use crate::audit::{Audit, Finding};
use crate::run::Ran;
use crate::stats::{Quantiles, Spread, divide};
use crate::striker::{Fault, Strikes};
use crate::tracker::{Strike, Tracker};

/// Everything that was found. Counts are sums over all rounds, and over the runs with faults unless they say otherwise; times are in
/// seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub workflow: String,
    /// Nothing was lost, doubled or leaked, nothing differs, and nothing is unknown.
    pub passed: bool,
    #[serde(flatten)]
    pub strikes: Strikes,
    /// What the rounds were: `items_listed`, `runs`, `workers`, `failed_without_faults`.
    #[serde(flatten, serialize_with = "keyed")]
    pub setting: Vec<(&'static str, u64)>,
    /// Items by their end, and strikes.
    #[serde(flatten, serialize_with = "keyed")]
    pub counts: Vec<(&'static str, u64)>,
    #[serde(flatten, serialize_with = "keyed")]
    pub times: Vec<(&'static str, Option<Quantiles>)>,
    /// Medians: `kill_recovery` by `batch` and by `load_with_faults`.
    #[serde(flatten, serialize_with = "keyed")]
    pub recovery: Vec<(&'static str, Option<f64>)>,
    /// Items per second until the last batch was done, over the rounds, and the ratio of both.
    #[serde(flatten, serialize_with = "keyed")]
    pub throughput: Vec<(&'static str, Spread)>,
    pub findings: Vec<Finding>,
    pub leaks: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Struck {
    pub ran: Ran,
    pub tracker: Tracker,
    /// Strikes that found no worker.
    pub missed: u64,
    pub loaders: u64,
}

/// Both runs of a round, and what was found.
#[derive(Debug)]
pub(crate) struct Round {
    pub peace: Struck,
    pub faults: Struck,
    /// Of the run without faults.
    pub audit_of_peace: Audit,
    /// Of the run with faults, against that without.
    pub audit: Audit,
    pub leaks: Vec<String>,
}

impl Struck {
    /// Items per second until the last batch was done. A process that is stopped at the very end holds the end of the run up for seconds,
    /// and no item with it.
    fn items_per_second(&self) -> f64 {
        let report = &self.ran.report;
        let last = self.tracker.last_batch.map_or(report.seconds, |last| last.as_secs_f64());
        divide(report.items.read as f64, last)
    }

    /// From the first batch to the last one.
    pub fn seconds_at_work(&self) -> f64 {
        let span = self.tracker.last_batch.zip(self.tracker.first_batch);
        span.map_or(0.0, |(last, first)| last.saturating_sub(first).as_secs_f64())
    }
}

impl Report {
    pub(crate) fn new(plan: &Plan, items_listed: u64, strikes: Strikes, rounds: Vec<Round>) -> Self {
        let sum = |of: &dyn Fn(&Round) -> u64| rounds.iter().map(of).sum::<u64>();
        let all: Vec<Strike> = rounds.iter().flat_map(|r| r.faults.tracker.strikes().copied()).collect();
        let count = |fault: Fault| all.iter().filter(|s| s.fault == fault).count() as u64;
        let times = |fault: Fault, of: fn(&Strike) -> Option<Duration>| {
            Quantiles::of(all.iter().filter(|s| s.fault == fault).filter_map(of))
        };
        let of_all = |of: fn(&Round) -> &Vec<Duration>| Quantiles::of(rounds.iter().flat_map(of).copied());
        let batch = of_all(|r| &r.peace.tracker.gaps);
        let load_with_faults = of_all(|r| &r.faults.tracker.later_loads);
        let kill_recovery = times(Fault::Kill, |s| s.recovery);
        let in_units =
            |unit: Option<Quantiles>| kill_recovery.zip(unit).map(|(r, unit)| divide(r.p50, unit.p50));
        let rates = |of: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
        let mut audit = Audit::default();
        for round in &rounds {
            audit.add(round.audit_of_peace.clone());
            audit.add(round.audit.clone());
        }
        let leaks: Vec<String> = rounds.iter().flat_map(|r| r.leaks.iter().cloned()).collect();
        let workers = plan.batch_stages().flat_map(|(_, batch)| &batch.workers);
        Self {
            workflow: plan.name.clone(),
            passed: audit.is_clean() && leaks.is_empty(),
            strikes,
            setting: vec![
                ("items_listed", items_listed),
                ("runs", rounds.len() as u64),
                ("workers", workers.map(|w| w.count as u64).sum()),
                ("failed_without_faults", sum(&|r| r.audit_of_peace.failed)),
            ],
            counts: vec![
                ("items", rounds.first().map_or(0, |r| r.audit.items)),
                ("done", sum(&|r| r.audit.done)),
                ("failed", sum(&|r| r.audit.failed)),
                ("lost", audit.lost),
                ("doubled", audit.doubled),
                ("differing", audit.differing),
                ("unknown", audit.unknown),
                ("kills", count(Fault::Kill)),
                ("stops", count(Fault::Stop)),
                ("loaders_struck", sum(&|r| r.faults.loaders)),
                ("loader_restarts", sum(&|r| r.faults.ran.report.loaders.restarts)),
                ("missed", sum(&|r| r.faults.missed)),
                ("unmeasured", all.iter().filter(|s| s.recovery.is_none()).count() as u64),
                ("restarts", sum(&|r| r.faults.ran.report.devices.iter().map(|d| d.restarts).sum())),
                ("other_deaths", sum(&|r| r.faults.tracker.other_deaths)),
            ],
            times: vec![
                ("kill_recovery", kill_recovery),
                ("kill_notice", times(Fault::Kill, |s| s.notice)),
                ("kill_takeover", times(Fault::Kill, |s| s.takeover)),
                ("kill_stall", times(Fault::Kill, |s| s.stall)),
                ("stop_recovery", times(Fault::Stop, |s| s.recovery)),
                ("stop_notice", times(Fault::Stop, |s| s.notice)),
                ("stop_takeover", times(Fault::Stop, |s| s.takeover)),
                ("stop_stall", times(Fault::Stop, |s| s.stall)),
                ("batch", batch),
                ("load", of_all(|r| &r.peace.tracker.first_loads)),
                ("load_with_faults", load_with_faults),
            ],
            recovery: vec![
                ("recovery_in_batches", in_units(batch)),
                ("recovery_in_loads", in_units(load_with_faults)),
            ],
            throughput: vec![
                ("throughput_without_faults", rates(&|r| r.peace.items_per_second())),
                ("throughput_with_faults", rates(&|r| r.faults.items_per_second())),
                (
                    "throughput_ratio",
                    rates(&|r| divide(r.faults.items_per_second(), r.peace.items_per_second())),
                ),
            ],
            findings: audit.findings,
            leaks,
        }
    }

    /// One of `setting` and `counts`.
    pub fn count(&self, key: &str) -> u64 {
        let all = self.setting.iter().chain(&self.counts);
        all.filter(|(k, _)| *k == key).map(|(_, n)| *n).sum()
    }
}

/// Each entry under its own key.
fn keyed<S: Serializer>(rows: &[(&'static str, impl Serialize)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rows.iter().map(|(key, value)| (key, value)))
}
