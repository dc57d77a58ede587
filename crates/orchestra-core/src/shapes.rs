//! The shapes that kinds of stages, sources and sinks have at run time. The runtime knows these traits and no kind.
//!
//! A stage is a [`Map`] (rows to rows, in the thread that made the row), a batch (rows of slots to a worker process, which the plan
//! describes), or a fold: a [`Fold`] of the rows of all parts to one row, or a [`Reduce`] of the rows of all items.

mod map_tree;
mod row_work;
mod variants;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bincode::{Decode, Encode};
use serde::Serialize;

use crate::collect::Part;
use crate::data::{ItemError, OwnedRow, Value};
use crate::ids::ItemId;
use crate::left_out::LeftOut;
use crate::wire;

pub use self::map_tree::{
    Leaves, MapCount, MapRuns, MapStep, MapStepOf, RowEnded, RowScope, Step, StepOf, Walk, too_many_parts,
};
pub use self::row_work::{RowWork, map_from, map_of};
pub use self::variants::{MATRIX, MatrixValue, VARIANTS, Variant, VariantMap, VariantParts};

/// How many rows a map makes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FanOut {
    One,
    /// One or none: a row that is dropped ends there.
    AtMostOne,
    /// Any number, which it says before the first: each is a part of its own from there on.
    Parts,
}

/// The settings of a kind from which another process makes a map or a fetch again: only the kind that wrote them down reads them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Encode, Decode)]
pub struct KindSettings {
    pub kind: String,
    /// In a form of its own.
    pub settings: Vec<u8>,
}

impl KindSettings {
    /// Writes settings down; `None` where they cannot be (a path that is no UTF-8).
    pub fn of(kind: &str, settings: &impl Encode) -> Option<Self> {
        let settings = wire::encode(settings).ok()?;
        Some(Self { kind: kind.to_owned(), settings })
    }

    /// Reads the settings; `None` where they are none of that type.
    pub fn read<T: Decode<()>>(&self) -> Option<T> {
        wire::decode(&self.settings).ok()
    }
}

/// Makes maps and fetches again of what their kinds wrote down.
pub trait Registry {
    /// `None`: no kind of that name, or not its settings.
    fn fetch(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>>;
    /// As `fetch`.
    fn map(&self, settings: &KindSettings) -> Option<Arc<dyn Map>>;
}

/// Pure code on rows. One object serves all threads; each thread has a [`MapRun`] of its own.
pub trait Map: fmt::Debug + Send + Sync {
    /// How many rows it makes of one.
    fn fan(&self) -> FanOut {
        FanOut::One
    }

    /// What one thread needs for it: its buffers.
    fn start(&self) -> Box<dyn MapRun>;

    /// A bound on what one row costs, in elements that are read or numbers that are printed: cheap rows are worked on by the thread that
    /// received the batch.
    fn cost(&self) -> usize;
    /// What a loader process needs to do its work there. Without it, it works in the process of the run, which is only for code that is
    /// trusted with what files hold.
    fn to_wire(&self) -> Option<KindSettings> {
        None
    }

    /// The smaller form in which a loader process sends a column that is a tensor: fewer bytes to write and to read again. `None`: as it is.
    fn packing(&self, column: usize) -> Option<Arc<dyn Packing>> {
        let _ = column;
        None
    }
}

/// A smaller form of a tensor, such as the pixels that it is made of.
pub trait Packing: fmt::Debug + Send + Sync {
    fn bytes(&self) -> usize;

    /// Writes every byte of `row`, the tensor that `packed` is the smaller form of. All bytes are allowed in `packed`, and may change meanwhile.
    ///
    /// # Errors
    /// A length that is not that of the form or of the tensor.
    fn unpack(&self, packed: &[u8], row: &mut [u8]) -> Result<(), ItemError>;
}

pub trait MapRun: Send {
    /// Makes rows of one. `inputs` are the columns that the stage said it reads, in that order. An error of `emit` is passed on as it is.
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError>;
}

/// Takes the rows that a map makes.
pub trait Emit {
    /// So many rows follow. For maps with [`FanOut::Parts`], before the first row.
    fn parts(&mut self, n: usize) -> Result<(), ItemError>;

    /// The next row, in the order of the columns that the stage gives.
    ///
    /// # Errors
    /// What reads the row has failed the item: stop, and pass this on.
    fn row(&mut self, row: &[Value<'_>]) -> Result<(), ItemError>;

    /// The map makes nothing of `n` of these, which the row holds: that is counted.
    fn left_out(&mut self, what: LeftOut, n: u64) {
        let _ = (what, n);
    }
}

/// Makes one row of the rows of all parts of a token.
pub trait Fold: fmt::Debug + Send + Sync {
    /// `parts` are in the order in which they were made. Parts that were dropped on the way are absent.
    fn fold(&self, parts: Vec<OwnedRow>) -> Result<OwnedRow, ItemError>;
}

/// Makes rows of the rows of all items of a run.
///
/// What a row adds to the result is its contribution: bytes, kept on disk with the commit of the item until they are folded.
pub trait Reduce: fmt::Debug + Send + Sync {
    /// Appends the contribution of one row. On an error `out` may hold a part of it, which the caller cuts off.
    fn contribute(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError>;

    /// What becomes of the contributions.
    fn reduction(&self) -> Reduction<'_>;
}

/// The two forms of a [`Reduce`].
#[derive(Debug, Clone, Copy)]
pub enum Reduction<'a> {
    /// Contributions are merged into a state, which the run keeps instead of them.
    Merged(&'a dyn Merge),
    /// Each is a row of the result, in the order of the items and of their parts.
    InOrder(&'a dyn InOrder),
}

/// Makes states of contributions.
pub trait Merge: fmt::Debug {
    /// The state that was saved so; of nothing, the state without a contribution.
    fn state<'a>(&'a self, saved: Option<&[u8]>) -> Result<Box<dyn MergeState + 'a>, ItemError>;
}

/// Contributions that are merged. It is the same in whatever order they came, as long as those of an item come together.
pub trait MergeState {
    fn add(&mut self, item: ItemId, contribution: &[u8]) -> Result<(), ItemError>;

    /// What [`Merge::state`] makes it of again.
    fn save(&self) -> Result<Vec<u8>, ItemError>;

    /// The rows of the result, always in the same order.
    fn rows(&self) -> Result<Vec<ReducedRow>, ItemError>;
}

/// Makes rows of contributions.
pub trait InOrder: fmt::Debug {
    fn row(&self, contribution: &[u8]) -> Result<ReducedRow, ItemError>;

    /// Joins contributions, where that is the result.
    fn join(&self) -> Option<Box<dyn Join>> {
        None
    }
}

/// Joins contributions, which come in the order of their items.
pub trait Join {
    /// Adds a contribution.
    ///
    /// # Errors
    /// The bytes are no contribution, or it does not go with those before it.
    fn add(&mut self, contribution: &[u8]) -> Result<(), ItemError>;

    /// The rows of the result; none where nothing was added.
    fn rows(self: Box<Self>) -> Result<Vec<ReducedRow>, ItemError>;
}

/// A row of the result of a [`Reduce`].
#[derive(Debug, Clone)]
pub struct ReducedRow {
    /// What records call it.
    pub item: String,
    /// The columns that the stage gives.
    pub values: OwnedRow,
}

/// Reads the items of a source. One object serves all threads; each thread has a [`FetchRun`] of its own.
pub trait Fetch: fmt::Debug + Send + Sync {
    /// What one thread needs for it.
    fn start(&self) -> Box<dyn FetchRun>;
    /// As [`Map::to_wire`].
    fn to_wire(&self) -> Option<KindSettings> {
        None
    }
    /// What it reaches beside files. Without it, its process has no network, and none of the variables.
    fn network(&self) -> Option<Network> {
        None
    }
    /// The files that it opens. A loader process can read no others.
    fn opens(&self) -> FileAccess {
        FileAccess::Any
    }
}

#[derive(Debug, Clone, Copy)]
pub enum FileAccess {
    /// Any: nothing is known of them.
    Any,
    /// Those that items lie in, and no others. The function finds that file in a locator; `None`: there is none.
    OfItems(fn(&[u8]) -> Option<&Path>),
    /// Those as well, and all below the folders that they lie in: what an item holds names files beside its own.
    Beside(fn(&[u8]) -> Option<&Path>),
}

/// What a fetch takes along to reach others over the network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Variables of the environment: names, or what names begin with, where it ends in `_`.
    pub variables: Vec<&'static str>,
    /// Files and folders that its process reads for that, beside those of [`Fetch::opens`]: certificates, keys, names of hosts.
    pub files: Vec<PathBuf>,
}

impl Network {
    /// Whether it takes this variable along.
    pub fn takes(&self, variable: &str) -> bool {
        self.variables
            .iter()
            .any(|name| variable == *name || (name.ends_with('_') && variable.starts_with(name)))
    }
}

pub trait FetchRun: Send {
    /// Reads the item that `locator` names. Gives the bytes read.
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, ItemError>;

    /// Shows the row of the item that was read last, in the order of the columns that the source gives.
    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>]));

    /// What the item that was read last holds beside its row. It is known once the row was shown.
    fn left_out(&self) -> Vec<(LeftOut, u64)> {
        Vec::new()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestItem {
    /// Bytes, which the fetch of the source reads as it would read those of a file.
    File,
    /// The columns of the item.
    Row,
}

/// What a record says of its item.
#[derive(Debug, Clone, Copy)]
pub struct ItemInfo<'a> {
    /// Its name: a path relative to the root of its source.
    pub name: &'a str,
    pub id: ItemId,
    pub source: &'a str,
    /// Which part of the item the row is, the outermost split first; empty for a whole item.
    pub parts: &'a [Part],
}

/// Makes records of rows.
pub trait Encoder: fmt::Debug + Send + Sync {
    /// What stands once at the head of a file, before the first record.
    fn header(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Whether a record is a line of JSON with `item`, `index`, `source` and `result`, which other programs of ours read.
    fn is_json_lines(&self) -> bool {
        false
    }

    /// What the names of files end with that are records, where the kind alone does not say it.
    fn extension(&self) -> Option<&str> {
        None
    }

    /// Appends the record of one row. On an error `out` may hold a part of it, which the caller cuts off.
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError>;

    /// Makes files of many records, where a file cannot grow by one.
    fn part_files(&self) -> Option<&dyn PartFiles> {
        None
    }
}

/// Makes part files of the records of an encoder.
pub trait PartFiles: fmt::Debug + Send + Sync {
    /// A part with so many rows is full.
    fn rows_per_file(&self) -> u64;

    /// And one with so many bytes of records, however few they are: a part is made in memory.
    fn bytes_per_file(&self) -> u64 {
        64 << 20
    }

    /// All of a file that holds these records, in this order.
    fn file(&self, records: &[&[u8]]) -> Result<Vec<u8>, ItemError>;
}
