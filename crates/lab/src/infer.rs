//! The infer part: the workers of one stage run batches whose inputs are ready. No loaders, no batcher, no results.

mod figures;
mod gate;

use std::time::{Duration, Instant};

use orchestra_core::batches_together::Together;
use orchestra_core::{DeviceId, DeviceKind, SlotId, StageId};
use orchestra_machine::{GpuProbe, NvmlProbe};
use orchestra_plan::{BatchPlan, Plan, WorkerPlan};
use orchestra_runtime::{EngineSpec, StartRunError, load_frame};
use orchestra_worker::frames::Load;

pub use self::figures::InferFigures;
use self::gate::Gate;
use crate::bare_worker::{BareWorker, Trouble};
use crate::busy::Meter;
use crate::error::LabError;
use crate::memory::Memory;
use crate::run::Tools;
use crate::stats::{divide, median};
use crate::worker_client::WorkerClient;

/// How long it may take to end when asked; then it is killed.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Batch times that a worker keeps for its median.
const MOST_TIMES: usize = 1 << 14;

/// How many batches go together is learned from so many.
const LEARNED_FROM: usize = 5;

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

#[derive(Clone, Copy)]
struct WorkerSetup {
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

impl InferPart<'_> {
    /// Runs all workers of the stage, on all of its devices, with batches of each of these sizes, one after another. One result per size
    /// and device.
    pub fn measure(&self, sizes: &[usize], lasting: Duration) -> Result<Vec<InferFigures>, LabError> {
        let name = || self.plan.stages[self.stage.index()].name.clone();
        let engines = self.tools.engines(self.plan);
        let engine = engines.get(&self.stage).ok_or_else(|| StartRunError::NoEngine(name()))?;
        let engine = &**engine;
        let mut setups = Vec::new();
        for workers in &self.batch.workers {
            for _ in 0..workers.count {
                setups.push(WorkerSetup {
                    device: workers.device,
                    threads: workers.threads,
                    number: setups.len(),
                });
            }
        }
        let gate = Gate::new(setups.len());
        let common = Common { gate: &gate, probe: &NvmlProbe::new(), sizes, lasting };
        let outcomes: Vec<Result<Vec<Done>, Trouble>> = std::thread::scope(|scope| {
            let start = |&setup: &WorkerSetup| scope.spawn(move || self.worker(engine, setup, common));
            let threads: Vec<_> = setups.iter().map(start).collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
                t.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
            };
            threads.into_iter().map(join).collect()
        });
        self.tools.cancel.check()?;
        let mut done = Vec::new();
        for (setup, outcome) in setups.into_iter().zip(outcomes) {
            match outcome {
                Ok(of_sizes) => done.push((setup, of_sizes)),
                Err(Trouble::Fault(what)) => {
                    return Err(LabError::Worker {
                        stage: name(),
                        device: self.plan.devices[setup.device.index()].spec.name.clone(),
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

    fn figures(
        &self,
        w: &WorkerPlan,
        batch: usize,
        at: usize,
        done: &[(WorkerSetup, Vec<Done>)],
    ) -> InferFigures {
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
        setup: WorkerSetup,
        common: Common<'_>,
    ) -> Result<Vec<Done>, Trouble> {
        let (memory, device) = (self.memory.of_worker(self.stage), self.kind(setup.device));
        let done =
            load_frame(engine, self.batch, device, setup.threads).map_err(Trouble::Fault).and_then(|load| {
                let client = WorkerClient::start(|| engine.launch(device, memory));
                let mut client =
                    client.map_err(|error| Trouble::Fault(format!("could not be started: {error}")))?;
                self.serve(&mut client, as_they_are(load), setup, common)
            });
        if done.is_err() {
            common.gate.fail();
        }
        done
    }

    fn serve(
        &self,
        client: &mut WorkerClient,
        load: Load,
        setup: WorkerSetup,
        common: Common<'_>,
    ) -> Result<Vec<Done>, Trouble> {
        let held = self.batch.streams + self.batch.ready;
        let slots = slots_of(setup.number, common.gate.n_workers(), self.batch.layout.slots, held);
        let within = self.plan.limits_of(self.stage).load_timeout;
        let mut worker = BareWorker::new(client, &self.tools.cancel, slots, within);
        let measured = worker.load(load).and_then(|()| {
            worker.within = self.plan.limits_of(self.stage).batch_timeout;
            let one_size = |at: usize| self.one_size(&mut worker, setup, at, common);
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
        worker: &mut BareWorker<'_>,
        setup: WorkerSetup,
        at: usize,
        Common { gate, probe, sizes, lasting }: Common<'_>,
    ) -> Result<Done, Trouble> {
        let (rows, other) = (sizes[at], sizes.get(at.checked_sub(1).unwrap_or(1)).copied());
        let mut meter = match self.kind(setup.device) {
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
            if gate.has_failed() {
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

/// The slots that a worker goes over: its share, or, where there are fewer than `least` for each, any so many.
fn slots_of(number: usize, n_workers: usize, n_slots: usize, least: usize) -> Vec<SlotId> {
    let own: Vec<SlotId> = (number..n_slots).step_by(n_workers.max(1)).map(|s| SlotId(s as u32)).collect();
    if own.len() >= least {
        return own;
    }
    // Inputs are only read, and what two batches write to the same outputs is not read.
    (number..number + least).map(|s| SlotId((s % n_slots.max(1)) as u32)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_worker_has_slots_and_where_there_are_enough_none_are_shared() {
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
}
