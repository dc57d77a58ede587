//! `kind = "parquet"`: the rows of Parquet files, one item each.

#[cfg(feature = "parquet")]
use orchestra_core::shapes::KindSettings;
use orchestra_plan::{ItemSchema, ObjectAccess, Reported, SourceContext, TypedSource, settings};
#[cfg(feature = "parquet")]
use orchestra_store::ListError;

use super::reading::columns::{DeclaredColumns, DeclaresColumns};
use crate::objects;

#[cfg(feature = "parquet")]
mod leaves;
#[cfg(feature = "parquet")]
mod open_file;
#[cfg(feature = "parquet")]
mod rows;
#[cfg(feature = "parquet")]
mod whole_file;

settings! {
    pub struct ParquetSource {
        /// names of columns with their types: `text`, `bytes`, `picture` (the bytes of a file, or its path as text, relative to the Parquet file), or a tensor:
        /// `i64`, `f32`, for a list of always 8 numbers `f32[8]`, ..; a field of a struct is `"image.bytes"`. Without it, all of them: whole numbers as i32 or
        /// i64, others as f32 or f64, binary as bytes; dates and times must be named, as `i64`
        columns: Option<DeclaredColumns<ParquetSource>> => "all",
    }
}

impl DeclaresColumns for ParquetSource {
    const TYPES: &'static [&'static str] = &["text", "bytes", "picture"];
}

impl TypedSource for ParquetSource {
    const NAME: &'static str = "parquet";
    const ABOUT: &'static str = "The rows of Parquet files, whatever they are compressed with but LZO; an item is called `file.parquet[row]`. A loader reads the rows of a row group \
         one after the other, and has a page of each of these columns in memory, and 64 rows of them.";
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    #[cfg(feature = "parquet")]
    type Items = rows::ParquetItems;
    /// There are none.
    #[cfg(not(feature = "parquet"))]
    type Items = super::range::RangeItems;

    #[cfg(feature = "parquet")]
    fn connect(
        self,
        source: &mut SourceContext<'_, '_>,
    ) -> Result<(ItemSchema, rows::ParquetItems), Reported> {
        rows::connect(self.columns.map(|declared| declared.0), source)
    }

    #[cfg(feature = "parquet")]
    fn describe(question: &KindSettings, file: &std::path::Path) -> Result<Vec<u8>, ListError> {
        rows::answer(question, file)
    }

    #[cfg(not(feature = "parquet"))]
    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, Self::Items), Reported> {
        source
            .error("this program was built without Parquet")
            .help("build it with the feature: cargo build --release --features parquet")
            .fail()
    }
}
