//! The items of a source on disk, beside those of them that have an end. It lists no files.

use std::sync::Arc;

use orchestra_plan::{Plan, SourcePlan};
use orchestra_store::{Catalog, ListError, NumberSet};

use super::result_files::made_file_name;

/// The items of a source, and what of them is finished already.
#[derive(Clone)]
pub struct Listing {
    pub catalog: Arc<Catalog>,
    pub finished: Arc<NumberSet>,
}

impl Listing {
    /// Whether all of them are known.
    pub fn is_listed(&self) -> bool {
        self.catalog.growth().extent().known().is_some()
    }

    /// Whether all of them are known and have an end.
    pub fn is_done(&self) -> bool {
        let n_items = self.catalog.growth().extent().known();
        n_items.is_some_and(|n| self.finished.count_below(n) == n)
    }
}

/// Lists the rows of the stage that makes the items of a source. They are all written.
pub fn list_made(plan: &Plan, source: &SourcePlan, catalog: &Catalog) -> Result<(), ListError> {
    catalog.list_rows(&plan.output.join(made_file_name(source)))
}
