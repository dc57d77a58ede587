//! From the plan to a chain: which maps stand between an origin and what its rows end in.

use std::collections::BTreeSet;
use std::sync::Arc;

use orchestra_core::collect::Part;
use orchestra_core::shapes::Fan;
use orchestra_core::{SinkId, StageId};
use orchestra_plan::{ColumnRef, FoldPlan, Origin, Shape};

use super::{FoldTarget, MapStep, RunContext, Step, StepRun, Targets};

pub(super) struct Builder<'a> {
    pub context: &'a Arc<RunContext>,
    pub targets: &'a Targets,
    pub origin: Origin,
    pub maps: Vec<StageId>,
    pub steps: Vec<Step>,
}

impl Builder<'_> {
    /// Adds all batch stages, folds and sinks that rows of the origin reach.
    pub fn leaves(&mut self) {
        let (plan, origin) = (Arc::clone(&self.context.plan), self.origin);
        for (id, stage) in (0..).map(StageId).zip(&plan.stages) {
            match &stage.runs {
                Shape::Map(_) => {}
                Shape::Batch(batch) if stage.home == origin => {
                    let Some(target) = self.targets.batch(id) else { continue };
                    let (reads, carries) = (stage.reads.clone(), batch.carries.clone());
                    // The plan puts it behind the columns that the model takes.
                    let trims = batch.trim.and(reads.last().copied());
                    self.leaf(&stage.from, Step::Batch { target, reads, carries, trims });
                }
                Shape::Fold(FoldPlan::Parts(_)) if stage.home == origin => {
                    let Some(fold) = self.targets.fold(id) else { continue };
                    self.leaf(&stage.from, Step::Fold { fold, reads: stage.reads.clone() });
                }
                Shape::Fold(FoldPlan::Reduce(reduce)) if stage.home == origin => {
                    let (reads, reduce) = (stage.reads.clone(), Arc::clone(reduce));
                    self.leaf(&stage.from, Step::Reduce { stage: id, reads, reduce });
                }
                Shape::Fold(FoldPlan::Join { ways }) => {
                    let of = u32::try_from(ways.len()).unwrap_or(u32::MAX);
                    for (index, way) in (0..).zip(ways).filter(|(_, way)| way.home == origin) {
                        let Some(fold) = self.targets.fold(id) else { continue };
                        let fold = FoldTarget { way: Some(Part { index, of }), ..fold };
                        self.leaf(&way.from, Step::Fold { fold, reads: way.reads.clone() });
                    }
                }
                Shape::Batch(_) | Shape::Fold(_) => {}
            }
        }
        for (id, sink) in (0..).map(SinkId).zip(&plan.sinks).filter(|(_, sink)| sink.home == origin) {
            let from = sink.from.iter().rev().find_map(|from| from.stage()).unwrap_or(StageId(0));
            let (reads, encoder) = (sink.reads.clone(), Arc::clone(&sink.encoder));
            self.leaf(&sink.from, Step::Sink { sink: id, from, reads, encoder });
        }
    }

    /// Puts a leaf behind the maps that it is made of, each inside of the one before. Leaves with the same maps in front share them.
    fn leaf(&mut self, from: &[Origin], leaf: Step) {
        let plan = &self.context.plan;
        // Stages stand after what they read from, so the order of their numbers is that of the data.
        let made_of: BTreeSet<Origin> = from.iter().flat_map(|from| plan.ancestors(*from)).collect();
        let maps = made_of.into_iter().filter_map(Origin::stage).filter(|stage| {
            let stage = &plan.stages[stage.index()];
            stage.home == self.origin && matches!(stage.runs, Shape::Map(_))
        });
        let mut steps = &mut self.steps;
        for stage in maps {
            let known = steps.iter().position(|step| matches!(step, Step::Map(map) if map.stage == stage));
            let at = known.unwrap_or_else(|| {
                let Shape::Map(map) = &plan.stages[stage.index()].runs else {
                    unreachable!("only maps were taken above")
                };
                let place = self.maps.len();
                self.maps.push(stage);
                steps.push(Step::Map(MapStep {
                    stage,
                    at: place,
                    map: Arc::clone(map),
                    in_loader: None,
                    reads: plan.stages[stage.index()].reads.clone(),
                    next: Vec::new(),
                    folds: Vec::new(),
                    inner_folds: Vec::new(),
                }));
                steps.len() - 1
            });
            let Step::Map(map) = &mut steps[at] else { unreachable!("the step at hand is a map") };
            steps = &mut map.next;
        }
        steps.push(leaf);
    }
}

/// Fills in which folds each map has to tell of what ends there, and gives those that wait for the row that enters the steps.
pub(super) fn connect_folds(steps: &mut [Step]) -> Vec<FoldTarget> {
    let mut all = Vec::new();
    for step in steps {
        if let Step::Map(map) = step {
            map.inner_folds = connect_folds(&mut map.next);
            map.folds = match map.map.fan() {
                Fan::Parts => whole(&map.inner_folds),
                Fan::One | Fan::AtMostOne => map.inner_folds.clone(),
            };
        }
        add(&mut all, step.folds());
    }
    all
}

/// The folds that wait for a token, of those that wait for its parts.
fn whole(of_parts: &[FoldTarget]) -> Vec<FoldTarget> {
    let mut all = Vec::new();
    for fold in of_parts {
        match fold.way {
            None => add(&mut all, &fold.downstream),
            Some(_) => add(&mut all, &whole(&fold.downstream)),
        }
    }
    all
}

fn add(all: &mut Vec<FoldTarget>, more: &[FoldTarget]) {
    for fold in more {
        if all.iter().all(|known| !known.same_input(fold)) {
            all.push(fold.clone());
        }
    }
}

pub(super) fn start(steps: &[Step]) -> Vec<StepRun> {
    let run = |step: &Step| match step {
        Step::Map(map) => StepRun { map: Some(map.map.start()), next: start(&map.next) },
        _ => StepRun { map: None, next: Vec::new() },
    };
    steps.iter().map(run).collect()
}

/// A bound on what one row costs in some steps.
pub(super) fn cost(steps: &[Step], context: &RunContext) -> usize {
    let of = |step: &Step| match step {
        Step::Map(map) => map.map.cost().saturating_add(cost(&map.next, context)),
        Step::Batch { .. } => usize::MAX,
        Step::Fold { .. } => 64,
        Step::Reduce { reads, .. } => {
            let copied = |read: &ColumnRef| {
                context
                    .plan
                    .column(*read)
                    .ty
                    .stored()
                    .map_or(64, |tensor| tensor.row_len().unwrap_or(usize::MAX))
            };
            reads.iter().map(copied).fold(0, usize::saturating_add)
        }
        Step::Sink { reads, .. } => {
            // Records of whole tensors print every number. What a map gives has its cost there.
            let printed = |read: &ColumnRef| match context.plan.column(*read).ty.stored() {
                Some(tensor) => tensor.row_len().unwrap_or(usize::MAX).saturating_mul(17),
                None => 0,
            };
            reads.iter().map(printed).fold(0, usize::saturating_add)
        }
    };
    steps.iter().map(of).fold(0, usize::saturating_add)
}
