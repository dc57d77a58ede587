//! What became of every item, and how the run went: what tests ask about. Noting is all it does; whether that is right is judged elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use orchestra_core::lineage::Share;
use orchestra_core::{DeviceId, Failure, FailureKind, WorkerExit};

use super::fake_worker::answer_to;
use super::log::{Begun, Life};
use super::recorder::{self, TelemetryRecorder};
use super::stage::Stage;
use crate::events::WorkerEvent;
use crate::flow::ticket::Ticket;
use crate::messages::{EndedRows, PipelineMsg, RootMsg, SingleRecordItems, TokenEnd};
use crate::trace::{EndedItems, Steps};

/// What the probes were told.
#[derive(Debug, Default)]
pub struct Account {
    /// Items with a right record.
    pub done: BTreeSet<u64>,
    pub failed: BTreeMap<u64, Failure>,
    /// The end of the pipeline for lack of devices.
    pub no_device: Option<String>,
    /// Device managers that have ended.
    pub devices_ended: usize,
    /// How workers ended, without those that ended as asked.
    pub exits: Vec<WorkerExit>,
    pub devices_lost: Vec<DeviceId>,
    /// What must never be.
    pub problems: Vec<String>,
    /// Items that have ended, with their steps, as far as they are told.
    pub tickets: Vec<(Ticket, Steps)>,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, failed, no_device, problems, .. } = self;
        write!(f, "{} done, failed {:?}, ", done.len(), failed.keys())?;
        write!(f, "no device: {no_device:?}, problems {problems:?}")
    }
}

impl Account {
    /// Whether a run of so many items has nothing more to do.
    pub fn is_over(&self, items: u64) -> bool {
        let ended = (self.done.len() + self.failed.len()) as u64;
        ended == items || self.no_device.is_some() || !self.problems.is_empty()
    }

    /// Notes what the root is told.
    pub fn root_says(&mut self, message: RootMsg) {
        match message {
            RootMsg::DeviceEnded(_) => self.devices_ended += 1,
            _ => self.problems.push("the root was told something that is not about devices".to_owned()),
        }
    }

    /// Notes what the pipeline is told.
    pub fn pipeline_says(&mut self, message: PipelineMsg) {
        match message {
            PipelineMsg::NoDevice(why) if self.no_device.is_none() => self.no_device = Some(why),
            PipelineMsg::NoDevice(_) => self.problems.push("the last device was lost twice".to_owned()),
            _ => self.problems.push("the pipeline was told something that is not about devices".to_owned()),
        }
    }

    pub fn ends(&mut self, EndedRows { whole, tokens, .. }: EndedRows) {
        whole.into_iter().for_each(|items| self.whole(items));
        tokens.into_iter().for_each(|end| self.end(end));
    }

    /// Notes what happens to workers.
    pub fn worker_says(&mut self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Ended { exit, .. } if *exit != WorkerExit::Clean => self.exits.push(exit.clone()),
            WorkerEvent::DeviceLost { device, .. } => self.devices_lost.push(*device),
            _ => {}
        }
    }

    fn whole(&mut self, SingleRecordItems { done, text, traced, .. }: SingleRecordItems) {
        if let Some(traced) = traced {
            if !recorder::are_ids_of(&traced, &done) {
                self.problems.push("other tickets than items".to_owned());
            }
            let group = EndedItems::rows(traced, Duration::ZERO);
            self.tickets.extend(group.items().map(|item| (item.ticket().clone(), item.trace().steps)));
        }
        let lines = String::from_utf8(text).unwrap();
        let n = done.len();
        if lines.lines().count() != n {
            self.problems.push(format!("{n} items with these records: {lines}"));
        }
        for (id, line) in done.into_iter().zip(lines.lines()) {
            self.done(id.index, line);
        }
    }

    fn end(&mut self, TokenEnd { ticket, end }: TokenEnd) {
        let item = ticket.id().index;
        self.tickets.push((ticket.clone(), ticket.timeline().unwrap().steps()));
        if end.share != Share::WHOLE {
            self.problems.push(format!("item {item} ended in part"));
        }
        match (end.failure, &end.records[..]) {
            (Some(failure), []) => {
                self.ends_once(item);
                self.failed.insert(item, failure);
            }
            (None, [record]) => self.done(item, &String::from_utf8_lossy(&record.bytes)),
            _ => self.problems.push(format!("item {item} ended with too much or too little")),
        }
    }

    fn done(&mut self, item: u64, line: &str) {
        self.ends_once(item);
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let y = record["result"]["y"]["data"][0].as_f64();
        if record["index"] != item || y != Some(f64::from(answer_to(item))) {
            self.problems.push(format!("item {item} has a wrong record: {line}"));
        }
        self.done.insert(item);
    }

    /// Whether this item is done or failed.
    pub fn has_ended(&self, item: u64) -> bool {
        self.done.contains(&item) || self.failed.contains_key(&item)
    }

    fn ends_once(&mut self, item: u64) {
        if self.has_ended(item) {
            self.problems.push(format!("item {item} ended twice"));
        }
    }
}

/// A run that is over.
#[derive(Debug)]
pub struct Outcome {
    pub stage: Stage,
    /// What became of the items.
    pub account: Account,
    pub over: Duration,
    /// What the workers did, in the order of their starts.
    pub lives: Vec<Life>,
    pub starts: u64,
    /// Of these, to replace dead ones.
    pub restarts: u64,
    /// Workers that were added, because they fit.
    pub added: u64,
    /// Batches sent more than once, whole or in parts.
    pub retries: u64,
    /// What the tracer was told, if the run was traced.
    pub told: Option<TelemetryRecorder>,
    /// How the parent saw workers end, without those that ended as asked.
    pub exits: Vec<WorkerExit>,
}

impl Outcome {
    /// Every item is done.
    pub fn all_done(&self) -> &Self {
        self.all_done_but([])
    }

    /// Every item is done, but these failed.
    pub fn all_done_but(&self, failed: impl IntoIterator<Item = u64>) -> &Self {
        let failed: BTreeSet<u64> = failed.into_iter().collect();
        let done: BTreeSet<u64> = (0..self.stage.items).filter(|i| !failed.contains(i)).collect();
        let Account { done: were_done, failed: have_failed, no_device, .. } = &self.account;
        self.check(no_device.is_none(), "devices are left");
        self.check(have_failed.keys().copied().collect::<BTreeSet<_>>() == failed, "who failed");
        self.check(*were_done == done, "who is done");
        self
    }

    pub fn failed_as(&self, kind: FailureKind) -> &Self {
        self.check(
            self.account.failed.values().all(|f| f.kind == kind && f.stage == "read"),
            "why they failed",
        );
        self
    }

    /// Panics with everything that is known, unless `holds`.
    #[track_caller]
    pub fn check(&self, holds: bool, what: &str) {
        if !holds {
            for life in &self.lives {
                eprintln!("{life}");
            }
            for (item, failure) in &self.account.failed {
                eprintln!("item {item} failed: {failure:?}");
            }
            let Self { stage, account, over, starts, restarts, retries, .. } = self;
            panic!(
                "`{}`: {what}: {account}; over at {over:?}, {starts} starts, {restarts} restarts, {retries} retries",
                stage.label
            );
        }
    }

    /// `at` lies in `from..=to`, with a little room for the granularity of timers.
    #[track_caller]
    pub fn check_time(&self, at: Duration, from: Duration, to: Duration, what: &str) {
        let room = Duration::from_millis(5);
        self.check(
            at + room >= from && at <= to + room,
            &format!("{what}: {at:?} is not in {from:?}..={to:?}"),
        );
    }

    /// How often workers began this item.
    pub fn times_begun(&self, item: u64) -> usize {
        self.begun(item).count()
    }

    /// How often workers began the item that they began most often.
    pub fn most_begun(&self) -> usize {
        (0..self.stage.items).map(|i| self.times_begun(i)).max().unwrap_or(0)
    }

    /// Who began this item, and when.
    pub fn begun(&self, item: u64) -> impl Iterator<Item = (&Life, &Begun)> {
        let runs = self.lives.iter().flat_map(|life| life.runs.iter().map(move |run| (life, run)));
        runs.filter(move |(_, run)| run.items.contains(&item))
    }

    /// Batches that workers of this device began.
    pub fn batches_begun_on(&self, device: usize) -> usize {
        self.lives.iter().filter(|l| l.device == device).map(|l| l.runs.len()).sum()
    }

    /// The lives of the workers of one device.
    pub fn on(&self, device: usize) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(move |l| l.device == device)
    }
}
