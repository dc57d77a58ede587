//! The batch slots of the measured stages, and who writes which rows of them. It decodes nothing and starts no worker.

use std::collections::HashMap;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{ImageSpec, SlotId, SourceId, StageId};
use orchestra_plan::{InferPlan, Plan, StageKind};
use orchestra_wire::arena::Arena;

use crate::error::LabError;

/// One arena per infer stage, with the layout that a run would use.
#[derive(Debug)]
pub struct Memory {
    arenas: HashMap<StageId, Arena>,
}

/// What loaders do with each item of a source.
#[derive(Debug)]
pub struct SourceWork {
    pub source: SourceId,
    pub images: Vec<ImageSpec>,
    /// Of these, stages whose rows no model reads but a sink writes.
    pub for_sinks: Vec<usize>,
    /// Infer stages that its images feed, with the image stage of each model input.
    pub targets: Vec<(StageId, Vec<usize>)>,
}

impl Memory {
    pub fn new(plan: &Plan) -> Result<Self, LabError> {
        let mut arenas = HashMap::new();
        for (stage, infer) in plan.infer_stages() {
            let name = &plan.stages[stage.index()].name;
            let doing = format!("taking the memory of the batches of stage `{name}`");
            let arena = Arena::create(name, infer.layout.clone()).map_err(LabError::io(doing))?;
            arenas.insert(stage, arena);
        }
        if arenas.is_empty() { Err(LabError::NoInferStage) } else { Ok(Self { arenas }) }
    }

    pub fn arena(&self, stage: StageId) -> &Arena {
        &self.arenas[&stage]
    }

    pub fn n_rows(&self, stage: StageId) -> usize {
        n_rows(self.arena(stage).layout())
    }

    /// Fills all rows of a stage with copies of the first `filled` rows, in turn.
    ///
    /// # Safety
    /// Nobody else uses the arena meanwhile.
    pub unsafe fn repeat_rows(&self, stage: StageId, filled: usize) {
        let arena = self.arena(stage);
        for row in filled..self.n_rows(stage) {
            let (from, to) = (row_at(arena.layout(), row % filled), row_at(arena.layout(), row));
            // SAFETY: the caller is the only one who uses the arena; both rows lie in it.
            unsafe { arena.copy_input_rows(from, to, 1) };
        }
    }

    /// Makes the inputs of a stage that reads from another infer stage out of the outputs that this one left.
    ///
    /// # Safety
    /// Nobody else uses the two arenas meanwhile.
    pub unsafe fn feed(&self, stage: StageId, infer: &InferPlan) {
        let target = self.arena(stage);
        for (input, from) in infer.inputs.iter().enumerate() {
            let Some(source) = self.arenas.get(&from.stage) else { return };
            for row in 0..self.n_rows(stage) {
                let (slot, at) = row_at(source.layout(), row % n_rows(source.layout()).max(1));
                let (to_slot, to) = row_at(target.layout(), row);
                // SAFETY: the caller is the only one who uses the two arenas, and they do not overlap.
                let (given, taken) = unsafe {
                    (source.output_rows(slot, from.output, at, 1), target.input_row_mut(to_slot, input, to))
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
    layout.slots * layout.max_rows
}

/// Where the `row`-th row of an arena lies.
pub fn row_at(layout: &BatchLayout, row: usize) -> (SlotId, usize) {
    (SlotId((row / layout.max_rows) as u32), row % layout.max_rows)
}

pub fn source_works(plan: &Plan) -> Vec<SourceWork> {
    (0..plan.sources.len()).map(|s| source_work(plan, SourceId(s as u16))).collect()
}

fn source_work(plan: &Plan, source: SourceId) -> SourceWork {
    let stages = (0..).map(StageId).zip(&plan.stages);
    let images: Vec<(StageId, &ImageSpec)> = stages
        .filter_map(|(id, stage)| match &stage.kind {
            StageKind::Image { source: s, spec } if *s == source => Some((id, spec)),
            _ => None,
        })
        .collect();
    let place = |stage: StageId| images.iter().position(|(id, _)| *id == stage);
    let target = |(id, infer): (StageId, &InferPlan)| {
        let inputs: Option<Vec<usize>> = infer.inputs.iter().map(|i| place(i.stage)).collect();
        Some((id, inputs?))
    };
    SourceWork {
        source,
        for_sinks: plan.sinks.iter().filter_map(|s| place(s.from)).collect(),
        targets: plan.infer_stages().filter_map(target).collect(),
        images: images.into_iter().map(|(_, spec)| spec.clone()).collect(),
    }
}
