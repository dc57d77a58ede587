//! The items of a source on disk, beside those of them that have an end. It lists nothing.

use std::sync::Arc;

use orchestra_store::{Catalog, NumberSet};

/// The items of a source, and what of them is finished already.
#[derive(Clone)]
pub struct Listing {
    pub catalog: Arc<Catalog>,
    pub finished: Arc<NumberSet>,
}

impl Listing {
    /// Whether all of them are known and have an end.
    pub fn is_done(&self) -> bool {
        let n_items = self.catalog.growth().extent().known();
        n_items.is_some_and(|n| self.finished.count_below(n) == n)
    }
}
