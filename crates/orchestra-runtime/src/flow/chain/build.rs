//! From the plan to a chain: which maps stand between an origin and what its rows end in.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use orchestra_core::collect::Part;
use orchestra_core::data::ColumnType;
use orchestra_core::shapes::{FanOut, MapStep, Step};
use orchestra_core::{SinkId, StageId};
use orchestra_plan::{ColumnRef, FoldPlan, Origin, Shape};

use super::{Chain, ChainLeaf, ChainTargets, FoldTarget, LeafAction, MapPlace, RunContext};

pub(super) struct ChainBuilder<'a> {
    pub context: &'a Arc<RunContext>,
    pub targets: &'a ChainTargets,
    pub origin: Origin,
    pub steps: Vec<Step>,
    /// As they were found; `steps` name them by their places here.
    pub leaves: Vec<Option<ChainLeaf>>,
}

impl ChainBuilder<'_> {
    /// Adds all batch stages, folds and sinks that rows of the origin reach.
    pub fn find_leaves(&mut self) {
        let (plan, origin) = (Arc::clone(&self.context.plan), self.origin);
        for (id, stage) in (0..).map(StageId).zip(&plan.stages) {
            match &stage.runs {
                Shape::Map(_) => {}
                Shape::Batch(batch) if stage.home == origin => {
                    let Some(target) = self.targets.batch(id) else { continue };
                    // Behind what lies in slots stand the values that are carried.
                    let in_slots = &stage.reads[..stage.reads.len() - batch.values.len()];
                    // The plan puts it behind the columns that the model takes.
                    let trims = batch.trim.and(in_slots.last().copied());
                    self.leaf(&stage.from, id, in_slots, LeafAction::Batch { target, trims });
                }
                Shape::Fold(FoldPlan::Parts(_)) if stage.home == origin => {
                    let Some(fold) = self.targets.fold(id) else { continue };
                    self.leaf(&stage.from, id, &stage.reads, LeafAction::Fold(fold));
                }
                Shape::Fold(FoldPlan::Reduce(reduce)) if stage.home == origin => {
                    self.leaf(&stage.from, id, &stage.reads, LeafAction::Reduce(Arc::clone(reduce)));
                }
                Shape::Fold(FoldPlan::Join { ways }) => {
                    let of = u32::try_from(ways.len()).unwrap_or(u32::MAX);
                    for (index, way) in (0..).zip(ways).filter(|(_, way)| way.home == origin) {
                        let Some(fold) = self.targets.fold(id) else { continue };
                        let fold = FoldTarget { way: Some(Part { index, of }), ..fold };
                        self.leaf(&way.from, id, &way.reads, LeafAction::Fold(fold));
                    }
                }
                Shape::Batch(_) | Shape::Fold(_) => {}
            }
        }
        for (id, sink) in (0..).map(SinkId).zip(&plan.sinks).filter(|(_, sink)| sink.home == Some(origin)) {
            let from = sink.from.iter().rev().find_map(|from| from.stage()).unwrap_or(StageId(0));
            let does = LeafAction::Sink { sink: id, encoder: Arc::clone(&sink.encoder) };
            self.leaf(&sink.from, from, &sink.reads, does);
        }
    }

    /// Puts a leaf behind the maps that it is made of, each inside of the one before. Leaves with the same maps in front share them.
    fn leaf(&mut self, from: &[Origin], stage: StageId, reads: &[ColumnRef], does: LeafAction) {
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
                steps.push(Step::Map(MapStep {
                    stage,
                    at: 0,
                    map: Arc::clone(map),
                    reads: plan.stages[stage.index()].reads.clone(),
                    next: Vec::new(),
                }));
                steps.len() - 1
            });
            let Step::Map(map) = &mut steps[at] else { unreachable!("the step at hand is a map") };
            steps = &mut map.next;
        }
        steps.push(Step::Leaf(self.leaves.len()));
        let folds = match &does {
            LeafAction::Batch { target, .. } => target.folds.to_vec(),
            LeafAction::Fold(fold) => vec![fold.clone()],
            LeafAction::Reduce(_) | LeafAction::Sink { .. } => Vec::new(),
        };
        let passthrough_columns = match &plan.stages[stage.index()].runs {
            Shape::Batch(batch) if matches!(does, LeafAction::Batch { .. }) => {
                batch.passthrough_columns.clone()
            }
            _ => Vec::new(),
        };
        self.leaves.push(Some(ChainLeaf {
            stage,
            reads: reads.to_vec(),
            passthrough_columns,
            does,
            folds: vec![folds],
        }));
    }
}

impl Chain {
    /// Numbers maps and leaves in the order in which a row comes to them, and takes the leaves over.
    pub(super) fn number(&mut self, steps: &mut [Step], n_splits: usize, found: &mut [Option<ChainLeaf>]) {
        for step in steps {
            match step {
                Step::Map(step) => {
                    step.at = self.maps.len();
                    let (map, begin) = (Arc::clone(&step.map), self.leaves.len());
                    let behind = n_splits + usize::from(map.fan() == FanOut::Parts);
                    let (leaves, folds) = (begin..begin, Vec::new());
                    self.maps.push(MapPlace { stage: step.stage, map, leaves, n_splits, folds });
                    self.number(&mut step.next, behind, found);
                    let leaves = begin..self.leaves.len();
                    self.maps[step.at].folds = self.folds_of(leaves.clone(), behind);
                    self.maps[step.at].leaves = leaves;
                }
                Step::Leaf(leaf) => {
                    let found = found[*leaf].take();
                    *leaf = self.leaves.len();
                    self.leaves.extend(found.map(|mut found| {
                        for _ in 0..n_splits {
                            found.folds.insert(0, whole(&found.folds[0]));
                        }
                        found
                    }));
                }
            }
        }
    }

    /// The folds that must hear of a row, in so many splits, that would come to these leaves.
    pub(super) fn folds_of(&self, leaves: Range<usize>, n_splits: usize) -> Vec<FoldTarget> {
        let mut all = Vec::new();
        self.leaves[leaves].iter().for_each(|leaf| add(&mut all, &leaf.folds[n_splits]));
        all
    }

    pub(super) fn cost_of_row(&self) -> usize {
        let lengths = |leaf: &ChainLeaf, of: &dyn Fn(Option<usize>) -> usize| {
            let row_len = |read: &ColumnRef| {
                let ty = &self.context.plan.column(*read).ty;
                let tensor = ty.stored().map(|tensor| tensor.row_len().unwrap_or(usize::MAX));
                // Of a picture, a file is made.
                of(tensor.or_else(|| (*ty == ColumnType::Picture).then_some(usize::MAX)))
            };
            leaf.reads.iter().map(row_len).fold(0, usize::saturating_add)
        };
        let of_leaf = |leaf: &ChainLeaf| match leaf.does {
            LeafAction::Batch { .. } => usize::MAX,
            LeafAction::Fold(_) => 64,
            LeafAction::Reduce(_) => lengths(leaf, &|copied| copied.unwrap_or(64)),
            // Records of whole tensors print every number, but for replies. What a map gives has its cost there.
            LeafAction::Sink { .. } => {
                let each = if self.context.plan.asked().is_some() { 1 } else { 17 };
                lengths(leaf, &|printed| printed.map_or(0, |n| n.saturating_mul(each)))
            }
        };
        let maps = self.maps.iter().map(|place| place.map.cost());
        maps.chain(self.leaves.iter().map(of_leaf)).fold(0, usize::saturating_add)
    }
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
