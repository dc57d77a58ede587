//! `kind = "pages"`: each page of a picture file as a picture of its own, a part of the item.

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{Column, ColumnType, ItemError, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Emit, FanOut, RowWork};
use orchestra_plan::{Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, settings};

settings! {
    #[derive(Debug, Encode, Decode)]
    pub struct PagesStage {}
}

impl TypedStage for PagesStage {
    const NAME: &'static str = "pages";
    const ABOUT: &'static str = "Takes the pages of a TIFF apart: each is a part of the item, with the columns `picture` and `page` (i64, from 1). A file of one picture has one page. Smaller \
         copies of pages and masks are none. It reads the pictures of a source; stages behind it read it in place of the source: `from = \"pages\"`. `gather` brings \
         what came of the pages together again.";
    type Work = Self;
}

impl Connect for PagesStage {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let picture = stage.column(0, "pictures, which a source gives", |c| c.ty == ColumnType::Picture)?;
        let input = &stage.inputs[0];
        if !input.is_source {
            let message =
                format!("stage `{}` takes files apart, and `{}` gives none", stage.name, input.name);
            return stage.error(input.span, message).help("name the source of the pictures").fail();
        }
        let page = ColumnType::Tensor(fixed_tensor("page", DType::I64, &[]));
        let column = |name: &str, ty| Column { name: name.to_owned(), ty };
        Ok(StageConnected {
            gives: Schema(vec![column("picture", ColumnType::Picture), column("page", page)]),
            reads: vec![(0, picture)],
            settings: self.json(),
            details: vec!["each page".to_owned()],
            about: "each page a part".to_owned(),
            runs: Runs::map::<Self>(Self {}, None),
        })
    }
}

impl RowWork for PagesStage {
    type Scratch = ();
    const FAN: FanOut = FanOut::Parts;

    fn apply(&self, (): &mut (), row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        let [Value::Picture(file)] = row else {
            return Err(ItemError::result(
                "internal error: a stage of pages was given no picture; this is a bug",
            ));
        };
        let n = file.n_pages()?;
        emit.parts(n)?;
        for page in 0..n {
            let number = (page as i64 + 1).to_ne_bytes();
            let view = TensorView { name: "page", dtype: DType::I64, shape: &[], data: &number };
            file.with_page(page, &mut |picture| emit.row(&[Value::Picture(picture), Value::Tensor(view)]))?;
        }
        Ok(())
    }
}
