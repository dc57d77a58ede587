//! Counts what items hold that no stage was given, by the source or stage that passed it over. It says nothing of it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use orchestra_core::{LeftOut, locked};
use orchestra_plan::{Origin, Plan};
use serde::Serialize;

/// Few items hold such things, so one lock serves all threads.
#[derive(Debug, Default)]
pub struct LeftOutCounts(Mutex<BTreeMap<(Origin, LeftOut), Count>>);

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    items: u64,
    count: u64,
}

/// What was passed over, in `run.json`: of this start of the run alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOutReport {
    /// The source whose items hold it, or the stage that made nothing of it.
    pub by: String,
    #[serde(serialize_with = "name")]
    pub what: LeftOut,
    /// Items, or rows of a stage, that hold any.
    pub items: u64,
    /// How many in all of them.
    pub count: u64,
}

fn name<S: serde::Serializer>(what: &LeftOut, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(what.as_str())
}

impl LeftOutCounts {
    pub fn add(&self, by: Origin, what: LeftOut, n: u64) {
        let mut counts = locked(&self.0);
        let count = counts.entry((by, what)).or_default();
        count.items += 1;
        // What a loader process says may be anything.
        count.count = count.count.saturating_add(n);
    }

    pub fn reports(&self, plan: &Plan) -> Vec<LeftOutReport> {
        let report = |(&(by, what), count): (&(Origin, LeftOut), &Count)| LeftOutReport {
            by: match by {
                Origin::Source(source) => plan.sources[source.index()].name.clone(),
                Origin::Stage(stage) => plan.stages[stage.index()].name.clone(),
            },
            what,
            items: count.items,
            count: count.count,
        };
        locked(&self.0).iter().map(report).collect()
    }
}
