//! Loader: keeps one decoding thread in work and watches it. Items whose file or picture hangs are failed by name and their thread is
//! replaced. It never decodes anything itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::FailureKind;
use orchestra_core::data::Refusal;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::flow::chain::Outcome;
use crate::flow::loader_inbox::{Abandoned, Inbox};
use crate::flow::loader_thread::{self, LoaderWork};
use crate::flow::ticket::Ticket;
use crate::flow::token::Token;
use crate::messages::{LoaderMsg, SourceMsg};
use crate::trace::timeline::Loading;

const TICK: Duration = Duration::from_secs(1);

pub struct Loader;

pub struct LoaderState {
    work: Arc<LoaderWork>,
    inbox: Arc<Inbox>,
}

impl Actor for Loader {
    type Msg = LoaderMsg;
    type State = LoaderState;
    type Arguments = Arc<LoaderWork>;

    async fn pre_start(
        &self,
        me: ActorRef<LoaderMsg>,
        work: Arc<LoaderWork>,
    ) -> Result<LoaderState, ActorProcessingErr> {
        let inbox = loader_thread::start(&work, me.clone(), VecDeque::new())?;
        me.send_interval(TICK, || LoaderMsg::Tick);
        Ok(LoaderState { work, inbox })
    }

    async fn handle(
        &self,
        me: ActorRef<LoaderMsg>,
        message: LoaderMsg,
        state: &mut LoaderState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LoaderMsg::Work(items) => state.inbox.push(items),
            LoaderMsg::Tick => {
                let limit = state.work.context.plan.limits.item_timeout;
                if let Some(Abandoned { stuck, since, rest, tally }) = state.inbox.abandon_if_stuck(limit) {
                    tally.book(&state.work);
                    state.inbox = loader_thread::start(&state.work, me, rest)?;
                    if let Some(timeline) = stuck.timeline() {
                        let clock = state.work.context.clock;
                        let (began, decoded) = (clock.at(since), clock.now());
                        timeline.loaded(Loading { began, read: None, decoded });
                    }
                    state.fail(stuck, limit);
                }
            }
        }
        Ok(())
    }
}

impl LoaderState {
    fn fail(&self, ticket: Ticket, limit: Duration) {
        let error =
            format!("reading and decoding took longer than limits.item_timeout ({} s)", limit.as_secs_f64());
        tracing::warn!(item = %ticket.name(), %error, "item given up, its thread is replaced");
        let chain = &self.work.chain;
        let stage = chain.first_stage();
        self.work.context.stats.stage(stage).entered.add(1);
        let mut out = Outcome::default();
        chain.fail(&Token::whole(ticket), stage, Refusal { kind: FailureKind::Timeout, error }, &mut out);
        chain.send(&mut out);
        self.work.loaded.add(1);
        drop(self.work.from.cast(SourceMsg::LoadersProgressed));
    }
}

impl Drop for LoaderState {
    fn drop(&mut self) {
        self.inbox.close();
    }
}
