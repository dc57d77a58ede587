//! Turns the paths, globs and manifests of a source into an ordered list of items on disk.
//!
//! It names items and never opens them. The list lives in a file, so that a million items cost no memory: manifests are read and folders
//! walked as a stream, each folder sorted by an external merge sort of bounded memory. A [`Catalog`] is read back as a stream while it grows.
//!
//! **Order.** Items of `paths` are sorted by the bytes of their path, over all entries together, and each path is listed once.
//! Items of a manifest stay in the order of the manifest, one item per row.
//!
//! **What an entry of `paths` takes.** A path that exists as written is taken literally. A folder gives every regular file
//! below it, links followed, hidden files and folders (those that start with a dot) left out. A glob (`*`, `?`, `[..]`,
//! `{a,b}`, and `**` for any number of folders) gives the regular files that it matches. A link that leads nowhere is listed: it
//! then fails by name, rather than vanish. A single file is listed whatever it is.
//!
//! **Names.** The name of an item is its path relative to the root of the source: a folder entry itself, the fixed leading part of
//! a glob, the folder of a single file, and with several entries their deepest common folder. Names are text: a byte that is not
//! UTF-8 is written `\xFF`, a backslash `\\`, so that different files always have different names.

mod catalog;
mod error;
mod expand;
mod extend;
mod extent;
mod folder_walk;
mod growth;
mod item_name;
mod listing_file;
mod manifest;
mod pattern;
mod sorter;
mod write;

use std::path::PathBuf;

use serde::Serialize;

pub use catalog::Catalog;
pub use error::ListError;
pub use expand::{Expand, PushItem};
pub use extend::{Extension, extend_listing};
pub use extent::Extent;
pub use growth::Growth;
pub use item_name::escape;
pub use listing_file::{ListingReader, ListingSummary};
pub use write::{first_item, write_items, write_listing};

/// What a source names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ListingSpec {
    /// Files, folders (recursive) and globs, as written in the workflow file.
    Paths {
        /// What relative paths are relative to: the workflow file's folder. Absolute.
        base: PathBuf,
        /// The entries, as written.
        patterns: Vec<String>,
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
}

/// An item of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemEntry {
    /// What records call it: the path relative to the root of the source, as text.
    pub name: String,
    /// Where it lies: an absolute path, or what the kind of its source takes for one. Raw bytes.
    pub path: PathBuf,
}
