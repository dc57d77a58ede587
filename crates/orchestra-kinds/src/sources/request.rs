//! `kind = "request"`: what a program asks about, one item each, of no list.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Schema, Value};
use orchestra_core::shapes::{FetchRun, FileAccess, RequestItem};
use orchestra_plan::{ItemSchema, Items, ReadOptions, Reported, SourceContext, TypedSource, settings};

use super::reading::columns::{DeclaredColumns, DeclaresColumns, TEXTS, item_schema};
use super::reading::fetch::fetch_into;
use super::reading::undecoded_picture::UndecodedPicture;

settings! {
    pub struct RequestSource {
        /// what each request brings, names with types: `text`, `text[2]`, or a tensor: `i64`, `f32[8]`, ...; `f64?` or `text?` may be missing; without `columns`, a
        /// request brings the bytes of a picture file
        columns: Option<DeclaredColumns<RequestSource>> => "a picture",
    }
}

impl DeclaresColumns for RequestSource {
    const TYPES: &'static [&'static str] = &["text", TEXTS];
}

impl TypedSource for RequestSource {
    const NAME: &'static str = "request";
    const ABOUT: &'static str = "What a program asks about that [embeds orchestra](../guide/library.md): a picture, or the columns of an item. Its records go back \
         through sinks of kind `reply`, and no run can be made of it.";
    const HAS_FILES: bool = false;
    const LISTS_FILES: bool = false;
    const NAMES_REPEAT: bool = true;
    type Items = RequestedItems;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, RequestedItems), Reported> {
        Ok(match self.columns {
            Some(declared) => {
                source.request = Some(RequestItem::Row);
                (item_schema::<Self>(&declared.0), RequestedItems::Row)
            }
            None => {
                source.request = Some(RequestItem::File);
                let gives = Schema::of("picture", ColumnType::Picture);
                let (settings, decoders) =
                    (serde_json::json!({ "kind": Self::NAME }), Some(orchestra_media::DECODERS));
                (ItemSchema { gives, settings, decoders }, RequestedItems::Picture)
            }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum RequestedItems {
    /// The bytes of a picture, which are what locates it.
    Picture,
    /// The row: nothing of it is read.
    Row,
}

impl Items for RequestedItems {
    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        match self {
            RequestedItems::Picture => {
                fetch_into(UndecodedPicture::new(options.max_pixels), |picture, locator| {
                    let bytes = picture.bytes_mut();
                    bytes.clear();
                    bytes.extend_from_slice(locator);
                    Ok(locator.len() as u64)
                })
            }
            RequestedItems::Row => Box::new(NoFetch),
        }
    }

    fn opens(&self) -> FileAccess {
        FileAccess::OfItems(|_| None)
    }

    fn are_read(&self) -> bool {
        *self == RequestedItems::Picture
    }
}

struct NoFetch;

impl FetchRun for NoFetch {
    fn fetch(&mut self, _: &[u8]) -> Result<u64, ItemError> {
        Err(ItemError::result("internal error: a request brings its row; this is a bug"))
    }

    fn with_row(&self, _: &mut dyn FnMut(&[Value<'_>])) {}
}
