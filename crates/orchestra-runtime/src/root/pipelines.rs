//! The pipelines of a run, as the root sees them: started once those that make their items are complete, built anew where they fell over, and ended.

use std::sync::Arc;

use orchestra_core::PipelineId;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::RootState;
use crate::messages::{PipelineEnd, RootMsg};
use crate::pipeline::{Pipeline, PipelineArgs};
use crate::tasks::actor::TasksMsg;

const MOST_REBUILDS: u32 = 3;

impl RootState {
    /// Those that this run has, in an order in which each stands behind those that it waits for.
    pub(super) fn all_pipelines(&self) -> impl Iterator<Item = PipelineId> + use<> {
        let n = if self.context.options.tasks_only { 0 } else { self.context.plan.pipelines.len() };
        (0..n as u16).map(PipelineId)
    }

    /// ## Waiting => (Running | over)
    /// Starts pipelines once those that make their items are complete; where one of these is not, they are over.
    pub(super) async fn start_pipelines(&mut self, me: &ActorRef<RootMsg>) -> Result<(), ActorProcessingErr> {
        let plan = Arc::clone(&self.context.plan);
        for id in self.all_pipelines() {
            if self.pipelines.contains_key(&id) || self.ended.contains_key(&id) {
                continue;
            }
            let ends = plan.pipelines[id.index()].after.iter().map(|before| self.ended.get(before));
            let Some(ends) = ends.collect::<Option<Vec<_>>>() else { continue };
            match ends.iter().all(|end| **end == PipelineEnd::Complete) {
                true if self.stopping => self.record_end(id, PipelineEnd::Stopped),
                true => self.start_pipeline(me, id).await?,
                false => self.record_end(id, PipelineEnd::NotStarted),
            }
        }
        Ok(())
    }

    async fn start_pipeline(
        &mut self,
        me: &ActorRef<RootMsg>,
        id: PipelineId,
    ) -> Result<(), ActorProcessingErr> {
        let args = PipelineArgs {
            context: Arc::clone(&self.context),
            pipeline: id,
            endpoints: Arc::clone(&self.endpoints),
            devices: self.devices.clone(),
            root: me.clone(),
        };
        let (pipeline, _) = Actor::spawn_linked(None, Pipeline, args, me.get_cell()).await?;
        self.pipelines.insert(id, pipeline);
        Ok(())
    }

    /// A pipeline that fell over a bug of ours is built anew from the journal, a few times: what was in flight is done again, what is
    /// committed is not.
    pub(super) fn pipeline_ended(&mut self, me: &ActorRef<RootMsg>, pipeline: PipelineId, end: PipelineEnd) {
        let rebuilds = self.rebuilds.entry(pipeline).or_default();
        if matches!(end, PipelineEnd::Bug(_)) && !self.stopping && *rebuilds < MOST_REBUILDS {
            *rebuilds += 1;
            let me = me.clone();
            self.endpoints.recall(pipeline, Box::new(move || drop(me.cast(RootMsg::Rebuild(pipeline)))));
            return;
        }
        if end != PipelineEnd::Complete {
            self.record_end(pipeline, end);
            return;
        }
        // Commands that come after its sinks find all records there, those of its end included.
        self.writing.insert(pipeline);
        self.end_devices_without_pipelines();
        let me = me.clone();
        let written = move |written| {
            drop(me.cast(RootMsg::PipelineWritten(pipeline, written))); // A root that is gone has ended.
        };
        self.endpoints.complete(pipeline, Box::new(written));
    }

    pub(super) async fn rebuild(
        &mut self,
        me: &ActorRef<RootMsg>,
        pipeline: PipelineId,
    ) -> Result<(), ActorProcessingErr> {
        self.context.stats.fell_over(pipeline);
        if self.stopping {
            self.record_end(pipeline, PipelineEnd::Stopped);
            return Ok(());
        }
        tracing::warn!(pipeline = %self.context.plan.pipelines[pipeline.index()].name, "pipeline is built anew");
        self.start_pipeline(me, pipeline).await
    }

    pub(super) fn record_end(&mut self, pipeline: PipelineId, mut end: PipelineEnd) {
        if end == PipelineEnd::Stopped
            && let Some(reached) = self.over_their_limits.get(&pipeline)
        {
            end = PipelineEnd::TooManyFailed(reached.clone());
        }
        if end == PipelineEnd::Stopped
            && let Some(bug) = &self.bug
        {
            end = bug.clone();
        }
        self.context.stats.pipelines_ended.set_time(self.context.clock.now());
        self.endpoints.over(pipeline, &end);
        self.tell_tasks(TasksMsg::PipelineEnded(pipeline, end.clone()));
        self.ended.entry(pipeline).or_insert(end);
        self.end_devices_without_pipelines();
    }
}
