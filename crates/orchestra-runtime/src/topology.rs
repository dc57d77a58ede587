//! Who reads from whom, looked up often and computed once from the plan. It holds no actors.

use orchestra_core::{SinkId, SourceId, StageId};
use orchestra_plan::{Plan, StageKind};

/// The edges of a plan.
#[derive(Debug)]
pub struct Topology {
    children: Vec<Vec<StageId>>,
    sinks: Vec<Vec<SinkId>>,
    below: Vec<usize>,
    source_of: Vec<Option<SourceId>>,
}

impl Topology {
    /// Looks the edges up.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let n = plan.stages.len();
        let mut t = Self {
            children: vec![Vec::new(); n],
            sinks: vec![Vec::new(); n],
            below: vec![0; n],
            source_of: vec![None; n],
        };
        for (i, stage) in plan.stages.iter().enumerate() {
            let id = StageId(i as u16);
            for parent in parents(&stage.kind) {
                if !t.children[parent.index()].contains(&id) {
                    t.children[parent.index()].push(id);
                }
                t.source_of[i] = t.source_of[parent.index()];
            }
            if let StageKind::Image { source, .. } = &stage.kind {
                t.source_of[i] = Some(*source);
            }
        }
        for (i, sink) in plan.sinks.iter().enumerate() {
            t.sinks[sink.from.index()].push(SinkId(i as u16));
        }
        t.below = (0..n).map(|i| t.sinks_reached(StageId(i as u16)).len()).collect();
        t
    }

    /// Stages that read from this one.
    #[must_use]
    pub fn children(&self, stage: StageId) -> &[StageId] {
        &self.children[stage.index()]
    }

    /// Sinks right on this stage.
    #[must_use]
    pub fn sinks_of(&self, stage: StageId) -> &[SinkId] {
        &self.sinks[stage.index()]
    }

    /// Sinks on this stage and on everything that reads from it.
    #[must_use]
    pub fn n_sinks_below(&self, stage: StageId) -> usize {
        self.below[stage.index()]
    }

    /// The source whose items come to this stage.
    #[must_use]
    pub fn source_of(&self, stage: StageId) -> Option<SourceId> {
        self.source_of[stage.index()]
    }

    /// Sinks that the items of a source end in.
    #[must_use]
    pub fn sinks_of_source(&self, source: SourceId) -> Vec<SinkId> {
        let of_source = |s: &usize| self.source_of[*s] == Some(source);
        let mut all: Vec<SinkId> =
            (0..self.sinks.len()).filter(of_source).flat_map(|s| self.sinks[s].iter().copied()).collect();
        all.sort_unstable();
        all
    }

    fn sinks_reached(&self, from: StageId) -> Vec<SinkId> {
        let mut seen = vec![false; self.children.len()];
        let mut todo = vec![from];
        let mut sinks = Vec::new();
        while let Some(stage) = todo.pop() {
            if !std::mem::replace(&mut seen[stage.index()], true) {
                sinks.extend_from_slice(&self.sinks[stage.index()]);
                todo.extend_from_slice(&self.children[stage.index()]);
            }
        }
        sinks
    }
}

fn parents(kind: &StageKind) -> Vec<StageId> {
    match kind {
        StageKind::Image { .. } => Vec::new(),
        StageKind::Infer(infer) => infer.inputs.iter().map(|i| i.stage).collect(),
        StageKind::Classify { from, .. } => vec![*from],
    }
}
