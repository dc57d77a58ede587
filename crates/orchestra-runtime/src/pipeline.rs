//! Pipeline: one connected graph. Builds its actors from the plan, wires them, and knows when it is over. It moves no item itself.
//!
//! ```text
//! Preparing => Running => (Complete | Stopped | NoDevice | Unusable | Doubted | SinkFailed | NotListed | SourceFailed | Bug)
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use orchestra_core::{PipelineId, SourceId, StageId};
use orchestra_plan::{FoldPlan, Origin, PipelinePlan, Plan, Shape};
use orchestra_worker::arena::Arena;
use orchestra_worker::frames::RunErrorKind;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::actor_threads::waiting_threads;
use crate::batch::stage::{BatchStage, arena_of, refused};
use crate::context::RunContext;
use crate::flow::carried::CarriedArena;
use crate::flow::chain::{BatchTarget, Chain, ChainTargets, kept_pictures};
use crate::flow::endpoints::Endpoints;
use crate::flow::ends::Ends;
use crate::flow::fold::{FoldArgs, FoldInput, FoldStage};
use crate::flow::fold_target::FoldTarget;
use crate::flow::processor::Processor;
use crate::flow::source::{Source, SourceArgs};
use crate::flow::value_room::ValueRoom;
use crate::messages::{DeviceMsg, PipelineEnd, PipelineMemory, PipelineMsg, RootMsg, SourceMsg};
use crate::panics::run_blocking;

pub struct Pipeline;

#[derive(Clone)]
pub struct PipelineArgs {
    pub context: Arc<RunContext>,
    pub pipeline: PipelineId,
    pub endpoints: Arc<dyn Endpoints>,
    pub devices: Vec<ActorRef<DeviceMsg>>,
    pub root: ActorRef<RootMsg>,
}

pub struct PipelineState {
    args: PipelineArgs,
    name: String,
    ends: Arc<dyn Ends>,
    targets: ChainTargets,
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
        let state = PipelineState {
            name: plan.name.clone(),
            ends: args.endpoints.ends(args.pipeline, &me),
            targets: ChainTargets::default(),
            sources: HashMap::new(),
            running: plan.sources.iter().copied().collect(),
            sources_end: PipelineEnd::Complete,
            stop_asked: false,
            over: false,
            args,
        };
        state.prepare(&me);
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<PipelineMsg>,
        message: PipelineMsg,
        state: &mut PipelineState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PipelineMsg::Prepared(Ok(memory)) => state.build(&me, memory).await?,
            PipelineMsg::Prepared(Err(why)) => state.end(&me, PipelineEnd::NoDevice(why)).await,
            PipelineMsg::SourceFinished { source, end } => state.source_finished(&me, source, end).await,
            PipelineMsg::NoDevice(why) => state.end(&me, PipelineEnd::NoDevice(why)).await,
            PipelineMsg::Unusable(why, RunErrorKind::Mixed) => {
                state.end(&me, PipelineEnd::Doubted(why)).await;
            }
            PipelineMsg::Unusable(why, _) => state.end(&me, PipelineEnd::Unusable(why)).await,
            PipelineMsg::SourceFailed(why) => state.end(&me, PipelineEnd::SourceFailed(why)).await,
            PipelineMsg::Bug(error) => state.fell_over(&me, error).await,
            PipelineMsg::SinkFailed(why) => state.end(&me, PipelineEnd::SinkFailed(why)).await,
            PipelineMsg::LimitReached(reached) => {
                drop(state.args.root.cast(RootMsg::FailureLimit(reached))); // A root that is gone has ended.
            }
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
            state.fell_over(&me, format!("{name}: {error}")).await;
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
        run_blocking(&waiting_threads(), &me.clone(), "preparing memory", move || {
            drop(me.cast(PipelineMsg::Prepared(memory_of(&plan, &plan.pipelines[pipeline.index()]))));
        });
    }

    /// ## Preparing => Running
    async fn build(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        memory: PipelineMemory,
    ) -> Result<(), ActorProcessingErr> {
        if self.over {
            return Ok(());
        }
        // Stages stand after what they read from; built backwards, each finds those that follow it.
        let plan = Arc::clone(&self.args.context.plan);
        let pipeline = &plan.pipelines[self.args.pipeline.index()];
        let PipelineMemory { mut slots, pictures } = memory;
        self.targets.pictures = pictures;
        for &stage in pipeline.stages.iter().rev() {
            match &plan.stages[stage.index()].runs {
                // No actor reduces: the committer has what is committed.
                Shape::Map(_) | Shape::Fold(FoldPlan::Reduce(_)) => {}
                Shape::Batch(_) => {
                    let own = slots.pop_if(|(of, _)| *of == stage).map(|(_, arena)| arena);
                    let own = own.ok_or("memory was made for other stages than those of the plan")?;
                    self.build_batch(me, stage, own).await?;
                }
                Shape::Fold(FoldPlan::Parts(fold)) => {
                    self.build_fold(me, stage, FoldInput::Parts(Arc::clone(fold)));
                }
                Shape::Fold(FoldPlan::Join { ways }) => {
                    self.build_fold(me, stage, FoldInput::Join(ways.clone()));
                }
            }
        }
        for source in self.running.clone() {
            self.build_source(me, source).await?;
        }
        if self.stop_asked {
            self.stop();
        }
        Ok(())
    }

    fn build_fold(&mut self, me: &ActorRef<PipelineMsg>, stage: StageId, of: FoldInput) {
        let context = &self.args.context;
        let chain = Chain::new(context, &self.ends, Origin::Stage(stage), &self.targets);
        let downstream = Arc::from(chain.folds());
        let may_wait = chain.may_wait();
        let args = FoldArgs { context: Arc::clone(context), stage, of, chain, pipeline: me.clone() };
        let fold = Arc::new(FoldStage::new(args));
        self.targets.folds.push(FoldTarget { stage, fold, way: None, downstream, may_wait });
    }

    async fn build_batch(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        stage: StageId,
        arena: Arena,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.args.context;
        let chain = Chain::new(context, &self.ends, Origin::Stage(stage), &self.targets);
        let folds = Arc::from(chain.folds());
        let completion = Arc::new(Processor::new(stage, chain, me.clone()));
        let devices = &self.args.devices;
        let (BatchStage { pool, batcher }, _) =
            BatchStage::start(context, stage, arena, completion, devices, me.get_cell()).await?;
        let plan = context.plan.stages[stage.index()].batch();
        let carried = ValueRoom::new(plan.map_or(0, |batch| batch.carried_bytes));
        self.targets.batches.push(BatchTarget { stage, pool, carried, batcher, folds });
        Ok(())
    }

    async fn build_source(
        &mut self,
        me: &ActorRef<PipelineMsg>,
        source: SourceId,
    ) -> Result<(), ActorProcessingErr> {
        let context = &self.args.context;
        let plan = &context.plan;
        let args = SourceArgs {
            context: Arc::clone(context),
            source,
            intake: self.args.endpoints.intake(source),
            window: plan.pipelines[self.args.pipeline.index()].window.max(1) as u64,
            loaders: plan.pipelines[self.args.pipeline.index()].loaders.max(1),
            pipeline: me.clone(),
            chain: Arc::new(Chain::new(context, &self.ends, Origin::Source(source), &self.targets)),
        };
        let (actor, _) = Actor::spawn_linked(None, Source, args, me.get_cell()).await?;
        self.sources.insert(source, actor);
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
        if let Some(reached) = self.args.context.too_many_failed(self.args.pipeline) {
            // The last item that a growing source named may have been committed before the number of all was known.
            drop(self.args.root.cast(RootMsg::FailureLimit(reached)));
        }
        if self.running.is_empty() {
            self.end(me, self.sources_end.clone()).await;
        }
    }

    async fn fell_over(&mut self, me: &ActorRef<PipelineMsg>, error: String) {
        tracing::error!(pipeline = %self.name, %error, "a part of the pipeline failed; this is a bug");
        self.end(me, PipelineEnd::Bug(error)).await;
    }

    /// Takes no further end of an item, and wakes every thread that waits for a row or for room.
    fn shut(&self) {
        // Nothing of this pipeline ends once the root hears that it is over: it may build it anew.
        self.ends.close();
        self.targets.batches.iter().for_each(|target| {
            target.pool.shut();
            target.carried.shut();
        });
        self.targets.pictures.iter().for_each(|(_, room)| room.shut());
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
        me.stop_children_and_wait(None, None).await;
        drop(self.args.root.cast(RootMsg::PipelineEnded(self.args.pipeline, end)));
        me.stop(None);
    }
}

/// The slots of the batch stages, and room for the pictures that are made behind a source, a batch or a fold, in equal parts.
fn memory_of(plan: &Plan, pipeline: &PipelinePlan) -> Result<PipelineMemory, String> {
    let stages = pipeline.stages.iter().map(|stage| (*stage, &plan.stages[stage.index()]));
    let slots = stages.filter_map(|(id, stage)| {
        let batch = stage.batch()?;
        Some(arena_of(&stage.name, batch).map(|arena| (id, arena)))
    });
    let slots = slots.collect::<Result<_, String>>()?;
    let origins = pipeline.sources.iter().copied().map(Origin::Source);
    let origins = origins.chain(pipeline.stages.iter().copied().map(Origin::Stage));
    let keepers: Vec<Origin> = origins.filter(|origin| !kept_pictures(plan, *origin).is_empty()).collect();
    let share = usize::try_from(pipeline.carried_bytes).unwrap_or(usize::MAX) / keepers.len().max(1);
    let arena = |origin| {
        let arena = CarriedArena::new(share)
            .map_err(|error| refused("pictures", share, plan.name_of(origin), &error))?;
        Ok((origin, arena))
    };
    Ok(PipelineMemory { slots, pictures: keepers.into_iter().map(arena).collect::<Result<_, String>>()? })
}
