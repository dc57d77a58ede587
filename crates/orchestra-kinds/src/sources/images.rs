//! `kind = "images"`: picture files, one item each.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bincode::{Decode, Encode};
use orchestra_core::LeftOut;
use orchestra_core::data::{ColumnType, Refusal, Schema, Value};
use orchestra_core::shapes::{FetchRun, Opens};
use orchestra_plan::{
    ItemSchema, Items, Json, ObjectAccess, ReadOptions, Reported, SourceContext, TypedSource, settings,
};

use super::reading::read_file::LastFolder;
use super::reading::undecoded_picture::UndecodedPicture;
use crate::objects::{self, ReadObject};

settings! {
    pub struct Images {}
}

impl TypedSource for Images {
    const NAME: &'static str = "images";
    const ABOUT: &'static str = "Picture files: JPEG, PNG, WebP, BMP, TIFF and GIF, told apart by their content; [which of them are read](pictures.md). Of a TIFF \
         with several pages the first is taken, unless a stage `pages` takes each, and of an animation the first frame; the others are counted and said. \
         `paths` may name [objects](../guide/workflow-file.md#objects): `s3://bucket/pages/*.jpg`.";
    const LISTS_FILES: bool = false;
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    type Items = PictureFiles;

    fn connect(self, _: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, PictureFiles), Reported> {
        let gives = Schema::of("picture", ColumnType::Picture);
        let decoders = Some(orchestra_media::DECODERS);
        Ok((ItemSchema { gives, settings: Json::Null, decoders }, PictureFiles))
    }
}

#[derive(Debug, Encode, Decode)]
pub struct PictureFiles;

impl Items for PictureFiles {
    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        Box::new(PictureFile {
            picture: UndecodedPicture::new(options.max_pixels),
            folder: LastFolder::default(),
            objects: options.has_objects().then(objects::reader),
        })
    }

    fn opens(&self) -> Opens {
        Opens::OfItems(|locator| Some(Path::new(OsStr::from_bytes(locator))))
    }
}

/// The file or object at hand.
struct PictureFile {
    picture: UndecodedPicture,
    folder: LastFolder,
    objects: Option<Box<dyn ReadObject>>,
}

impl FetchRun for PictureFile {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, Refusal> {
        let bytes = self.picture.bytes_mut();
        match &mut self.objects {
            Some(objects) => objects.read(locator, bytes)?,
            None => self.folder.read_file(Path::new(OsStr::from_bytes(locator)), bytes)?,
        }
        Ok(bytes.len() as u64)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        show(&[Value::Picture(&self.picture)]);
    }

    fn left_out(&self) -> Vec<(LeftOut, u64)> {
        self.picture.left_out().into_iter().collect()
    }
}
