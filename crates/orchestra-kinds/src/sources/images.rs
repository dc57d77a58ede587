//! `kind = "images"`: picture files, one item each.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::LeftOut;
use orchestra_core::data::{ColumnType, Refusal, Schema, Value};
use orchestra_core::shapes::{Fetch, FetchRun, KindSettings, Network, Opens};
use orchestra_plan::{SourceConnected, SourceContext, SourceKind};
use orchestra_store::ObjectStore;

use super::reading::read_file::LastFolder;
use super::reading::undecoded_picture::UndecodedPicture;
use crate::objects::{self, Protocol, ReadObject};

pub struct Images;

impl SourceKind for Images {
    fn name(&self) -> &'static str {
        "images"
    }

    fn about(&self) -> &'static str {
        "Picture files: JPEG, PNG, WebP, BMP, TIFF and GIF, told apart by their content; [which of them are read](pictures.md). Of a TIFF \
         with several pages the first is taken, unless a stage `pages` takes each, and of an animation the first frame; the others are counted and said. \
         `paths` may name [objects](../guide/workflow-file.md#objects): `s3://bucket/pages/*.jpg`."
    }

    fn objects(&self) -> Result<Arc<dyn ObjectStore>, String> {
        objects::store()
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        Some(SourceConnected {
            gives: Schema::of("picture", ColumnType::Picture),
            fetch: Arc::new(PictureFiles {
                max_pixels: source.limits.max_pixels,
                protocols: objects::protocols(source.urls),
            }),
            expand: None,
            names_repeat: false,
            settings: serde_json::Value::Null,
            decoders: Some(orchestra_media::DECODERS),
        })
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>> {
        Some(Arc::new(settings.read::<PictureFiles>()?))
    }
}

#[derive(Debug, Encode, Decode)]
struct PictureFiles {
    max_pixels: u64,
    /// How its objects are read; empty: it has files.
    protocols: Vec<Protocol>,
}

impl Fetch for PictureFiles {
    fn start(&self) -> Box<dyn FetchRun> {
        let objects = (!self.protocols.is_empty()).then(objects::reader);
        Box::new(PictureFile {
            picture: UndecodedPicture::new(self.max_pixels),
            folder: LastFolder::default(),
            objects,
        })
    }

    fn network(&self) -> Option<Network> {
        objects::network(&self.protocols)
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Images.name(), self)
    }

    fn opens(&self) -> Opens {
        match self.protocols.is_empty() {
            true => Opens::OfItems(|locator| Some(Path::new(OsStr::from_bytes(locator)))),
            false => objects::opens_none(),
        }
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
