//! What is connected is a pipeline: which sources and stages each has, its name, its limits and its loaders.

use orchestra_core::{PipelineId, SinkId, SourceId, StageId};

use crate::cx::Cx;
use crate::diagnostics::Reported;
use crate::host::MachineView;
use crate::nearest::suggestion;
use crate::plan::{BETWEEN_COMMITS, BatchPlan, Limits, Origin, PipelinePlan, Plan};
use crate::workflow::{Link, PipelineNode, WorkflowTables};

/// The pipelines of all sources and stages that are used.
pub(crate) struct Pipelines {
    pub of_sources: Vec<PipelineId>,
    pub of_stages: Vec<PipelineId>,
    /// Each is called as its first source.
    pub names: Vec<String>,
}

impl Pipelines {
    /// What is connected shares one; they are numbered in the order of the sources.
    pub fn of(workflow: &WorkflowTables) -> Self {
        let mut of_source: Vec<usize> = (0..workflow.n_sources).collect();
        let mut of_stage: Vec<usize> = Vec::with_capacity(workflow.n_stages);
        for stage in &workflow.stages[..workflow.n_stages] {
            let group = |link: &Link| match link.target {
                Origin::Source(source) => of_source[source.index()],
                Origin::Stage(stage) => of_stage[stage.index()],
            };
            let groups: Vec<usize> = stage.links.iter().flatten().map(group).collect();
            let least = groups.iter().copied().min().unwrap_or_default();
            // A stage that joins two graphs makes them one.
            let all = of_source.iter_mut().chain(&mut of_stage);
            all.filter(|g| groups.contains(g)).for_each(|g| *g = least);
            of_stage.push(least);
        }
        // Each group is numbered as its first source.
        let mut firsts = of_source.clone();
        firsts.sort_unstable();
        firsts.dedup();
        let name = |first: &usize| workflow.sources[*first].name.value.clone();
        let names = firsts.iter().map(name).collect();
        // Tables are no more than ids.
        let number = |group: usize| PipelineId(firsts.partition_point(|first| *first < group) as u16);
        Self {
            of_sources: of_source.into_iter().map(number).collect(),
            of_stages: of_stage.into_iter().map(number).collect(),
            names,
        }
    }

    /// `[pipelines.NAME]` of each.
    pub fn own_limits<'w>(
        &self,
        workflow: &'w WorkflowTables,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<Option<&'w PipelineNode>>, Reported> {
        let mut own: Vec<Option<&PipelineNode>> = vec![None; self.names.len()];
        for raw in &workflow.pipelines {
            let name = &raw.name.value;
            if let Some(at) = self.names.iter().position(|of| of == name) {
                own[at] = Some(raw);
                continue;
            }
            // Those that are used come first.
            if workflow.sources[workflow.n_sources..].iter().any(|source| source.name.value == *name) {
                let message = format!("`pipelines.{name}` has no effect: nothing uses source `{name}`");
                cx.warning(raw.name.span, message).label("has no effect");
                continue;
            }
            // Only a stage that is connected shows that others read its rows as items.
            if workflow.stages.iter().any(|stage| stage.name.value == *name && stage.connected.is_none()) {
                continue;
            }
            cx.error(raw.name.span, format!("there is no pipeline `{name}`"))
                .label("a pipeline is called as its source, or as the `reduce` that it reads")
                .help(suggestion("pipelines", name, self.names.iter().map(String::as_str)));
        }
        if cx.diags.has_errors() { Err(Reported) } else { Ok(own) }
    }

    /// Puts them into a plan that has all else. Each source has an equal share of the loaders.
    pub fn put_into(&self, plan: &mut Plan, own: &[Option<&PipelineNode>], cx: &mut Cx<'_>) {
        let n_listed = plan.sources.iter().filter(|source| source.reduced.is_none()).count();
        let loaders = plan.loader_threads.div_ceil(n_listed.max(1)).max(1);
        let pipeline = |(name, own): (&String, &Option<&PipelineNode>)| PipelinePlan {
            name: name.clone(),
            sources: Vec::new(),
            stages: Vec::new(),
            sinks: Vec::new(),
            after: Vec::new(),
            limits: match own {
                Some(own) => own.limits.clone(),
                None => Limits { max_failed: None, ..plan.limits.clone() },
            },
            loaders,
            window: plan.loader_threads * 4 + BETWEEN_COMMITS,
            linear: None,
            carried_bytes: 0,
        };
        let mut pipelines: Vec<PipelinePlan> = self.names.iter().zip(own).map(pipeline).collect();
        for (id, source) in (0..).map(SourceId).zip(&plan.sources) {
            let pipeline = &mut pipelines[source.pipeline.index()];
            pipeline.sources.push(id);
            if let Some(stage) = source.reduced {
                pipeline.after.push(plan.stages[stage.index()].pipeline);
                // Its rows are few, and others have ended.
                pipeline.loaders = 1;
            }
        }
        for (id, stage) in (0..).map(StageId).zip(&plan.stages) {
            let pipeline = &mut pipelines[stage.pipeline.index()];
            // The slots, and what is being read for them.
            let slots = |batch: &BatchPlan| batch.max_batch * (1 + batch.ready) * batch.layout.slots;
            pipeline.window += stage.batch().map_or(0, slots);
            pipeline.stages.push(id);
        }
        for (id, sink) in (0..).map(SinkId).zip(&plan.sinks).filter(|(_, sink)| !sink.is_of_failures) {
            pipelines[sink.pipeline.index()].sinks.push(id);
        }
        let runs_no_model = |pipeline: &PipelinePlan| {
            pipeline.stages.iter().all(|stage| plan.stages[stage.index()].batch().is_none())
        };
        let without = pipelines.iter().zip(own).filter(|(pipeline, _)| runs_no_model(pipeline));
        for own in without.filter_map(|(_, own)| *own) {
            for key in &own.of_models {
                let (name, key, span) = (&own.name.value, key.value, key.span);
                cx.warning(span, format!("`pipelines.{name}.{key}` has no effect: it runs no model"))
                    .label("has no effect")
                    .help("leave it out");
            }
        }
        plan.pipelines = pipelines;
    }
}

/// Loaders of all pipelines, as many as cores unless the file says how many.
pub(crate) fn loader_threads(workflow: &WorkflowTables, machine: Option<&MachineView>) -> usize {
    let written = workflow.limits.loaders.as_ref().map(|n| n.value as usize);
    written.or(machine.map(|machine| machine.cores)).unwrap_or(1).max(1)
}
