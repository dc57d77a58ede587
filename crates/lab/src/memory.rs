//! The batch slots of the measured stages, and who writes which rows of them. It decodes nothing and starts no worker.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::shapes::{Fetch, Map};
use orchestra_core::{OutputSlotId, SlotId, SourceId, StageId};
use orchestra_plan::{ColumnRef, Origin, Plan, Shape};
use orchestra_runtime::launcher::WorkerMemory;
use orchestra_worker::arena::Arena;
use orchestra_worker::output_region::OutputRegion;

use crate::error::LabError;

/// The memory of each batch stage, with the layout that a run would use.
#[derive(Debug)]
pub struct Memory {
    stages: HashMap<StageId, StageMemory>,
}

/// The workers of a stage that is measured share one region for outputs: no result of theirs is kept from the others.
#[derive(Debug)]
struct StageMemory {
    arena: Arena,
    outputs: OutputRegion,
    /// Rows of a slot have one size.
    is_trimmed: bool,
}

/// What loaders do with each item of a source.
#[derive(Debug)]
pub struct SourceWork {
    pub source: SourceId,
    pub fetch: Arc<dyn Fetch>,
    /// Batch stages and sinks that are fed without a batch in between.
    pub leaves: Vec<Leaf>,
}

/// What the rows of a source end in.
#[derive(Debug)]
pub struct Leaf {
    /// The batch stage; `None` for a sink.
    pub stage: Option<StageId>,
    pub reads: Vec<ColumnRef>,
    /// The maps on the way, in order.
    pub maps: Vec<(StageId, Arc<dyn Map>, Vec<ColumnRef>)>,
}

impl SourceWork {
    pub fn stages(&self) -> impl Iterator<Item = StageId> {
        self.leaves.iter().filter_map(|leaf| leaf.stage)
    }
}

impl Memory {
    pub fn new(plan: &Plan) -> Result<Self, LabError> {
        let mut stages = HashMap::new();
        for (stage, batch) in plan.batch_stages() {
            let name = &plan.stages[stage.index()].name;
            let doing = format!("taking the memory of the batches of stage `{name}`");
            let memory = Arena::create(name, batch.layout.clone()).and_then(|arena| {
                let outputs = OutputRegion::create(name, batch.layout.clone())?;
                Ok(StageMemory { arena, outputs, is_trimmed: batch.trim.is_some() })
            });
            stages.insert(stage, memory.map_err(LabError::io(doing))?);
        }
        if stages.is_empty() { Err(LabError::NoBatchStage) } else { Ok(Self { stages }) }
    }

    pub fn arena(&self, stage: StageId) -> &Arena {
        &self.stages[&stage].arena
    }

    /// What a worker of a stage inherits.
    pub fn of_worker(&self, stage: StageId) -> WorkerMemory<'_> {
        let StageMemory { arena, outputs, .. } = &self.stages[&stage];
        WorkerMemory { inputs: arena.fd(), outputs: outputs.fd() }
    }

    pub fn n_rows(&self, stage: StageId) -> usize {
        n_rows(self.arena(stage).layout())
    }

    /// Fills all rows of a stage with copies of the first `filled` rows, in turn; where rows are trimmed, each slot with copies of one of these, because
    /// in a run all rows of a slot have one size.
    ///
    /// # Safety
    /// The arena has no other user meanwhile.
    pub unsafe fn repeat_rows(&self, stage: StageId, filled: usize) {
        let arena = self.arena(stage);
        for row in filled..self.n_rows(stage) {
            let (from, to) = (row_at(arena.layout(), row % filled), row_at(arena.layout(), row));
            // SAFETY: the caller is the only one who uses the arena; both rows lie in it.
            unsafe { arena.copy_input_rows(from, to, 1) };
        }
        for row in (0..self.n_rows(stage)).filter(|_| self.stages[&stage].is_trimmed) {
            let (slot, at) = row_at(arena.layout(), row);
            // SAFETY: as above.
            unsafe { arena.copy_input_rows((slot, 0), (slot, at), 1) };
        }
    }

    /// Makes the inputs of a stage that reads from another batch stage out of the outputs that this one left.
    ///
    /// # Safety
    /// No other thread and no worker uses the memory of the two stages during the call.
    pub unsafe fn feed(&self, plan: &Plan, stage: StageId) {
        let target = self.arena(stage);
        for (input, from) in plan.stages[stage.index()].reads.iter().enumerate() {
            let Some(source) = from.from.stage().and_then(|stage| self.stages.get(&stage)) else { return };
            for row in 0..self.n_rows(stage) {
                let source = &source.outputs;
                let (slot, at) = row_at(source.layout(), row % n_rows(source.layout()).max(1));
                let (to_slot, to) = row_at(target.layout(), row);
                // SAFETY: the caller is the only one who uses the two, and they do not overlap.
                let (given, taken) = unsafe {
                    let given = source.rows(OutputSlotId(slot.0), from.column, at, 1);
                    (given, target.input_row_mut(to_slot, input, to))
                };
                // The plan lets a stage read only what has a fixed shape, and shapes that fit.
                if let Some(given) = given.filter(|g| g.len() == taken.len()) {
                    taken.copy_from_slice(given);
                }
            }
        }
    }
}

pub fn n_rows(layout: &BatchLayout) -> usize {
    layout.slots * layout.slot_rows
}

/// Where the `row`-th row of an arena lies.
pub fn row_at(layout: &BatchLayout, row: usize) -> (SlotId, usize) {
    (SlotId((row / layout.slot_rows) as u32), row % layout.slot_rows)
}

pub fn source_works(plan: &Plan) -> Vec<SourceWork> {
    (0..plan.sources.len()).map(|s| source_work(plan, SourceId(s as u16))).collect()
}

fn source_work(plan: &Plan, source: SourceId) -> SourceWork {
    let home = Origin::Source(source);
    let maps = |from: &[Origin]| {
        let before: BTreeSet<Origin> = from.iter().flat_map(|from| plan.ancestors(*from)).collect();
        let stages = before.into_iter().filter_map(Origin::stage);
        let map = |id: StageId| {
            let stage = &plan.stages[id.index()];
            match &stage.runs {
                Shape::Map(map) if stage.home == home => Some((id, Arc::clone(map), stage.reads.clone())),
                _ => None,
            }
        };
        stages.filter_map(map).collect()
    };
    let batches = plan.batch_stages().filter(|(id, _)| plan.stages[id.index()].home == home);
    let batches = batches.map(|(id, _)| Leaf {
        stage: Some(id),
        reads: plan.stages[id.index()].reads.clone(),
        maps: maps(&plan.stages[id.index()].from),
    });
    let sinks = plan.sinks.iter().filter(|sink| sink.home == home);
    let sinks = sinks.map(|sink| Leaf { stage: None, reads: sink.reads.clone(), maps: maps(&sink.from) });
    let fetch = Arc::clone(&plan.sources[source.index()].fetch);
    SourceWork { source, fetch, leaves: batches.chain(sinks).collect() }
}
