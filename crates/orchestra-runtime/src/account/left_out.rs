//! Counts what items hold that no stage was given, by the source or stage that passed it over. The journal adds up what done items hold. It says nothing
//! of it.

use std::collections::HashMap;
use std::sync::Mutex;

use orchestra_core::{ItemId, LeftOut, LeftOutCount, SourceId, locked};
use orchestra_plan::{Origin, Plan};
use orchestra_store::Commit;

/// What one item holds: who passed it over, what, and how many.
type ItemLeftOut = Vec<(Origin, LeftOut, u64)>;

/// Few items hold such things, so one lock serves all threads.
#[derive(Debug, Default)]
pub struct LeftOutCounts {
    /// Of items on their way.
    by_item: Mutex<HashMap<ItemId, ItemLeftOut>>,
    /// Of items that are done, over all starts of the run.
    done: Mutex<Vec<LeftOutCount>>,
}

impl LeftOutCounts {
    /// An item holds `n` of these. Before its last row is handed on.
    pub fn add(&self, item: ItemId, by: Origin, what: LeftOut, n: u64) {
        locked(&self.by_item).entry(item).or_default().push((by, what, n));
    }

    /// Gives a commit what its items hold; of failed ones nothing is counted.
    pub fn give(&self, plan: &Plan, commit: &mut Commit) {
        let mut by_item = locked(&self.by_item);
        if by_item.is_empty() {
            return;
        }
        commit.failed.iter().for_each(|item| drop(by_item.remove(item)));
        let counts = commit.done.iter().filter_map(|item| by_item.remove(item)).flatten();
        for (by, what, count) in counts {
            let by = match by {
                Origin::Source(source) => plan.sources[source.index()].name.clone(),
                Origin::Stage(stage) => plan.stages[stage.index()].name.clone(),
            };
            LeftOutCount { by, what, items: 1, count }.add_to(&mut commit.left_out);
        }
    }

    /// Items of these sources that are on their way are done again.
    pub fn forget(&self, is_of: impl Fn(SourceId) -> bool) {
        locked(&self.by_item).retain(|item, _| !is_of(item.source));
    }

    /// What the journal has added up.
    pub fn note(&self, done: &[LeftOutCount]) {
        *locked(&self.done) = done.to_vec();
    }

    /// Of all items that are done.
    pub fn done(&self) -> Vec<LeftOutCount> {
        locked(&self.done).clone()
    }
}
