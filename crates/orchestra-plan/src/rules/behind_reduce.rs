//! Stages may read a reduce: its rows, which are there when all items have ended, are the items of a source that is called as the reduce. So what
//! stands behind it is a pipeline of its own, which starts when that of the reduce is complete.

use std::sync::Arc;

use orchestra_core::{PipelineId, SourceId, StageId};
use orchestra_store::{ListingSpec, MadeRows};
use serde_json::json;

use crate::plan::{ColumnRef, Origin, SourcePlan};
use crate::workflow::{Link, SourceNode, StageNode, WorkflowTables};

/// Adds a source for each reduce that a stage reads, and has all that reads it read that source; but sinks that read nothing else get its rows directly.
pub(crate) fn split(workflow: &mut WorkflowTables) {
    for stage in (0..workflow.n_stages as u16).map(StageId) {
        let Some(plan) = source_plan(&workflow.stages[stage.index()], stage) else { continue };
        let reduce = Origin::Stage(stage);
        let is_read = |reader: &StageNode| reader.links.iter().flatten().any(|link| link.target == reduce);
        if !workflow.stages[..workflow.n_stages].iter().any(is_read) {
            continue;
        }
        let name = workflow.stages[stage.index()].name.clone();
        let source = Origin::Source(SourceId(workflow.n_sources as u16)); // tables are no more than ids
        // In front of sources that nothing uses.
        workflow
            .sources
            .insert(workflow.n_sources, SourceNode { name, plan: Some(plan), ..SourceNode::default() });
        workflow.n_sources += 1;
        read_instead(workflow, reduce, source);
    }
}

/// Per used stage how many reduces, one behind the other, end before it starts.
pub(crate) fn n_before(workflow: &WorkflowTables) -> Vec<usize> {
    let mut n_before: Vec<usize> = Vec::with_capacity(workflow.n_stages);
    for node in &workflow.stages[..workflow.n_stages] {
        // One on a cycle, which is an error, stands behind those that are used.
        let of = |stage: StageId| n_before.get(stage.index()).copied().unwrap_or(0);
        let of_link = |link: &Link| match link.target {
            Origin::Stage(before) => of(before),
            Origin::Source(source) => {
                let plan = workflow.sources[source.index()].plan.as_ref();
                plan.and_then(|plan| plan.reduced).map_or(0, |reduce| 1 + of(reduce))
            }
        };
        let most = node.links.iter().flatten().map(of_link).max();
        n_before.push(most.unwrap_or(0));
    }
    n_before
}

/// The source of the rows of a stage, if that is a reduce.
fn source_plan(node: &StageNode, stage: StageId) -> Option<SourcePlan> {
    let plan = node.plan().filter(|plan| plan.reduce().is_some())?;
    Some(SourcePlan {
        name: plan.name.clone(),
        pipeline: PipelineId(0),
        kind: plan.kind.clone(),
        listing: ListingSpec::Generated,
        expand: None,
        lister: None,
        reduced: Some(stage),
        // A run that goes on with new items has the result of all of them as one more row.
        names_repeat: true,
        n_items: None,
        request: None,
        gives: plan.gives.clone(),
        fetch: Arc::new(MadeRows),
        sandbox_read: Vec::new(),
        settings: json!({ "rows_of": plan.name }),
        decoders: None,
    })
}

fn read_instead(workflow: &mut WorkflowTables, reduce: Origin, source: Origin) {
    let origin = |from: &mut Origin| {
        if *from == reduce {
            *from = source;
        }
    };
    let links =
        |links: &mut Vec<Option<Link>>| links.iter_mut().flatten().for_each(|link| origin(&mut link.target));
    let column = |read: &mut ColumnRef| origin(&mut read.from);
    for node in &mut workflow.stages {
        links(&mut node.links);
        node.reads_mut().for_each(column);
        if let Some(connected) = &mut node.connected {
            connected.plan.from.iter_mut().for_each(origin);
        }
    }
    for node in &mut workflow.sinks {
        if node.links.iter().flatten().all(|link| link.target == reduce) {
            continue;
        }
        links(&mut node.links);
        if let Some(plan) = &mut node.plan {
            plan.from.iter_mut().for_each(origin);
            plan.reads.iter_mut().for_each(column);
        }
    }
}
