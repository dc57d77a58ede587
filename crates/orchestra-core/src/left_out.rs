//! What items hold beside that which stages are given: each kind is counted in `run.json` and said once. It keeps no count itself.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

crate::named_enum! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum LeftOut {
        /// Pages of a file behind the first.
        Pages = "pages",
        /// Frames of an animation behind the first.
        Frames = "frames",
        /// Boxes that no pixel of their picture lies in.
        BoxesOutside = "boxes_outside",
        /// Boxes that are turned round, or whose sides are equal.
        BoxesWithoutArea = "boxes_without_area",
    }
}

/// What one source or stage passed over.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct LeftOutCount {
    /// The source whose items hold it, or the stage that made nothing of it.
    pub by: String,
    pub what: LeftOut,
    /// Items, or rows of a stage, that hold any.
    pub items: u64,
    /// How many in all of them.
    pub count: u64,
}

impl LeftOutCount {
    /// Adds it to sums, which are in the order of their names.
    pub fn add_to(self, sums: &mut Vec<Self>) {
        match sums.binary_search_by(|sum| (&sum.by, sum.what).cmp(&(&self.by, self.what))) {
            Ok(at) => {
                sums[at].items += self.items;
                // What a loader process says may be anything.
                sums[at].count = sums[at].count.saturating_add(self.count);
            }
            Err(at) => sums.insert(at, self),
        }
    }
}
