//! Where the ends of items go: to the journal of a run, or back to those who asked. A trait alone: nothing here works on an item.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orchestra_core::{SourceId, StageId};
use orchestra_store::{Counts, OutputFolder};
use ractor::ActorRef;

use crate::messages::{EndedRows, PipelineEnd, SourceMsg};

/// Where the ends of the items of one pipeline go, whatever became of them on their way. All threads call it, and none of its methods waits.
pub trait Ends: Send + Sync {
    /// Before any item of this source can end.
    fn attach(&self, source: SourceId, actor: ActorRef<SourceMsg>);

    fn ended(&self, rows: EndedRows);

    /// A worker of this stage is ready.
    fn serving(&self, stage: StageId) {
        let _ = stage;
    }

    /// Whether ended items wait, so many that sources hand out no further ones.
    fn is_piled_up(&self) -> bool {
        false
    }

    /// Calls `then` once everything that has ended so far is written.
    fn when_written(&self, then: Box<dyn FnOnce() + Send>) {
        then();
    }

    /// The last items of a source are on their way: as long as what this gives lives, nothing waits for more to come.
    fn hurry(&self) -> Option<FinishingSource> {
        None
    }

    /// What ends from now on counts for nothing: the pipeline is over, and may be built anew.
    fn close(&self);
}

/// A source whose last items are on their way. The commits of others are as large as before once it has ended.
pub struct FinishingSource(Arc<AtomicUsize>);

impl FinishingSource {
    /// Counts among those that hurry as long as it lives.
    pub fn of(hurried: &Arc<AtomicUsize>) -> Self {
        hurried.fetch_add(1, Ordering::Release);
        Self(Arc::clone(hurried))
    }
}

impl Drop for FinishingSource {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Is told whether all is written that a pipeline leaves for its end, or what its end is instead.
pub type OnWritten = Box<dyn FnOnce(Result<(), PipelineEnd>) + Send>;

/// Is told what there is in all, and given the folder, which is still locked, where there is one.
pub type OnClosed = Box<dyn FnOnce(Result<Counts, String>, Option<OutputFolder>) + Send>;
