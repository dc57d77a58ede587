//! What items hold beside that which stages are given: each kind is counted in `run.json` and said once. It counts nothing itself.

use bincode::{Decode, Encode};

crate::named_enum! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
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
