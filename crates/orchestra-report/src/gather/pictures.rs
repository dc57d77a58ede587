//! PictureFinder in the page: the bytes of small files as they are, which the reader's browser decodes. No picture is decoded here, and nothing but a
//! picture is taken in: a list of items may name any file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orchestra_store::{ListingReader, OutputFolder};

/// Bytes of one picture, and of all of them.
const LARGEST: u64 = 96 << 10;
const MOST_BYTES: u64 = 360 << 10;
/// And of all where a page has many other things.
const FEW_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thumbnail {
    /// The name of its item, or of its file.
    pub name: String,
    /// `data:image/png;base64,..`
    pub url: String,
}

/// Finds the files of items by the lists of the run.
#[derive(Debug)]
pub struct PictureFinder {
    folder: PathBuf,
    lists: BTreeMap<String, Option<ListingReader>>,
    bytes: u64,
    most_bytes: u64,
    n_left_out: usize,
}

impl PictureFinder {
    /// `is_full`: the page has many other things.
    pub fn new(folder: &Path, is_full: bool) -> Self {
        let most_bytes = if is_full { FEW_BYTES } else { MOST_BYTES };
        Self { folder: folder.to_owned(), lists: BTreeMap::new(), bytes: 0, most_bytes, n_left_out: 0 }
    }

    /// The picture of an item, where the item is a small file with a picture.
    pub fn of_item(&mut self, source: &str, index: u64, name: &str) -> Option<Thumbnail> {
        if self.bytes >= self.most_bytes {
            self.n_left_out += 1;
            return None;
        }
        let path = self.path_of(source, index)?;
        self.of_file(&path, name)
    }

    pub fn of_file(&mut self, path: &Path, name: &str) -> Option<Thumbnail> {
        // A pipe would never end.
        let size = path.metadata().ok().filter(|meta| meta.is_file())?.len();
        if !path.is_absolute() || size > LARGEST || self.bytes + size > self.most_bytes {
            self.n_left_out += usize::from(size > LARGEST || self.bytes + size > self.most_bytes);
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(LARGEST).read_to_end(&mut bytes).ok()?;
        let media_type = media_type(&bytes)?;
        self.bytes += size;
        let url = format!("data:{media_type};base64,{}", STANDARD.encode(&bytes));
        Some(Thumbnail { name: name.to_owned(), url })
    }

    /// What is not in the page, as a sentence.
    pub fn left_out(&self) -> Option<String> {
        (self.n_left_out > 0).then(|| {
            format!(
                "Of pictures, only files of at most {} kB are shown, and {} kB in all: {} were left out.",
                LARGEST >> 10,
                self.most_bytes >> 10,
                self.n_left_out
            )
        })
    }

    fn path_of(&mut self, source: &str, index: u64) -> Option<PathBuf> {
        let list = self.lists.entry(source.to_owned()).or_insert_with(|| {
            // A name is one part of a path: the planner allows no other.
            let is_name = !source.contains('/');
            let path = self.folder.join(OutputFolder::private_file(&format!("items-{source}")));
            is_name.then(|| ListingReader::open_unfinished(&path).ok()).flatten()
        });
        let reader = list.as_mut()?;
        reader.skip_to(index).ok()?;
        let (_, locator) = reader.read().ok()??;
        Some(PathBuf::from(OsStr::from_bytes(locator)))
    }
}

/// What browsers show as a picture, by its first bytes.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'B', b'M', ..] => Some("image/bmp"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}
