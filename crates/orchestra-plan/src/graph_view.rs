//! The topology of a plan as nodes and edges: what `orchestra graph` draws. It knows what is connected and what flows;
//! `mermaid` writes it down.

use std::path::Path;

use orchestra_core::data::Schema;
use orchestra_core::{StageId, TensorSpec};
use orchestra_store::ListingSpec;
use serde::{Deserialize, Serialize};

use crate::plan::{ColumnRef, Origin, PipelinePlan, Plan, Shape, SinkPlan, StagePlan};

mod mermaid;
mod text;

/// A workflow as a picture shows it: data only.
///
/// Made of the plan alone, so a plan that was made `offline` gives the same view on every machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphView {
    pub name: String,
    /// The connected graphs of the file.
    pub pipelines: Vec<PipelineView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineView {
    /// The name of its first source.
    pub name: String,
    /// Sources, then stages, then sinks; each behind everything that it reads from.
    pub nodes: Vec<GraphNode>,
    /// At most one from one node to another.
    pub edges: Vec<Edge>,
}

/// A source, a stage or a sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphNode {
    pub shape: NodeKind,
    /// The word for it: `kind` of a stage, `source` or `sink`.
    pub kind: String,
    pub name: String,
    /// Its settings in a few words, one line each.
    pub details: Vec<String>,
    /// Where it runs: names of devices, or `auto`. Empty unless it runs a model.
    pub devices: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// `[sources.*]`
    Source,
    /// A stage that works on rows in the thread that made them.
    Map,
    /// A stage that runs a model.
    Batch,
    /// A stage that makes one row of many.
    Fold,
    /// `[sinks.*]`
    Sink,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// The giver, by its place in `nodes`.
    pub from: usize,
    /// The taker, by its place in `nodes`; always behind `from`.
    pub to: usize,
    /// The tensors, one each: `f32[batch, 3, 224, 224]`, with a name before it where there are several. Empty for files and records.
    pub tensors: Vec<String>,
}

impl GraphView {
    pub fn new(plan: &Plan) -> Self {
        let pipelines = plan.pipelines.iter().map(|p| ViewBuilder::new(plan, p).build()).collect();
        Self { name: plan.name.clone(), pipelines }
    }

    /// A `flowchart` for Mermaid.
    pub fn to_mermaid(&self) -> String {
        mermaid::render(self)
    }
}

struct ViewBuilder<'a> {
    plan: &'a Plan,
    pipeline: &'a PipelinePlan,
    /// The stages of the file: edges lead past the joins.
    stages: Vec<StageId>,
    edges: Vec<Edge>,
}

impl<'a> ViewBuilder<'a> {
    fn new(plan: &'a Plan, pipeline: &'a PipelinePlan) -> Self {
        let of_file = |stage: &StageId| !plan.stages[stage.index()].is_join();
        let stages = pipeline.stages.iter().copied().filter(of_file).collect();
        Self { plan, pipeline, stages, edges: Vec::new() }
    }

    fn build(mut self) -> PipelineView {
        let (plan, pipeline) = (self.plan, self.pipeline);
        let folder = plan.file.parent().unwrap_or(Path::new("/"));
        let mut nodes = Vec::new();
        for id in &pipeline.sources {
            let source = &plan.sources[id.index()];
            let details = match source.reduced {
                Some(stage) => vec![format!("rows of {}", plan.stages[stage.index()].name)],
                None => listing(&source.listing, folder),
            };
            nodes.push(node(NodeKind::Source, "source", &source.name, details));
        }
        for id in self.stages.clone() {
            let stage = self.stage_node(nodes.len(), &plan.stages[id.index()]);
            nodes.push(stage);
        }
        for id in &pipeline.sinks {
            let sink = &plan.sinks[id.index()];
            let to = nodes.len();
            nodes.push(node(NodeKind::Sink, "sink", &sink.name, file(sink, &plan.output)));
            for read in &sink.reads {
                let gives = plan.gives(read.from);
                if let Some(tensor) = gives.0[read.column].ty.stored() {
                    let from = self.node_of(read.from);
                    self.edge(from, to, Some(label(tensor, tensors(gives).count() > 1)));
                }
            }
            for from in &sink.from {
                let from = self.node_of(*from);
                self.edge(from, to, None);
            }
        }
        PipelineView { name: pipeline.name.clone(), nodes, edges: self.edges }
    }

    /// The node of a stage at the place `to`; adds the edges into it.
    fn stage_node(&mut self, to: usize, stage: &StagePlan) -> GraphNode {
        let (shape, details, devices) = match &stage.runs {
            Shape::Batch(batch) => {
                let mut details = vec![format!("model {}", self.plan.models[batch.model.index()].name)];
                if let Some(iteration) = &batch.iteration {
                    details.push(format!("up to {} rounds", iteration.rounds));
                }
                if batch.drops {
                    details.push("may drop rows".to_owned());
                }
                if batch.streams > 1 {
                    details.push(format!("{} batches at once", batch.streams));
                }
                let devices = batch.workers.iter().map(|w| &self.plan.devices[w.device.index()]);
                (NodeKind::Batch, details, devices.map(|d| d.spec.name.clone()).collect())
            }
            Shape::Map(_) => (NodeKind::Map, stage.details.clone(), Vec::new()),
            Shape::Fold(_) => (NodeKind::Fold, stage.details.clone(), Vec::new()),
        };
        for (at, read) in stage.reads.iter().enumerate() {
            self.input(to, stage, at, *read);
        }
        for from in &stage.from {
            let from = self.node_of(*from);
            self.edge(from, to, None);
        }
        let kind = stage.kind.clone();
        GraphNode { shape, kind, name: stage.name.clone(), details, devices }
    }

    /// The edge of a column into a stage. It carries a name where it could be mistaken for another.
    fn input(&mut self, to: usize, stage: &StagePlan, at: usize, read: ColumnRef) {
        let gives = self.plan.gives(read.from);
        let Some(given) = gives.0[read.column].ty.stored() else { return };
        let takes = stage.batch().map(|batch| &self.plan.models[batch.model.index()].inputs);
        let tensor = match takes.filter(|takes| takes.len() > 1).and_then(|takes| takes.get(at)) {
            Some(taken) => format!("{}: {given}", taken.name),
            None => label(given, tensors(gives).count() > 1),
        };
        let from = self.node_of(read.from);
        self.edge(from, to, Some(tensor));
    }

    /// The node of a source or a stage of this pipeline.
    fn node_of(&self, from: Origin) -> usize {
        match from {
            Origin::Source(source) => {
                let place = self.pipeline.sources.iter().position(|s| *s == source);
                place.expect("a pipeline holds all sources that its nodes read from")
            }
            Origin::Stage(stage) => self.stage(stage.index()),
        }
    }

    /// The node of a stage of this pipeline.
    fn stage(&self, stage: usize) -> usize {
        let place = self.stages.iter().position(|s| s.index() == stage);
        self.pipeline.sources.len() + place.expect("a pipeline holds all stages that its nodes read from")
    }

    fn edge(&mut self, from: usize, to: usize, tensor: Option<String>) {
        match self.edges.iter_mut().find(|e| (e.from, e.to) == (from, to)) {
            Some(edge) => edge.tensors.extend(tensor),
            None => self.edges.push(Edge { from, to, tensors: tensor.into_iter().collect() }),
        }
    }
}

fn node(shape: NodeKind, kind: &str, name: &str, details: Vec<String>) -> GraphNode {
    GraphNode { shape, kind: kind.to_owned(), name: name.to_owned(), details, devices: Vec::new() }
}

/// The tensors among some columns, as they lie in a slot.
fn tensors(schema: &Schema) -> impl Iterator<Item = &TensorSpec> {
    schema.0.iter().filter_map(|column| column.ty.stored())
}

fn label(tensor: &TensorSpec, with_name: bool) -> String {
    if with_name { format!("{}: {tensor}", tensor.name) } else { tensor.to_string() }
}

fn listing(listing: &ListingSpec, folder: &Path) -> Vec<String> {
    match listing {
        ListingSpec::Paths { patterns, .. } => patterns.clone(),
        ListingSpec::Objects { urls, .. } => urls.clone(),
        ListingSpec::Manifest { path: Some(path), .. }
        | ListingSpec::ObjectManifest { list: Some(path), .. } => {
            vec![format!("list {}", path.strip_prefix(folder).unwrap_or(path).display())]
        }
        ListingSpec::Manifest { path: None, .. } | ListingSpec::ObjectManifest { list: None, .. } => {
            vec!["list on standard input".to_owned()]
        }
        ListingSpec::Generated => Vec::new(),
    }
}

fn file(sink: &SinkPlan, output: &Path) -> Vec<String> {
    let place = sink.place();
    let path = place.strip_prefix(output).unwrap_or(&place);
    let mut details = vec![path.display().to_string()];
    if sink.ordered {
        details.push("in the source's order".to_owned());
    }
    details
}
