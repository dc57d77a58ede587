//! A model computes no more of a row of pictures than the picture fills, where the stage that makes the rows asks for it.

use orchestra_core::data::ColumnType;
use orchestra_core::{Fit, ImageSpec, Provider, StageId, TensorSpec, Trim};

use crate::connect::placed;
use crate::cx::Cx;
use crate::diagnostics::Reported;
use crate::kind::Draft;
use crate::plan::{ColumnRef, Origin, Shape};
use crate::workflow::WorkflowTables;

/// The version of ONNX's operators in which `Slice` takes its ends as an input.
const SLICE_BY_INPUT: i64 = 10;

/// The input of a model whose rows are trimmed, and the column that says to what. `inputs` are what the stage feeds its model, and what that takes.
pub(crate) fn trim(
    workflow: &WorkflowTables,
    stage: usize,
    (inputs, takes): (&[ColumnRef], &[&TensorSpec]),
    cx: &mut Cx<'_>,
) -> Result<Option<(Trim, ColumnRef)>, Reported> {
    let makers = inputs.iter().map(|read| trimmed_rows(workflow, read.from, tensor_at(workflow, *read)?));
    let makers: Vec<Option<(Origin, &ImageSpec)>> = makers.collect();
    let mut trimmed = makers.iter().enumerate().filter_map(|(input, maker)| Some((input, (*maker)?)));
    let Some((input, (maker, spec))) = trimmed.next() else { return Ok(None) };
    let node = &workflow.stages[stage];
    let model = &workflow.models[node.model.ok_or(Reported)?];
    let known = model.known.as_ref().ok_or(Reported)?;
    let is_open = |at: &usize| *at != input && takes[*at].fixed_row().is_none();
    let (axes, want) = (spec.axes(), takes[input]);
    // Lines of text fill the height.
    let (shortened, sides) = match spec.fit {
        Fit::Left => (&axes[1..], "its width has"),
        _ => (&axes[..], "height and width have"),
    };
    let fixed = shortened.iter().find_map(|axis| want.row.get(*axis)?.fixed());
    let placed = placed(workflow, inputs[input].from).filter(|placed| placed.from == maker);
    let giver = workflow.name_of(maker);
    let why = match (fixed, placed) {
        _ if known.plan.code.is_some() => "it runs code, which is given whole rows".to_owned(),
        (Some(_), _) => format!("its input `{}` is {want}: {sides} to be open", want.name),
        _ if node.batch().is_some_and(|batch| batch.iteration.is_some()) => {
            "its rows are states of a loop".to_owned()
        }
        _ if known.plan.batch_axis(&want.name) > 0 => {
            format!("items do not lie along the first axis of its input `{}`", want.name)
        }
        _ if known.opset < SLICE_BY_INPUT => {
            format!("its operators are of version {}, and {SLICE_BY_INPUT} is needed", known.opset)
        }
        _ if trimmed.next().is_some() => "only one input of a model can be trimmed".to_owned(),
        _ if model.tuning.wanted.provider != Provider::Cuda => {
            "TensorRT compiles it for one shape".to_owned()
        }
        (None, None) => format!(
            "`{}` does not pass on where pictures lie in its rows, as a stage does that reads from `{giver}` alone",
            workflow.name_of(inputs[input].from),
        ),
        (None, Some(placed)) => match (0..takes.len()).find(is_open) {
            None => return Ok(Some((Trim { input, axes }, placed))),
            Some(other) => {
                let other = &takes[other].name;
                format!("its input `{other}` is open, too, and is given whole rows")
            }
        },
    };
    let span = node.links.iter().flatten().next().map_or(node.name.span, |link| link.span);
    let model = &model.name.value;
    let is_trimmed =
        |stage: StageId| workflow.stages[stage.index()].written.iter().any(|key| key.value == "trim");
    let (what, help) = match maker.stage().is_some_and(is_trimmed) {
        true => ("`trim`", format!("leave `trim` of `{giver}` out")),
        false => ("the sizes", format!("give all variants of `{giver}` one size")),
    };
    cx.error(span, format!("{what} of stage `{giver}` cannot be had for model `{model}`: {why}"))
        .help(help)
        .fail()
}

fn tensor_at(workflow: &WorkflowTables, read: ColumnRef) -> Option<&TensorSpec> {
    let plan = workflow.stages[read.from.stage()?.index()].plan()?;
    plan.gives.0.get(read.column)?.ty.tensor()
}

/// The stage that made such rows and has them trimmed, where `from` is that stage or passes them on.
fn trimmed_rows<'a>(
    workflow: &'a WorkflowTables,
    from: Origin,
    rows: &TensorSpec,
) -> Option<(Origin, &'a ImageSpec)> {
    let node = &workflow.stages[from.stage()?.index()];
    let (plan, Some(Draft::Stage(draft))) = (node.plan()?, &node.draft) else { return None };
    let makes = |spec: &&ImageSpec| {
        let made = spec.tensor();
        spec.trim.is_some() && (made.dtype, &made.row) == (rows.dtype, &rows.row)
    };
    if let Some(spec) = draft.pixels().filter(makes) {
        return Some((from, spec));
    }
    let makes_rows = plan.gives.0.iter().any(|column| column.ty == ColumnType::Placement);
    let passes_on = matches!(plan.runs, Shape::Map(_)) && !makes_rows;
    let mut before = node.links.iter().flatten().filter(|_| passes_on);
    before.find_map(|link| trimmed_rows(workflow, link.target, rows))
}
