//! `kind = "images"`: picture files, one item each.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Schema};
use orchestra_core::shapes::{FetchRun, FileAccess};
use orchestra_plan::{
    ItemSchema, Items, Json, ObjectAccess, ReadOptions, Reported, SourceContext, TypedSource, settings,
};

use super::reading::fetch::fetch_into;
use super::reading::read_file::LastFolder;
use super::reading::undecoded_picture::UndecodedPicture;
use crate::objects;

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
        let mut folder = LastFolder::default();
        let mut objects = options.has_objects().then(objects::reader);
        fetch_into(UndecodedPicture::new(options.max_pixels), move |picture, locator| {
            let bytes = picture.bytes_mut();
            match &mut objects {
                Some(objects) => objects.read(locator, bytes)?,
                None => folder.read_file(Path::new(OsStr::from_bytes(locator)), bytes)?,
            }
            Ok(bytes.len() as u64)
        })
    }

    fn opens(&self) -> FileAccess {
        FileAccess::OfItems(|locator| Some(Path::new(OsStr::from_bytes(locator))))
    }
}
