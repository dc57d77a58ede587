//! Both ends of a run: what gives its items, and where their ends go. A run has a catalog and a journal, a flow in memory has those who ask. Traits
//! alone.

use std::sync::Arc;

use orchestra_core::{PipelineId, SourceId};
use ractor::ActorRef;

use super::chain::Chain;
use super::ends::{Ends, OnClosed, OnWritten};
use super::ticket::Tickets;
use crate::messages::{PipelineEnd, PipelineMsg};

/// Where the items of a source come from. Only its source asks, and it never waits for the answer.
pub trait Intake: Send {
    /// Looks at what has come since. `Some`: no item will come any more, for this reason; those that [`Intake::left`] counts are handed out all
    /// the same if it is `Complete`.
    fn look(&mut self) -> Option<PipelineEnd>;

    /// Items that can be handed out now, as of the last look.
    fn left(&self) -> u64;

    /// Up to `most` items, and none where no further one is there yet.
    fn next(&mut self, most: usize) -> Result<Tickets, PipelineEnd>;

    /// Before it is asked for the first item: this chain takes all of them.
    fn begin(&mut self, chain: &Arc<Chain>) {
        let _ = chain;
    }

    /// Has `news` called when there may be something new to look at.
    fn watch(&self, news: Box<dyn Fn() + Send + Sync>);
}

/// Both ends of all pipelines of a run.
pub trait Endpoints: Send + Sync {
    fn intake(&self, source: SourceId) -> Box<dyn Intake>;

    fn ends(&self, pipeline: PipelineId, parent: &ActorRef<PipelineMsg>) -> Arc<dyn Ends>;

    /// A pipeline fell over: calls `then` when the next [`Endpoints::intake`] of its sources will give all that has no end.
    fn recall(&self, pipeline: PipelineId, then: Box<dyn FnOnce() + Send>);

    /// All items of a pipeline have ended: writes what it leaves for its end.
    fn complete(&self, pipeline: PipelineId, then: OnWritten);

    /// A pipeline is over and will not be built anew.
    fn over(&self, pipeline: PipelineId, end: &PipelineEnd) {
        let _ = (pipeline, end);
    }

    /// All pipelines are over. With a code the run is complete.
    fn close(&self, code: Option<i32>, then: OnClosed);
}
