//! Starts a batch stage: its slots, its batcher, and the request for workers to its devices. It knows neither the source of the rows nor what
//! follows the stage.

use std::sync::{Arc, Once};

use orchestra_core::{StageId, locked};
use orchestra_plan::BatchPlan;
use orchestra_worker::arena::Arena;
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorCell, ActorRef, SpawnErr};

use crate::batch::batcher::{Batcher, BatcherArgs};
use crate::batch::completion::Completion;
use crate::batch::slot_pool::SlotPool;
use crate::context::RunContext;
use crate::fleet::launcher::load_frame;
use crate::messages::{BatcherMsg, DeviceMsg, ServeStage};

pub struct BatchStage {
    pub pool: Arc<SlotPool>,
    pub batcher: ActorRef<BatcherMsg>,
}

impl BatchStage {
    /// Starts the batcher of `stage` below `supervisor`, over the slots of `arena`, and asks `devices`, those of the plan, for workers.
    pub async fn start(
        context: &Arc<RunContext>,
        stage: StageId,
        arena: Arena,
        completion: Arc<dyn Completion>,
        devices: &[ActorRef<DeviceMsg>],
        supervisor: ActorCell,
    ) -> Result<(Self, JoinHandle<()>), SpawnErr> {
        let args = BatcherArgs { context: Arc::clone(context), stage, completion: Arc::clone(&completion) };
        let (batcher, end) = Actor::spawn_linked(None, Batcher, args, supervisor).await?;
        let tell = batcher.clone();
        let notify = move || {
            // The stage ends with its batcher.
            drop(tell.cast(BatcherMsg::PoolChanged));
        };
        let batch = context.plan.stages[stage.index()].batch();
        let (held, least_rows) = batch.map_or((1, 1), |batch| (batch.held_by_workers(), batch.first_batch()));
        let in_use = Arc::clone(&context.stats.stage(stage).slots_in_use);
        let pool = SlotPool::new(arena, context.clock, held, least_rows, in_use, Box::new(notify));
        // The first message to the batcher.
        drop(batcher.cast(BatcherMsg::Attach(Arc::clone(&pool))));
        let started = Self { pool, batcher };
        if let Err(why) = started.ask_for_workers(context, stage, devices) {
            completion.no_device(why);
        }
        Ok((started, end))
    }

    fn ask_for_workers(
        &self,
        context: &RunContext,
        id: StageId,
        devices: &[ActorRef<DeviceMsg>],
    ) -> Result<(), String> {
        let plan = &context.plan;
        let stage = &plan.stages[id.index()];
        // `Prepared::start` and `RequestFlow::start` have checked that there is an engine.
        let engine = locked(&context.engines).get(&id).cloned();
        let (Some(batch), Some(engine)) = (stage.batch(), engine) else {
            return Err(format!("stage `{}` has no engine; this is a bug", stage.name));
        };
        for workers in batch.workers.iter().filter(|w| w.count > 0) {
            let device = &plan.devices[workers.device.index()].spec.kind;
            let load = load_frame(&*engine, batch, device, workers.threads)
                .map_err(|why| format!("stage `{}`: {why}", stage.name))?;
            let serve = ServeStage {
                stage: id,
                name: stage.name.clone(),
                pipeline: plan.pipelines[stage.pipeline.index()].name.clone(),
                batcher: self.batcher.clone(),
                pool: Arc::clone(&self.pool),
                engine: Arc::clone(&engine),
                load,
                workers: workers.count,
                recycle: batch.recycle,
                cpu_nodes: Once::new(),
            };
            // A manager that has stopped was told to shut down: the supervisor of this stage is about to be told, too.
            drop(devices[workers.device.index()].cast(DeviceMsg::Serve(Arc::new(serve))));
        }
        Ok(())
    }
}

/// The memory of the inputs of a stage, or why it cannot be had.
pub fn arena_of(stage: &str, batch: &BatchPlan) -> Result<Arena, String> {
    let layout = batch.layout.clone();
    Arena::create(stage, layout)
        .map_err(|error| refused("batches", batch.layout.inputs_bytes(), stage, &error))
}

/// Why a stage cannot have this much memory, and what to do.
pub fn refused(what: &str, bytes: usize, stage: &str, error: &dyn std::fmt::Display) -> String {
    let mib = bytes >> 20;
    format!(
        "cannot take {mib} MiB of shared memory for the {what} of stage `{stage}`: {error}; set `limits.memory` or a smaller `batch.max`"
    )
}
