//! The plan of a workflow, as a trial carries it out. It changes where items come from and results go, and nothing that a run decides by.

use std::path::Path;

use orchestra_core::{SourceId, StageId};
use orchestra_plan::{Plan, StageKind};
use orchestra_source::ListingSpec;

/// The plan over other lists (in the order of its sources), into a folder of its own, and whatever fails, to the end.
#[must_use]
pub fn plan_for(plan: &Plan, listings: &[ListingSpec], output: &Path) -> Plan {
    let mut plan = plan.clone().without_growth();
    for sink in &mut plan.sinks {
        // The planner lets no sink write elsewhere than into the output folder.
        let inside = sink.path.strip_prefix(&plan.output).unwrap_or(&sink.path).to_owned();
        sink.path = output.join(inside);
    }
    for (source, listing) in plan.sources.iter_mut().zip(listings) {
        source.listing = listing.clone();
    }
    plan.output = output.to_owned();
    plan.limits.max_failed = None;
    plan
}

/// The source whose items reach a stage.
#[must_use]
pub fn source_of(plan: &Plan, stage: StageId) -> Option<SourceId> {
    match &plan.stages[stage.index()].kind {
        StageKind::Image { source, .. } => Some(*source),
        StageKind::Infer(infer) => source_of(plan, infer.inputs.first()?.stage),
        StageKind::Classify { from, .. } => source_of(plan, *from),
    }
}
