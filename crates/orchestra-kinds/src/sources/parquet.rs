//! `kind = "parquet"`: the rows of Parquet files, one item each.

#[cfg(feature = "parquet")]
use orchestra_core::shapes::{Fetch, KindSettings};
use orchestra_plan::{Key, SourceConnected, SourceContext, SourceKind, key};
use orchestra_store::ObjectStore;
#[cfg(feature = "parquet")]
use orchestra_store::{Expand, ListError};
#[cfg(feature = "parquet")]
use std::path::Path;
use std::sync::Arc;

use crate::objects;

#[cfg(feature = "parquet")]
mod leaves;
#[cfg(feature = "parquet")]
mod open_file;
#[cfg(feature = "parquet")]
mod rows;
#[cfg(feature = "parquet")]
mod whole_file;

pub struct Parquet;

const KEYS: [Key; 1] = [key(
    "columns",
    "table",
    "all",
    "names of columns with their types: `text`, `bytes`, `picture` (the bytes of a file, or its path as text, relative to the Parquet file), or a tensor: \
     `i64`, `f32`, for a list of always 8 numbers `f32[8]`, ..; a field of a struct is `\"image.bytes\"`. Without it, all of them: whole numbers as i32 or \
     i64, others as f32 or f64, binary as bytes; dates and times must be named, as `i64`",
)];

impl SourceKind for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn about(&self) -> &'static str {
        "The rows of Parquet files, whatever they are compressed with but LZO; an item is called `file.parquet[row]`. A loader reads the rows of a row group \
         one after the other, and has a page of each of these columns in memory, and 64 rows of them."
    }

    fn objects(&self) -> Result<Arc<dyn ObjectStore>, String> {
        objects::store()
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    #[cfg(feature = "parquet")]
    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        rows::connect(source)
    }

    #[cfg(not(feature = "parquet"))]
    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let message = format!("{}: this program was built without Parquet", source.fields.what);
        source
            .fields
            .diags
            .error(source.fields.span, message)
            .help("build it with the feature: cargo build --release --features parquet");
        None
    }

    #[cfg(feature = "parquet")]
    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>> {
        rows::revive(settings)
    }

    #[cfg(feature = "parquet")]
    fn revive_expand(&self, settings: &KindSettings) -> Option<Arc<dyn Expand>> {
        rows::revive_expand(settings)
    }

    #[cfg(feature = "parquet")]
    fn describe(&self, question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        rows::answer(question, file)
    }
}
