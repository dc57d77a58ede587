//! The order of a trial: list, choose how many items, then rounds of a run in peace, a run under faults and the audit of both. How each
//! is done is said elsewhere.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::StageId;
use orchestra_core::restart::RestartPolicy;
use orchestra_plan::Plan;
use orchestra_runtime::{DeviceOptions, ProcessLauncher, RunOptions, Snapshot, Timeouts, Tracer};
use orchestra_source::write_listing;
use orchestra_trial::{Cancel, Catalogue, SourceList, TrialError, plan_for, scratch_folder, source_of};
use tempfile::TempDir;

use crate::account::{Account, Items};
use crate::audit::Audit;
use crate::error::ChaosError;
use crate::leaks::{Before, extra_files};
use crate::one_run::{self, Ran, divide};
use crate::report::{Report, Round, Trial};
use crate::striker::Strikes;

/// Items of the first look at how fast it is,
const FIRST_LOOK: u64 = 64;
/// so many times more in each further look,
const MORE: u64 = 8;
/// until the workers have been at work for so long.
const LOOK_LASTS: f64 = 0.4;
/// More items than this are not chosen unasked.
const MOST_ITEMS: u64 = 10_000_000;

/// What to do.
#[derive(Clone)]
pub struct Options {
    /// Rounds, at least 1.
    pub runs: usize,
    /// Items of each run; `None`: as many as keep a run without faults busy for `lasting`.
    pub items: Option<u64>,
    /// See `items`.
    pub lasting: Duration,
    /// How often, and whom.
    pub strikes: Strikes,
    /// Starts workers.
    pub launcher: ProcessLauncher,
    /// ONNX Runtime's shared library.
    pub library: PathBuf,
    /// Libraries that workers on GPUs load by full path, in this order, before anything else needs them.
    pub preload: Vec<PathBuf>,
    /// Who follows the runs, those without faults included.
    pub trace: Option<Arc<dyn Tracer>>,
    /// Who may end it.
    pub cancel: Cancel,
    /// Where runs write: a folder in it is made, and removed in the end. `None`: where temporary files go.
    pub folder: Option<PathBuf>,
}

/// What is being done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The items are listed.
    Listing,
    /// A first look at how fast it all is.
    FirstLook,
    /// The items are chosen.
    Chosen {
        /// Of each run.
        items: u64,
        /// That the sources name.
        of: u64,
    },
    /// A run goes on.
    Run {
        /// From 1.
        round: usize,
        /// How many there will be.
        of: usize,
        /// Workers are struck.
        faults: bool,
        /// Items with an end so far.
        finished: u64,
    },
    /// Results are compared.
    Audit {
        /// From 1.
        round: usize,
        /// How many there will be.
        of: usize,
    },
}

/// Told what is being done.
pub type Tell<'a> = &'a mut dyn FnMut(Progress);

/// A workflow that is ready to be tried. Dropping it removes all of its files.
pub struct Chaos {
    plan: Plan,
    options: Options,
    items_listed: u64,
    chosen: Chosen,
    folder: TempDir,
}

/// What every run of the trial goes over.
struct Chosen {
    lists: Vec<SourceList>,
    items: Items,
}

impl Chaos {
    /// Lists the items and chooses how many of them. Blocks, as all of this does; never call it within a tokio runtime.
    ///
    /// # Errors
    /// There is no infer stage or no item, a run does not end well, or it is cancelled.
    pub fn prepare(plan: Plan, options: Options, tell: Tell<'_>) -> Result<Self, ChaosError> {
        if plan.infer_stages().next().is_none() {
            return Err(ChaosError::NoInferStage);
        }
        let folder = scratch_folder("orchestra-chaos-", options.folder.as_deref())?;
        let path = folder.path();
        std::fs::create_dir(temporary(path))
            .map_err(TrialError::io("making a folder for temporary files"))?;
        tell(Progress::Listing);
        let catalogue = Catalogue::list(&plan, path, &options.cancel)?;
        let items_listed = catalogue.total();
        let chosen = Chosen { lists: Vec::new(), items: Items::new() };
        let mut chaos = Self { plan, options, items_listed, chosen, folder };
        let items = match chaos.options.items {
            Some(items) => items,
            None => chaos.look(&catalogue, tell)?,
        };
        chaos.choose(&catalogue, items)?;
        tell(Progress::Chosen { items: chaos.chosen.items.total(), of: items_listed });
        Ok(chaos)
    }

    /// All rounds.
    ///
    /// # Errors
    /// A run does not end well, even without faults nothing is done, the results cannot be read, or it is cancelled.
    pub fn run(&self, tell: Tell<'_>) -> Result<Report, ChaosError> {
        let of = self.options.runs.max(1);
        let mut rounds = Vec::with_capacity(of);
        for round in 1..=of {
            rounds.push(self.round(round, of, tell)?);
        }
        let workers: Vec<_> = self.plan.infer_stages().flat_map(|(_, infer)| &infer.workers).collect();
        let trial = Trial {
            workflow: self.plan.name.clone(),
            items: self.chosen.items.total(),
            items_listed: self.items_listed,
            workers: workers.iter().map(|w| w.count as u64).sum(),
            spares: workers.iter().map(|w| w.spares as u64).sum(),
            strikes: self.options.strikes,
        };
        Ok(Report::new(trial, rounds))
    }

    fn round(&self, round: usize, of: usize, tell: Tell<'_>) -> Result<Round, ChaosError> {
        let progress = |faults, finished| Progress::Run { round, of, faults, finished };
        tell(progress(false, 0));
        let peace = self.one("peace", None, &mut |s| tell(progress(false, s.done + s.failed)))?;
        if peace.report.items.done == 0 {
            return Err(self.nothing_done(&peace));
        }
        let before = Before::now(&temporary(self.folder.path()));
        let before = if self.options.trace.is_some() { before.but_sockets() } else { before };
        tell(progress(true, 0));
        // Each round has strikes of its own.
        let seed = self.options.strikes.seed.wrapping_add(round as u64 - 1);
        let strikes = Strikes { seed, ..self.options.strikes };
        let faults = self.one("faults", Some(strikes), &mut |s| tell(progress(true, s.done + s.failed)))?;
        let mut leaks = before.leaked_since(&faults.remains);
        leaks.extend(extra_files(&self.output("peace"), &self.output("faults")));
        tell(Progress::Audit { round, of });
        let (audit_of_peace, audit) = self.audit().map_err(TrialError::io("reading the results"))?;
        Ok(Round { peace, faults, audit_of_peace, audit, leaks })
    }

    fn audit(&self) -> io::Result<(Audit, Audit)> {
        let items = &self.chosen.items;
        let peace = self.account("peace")?;
        let of_peace = Audit::of(items, &peace, None)?;
        Ok((of_peace, Audit::of(items, &self.account("faults")?, Some(&peace))?))
    }

    fn account(&self, which: &str) -> io::Result<Account> {
        let plan = self.plan_of_run(which);
        let sinks: Vec<PathBuf> = plan.sinks.iter().map(|s| s.path.clone()).collect();
        Account::read(&self.chosen.items, &plan.output.join("failures.jsonl"), &sinks)
    }

    /// How many items keep the workflow busy for as long as it shall be.
    fn look(&mut self, catalogue: &Catalogue, tell: Tell<'_>) -> Result<u64, ChaosError> {
        tell(Progress::FirstLook);
        let mut n = FIRST_LOOK;
        loop {
            self.choose(catalogue, n)?;
            let ran = self.one("peace", None, &mut |_| {})?;
            if ran.report.items.done == 0 {
                return Err(self.nothing_done(&ran));
            }
            let seconds = ran.seconds_at_work();
            if seconds >= LOOK_LASTS || n >= MOST_ITEMS {
                let enough = divide(n as f64, seconds) * self.options.lasting.as_secs_f64();
                return Ok((enough as u64).clamp(FIRST_LOOK, MOST_ITEMS)); // saturates
            }
            n *= MORE;
        }
    }

    fn choose(&mut self, catalogue: &Catalogue, n: u64) -> Result<(), ChaosError> {
        let folder = self.folder.path();
        let lists = catalogue.write_lists(n, folder)?;
        let mut items = Items::new();
        for (place, (source, list)) in self.plan.sources.iter().zip(&lists).enumerate() {
            let failed = |error| TrialError::Listing { source_name: source.name.clone(), error };
            let path = folder.join(format!("chosen-{place}"));
            write_listing(&list.listing, &path).map_err(failed)?;
            let reads = |stage: StageId| source_of(&self.plan, stage).is_some_and(|s| s.index() == place);
            let sinks = self.plan.sinks.iter().enumerate().filter(|(_, sink)| reads(sink.from));
            items.add(&source.name, &path, sinks.map(|(i, _)| i).collect()).map_err(failed)?;
        }
        self.chosen = Chosen { lists, items };
        Ok(())
    }

    fn one(
        &self,
        which: &str,
        strikes: Option<Strikes>,
        look: &mut dyn FnMut(&Snapshot),
    ) -> Result<Ran, ChaosError> {
        let mut launcher = self.options.launcher.clone();
        // What workers leave there shows, and goes with the rest.
        launcher.env.push(("TMPDIR".into(), temporary(self.folder.path()).into()));
        let options = RunOptions {
            launcher: Arc::new(launcher),
            library: self.options.library.clone(),
            timeouts: Timeouts::default(),
            restart: RestartPolicy::default(),
            trace: self.options.trace.clone(),
            events: None,
            devices: DeviceOptions { preload: self.options.preload.clone(), ..DeviceOptions::default() },
        };
        one_run::run(&Arc::new(self.plan_of_run(which)), options, strikes, &self.options.cancel, look)
    }

    fn plan_of_run(&self, which: &str) -> Plan {
        let listings: Vec<_> = self.chosen.lists.iter().map(|l| l.listing.clone()).collect();
        plan_for(&self.plan, &listings, &self.output(which))
    }

    fn output(&self, which: &str) -> PathBuf {
        self.folder.path().join(which)
    }

    fn nothing_done(&self, ran: &Ran) -> ChaosError {
        let text = std::fs::read_to_string(self.output("peace").join("failures.jsonl")).unwrap_or_default();
        let first = text.lines().next().and_then(|l| serde_json::from_str::<serde_json::Value>(l).ok());
        let said = |key: &str| Some(first.as_ref()?.get(key)?.as_str()?.to_owned());
        let first = said("item").zip(said("error")).map(|(item, error)| format!("`{item}`: {error}"));
        ChaosError::NothingDone { items: ran.report.items.failed, first: first.unwrap_or_default() }
    }
}

/// Where workers put temporary files.
fn temporary(folder: &Path) -> PathBuf {
    folder.join("tmp")
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listing => f.write_str("listing the items"),
            Self::FirstLook => f.write_str("a first look at how long it takes"),
            Self::Chosen { items, of } if items == of => write!(f, "running with all {of} items"),
            Self::Chosen { items, of } if items < of => write!(f, "running with {items} of {of} items"),
            Self::Chosen { items, of } => {
                write!(f, "running with {items} items: the {of} of the list, again and again")
            }
            Self::Run { round, of, faults, finished } => {
                let how = if *faults { "with faults" } else { "without faults" };
                write!(f, "round {round} of {of}: {how}")?;
                if *finished > 0 { write!(f, ", {finished} items finished") } else { Ok(()) }
            }
            Self::Audit { round, of } => write!(f, "round {round} of {of}: audit"),
        }
    }
}
