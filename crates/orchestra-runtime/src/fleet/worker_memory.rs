//! What a worker takes of its GPU, kept for the plans of later runs: at once when it was measured, and at the end of a run if it turned out
//! to be more, or far less. Measures nothing itself. Failing to keep it is no reason for a run to fail.

use orchestra_core::{DeviceId, StageId};
use orchestra_plan::{BatchPlan, DevicePlan, MeasureKey, Measured, Measurements, WorkerMemory};

use crate::account::stats::StageOnDevice;
use crate::context::RunContext;

/// What workers take differs by up to an eighth from run to run: no reason to write a file.
const LITTLE_MORE: u64 = 8;

struct Place<'a> {
    context: &'a RunContext,
    id: (DeviceId, StageId),
    device: &'a DevicePlan,
    batch: &'a BatchPlan,
    on: &'a StageOnDevice,
}

impl<'a> Place<'a> {
    fn new(context: &'a RunContext, device: DeviceId, stage: StageId) -> Option<Self> {
        let batch = context.plan.stages.get(stage.index())?.batch()?;
        let plan = context.plan.devices.get(device.index())?;
        let on = context.stats.stage(stage).on(device)?;
        Some(Self { context, id: (device, stage), device: plan, batch, on })
    }

    fn measurements(&self) -> Option<&'a Measurements> {
        self.context.options.devices.measurements.as_ref()
    }

    fn stage(&self) -> &'a str {
        &self.context.plan.stages[self.id.1.index()].name
    }

    fn warn_if_more_than_declared(&self, bytes: u64) {
        let worker = self.batch.workers.iter().find(|w| w.device == self.id.0);
        if let Some(WorkerMemory::Declared(declared)) = worker.and_then(|w| w.memory)
            && bytes > declared
        {
            tracing::warn!(
                stage = %self.stage(), device = %self.device.spec, declared, measured = bytes,
                "a worker took more of the GPU than the file declares as `memory`"
            );
        }
    }

    fn key(&self) -> MeasureKey<'a> {
        self.context.plan.measure_key(self.batch, self.device)
    }

    /// Keeps what one worker takes. What is known of this version of the engine stays where it is as much or a little more, and, unless
    /// this is the `most` that it takes, also where it is much more.
    fn keep(&self, bytes: u64, is_most: bool) {
        let Some(measurements) = self.measurements() else { return };
        let key = self.key();
        let measured = Measured { bytes, runtime: self.context.runtime.get().cloned().unwrap_or_default() };
        let known = measurements.look_up(&key).filter(|known| known.runtime == measured.runtime);
        let most = if is_most { bytes.saturating_add(bytes / LITTLE_MORE) } else { u64::MAX };
        if known.is_some_and(|known| (bytes..=most).contains(&known.bytes)) {
            return;
        }
        match measurements.keep(&key, &measured) {
            Ok(()) => {
                tracing::info!(stage = %self.stage(), device = %self.device.spec, bytes, "memory of a worker kept");
            }
            Err(error) => tracing::warn!(%error, "the memory of a worker cannot be kept for later plans"),
        }
    }

    /// Later plans are to do without what is kept.
    fn forget(&self) {
        let Some(measurements) = self.measurements() else { return };
        if let Err(error) = measurements.forget(&self.key()) {
            tracing::warn!(%error, "a measurement that is wrong cannot be removed");
        }
    }

    /// The same, if the plan had several workers by what was measured, in this run or before it: one alone cannot have too many beside it.
    fn forget_measured(&self) {
        let of = self.batch.workers.iter().find(|w| w.device == self.id.0);
        if of.is_some_and(|w| w.most() > 1 && !matches!(w.memory, Some(WorkerMemory::Declared(_)))) {
            self.forget();
        }
    }
}

/// It was measured what one worker of the stage takes of the GPU.
pub(crate) fn measured(context: &RunContext, device: DeviceId, stage: StageId, bytes: u64) {
    let Some(place) = Place::new(context, device, stage) else { return };
    tracing::info!(stage = %place.stage(), device = %place.device.spec, bytes, "memory of a worker measured");
    place.on.worker_bytes.set(bytes);
    // A file of a few hundred bytes: once per stage and GPU, while nothing else of the stage runs yet.
    place.keep(bytes, true);
}

/// What was measured has let workers start that do not fit: later plans are to do without it.
pub(crate) fn forget(context: &RunContext, device: DeviceId, stage: StageId) {
    let Some(place) = Place::new(context, device, stage) else { return };
    place.on.worker_bytes.set(0);
    place.on.out_of_memory.add(1);
    place.forget();
}

/// At the end of a run: keeps what was seen of workers that have run their largest batch, where the driver counts what a process holds.
/// Where memory ran out, a worker needs more than it was seen to take.
pub(crate) fn keep(context: &RunContext) {
    for (device, _) in (0..).map(DeviceId).zip(&context.plan.devices) {
        for (stage, _) in context.plan.batch_stages() {
            let place = Place::new(context, device, stage).zip(context.watch.most_held(device, stage));
            let Some((place, held)) = place else { continue };
            let on = place.on;
            place.warn_if_more_than_declared(held);
            if alike(&place).any(|(_, on)| on.out_of_memory.get() > 0) {
                // What was measured has let more workers start than there was memory for.
                place.forget_measured();
            } else if on.warm.get() > 0 {
                // GPUs of one kind have one measurement: that of the worker that took most.
                let of = |(held, on): (u64, &StageOnDevice)| held.max(on.worker_bytes.get());
                let most = alike(&place).filter(|(_, on)| on.warm.get() > 0).map(of).max().unwrap_or(held);
                // A worker that gives memory back takes less at most looks than it once did.
                let gives_back = place.batch.gives_memory_back;
                place.keep(most, !gives_back || on.worker_bytes.get() > 0);
            }
        }
    }
}

/// What was seen of the stage's workers on each GPU that has the measurement of this one, with the bytes that one held at looks.
fn alike<'a>(place: &'a Place<'_>) -> impl Iterator<Item = (u64, &'a StageOnDevice)> + 'a {
    let (context, (_, stage)) = (place.context, place.id);
    (0..).map(DeviceId).zip(&context.plan.devices).filter_map(move |(device, _)| {
        let other = Place::new(context, device, stage).filter(|other| other.key() == place.key())?;
        Some((context.watch.most_held(device, stage).unwrap_or_default(), other.on))
    })
}
