//! The topology of a plan as nodes and edges: what `orchestra graph` draws. It knows what is connected and what flows, but places
//! nothing and writes no picture; those are the modules below it.

use std::path::Path;

use orchestra_core::{Channels, Fit, ImageSpec, ResizeFilter, TensorSpec};
use orchestra_source::ListingSpec;
use serde::Serialize;

use crate::plan::{InferPlan, PipelinePlan, Plan, Scores, SinkPlan, StageKind, StagePlan};

mod dot;
mod layout;
mod mermaid;
mod svg;
mod text;

/// A workflow as a picture shows it: data only, the same for every format.
///
/// Made of the plan alone, so a plan that was made `offline` gives the same view on every machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GraphView {
    /// `name` of the workflow.
    pub name: String,
    /// The connected graphs of the file.
    pub pipelines: Vec<PipelineView>,
}

/// One connected graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PipelineView {
    /// The name of its first source.
    pub name: String,
    /// Sources, then stages, then sinks; each behind everything that it reads from.
    pub nodes: Vec<Node>,
    /// At most one from one node to another.
    pub edges: Vec<Edge>,
}

/// A source, a stage or a sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Table name.
    pub name: String,
    /// Its settings in a few words, one line each.
    pub details: Vec<String>,
    /// Where it runs: names of devices, or `auto`. Empty unless it runs a model.
    pub devices: Vec<String>,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// `[sources.*]`
    Source,
    /// A stage with `kind = "image"`.
    Image,
    /// A stage with `kind = "infer"`.
    Infer,
    /// A stage with `kind = "classify"`.
    Classify,
    /// `[sinks.*]`
    Sink,
}

impl NodeKind {
    /// The word for it in workflow files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NodeKind::Source => "source",
            NodeKind::Image => "image",
            NodeKind::Infer => "infer",
            NodeKind::Classify => "classify",
            NodeKind::Sink => "sink",
        }
    }
}

/// What flows from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// The giver, by its place in `nodes`.
    pub from: usize,
    /// The taker, by its place in `nodes`; always behind `from`.
    pub to: usize,
    /// The tensors, one each: `f32[batch, 3, 224, 224]`, with a name before it where there are several. Empty for files and records.
    pub tensors: Vec<String>,
}

impl GraphView {
    /// The view of a plan.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let pipelines = plan.pipelines.iter().map(|p| Builder::new(plan, p).build()).collect();
        Self { name: plan.name.clone(), pipelines }
    }

    /// A `digraph` for Graphviz.
    #[must_use]
    pub fn to_dot(&self) -> String {
        dot::render(self)
    }

    /// A `flowchart` for Mermaid.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        mermaid::render(self)
    }

    /// A whole SVG file, readable on light and on dark ground.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::render(self)
    }
}

struct Builder<'a> {
    plan: &'a Plan,
    pipeline: &'a PipelinePlan,
    edges: Vec<Edge>,
}

impl<'a> Builder<'a> {
    fn new(plan: &'a Plan, pipeline: &'a PipelinePlan) -> Self {
        Self { plan, pipeline, edges: Vec::new() }
    }

    fn build(mut self) -> PipelineView {
        let (plan, pipeline) = (self.plan, self.pipeline);
        let folder = plan.file.parent().unwrap_or(Path::new("/"));
        let mut nodes = Vec::new();
        for id in &pipeline.sources {
            let source = &plan.sources[id.index()];
            nodes.push(node(NodeKind::Source, &source.name, listing(&source.listing, folder)));
        }
        for id in &pipeline.stages {
            let stage = self.stage_node(nodes.len(), &plan.stages[id.index()]);
            nodes.push(stage);
        }
        for id in &pipeline.sinks {
            let sink = &plan.sinks[id.index()];
            let to = nodes.len();
            nodes.push(node(NodeKind::Sink, &sink.name, file(sink, &plan.output)));
            let outputs = self.outputs(sink.from.index());
            let from = self.stage(sink.from.index());
            if outputs.is_empty() {
                self.edge(from, to, None);
            }
            for tensor in &outputs {
                self.edge(from, to, Some(label(tensor, outputs.len() > 1)));
            }
        }
        PipelineView { name: pipeline.name.clone(), nodes, edges: self.edges }
    }

    /// The node of a stage at the place `to`; adds the edges into it.
    fn stage_node(&mut self, to: usize, stage: &StagePlan) -> Node {
        match &stage.kind {
            StageKind::Image { source, spec } => {
                if let Some(from) = self.pipeline.sources.iter().position(|s| s == source) {
                    self.edge(from, to, None);
                }
                node(NodeKind::Image, &stage.name, image(spec))
            }
            StageKind::Infer(infer) => {
                self.inputs(to, infer);
                let mut details = vec![format!("model {}", self.plan.models[infer.model.index()].name)];
                if infer.streams > 1 {
                    details.push(format!("{} batches at once", infer.streams));
                }
                let devices = infer.workers.iter().map(|w| &self.plan.devices[w.device.index()]);
                let devices = devices.map(|d| d.spec.name.clone()).collect();
                Node { devices, ..node(NodeKind::Infer, &stage.name, details) }
            }
            StageKind::Classify { from, output, top_k, scores, .. } => {
                let outputs = self.outputs(from.index());
                let tensor = outputs.get(*output).map(|t| label(t, outputs.len() > 1));
                self.edge(self.stage(from.index()), to, tensor);
                let scores = match scores {
                    Scores::Softmax => "softmax",
                    Scores::Sigmoid => "sigmoid",
                    Scores::None => "scores as they are",
                };
                node(NodeKind::Classify, &stage.name, vec![format!("best {top_k}"), scores.to_owned()])
            }
        }
    }

    /// The edges into an infer stage. A tensor carries a name where it could be mistaken for another.
    fn inputs(&mut self, to: usize, infer: &InferPlan) {
        let takes = &self.plan.models[infer.model.index()].inputs;
        for (input, taken) in infer.inputs.iter().zip(takes) {
            let gives = self.outputs(input.stage.index());
            let Some(given) = gives.get(input.output) else { continue };
            let tensor = if takes.len() > 1 {
                format!("{}: {given}", taken.name)
            } else {
                label(given, gives.len() > 1)
            };
            self.edge(self.stage(input.stage.index()), to, Some(tensor));
        }
    }

    /// What a stage gives; empty for `classify`, which gives records.
    fn outputs(&self, stage: usize) -> Vec<TensorSpec> {
        match &self.plan.stages[stage].kind {
            StageKind::Image { spec, .. } => vec![spec.tensor()],
            StageKind::Infer(infer) => self.plan.models[infer.model.index()].outputs.clone(),
            StageKind::Classify { .. } => Vec::new(),
        }
    }

    /// The node of a stage of this pipeline.
    fn stage(&self, stage: usize) -> usize {
        let place = self.pipeline.stages.iter().position(|s| s.index() == stage);
        self.pipeline.sources.len() + place.expect("a pipeline holds all stages that its nodes read from")
    }

    fn edge(&mut self, from: usize, to: usize, tensor: Option<String>) {
        match self.edges.iter_mut().find(|e| (e.from, e.to) == (from, to)) {
            Some(edge) => edge.tensors.extend(tensor),
            None => self.edges.push(Edge { from, to, tensors: tensor.into_iter().collect() }),
        }
    }
}

fn node(kind: NodeKind, name: &str, details: Vec<String>) -> Node {
    Node { kind, name: name.to_owned(), details, devices: Vec::new() }
}

fn label(tensor: &TensorSpec, with_name: bool) -> String {
    if with_name { format!("{}: {tensor}", tensor.name) } else { tensor.to_string() }
}

fn listing(listing: &ListingSpec, folder: &Path) -> Vec<String> {
    match listing {
        ListingSpec::Paths { patterns, .. } => patterns.clone(),
        ListingSpec::Manifest { path: Some(path), .. } => {
            vec![format!("list {}", path.strip_prefix(folder).unwrap_or(path).display())]
        }
        ListingSpec::Manifest { path: None, .. } => vec!["list on standard input".to_owned()],
    }
}

fn image(spec: &ImageSpec) -> Vec<String> {
    let color = match spec.color {
        Channels::Rgb => "rgb",
        Channels::Bgr => "bgr",
        Channels::Gray => "gray",
    };
    let fit = match spec.fit {
        Fit::Stretch => "stretch".to_owned(),
        Fit::Cover => "cover".to_owned(),
        Fit::Contain => "contain".to_owned(),
        Fit::Shorter => format!("shorter side {}", spec.shorter),
    };
    let filter = match spec.filter {
        ResizeFilter::Nearest => "nearest",
        ResizeFilter::Bilinear => "bilinear",
        ResizeFilter::Bicubic => "bicubic",
        ResizeFilter::Lanczos3 => "lanczos3",
    };
    let mut details =
        vec![format!("{} x {} {color}", spec.size[0], spec.size[1]), format!("{fit}, {filter}")];
    if spec.in_graph.is_some() {
        details.push("normalised in the model's graph".to_owned());
    }
    details
}

fn file(sink: &SinkPlan, output: &Path) -> Vec<String> {
    let path = sink.path.strip_prefix(output).unwrap_or(&sink.path);
    let mut details = vec![path.display().to_string()];
    if sink.ordered {
        details.push("in the source's order".to_owned());
    }
    details
}
