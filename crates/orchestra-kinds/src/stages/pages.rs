//! `kind = "pages"`: each page of a picture file as a picture of its own, a part of the item.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{Column, ColumnType, Refusal, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Emit, Fan, KindSettings, Map, MapRun};
use orchestra_plan::{Connect, Draft, Fields, Limits, Runs, StageConnected, StageContext, StageKind};

pub struct Pages;

impl StageKind for Pages {
    fn name(&self) -> &'static str {
        "pages"
    }

    fn about(&self) -> &'static str {
        "Takes the pages of a TIFF apart: each is a part of the item, with the columns `picture` and `page` (i64, from 1). A file of one picture has one page. Smaller \
         copies of pages and masks are none. It reads the pictures of a source; stages behind it read it in place of the source: `from = \"pages\"`. `gather` brings \
         what came of the pages together again."
    }

    fn read(&self, _: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        Some(Draft::Stage(Box::new(PagesDraft)))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<PagesMap>()?))
    }
}

#[derive(Debug)]
struct PagesDraft;

impl Connect for PagesDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let picture = stage.column(0, "pictures, which a source gives", |c| c.ty == ColumnType::Picture)?;
        let input = &stage.inputs[0];
        if !input.is_source {
            let message =
                format!("stage `{}` takes files apart, and `{}` gives none", stage.name, input.name);
            stage.diags.error(input.span, message).help("name the source of the pictures");
            return None;
        }
        let page = ColumnType::Tensor(fixed_tensor("page", DType::I64, &[]));
        let column = |name: &str, ty| Column { name: name.to_owned(), ty };
        Some(StageConnected {
            gives: Schema(vec![column("picture", ColumnType::Picture), column("page", page)]),
            reads: vec![(0, picture)],
            settings: serde_json::json!({}),
            details: vec!["each page".to_owned()],
            about: "each page a part".to_owned(),
            runs: Runs::Map(Arc::new(PagesMap)),
        })
    }
}

#[derive(Debug, Clone, Encode, Decode)]
struct PagesMap;

impl Map for PagesMap {
    fn fan(&self) -> Fan {
        Fan::Parts
    }

    fn start(&self) -> Box<dyn MapRun> {
        Box::new(self.clone())
    }

    fn cost(&self) -> usize {
        usize::MAX
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Pages.name(), self)
    }
}

impl MapRun for PagesMap {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [Value::Picture(file)] = inputs else {
            return Err(Refusal::result(
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
