//! Whether a workflow loses anything when its workers die: lists, chooses how many items, then rounds of a run in peace, a run under faults
//! and the audit of both.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::{Encoder, Fan, ItemInfo};
use orchestra_core::{SourceId, StageId};
use orchestra_plan::{Origin, Plan};
use orchestra_runtime::{RunOptions, Snapshot, Tracer};
use orchestra_store::write_listing;
use tempfile::TempDir;

use crate::audit::{Account, Audit, Items};
use crate::chaos_report::{Report, Round, Struck};
use crate::error::LabError;
use crate::item_lists::{ItemLists, Lists};
use crate::leaks::{Before, extra_files};
use crate::run::{Progress, Tell, Tools, plan_for, run};
use crate::stats::divide;
use crate::striker::{Striker, Strikes, Workers};

/// Items of the first look at how fast the workflow is.
const FIRST_LOOK: u64 = 64;
/// Each further look has so many times more.
const MORE: u64 = 8;
/// Seconds for which the workers must have been at work in the last look.
const LOOK_LASTS: f64 = 0.4;
/// More items than this are not chosen unasked.
const MOST_ITEMS: u64 = 10_000_000;

const PEACE: &str = "without faults";
const FAULTS: &str = "with faults";

#[derive(Clone)]
pub struct Options {
    pub runs: usize,
    /// Items of each run; `None`: as many as keep a run without faults busy for `lasting`.
    pub items: Option<u64>,
    pub lasting: Duration,
    pub strikes: Strikes,
    /// Traces the runs, those without faults included.
    pub trace: Option<Arc<dyn Tracer>>,
    pub tools: Tools,
}

/// A workflow that is ready to be tried. Dropping it removes all of its files.
pub struct Chaos {
    plan: Plan,
    options: Options,
    items_listed: u64,
    /// What every run goes over, and the same for the audit.
    lists: Lists,
    items: Items,
    folder: TempDir,
}

impl Chaos {
    /// Lists the items and chooses how many of them. Blocks, as all of this does; must not be called within a tokio runtime.
    pub fn prepare(plan: Plan, options: Options, tell: Tell<'_>) -> Result<Self, LabError> {
        if plan.batch_stages().next().is_none() {
            return Err(LabError::NoBatchStage);
        }
        one_record_per_item(&plan)?;
        let folder = options.tools.scratch_folder("orchestra-chaos-")?;
        tell(Progress::Listing);
        let item_lists = ItemLists::list(&plan, folder.path(), &options.tools.cancel)?;
        let (lists, items) = (Lists::default(), Items::default());
        let mut chaos = Self { plan, options, items_listed: item_lists.total(), lists, items, folder };
        std::fs::create_dir(chaos.temporary())
            .map_err(LabError::io("making a folder for temporary files"))?;
        let items = match chaos.options.items {
            Some(items) => items,
            None => chaos.look(&item_lists, tell)?,
        };
        chaos.choose(&item_lists, items)?;
        tell(Progress::Chosen { items: chaos.items.total(), of: chaos.items_listed });
        Ok(chaos)
    }

    pub fn run(&self, tell: Tell<'_>) -> Result<Report, LabError> {
        let of = self.options.runs.max(1);
        let mut rounds = Vec::with_capacity(of);
        for round in 1..=of {
            rounds.push(self.round(round, &mut |part, finished| {
                tell(Progress::Round { round, of, part, finished });
            })?);
        }
        Ok(Report::new(&self.plan, self.items_listed, self.options.strikes, rounds))
    }

    fn round(&self, round: usize, tell: &mut dyn FnMut(&'static str, u64)) -> Result<Round, LabError> {
        tell(PEACE, 0);
        let peace = self.one(PEACE, None, &mut |s| tell(PEACE, s.done + s.failed))?;
        if peace.ran.report.items.done == 0 {
            return Err(self.nothing_done(&peace));
        }
        // A tracer opens sockets of its own, when it likes.
        let before = Before::now(&self.temporary(), self.options.trace.is_none());
        tell(FAULTS, 0);
        // Each round has strikes of its own.
        let seed = self.options.strikes.seed.wrapping_add(round as u64 - 1);
        let strikes = Strikes { seed, ..self.options.strikes };
        let faults = self.one(FAULTS, Some(strikes), &mut |s| tell(FAULTS, s.done + s.failed))?;
        let mut leaks = before.leaked_since(&faults.ran.remains);
        leaks.extend(extra_files(&self.output(PEACE), &self.output(FAULTS)));
        tell("audit", 0);
        let (audit_of_peace, audit) = self.audit().map_err(LabError::io("reading the results"))?;
        Ok(Round { peace, faults, audit_of_peace, audit, leaks })
    }

    fn audit(&self) -> io::Result<(Audit, Audit)> {
        let peace = self.account(PEACE)?;
        let of_peace = Audit::of(&self.items, &peace, None)?;
        Ok((of_peace, Audit::of(&self.items, &self.account(FAULTS)?, Some(&peace))?))
    }

    fn account(&self, which: &str) -> io::Result<Account> {
        let plan = self.plan_of_run(which);
        let sinks: Vec<PathBuf> = plan.sinks.iter().map(|s| s.path.clone()).collect();
        Account::read(&self.items, &plan.output.join(orchestra_store::FAILURE_RECORDS), &sinks)
    }

    /// How many items keep the workflow busy for as long as it shall be.
    fn look(&mut self, item_lists: &ItemLists, tell: Tell<'_>) -> Result<u64, LabError> {
        tell(Progress::FirstLook);
        let mut n = FIRST_LOOK;
        loop {
            self.choose(item_lists, n)?;
            let struck = self.one(PEACE, None, &mut |_| {})?;
            if struck.ran.report.items.done == 0 {
                return Err(self.nothing_done(&struck));
            }
            let seconds = struck.seconds_at_work();
            if seconds >= LOOK_LASTS || n >= MOST_ITEMS {
                let enough = divide(n as f64, seconds) * self.options.lasting.as_secs_f64();
                return Ok((enough as u64).clamp(FIRST_LOOK, MOST_ITEMS)); // saturates
            }
            n *= MORE;
        }
    }

    fn choose(&mut self, item_lists: &ItemLists, n: u64) -> Result<(), LabError> {
        let folder = self.folder.path();
        self.lists = item_lists.write_lists(n, folder)?;
        self.items = Items::default();
        for (place, (source, list)) in self.plan.sources.iter().zip(&self.lists.0).enumerate() {
            let failed = |error| LabError::Listing { source_name: source.name.clone(), error };
            let path = folder.join(format!("chosen-{place}"));
            write_listing(&list.listing, &path).map_err(failed)?;
            let this = Origin::Source(SourceId(u16::try_from(place).unwrap_or(u16::MAX)));
            let reads = |from: &Origin| self.plan.ancestors(*from).contains(&this);
            let sinks = self.plan.sinks.iter().enumerate().filter(|(_, sink)| sink.from.iter().any(reads));
            self.items.add(&source.name, &path, sinks.map(|(i, _)| i).collect()).map_err(failed)?;
        }
        Ok(())
    }

    fn one(
        &self,
        which: &'static str,
        strikes: Option<Strikes>,
        look: &mut dyn FnMut(&Snapshot),
    ) -> Result<Struck, LabError> {
        let mut tools = self.options.tools.clone();
        // What workers leave there shows, and goes with the rest.
        tools.launcher.env.push(("TMPDIR".into(), self.temporary().into()));
        let workers = Workers::new();
        let (trace, events) = (self.options.trace.clone(), Some(workers.hook()));
        let options = RunOptions { trace, events, ..tools.run_options(&self.plan) };
        let striker = strikes.map(|strikes| Striker::start(Arc::clone(&workers), strikes)).transpose();
        let striker = striker.map_err(LabError::io("starting the thread that strikes"))?;
        let name = if strikes.is_some() { "run with faults" } else { "run without faults" };
        let ran = run(self.plan_of_run(which), options, &tools.cancel, name, look);
        let struck = striker.map(Striker::stop).unwrap_or_default();
        Ok(Struck { ran: ran?, tracker: workers.end(), missed: struck.missed, loaders: struck.loaders })
    }

    fn plan_of_run(&self, which: &str) -> Plan {
        let mut plan = plan_for(&self.plan, &self.lists, &self.output(which));
        for sink in &mut plan.sinks {
            // The audit reads lines of JSON; what else a sink writes is compared byte by byte inside of them.
            (sink.files, sink.part_files) = (None, None);
            if !sink.encoder.is_json_lines() {
                sink.encoder = Arc::new(AsJson(Arc::clone(&sink.encoder)));
            }
        }
        plan
    }

    fn output(&self, which: &str) -> PathBuf {
        self.folder.path().join(which)
    }

    fn temporary(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    fn nothing_done(&self, struck: &Struck) -> LabError {
        let text = std::fs::read_to_string(self.output(PEACE).join(orchestra_store::FAILURE_RECORDS))
            .unwrap_or_default();
        let first = text.lines().next().and_then(|l| serde_json::from_str::<serde_json::Value>(l).ok());
        let said = |key: &str| Some(first.as_ref()?.get(key)?.as_str()?.to_owned());
        let first = said("item").zip(said("error")).map(|(item, error)| format!("`{item}`: {error}"));
        LabError::NothingDone { items: struck.ran.report.items.failed, first: first.unwrap_or_default() }
    }
}
/// Whether each item has one record in each sink: no whole item is dropped on the way, parts come back together, and nothing is reduced.
fn one_record_per_item(plan: &Plan) -> Result<(), LabError> {
    for sink in &plan.sinks {
        let before = sink.from.iter().flat_map(|from| plan.ancestors(*from));
        // A part that is dropped leaves its item with the record of the others.
        let drops = |stage: &StageId| {
            let stage = &plan.stages[stage.index()];
            stage.fan() == Fan::AtMostOne && stage.within.is_empty() || stage.reduce().is_some()
        };
        let splits = sink.from.iter().filter_map(|from| plan.stages[from.stage()?.index()].within.last());
        let culprit = before.filter_map(Origin::stage).find(drops).or_else(|| splits.copied().next());
        if let Some(stage) = culprit {
            let stage = plan.stages[stage.index()].name.clone();
            return Err(LabError::NotOneRecord { sink: sink.name.clone(), stage });
        }
    }
    Ok(())
}

/// Records of any kind as lines of JSON: what the record holds is a text of hexadecimal digits.
#[derive(Debug)]
struct AsJson(Arc<dyn Encoder>);

impl Encoder for AsJson {
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let mut record = Vec::new();
        self.0.encode(item, row, &mut record)?;
        let digits: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
        let line = serde_json::json!({
            "item": item.name, "index": item.id.index, "source": item.source, "result": digits,
        });
        out.extend_from_slice(line.to_string().as_bytes());
        out.push(b'\n');
        Ok(())
    }
}
