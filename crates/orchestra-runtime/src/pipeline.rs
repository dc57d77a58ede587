//! Pipeline: one connected graph. Builds its actors from the plan, wires them, and knows when it is over. It moves no item itself.
//!
//! ```text
//! Preparing => Running => (Complete | Stopped | NoDevice | SinkFailed | NotListed | SourceFailed | Bug)
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use orchestra_core::data::ColumnType;
use orchestra_core::shapes::Fold as MakeRow;
use orchestra_core::{DeviceKind, PipelineId, SourceId, StageId};
use orchestra_journal::BitSet;
use orchestra_plan::{InferPlan, Origin, PipelinePlan, Plan, Shape};
use orchestra_source::Catalog;
use orchestra_wire::arena::Arena;
use orchestra_wire::frames::Load;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::account::stats::Counter;
use crate::batch::batcher::{Batcher, BatcherArgs};
use crate::batch::slot_pool::SlotPool;
use crate::context::RunContext;
use crate::flow::carried::CarriedArena;
use crate::flow::chain::{BatchTarget, Chain, Targets};
use crate::flow::committer::CommitterHandle;
use crate::flow::fold::{Fold, FoldArgs, FoldMsg};
use crate::flow::loader::Loader;
use crate::flow::loader_thread::LoaderWork;
use crate::flow::processor::Processor;
use crate::flow::sink::{Sink, SinkArgs};
use crate::flow::source::{Source, SourceArgs};
use crate::messages::{
    BatcherMsg, DeviceMsg, PipelineEnd, PipelineMsg, RootMsg, ServeStage, SinkMsg, SourceMsg, StageMemory,
};

/// See the module.
pub struct Pipeline;

/// The items of a source, and what of them is finished already.
#[derive(Clone)]
pub struct Listing {
    /// The items.
    pub catalog: Arc<Catalog>,
    /// Finished items.
    pub finished: Arc<BitSet>,
}

/// What a pipeline is started with.
#[derive(Clone)]
pub struct PipelineArgs {
    /// The run.
    pub context: Arc<RunContext>,
    /// Which.
    pub pipeline: PipelineId,
    /// Who writes.
    pub committer: CommitterHandle,
    /// All devices of the plan.
    pub devices: Vec<ActorRef<DeviceMsg>>,
    /// The lists of all sources of the plan.
    pub listings: Arc<Vec<Listing>>,
    /// The root.
    pub root: ActorRef<RootMsg>,
}

/// State of a pipeline.
pub struct PipelineState {
    args: PipelineArgs,
    name: String,
    targets: Targets,
    sources: HashMap<SourceId, ActorRef<SourceMsg>>,
    running: BTreeSet<SourceId>,
    /// The worst that a source came to.
    sources_end: PipelineEnd,
    stop_asked: bool,
    over: bool,
}

impl Actor for Pipeline {
    type Msg = PipelineMsg;
    type State = PipelineState;
    type Arguments = PipelineArgs;

    async fn pre_start(
        &self,
        me: ActorRef<PipelineMsg>,
        args: PipelineArgs,
    ) -> Result<PipelineState, ActorProcessingErr> {
        let plan = &args.context.plan.pipelines[args.pipeline.index()];
        me.cast(PipelineMsg::Start)?;
        Ok(PipelineState {
            name: plan.name.clone(),
            targets: Targets::default(),
            sources: HashMap::new(),
            running: plan.sources.iter().copied().collect(),
            sources_end: PipelineEnd::Complete,
            stop_asked: false,
            over: false,
            args,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<PipelineMsg>,
        message: PipelineMsg,
        state: &mut PipelineState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PipelineMsg::Start => state.prepare(&me),
            PipelineMsg::Prepared(Ok(memory)) => state.build(&me, memory).await?,
            PipelineMsg::Prepared(Err(why)) => state.end(&me, PipelineEnd::NoDevice(why)).await,
            PipelineMsg::SourceFinished { source, end } => state.source_finished(&me, source, end).await,
            PipelineMsg::NoDevice(why) => state.end(&me, PipelineEnd::NoDevice(why)).await,
            PipelineMsg::SinkFailed(why) => state.end(&me, PipelineEnd::SinkFailed(why)).await,
            PipelineMsg::Stop => state.stop(),
            PipelineMsg::Abort => state.end(&me, PipelineEnd::Stopped).await,
        }
        Ok(())
    }

    /// A part that fails (a panic, or an error from a handler) is a bug of ours, and its state is lost. The journal is the truth: the
    /// root builds the pipeline anew from it.
    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<PipelineMsg>,
        event: SupervisionEvent,
        state: &mut PipelineState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(who, error) = event {
            let name = who.get_name().unwrap_or_else(|| "an actor".into());
            tracing::error!(pipeline = %state.name, actor = %name, %error, "an actor failed; this is a bug");
            state.end(&me, PipelineEnd::Bug(format!("{name}: {error}"))).await;
        }
        Ok(())
    }
}

/// However it ends, also when the host drops its whole runtime: no thread may wait for a row for ever.
impl Drop for PipelineState {
    fn drop(&mut self) {
        self.shut();
    }
}

impl PipelineState {
    /// ## Preparing
    /// Makes the memory of all batch stages, off the actor: touching every page of it takes a while.
    fn prepare(&self, me: &ActorRef<PipelineMsg>) {
        let plan = Arc::clone(&self.args.context.plan);
        let pipeline = self.args.pipeline;
        let me = me.clone();
        tokio::task::spawn_blocking(move || {
            drop(me.cast(PipelineMsg::Prepared(memory_of(&plan, &plan.pipelines[pipeline.index()]))));
        });
    }

    /// ## Preparing => Running
    async fn build(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        memory: Vec<StageMemory>,
    ) -> Result<(), ActorProcessingErr> {
        if self.over {
            return Ok(());
        }
        let sink_args = SinkArgs {
            context: Arc::clone(&self.args.context),
            pipeline: self.args.pipeline,
            committer: self.args.committer.clone(),
            parent: me.clone(),
            root: self.args.root.clone(),
        };
        let (sink, _) = Actor::spawn_linked(None, Sink, sink_args, me.get_cell()).await?;
        // Stages stand after what they read from; built backwards, each finds those that follow it.
        let mut memory = memory;
        let plan = Arc::clone(&self.args.context.plan);
        let pipeline = &plan.pipelines[self.args.pipeline.index()];
        for &stage in pipeline.stages.iter().rev() {
            match &plan.stages[stage.index()].runs {
                Shape::Map(_) => {}
                Shape::Batch(infer) => {
                    let own = memory.pop().filter(|own| own.stage == stage);
                    let own = own.ok_or("memory was made for other stages than those of the plan")?;
                    self.build_batch(me, stage, infer, own, &sink).await?;
                }
                Shape::Fold { fold, .. } => self.build_fold(me, stage, fold, &sink).await?,
            }
        }
        for source in self.running.clone() {
            self.build_source(me, source, &sink).await?;
        }
        if self.stop_asked {
            self.stop();
        }
        Ok(())
    }

    async fn build_fold(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        stage: StageId,
        fold: &Arc<dyn MakeRow>,
        sink: &ActorRef<SinkMsg>,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.args.context;
        let chain = Chain::new(context, sink, Origin::Stage(stage), &self.targets);
        let readers = (0..).map(StageId).zip(&context.plan.stages);
        let readers = readers.filter(|(_, s)| s.from.contains(&Origin::Stage(stage)));
        let outer = readers.flat_map(|(reader, _)| self.targets.folds_behind(context, reader)).collect();
        let args = FoldArgs {
            context: Arc::clone(context),
            stage,
            fold: Arc::clone(fold),
            chain,
            sink: sink.clone(),
            outer,
        };
        let (actor, _) = Actor::spawn_linked(None, Fold, args, me.get_cell()).await?;
        self.targets.folds.push((stage, actor));
        Ok(())
    }

    async fn build_batch(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        stage: StageId,
        infer: &InferPlan,
        memory: StageMemory,
        sink: &ActorRef<SinkMsg>,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.args.context;
        let chain = Chain::new(context, sink, Origin::Stage(stage), &self.targets);
        let folds: Arc<[ActorRef<FoldMsg>]> = self.targets.folds_behind(context, stage).into();
        let (processor, _) = Processor::start(context, stage, chain, sink.clone(), me.get_cell()).await?;
        let batcher_args = BatcherArgs {
            context: Arc::clone(context),
            stage,
            processor,
            folds: Arc::clone(&folds),
            sink: sink.clone(),
            pipeline: me.clone(),
        };
        let (batcher, _) = Actor::spawn_linked(None, Batcher, batcher_args, me.get_cell()).await?;
        let tell = batcher.clone();
        let notify = move || {
            // A batcher that is gone takes the pipeline with it.
            drop(tell.cast(BatcherMsg::PoolChanged));
        };
        let (max_batch, held) = (infer.max_batch, infer.held_by_workers());
        let in_use = Arc::clone(&context.stats.stage(stage).slots_in_use);
        let pool = SlotPool::new(memory.arena, context.clock, max_batch, held, in_use, Box::new(notify));
        batcher.cast(BatcherMsg::Attach(Arc::clone(&pool)))?;
        let target = BatchTarget { stage, pool, carried: memory.carried, batcher, folds };
        self.ask_for_workers(&target);
        self.targets.batches.push(target);
        Ok(())
    }

    fn ask_for_workers(&self, node: &BatchTarget) {
        let context = &self.args.context;
        let plan = &context.plan;
        let stage = &plan.stages[node.stage.index()];
        let Some(infer) = stage.batch() else { return };
        let model = &plan.models[infer.model.index()];
        for workers in infer.workers.iter().filter(|w| w.count > 0) {
            let device = &plan.devices[workers.device.index()].spec;
            let load = Load {
                library: context.options.library.clone(),
                preload: match device.kind {
                    DeviceKind::Cpu => Vec::new(),
                    DeviceKind::Cuda { .. } => context.options.devices.preload.clone(),
                },
                model: model.path.clone(),
                digest: model.file_digest,
                device: device.kind.clone(),
                threads: workers.threads,
                streams: infer.streams,
                max_batch: infer.max_batch,
                memory_limit: model.memory_limit,
                tf32: model.tf32,
                tuning: model.tuning.clone(),
                custom_ops: model.custom_ops.clone(),
                warm_up: infer.ladder.clone(),
                rungs: match device.kind {
                    DeviceKind::Cpu => Vec::new(),
                    DeviceKind::Cuda { .. } => infer.ladder.clone(),
                },
                layout: infer.layout.clone(),
                pixel_inputs: plan.pixel_inputs(node.stage),
            };
            let serve = ServeStage {
                stage: node.stage,
                name: stage.name.clone(),
                pipeline: self.name.clone(),
                batcher: node.batcher.clone(),
                pool: Arc::clone(&node.pool),
                load,
                workers: workers.count,
                spares: workers.spares,
                recycle: model.recycle,
            };
            // A manager that is gone was told to shut down before it had a worker: our own order to stop is on its way.
            drop(self.args.devices[workers.device.index()].cast(DeviceMsg::Serve(Arc::new(serve))));
        }
    }

    async fn build_source(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        source: SourceId,
        sink: &ActorRef<SinkMsg>,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.args.context;
        let plan = &context.plan;
        let chain = Arc::new(Chain::new(context, sink, Origin::Source(source), &self.targets));
        let listing = &self.args.listings[source.index()];
        let n_loaders = plan.loader_threads.div_ceil(plan.sources.len()).max(1);
        let window = plan.pipelines[self.args.pipeline.index()].window.max(1) as u64;
        let loaded = Arc::new(Counter::default());
        let source_args = SourceArgs {
            context: Arc::clone(context),
            source,
            listing: listing.clone(),
            window,
            loaders: n_loaders as u64,
            loaded: Arc::clone(&loaded),
            pipeline: me.clone(),
            chain: Arc::clone(&chain),
            committer: self.args.committer.clone(),
        };
        let (from, _) = Actor::spawn_linked(None, Source, source_args, me.get_cell()).await?;
        sink.cast(SinkMsg::Attach(source, from.clone()))?;
        self.sources.insert(source, from.clone());
        let fetch = Arc::clone(&plan.sources[source.index()].fetch);
        let work = Arc::new(LoaderWork { context: Arc::clone(context), source, from, fetch, chain, loaded });
        for _ in 0..n_loaders {
            Actor::spawn_linked(None, Loader, Arc::clone(&work), me.get_cell()).await?;
        }
        Ok(())
    }

    /// A source that cannot go on stops the others of its graph; what is in flight is finished first.
    async fn source_finished(&mut self, me: &ActorRef<PipelineMsg>, source: SourceId, end: PipelineEnd) {
        self.running.remove(&source);
        match (&self.sources_end, &end) {
            (_, PipelineEnd::Complete) => {}
            (PipelineEnd::Complete | PipelineEnd::Stopped, PipelineEnd::Stopped) => self.sources_end = end,
            (PipelineEnd::Complete | PipelineEnd::Stopped, _) => {
                self.sources_end = end;
                self.stop();
            }
            _ => {}
        }
        if self.args.context.too_many_failed() {
            // The last item that a growing source named may have been committed before the number of all was known.
            drop(self.args.root.cast(RootMsg::FailureLimit));
        }
        if self.running.is_empty() {
            self.end(me, self.sources_end.clone()).await;
        }
    }

    /// Wakes every thread that waits for a row or for room.
    fn shut(&self) {
        for target in &self.targets.batches {
            target.pool.shut();
            target.carried.iter().for_each(|arena| arena.shut());
        }
    }

    fn stop(&mut self) {
        self.stop_asked = true;
        for source in self.sources.values() {
            drop(source.cast(SourceMsg::Stop));
        }
    }

    /// ## Running => over
    async fn end(&mut self, me: &ActorRef<PipelineMsg>, end: PipelineEnd) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.shut();
        // Of those that were never built, too: others may wait for them on their device.
        for stage in &self.args.context.plan.pipelines[self.args.pipeline.index()].stages {
            for device in &self.args.devices {
                drop(device.cast(DeviceMsg::Retire(*stage)));
            }
        }
        match &end {
            PipelineEnd::Complete | PipelineEnd::Stopped => {
                tracing::info!(pipeline = %self.name, %end, "pipeline ended");
            }
            _ => {
                tracing::error!(pipeline = %self.name, %end, "pipeline ended; its unfinished items can be resumed")
            }
        }
        // Nobody of this pipeline commits anything once the root hears that it is over: it may build it anew from the journal.
        me.stop_children_and_wait(None, None).await;
        drop(self.args.root.cast(RootMsg::PipelineEnded(self.args.pipeline, end)));
        me.stop(None);
    }
}

/// The memory of all batch stages of a pipeline, in their order.
fn memory_of(plan: &Plan, pipeline: &PipelinePlan) -> Result<Vec<StageMemory>, String> {
    let batches =
        pipeline.stages.iter().filter_map(|stage| Some((*stage, plan.stages[stage.index()].batch()?)));
    let carries_pictures =
        |infer: &InferPlan| infer.carries.iter().any(|read| plan.column(*read).ty == ColumnType::Picture);
    let carriers = batches.clone().filter(|(_, infer)| carries_pictures(infer)).count().max(1);
    let share = usize::try_from(pipeline.carried_bytes).unwrap_or(usize::MAX) / carriers;
    batches
        .map(|(stage, infer)| {
            let name = &plan.stages[stage.index()].name;
            let refused = |what: &str, bytes: usize, error: &dyn std::fmt::Display| {
                let mib = bytes >> 20;
                format!("cannot take {mib} MiB of shared memory for the {what} of stage `{name}`: {error}; set `limits.memory` or a smaller `batch.max`")
            };
            let arena = Arena::create(name, infer.layout.clone())
                .map_err(|error| refused("batches", infer.layout.total_bytes(), &error))?;
            let carried = match carries_pictures(infer) {
                true => Some(CarriedArena::new(share).map_err(|error| refused("pictures", share, &error))?),
                false => None,
            };
            Ok(StageMemory { stage, arena, carried })
        })
        .collect()
}
