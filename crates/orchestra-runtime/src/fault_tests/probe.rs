//! What stands where a run has its root, its pipeline and the ends of its items: it notes what it is told, and answers nothing.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use orchestra_core::SourceId;
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorProcessingErr, ActorRef, Message, SupervisionEvent};
use tokio::sync::Notify;

use super::account::Account;
use crate::flow::ends::Ends;
use crate::messages::{EndedRows, SourceMsg};

/// Where probes note things, and who is woken by it.
#[derive(Clone)]
pub struct Watcher {
    pub account: Arc<Mutex<Account>>,
    /// Told after each note.
    pub wake: Vec<Arc<Notify>>,
}

impl Watcher {
    fn note<M>(&self, note: fn(&mut Account, M), what: M) {
        note(&mut self.account.lock().unwrap(), what);
        self.wake.iter().for_each(|w| w.notify_one());
    }
}

impl Ends for Watcher {
    fn attach(&self, _: SourceId, _: ActorRef<SourceMsg>) {}

    fn ended(&self, rows: EndedRows) {
        self.note(Account::ends, rows);
    }

    fn close(&self) {}
}

/// A probe for one kind of message.
pub struct Probe<M>(PhantomData<fn(M)>);

impl<M: Message> Probe<M> {
    /// Starts one; `note` is what it does with a message.
    pub async fn spawn(watcher: Watcher, note: fn(&mut Account, M)) -> (ActorRef<M>, JoinHandle<()>) {
        Actor::spawn(None, Probe(PhantomData), (watcher, note)).await.unwrap()
    }
}

impl<M: Message> Actor for Probe<M> {
    type Msg = M;
    type State = (Watcher, fn(&mut Account, M));
    type Arguments = Self::State;

    async fn pre_start(
        &self,
        _: ActorRef<M>,
        args: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(args)
    }

    async fn handle(
        &self,
        _: ActorRef<M>,
        message: M,
        (watcher, note): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        watcher.note(*note, message);
        Ok(())
    }

    /// The actors of the run stop when they are told to; one that fails is what these tests look for.
    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<M>,
        event: SupervisionEvent,
        (watcher, _): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(_, error) = event {
            watcher.note(|account, why| account.problems.push(why), format!("an actor failed: {error}"));
        }
        Ok(())
    }
}
