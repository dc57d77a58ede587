//! `orchestra chaos`: run a workflow while its workers and loaders are killed and stopped, and count what came out, as `orchestra verify` does.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use orchestra_core::locked;
use orchestra_launch::{EventHook, FaultKind, Verified, WorkerEvent, WorkerId};
use orchestra_machine::processes::children;
use orchestra_worker::held_process::Fault;
use orchestra_worker::process::is_loader_with;
use orchestra_worker::striker::{Striker, Strikes};
use serde::Serialize;
use tracing::level_filters::LevelFilter;

use crate::Failed;
use crate::args::{ChaosArgs, Verbosity};
use crate::columns::{CellAlignment, aligned};
use crate::exit_code::ExitCode;
use crate::human::{count, counted};
use crate::lab::{Lab, LabRun, LabSetting};
use crate::notices::Notices;
use crate::surroundings::Surroundings;
use crate::{stderr, stdout};

/// What was found, in all runs together. Field names are the keys of `orchestra chaos --json`, and with blanks the rows of its table.
#[derive(Debug, Default, Serialize)]
struct ChaosReport {
    workflow: String,
    /// Nothing was lost or doubled, and nothing is stray or damaged.
    passed: bool,
    runs: u64,
    /// Of each run.
    items: u64,
    done: u64,
    failed: u64,
    /// Items without the record that they should have, and without a failure.
    lost: u64,
    /// Items with more records than they should have, or with a record and a failure.
    doubled: u64,
    /// Records of items that no source names, and files that nothing names.
    stray: u64,
    /// Files that cannot be read to their end.
    damaged: u64,
    kills: u64,
    stops: u64,
    restarts: u64,
    /// Loaders that were killed or frozen.
    loaders_struck: u64,
    loader_restarts: u64,
    /// The first faults, in words.
    faults: Vec<String>,
}

pub fn chaos(
    args: &ChaosArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    if args.kill_every.0.is_none() && args.stop_every.0.is_none() {
        let what =
            anyhow!("`--kill-every` and `--stop-every` are both off: nothing would happen to any worker");
        return Err(Failed::new(ExitCode::Usage, what));
    }
    let notices = Notices { quiet: verbosity.quiet };
    // Of every worker that is struck the log says that it was lost: here that is no news.
    let level = if verbosity.verbose == 0 { LevelFilter::ERROR } else { verbosity.terminal_level() };
    let setting = LabSetting { args: &args.lab, surroundings, level, otlp: args.otlp.as_deref(), notices };
    let mut lab = Lab::open(&setting)?;
    let report = storm(&mut lab, args);
    lab.close();
    let report = report?;
    if args.json {
        stdout::print_json(&report)?
    } else {
        stdout::print(&table(&report))?
    };
    if report.passed {
        return Ok(ExitCode::Done);
    }
    stderr::say_line("error: the account of the items is wrong; this is a bug of ours, please report it");
    Ok(ExitCode::Bug)
}

fn storm(lab: &mut Lab, args: &ChaosArgs) -> Result<ChaosReport, Failed> {
    let items = match args.items {
        Some(items) => items,
        None => {
            let lasting = Duration::from_secs_f64(args.seconds);
            lab.items_lasting(lasting, u64::MAX, |lab, n| {
                lab.run(lab.over(&lab.plan, n)?.0, "a first look at how long it takes", None)
            })?
        }
    };
    let runs = args.runs as u64;
    let mut report = ChaosReport { workflow: lab.plan.name.clone(), runs, ..ChaosReport::default() };
    for run in 1..=runs {
        let (plan, items) = lab.over(&lab.plan, items)?;
        let serving = ServingWorkers::default();
        let strikers = Strikers::start(args, &serving)?;
        let ran = lab.run(plan, &format!("run {run} of {runs}, with {items} items"), Some(serving.hook()));
        strikers.stop(&mut report);
        let ran = ran?;
        let found = orchestra_launch::verify(&ran.output, &orchestra_launch::kinds())
            .map_err(|error| Failed::new(ExitCode::Bug, error))?;
        report.add(items, &ran, found);
    }
    report.passed = report.lost + report.doubled + report.stray + report.damaged == 0;
    Ok(report)
}

impl ChaosReport {
    fn add(&mut self, items: u64, ran: &LabRun, found: Verified) {
        let of = |kind| found.counts.get(&kind).copied().unwrap_or(0);
        self.items = items;
        self.done += found.done;
        self.failed += found.failed;
        // Of items that the run does not know, its account says nothing.
        self.lost += of(FaultKind::Lost) + items.saturating_sub(found.items);
        self.doubled += of(FaultKind::Doubled);
        self.stray += of(FaultKind::Stray);
        self.damaged += of(FaultKind::Damaged);
        self.restarts += ran.report.devices.iter().map(|device| device.restarts).sum::<u64>();
        self.loader_restarts += ran.report.loaders.restarts;
        self.faults.extend(found.faults);
    }
}

/// Workers of a run, by their process ids, that have finished a batch. Others are spared: each that is struck has then done something, so that a run
/// comes to its end also where a model takes longer to load than the time between two strikes.
#[derive(Clone, Default)]
struct ServingWorkers(Arc<Mutex<BTreeMap<WorkerId, ServingWorker>>>);

struct ServingWorker {
    pid: u32,
    has_worked: bool,
}

impl ServingWorkers {
    fn hook(&self) -> EventHook {
        let serving = self.clone();
        Arc::new(move |event| {
            let mut workers = locked(&serving.0);
            match event {
                WorkerEvent::Started { worker, pid: Some(pid), .. } => {
                    workers.insert(*worker, ServingWorker { pid: *pid, has_worked: false });
                }
                WorkerEvent::BatchDone { worker, .. } => {
                    workers.entry(*worker).and_modify(|worker| worker.has_worked = true);
                }
                WorkerEvent::Ended { worker, .. } => drop(workers.remove(worker)),
                _ => {}
            }
        })
    }

    fn targets(&self) -> Vec<u32> {
        locked(&self.0).values().filter(|worker| worker.has_worked).map(|worker| worker.pid).collect()
    }
}

/// What strikes workers and loaders during a run, for each kind of fault.
struct Strikers(Vec<(Fault, [Striker; 2])>);

impl Strikers {
    fn start(args: &ChaosArgs, serving: &ServingWorkers) -> Result<Self, Failed> {
        let mut strikers = Vec::new();
        for (fault, every) in [(Fault::Kill, args.kill_every.0), (Fault::Stop, args.stop_every.0)] {
            let Some(every) = every else { continue };
            let (strikes, serving) = (Strikes { fault, every, steady: usize::MAX }, serving.clone());
            let workers = Striker::start(strikes, move || serving.targets());
            let both = workers.and_then(|workers| Ok([workers, Striker::start(strikes, loaders(every))?]));
            strikers.push((fault, both.map_err(|error| Failed::new(ExitCode::TryAgain, error))?));
        }
        Ok(Self(strikers))
    }

    fn stop(self, report: &mut ChaosReport) {
        for (fault, [workers, loaders]) in self.0 {
            let of_workers = workers.stop().len() as u64;
            match fault {
                Fault::Stop => report.stops += of_workers,
                Fault::Kill | Fault::Segfault => report.kills += of_workers,
            }
            report.loaders_struck += loaders.stop().len() as u64;
        }
    }
}

/// Loaders of this process that were there a while ago, so that each has time to start. A run tells nothing of them.
fn loaders(every: Duration) -> impl FnMut() -> Vec<u32> + Send + 'static {
    let mut since: HashMap<u32, Instant> = HashMap::new();
    move || {
        let children = children(std::process::id());
        let loaders = children.into_iter().filter(|child| is_loader_with(&child.arguments()));
        let now = Instant::now();
        since = loaders.map(|child| (child.pid, *since.get(&child.pid).unwrap_or(&now))).collect();
        let mut old: Vec<u32> =
            since.iter().filter(|(_, since)| now - **since >= every / 2).map(|(pid, _)| *pid).collect();
        old.sort_unstable();
        old
    }
}

fn table(report: &ChaosReport) -> String {
    let ChaosReport { runs, items, done, failed, lost, doubled, stray, damaged, .. } = *report;
    let ChaosReport { kills, stops, restarts, loaders_struck, loader_restarts, .. } = *report;
    let rows = [
        ("items", items),
        ("done", done),
        ("failed", failed),
        ("lost", lost),
        ("doubled", doubled),
        ("stray", stray),
        ("damaged", damaged),
        ("kills", kills),
        ("stops", stops),
        ("restarts", restarts),
        ("loaders struck", loaders_struck),
        ("loader restarts", loader_restarts),
    ];
    let rows = rows.map(|(label, n)| [label.to_owned(), count(n)]);
    let rows = aligned(rows, CellAlignment::Right).join("\n");
    let mut text = format!("{}: {}\n\n{rows}\n\n", report.workflow, counted(runs, "run", "runs"));
    for fault in &report.faults {
        text.push_str(&format!("{fault}\n"));
    }
    if kills + stops == 0 {
        text.push_str(
            "no worker was struck: more items (`--items`) or more strikes (`--kill-every`) would tell more\n",
        );
    }
    text.push_str(if report.passed { "every item has one end\n" } else { "FLAWS WERE FOUND\n" });
    text
}
