//! From the plan to a chain: which maps stand between an origin and what its rows end in.

use std::sync::Arc;

use orchestra_core::shapes::Fan;
use orchestra_core::{SinkId, StageId};
use orchestra_plan::{Origin, Shape, SinkPlan};
use ractor::ActorRef;

use super::{FoldMsg, MapStep, RunContext, Step, StepRun, Targets};

pub(super) struct Builder<'a> {
    pub context: &'a Arc<RunContext>,
    pub targets: &'a Targets,
    pub origin: Origin,
    pub maps: Vec<StageId>,
    pub steps: Vec<Step>,
}

impl Builder<'_> {
    /// Adds a batch stage or a fold. Gives whether it is one.
    pub fn stage_leaf(&mut self, stage: StageId, runs: &Shape) -> bool {
        let reads = self.context.plan.stages[stage.index()].reads.clone();
        let leaf = match runs {
            Shape::Map(_) => return false,
            Shape::Batch(infer) => self.targets.batch(stage).map(|target| {
                let carries = infer.carries.clone();
                Step::Batch { target, reads, carries }
            }),
            Shape::Fold { .. } => {
                let fold = self.targets.folds.iter().find(|(fold, _)| *fold == stage);
                fold.map(|(_, fold)| Step::Fold { stage, fold: fold.clone(), reads })
            }
        };
        if let Some(leaf) = leaf {
            self.leaf(Origin::Stage(stage), leaf);
        }
        true
    }

    pub fn sink_leaf(&mut self, id: SinkId, sink: &SinkPlan) {
        let columns = self.context.plan.gives(Origin::Stage(sink.from)).0.len();
        let encoder = Arc::clone(&sink.encoder);
        self.leaf(Origin::Stage(sink.from), Step::Sink { sink: id, from: sink.from, columns, encoder });
    }

    /// Puts a leaf behind the maps that it is made of, each inside of the one before. Leaves with the same maps in front share them.
    fn leaf(&mut self, of: Origin, leaf: Step) {
        let plan = &self.context.plan;
        // Stages stand after what they read from, so the order of their numbers is that of the data.
        let maps = plan.ancestors(of).into_iter().filter_map(Origin::stage).filter(|stage| {
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
                let readers = (0..).map(StageId).zip(&plan.stages);
                let readers = readers.filter(|(_, s)| s.from.contains(&Origin::Stage(stage)));
                let inner = match map.fan() {
                    Fan::Parts => readers
                        .flat_map(|(reader, _)| self.targets.folds_behind(self.context, reader))
                        .fold(Vec::new(), |mut all: Vec<ActorRef<FoldMsg>>, fold| {
                            if all.iter().all(|known| known.get_id() != fold.get_id()) {
                                all.push(fold);
                            }
                            all
                        }),
                    Fan::One | Fan::AtMostOne => Vec::new(),
                };
                let place = self.maps.len();
                self.maps.push(stage);
                steps.push(Step::Map(MapStep {
                    stage,
                    at: place,
                    map: Arc::clone(map),
                    reads: plan.stages[stage.index()].reads.clone(),
                    next: Vec::new(),
                    folds: self.targets.folds_behind(self.context, stage),
                    inner_folds: inner,
                }));
                steps.len() - 1
            });
            let Step::Map(map) = &mut steps[at] else { unreachable!("the step at hand is a map") };
            steps = &mut map.next;
        }
        steps.push(leaf);
    }
}

/// What one thread needs for some steps.
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
        Step::Sink { from, .. } => {
            // Records of whole tensors print every number. What a map gives has its cost there.
            let printed = |read: &orchestra_core::data::Column| match read.ty.stored() {
                Some(tensor) => tensor.row_len().unwrap_or(usize::MAX).saturating_mul(17),
                None => 0,
            };
            let gives = context.plan.gives(Origin::Stage(*from));
            gives.0.iter().map(printed).fold(0, usize::saturating_add)
        }
    };
    steps.iter().map(of).fold(0, usize::saturating_add)
}
