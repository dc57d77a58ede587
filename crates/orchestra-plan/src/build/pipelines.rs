//! What is connected is a pipeline: which sources and stages each has, its name, its limits and its loaders.

use orchestra_core::{PipelineId, SinkId, SourceId, StageId};

use super::assemble::Assembler;
use crate::graph::Link;
use crate::nearest::suggestion;
use crate::plan::{BETWEEN_COMMITS, Limits, Origin, PipelinePlan, SinkPlan, SourcePlan, StagePlan};
use crate::raw::RawPipeline;

impl<'a> Assembler<'a> {
    /// The pipeline of every source and stage: what is connected shares one, numbered in the order of the sources.
    pub(super) fn pipelines(&self) -> (Vec<PipelineId>, Vec<PipelineId>) {
        let graph = &self.parts.graph;
        let mut of_source: Vec<usize> = (0..graph.n_sources).collect();
        let mut of_stage: Vec<usize> = Vec::with_capacity(graph.n_stages);
        for reads in &graph.reads[..graph.n_stages] {
            let group = |link: &Link| match link.target {
                Origin::Source(source) => of_source[source.index()],
                Origin::Stage(stage) => of_stage[stage.index()],
            };
            let groups: Vec<usize> = reads.iter().flatten().map(group).collect();
            let least = groups.iter().copied().min().unwrap_or_default();
            // A stage that joins two graphs makes them one.
            let all = of_source.iter_mut().chain(&mut of_stage);
            all.filter(|g| groups.contains(g)).for_each(|g| *g = least);
            of_stage.push(least);
        }
        let mut numbers = of_source.clone();
        numbers.sort_unstable();
        numbers.dedup();
        // Each group is called as its first source, of which there are no more than ids.
        let number = |group: usize| PipelineId(numbers.partition_point(|n| *n < group) as u16);
        (of_source.into_iter().map(number).collect(), of_stage.into_iter().map(number).collect())
    }

    /// The names of the pipelines, of which not all parts are known.
    pub(super) fn pipeline_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        // The first source of each has the next number.
        for (source, pipeline) in self.pipelines().0.iter().enumerate() {
            if pipeline.index() == names.len() {
                names.push(self.parts.workflow.sources[source].name.value.clone());
            }
        }
        names
    }

    /// `[pipelines.NAME]` of each pipeline, which is called as its source.
    pub(super) fn own_limits(&mut self) -> Option<Vec<Option<&'a RawPipeline>>> {
        let workflow = &self.parts.workflow;
        let of_source = self.pipelines().0;
        let names = self.pipeline_names();
        let mut own: Vec<Option<&RawPipeline>> = vec![None; names.len()];
        for raw in &workflow.pipelines {
            let name = &raw.name.value;
            if let Some(at) = names.iter().position(|of| of == name) {
                own[at] = Some(raw);
                continue;
            }
            // Those that are used come first.
            if workflow.sources[of_source.len()..].iter().any(|source| source.name.value == *name) {
                let message = format!("`pipelines.{name}` has no effect: nothing uses source `{name}`");
                self.diags.warning(raw.name.span, message).label("has no effect");
                continue;
            }
            let names = names.iter().map(String::as_str);
            self.diags
                .error(raw.name.span, format!("there is no pipeline `{name}`"))
                .label("a pipeline is called as its source")
                .help(suggestion("pipelines", name, names.collect::<Vec<_>>()));
        }
        (!self.diags.has_errors()).then_some(own)
    }

    /// Gives each pipeline its limits, and each source an equal share of the loaders.
    pub(super) fn limit(
        &mut self,
        pipelines: &mut [PipelinePlan],
        stages: &[StagePlan],
        own: &[Option<&RawPipeline>],
    ) {
        let n_sources: usize = pipelines.iter().map(|pipeline| pipeline.sources.len()).sum();
        let loaders = self.loader_threads().div_ceil(n_sources.max(1)).max(1);
        for (pipeline, own) in pipelines.iter_mut().zip(own) {
            pipeline.loaders = loaders;
            let Some(own) = own else { continue };
            pipeline.limits = own.limits(&self.parts.workflow.limits);
            if pipeline.stages.iter().any(|stage| stages[stage.index()].batch().is_some()) {
                continue;
            }
            for key in &own.of_models {
                let message =
                    format!("`pipelines.{}.{}` has no effect: it runs no model", own.name.value, key.value);
                self.diags.warning(key.span, message).label("has no effect").help("leave it out");
            }
        }
    }

    /// Loaders of all pipelines, as many as cores unless the file says how many.
    pub(super) fn loader_threads(&self) -> usize {
        let cores = self.parts.machine.as_ref().map(|m| m.cores);
        let written = self.parts.workflow.loaders.as_ref().map(|n| n.value as usize);
        written.or(cores).unwrap_or(1).max(1)
    }
}

pub(super) fn pipeline_plans(
    sources: &[SourcePlan],
    stages: &[StagePlan],
    sinks: &[SinkPlan],
    (limits, loader_threads): (&Limits, usize),
) -> Vec<PipelinePlan> {
    let count = sources.iter().map(|s| s.pipeline.index() + 1).max().unwrap_or(0);
    let mut plans: Vec<PipelinePlan> = (0..count)
        .map(|_| PipelinePlan {
            name: String::new(),
            sources: Vec::new(),
            stages: Vec::new(),
            sinks: Vec::new(),
            limits: Limits { max_failed: None, ..limits.clone() },
            loaders: 1,
            window: loader_threads * 4 + BETWEEN_COMMITS,
            linear: None,
            carried_bytes: 0,
        })
        .collect();
    for (id, source) in (0..).zip(sources) {
        let plan = &mut plans[source.pipeline.index()];
        if plan.sources.is_empty() {
            plan.name.clone_from(&source.name);
        }
        plan.sources.push(SourceId(id));
    }
    for (id, stage) in (0..).zip(stages) {
        let plan = &mut plans[stage.pipeline.index()];
        if let Some(batch) = stage.batch() {
            // The slots, and what is being read for them.
            plan.window += batch.max_batch * (1 + batch.ready) * batch.layout.slots;
        }
        plan.stages.push(StageId(id));
    }
    for (id, sink) in (0..).zip(sinks).filter(|(_, sink)| !sink.is_of_failures) {
        plans[sink.pipeline.index()].sinks.push(SinkId(id));
    }
    plans
}
