//! What the first worker of each model takes of a GPU, found out at the start of a run, and how many more workers follow from it. Decides;
//! it looks at no GPU and starts no worker.
//!
//! ```text
//! stage    Expected => Waiting      it is served; others of the device come first
//!          Waiting  => (Baseline | Loading)
//!          Baseline => Loading      the GPU was looked at: its first worker starts
//!          Loading  => (Loaded | Settled)
//!          Loaded   => Settled      the GPU was looked at again: what its worker takes is known, or why it cannot be
//!          Settled  => Grown        all are settled: it has as many workers as fit
//!          any      => Gone         it is over, or has no place left on the device
//! ```
//!
//! Models are loaded one after the other, so that what the GPU loses is the doing of one of them. The driver's own count for a process goes
//! before that; in a container there often is none.

use std::time::Duration;

use crate::device_share::{Want, share_out};
use crate::ids::StageId;

/// How long a look at the GPU may take. The run goes on without it.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// How long a stage may load before the others of its device begin all the same.
const LOAD_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub stage: StageId,
    pub at_first: usize,
    pub most: usize,
    /// That number was asked for, so it is believed where nothing can be measured.
    pub is_asked: bool,
    /// Bytes that one worker takes, where that is known already.
    pub each: Option<u64>,
    pub priority: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    pub used: u64,
    pub free: u64,
    /// Processes that compute on it, by process id, each with the bytes that it holds where the driver tells.
    pub processes: Vec<(u32, Option<u64>)>,
}

/// The first worker of a stage, once it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstWorker {
    /// Its number in [`Reading::processes`]; `None` where the driver may call it otherwise.
    pub pid: Option<u32>,
    /// It has run its largest batch.
    pub is_warm: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unmeasured {
    #[error("its largest batch could not be run to warm it up")]
    NotWarm,
    /// There is no figure.
    #[error("the driver gave no answer about the GPU")]
    NoAnswer,
    /// What the GPU lost may be the doing of others.
    #[error(
        "the driver does not count what a process takes, and others came, went or changed on the GPU meanwhile"
    )]
    Disturbed,
    #[error("the driver does not count what a process takes, and the GPU has no less memory than before")]
    NothingLost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Look at the GPU and say to [`Survey::looked`] what was seen, with this number.
    Look(u64),
    /// Call [`Survey::next`] again after this pause, if nothing else leads to it.
    LookAfter(Duration),
    Begin(StageId),
    /// It is known now what one worker of this stage takes.
    Measured {
        stage: StageId,
        each: u64,
    },
    NotMeasured {
        stage: StageId,
        why: Unmeasured,
    },
    /// So many workers of this stage fit beside those that are there.
    Grow {
        stage: StageId,
        /// How many more, at least 1.
        more: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Expected,
    Waiting,
    Baseline,
    Loading(Measuring),
    /// Its first worker is to be measured, by a look that was asked for after so many: those before may have seen less than all of it.
    Loaded(Measuring, FirstWorker, u64),
    Settled,
    Grown,
    Gone,
}

/// What is known of the time since its first worker was started.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Measuring {
    since: Duration,
    before: Option<Reading>,
    /// Other workers of ours started or ended meanwhile.
    is_disturbed: bool,
}

#[derive(Debug)]
struct Entry {
    of: Candidate,
    phase: Phase,
    /// Workers that it was given beside the first ones.
    more: usize,
}

impl Entry {
    /// Bytes of its workers, as far as it is known.
    fn held(&self) -> u64 {
        let n = (self.of.at_first + self.more) as u64;
        self.of.each.filter(|_| self.phase != Phase::Gone).unwrap_or_default().saturating_mul(n)
    }
}

#[derive(Debug)]
pub struct Survey {
    entries: Vec<Entry>,
    headroom: u64,
    most: u64,
    /// The look that is waited for: its number, and since when.
    look: Option<(u64, Duration)>,
    n_looks: u64,
    /// The last look, as long as nothing has happened since it was asked for.
    fresh: Option<Option<Reading>>,
    /// Looks that were asked for before something last happened.
    stale: u64,
    steps: Vec<Step>,
}

impl Survey {
    /// Of a GPU of which `headroom` bytes stay free, and all workers together are to take `most` bytes.
    pub fn new(candidates: impl IntoIterator<Item = Candidate>, headroom: u64, most: u64) -> Self {
        let entry = |of| Entry { of, phase: Phase::Expected, more: 0 };
        let entries = candidates.into_iter().map(entry).collect();
        Self { entries, headroom, most, look: None, n_looks: 0, fresh: None, stale: 0, steps: Vec::new() }
    }

    pub fn served(&mut self, stage: StageId) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.of.stage == stage) {
            (entry.phase, entry.more) = (Phase::Waiting, 0);
        }
    }

    /// A worker of this stage was started.
    pub fn moved(&mut self, stage: StageId) {
        self.changed(Some(stage));
    }

    /// A worker is gone. `None`: it belongs to no stage that is served, but to one that was built anew. One of a stage may have been loaded
    /// and not measured yet: then the next one in its place is.
    pub fn ended(&mut self, stage: Option<StageId>) {
        let entry = self.entries.iter_mut().find(|e| Some(e.of.stage) == stage);
        if let Some(Entry { phase: phase @ Phase::Loaded(..), .. }) = entry
            && let Phase::Loaded(measuring, ..) = phase.clone()
        {
            *phase = Phase::Loading(measuring);
        }
        self.changed(stage);
    }

    fn changed(&mut self, by: Option<StageId>) {
        self.fresh = None;
        self.stale = self.n_looks;
        for entry in &mut self.entries {
            match &mut entry.phase {
                // The worker that is to be measured, or one that failed to become it.
                Phase::Loading(_) if Some(entry.of.stage) == by => {}
                Phase::Loading(m) | Phase::Loaded(m, ..) => m.is_disturbed = true,
                _ => {}
            }
        }
    }

    /// All places of the stage are served; `first` is the worker in the first of them.
    pub fn loaded(&mut self, stage: StageId, first: FirstWorker) {
        let Some(entry) = self.entries.iter_mut().find(|e| e.of.stage == stage) else { return };
        let Phase::Loading(measuring) = &entry.phase else { return };
        entry.phase = match entry.of.each {
            Some(_) => Phase::Settled,
            None => Phase::Loaded(measuring.clone(), first, self.n_looks),
        };
    }

    /// The stage is over, or has no place left here.
    pub fn gone(&mut self, stage: StageId) {
        self.moved(stage);
        self.set(stage, Phase::Gone);
    }

    /// A look that was asked for, by its number. `None`: the GPU could not be seen.
    pub fn looked(&mut self, number: u64, reading: Option<Reading>, now: Duration) {
        if self.look.take_if(|(n, _)| *n == number).is_none() {
            return; // It was given up.
        }
        self.fresh = (number > self.stale).then(|| reading.clone());
        for i in 0..self.entries.len() {
            match self.entries[i].phase.clone() {
                Phase::Baseline => self.begin(i, reading.clone(), now),
                Phase::Loaded(measuring, first, looks) if number > looks => {
                    self.judge(i, &measuring, first, reading.as_ref());
                }
                _ => {}
            }
        }
    }

    /// What one worker of the stage takes, where that is known.
    pub fn each(&self, stage: StageId) -> Option<u64> {
        self.entries.iter().find(|e| e.of.stage == stage)?.of.each
    }

    pub fn is_over(&self) -> bool {
        self.entries.iter().all(|e| matches!(e.phase, Phase::Grown | Phase::Gone))
    }

    /// What has to be done now. Ask again after every call of the other methods, until there is nothing.
    pub fn next(&mut self, now: Duration) -> Vec<Step> {
        if let Some((number, since)) = self.look
            && now.saturating_sub(since) >= LOOK_PATIENCE
        {
            self.looked(number, None, now);
        }
        if self.look.is_none() {
            self.go_on(now);
        }
        std::mem::take(&mut self.steps)
    }

    fn go_on(&mut self, now: Duration) {
        if self.entries.iter().any(|e| matches!(e.phase, Phase::Loaded(..))) {
            return self.ask(now);
        }
        let is_busy = |e: &Entry| match &e.phase {
            Phase::Loading(m) => now.saturating_sub(m.since) < LOAD_PATIENCE,
            _ => false,
        };
        let waiting = self.entries.iter().position(|e| e.phase == Phase::Waiting);
        if let Some(next) = waiting.filter(|_| !self.entries.iter().any(is_busy)) {
            if self.entries[next].of.each.is_some() {
                return self.begin(next, None, now);
            }
            self.entries[next].phase = Phase::Baseline;
            return self.ask(now);
        }
        let is_known = |e: &Entry| matches!(e.phase, Phase::Settled | Phase::Grown | Phase::Gone);
        if self.entries.iter().any(|e| e.phase == Phase::Settled) && self.entries.iter().all(is_known) {
            match self.fresh.take() {
                Some(reading) => self.grow(reading.as_ref()),
                None if self.no_stage_grows() => self.grow(None),
                None => self.ask(now),
            }
        }
    }

    fn ask(&mut self, now: Duration) {
        self.n_looks += 1;
        self.look = Some((self.n_looks, now));
        self.steps.push(Step::Look(self.n_looks));
        self.steps.push(Step::LookAfter(LOOK_PATIENCE));
    }

    fn begin(&mut self, i: usize, before: Option<Reading>, now: Duration) {
        self.steps.push(Step::Begin(self.entries[i].of.stage));
        if self.entries.len() > 1 {
            self.steps.push(Step::LookAfter(LOAD_PATIENCE));
        }
        // A worker that loads for longer than others wait for it is no longer alone.
        let is_disturbed = self.entries.iter().any(|e| matches!(e.phase, Phase::Loading(_)));
        self.moved(self.entries[i].of.stage);
        self.entries[i].phase = Phase::Loading(Measuring { since: now, before, is_disturbed });
    }

    fn judge(&mut self, i: usize, measuring: &Measuring, first: FirstWorker, after: Option<&Reading>) {
        let stage = self.entries[i].of.stage;
        self.entries[i].phase = Phase::Settled;
        let taken = match after {
            _ if !first.is_warm => Err(Unmeasured::NotWarm),
            None => Err(Unmeasured::NoAnswer),
            Some(after) => {
                // What several workers have taken together belongs to none of them.
                let is_alone = !measuring.is_disturbed && self.entries[i].of.at_first == 1;
                let before = measuring.before.as_ref().filter(|_| is_alone);
                // A process of that number that was there before is another one: in a container, the driver's numbers and ours may clash.
                let was_there = |pid: &u32| {
                    measuring.before.as_ref().is_some_and(|b| b.processes.iter().any(|(old, _)| old == pid))
                };
                taken_by(first.pid.filter(|pid| !was_there(pid)), before, after)
            }
        };
        self.entries[i].of.each = taken.ok();
        self.steps.push(match taken {
            Ok(each) => Step::Measured { stage, each },
            Err(why) => Step::NotMeasured { stage, why },
        });
    }

    fn no_stage_grows(&self) -> bool {
        self.entries.iter().all(|e| e.phase != Phase::Settled || e.of.most <= e.of.at_first)
    }

    fn grow(&mut self, reading: Option<&Reading>) {
        for (i, count) in self.counts(reading).into_iter().enumerate() {
            let Entry { of, phase, more } = &mut self.entries[i];
            if *phase == Phase::Settled {
                *phase = Phase::Grown;
                if let Some(n) = count.checked_sub(of.at_first).filter(|n| *n > 0) {
                    *more = n;
                    self.steps.push(Step::Grow { stage: of.stage, more: n });
                }
            }
        }
    }

    /// How many workers each entry shall have, those of entries that grew before left out.
    fn counts(&self, reading: Option<&Reading>) -> Vec<usize> {
        let is_new = |e: &Entry| e.phase == Phase::Settled;
        let all_known = self.entries.iter().filter(|e| is_new(e)).all(|e| e.of.each.is_some());
        let held = self.entries.iter().map(Entry::held).fold(0, u64::saturating_add);
        let left = self.most.saturating_sub(held);
        let room = reading.map(|r| r.free.saturating_sub(self.headroom).min(left));
        let wants: Vec<Want> = self
            .entries
            .iter()
            .map(|e| Want {
                has: e.of.at_first,
                most: match (room, e.of.each) {
                    _ if !is_new(e) => 0,
                    // What the file asks for, also where it cannot be worked out.
                    _ if e.of.is_asked => e.of.most,
                    // Where nothing is known of one model, the others leave it what it may need.
                    (Some(_), Some(_)) if all_known => e.of.most,
                    _ => 0,
                },
                each: e.of.each.filter(|_| room.is_some()).unwrap_or_default(),
                priority: e.of.priority,
            })
            .collect();
        share_out(room.unwrap_or_default(), &wants)
    }

    fn set(&mut self, stage: StageId, phase: Phase) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.of.stage == stage) {
            entry.phase = phase;
        }
    }
}

/// Bytes of the process `pid`: as the driver counts them, else what the GPU has lost since `before`, if no other process can have taken it.
fn taken_by(pid: Option<u32>, before: Option<&Reading>, after: &Reading) -> Result<u64, Unmeasured> {
    let own = after.processes.iter().find(|(p, _)| Some(*p) == pid);
    if let Some((_, Some(bytes))) = own.filter(|(_, bytes)| *bytes > Some(0)) {
        return Ok(*bytes);
    }
    let before = before.ok_or(Unmeasured::Disturbed)?;
    let others_stayed = before.processes.iter().all(|p| after.processes.contains(p));
    let is_new = |p: &&(u32, Option<u64>)| before.processes.iter().all(|(old, _)| *old != p.0);
    // In a container our worker may have another number there, or not be shown at all.
    let newcomers = after.processes.iter().filter(is_new).filter(|p| own != Some(*p)).count();
    if !others_stayed || newcomers > usize::from(own.is_none()) {
        return Err(Unmeasured::Disturbed);
    }
    Some(after.used.saturating_sub(before.used)).filter(|lost| *lost > 0).ok_or(Unmeasured::NothingLost)
}

#[cfg(test)]
#[path = "memory_survey_tests.rs"]
mod tests;
