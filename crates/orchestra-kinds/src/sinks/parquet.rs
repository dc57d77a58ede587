//! `kind = "parquet"`: Parquet files of many rows each, typed by the columns of what the sink reads.

use std::sync::Arc;

use orchestra_core::shapes::Encoder;
#[cfg(feature = "parquet")]
use orchestra_plan::ReadBack;
use orchestra_plan::{Fields, Input, SinkKind, Writes};
use orchestra_store::ObjectOutput;

use crate::objects;

#[cfg(feature = "parquet")]
mod columns;
#[cfg(feature = "parquet")]
mod file;

pub struct Parquet;

const ROWS_PER_FILE: u64 = 100_000;

impl SinkKind for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn about(&self) -> &'static str {
        "Parquet files of many rows: `path = \"pages.parquet\"` gives `pages-00000.parquet`, `pages-00001.parquet`, ..., each there once it is whole, \
         compressed with Snappy. Columns `item`, `index`, `source`, then those that it reads: a tensor is nested lists of its dimensions, classes are \
         a list of `{label, class, score}`, and parts a list of their columns. A column whose name is taken gets `result_` in front."
    }

    fn extension(&self) -> &'static str {
        "parquet"
    }

    fn writes(&self) -> Writes {
        Writes::PartFiles
    }

    #[cfg(feature = "parquet")]
    fn read_back(&self) -> Option<ReadBack> {
        Some(file::read_rows)
    }

    fn objects(&self) -> Result<Arc<dyn ObjectOutput>, String> {
        objects::output()
    }

    fn connect(&self, input: &Input, fields: &mut Fields<'_, '_>) -> Option<Arc<dyn Encoder>> {
        let rows = fields.integer("rows_per_file").map_or(ROWS_PER_FILE, |rows| rows.value);
        connect(input, fields, rows)
    }
}

#[cfg(feature = "parquet")]
fn connect(input: &Input, fields: &mut Fields<'_, '_>, rows_per_file: u64) -> Option<Arc<dyn Encoder>> {
    match columns::Rows::new(&input.gives) {
        Ok(rows) => Some(Arc::new(file::ParquetRows { rows, rows_per_file })),
        Err(column) => {
            let message = format!("{} cannot write `{}` of stage `{}`", fields.what, column.name, input.name);
            let diagnostic = fields.diags.error(input.span, message).label(format!("it is {}", column.ty));
            diagnostic.help("it writes tensors, classes, and lists of those");
            None
        }
    }
}

#[cfg(not(feature = "parquet"))]
fn connect(input: &Input, fields: &mut Fields<'_, '_>, _: u64) -> Option<Arc<dyn Encoder>> {
    let message = format!("{}: this program was built without Parquet", fields.what);
    fields
        .diags
        .error(input.span, message)
        .help("build it with the feature: cargo build --release --features parquet; or use kind = \"jsonl\"");
    None
}
