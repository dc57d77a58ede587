//! Newtypes for everything that is counted or indexed, so that a stage is never taken for a device.
//! No behaviour beyond conversion and display.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index into the plan's or the arena's table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A `[sources.*]` table, by its place in the plan.
    SourceId(u16), "source-"
);
id!(
    /// A `[models.*]` table, by its place in the plan.
    ModelId(u16), "model-"
);
id!(
    /// A `[stages.*]` table, by its place in the plan.
    StageId(u16), "stage-"
);
id!(
    /// A `[sinks.*]` table, by its place in the plan.
    SinkId(u16), "sink-"
);
id!(
    /// A device that the plan uses, by its place in the plan.
    DeviceId(u16), "device-"
);
id!(
    /// A connected graph of the workflow file, by its place in the plan.
    PipelineId(u16), "pipeline-"
);
id!(
    /// A worker process. Never reused within a run, so it is the generation of a message, too.
    WorkerId(u32), "worker-"
);
id!(
    /// A batch. Retries and the halves of a split get ids of their own, so an answer belongs to one dispatch only.
    BatchId(u64), "batch-"
);
id!(
    /// A batch slot of a stage's arena.
    SlotId(u32), "slot-"
);
id!(
    /// An output slot of one worker: room for what it makes of the rows of a slot.
    OutputSlotId(u32), "output-slot-"
);

/// An item: the `index`-th of its source, counted from 0 in the order of the source's listing.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize,
)]
pub struct ItemId {
    pub source: SourceId,
    /// Its place in the listing of that source, from 0.
    pub index: u64,
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.source, self.index)
    }
}

/// A source or a stage, as what gives rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    Source(SourceId),
    Stage(StageId),
}

impl Origin {
    pub fn stage(self) -> Option<StageId> {
        match self {
            Origin::Source(_) => None,
            Origin::Stage(stage) => Some(stage),
        }
    }
}

/// A column of what a source or a stage gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct ColumnRef {
    pub from: Origin,
    pub column: usize,
}
