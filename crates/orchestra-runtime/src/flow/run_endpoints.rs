//! Both ends of a run: the lists of its sources, and its journal.

use std::sync::{Arc, Mutex};

use orchestra_core::{PipelineId, SourceId, StageId, locked};
use orchestra_plan::Plan;
use ractor::ActorRef;

use super::catalog_intake::CatalogIntake;
use super::committer::CommitterHandle;
use super::endpoints::{Endpoints, Intake};
use super::ends::{Ends, OnClosed, OnWritten};
use super::journal_ends::JournalEnds;
use super::listing::{Listing, list_made};
use crate::context::RunContext;
use crate::doubt::doubt;
use crate::messages::{PipelineEnd, PipelineMsg};

pub struct RunEndpoints {
    context: Arc<RunContext>,
    committer: CommitterHandle,
    /// In the order of the plan.
    listings: Arc<Mutex<Vec<Listing>>>,
}

impl RunEndpoints {
    pub fn new(context: &Arc<RunContext>, committer: CommitterHandle, listings: Vec<Listing>) -> Self {
        Self { context: Arc::clone(context), committer, listings: Arc::new(Mutex::new(listings)) }
    }
}

impl Endpoints for RunEndpoints {
    fn intake(&self, source: SourceId) -> Box<dyn Intake> {
        let listings = locked(&self.listings);
        Box::new(CatalogIntake::new(&self.context, source, listings[source.index()].clone()))
    }

    fn ends(&self, pipeline: PipelineId, parent: &ActorRef<PipelineMsg>) -> Arc<dyn Ends> {
        JournalEnds::new(&self.context, pipeline, &self.committer, parent)
    }

    fn recall(&self, _: PipelineId, then: Box<dyn FnOnce() + Send>) {
        let listings = Arc::clone(&self.listings);
        self.committer.finished(move |finished| {
            let mut listings = locked(&listings);
            listings.iter_mut().zip(finished).for_each(|(listing, items)| listing.finished = items);
            drop(listings);
            then();
        });
    }

    fn complete(&self, pipeline: PipelineId, then: OnWritten) {
        let (context, listings) = (Arc::clone(&self.context), Arc::clone(&self.listings));
        self.committer.end_pipeline(pipeline, move |written| {
            then(written.and_then(|()| list_made_by(&context.plan, pipeline, &locked(&listings))));
        });
    }

    fn over(&self, _: PipelineId, end: &PipelineEnd) {
        if let PipelineEnd::Doubted(why) = end {
            doubt(&self.context.plan.output, why);
        }
    }

    fn close(&self, code: Option<i32>, then: OnClosed) {
        self.committer.close(code, then);
    }
}

/// Lists the items that the stages of a pipeline have made, which is complete.
fn list_made_by(plan: &Plan, pipeline: PipelineId, listings: &[Listing]) -> Result<(), PipelineEnd> {
    let is_made = |stage: StageId| plan.stages[stage.index()].pipeline == pipeline;
    let made = plan.sources.iter().zip(listings).filter(|(source, _)| source.reduced.is_some_and(is_made));
    for (source, Listing { catalog, .. }) in made.filter(|(_, listing)| !listing.is_listed()) {
        list_made(plan, source, catalog).map_err(|error| {
            PipelineEnd::SourceFailed(format!(
                "the rows of stage `{}` cannot be listed: {error}",
                source.name
            ))
        })?;
    }
    Ok(())
}
