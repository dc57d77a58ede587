//! The items of a source by their numbers, readable from the first one on while the others are being listed. It opens no item, and
//! knows nothing of its readers.
//!
//! It names items and never opens them. The list lives in a file, so that a million items cost no memory: manifests are read and folders
//! walked as a stream, each folder sorted by an external merge sort of bounded memory. A [`Catalog`] is read back as a stream while it grows.
//!
//! **Order.** Items of `paths` are sorted by the bytes of their path, over all entries together, and each path is listed once.
//! Items of a manifest stay in the order of the manifest, one item per row.
//!
//! **What an entry of `paths` takes.** A path that exists as written is taken literally. A folder gives every regular file
//! below it, links followed, hidden files and folders (see [`is_hidden`]) passed over. A glob (`*`, `?`, `[..]`,
//! `{a,b}`, and `**` for any number of folders) gives the regular files that it matches. A link that leads nowhere is listed: it
//! then fails by name, rather than vanish. A single file is listed whatever it is. Beside the manifest of a finished run, a folder or glob takes of
//! the files of its kind only the parts that it names.
//!
//! **Names.** The name of an item is its path relative to the root of the source: a folder entry itself, the fixed leading part of
//! a glob, the folder of a single file, and with several entries their deepest common folder. Names are text: a byte that is not
//! UTF-8 is written `\xFF`, a backslash `\\`, so that different files always have different names.

mod error;
mod expand;
mod extend;
mod extent;
mod folder_walk;
mod growth;
mod item_name;
mod kept_files;
mod listed_file;
mod lister;
mod listing_file;
mod listing_reader;
mod made_rows;
mod manifest;
mod objects;
mod passed_over;
mod pattern;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use serde::Serialize;

pub use self::error::{ListError, StoreTrouble};
pub use self::expand::{Expand, FileKinds, Found, PushFound};
pub use self::extend::{Extension, extend_listing, relist};
pub use self::extent::Extent;
pub use self::growth::Growth;
pub use self::item_name::escape;
use self::lister::{Lister, list};
pub use self::lister::{first_item, write_items, write_listing};
use self::listing_file::ListingWriter;
pub use self::listing_reader::{ListingReader, ListingSummary};
pub use self::made_rows::{MadeRows, append_row};
pub use self::objects::{Object, ObjectPage, ObjectStore, Objects, SourceStore, is_url, one_by_one};
pub use self::passed_over::{PassedOver, PassedOverCounts, is_hidden, is_hidden_part};
use self::pattern::PathsEntry;

/// What a finished run puts beside its part files: it names them. No folder, prefix or glob takes it for an item.
pub const MANIFEST: &str = "_manifest.json";
/// What parts begin with that hold no rows: each line of them names a file.
pub const INDEX: &str = "_index-";

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ListingSpec {
    /// Files, folders (recursive) and globs, as written in the workflow file.
    Paths {
        /// What relative paths are relative to: the workflow file's folder. Absolute.
        base: PathBuf,
        /// The entries, as written.
        patterns: Vec<String>,
    },
    /// Objects, prefixes and globs of stores, as written in the workflow file.
    Objects {
        /// The entries, as written: each [`is_url`].
        urls: Vec<String>,
        /// What speaks to their stores.
        #[serde(skip)]
        store: SourceStore,
    },
    /// A list of paths in a file.
    ///
    /// `.csv` and `.tsv`: the column named `file` or `path` (also `filename`, `filepath`, `file_name`, `file_path`, `image`,
    /// `image_path`), or the first column of every row where the first row has no such name. `.jsonl` and `.ndjson`: a string, or an
    /// object with `file` or `path`, per line. Any other name, and standard input: `{` first means JSON lines, a header with one of
    /// those columns means CSV, anything else one path per line.
    Manifest {
        /// The file, absolute; `None` is standard input.
        path: Option<PathBuf>,
        /// What relative paths in it are relative to. Absolute.
        base: PathBuf,
    },
    /// A list as `Manifest` has it, of objects: each row is a key below `root`, or a URL of the same store.
    ObjectManifest {
        /// The list: a file, absolute, or the URL of an object; `None` is standard input.
        list: Option<PathBuf>,
        /// A URL that ends in a slash.
        root: String,
        /// What speaks to their store, and to that of the list.
        #[serde(skip)]
        store: SourceStore,
    },
    /// No file: the kind of the source makes the items, [`Expand::expand`] of an empty path.
    Generated,
}

impl ListingSpec {
    /// The files and folders in which its items lie, but for those that links or rows of a manifest lead to elsewhere.
    pub fn roots(&self) -> Vec<PathBuf> {
        match self {
            ListingSpec::Paths { base, patterns } => patterns
                .iter()
                .filter_map(|pattern| PathsEntry::resolve(base, pattern).ok())
                .map(PathsEntry::place)
                .collect(),
            ListingSpec::Manifest { base, .. } => vec![base.clone()],
            ListingSpec::Objects { .. } | ListingSpec::ObjectManifest { .. } | ListingSpec::Generated => {
                Vec::new()
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemEntry {
    /// What records call it: the path relative to the root of the source, as text.
    pub name: String,
    /// Where it lies: an absolute path, a URL, or what the kind of its source takes for one. Raw bytes.
    pub locator: PathBuf,
}

/// The items of a source on disk. Dropping it ends their listing.
#[derive(Debug)]
pub struct Catalog {
    path: PathBuf,
    growth: Arc<Growth>,
}

impl Catalog {
    pub fn open(path: &Path) -> Result<Self, ListError> {
        let growth = Arc::clone(ListingReader::open(path)?.growth());
        Ok(Self { path: path.into(), growth })
    }

    /// Lists a source of `most` items at most into the file `path`, in a thread of its own, and returns as soon as there are items to read: with the whole list,
    /// where it is short. The list appears with its first items, and an error before them leaves none; one that comes later is told by
    /// [`Growth::failure`].
    pub fn list(
        spec: &ListingSpec,
        expand: Option<Arc<dyn Expand>>,
        most: u64,
        path: &Path,
    ) -> Result<Self, ListError> {
        let growth = Arc::new(Growth::default());
        let writer = ListingWriter::create(path, Some(Arc::clone(&growth)))?;
        let catalog = Self { path: path.into(), growth: Arc::clone(&growth) };
        let spec = spec.clone();
        let work = move || {
            let listed =
                || list(&spec, Lister::new(writer, expand.as_deref(), most, &|| !growth.is_stopped()));
            let listed = catch_unwind(AssertUnwindSafe(listed)).unwrap_or(Err(ListError::Panicked));
            if let Err(error) = listed {
                growth.fail(error);
            }
        };
        let started = thread::Builder::new().name("lister".into()).spawn(work);
        started.map_err(|error| ListError::ListFile { path: path.into(), doing: "write", error })?;
        catalog.growth.begun()?;
        Ok(catalog)
    }

    /// Reads the list from its first item on, as far as it has grown and will grow.
    pub fn reader(&self) -> Result<ListingReader, ListError> {
        ListingReader::follow(&self.path, Arc::clone(&self.growth))
    }

    /// How far the list has grown. Keeps nothing else alive.
    pub fn growth(&self) -> &Arc<Growth> {
        &self.growth
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        self.growth.stop();
    }
}
