//! Which input of a model is trimmed: rows of pictures of which the model computes no more than the picture fills.

use orchestra_core::data::ColumnType;
use orchestra_core::{Fit, ImageSpec, Provider, TensorSpec, Trim};

use super::{Wired, Wiring, name_of};
use crate::kind::{Draft, Runs};
use crate::plan::{ColumnRef, Origin};
use crate::raw::RawStage;

/// The version of ONNX's operators in which `Slice` takes its ends as an input.
const SLICE_BY_INPUT: i64 = 10;

impl Wiring<'_> {
    /// The input of the model whose rows are trimmed, and the column that says to what; the outer `None` after an error.
    pub(super) fn trim(
        &mut self,
        stage: usize,
        raw: &RawStage,
        model: usize,
        inputs: &[ColumnRef],
        loops: bool,
    ) -> Option<Option<(Trim, ColumnRef)>> {
        let makers = inputs.iter().map(|read| self.trimmed_rows(read.from, self.tensor_at(*read)?));
        let makers: Vec<Option<(Origin, &ImageSpec)>> = makers.collect();
        let mut trimmed = makers.iter().enumerate().filter_map(|(input, maker)| Some((input, (*maker)?)));
        let Some((input, (maker, spec))) = trimmed.next() else { return Some(None) };
        let known = self.models[model].as_ref()?;
        let is_open = |at: &usize| *at != input && known.plan.inputs[*at].fixed_row().is_none();
        let (axes, want) = (spec.axes(), &known.plan.inputs[input]);
        // Lines of text fill the height.
        let (shortened, sides) = match spec.fit {
            Fit::Left => (&axes[1..], "its width has"),
            _ => (&axes[..], "height and width have"),
        };
        let fixed = shortened.iter().find_map(|axis| want.row.get(*axis)?.fixed());
        let placed = self.placed(inputs[input].from).filter(|placed| placed.from == maker);
        let tuning = &self.workflow.models[model].tuning.wanted;
        let why = match (fixed, placed) {
            _ if known.plan.code.is_some() => "it runs code, which is given whole rows".to_owned(),
            (Some(_), _) => format!("its input `{}` is {want}: {sides} to be open", want.name),
            _ if loops => "its rows are states of a loop".to_owned(),
            _ if known.opset < SLICE_BY_INPUT => {
                format!("its operators are of version {}, and {SLICE_BY_INPUT} is needed", known.opset)
            }
            _ if trimmed.next().is_some() => "only one input of a model can be trimmed".to_owned(),
            _ if tuning.provider != Provider::Cuda => "TensorRT compiles it for one shape".to_owned(),
            (None, None) => format!(
                "`{}` does not pass on where pictures lie in its rows, as a stage does that reads from `{}` alone",
                name_of(self.workflow, inputs[input].from),
                name_of(self.workflow, maker)
            ),
            (None, Some(placed)) => match (0..known.plan.inputs.len()).find(is_open) {
                None => return Some(Some((Trim { input, axes }, placed))),
                Some(other) => {
                    format!(
                        "its input `{}` is open, too, and is given whole rows",
                        known.plan.inputs[other].name
                    )
                }
            },
        };
        let (giver, name) = (name_of(self.workflow, maker), &self.workflow.models[model].name.value);
        let span = self.graph.reads[stage].iter().flatten().next().map_or(raw.name.span, |link| link.span);
        self.diags
            .error(span, format!("`trim` of stage `{giver}` cannot be had for model `{name}`: {why}"))
            .help(format!("leave `trim` of `{giver}` out"));
        None
    }

    fn tensor_at(&self, read: ColumnRef) -> Option<&TensorSpec> {
        let stage = self.wired[read.from.stage()?.index()].as_ref()?;
        stage.gives().0.get(read.column)?.ty.tensor()
    }

    /// The stage that made such rows and has them trimmed, where `from` is that stage or passes them on.
    fn trimmed_rows(&self, from: Origin, rows: &TensorSpec) -> Option<(Origin, &ImageSpec)> {
        let at = from.stage()?.index();
        let Some(Wired::Stage { connected, .. }) = self.wired[at].as_ref() else { return None };
        let Some(Draft::Stage(draft)) = &self.workflow.stages[at].draft else { return None };
        let makes = |spec: &&ImageSpec| {
            let made = spec.tensor();
            (made.dtype, &made.row) == (rows.dtype, &rows.row)
        };
        if let Some(spec) = draft.trims().filter(makes) {
            return Some((from, spec));
        }
        let makes_rows = connected.gives.0.iter().any(|column| column.ty == ColumnType::Placement);
        let passes_on = matches!(connected.runs, Runs::Map(_)) && !makes_rows;
        let mut before = self.graph.reads[at].iter().flatten().filter(|_| passes_on);
        before.find_map(|link| self.trimmed_rows(link.target, rows))
    }
}
