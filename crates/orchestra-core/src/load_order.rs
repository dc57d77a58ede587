//! In which order the workers of a GPU load, and whether one more of them fits. Decides; it looks at no GPU and starts no worker.
//!
//! ```text
//! Idle    => Looking    a worker is to be started, or one is to be measured
//! Looking => Seen       the GPU was looked at, or the look took too long
//! Seen    => Loading    a worker was started: the first of its stage, or one more that fits
//! Loading => Idle       it is loaded, or will not be
//! ```
//!
//! One worker loads at a time. What the GPU loses meanwhile is the measure for the next worker of that stage in this run. Every stage has its
//! first workers before any stage gets more.

use std::time::Duration;

use crate::device_share::behind;
use crate::ids::StageId;

/// How long a look at the GPU may take. The run goes on without it.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// How long a worker may load before the first workers of other stages begin all the same.
const LOAD_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageCandidate {
    pub stage: StageId,
    pub at_first: usize,
    pub most: usize,
    /// The file asks for `most` workers: they are started also where nothing can be measured.
    pub is_asked: bool,
    /// Bytes that one worker takes, where the file declares them.
    pub declared: Option<u64>,
    pub priority: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadStep {
    /// Look at the GPU and report to [`LoadOrder::looked`] what was seen, with this number.
    Look(u64),
    /// Call [`LoadOrder::next`] again after this pause, if nothing else leads to it.
    WakeAfter(Duration),
    /// Start the first workers of this stage.
    Begin(StageId),
    /// What the load of one worker of this stage has taken; `None`: it cannot be known.
    Measured { stage: StageId, bytes: Option<u64> },
    /// One more worker of this stage fits: start it.
    Add(StageId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StagePhase {
    /// Its pipeline has not asked for it yet.
    Expected,
    /// Its first workers are to be started.
    Waiting,
    /// This many workers were started.
    Serving(usize),
    /// It gets no more workers, or has ended.
    Complete,
}

#[derive(Debug)]
struct StageEntry {
    of: StageCandidate,
    phase: StagePhase,
    /// The most bytes that the load of one worker has taken.
    measured: Option<u64>,
}

impl StageEntry {
    fn each(&self) -> Option<u64> {
        self.of.declared.or(self.measured)
    }

    /// Workers that were started, where it may get more.
    fn grows_from(&self) -> Option<usize> {
        match self.phase {
            StagePhase::Serving(n) if n < self.of.most && (self.of.is_asked || self.each().is_some()) => {
                Some(n)
            }
            _ => None,
        }
    }

    /// Bytes that are not known on either side are no reason to start a worker that the file does not ask for.
    fn has_room(&self, room: Option<u64>) -> bool {
        room.zip(self.each()).map_or(self.of.is_asked, |(room, each)| each <= room)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadState {
    Idle,
    Looking { number: u64, since: Duration },
    Seen { free: Option<u64> },
    Loading { entry: usize, since: Duration, before: Option<u64> },
}

#[derive(Debug)]
pub struct LoadOrder {
    entries: Vec<StageEntry>,
    /// Bytes that workers beyond the first ones leave free.
    reserve: u64,
    state: LoadState,
    /// The load that the next look measures, and what was free before it, where nothing else has changed since.
    to_measure: Option<(usize, Option<u64>)>,
    n_looks: u64,
    steps: Vec<LoadStep>,
}

impl LoadOrder {
    pub fn new(candidates: impl IntoIterator<Item = StageCandidate>, reserve: u64) -> Self {
        let entry = |of| StageEntry { of, phase: StagePhase::Expected, measured: None };
        let entries = candidates.into_iter().map(entry).collect();
        Self { entries, reserve, state: LoadState::Idle, to_measure: None, n_looks: 0, steps: Vec::new() }
    }

    /// Bytes that one worker of the stage takes, where that is known.
    pub fn each(&self, stage: StageId) -> Option<u64> {
        self.entries.iter().find(|e| e.of.stage == stage)?.each()
    }

    pub fn served(&mut self, stage: StageId) {
        self.set(stage, StagePhase::Waiting);
    }

    /// A worker was started or has ended. `None`: it belongs to a stage that was built anew since.
    pub fn moved(&mut self, by: Option<StageId>) {
        match &mut self.state {
            // The worker that loads has started, or has died and is started again.
            LoadState::Loading { entry, .. } if Some(self.entries[*entry].of.stage) == by => {}
            LoadState::Loading { before, .. } => *before = None,
            state => *state = LoadState::Idle,
        }
        if let Some((_, before)) = &mut self.to_measure {
            *before = None;
        }
    }

    /// Every place of the stage is served. `is_warm`: the worker that was loaded last has run its largest batch.
    pub fn loaded(&mut self, stage: StageId, is_warm: bool) {
        if let LoadState::Loading { entry, before, .. } = self.state
            && self.entries[entry].of.stage == stage
        {
            self.state = LoadState::Idle;
            let is_unknown = self.entries[entry].of.declared.is_none();
            self.to_measure = is_unknown.then_some((entry, before.filter(|_| is_warm)));
        }
    }

    /// The stage is over, has no place left here, or one more worker of it did not start.
    pub fn complete(&mut self, stage: StageId) {
        if matches!(self.state, LoadState::Loading { entry, .. } if self.entries[entry].of.stage == stage) {
            self.state = LoadState::Idle;
        }
        self.moved(Some(stage));
        self.set(stage, StagePhase::Complete);
    }

    /// A look that was asked for, by its number: the bytes that are free, or `None` if the GPU could not be seen.
    pub fn looked(&mut self, number: u64, free: Option<u64>) {
        if !matches!(self.state, LoadState::Looking { number: wanted, .. } if wanted == number) {
            return; // A worker has started or ended since, or the look was given up.
        }
        self.state = LoadState::Seen { free };
        let Some((entry, before)) = self.to_measure.take() else { return };
        let taken = before.zip(free).map(|(before, free)| before.saturating_sub(free));
        let taken = taken.filter(|bytes| *bytes > 0);
        let entry = &mut self.entries[entry];
        if entry.measured.is_none() || taken > entry.measured {
            entry.measured = entry.measured.max(taken);
            self.steps.push(LoadStep::Measured { stage: entry.of.stage, bytes: taken });
        }
    }

    /// What has to be done now. Ask again after every call of the other methods, until there is nothing. `is_settled`: every place of the
    /// device has its worker, loaded. Else a worker that is started again would find its memory taken.
    pub fn next(&mut self, now: Duration, is_settled: bool) -> Vec<LoadStep> {
        let waiting = self.entries.iter().position(|e| e.phase == StagePhase::Waiting);
        match (self.state, waiting) {
            (LoadState::Looking { number, since }, _) if now.saturating_sub(since) >= LOOK_PATIENCE => {
                self.looked(number, None);
            }
            // Two that load at once cannot be told apart.
            (LoadState::Loading { since, .. }, Some(next)) if now.saturating_sub(since) >= LOAD_PATIENCE => {
                self.begin(next, None, now);
            }
            _ => {}
        }
        match self.state {
            LoadState::Idle if waiting.is_some() || self.to_measure.is_some() || self.grows(is_settled) => {
                self.look(now);
            }
            LoadState::Seen { free } => match waiting {
                Some(next) => self.begin(next, free, now),
                None if self.grows(is_settled) => self.add(free, now),
                None => self.state = LoadState::Idle,
            },
            _ => {}
        }
        std::mem::take(&mut self.steps)
    }

    fn look(&mut self, now: Duration) {
        self.n_looks += 1;
        self.state = LoadState::Looking { number: self.n_looks, since: now };
        self.steps.extend([LoadStep::Look(self.n_looks), LoadStep::WakeAfter(LOOK_PATIENCE)]);
    }

    fn begin(&mut self, entry: usize, before: Option<u64>, now: Duration) {
        let of = self.entries[entry].of;
        self.entries[entry].phase = StagePhase::Serving(of.at_first);
        self.state = LoadState::Loading { entry, since: now, before };
        self.steps.extend([LoadStep::Begin(of.stage), LoadStep::WakeAfter(LOAD_PATIENCE)]);
    }

    /// Some stage may get one more worker, and nothing has to come before that.
    fn grows(&self, is_settled: bool) -> bool {
        let comes_first = |e: &StageEntry| matches!(e.phase, StagePhase::Expected | StagePhase::Waiting);
        let grows = self.entries.iter().any(|e| e.grows_from().is_some());
        is_settled && grows && !self.entries.iter().any(comes_first)
    }

    /// Starts one more worker of the stage that is furthest behind its priority, of those of which one fits.
    fn add(&mut self, free: Option<u64>, now: Duration) {
        let room = free.map(|free| free.saturating_sub(self.reserve));
        for entry in self.entries.iter_mut().filter(|e| e.grows_from().is_some() && !e.has_room(room)) {
            entry.phase = StagePhase::Complete;
        }
        let by_share = |e: &StageEntry| Some(behind(e.grows_from()?, e.of.priority));
        let next = (0..self.entries.len()).filter_map(|i| Some((by_share(&self.entries[i])?, i))).min();
        self.state = LoadState::Idle;
        if let Some((_, entry)) = next {
            let StageEntry { of, phase, .. } = &mut self.entries[entry];
            if let StagePhase::Serving(n) = phase {
                *n += 1;
            }
            self.steps.push(LoadStep::Add(of.stage));
            self.state = LoadState::Loading { entry, since: now, before: free };
        }
    }

    fn set(&mut self, stage: StageId, phase: StagePhase) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.of.stage == stage) {
            entry.phase = phase;
        }
    }
}

#[cfg(test)]
#[path = "load_order_tests.rs"]
mod tests;
