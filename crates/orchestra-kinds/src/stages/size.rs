//! `kind = "size"`: the width and the height of what a model sees, as a tensor row that the model can read.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, Placement};
use orchestra_plan::{Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings};

settings! {
    #[derive(Debug, Encode, Decode)]
    pub struct Size {}
}

impl TypedStage for Size {
    const NAME: &'static str = "size";
    const ABOUT: &'static str = "Gives `size`, i64[2]: width and height, in this order, of the rows of pixels of an `image` or `crop` stage, padding included; where they are trimmed, of what is left. It feeds the \
         input `orig_target_sizes` of RT-DETR and D-FINE exports, which multiply their boxes by it: \
         `inputs = { images = \"small\", orig_target_sizes = \"size\" }`. Their boxes are then in pixels of what the model sees, and `detect` brings \
         them back to the picture.";
    type Work = Self;
}

impl Connect for Size {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let input = stage.only_input("what an image or crop stage gives", "make a size stage for each")?;
        let placed = input.gives.0.iter().position(|column| column.ty == ColumnType::Placement);
        let Some(placed) = placed else {
            let message =
                format!("stage `{}` cannot tell how large the rows of `{}` are", stage.name, input.name);
            return stage
                .error(input.span, message)
                .label(format!("{} gives no pixels for a model", input.described()))
                .help("name the image or crop stage that feeds the model")
                .fail();
        };
        let about = "width and height of what the model sees".to_owned();
        Ok(StageConnected {
            gives: Schema::of("size", ColumnType::Tensor(fixed_tensor("size", DType::I64, &[2]))),
            reads: vec![(0, placed)],
            settings: self.json(),
            details: vec!["width, height".to_owned()],
            about,
            runs: Runs::map::<Self>(Self {}, Some(2)),
        })
    }
}

impl RowWork for Size {
    type Scratch = ();

    fn apply(&self, (): &mut (), row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        let [width, height] = Placement::of(&row[0])?.row.map(|side| i64::from(side).to_ne_bytes());
        let data = [width, height].concat();
        emit.row(&[Value::Tensor(TensorView { name: "size", dtype: DType::I64, shape: &[2], data: &data })])
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::{each_row, over_wire};
    use super::*;

    #[test]
    fn it_is_the_size_of_the_row_and_not_of_the_picture_also_in_another_process() {
        let placed =
            Placement { row: [96, 64], picture: [300, 200], to_picture: [3.0, 0.0, 1.0, 0.0, 3.0, 2.0] };
        let map = over_wire::<Size>(Size {});
        let (mut run, mut sides) = (map.start(), Vec::new());
        let mut emit = each_row(|row| {
            let [Value::Tensor(view)] = row else { panic!("{row:?}") };
            sides.extend(view.data.as_chunks().0.iter().map(|bytes| i64::from_ne_bytes(*bytes)));
        });
        run.apply(&[Placement::value(&placed.bytes())], &mut emit).unwrap();
        assert!(run.apply(&[Value::Text("large")], &mut emit).is_err());
        drop(emit);
        assert_eq!(sides, [96, 64], "width first");
    }
}
