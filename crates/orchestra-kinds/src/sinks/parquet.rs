//! `kind = "parquet"`: Parquet files of many rows each, typed by the columns of what the sink reads.

use std::sync::Arc;

use orchestra_core::shapes::Encoder;
#[cfg(feature = "parquet")]
use orchestra_plan::ReadBack;
use orchestra_plan::{Fields, Input, Reported, TypedSink, Writes, settings};
use orchestra_store::ObjectOutput;

use crate::objects;

#[cfg(feature = "parquet")]
mod columns;
#[cfg(feature = "parquet")]
mod file;

settings! {
    pub struct ParquetSink {}
}

const ROWS_PER_FILE: u64 = 100_000;

impl TypedSink for ParquetSink {
    const NAME: &'static str = "parquet";
    const ABOUT: &'static str = "Parquet files of many rows: `path = \"pages.parquet\"` gives `pages-00000.parquet`, `pages-00001.parquet`, ..., each there once it is whole, \
         compressed with Snappy. Columns `item`, `index`, `source`, then those that it reads: a tensor is nested lists of its dimensions, classes are \
         a list of `{label, class, score}`, and parts a list of their columns. A column whose name is taken gets `result_` in front.";
    const WRITES: Writes = Writes::PartFiles;
    #[cfg(feature = "parquet")]
    const READ_BACK: Option<ReadBack> = Some(file::read_rows);
    const OBJECTS: fn() -> Result<Arc<dyn ObjectOutput>, String> = objects::output;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        let rows = fields.integer("rows_per_file").map_or(ROWS_PER_FILE, |rows| rows.value);
        connect(input, fields, rows)
    }
}

#[cfg(feature = "parquet")]
fn connect(
    input: &Input,
    fields: &mut Fields<'_, '_>,
    rows_per_file: u64,
) -> Result<Arc<dyn Encoder>, Reported> {
    match columns::RecordColumns::new(&input.gives) {
        Ok(rows) => Ok(Arc::new(file::ParquetRows { rows, rows_per_file })),
        Err(column) => {
            let help = "it writes tensors, classes, and lists of those";
            super::shared::cannot_write(&column, input, fields, help)
        }
    }
}

#[cfg(not(feature = "parquet"))]
fn connect(input: &Input, fields: &mut Fields<'_, '_>, _: u64) -> Result<Arc<dyn Encoder>, Reported> {
    let message = format!("{}: this program was built without Parquet", fields.what);
    let help = "build it with the feature: cargo build --release --features parquet; or use kind = \"jsonl\"";
    fields.diags.error(input.span, message).help(help).fail()
}
