//! What each table of items is, in the order of the data: whether what a stage gives fits what the next one takes. Knows shapes and types, and no
//! devices.

use std::sync::Arc;

use orchestra_core::PipelineId;
use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::shapes::MATRIX;

use crate::cx::Cx;
use crate::diagnostics::Reported;
use crate::fields::Spanned;
use crate::kind::{Connect, Draft, Input, Runs, StageContext, Writes, whole_row};
use crate::matrix::owner_of;
use crate::models;
use crate::plan::{ColumnRef, FilesPlan, FoldPlan, Origin, Shape, SinkPlan, StagePlan};
use crate::sinks::{FAILURES, bucket_of, check_keys, encoder, failure_schema, parts_of, script};
use crate::sources;
use crate::workflow::{Connected, Link, RawListing, SinkNode, StageNode, WorkflowTables};

mod batch;
mod constants;
mod feeds;
mod iterated;
mod remedy;

/// Connects all nodes that are not deferred. One that has an error, or stands behind such a one, stays without a plan.
pub(crate) fn connect(workflow: &mut WorkflowTables, cx: &mut Cx<'_>) {
    for source in workflow.sources.iter_mut().filter(|source| !source.is_deferred) {
        source.plan = sources::connect(source, &workflow.limits, cx).ok();
    }
    for model in workflow.models.iter_mut().filter(|model| !model.is_deferred) {
        model.known = models::connect(model, cx).ok();
    }
    for stage in 0..workflow.n_ordered {
        if !workflow.stages[stage].is_deferred {
            let connected = Wiring { workflow, cx }.stage(stage).ok();
            workflow.stages[stage].connected = connected;
            programs_are_known(workflow, stage);
        }
    }
    for sink in 0..workflow.sinks.len() {
        workflow.sinks[sink].plan = connect_sink(workflow, &workflow.sinks[sink], cx).ok();
    }
}

/// Fills in what is known of a program once it has been asked, and what feeds it.
fn programs_are_known(workflow: &mut WorkflowTables, stage: usize) {
    let WorkflowTables { stages, models, .. } = workflow;
    let stage = &mut stages[stage];
    let slots = stage.connected.as_ref().and_then(|connected| connected.slots.as_ref());
    let known = stage.model.and_then(|model| models[model].known.as_mut());
    if let (Some(slots), Some(known), Some(Draft::Batch(batch))) = (slots, known, &mut stage.draft)
        && known.plan.code.is_some()
    {
        known.plan.inputs.clone_from(&slots.inputs);
        let asked = known.max_batch.map(|rows| Spanned::new(rows, stage.name.span));
        batch.max_batch = batch.max_batch.take().or(asked);
    }
}

/// Checks the edges into one stage.
struct Wiring<'a, 'h> {
    workflow: &'a WorkflowTables,
    cx: &'a mut Cx<'h>,
}

impl<'a> Wiring<'a, '_> {
    fn stage(&mut self, stage: usize) -> Result<Connected, Reported> {
        let node = &self.workflow.stages[stage];
        match node.draft.as_ref().ok_or(Reported)? {
            Draft::Batch(batch) => self.batch(stage, node, batch),
            Draft::Stage(draft) => self.kind(node, &**draft),
        }
    }

    fn kind(&mut self, node: &StageNode, draft: &dyn Connect) -> Result<Connected, Reported> {
        let links = links(&node.links)?;
        let inputs = inputs(self.workflow, &links)?;
        let mut context = StageContext {
            name: &node.name.value,
            span: node.name.span,
            written: &node.written,
            inputs: &inputs,
            limits: &self.workflow.limits,
            host: self.cx.host,
            folder: &self.cx.folder,
            diags: &mut self.cx.diags,
        };
        let connected = draft.connect(&mut context)?;
        for (at, input) in inputs.iter().enumerate() {
            if connected.reads.iter().all(|(read, _)| *read != at) && node.kind_name() != MATRIX {
                let message = format!("stage `{}` takes nothing of {}", node.name.value, input.described());
                return self.cx.error(input.span, message).help("leave it out of `from`").fail();
            }
        }
        let read = |(input, column): &(usize, usize)| {
            let (from, column) = (links[*input].target, *column);
            // Behind the columns that a stage gives stands the placement of an earlier one.
            let is_own = gives(self.workflow, from).is_some_and(|gives| column < gives.0.len());
            if is_own { Some(ColumnRef { from, column }) } else { placed(self.workflow, from) }
        };
        let reads = connected.reads.iter().map(read).collect::<Option<_>>().ok_or(Reported)?;
        let passed_on = match &inputs[..] {
            [input] if connected.gives.0.iter().all(|column| input.gives.0.contains(column)) => Some(input),
            _ => None,
        };
        let runs = match connected.runs {
            Runs::Map(map) => Shape::Map(map),
            Runs::Fold(fold) => Shape::Fold(FoldPlan::Parts(fold)),
            Runs::Reduce(reduce) => Shape::Fold(FoldPlan::Reduce(reduce)),
        };
        Ok(Connected {
            plan: StagePlan {
                reads,
                gives: connected.gives,
                settings: connected.settings,
                details: connected.details,
                about: connected.about,
                ..stage_plan(node, runs)?
            },
            placed: passed_on.and_then(|_| placed(self.workflow, links[0].target)),
            labels: passed_on.and_then(|input| input.labels.clone()),
            metadata: passed_on.map(|input| Arc::clone(&input.metadata)).unwrap_or_default(),
            made_by: passed_on.map(|input| Arc::clone(&input.made_by)).unwrap_or_default(),
            unreadable: Vec::new(),
            slots: None,
        })
    }
}

/// The plan of a stage as far as its node says it.
fn stage_plan(node: &StageNode, runs: Shape) -> Result<StagePlan, Reported> {
    let from = origins(&node.links);
    Ok(StagePlan {
        name: node.name.value.clone(),
        pipeline: PipelineId(0),
        kind: node.kind_name().to_owned(),
        home: *from.first().ok_or(Reported)?,
        enclosing_splits: Vec::new(),
        from,
        reads: Vec::new(),
        gives: Default::default(),
        settings: serde_json::Value::Null,
        details: Vec::new(),
        about: String::new(),
        runs,
    })
}

fn connect_sink(workflow: &WorkflowTables, sink: &SinkNode, cx: &mut Cx<'_>) -> Result<SinkPlan, Reported> {
    let read = match sink.is_of_failures {
        true => failures(sink).map(|input| (input, Vec::new())),
        false => links(&sink.links).and_then(|links| {
            let what = format!("sink `{}`", sink.name.value);
            whole_row(&what, &inputs(workflow, &links)?, &mut cx.diags)
        }),
    };
    // What is wrong with its other keys is said whatever it reads.
    let (input, reads) = read.inspect_err(|_| check_keys(sink, cx))?;
    let links = links(&sink.links)?;
    let encoder = encoder(sink, &input, cx)?;
    let (kind, path) = (sink.kind.as_ref().ok_or(Reported)?, sink.file.as_ref().ok_or(Reported)?);
    let files = || FilesPlan {
        folder: path.parent().unwrap_or(path).to_owned(),
        extension: encoder.extension().unwrap_or(kind.extension()).to_owned(),
        numbered: false,
    };
    let from = origins(&sink.links);
    let read = |(input, column): (usize, usize)| ColumnRef { from: links[input].target, column };
    Ok(SinkPlan {
        name: sink.name.value.clone(),
        pipeline: PipelineId(0),
        kind: kind.name().to_owned(),
        is_of_failures: sink.is_of_failures,
        home: from.first().copied(),
        from,
        reads: reads.into_iter().map(read).collect(),
        columns: input.gives.names().map(str::to_owned).collect(),
        path: cx.output.join(path),
        files: (kind.writes() == Writes::FileEach).then(files),
        part_files: parts_of(sink, path),
        bucket: bucket_of(sink),
        script: script(sink, &input, &workflow.limits, cx)?,
        ordered: sink.ordered,
        replies: sink.replies(),
        encoder,
    })
}

/// The failures of the run, as kinds see what a sink reads.
fn failures(sink: &SinkNode) -> Result<Input, Reported> {
    Ok(Input {
        name: FAILURES.to_owned(),
        kind: FAILURES,
        is_source: true,
        span: sink.from.first().ok_or(Reported)?.span,
        gives: failure_schema(),
        ..Input::default()
    })
}

/// All of these, if each leads somewhere.
fn links(links: &[Option<Link>]) -> Result<Vec<&Link>, Reported> {
    links.iter().map(|link| link.as_ref().ok_or(Reported)).collect()
}

/// What links lead to, each once.
fn origins(links: &[Option<Link>]) -> Vec<Origin> {
    let mut from: Vec<Origin> = Vec::new();
    for link in links.iter().flatten() {
        if !from.contains(&link.target) {
            from.push(link.target);
        }
    }
    from
}

fn inputs(workflow: &WorkflowTables, links: &[&Link]) -> Result<Vec<Input>, Reported> {
    links.iter().map(|link| input(workflow, link)).collect()
}

/// What a link leads to, as kinds see it.
fn input(workflow: &WorkflowTables, link: &Link) -> Result<Input, Reported> {
    let mut gives = gives(workflow, link.target).ok_or(Reported)?.clone();
    if gives.0.iter().all(|column| column.ty != ColumnType::Placement)
        && placed(workflow, link.target).is_some()
    {
        gives.0.push(Column { name: "placed".to_owned(), ty: ColumnType::Placement });
    }
    let of_source = Input {
        name: owner_of(workflow.name_of(link.target)).to_owned(),
        is_source: true,
        span: link.span,
        gives,
        column: link.tensor.clone(),
        ..Input::default()
    };
    Ok(match link.target {
        Origin::Source(source) => {
            let source = &workflow.sources[source.index()];
            let paths = match &source.listing {
                Some(RawListing::Paths(paths)) => paths.iter().map(|path| path.value.clone()).collect(),
                _ => Vec::new(),
            };
            Input { kind: source.kind.as_ref().ok_or(Reported)?.name(), paths, ..of_source }
        }
        Origin::Stage(stage) => {
            let stage = &workflow.stages[stage.index()];
            let connected = stage.connected.as_ref().ok_or(Reported)?;
            Input {
                kind: stage.kind_name(),
                is_source: false,
                unreadable: connected.unreadable.clone(),
                labels: connected.labels.clone(),
                metadata: Arc::clone(&connected.metadata),
                made_by: Arc::clone(&connected.made_by),
                ..of_source
            }
        }
    })
}

/// The columns that a source or a stage gives.
fn gives(workflow: &WorkflowTables, from: Origin) -> Option<&Schema> {
    match from {
        Origin::Source(source) => Some(&workflow.sources[source.index()].plan.as_ref()?.gives),
        Origin::Stage(stage) => Some(&workflow.stages[stage.index()].plan()?.gives),
    }
}

/// The column that says where the rows of a stage lie in a picture.
pub(crate) fn placed(workflow: &WorkflowTables, from: Origin) -> Option<ColumnRef> {
    let connected = workflow.stages[from.stage()?.index()].connected.as_ref()?;
    let own = connected.plan.gives.0.iter().position(|column| column.ty == ColumnType::Placement);
    own.map(|column| ColumnRef { from, column }).or(connected.placed)
}
