//! Pipeline: one connected graph. Builds its actors from the plan, wires them, and knows when it is over. It moves no item itself.
//!
//! ```text
//! Preparing => Running => (Complete | Stopped | NoDevice | SinkFailed | SourceFailed | Bug)
//! ```

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::{DeviceKind, PipelineId, SourceId, StageId};
use orchestra_journal::BitSet;
use orchestra_plan::{InferPlan, StageKind};
use orchestra_wire::arena::Arena;
use orchestra_wire::frames::Load;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::batcher::{Batcher, BatcherArgs};
use crate::committer::CommitterHandle;
use crate::context::RunContext;
use crate::loader::Loader;
use crate::loader_thread::{ImageTarget, InferTarget, LoaderWork};
use crate::messages::{
    BatcherMsg, DeviceMsg, PipelineEnd, PipelineMsg, RootMsg, ServeStage, SinkMsg, SourceMsg,
};
use crate::post::{Behind, PostArgs, PostProcessor};
use crate::sink::{Sink, SinkArgs};
use crate::slot_pool::SlotPool;
use crate::source::{Source, SourceArgs};
use crate::stats::Counter;
use crate::topology::Topology;

/// See the module.
pub struct Pipeline;

/// A source's list on disk, and what of it is finished already.
#[derive(Clone)]
pub struct Listing {
    /// The list.
    pub path: PathBuf,
    /// Finished items.
    pub finished: Arc<BitSet>,
    /// Items to do.
    pub to_do: u64,
}

/// What a pipeline is started with.
#[derive(Clone)]
pub struct PipelineArgs {
    /// The run.
    pub context: Arc<RunContext>,
    /// Which.
    pub pipeline: PipelineId,
    /// The graph.
    pub topology: Arc<Topology>,
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
    infers: HashMap<StageId, Behind>,
    sources: HashMap<SourceId, ActorRef<SourceMsg>>,
    running: BTreeSet<SourceId>,
    incomplete: bool,
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
            infers: HashMap::new(),
            sources: HashMap::new(),
            running: plan.sources.iter().copied().collect(),
            incomplete: false,
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
            PipelineMsg::Prepared(Ok(arenas)) => state.build(&me, arenas).await?,
            PipelineMsg::Prepared(Err(why)) => state.end(&me, PipelineEnd::NoDevice(why)).await,
            PipelineMsg::SourceFinished { source, complete } => {
                state.source_finished(&me, source, complete).await;
            }
            PipelineMsg::SourceFailed(why) => state.end(&me, PipelineEnd::SourceFailed(why)).await,
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
        self.infers.values().for_each(|node| node.pool.shut());
    }
}

impl PipelineState {
    /// ## Preparing
    /// Makes the memory of all infer stages, off the actor: touching every page of it takes a while.
    fn prepare(&self, me: &ActorRef<PipelineMsg>) {
        let plan = Arc::clone(&self.args.context.plan);
        let pipeline = self.args.pipeline;
        let me = me.clone();
        tokio::task::spawn_blocking(move || {
            let arenas = plan.pipelines[pipeline.index()].stages.iter().filter_map(|&stage| {
                let StageKind::Infer(infer) = &plan.stages[stage.index()].kind else { return None };
                let name = &plan.stages[stage.index()].name;
                let arena = Arena::create(name, infer.layout.clone()).map_err(|e| {
                    let mib = infer.layout.total_bytes() >> 20;
                    format!("cannot take {mib} MiB of shared memory for the batches of stage `{name}`: {e}; set `limits.memory` or a smaller `batch.max`")
                });
                Some(arena.map(|a| (stage, a)))
            });
            drop(me.cast(PipelineMsg::Prepared(arenas.collect())));
        });
    }

    /// ## Preparing => Running
    async fn build(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        arenas: Vec<(StageId, Arena)>,
    ) -> Result<(), ActorProcessingErr> {
        if self.over {
            return Ok(());
        }
        let sink_args = SinkArgs {
            context: Arc::clone(&self.args.context),
            pipeline: self.args.pipeline,
            topology: Arc::clone(&self.args.topology),
            committer: self.args.committer.clone(),
            parent: me.clone(),
            root: self.args.root.clone(),
        };
        let (sink, _) = Actor::spawn_linked(None, Sink, sink_args, me.get_cell()).await?;
        // Stages stand after what they read from; built backwards, each finds those behind it.
        for (stage, arena) in arenas.into_iter().rev() {
            self.build_infer(me, stage, arena, &sink).await?;
        }
        for source in self.running.clone() {
            self.build_source(me, source, &sink).await?;
        }
        if self.stop_asked {
            self.stop();
        }
        Ok(())
    }

    async fn build_infer(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        stage: StageId,
        arena: Arena,
        sink: &ActorRef<SinkMsg>,
    ) -> Result<(), ActorProcessingErr> {
        let topology = &self.args.topology;
        let behind = topology.children(stage).iter().filter_map(|c| self.infers.get(c).cloned()).collect();
        let context = &self.args.context;
        let post_args = PostArgs {
            context: Arc::clone(context),
            stage,
            topology: Arc::clone(topology),
            sink: sink.clone(),
            behind,
        };
        let (post, _) = PostProcessor::start(post_args, me.get_cell()).await?;
        let batcher_args = BatcherArgs {
            context: Arc::clone(context),
            stage,
            sinks: topology.n_sinks_below(stage),
            post,
            sink: sink.clone(),
            pipeline: me.clone(),
        };
        let (batcher, _) = Actor::spawn_linked(None, Batcher, batcher_args, me.get_cell()).await?;
        let tell = batcher.clone();
        let notify = move || {
            // A batcher that is gone takes the pipeline with it.
            drop(tell.cast(BatcherMsg::PoolChanged));
        };
        let StageKind::Infer(infer) = &context.plan.stages[stage.index()].kind else {
            return Err("memory was made for a stage that is no infer stage".into());
        };
        let (max_batch, held) = (infer.max_batch, infer.held_by_workers());
        let in_use = Arc::clone(&context.stats.stage(stage).slots_in_use);
        let pool = SlotPool::new(arena, context.clock, max_batch, held, in_use, Box::new(notify));
        batcher.cast(BatcherMsg::Attach(Arc::clone(&pool)))?;
        let node = Behind { stage, pool, batcher };
        self.ask_for_workers(&node);
        self.infers.insert(stage, node);
        Ok(())
    }

    fn ask_for_workers(&self, node: &Behind) {
        let context = &self.args.context;
        let plan = &context.plan;
        let stage = &plan.stages[node.stage.index()];
        let StageKind::Infer(infer) = &stage.kind else { return };
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
                pixel_inputs: plan.pixel_inputs(infer),
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
        let (images, infers, batchers) = self.targets(source);
        let listing = &self.args.listings[source.index()];
        let n_loaders = plan.loader_threads.div_ceil(plan.sources.len()).max(1);
        let window = plan.pipelines[self.args.pipeline.index()].window.max(1) as u64;
        let loaded = Arc::new(Counter::default());
        let source_args = SourceArgs {
            context: Arc::clone(context),
            source,
            listing: listing.path.clone(),
            finished: Arc::clone(&listing.finished),
            window,
            loaders: n_loaders as u64,
            to_do: listing.to_do,
            loaded: Arc::clone(&loaded),
            pipeline: me.clone(),
            batchers,
            committer: self.args.committer.clone(),
        };
        let (from, _) = Actor::spawn_linked(None, Source, source_args, me.get_cell()).await?;
        sink.cast(SinkMsg::Attach(source, from.clone()))?;
        self.sources.insert(source, from.clone());
        let work = Arc::new(LoaderWork {
            context: Arc::clone(context),
            source,
            from,
            sink: sink.clone(),
            n_sinks: self.args.topology.sinks_of_source(source).len(),
            images,
            infers,
            loaded,
        });
        for _ in 0..n_loaders {
            Actor::spawn_linked(None, Loader, Arc::clone(&work), me.get_cell()).await?;
        }
        Ok(())
    }

    /// What the loaders of a source feed: its image stages, and the infer stages that read from those.
    fn targets(&self, source: SourceId) -> (Vec<ImageTarget>, Vec<InferTarget>, Vec<ActorRef<BatcherMsg>>) {
        let plan = &self.args.context.plan;
        let topology = &self.args.topology;
        let images: Vec<ImageTarget> = plan.pipelines[self.args.pipeline.index()]
            .stages
            .iter()
            .filter_map(|&stage| match &plan.stages[stage.index()].kind {
                StageKind::Image { source: s, spec } if *s == source && topology.n_sinks_below(stage) > 0 => {
                    let sinks = topology.sinks_of(stage).to_vec();
                    Some(ImageTarget { stage, spec: spec.clone(), sinks })
                }
                _ => None,
            })
            .collect();
        let mut infers = Vec::new();
        let mut batchers = Vec::new();
        for (stage, infer) in self.infer_plans() {
            let inputs: Option<Vec<usize>> =
                infer.inputs.iter().map(|i| images.iter().position(|t| t.stage == i.stage)).collect();
            if let (Some(inputs), Some(node)) = (inputs, self.infers.get(&stage)) {
                let sinks = topology.n_sinks_below(stage);
                infers.push(InferTarget { stage, pool: Arc::clone(&node.pool), inputs, sinks });
                batchers.push(node.batcher.clone());
            }
        }
        (images, infers, batchers)
    }

    fn infer_plans(&self) -> impl Iterator<Item = (StageId, &InferPlan)> {
        let plan = &self.args.context.plan;
        plan.pipelines[self.args.pipeline.index()].stages.iter().filter_map(|&stage| {
            match &plan.stages[stage.index()].kind {
                StageKind::Infer(infer) => Some((stage, infer)),
                StageKind::Image { .. } | StageKind::Classify { .. } => None,
            }
        })
    }

    async fn source_finished(&mut self, me: &ActorRef<PipelineMsg>, source: SourceId, complete: bool) {
        self.running.remove(&source);
        self.incomplete |= !complete;
        if self.running.is_empty() {
            let end = if self.incomplete { PipelineEnd::Stopped } else { PipelineEnd::Complete };
            self.end(me, end).await;
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
        self.infers.values().for_each(|node| node.pool.shut()); // Wakes every thread that waits for a row.
        // Of those that were never built, too: others may wait for them on their device.
        for (stage, _) in self.infer_plans() {
            for device in &self.args.devices {
                drop(device.cast(DeviceMsg::Retire(stage)));
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
