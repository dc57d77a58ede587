//! The frames between a loader process and the parent, as data.
//!
//! What becomes of an item is what its rows come to, in the order in which they come there ([`RowEvent`]): the leaves are what the parent does with rows
//! (batches, folds, sinks, and maps that no loader may run), and each is known by its place. Of an item that failed nothing else is said.

use bincode::{Decode, Encode};
use orchestra_core::data::ItemError;
use orchestra_core::failure::cut_words;
use orchestra_core::shapes::{KindSettings, MapCount, StepOf};
use orchestra_core::{ColumnRef, ErrorClass, LeftOut, Origin, SandboxMode, StageId};
use orchestra_store::{PassedOverCounts, StoreTrouble};

use crate::codec::Frame;

/// Raised with every change of a frame of loaders. Both sides must agree exactly; workers have a number of their own.
pub const LOADER_PROTOCOL: u32 = 15;

/// The chain of a loader: what it does with each item.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct ChainSpec {
    pub source: Origin,
    pub fetch: KindSettings,
    pub steps: Vec<StepOf<KindSettings>>,
    /// What `steps` come to.
    pub leaves: Vec<SentLeaf>,
    /// What leaves read.
    pub sends: Vec<SentColumn>,
    /// Bytes of the region, which is inherited as the arena of a worker is.
    pub region_bytes: u64,
    /// Bytes of the region of a process that has an item alone. What finds no room in less, or behind what lies there of others, ends its process, and gets that.
    pub most_region_bytes: u64,
    /// Whether the process is confined.
    pub sandbox: SandboxMode,
    /// Files and folders that it may read, as bytes of their paths, besides those of the system.
    pub readable: Vec<Vec<u8>>,
    /// Bytes of memory that it may take for itself, beside the region.
    pub memory: u64,
}

/// A leaf of the parent, or a map that it runs itself with all that is behind it.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct SentLeaf {
    pub stage: StageId,
    /// Places among [`ChainSpec::sends`].
    pub columns: Vec<usize>,
}

/// A column that leaves read.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct SentColumn {
    /// The place of the map that gives it; `None`: the source does.
    pub at: Option<usize>,
    pub read: ColumnRef,
    /// Bytes of its smaller form, where it has one.
    pub packed: Option<usize>,
}

/// What a loader process that looks into files is told, in place of a chain.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct LookSpec {
    /// What lists them, or what is asked of each.
    pub look: KindSettings,
    /// Whether the process is confined.
    pub sandbox: SandboxMode,
    /// Files and folders that it may read, as bytes of their paths, besides those of the system.
    pub readable: Vec<Vec<u8>>,
    /// Whether it reads objects of a store.
    pub network: bool,
    /// Bytes of memory that it may take.
    pub memory: u64,
}

/// Parent to loader.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum ToLoader {
    /// Once, after `Hello`.
    Load(Box<ChainSpec>),
    /// Once, in place of `Load`.
    Look(Box<LookSpec>),
    /// List what this file holds.
    List {
        /// The bytes of its path, or its URL.
        file: Vec<u8>,
        /// The version of it whose items are known, if one is: of that, nothing else is found.
        known: Option<u64>,
    },
    /// Answer what is asked of this file.
    Describe {
        /// As in `List`.
        file: Vec<u8>,
    },
    /// More items, and how many frames of answers the parent is done with: what lies in the region for them is free.
    Items {
        frames_done: u64,
        /// Locators, one behind the other.
        text: Vec<u8>,
        ends: Vec<u32>,
    },
}

/// Loader to parent.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum FromLoader {
    Hello {
        protocol: u32,
        build: String,
    },
    Ready,
    /// It cannot do what it was told to. It ends then.
    Refused {
        class: ErrorClass,
        error: String,
    },
    Answers {
        /// Nanoseconds since the process began, when the frame was sent.
        sent_ns: u64,
        answers: Vec<ItemAnswer>,
    },
    /// Some of what a file holds.
    Found(FoundBlock),
    /// That was all of the file, or all that can be had of it.
    Listed(Result<(), LookError>),
    /// The answer, in a form of the kind.
    Described(Result<Vec<u8>, LookError>),
}

/// What a file holds, as far as it was read since the last block.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct FoundBlock {
    /// Of each item, one behind the other: what its name has behind that of the file, and what its locator has behind the path of the file.
    pub text: Vec<u8>,
    /// Where each name and each locator ends.
    pub ends: Vec<(u32, u32)>,
    pub passed_over: PassedOverCounts,
    /// In the first block of a file.
    pub version: Option<u64>,
}

/// Why a file cannot be listed or described: a [`ListError`](orchestra_store::ListError) that a kind of file gives, without the path of the file.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum LookError {
    BadFile { reason: String },
    AllPassedOver { passed_over: PassedOverCounts, help: String },
    Store { url: String, reason: String, help: String, trouble: StoreTrouble },
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct ItemAnswer {
    /// Its rows; or the stage that failed it, `None` being the source, and why.
    pub rows: Result<Vec<RowEvent>, (Option<StageId>, ItemError)>,
    pub read_bytes: u64,
    /// Of the maps, by their place.
    pub counts: Vec<MapCount>,
    /// What the item holds beside its row, and what maps made nothing of.
    pub left_out: Vec<(Origin, LeftOut, u64)>,
    /// When it was begun, in nanoseconds since the process began.
    pub began_ns: u64,
    /// How long reading took.
    pub read_ns: u64,
    /// How long all of it took.
    pub took_ns: u64,
}

/// What comes next of an item.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum RowEvent {
    /// The map at this place splits its row into so many parts, at least one, which follow one behind the other.
    Parts { at: usize, n: u32 },
    /// The map at this place gives nothing: no row, or no parts.
    Nothing { at: usize },
    /// This one of [`ChainSpec::leaves`] has a row: its columns, in the order of [`SentLeaf::columns`].
    Row { leaf: usize, values: Vec<SentValue> },
}

/// A value of a row. Places are bytes from the beginning of the region.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum SentValue {
    Tensor {
        at: u64,
        shape: Vec<usize>,
    },
    /// All pixels of a picture, upright, 8 bits per channel, rows without a gap.
    Picture {
        at: u64,
        width: u32,
        height: u32,
        channels: u8,
    },
    /// Label, class and score.
    Labels(Vec<(String, u32, f32)>),
    Text(String),
    Bytes {
        at: u64,
        len: u64,
    },
    /// That of the last row that had this column.
    Same,
    /// The item lacks it.
    Missing,
    /// A tensor in its smaller form, whose length the map says.
    Packed {
        at: u64,
    },
}

/// Bytes of a file that a request brings, in place of a locator.
pub const LARGEST_REQUEST: usize = 256 << 20;

impl Frame for ToLoader {
    /// A request, and what stands in its frame before it. A line of a list may have a mebibyte, which is then in the path and in the name.
    const MAX_BYTES: usize = LARGEST_REQUEST + (4 << 20);
}

impl Frame for FromLoader {
    const MAX_BYTES: usize = 64 << 20;

    fn cut_words(&mut self) {
        match self {
            Self::Refused { error, .. } => cut_words(error),
            Self::Hello { build, .. } => cut_words(build),
            Self::Listed(Err(error)) | Self::Described(Err(error)) => error.cut_words(),
            Self::Answers { answers, .. } => {
                let failed = answers.iter_mut().filter_map(|answer| answer.rows.as_mut().err());
                failed.for_each(|(_, item_error)| cut_words(&mut item_error.error));
            }
            Self::Ready | Self::Found(_) | Self::Listed(Ok(())) | Self::Described(Ok(_)) => {}
        }
    }
}

impl LookError {
    fn cut_words(&mut self) {
        match self {
            Self::BadFile { reason } => cut_words(reason),
            Self::AllPassedOver { help, .. } => cut_words(help),
            Self::Store { url, reason, help, .. } => [url, reason, help].map(cut_words).into_iter().collect(),
        }
    }
}
