//! `kind = "files"`: files of any kind, one item each.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bincode::{Decode, Encode};
use orchestra_core::data::{Column, ColumnType, ItemError, Schema, TensorView, Value};
use orchestra_core::shapes::{FetchRun, FileAccess};
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    ItemSchema, Items, Json, ObjectAccess, ReadOptions, Reported, SourceContext, TypedSource, settings,
};
use orchestra_store::escape;

use super::reading::read_file::LastFolder;
use crate::objects::{self, ReadObject};

settings! {
    pub struct FilesSource {}
}

impl TypedSource for FilesSource {
    const NAME: &'static str = "files";
    const ABOUT: &'static str = "Files of any kind, of at most 1 GiB: `content` (bytes), `path` (text, absolute, or the URL of an object; a byte that is no UTF-8 as `\\xFF`) and \
         `size` (i64, in bytes). [Python](../guide/python.md) takes all of them, of files of at most 256 MiB. `paths` may name [objects](../guide/workflow-file.md#objects): `s3://bucket/sounds/*.wav`.";
    const LISTS_FILES: bool = false;
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    type Items = WholeFiles;

    fn connect(self, _: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, WholeFiles), Reported> {
        let size =
            TensorSpec { name: "size".into(), dtype: DType::I64, row: Vec::new(), batch: Dim::Dynamic };
        let column = |name: &str, ty| Column { name: name.to_owned(), ty };
        let gives = Schema(vec![
            column("content", ColumnType::Bytes(String::new())),
            column("path", ColumnType::Text),
            column("size", ColumnType::Tensor(size)),
        ]);
        Ok((ItemSchema { gives, settings: Json::Null, decoders: None }, WholeFiles))
    }
}

#[derive(Debug, Encode, Decode)]
pub struct WholeFiles;

impl Items for WholeFiles {
    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        Box::new(WholeFile {
            objects: options.has_objects().then(objects::reader),
            folder: LastFolder::default(),
            content: Vec::new(),
            path: String::new(),
        })
    }

    fn opens(&self) -> FileAccess {
        FileAccess::OfItems(|locator| Some(Path::new(OsStr::from_bytes(locator))))
    }
}

/// The file or object at hand.
struct WholeFile {
    objects: Option<Box<dyn ReadObject>>,
    folder: LastFolder,
    content: Vec<u8>,
    path: String,
}

impl FetchRun for WholeFile {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, ItemError> {
        let path = Path::new(OsStr::from_bytes(locator));
        match &mut self.objects {
            Some(objects) => objects.read(locator, &mut self.content)?,
            None => self.folder.read_file(path, &mut self.content)?,
        }
        self.path = escape(path);
        Ok(self.content.len() as u64)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        let size = (self.content.len() as i64).to_ne_bytes();
        let size = TensorView { name: "size", dtype: DType::I64, shape: &[], data: &size };
        show(&[Value::Bytes(&self.content), Value::Text(&self.path), Value::Tensor(size)]);
    }
}
