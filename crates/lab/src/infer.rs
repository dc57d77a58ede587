//! The infer part: the workers of one stage run batches whose inputs are ready. No loaders, no batcher, no results.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use orchestra_core::together::Together;
use orchestra_core::{BatchId, DeviceId, DeviceKind, OutputSlotId, SlotId, StageId};
use orchestra_machine::{GpuProbe, NvmlProbe, process_cpu_time};
use orchestra_plan::{BatchPlan, Plan, WorkerPlan};
use orchestra_runtime::{EngineSpec, StartRunError, load_frame};
use orchestra_worker::codec::CodecError;
use orchestra_worker::frames::{FromWorker, Load, Run, RunTiming, ToWorker};
use serde::Serialize;

use crate::busy::Meter;
use crate::error::LabError;
use crate::memory::Memory;
use crate::run::{Cancel, Tools};
use crate::stats::divide;
use crate::worker_client::WorkerClient;

/// Whether it is seen when it is told something or when it should answer.
const ENDED: &str = "ended unasked";

/// How long it may take to end when asked; then it is killed.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Batch times that a worker keeps for its median.
const MOST_TIMES: usize = 1 << 14;
/// How many batches go together is learned from so many.
const LEARNED_FROM: usize = 5;
/// Times that a worker goes from another batch size to the one that is measured.
const SWITCHES: usize = 9;

/// A stage with its inputs ready.
#[derive(Clone, Copy)]
pub struct InferPart<'a> {
    pub plan: &'a Plan,
    pub stage: StageId,
    pub batch: &'a BatchPlan,
    /// Its rows, filled.
    pub memory: &'a Memory,
    pub tools: &'a Tools,
}

/// A stage on one device, with batches of one size. Of several workers the times are those of the slowest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InferFigures {
    #[serde(skip)]
    pub stage_id: StageId,
    #[serde(skip)]
    pub device_id: DeviceId,
    #[serde(skip)]
    pub on_cpu: bool,
    /// Batches that each worker runs at once.
    #[serde(skip)]
    pub streams: usize,
    pub stage: String,
    pub device: String,
    pub workers: usize,
    /// Threads of each one's session.
    pub threads: usize,
    pub batch: usize,
    /// Of all of these workers, as many batches on the way to each as in a run.
    pub items_per_second: f64,
    pub cpu_seconds_per_item: f64,
    /// The first batch of this size after the warm-up.
    pub first_batch_seconds: f64,
    /// A batch, as a median.
    pub median_batch_seconds: f64,
    /// What of it the session ran, without the copies before and after it, as a median.
    pub median_run_seconds: f64,
    /// Part of the time in which the device computed: a GPU by its driver's account, of all of its processes; the CPU by the time of its cores that
    /// the workers took, of what they could have taken. `null` where the driver does not tell.
    pub device_busy: Option<f64>,
    /// A batch right after one of another size, as a median; `null` where there is one size.
    pub switched_batch_seconds: Option<f64>,
}

#[derive(Clone, Copy)]
struct Place {
    device: DeviceId,
    threads: usize,
    /// Its number among all workers of the stage.
    number: usize,
}

/// What one worker did with batches of one size.
struct Done {
    batches: u64,
    elapsed: Duration,
    cpu: Duration,
    first_batch: Duration,
    usual_batch: Duration,
    usual_run: Duration,
    /// See [`InferFigures::device_busy`], of a GPU.
    busy: Option<f64>,
    switched_batch: Option<Duration>,
}

/// What all workers of a measurement have in common.
#[derive(Clone, Copy)]
struct Common<'a> {
    gate: &'a Gate,
    probe: &'a dyn GpuProbe,
    sizes: &'a [usize],
    /// How long each size is measured.
    lasting: Duration,
}

enum Trouble {
    Cancelled,
    /// Another worker has failed.
    Stopped,
    /// The rest of the sentence "a worker ...".
    Fault(String),
}

impl InferFigures {
    /// Cores that all of its workers together can keep busy: a batch also runs on the thread that starts it.
    pub fn lanes(&self) -> usize {
        self.workers * (self.threads + self.streams - 1)
    }

    /// Core seconds per item, if it runs on the cores. `lanes` are those of all workers of this stage on the CPU, which shared the
    /// cores while this was measured.
    pub fn core_seconds(&self, cores: usize, lanes: usize) -> f64 {
        if !self.on_cpu {
            return 0.0;
        }
        if self.threads > 1 {
            return self.cpu_seconds_per_item;
        }
        // With more batches at once, each on one thread, than cores, each has only a part of a core.
        let part = divide(cores as f64, lanes as f64).min(1.0);
        divide(self.lanes() as f64 * part, self.items_per_second)
    }
}

impl InferPart<'_> {
    /// Runs all workers of the stage, on all of its devices, with batches of each of these sizes, one after another. One result per size
    /// and device.
    pub fn measure(&self, sizes: &[usize], lasting: Duration) -> Result<Vec<InferFigures>, LabError> {
        let name = || self.plan.stages[self.stage.index()].name.clone();
        let engines = self.tools.engines(self.plan);
        let engine = engines.get(&self.stage).ok_or_else(|| StartRunError::NoEngine(name()))?;
        let engine = &**engine;
        let mut places = Vec::new();
        for workers in &self.batch.workers {
            for _ in 0..workers.count {
                places.push(Place { device: workers.device, threads: workers.threads, number: places.len() });
            }
        }
        let gate = Gate { n: places.len(), arrived: AtomicUsize::new(0), has_failed: AtomicBool::new(false) };
        let common = Common { gate: &gate, probe: &NvmlProbe::new(), sizes, lasting };
        let outcomes: Vec<Result<Vec<Done>, Trouble>> = std::thread::scope(|scope| {
            let start = |&place: &Place| scope.spawn(move || self.worker(engine, place, common));
            let threads: Vec<_> = places.iter().map(start).collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
                t.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
            };
            threads.into_iter().map(join).collect()
        });
        self.tools.cancel.check()?;
        let mut done = Vec::new();
        for (place, outcome) in places.into_iter().zip(outcomes) {
            match outcome {
                Ok(of_sizes) => done.push((place, of_sizes)),
                Err(Trouble::Fault(what)) => {
                    return Err(LabError::Worker {
                        stage: name(),
                        device: self.plan.devices[place.device.index()].spec.name.clone(),
                        what,
                    });
                }
                // The one that has failed follows.
                Err(Trouble::Stopped | Trouble::Cancelled) => {}
            }
        }
        let workers = || self.batch.workers.iter().filter(|w| w.count > 0);
        let of_size = |(at, size): (usize, &usize)| {
            workers().map(|w| self.figures(w, *size, at, &done)).collect::<Vec<_>>()
        };
        Ok(sizes.iter().enumerate().flat_map(of_size).collect())
    }

    fn figures(&self, w: &WorkerPlan, batch: usize, at: usize, done: &[(Place, Vec<Done>)]) -> InferFigures {
        let here = || done.iter().filter(|(p, _)| p.device == w.device).filter_map(|(_, d)| d.get(at));
        let items = |d: &Done| (d.batches * batch as u64) as f64;
        let cpu: Duration = here().map(|d| d.cpu).sum();
        let on_cpu = *self.kind(w.device) == DeviceKind::Cpu;
        let lanes = (w.threads + self.batch.streams - 1) as f64;
        let device_busy = match on_cpu {
            true => {
                Some(divide(cpu.as_secs_f64(), lanes * here().map(|d| d.elapsed.as_secs_f64()).sum::<f64>()))
            }
            false => here().filter_map(|d| d.busy).reduce(f64::max),
        };
        let longest = |of: fn(&Done) -> Duration| here().map(of).max().unwrap_or_default().as_secs_f64();
        InferFigures {
            stage_id: self.stage,
            device_id: w.device,
            on_cpu,
            streams: self.batch.streams,
            stage: self.plan.stages[self.stage.index()].name.clone(),
            device: self.plan.devices[w.device.index()].spec.name.clone(),
            workers: w.count,
            threads: w.threads,
            batch,
            items_per_second: here().map(|d| divide(items(d), d.elapsed.as_secs_f64())).sum(),
            cpu_seconds_per_item: divide(cpu.as_secs_f64(), here().map(items).sum()),
            first_batch_seconds: longest(|d| d.first_batch),
            median_batch_seconds: longest(|d| d.usual_batch),
            median_run_seconds: longest(|d| d.usual_run),
            device_busy,
            switched_batch_seconds: here().filter_map(|d| d.switched_batch).max().map(|t| t.as_secs_f64()),
        }
    }

    fn kind(&self, device: DeviceId) -> &DeviceKind {
        &self.plan.devices[device.index()].spec.kind
    }

    fn worker(
        &self,
        engine: &dyn EngineSpec,
        place: Place,
        common: Common<'_>,
    ) -> Result<Vec<Done>, Trouble> {
        let (memory, device) = (self.memory.of_worker(self.stage), self.kind(place.device));
        let done =
            load_frame(engine, self.batch, device, place.threads).map_err(Trouble::Fault).and_then(|load| {
                let client = WorkerClient::start(|| engine.launch(device, memory));
                let mut client =
                    client.map_err(|error| Trouble::Fault(format!("could not be started: {error}")))?;
                self.serve(&mut client, as_they_are(load), place, common)
            });
        if done.is_err() {
            common.gate.has_failed.store(true, Ordering::Release);
        }
        done
    }

    fn serve(
        &self,
        client: &mut WorkerClient,
        load: Load,
        place: Place,
        common: Common<'_>,
    ) -> Result<Vec<Done>, Trouble> {
        let held = self.batch.streams + self.batch.ready;
        let slots = slots_of(place.number, common.gate.n, self.batch.layout.slots, held);
        let mut worker = Bare {
            client,
            cancel: &self.tools.cancel,
            slots,
            n_sent: 0,
            within: self.plan.limits_of(self.stage).load_timeout,
        };
        let measured = worker.load(load).and_then(|()| {
            worker.within = self.plan.limits_of(self.stage).batch_timeout;
            let one_size = |at: usize| self.one_size(&mut worker, place, at, common);
            (0..common.sizes.len()).map(one_size).collect()
        });
        match measured {
            Ok(done) => {
                // The end of our side tells it. A worker that does not end is killed when the client is dropped.
                if client.hang_up().is_ok() {
                    client.wait_for(END_WITHIN);
                }
                Ok(done)
            }
            Err(Trouble::Fault(fault)) => {
                client.kill();
                let said = client.last_words().trim().replace('\n', " | ");
                Err(Trouble::Fault(if said.is_empty() { fault } else { format!("{fault}; it said: {said}") }))
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// As many batches in flight as in a run, over and over the slots of this worker, from the moment when all workers are ready.
    fn one_size(
        &self,
        worker: &mut Bare<'_>,
        place: Place,
        at: usize,
        Common { gate, probe, sizes, lasting }: Common<'_>,
    ) -> Result<Done, Trouble> {
        let (rows, other) = (sizes[at], sizes.get(at.checked_sub(1).unwrap_or(1)).copied());
        let mut meter = match self.kind(place.device) {
            DeviceKind::Cuda { uuid } => Some(Meter::new(probe, uuid, lasting)),
            DeviceKind::Cpu => None,
        };
        // The first batch of a session is slower: memory is taken then.
        let mut taken = Vec::new();
        for _ in 0..if self.batch.together() > 1 { 1 + LEARNED_FROM } else { 2 } {
            worker.run(rows)?;
            taken.push(worker.done()?.total());
        }
        let first_batch = taken[0];
        let together = self.together(rows, other, &taken[1..]);
        gate.wait(at, &self.tools.cancel)?;
        let (cpu_before, started) = (worker.cpu(), Instant::now());
        let (mut batches, mut times, mut runs, mut elapsed) = (0, Vec::new(), Vec::new(), Duration::ZERO);
        // One of those that it holds is sent in the loop.
        let ahead = self.batch.streams + self.batch.ready - 1;
        for _ in 0..ahead {
            worker.run(together * rows)?;
        }
        while elapsed < lasting {
            // The measurement is over with the first worker that is lost.
            if gate.has_failed.load(Ordering::Acquire) {
                return Err(Trouble::Stopped);
            }
            worker.run(together * rows)?;
            let timing = worker.done()?;
            if times.len() < MOST_TIMES {
                let together = u32::try_from(together).unwrap_or(1);
                times.push(timing.total() / together);
                runs.push(Duration::from_nanos(timing.run_ns) / together);
            }
            batches += together as u64;
            elapsed = started.elapsed();
            meter.iter_mut().for_each(|meter| meter.look(elapsed));
        }
        let cpu = worker.cpu().saturating_sub(cpu_before);
        for _ in 0..ahead {
            worker.done()?;
        }
        let switched_batch = match other {
            Some(other) => Some(worker.switch(other, rows)?),
            None => None,
        };
        let (usual_batch, usual_run) = (median(times), median(runs));
        let busy = meter.and_then(Meter::busy);
        Ok(Done { batches, elapsed, cpu, first_batch, usual_batch, usual_run, busy, switched_batch })
    }

    /// How many batches go together where one took so long: as many as in a run, unless sizes are compared.
    fn together(&self, rows: usize, other: Option<usize>, taken: &[Duration]) -> usize {
        if rows < self.batch.max_batch || other.is_some() {
            return 1;
        }
        let (most, timeout) = (self.batch.together(), self.plan.limits_of(self.stage).batch_timeout);
        let mut together = Together::new(most, self.batch.max_batch, timeout);
        taken.iter().for_each(|taken| together.took(rows, *taken));
        together.batches()
    }
}

/// What a worker is told, as in a run, but that batches run as they are: padded to the one size of a run on a GPU, all sizes would take as long as that.
fn as_they_are(load: Load) -> Load {
    Load { pad: false, ..load }
}

/// A worker of this part, and what it is sent.
struct Bare<'a> {
    client: &'a mut WorkerClient,
    cancel: &'a Cancel,
    /// Slots that it goes over.
    slots: Vec<SlotId>,
    n_sent: usize,
    /// How long it may take to answer.
    within: Duration,
}

impl Bare<'_> {
    fn load(&mut self, load: Load) -> Result<(), Trouble> {
        // What this build starts is this build, or a worker that refuses the load frame.
        match self.answer()? {
            FromWorker::Hello { .. } => {}
            other => return Err(unexpected("began with", &other)),
        }
        self.send(&ToWorker::Load(Box::new(load)))?;
        loop {
            return match self.answer()? {
                // Its time to load begins when the other one has built what both need.
                FromWorker::Waiting => continue,
                FromWorker::Loaded { .. } => Ok(()),
                FromWorker::LoadFailed { error, .. } => {
                    Err(Trouble::Fault(format!("could not load: {error}")))
                }
                other => Err(unexpected("answered a load with", &other)),
            };
        }
    }

    /// Sends a batch: the first rows of the next slot.
    fn run(&mut self, rows: usize) -> Result<(), Trouble> {
        let slot = self.slots[self.n_sent % self.slots.len()];
        let batch = BatchId(self.n_sent as u64);
        self.n_sent += 1;
        let output_slot = OutputSlotId(slot.0);
        self.send(&ToWorker::Run(Run {
            batch,
            attempt: 1,
            slot,
            output_slot,
            first_row: 0,
            rows,
            trace: None,
        }))
    }

    /// Waits for the end of a batch, and tells what it took in the worker.
    fn done(&mut self) -> Result<RunTiming, Trouble> {
        match self.answer()? {
            // A loop is measured up to its first checkpoint.
            FromWorker::Done { timing, .. } | FromWorker::Paused { timing, .. } => Ok(timing),
            FromWorker::Failed { error, .. } => {
                Err(Trouble::Fault(format!("could not run a batch: {error}")))
            }
            other => Err(unexpected("answered a batch with", &other)),
        }
    }

    /// Median time of a batch of `to` rows right after one of `from`: a library that keeps the plan of one shape only makes it anew.
    fn switch(&mut self, from: usize, to: usize) -> Result<Duration, Trouble> {
        let mut times = Vec::with_capacity(SWITCHES);
        for _ in 0..SWITCHES {
            self.run(from)?;
            self.done()?;
            self.run(to)?;
            times.push(self.done()?.total());
        }
        Ok(median(times))
    }

    fn cpu(&self) -> Duration {
        self.client.pid().and_then(process_cpu_time).unwrap_or_default()
    }

    fn send(&mut self, frame: &ToWorker) -> Result<(), Trouble> {
        self.client.send(frame).map_err(|error| {
            Trouble::Fault(match error {
                CodecError::Gone => ENDED.to_owned(),
                other => format!("could not be told what to do: {other}"),
            })
        })
    }

    fn answer(&mut self) -> Result<FromWorker, Trouble> {
        let (within, cancel) = (self.within, self.cancel);
        let give_up = async {
            tokio::select! {
                () = cancel.cancelled() => Trouble::Cancelled,
                () = tokio::time::sleep(within) => {
                    Trouble::Fault(format!("gave no answer within {within:?}"))
                }
            }
        };
        match self.client.answer_or(give_up)? {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => Err(Trouble::Fault(ENDED.to_owned())),
            Err(error) => Err(Trouble::Fault(format!("sent something unreadable: {error}"))),
        }
    }
}

fn unexpected(what: &str, frame: &FromWorker) -> Trouble {
    let name = match frame {
        FromWorker::Hello { .. } => "a greeting",
        FromWorker::Loaded { .. } => "the end of a load",
        FromWorker::LoadFailed { .. } => "a failed load",
        FromWorker::Done { .. } => "the end of a batch",
        FromWorker::Paused { .. } => "a checkpoint",
        FromWorker::Failed { .. } => "a failed batch",
        FromWorker::Heartbeat { .. } => "a heartbeat",
        FromWorker::Waiting => "a wait for another worker",
    };
    Trouble::Fault(format!("{what} {name}"))
}

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
    // Inputs are only read, and what two batches write to the same outputs is not read.
    (number..number + least).map(|s| SlotId((s % n_slots.max(1)) as u32)).collect()
}

/// Where workers that are ready for a size wait for the others.
struct Gate {
    n: usize,
    arrived: AtomicUsize,
    has_failed: AtomicBool,
}

impl Gate {
    fn wait(&self, at: usize, cancel: &Cancel) -> Result<(), Trouble> {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.n * (at + 1) {
            if cancel.is_cancelled() {
                return Err(Trouble::Cancelled);
            }
            if self.has_failed.load(Ordering::Acquire) {
                return Err(Trouble::Stopped);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn infer(workers: usize, threads: usize, rate: f64) -> InferFigures {
        InferFigures {
            stage_id: StageId(0),
            device_id: DeviceId(0),
            on_cpu: true,
            streams: 1,
            stage: String::new(),
            device: String::new(),
            workers,
            threads,
            batch: 8,
            items_per_second: rate,
            cpu_seconds_per_item: 0.003,
            first_batch_seconds: 0.0,
            median_batch_seconds: 0.0,
            median_run_seconds: 0.0,
            device_busy: None,
            switched_batch_seconds: None,
        }
    }

    #[test]
    fn a_busy_thread_is_a_core_but_never_more_than_there_are() {
        assert_eq!(infer(2, 1, 1000.0).core_seconds(4, 2), 0.002);
        assert_eq!(infer(8, 1, 1000.0).core_seconds(4, 8), 0.004);
        assert_eq!(infer(4, 1, 1000.0).core_seconds(4, 8), 0.002, "two devices share the cores");
        let two_at_once = InferFigures { streams: 2, ..infer(1, 1, 1000.0) };
        assert_eq!((two_at_once.lanes(), two_at_once.core_seconds(4, 2)), (2, 0.002));
    }

    #[test]
    fn a_session_of_several_threads_is_charged_its_cpu_time() {
        assert_eq!(infer(1, 4, 1000.0).core_seconds(4, 4), 0.003);
        assert_eq!(InferFigures { on_cpu: false, ..infer(1, 1, 1.0) }.core_seconds(4, 0), 0.0);
    }

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
    fn batches_of_a_gpu_are_measured_as_they_are_and_not_padded_to_those_of_a_run() {
        let load = Load {
            spec: Vec::new(),
            device: DeviceKind::Cuda { uuid: "GPU-1".into() },
            threads: 1,
            streams: 1,
            max_batch: 64,
            batch_sizes: vec![64],
            pad: true,
            layout: orchestra_core::batch_layout::BatchLayout::new(&[], &[], 64, 1).unwrap(),
        };
        assert_eq!(as_they_are(load.clone()), Load { pad: false, ..load });
    }

    #[test]
    fn the_median_is_that_of_the_middle() {
        let of = |times: &[u64]| median(times.iter().copied().map(Duration::from_millis).collect());
        assert_eq!(of(&[9, 1, 5]), Duration::from_millis(5));
        assert_eq!(of(&[]), Duration::ZERO);
    }

    #[test]
    fn the_gate_opens_for_all_or_says_why_not() {
        let gate = || Gate { n: 2, arrived: AtomicUsize::new(0), has_failed: AtomicBool::new(false) };
        let (both, cancel) = (gate(), Cancel::default());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| both.wait(0, &cancel).is_ok());
            assert!(both.wait(0, &cancel).is_ok());
            assert!(other.join().unwrap());
        });
        let failed = gate();
        failed.has_failed.store(true, Ordering::Release);
        assert!(matches!(failed.wait(0, &cancel), Err(Trouble::Stopped)));
        cancel.cancel();
        assert!(matches!(gate().wait(0, &cancel), Err(Trouble::Cancelled)));
    }
}
