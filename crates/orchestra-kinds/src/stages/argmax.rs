//! `kind = "argmax"`: the class with the largest score, for each place of a map.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Schema, TensorView, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    Connect, Reported, Runs, Settings, Spanned, StageConnected, StageContext, TypedStage, settings,
};

use super::shared::best_classes::BestClasses;

settings! {
    #[derive(Debug)]
    pub struct Argmax {
        /// the dimension of the classes, counted from 0 and without the batch: 0 for `[C, height, width]`
        #[range(0, 63)]
        axis: Spanned<u64> = 0,
    }
}

impl TypedStage for Argmax {
    const NAME: &'static str = "argmax";
    const ABOUT: &'static str = "Gives the number of the class with the largest score: `classes`, a tensor of i64 without the dimension of the classes. Of equal scores the first \
         counts.";
    type Work = Axis;
}

impl Connect for Argmax {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let what = "a tensor of scores, which an infer stage gives";
        let is_scored = |spec: &TensorSpec| !spec.row.is_empty();
        let place = stage.column(0, what, |c| c.ty.stored().is_some_and(is_scored))?;
        let tensor = stage.inputs[0].gives.0[place].ty.stored().ok_or(Reported)?.clone();
        let axis = self.axis.value as usize;
        if axis >= tensor.row.len() {
            let (name, n) = (stage.name, tensor.row.len());
            let message =
                format!("`axis` of stage `{name}` is {axis}, but `{}` has {n} dimensions", tensor.name);
            return stage
                .error(self.axis.span, message)
                .label(format!("it is {tensor}"))
                .help(format!("the first is 0 and the last {}; the batch does not count", n - 1))
                .fail();
        }
        let mut row = tensor.row.clone();
        row.remove(axis);
        let spec = TensorSpec { name: "classes".into(), dtype: DType::I64, row, batch: Dim::Dynamic };
        let about = format!("best of dimension {axis}");
        Ok(StageConnected {
            gives: Schema::of("classes", ColumnType::Tensor(spec)),
            reads: vec![(0, place)],
            settings: self.json(),
            details: vec![about.clone()],
            about,
            runs: Runs::map::<Self>(Axis(axis), tensor.row_len()),
        })
    }
}

/// Along which the best class is found.
#[derive(Debug, Encode, Decode)]
pub struct Axis(usize);

impl RowWork for Axis {
    type Scratch = (BestClasses, Vec<u8>);

    fn apply(
        &self,
        (best, classes): &mut Self::Scratch,
        row: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError> {
        row[0].with_tensor(|view| {
            best.find(view, self.0)?;
            classes.clear();
            classes.extend(best.classes.iter().flat_map(|class| i64::from(*class).to_ne_bytes()));
            let mut shape = view.shape.to_vec();
            shape.remove(self.0);
            let view = TensorView { name: "classes", dtype: DType::I64, shape: &shape, data: classes };
            emit.row(&[Value::Tensor(view)])
        })
    }
}
