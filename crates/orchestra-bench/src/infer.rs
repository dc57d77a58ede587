//! The infer part: the workers of one stage in a bare loop, with inputs that are ready. No loaders, no batcher, no results.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use orchestra_core::together::Together;
use orchestra_core::{DeviceId, DeviceKind, SlotId, StageId};
use orchestra_plan::{InferPlan, Plan, WorkerPlan};
use orchestra_runtime::Launcher;
use orchestra_trial::{Cancel, TrialError};
use orchestra_wire::frames::Load;

use crate::bare_worker::{BareWorker, Fault};
use crate::cpu_time::of_process;
use crate::error::BenchError;
use crate::figures::InferFigures;
use crate::limit::divide;
use crate::memory::Memory;
use crate::own_time::OwnTime;

/// Batches of which a worker notes how long they took: for a median that is plenty.
const MOST_TIMES: usize = 1 << 14;

/// How many go together is learned from so many batches.
const LEARNED_FROM: usize = 5;

/// How often those who wait for the others look whether they shall still wait.
const LOOK: Duration = Duration::from_millis(50);

/// What runs, and how.
#[derive(Clone, Copy)]
pub struct InferPart<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Which infer stage.
    pub stage: StageId,
    /// Its part of the plan.
    pub infer: &'a InferPlan,
    /// Its rows, filled.
    pub memory: &'a Memory,
    /// Starts workers.
    pub launcher: &'a dyn Launcher,
    /// ONNX Runtime's shared library.
    pub library: &'a Path,
    /// What workers on GPUs load first.
    pub preload: &'a [PathBuf],
    /// How long it has taken.
    pub time: &'a OwnTime,
    /// Who may end it.
    pub cancel: &'a Cancel,
}

/// A worker of this part.
#[derive(Clone, Copy)]
struct Place {
    device: DeviceId,
    threads: usize,
    /// Its number among all workers of the stage.
    number: usize,
}

/// Batches of one size.
struct Turn {
    rows: usize,
    /// Another size that is measured, if there is one.
    other: Option<usize>,
    lasting: Duration,
    /// Where workers that are ready for it wait for the others.
    gate: Gate,
}

/// What one worker did in one turn.
#[derive(Default)]
struct Done {
    batches: u64,
    elapsed: Duration,
    cpu: Duration,
    start_cpu: Duration,
    first_batch: Duration,
    usual_batch: Duration,
    switched_batch: Option<Duration>,
}

enum Trouble {
    Cancelled,
    /// Another worker is the reason.
    Stopped,
    Fault(Fault),
    Io(std::io::Error),
}

impl InferPart<'_> {
    /// Runs all workers of the stage, on all of its devices, for as long as asked. One result per device.
    pub fn measure(&self, lasting: Duration) -> Result<Vec<InferFigures>, BenchError> {
        self.measure_sizes(&[self.infer.max_batch], lasting)
    }

    /// As `measure`, with batches of each of these sizes, one after another, by the same workers. One result per size and device.
    pub fn measure_sizes(&self, sizes: &[usize], lasting: Duration) -> Result<Vec<InferFigures>, BenchError> {
        let mut places = Vec::new();
        for workers in &self.infer.workers {
            for _ in 0..workers.count {
                places.push(Place { device: workers.device, threads: workers.threads, number: places.len() });
            }
        }
        let turn = |(at, &rows): (usize, &usize)| {
            let other = sizes.get(at.checked_sub(1).unwrap_or(1)).copied();
            Turn { rows, other, lasting, gate: Gate::new(places.len()) }
        };
        let turns: Vec<Turn> = sizes.iter().enumerate().map(turn).collect();
        let (n_workers, turns) = (places.len(), &turns[..]);
        let done: Vec<(Place, Result<Vec<Done>, Trouble>)> = std::thread::scope(|scope| {
            let all: Vec<_> = places
                .iter()
                .map(|&place| (place, scope.spawn(move || self.worker(place, n_workers, turns))))
                .collect();
            let join = |(place, thread): (Place, std::thread::ScopedJoinHandle<'_, _>)| {
                (place, thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why)))
            };
            all.into_iter().map(join).collect()
        });
        let done = self.all_well(done)?;
        let of_turn = |(at, turn): (usize, &Turn)| {
            let workers = self.infer.workers.iter().filter(|w| w.count > 0);
            workers.map(|w| self.figures(w, turn.rows, at, &done)).collect::<Vec<_>>()
        };
        Ok(turns.iter().enumerate().flat_map(of_turn).collect())
    }

    /// The first trouble that is the cause of the others, if there is any.
    fn all_well(
        &self,
        done: Vec<(Place, Result<Vec<Done>, Trouble>)>,
    ) -> Result<Vec<(Place, Vec<Done>)>, BenchError> {
        if self.cancel.is_cancelled() {
            return Err(BenchError::cancelled());
        }
        let mut well = Vec::new();
        let mut stopped = false;
        for (place, outcome) in done {
            match outcome {
                Ok(done) => well.push((place, done)),
                Err(Trouble::Cancelled) => return Err(BenchError::cancelled()),
                Err(Trouble::Stopped) => stopped = true,
                Err(Trouble::Io(error)) => {
                    return Err(TrialError::io("starting a worker's thread")(error).into());
                }
                Err(Trouble::Fault(what)) => {
                    return Err(BenchError::Worker {
                        stage: self.plan.stages[self.stage.index()].name.clone(),
                        device: self.plan.devices[place.device.index()].spec.name.clone(),
                        what,
                    });
                }
            }
        }
        if stopped {
            Err(BenchError::Bug("a worker was stopped and none was the reason".into()))
        } else {
            Ok(well)
        }
    }

    /// What the workers of one device did in the turn number `turn`, with batches of `batch`.
    fn figures(
        &self,
        workers: &WorkerPlan,
        batch: usize,
        turn: usize,
        done: &[(Place, Vec<Done>)],
    ) -> InferFigures {
        let here =
            || done.iter().filter(|(p, _)| p.device == workers.device).filter_map(|(_, d)| d.get(turn));
        let batches: u64 = here().map(|d| d.batches).sum();
        let rate = |d: &Done| divide((d.batches * batch as u64) as f64, d.elapsed.as_secs_f64());
        let cpu: Duration = here().map(|d| d.cpu).sum();
        InferFigures {
            stage: self.stage,
            device: workers.device,
            on_cpu: self.plan.devices[workers.device.index()].spec.kind == DeviceKind::Cpu,
            workers: workers.count,
            threads: workers.threads,
            streams: self.infer.streams,
            batch,
            batches,
            rate: here().map(rate).sum(),
            cpu_seconds: divide(cpu.as_secs_f64(), (batches * batch as u64) as f64),
            start_cpu: here().map(|d| d.start_cpu).sum(),
            first_batch: here().map(|d| d.first_batch).max().unwrap_or_default(),
            usual_batch: here().map(|d| d.usual_batch).max().unwrap_or_default(),
            switched_batch: here().filter_map(|d| d.switched_batch).max(),
        }
    }

    fn load(&self, place: Place) -> Load {
        let model = &self.plan.models[self.infer.model.index()];
        let device = &self.plan.devices[place.device.index()].spec.kind;
        Load {
            library: self.library.to_owned(),
            preload: match device {
                DeviceKind::Cpu => Vec::new(),
                DeviceKind::Cuda { .. } => self.preload.to_vec(),
            },
            model: model.path.clone(),
            digest: model.file_digest,
            device: device.clone(),
            threads: place.threads,
            streams: self.infer.streams,
            max_batch: self.infer.max_batch,
            memory_limit: model.memory_limit,
            tf32: model.tf32,
            tuning: model.tuning.clone(),
            custom_ops: model.custom_ops.clone(),
            warm_up: self.infer.ladder.clone(),
            rungs: match device {
                DeviceKind::Cpu => Vec::new(),
                DeviceKind::Cuda { .. } => self.infer.ladder.clone(),
            },
            layout: self.infer.layout.clone(),
            pixel_inputs: self.plan.pixel_inputs(self.infer),
        }
    }

    /// The life of one worker, on a thread with a runtime of its own, so that no worker waits for another one's frames.
    fn worker(&self, place: Place, n_workers: usize, turns: &[Turn]) -> Result<Vec<Done>, Trouble> {
        let done = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Trouble::Io)
            .and_then(|runtime| runtime.block_on(self.serve(place, n_workers, turns)));
        if done.is_err() {
            turns.iter().for_each(|turn| turn.gate.give_up());
        }
        done
    }

    async fn serve(&self, place: Place, n_workers: usize, turns: &[Turn]) -> Result<Vec<Done>, Trouble> {
        let device = &self.plan.devices[place.device.index()].spec.kind;
        let arena = self.memory.arena(self.stage);
        let answer_within = self.plan.limits.batch_timeout;
        let start = BareWorker::start(self.launcher, device, arena.fd(), self.load(place), answer_within);
        let mut worker = tokio::select! {
            started = start => started.map_err(Trouble::Fault)?,
            // Dropping the start kills the process.
            () = self.cancel.cancelled() => return Err(Trouble::Cancelled),
        };
        let measured = tokio::select! {
            measured = self.all_turns(&mut worker, place, n_workers, turns) => measured,
            () = self.cancel.cancelled() => Err(Trouble::Cancelled),
        };
        match measured {
            Ok(done) => {
                worker.end().await;
                Ok(done)
            }
            Err(Trouble::Fault(fault)) => {
                let said = worker.kill().await;
                Err(Trouble::Fault(if said.is_empty() { fault } else { format!("{fault}; it said: {said}") }))
            }
            Err(trouble) => {
                worker.kill().await;
                Err(trouble)
            }
        }
    }

    async fn all_turns(
        &self,
        worker: &mut BareWorker,
        place: Place,
        n_workers: usize,
        turns: &[Turn],
    ) -> Result<Vec<Done>, Trouble> {
        let slots =
            slots_of(place.number, n_workers, self.infer.layout.slots, self.infer.streams + self.infer.ready);
        let mut done = Vec::with_capacity(turns.len());
        for turn in turns {
            done.push(self.loop_over(worker, &slots, turn).await?);
        }
        Ok(done)
    }

    /// How many batches of so many rows go together, where one took so long, each time: as many as in a run, unless sizes are compared.
    fn together(&self, turn: &Turn, taken: &[Duration]) -> usize {
        if turn.rows < self.infer.max_batch || turn.other.is_some() {
            return 1;
        }
        let mut together =
            Together::new(self.infer.together(), self.infer.max_batch, self.plan.limits.batch_timeout);
        taken.iter().for_each(|taken| together.took(turn.rows, *taken));
        together.batches()
    }

    /// As many batches in flight as in a run, over and over the slots that are this worker's, from the moment when all workers are ready.
    async fn loop_over(
        &self,
        worker: &mut BareWorker,
        slots: &[SlotId],
        turn: &Turn,
    ) -> Result<Done, Trouble> {
        let Turn { rows, other, lasting, ref gate } = *turn;
        let cpu = |worker: &BareWorker| worker.pid().and_then(of_process).unwrap_or_default();
        let start_cpu = cpu(worker);
        let mut next = slots.iter().copied().cycle();
        let mut send = || next.next().unwrap_or(SlotId(0));
        // The first batch of a session is slower: memory is taken then.
        let mut taken = Vec::new();
        for _ in 0..if self.infer.together() > 1 { 1 + LEARNED_FROM } else { 2 } {
            worker.run(send(), rows).await.map_err(Trouble::Fault)?;
            taken.push(worker.done().await.map_err(Trouble::Fault)?);
        }
        let together = self.together(turn, &taken[1..]);
        let all_rows = together * rows;
        gate.wait(self.cancel)?;
        let cpu_before = cpu(worker);
        let started = self.time.now();
        let mut batches = 0;
        let mut times = Vec::new();
        let mut elapsed = Duration::ZERO;
        // One of those that it holds is sent in the loop.
        let ahead = self.infer.streams + self.infer.ready - 1;
        for _ in 0..ahead {
            worker.run(send(), all_rows).await.map_err(Trouble::Fault)?;
        }
        while elapsed < lasting {
            worker.run(send(), all_rows).await.map_err(Trouble::Fault)?;
            let taken = worker.done().await.map_err(Trouble::Fault)?;
            if times.len() < MOST_TIMES {
                times.push(taken / u32::try_from(together).unwrap_or(1));
            }
            batches += together as u64;
            elapsed = self.time.now().saturating_sub(started);
        }
        let cpu = cpu(worker).saturating_sub(cpu_before);
        for _ in 0..ahead {
            worker.done().await.map_err(Trouble::Fault)?;
        }
        let usual_batch = median(times);
        let switched_batch = match other {
            Some(other) => Some(self.switch(worker, (other, rows), &mut send).await?),
            None => None,
        };
        Ok(Done { batches, elapsed, cpu, start_cpu, first_batch: taken[0], usual_batch, switched_batch })
    }

    /// What a batch takes that comes right behind one of another size, as a median: a library that keeps the plan of one shape only makes
    /// it anew each time.
    async fn switch(
        &self,
        worker: &mut BareWorker,
        (from, to): (usize, usize),
        slot: &mut impl FnMut() -> SlotId,
    ) -> Result<Duration, Trouble> {
        let mut times = Vec::with_capacity(SWITCHES);
        for _ in 0..SWITCHES {
            let mut taken = Duration::ZERO;
            for rows in [from, to] {
                worker.run(slot(), rows).await.map_err(Trouble::Fault)?;
                taken = worker.done().await.map_err(Trouble::Fault)?;
            }
            times.push(taken);
        }
        Ok(median(times))
    }
}

/// Times that a worker goes from another size to the one that is measured.
const SWITCHES: usize = 9;

/// The upper median, zero of nothing.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The slots that a worker goes over: its share, or, where there are fewer than `least` for each, any so many.
fn slots_of(number: usize, n_workers: usize, n_slots: usize, least: usize) -> Vec<SlotId> {
    let own: Vec<SlotId> = (number..n_slots).step_by(n_workers.max(1)).map(|s| SlotId(s as u32)).collect();
    if own.len() >= least {
        return own;
    }
    // Inputs are only read, and nobody reads what two batches then write to the same outputs.
    (number..number + least).map(|s| SlotId((s % n_slots.max(1)) as u32)).collect()
}

/// Where workers that are ready wait for the others.
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    missing: usize,
    given_up: bool,
}

impl Gate {
    fn new(n: usize) -> Self {
        Self { state: Mutex::new(GateState { missing: n, given_up: false }), changed: Condvar::new() }
    }

    fn wait(&self, cancel: &Cancel) -> Result<(), Trouble> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.missing -= 1;
        self.changed.notify_all();
        while state.missing > 0 && !state.given_up && !cancel.is_cancelled() {
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match (cancel.is_cancelled(), state.given_up) {
            (true, _) => Err(Trouble::Cancelled),
            (false, true) => Err(Trouble::Stopped),
            (false, false) => Ok(()),
        }
    }

    fn give_up(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).given_up = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_worker_has_slots_and_where_there_are_enough_nobody_shares() {
        for (workers, slots) in [(1, 3), (2, 6), (3, 8), (4, 4), (2, 1)] {
            let all: Vec<Vec<SlotId>> = (0..workers).map(|w| slots_of(w, workers, slots, 2)).collect();
            assert!(all.iter().all(|own| own.len() >= 2 && own.iter().all(|s| s.index() < slots)));
            let different: BTreeSet<SlotId> = all.iter().flatten().copied().collect();
            if slots >= 2 * workers {
                assert_eq!(different.len(), all.iter().map(Vec::len).sum::<usize>());
                assert_eq!(different.len(), slots);
            }
        }
    }

    #[test]
    fn the_median_is_that_of_the_middle() {
        let of = |times: &[u64]| median(times.iter().copied().map(Duration::from_millis).collect());
        assert_eq!(of(&[9, 1, 5]), Duration::from_millis(5));
        assert_eq!(of(&[]), Duration::ZERO);
    }

    #[test]
    fn the_gate_opens_for_all_or_says_why_not() {
        let gate = Gate::new(2);
        let cancel = Cancel::new();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| gate.wait(&cancel).is_ok());
            assert!(gate.wait(&cancel).is_ok());
            assert!(other.join().unwrap());
        });
        let gate = Gate::new(2);
        gate.give_up();
        assert!(matches!(gate.wait(&cancel), Err(Trouble::Stopped)));
        cancel.cancel();
        assert!(matches!(Gate::new(2).wait(&cancel), Err(Trouble::Cancelled)));
    }
}
