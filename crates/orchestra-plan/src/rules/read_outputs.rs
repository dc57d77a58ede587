//! Workers give no more of the outputs of models than is read. Says what is wrong with those that are.

use orchestra_core::probing::DOES_NOT_LOAD;
use orchestra_core::{SizeLimit, StageId};

use crate::cx::Cx;
use crate::diagnostics::Span;
use crate::outputs::{RowStanding, StageOutput};
use crate::plan::{ColumnRef, Origin};
use crate::workflow::{StageNode, WorkflowTables};

/// Each stage with a model file keeps the outputs that are read; an unused one all of them.
pub(crate) fn keep_read_outputs(workflow: &mut WorkflowTables, cx: &mut Cx<'_>) {
    for stage in 0..workflow.stages.len() {
        let from = Origin::Stage(StageId(stage as u16)); // tables are no more than ids
        let Some(kept) = kept(workflow, stage, from) else { continue };
        if stage < workflow.n_stages {
            drop_others(workflow, stage, &kept);
            for read in reads_mut(workflow).filter(|read| read.from == from) {
                read.column = place_among(&kept, read.column);
            }
        }
        report(workflow, stage, cx);
    }
}

/// Per column of a stage with a model file whether it is read; `None` for other stages.
fn kept(workflow: &mut WorkflowTables, stage: usize, from: Origin) -> Option<Vec<bool>> {
    let node = &workflow.stages[stage];
    let (connected, batch) = (node.connected.as_ref()?, node.batch_plan()?);
    let given = &connected.slots.as_ref()?.given;
    workflow.models[node.model?].known.as_ref().filter(|known| known.plan.code.is_none())?;
    // Of a loop a column says the rounds of each row, and the others are fed.
    let fed = batch.iteration.iter().flat_map(|of| {
        let until = of.until.iter().map(|until| until.output);
        of.feed.iter().map(|feed| feed.output).chain(until)
    });
    let mut kept: Vec<bool> = (0..connected.plan.gives.0.len()).map(|column| column >= given.len()).collect();
    fed.for_each(|column| kept[column] = true);
    for read in reads_mut(workflow).filter(|read| read.from == from) {
        if let Some(kept) = kept.get_mut(read.column) {
            *kept = true;
        }
    }
    // A batch that gives nothing cannot be told from one that is missing.
    if let (true, Some(first)) = (kept.iter().all(|kept| !kept), kept.first_mut()) {
        *first = true;
    }
    Some(kept)
}

/// The place of a column that is kept, among those.
fn place_among(kept: &[bool], column: usize) -> usize {
    kept[..column].iter().filter(|kept| **kept).count()
}

fn drop_others(workflow: &mut WorkflowTables, stage: usize, kept: &[bool]) {
    let Some(connected) = &mut workflow.stages[stage].connected else { return };
    if let Some(iteration) = connected.plan.batch_mut().and_then(|batch| batch.iteration.as_mut()) {
        iteration.feed.iter_mut().for_each(|feed| feed.output = place_among(kept, feed.output));
        iteration.until.iter_mut().for_each(|until| until.output = place_among(kept, until.output));
        iteration.collect.retain(|output| kept[*output]);
        iteration.collect.iter_mut().for_each(|output| *output = place_among(kept, *output));
    }
    fn retain<T>(of: &mut Vec<T>, kept: &[bool]) {
        let mut kept = kept.iter();
        of.retain(|_| kept.next() == Some(&true));
    }
    retain(&mut connected.plan.gives.0, kept);
    if let Some(slots) = &mut connected.slots {
        retain(&mut slots.given, kept);
        retain(&mut slots.outputs, kept);
    }
}

fn reads_mut(workflow: &mut WorkflowTables) -> impl Iterator<Item = &mut ColumnRef> {
    let of_stages = workflow.stages.iter_mut().flat_map(StageNode::reads_mut);
    let sinks = workflow.sinks.iter_mut().filter_map(|sink| sink.plan.as_mut());
    of_stages.chain(sinks.flat_map(|sink| &mut sink.reads))
}

fn report(workflow: &WorkflowTables, stage: usize, cx: &mut Cx<'_>) {
    let node = &workflow.stages[stage];
    let (Some(connected), Some(batch), Some(model)) = (&node.connected, node.batch_plan(), node.model) else {
        return;
    };
    let model = &workflow.models[model].name.value;
    let written = node.batch().map(|batch| &batch.model);
    let span = written.map_or(node.name.span, |model| model.span);
    let read = OutputRead { stage: &node.name.value, model, span, fixed: batch.fixed_batch };
    let given = connected.slots.as_ref().map_or(&[][..], |slots| &slots.given);
    let size_limit = given.iter().find_map(|output| match &output.standing {
        RowStanding::SizeLimit { limit, .. } => Some(limit),
        _ => None,
    });
    let unloadable = given.iter().find_map(|output| match &output.standing {
        RowStanding::Unconfirmed(Some(why)) if why.contains(DOES_NOT_LOAD) => Some(why),
        _ => None,
    });
    match (size_limit, unloadable) {
        (Some(limit), _) => read.report_size_limit(limit, given, cx),
        (None, Some(why)) => read.report_unloadable(why, cx),
        (None, None) => given.iter().for_each(|output| read.report(output, cx)),
    }
}

/// A stage that reads an output, for reports.
struct OutputRead<'a> {
    stage: &'a str,
    model: &'a str,
    span: Span,
    fixed: Option<usize>,
}

impl OutputRead<'_> {
    fn report(&self, output: &StageOutput, cx: &mut Cx<'_>) {
        let name = format!("output `{}` of model `{}`", output.read.tensor.name, self.model);
        let alone = match self.fixed {
            None => format!("write `batch = {{ max = 1 }}` in stage `{}`", self.stage),
            Some(_) => "export the model for batches of 1".to_owned(),
        };
        match &output.standing {
            RowStanding::Known | RowStanding::SizeLimit { .. } => {}
            RowStanding::NoRows(why) => {
                let several = self.fixed.map(|n| format!("; where {}", several_rows(n))).unwrap_or_default();
                cx.error(self.span, format!("{name} has no row for each item: {why}")).help(format!(
                    "{alone}, with which all of it belongs to one item{several}; or read other outputs"
                ));
            }
            RowStanding::Unsteady => {
                cx.warning(self.span, format!("{name} is another one at each run of the same batch"))
                    .label("as in models that draw random numbers, or were exported while they were trained")
                    .help(format!(
                        "whether items change each other cannot be found out then: export the model for inference, or {alone}"
                    ));
            }
            RowStanding::UnsteadyAlone => {
                cx.warning(self.span, format!("{name} is another one at each run of the same item"))
                    .label("as in models that draw random numbers, or were exported while they were trained")
                    .help("export the model for inference: until then no two runs write the same records");
            }
            RowStanding::Unconfirmed(why) => {
                let tried = match why {
                    None => "`orchestra plan` runs the model and finds out".to_owned(),
                    Some(why) => format!("the model could not be tried: {why}"),
                };
                cx.warning(self.span, format!("it is not confirmed that {name} has a row for each item"))
                    .label(format!("declared {}, read as {}", output.declared, output.read.tensor))
                    .help(format!("{tried}; each batch is compared, and where it has none, {alone}"));
            }
        }
    }

    /// No size of a batch helps.
    fn report_unloadable(&self, why: &str, cx: &mut Cx<'_>) {
        cx.warning(self.span, format!("model `{}` could not be loaded on the CPU", self.model))
            .label(why)
            .help(
                "export it again for operators that ONNX Runtime has; `custom_ops` names libraries of others",
            );
    }

    /// The model would fail with batches that the stage may make, whatever their items hold.
    fn report_size_limit(&self, limit: &SizeLimit, given: &[StageOutput], cx: &mut Cx<'_>) {
        let SizeLimit { runs, fails, error } = limit;
        let has_rows = given
            .iter()
            .all(|output| matches!(output.standing, RowStanding::SizeLimit { has_rows: true, .. }));
        let help = match (runs, has_rows) {
            (1, _) => format!("write `batch = {{ max = 1 }}` in stage `{}`", self.stage),
            (_, true) => {
                format!(
                    "export the model with its batch fixed at {runs}: smaller batches of such models are padded"
                )
            }
            (_, false) => format!("where {}", several_rows(*runs)),
        };
        cx.error(
            self.span,
            format!("model `{}` runs batches of {runs} and fails with batches of {fails}", self.model),
        )
        .label(error)
        .help(format!("{help}; or export it so that each of its nodes takes any batch"));
    }
}

/// What to do about a model that takes several rows for one item, such as the frames of a clip.
fn several_rows(n: usize) -> String {
    format!(
        "{n} rows make one item, export the model with inputs of `[batch, {n}, ..]`, and feed it items of {n} rows"
    )
}
