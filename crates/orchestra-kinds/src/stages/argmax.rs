//! `kind = "argmax"`: the class with the largest score, for each place of a map.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Refusal, Schema, TensorView, Value};
use orchestra_core::shapes::{Emit, KindSettings, Map, MapRun};
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind, key,
};

use super::shared::best_classes::BestClasses;

pub struct Argmax;

const KEYS: [Key; 1] = [key(
    "axis",
    "integer",
    "0",
    "the dimension of the classes, counted from 0 and without the batch: 0 for `[C, height, width]`",
)
.from_to(0, 63)];

impl StageKind for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn about(&self) -> &'static str {
        "Gives the number of the class with the largest score: `classes`, a tensor of i64 without the dimension of the classes. Of equal scores the first \
         counts."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let axis = f.integer_or_default("axis");
        Some(Draft::Stage(Box::new(ArgmaxDraft { axis })))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<ArgmaxMap>()?))
    }
}

#[derive(Debug)]
struct ArgmaxDraft {
    axis: At<u64>,
}

impl Connect for ArgmaxDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let what = "a tensor of scores, which an infer stage gives";
        let is_scored = |spec: &TensorSpec| !spec.row.is_empty();
        let place = stage.column(0, what, |c| c.ty.stored().is_some_and(is_scored))?;
        let tensor = stage.inputs[0].gives.0[place].ty.stored()?.clone();
        let axis = self.axis.value as usize;
        if axis >= tensor.row.len() {
            let (name, n) = (stage.name, tensor.row.len());
            let message =
                format!("`axis` of stage `{name}` is {axis}, but `{}` has {n} dimensions", tensor.name);
            stage
                .diags
                .error(self.axis.span, message)
                .label(format!("it is {tensor}"))
                .help(format!("the first is 0 and the last {}; the batch does not count", n - 1));
            return None;
        }
        let mut row = tensor.row.clone();
        row.remove(axis);
        let spec = TensorSpec { name: "classes".into(), dtype: DType::I64, row, batch: Dim::Dynamic };
        let about = format!("best of dimension {axis}");
        Some(StageConnected {
            gives: Schema::of("classes", ColumnType::Tensor(spec)),
            reads: vec![(0, place)],
            settings: serde_json::json!({ "output": place, "axis": axis }),
            details: vec![about.clone()],
            about,
            runs: Runs::Map(Arc::new(ArgmaxMap { axis, cost: tensor.row_len() })),
        })
    }
}

#[derive(Debug, Clone, Encode, Decode)]
struct ArgmaxMap {
    axis: usize,
    /// Numbers of a row, where that is known.
    cost: Option<usize>,
}

impl Map for ArgmaxMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(ArgmaxRun { axis: self.axis, best: BestClasses::default(), classes: Vec::new() })
    }

    fn cost(&self) -> usize {
        self.cost.unwrap_or(usize::MAX)
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Argmax.name(), self)
    }
}

struct ArgmaxRun {
    axis: usize,
    best: BestClasses,
    classes: Vec<u8>,
}

impl MapRun for ArgmaxRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [scores] = inputs else { return Err(Refusal::result("the scores are missing")) };
        scores.with_tensor(|view| {
            self.best.find(view, self.axis)?;
            self.classes.clear();
            self.classes.extend(self.best.classes.iter().flat_map(|class| i64::from(*class).to_ne_bytes()));
            let mut shape = view.shape.to_vec();
            shape.remove(self.axis);
            let classes =
                TensorView { name: "classes", dtype: DType::I64, shape: &shape, data: &self.classes };
            emit.row(&[Value::Tensor(classes)])
        })
    }
}
