//! Both ends of a flow in memory: its items are requests, and their ends are answers.

use std::sync::{Arc, Mutex};

use orchestra_core::lineage::Lineage;
use orchestra_core::{PipelineId, SourceId, StageId, locked};
use orchestra_store::Counts;
use ractor::ActorRef;

use super::waiting::Requests;
use crate::flow::chain::Chain;
use crate::flow::endpoints::{Endpoints, Intake};
use crate::flow::ends::{Ends, OnClosed, OnWritten};
use crate::flow::ticket::{Ticket, Tickets, TicketsBuilder};
use crate::messages::{EndedRows, PipelineEnd, PipelineMsg, SinkRecord, SourceMsg, TokenEnd};

pub struct RequestEndpoints(pub Arc<Requests>);

impl Endpoints for RequestEndpoints {
    fn intake(&self, _: SourceId) -> Box<dyn Intake> {
        Box::new(RequestIntake { requests: Arc::clone(&self.0), handed: 0 })
    }

    fn ends(&self, _: PipelineId, _: &ActorRef<PipelineMsg>) -> Arc<dyn Ends> {
        let state = ReplyEndsState { lineage: Lineage::new(false), source: None, is_closed: false };
        Arc::new(ReplyEnds { requests: Arc::clone(&self.0), state: Mutex::new(state) })
    }

    /// Those who wait ask again.
    fn recall(&self, _: PipelineId, then: Box<dyn FnOnce() + Send>) {
        then();
    }

    fn complete(&self, _: PipelineId, then: OnWritten) {
        then(Ok(()));
    }

    fn over(&self, _: PipelineId, end: &PipelineEnd) {
        match end {
            PipelineEnd::Bug(why) => self.0.over(&format!("internal error: {why}; please report it")),
            end => self.0.over(&end.to_string()),
        }
    }

    fn close(&self, _: Option<i32>, then: OnClosed) {
        then(Ok(Counts::default()), None);
    }
}

/// Gives requests in the order in which they came, one at a time, so that all loaders share them.
struct RequestIntake {
    requests: Arc<Requests>,
    handed: u64,
}

impl Intake for RequestIntake {
    /// Requests come as long as there is a flow.
    fn look(&mut self) -> Option<PipelineEnd> {
        None
    }

    fn left(&self) -> u64 {
        self.requests.n_queued() as u64
    }

    fn next(&mut self, _: usize) -> Result<Tickets, PipelineEnd> {
        Ok(match self.requests.next_queued() {
            Some(ticket) => {
                self.handed += 1;
                Tickets::of(&ticket)
            }
            None => TicketsBuilder::with_capacity(self.requests.source, self.handed, 0, false).build(),
        })
    }

    fn begin(&mut self, chain: &Arc<Chain>) {
        self.requests.attach(chain);
    }

    fn watch(&self, news: Box<dyn Fn() + Send + Sync>) {
        self.requests.watch(news);
    }
}

/// Answers those who asked.
struct ReplyEnds {
    requests: Arc<Requests>,
    state: Mutex<ReplyEndsState>,
}

struct ReplyEndsState {
    lineage: Lineage<Ticket, SinkRecord>,
    source: Option<ActorRef<SourceMsg>>,
    is_closed: bool,
}

impl Ends for ReplyEnds {
    fn attach(&self, _: SourceId, actor: ActorRef<SourceMsg>) {
        locked(&self.state).source = Some(actor);
    }

    fn ended(&self, EndedRows { whole, tokens, outputs }: EndedRows) {
        debug_assert!(whole.is_none(), "a block of records has no answers");
        // A thread that panicked in here has left no known state, and its pipeline is built anew.
        let Ok(mut state) = self.state.lock() else { return };
        if state.is_closed {
            return;
        }
        let mut finished = Vec::with_capacity(tokens.len());
        for TokenEnd { ticket, end } in tokens {
            let (id, sequence) = (ticket.id(), ticket.sequence());
            state.lineage.end(id, sequence, ticket, end, &mut finished);
        }
        // Under the lock: what is closed answers nothing.
        let handed = self.requests.finish(finished, outputs);
        if handed > 0
            && let Some(source) = &state.source
        {
            drop(source.cast(SourceMsg::Committed(handed))); // One that is gone has ended.
        }
    }

    fn serving(&self, stage: StageId) {
        self.requests.serving(stage);
    }

    fn close(&self) {
        let mut state = locked(&self.state);
        if !std::mem::replace(&mut state.is_closed, true) {
            self.requests.detach();
        }
    }
}
