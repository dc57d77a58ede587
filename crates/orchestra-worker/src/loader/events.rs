//! The frames between a loader process and the parent, as data.
//!
//! What becomes of an item is a sequence of events: [`Event::Read`], then the row of the source, then for each map that reads it, in the
//! order of the plan, the rows that it makes (each followed in the same way by the maps behind it) and [`Event::Applied`]; at last
//! [`Event::Ended`]. After the first refusal only `Ended` follows, and the `Applied` of maps that are under way.

use bincode::{Decode, Encode};
use orchestra_core::data::Refusal;
use orchestra_core::failure::cut_words;
use orchestra_core::shapes::KindSettings;
use orchestra_core::{ErrorClass, FailureKind, LeftOut, SandboxMode};
use orchestra_store::{PassedOverCounts, StoreTrouble};

use crate::codec::Frame;

/// What gives rows: `None` is the source, otherwise a stage by its number.
pub type RowOrigin = Option<u16>;

/// The chain of a loader: what it does with each item.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct ChainSpec {
    pub fetch: KindSettings,
    /// The columns of the source's row that the parent reads.
    pub sends: Vec<usize>,
    pub maps: Vec<MapSpec>,
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

/// A map, and those that read what it makes.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct MapSpec {
    pub stage: u16,
    pub map: KindSettings,
    pub reads: Vec<(RowOrigin, usize)>,
    /// The columns of its rows that the parent reads.
    pub sends: Vec<usize>,
    pub next: Vec<MapSpec>,
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
    },
    /// Answer what is asked of this file.
    Describe {
        /// As in `List`.
        file: Vec<u8>,
    },
    /// More items, and how many frames of events the parent is done with: what lies in the region for them is free.
    Items {
        frames_done: u64,
        /// Locators, one behind the other.
        text: Vec<u8>,
        /// Where each of them ends.
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
    Events {
        /// Nanoseconds since the process began, when the frame was sent.
        sent_ns: u64,
        events: Vec<Event>,
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
}

/// Why a file cannot be listed or described: a [`ListError`](orchestra_store::ListError) that a kind of file gives, without the path of the file.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum LookError {
    BadFile { reason: String },
    AllPassedOver { passed_over: PassedOverCounts, help: String },
    Store { url: String, reason: String, help: String, trouble: StoreTrouble },
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Event {
    /// The item is read: so many bytes.
    Read(Result<u64, Refused>),
    /// A row, with those of its columns that the parent reads.
    Row(Vec<SentValue>),
    /// So many rows follow, each a part of its own.
    Parts(u64),
    /// A map is through with a row.
    Applied(Result<(), Refused>),
    /// Nothing more comes of this item.
    Ended {
        /// When it was begun, in nanoseconds since the process began.
        began_ns: u64,
        /// How long reading took.
        read_ns: u64,
        /// How long all of it took.
        took_ns: u64,
        /// What the item holds beside its row.
        left_out: Vec<(LeftOut, u64)>,
    },
}

/// A value of a row. Places are bytes from the beginning of the region.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum SentValue {
    Tensor {
        at: u64,
        len: u64,
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
    /// It could not be made.
    Refused(Refused),
    /// The item lacks it.
    Missing,
    /// A tensor in its smaller form, whose length the map says.
    Packed {
        at: u64,
    },
}

/// A [`Refusal`] on the wire.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Refused {
    pub kind: FailureKind,
    pub error: String,
}

impl From<Refusal> for Refused {
    fn from(Refusal { kind, mut error }: Refusal) -> Self {
        cut_words(&mut error);
        Self { kind, error }
    }
}

impl From<Refused> for Refusal {
    fn from(Refused { kind, mut error }: Refused) -> Self {
        cut_words(&mut error);
        Self { kind, error }
    }
}

impl Frame for ToLoader {
    /// A line of a list may have a mebibyte, which is then in the path and in the name.
    const MAX_BYTES: usize = 4 << 20;
}

impl Frame for FromLoader {
    const MAX_BYTES: usize = 64 << 20;

    fn cut_words(&mut self) {
        match self {
            Self::Refused { error, .. } => cut_words(error),
            Self::Hello { build, .. } => cut_words(build),
            Self::Listed(Err(error)) | Self::Described(Err(error)) => error.cut_words(),
            // Those of items are cut where they become refusals again.
            Self::Ready
            | Self::Events { .. }
            | Self::Found(_)
            | Self::Listed(Ok(()))
            | Self::Described(Ok(_)) => {}
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
