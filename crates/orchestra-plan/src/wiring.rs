//! Whether what a stage gives fits what the next one takes. Knows shapes and types, and neither kinds nor devices.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{Iteration, TensorSpec, Trim};

use crate::diagnostics::Diagnostics;
use crate::fields::At;
use crate::graph::{Graph, Link};
use crate::host::Host;
use crate::kind::{Connect, Draft, Input, SourceConnected, StageConnected, StageContext};
use crate::models::Model;
use crate::outputs::{StageOutput, UnreadableOutput};
use crate::plan::{ColumnRef, Origin};
use crate::raw::{RawListing, RawStage, RawWorkflow};

mod batch;
mod trim;

/// A stage with all its inputs known to fit.
#[derive(Debug)]
pub(crate) enum Wired {
    /// It runs a model.
    Batch {
        model: usize,
        /// Per model input.
        inputs: Vec<ColumnRef>,
        /// What lies in slots: the model's inputs with every open dimension of the row filled in, and what a loop keeps of each row.
        tensors: Vec<TensorSpec>,
        /// What its workers give: those of the model's outputs that are read, and what a loop says of each row.
        outputs: Vec<TensorSpec>,
        /// The same outputs of the model, with what is known of them.
        given: Vec<StageOutput>,
        /// Outputs of the model that no stage can read.
        unreadable: Vec<UnreadableOutput>,
        /// How it loops.
        iteration: Option<Iteration>,
        /// Whether it computes no more of an input than pictures fill. Where they lie then stands behind `inputs` and `tensors`.
        trim: Option<Trim>,
        fixed_batch: Option<usize>,
        gives: Schema,
        /// Where what it is fed lies in a picture, if that is one place.
        placed: Option<ColumnRef>,
    },
    /// Anything else.
    Stage {
        reads: Vec<ColumnRef>,
        connected: StageConnected,
        /// The labels of the model whose rows it passes on as they are.
        labels: Option<At<Vec<String>>>,
        /// Where the rows that it passes on lie in a picture; its own column is among those that it gives.
        placed: Option<ColumnRef>,
        /// What the model whose rows it passes on says about itself.
        metadata: Arc<BTreeMap<String, String>>,
    },
}

impl Wired {
    /// The columns that the stage gives.
    pub fn gives(&self) -> &Schema {
        match self {
            Wired::Batch { gives, .. } => gives,
            Wired::Stage { connected, .. } => &connected.gives,
        }
    }
}

/// Checks edges in the order of the data.
pub(crate) struct Wiring<'a> {
    pub workflow: &'a RawWorkflow,
    pub graph: &'a Graph,
    /// Per source of the file; `None` was reported.
    pub sources: &'a [Option<SourceConnected>],
    /// Per model of the file; `None`: its error was reported, or no stage uses it.
    pub models: &'a [Option<Model>],
    pub host: &'a dyn Host,
    pub folder: &'a Path,
    pub diags: &'a mut Diagnostics,
    /// Stages that cannot be looked at yet.
    pub is_late: &'a dyn Fn(&RawStage) -> bool,
    wired: Vec<Option<Wired>>,
}

impl<'a> Wiring<'a> {
    pub fn new(
        workflow: &'a RawWorkflow,
        graph: &'a Graph,
        sources: &'a [Option<SourceConnected>],
        models: &'a [Option<Model>],
        (host, folder): (&'a dyn Host, &'a Path),
        is_late: &'a dyn Fn(&RawStage) -> bool,
        diags: &'a mut Diagnostics,
    ) -> Self {
        let wired = workflow.stages.iter().map(|_| None).collect();
        Self { workflow, graph, sources, models, host, folder, diags, is_late, wired }
    }

    /// Per stage what it is; `None` where it, or something before it, has an error or cannot be looked at yet.
    pub fn check(mut self) -> Vec<Option<Wired>> {
        for stage in 0..self.graph.n_ordered {
            let raw = &self.workflow.stages[stage];
            self.wired[stage] = match &raw.draft {
                _ if (self.is_late)(raw) => None,
                Some(Draft::Batch(batch)) => self.batch(stage, raw, batch),
                Some(Draft::Stage(draft)) => self.stage(stage, raw, &**draft),
                None => None,
            };
        }
        self.wired
    }

    fn stage(&mut self, stage: usize, raw: &RawStage, draft: &dyn Connect) -> Option<Wired> {
        let links: Vec<&Link> = self.graph.reads[stage].iter().map(Option::as_ref).collect::<Option<_>>()?;
        let inputs: Vec<Input> = links.iter().map(|link| self.input(link)).collect::<Option<_>>()?;
        let mut context = StageContext {
            name: &raw.name.value,
            span: raw.name.span,
            written: &raw.written,
            inputs: &inputs,
            limits: &self.workflow.limits,
            host: self.host,
            folder: self.folder,
            diags: self.diags,
        };
        let connected = draft.connect(&mut context)?;
        for (at, input) in inputs.iter().enumerate() {
            if connected.reads.iter().all(|(read, _)| *read != at) {
                let message = format!("stage `{}` takes nothing of {}", raw.name.value, input.described());
                self.diags.error(input.span, message).help("leave it out of `from`");
                return None;
            }
        }
        let read = |(input, column): &(usize, usize)| {
            let (from, column) = (links[*input].target, *column);
            // Behind the columns that a stage gives stands the placement of an earlier one.
            let is_own = column < self.n_columns(from);
            if is_own { Some(ColumnRef { from, column }) } else { self.placed(from) }
        };
        let reads = connected.reads.iter().map(read).collect::<Option<_>>()?;
        let passes_on = match &inputs[..] {
            [input] => connected.gives.0.iter().all(|column| input.gives.0.contains(column)),
            _ => false,
        };
        let (labels, placed, metadata) = match passes_on {
            true => {
                let input = &inputs[0];
                (input.labels.clone(), self.placed(links[0].target), Arc::clone(&input.metadata))
            }
            false => Default::default(),
        };
        Some(Wired::Stage { reads, connected, labels, placed, metadata })
    }

    fn n_columns(&self, from: Origin) -> usize {
        match from {
            Origin::Source(source) => self.sources[source.index()].as_ref().map_or(0, |s| s.gives.0.len()),
            Origin::Stage(stage) => self.wired[stage.index()].as_ref().map_or(0, |w| w.gives().0.len()),
        }
    }

    fn placed(&self, from: Origin) -> Option<ColumnRef> {
        placed(&self.wired, from)
    }

    /// What a link leads to, as kinds see it.
    pub fn input(&self, link: &Link) -> Option<Input> {
        input(self.workflow, self.sources, self.models, &self.wired, link)
    }
}

/// What a link leads to, as kinds see it; `None` where that has an error.
pub(crate) fn input(
    workflow: &RawWorkflow,
    sources: &[Option<SourceConnected>],
    models: &[Option<Model>],
    wired: &[Option<Wired>],
    link: &Link,
) -> Option<Input> {
    let mut unreadable = Vec::new();
    let (kind, mut gives, labels, metadata) = match link.target {
        Origin::Source(source) => {
            let kind = workflow.sources[source.index()].kind.as_ref()?.name();
            (kind, sources[source.index()].as_ref()?.gives.clone(), None, Arc::default())
        }
        Origin::Stage(stage) => {
            let is = wired[stage.index()].as_ref()?;
            if let Wired::Batch { unreadable: of_model, .. } = is {
                unreadable.clone_from(of_model);
            }
            let (labels, metadata) = match is {
                Wired::Batch { model, .. } => {
                    let model = models[*model].as_ref()?;
                    (model.labels.clone(), Arc::clone(&model.metadata))
                }
                Wired::Stage { labels, metadata, .. } => (labels.clone(), Arc::clone(metadata)),
            };
            (workflow.stages[stage.index()].kind_name(), is.gives().clone(), labels, metadata)
        }
    };
    if gives.0.iter().all(|column| column.ty != ColumnType::Placement) && placed(wired, link.target).is_some()
    {
        gives.0.push(Column { name: "placed".to_owned(), ty: ColumnType::Placement });
    }
    Some(Input {
        name: name_of(workflow, link.target).to_owned(),
        kind,
        is_source: link.stage().is_none(),
        span: link.span,
        paths: paths_of(workflow, link.target),
        gives,
        unreadable,
        column: link.tensor.clone(),
        aliases: Vec::new(),
        labels,
        metadata,
    })
}

/// The column that says where the rows of a stage lie in a picture.
fn placed(wired: &[Option<Wired>], from: Origin) -> Option<ColumnRef> {
    let stage = wired[from.stage()?.index()].as_ref()?;
    let own = stage.gives().0.iter().position(|column| column.ty == ColumnType::Placement);
    match (own, stage) {
        (Some(column), _) => Some(ColumnRef { from, column }),
        (None, Wired::Batch { placed, .. } | Wired::Stage { placed, .. }) => *placed,
    }
}

fn paths_of(workflow: &RawWorkflow, target: Origin) -> Vec<String> {
    let Origin::Source(source) = target else { return Vec::new() };
    match &workflow.sources[source.index()].listing {
        Some(RawListing::Paths(paths)) => paths.iter().map(|path| path.value.clone()).collect(),
        _ => Vec::new(),
    }
}

fn name_of(workflow: &RawWorkflow, target: Origin) -> &str {
    match target {
        Origin::Source(source) => &workflow.sources[source.index()].name.value,
        Origin::Stage(stage) => &workflow.stages[stage.index()].name.value,
    }
}
