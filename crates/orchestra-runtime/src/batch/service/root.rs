//! The root actor of a service, and what its batcher reports.

use std::collections::BTreeSet;
use std::sync::Arc;

use orchestra_core::{DeviceId, Failure, FailureKind, StageId};
use orchestra_worker::arena::Arena;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use super::answers::Answers;
use crate::batch::completion::Completion;
use crate::batch::slot_pool::SlotPool;
use crate::batch::stage::BatchStage;
use crate::context::RunContext;
use crate::fleet::device_manager::DeviceManager;
use crate::flow::token::Token;
use crate::messages::{CompletedBatch, DeviceMsg};

pub enum ServiceMsg {
    End(String),
    /// A device manager has no process left and stopped.
    DeviceEnded(DeviceId),
}

/// The root of a service: supervises its actors, and ends them together.
pub struct Root;

pub struct RootArgs {
    pub context: Arc<RunContext>,
    pub stage: StageId,
    pub arena: Arena,
    pub answers: Arc<Answers>,
    pub built: oneshot::Sender<Arc<SlotPool>>,
}

pub struct RootState {
    answers: Arc<Answers>,
    stage: BatchStage,
    devices: Vec<ActorRef<DeviceMsg>>,
    devices_left: BTreeSet<DeviceId>,
    ended: bool,
}

impl Actor for Root {
    type Msg = ServiceMsg;
    type State = RootState;
    type Arguments = RootArgs;

    async fn pre_start(
        &self,
        me: ActorRef<ServiceMsg>,
        args: RootArgs,
    ) -> Result<RootState, ActorProcessingErr> {
        let RootArgs { context, stage, arena, answers, built } = args;
        let tell = me.clone();
        let ended = move |device| drop(tell.cast(ServiceMsg::DeviceEnded(device)));
        let devices = DeviceManager::start_all(&context, &me.get_cell(), &BTreeSet::new(), ended).await?;
        let devices: Vec<ActorRef<DeviceMsg>> = devices.into_iter().map(|(device, _)| device).collect();
        let completion = Arc::new(ServiceCompletion { answers: Arc::clone(&answers), root: me.clone() });
        let (stage, _) =
            BatchStage::start(&context, stage, arena, completion, &devices, me.get_cell()).await?;
        drop(built.send(Arc::clone(&stage.pool))); // `Service::start` was dropped.
        let devices_left = (0..devices.len()).map(|i| DeviceId(i as u16)).collect();
        Ok(RootState { answers, stage, devices, devices_left, ended: false })
    }

    async fn handle(
        &self,
        me: ActorRef<ServiceMsg>,
        message: ServiceMsg,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ServiceMsg::End(why) => state.end(&why),
            ServiceMsg::DeviceEnded(device) => drop(state.devices_left.remove(&device)),
        }
        state.stop_if_empty(&me);
        Ok(())
    }

    /// A failed actor is a bug of ours. The workers of a failed device manager are killed when its state is dropped.
    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<ServiceMsg>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(who, error) = event {
            tracing::error!(stage = %state.answers.stage, %error, "an actor failed; this is a bug");
            if let Some(index) = state.devices.iter().position(|device| device.get_id() == who.get_id()) {
                state.devices_left.remove(&DeviceId(index as u16));
            }
            state.end(&format!("internal error: {error}; please report it"));
            state.stop_if_empty(&me);
        }
        Ok(())
    }
}

impl RootState {
    fn end(&mut self, why: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        tracing::info!(stage = %self.answers.stage, why, "service ends");
        self.answers.end(why);
        self.stage.pool.shut();
        for device in &self.devices {
            drop(device.cast(DeviceMsg::Shutdown { now: true }));
        }
        self.stage.batcher.stop(None);
    }

    fn stop_if_empty(&self, me: &ActorRef<ServiceMsg>) {
        if self.ended && self.devices_left.is_empty() {
            me.stop(None);
        }
    }
}

/// Also when the runtime of the host is dropped: no request waits for ever.
impl Drop for RootState {
    fn drop(&mut self) {
        self.answers.end("its actors are gone");
        self.stage.pool.shut();
    }
}

struct ServiceCompletion {
    answers: Arc<Answers>,
    root: ActorRef<ServiceMsg>,
}

impl Completion for ServiceCompletion {
    fn serving(&self) {
        self.answers.serving();
    }

    fn completed(&self, batch: CompletedBatch) {
        let outputs = batch.outputs(&self.answers.columns);
        for at in 0..batch.rows.count {
            let Some(token) = batch.slot.tokens.get(batch.rows.first + at).and_then(Option::as_ref) else {
                continue;
            };
            self.answers.answer(token, || match &outputs {
                Ok(outputs) => Ok(outputs.iter().map(|rows| rows.copy_of(at)).collect()),
                Err(error) => Err(Failure {
                    stage: self.answers.stage.clone(),
                    kind: FailureKind::Result,
                    error: error.clone(),
                    attempts: 1,
                }),
            });
        }
    }

    fn failed(&self, token: &Token, failure: Failure) {
        self.answers.answer(token, || Err(failure));
    }

    fn drained(&self) {}

    fn unusable(&self, why: String) {
        drop(self.root.cast(ServiceMsg::End(why)));
    }

    fn no_device(&self, why: String) {
        drop(self.root.cast(ServiceMsg::End(why)));
    }
}
