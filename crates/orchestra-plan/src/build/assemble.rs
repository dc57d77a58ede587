//! The last step: numbers for everything that is used, batch sizes, slots, pipelines. Finds errors of size only.

use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{DeviceSpec, Iteration, ModelId, PipelineId, SinkId, SourceId, StageId};
use orchestra_store::ListingSpec;
use serde_json::Value as Json;

use super::Parts;
use crate::bytes::format_bytes;
use crate::devices::Device;
use crate::diagnostics::{Diagnostics, Span};
use crate::fingerprint::fingerprint;
use crate::flow::connect;
use crate::graph::Link;
use crate::kind::{Runs, Writes};
use crate::measured::settings;
use crate::models::Model;
use crate::near_cores::{Placed, near};
use crate::nearest::suggestion;
use crate::plan::{
    BETWEEN_COMMITS, BatchPlan, DeviceMemory, DevicePlan, FilesPlan, FoldPlan, Growth, Limits, NodeCores,
    Origin, PipelinePlan, Plan, Shape, SinkPlan, SourcePlan, StagePlan, WorkerPlan,
};
use crate::raw::{RawModel, RawPipeline, RawStage};
use crate::sinks::{bucket_of, parts_of};
use crate::slots::{SlotDemand, SlotError, allot, ready_batches};
use crate::wiring::Wired;

/// Largest batch on a GPU and on the CPU, unless the file says otherwise. On the CPU larger batches gain nothing.
const DEFAULT_BATCH_CUDA: usize = 32;
const DEFAULT_BATCH_CPU: usize = 8;

/// The most that pictures carried along by the stages of a pipeline may take.
const CARRIED_BYTES: u64 = 512 << 20;

/// What loaders may take for decoding where the memory of the machine is not known.
const LOADER_BYTES: u64 = 4 << 30;

pub(super) struct Assembler<'a> {
    parts: &'a Parts,
    file: PathBuf,
    reasons: Vec<String>,
    diags: &'a mut Diagnostics,
}

/// What batch slots may take.
#[derive(Clone)]
struct SlotMemory {
    limit: Option<u64>,
    span: Option<Span>,
    /// In messages.
    called: String,
}

/// Batch size, and where rows lie.
type Layout = (usize, BatchLayout);

impl<'a> Assembler<'a> {
    /// Nothing in `parts` that is used may be missing: errors ended the planning before.
    pub fn new(parts: &'a Parts, file: PathBuf, reasons: Vec<String>, diags: &'a mut Diagnostics) -> Self {
        Self { parts, file, reasons, diags }
    }

    pub fn assemble(mut self) -> Option<Plan> {
        let workflow = &self.parts.workflow;
        let loader_threads = self.loader_threads();
        let (of_source, of_stage) = self.pipelines();
        let own = self.own_limits()?;
        let layouts = self.layouts(&of_stage, &own)?;
        let used: Vec<_> = (0..self.parts.devices.len()).map(|d| placed(self.parts, d)).collect();
        let nodes = self.parts.machine.as_ref().map_or(&[][..], |m| &m.nodes);
        let near = near(&used, nodes, loader_threads, &mut self.reasons);
        let sources = self.source_plans(&of_source)?;
        let stages = self.stage_plans(&of_stage, layouts)?;
        let sinks = self.sink_plans(&of_stage)?;
        let mut pipelines = pipeline_plans(&sources, &stages, &sinks, (&workflow.limits, loader_threads));
        self.limit(&mut pipelines, &stages, &own);
        let stem =
            || self.file.file_stem().map_or_else(|| "workflow".into(), |s| s.to_string_lossy().into_owned());
        let mut plan = Plan {
            name: workflow.name.clone().unwrap_or_else(stem),
            output: self.parts.output.clone(),
            sources,
            models: self.used_models().map(|model| model.plan.clone()).collect(),
            stages,
            sinks,
            tasks: self.parts.tasks.clone(),
            late: None,
            devices: self.device_plans(near.devices),
            pipelines,
            limits: workflow.limits.clone(),
            telemetry: workflow.telemetry.clone(),
            loader_threads,
            loader_bytes: LOADER_BYTES,
            loaders_near: near.loaders,
            fingerprint: Vec::new(),
            reasons: std::mem::take(&mut self.reasons),
            file: self.file.clone(),
        };
        connect(&mut plan, workflow, &self.parts.graph, self.diags)?;
        number_files(&mut plan);
        self.share_memory(&mut plan);
        plan.fingerprint = fingerprint(&plan, &workflow.sources);
        plan.fingerprint.extend(self.parts.outputs_of_tasks.iter().cloned());
        Some(plan)
    }

    /// Gives each pipeline its limits and its loaders: those of its table, or a share of what the tables of others leave for each source.
    fn limit(&mut self, pipelines: &mut [PipelinePlan], stages: &[StagePlan], own: &[Option<&RawPipeline>]) {
        let of_own = |own: &Option<&RawPipeline>| own.map_or(0, RawPipeline::n_loaders);
        let left = self.loader_threads().saturating_sub(own.iter().map(of_own).sum());
        let sharing = pipelines.iter().zip(own).filter(|(_, own)| of_own(own) == 0);
        let n_sharing: usize = sharing.map(|(pipeline, _)| pipeline.sources.len()).sum();
        for (pipeline, own) in pipelines.iter_mut().zip(own) {
            let (n, among) = match of_own(own) {
                0 => (left, n_sharing),
                own => (own, pipeline.sources.len()),
            };
            pipeline.loaders = n.div_ceil(among.max(1)).max(1);
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

    /// What the slots leave of the memory: a quarter at most for pictures that are carried, the same for each pipeline, and half at most for
    /// loaders.
    fn share_memory(&self, plan: &mut Plan) {
        let limit = self.slot_memory().limit;
        let pipelines = plan.pipelines.len().max(1) as u64;
        let carried = limit.map_or(CARRIED_BYTES, |limit| (limit / 4 / pipelines).min(CARRIED_BYTES));
        plan.pipelines.iter_mut().for_each(|pipeline| pipeline.carried_bytes = carried);
        if let Some(limit) = limit {
            let slots: u64 = plan.batch_stages().map(|(_, batch)| batch.layout.total_bytes() as u64).sum();
            plan.loader_bytes = (limit / 2).min(limit.saturating_sub(carried * pipelines + slots));
        }
    }

    /// Processes that read and decode.
    fn loader_threads(&self) -> usize {
        let cores = self.parts.machine.as_ref().map(|m| m.cores);
        self.parts.workflow.loaders.or(cores).unwrap_or(1).max(1)
    }

    /// The names of the pipelines, of which not all parts are known.
    pub fn pipeline_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        // The first source of each has the next number.
        for (source, pipeline) in self.pipelines().0.iter().enumerate() {
            if pipeline.index() == names.len() {
                names.push(self.parts.workflow.sources[source].name.value.clone());
            }
        }
        names
    }

    fn used_models(&self) -> impl Iterator<Item = &'a Model> {
        self.parts.models[..self.parts.graph.n_models].iter().flatten()
    }

    /// `[pipelines.NAME]` of each pipeline, which is called as its source.
    pub fn own_limits(&mut self) -> Option<Vec<Option<&'a RawPipeline>>> {
        let workflow = &self.parts.workflow;
        let (of_source, loader_threads) = (self.pipelines().0, self.loader_threads());
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
        let sum: usize = own.iter().flatten().map(|own| own.n_loaders()).sum();
        let largest = own.iter().flatten().filter_map(|own| own.loaders.as_ref()).max_by_key(|n| n.value);
        if let Some(largest) = largest.filter(|_| sum > loader_threads) {
            let message = format!("`loaders` of pipelines are {sum} in all, but there are {loader_threads}");
            self.diags.error(largest.span, message).help(
                "lower it, or raise `limits.loaders`, which is the number of cores where it is not said",
            );
        }
        (!self.diags.has_errors()).then_some(own)
    }

    /// Batch sizes and slots of all batch stages, by stage of the plan. A pipeline with `memory` of its own has its slots in that, the others in
    /// what is left.
    fn layouts(
        &mut self,
        of_stage: &[PipelineId],
        own: &[Option<&RawPipeline>],
    ) -> Option<Vec<Option<Layout>>> {
        let parts = self.parts;
        let own_of = |stage: usize| own[of_stage[stage].index()];
        let mut all = Vec::new();
        for stage in 0..parts.graph.n_stages {
            let Some(Wired::Batch { model, tensors, outputs, fixed_batch, .. }) = &parts.wired[stage] else {
                continue;
            };
            let (raw, raw_model) = (&parts.workflow.stages[stage], &parts.workflow.models[*model]);
            let demand = SlotDemand {
                stage: &raw.name.value,
                inputs: tensors,
                outputs,
                max_batch: self.max_batch(stage, raw_model, *fixed_batch)?,
                together: raw.batch().and_then(|batch| batch.together),
                workers: parts.workers[stage].iter().map(|w| w.count).sum(),
                most: parts.workers[stage].iter().map(WorkerPlan::most).sum(),
                streams: raw_model.streams(),
                on_cpu: !self.is_on_cuda(stage),
            };
            all.push((stage, demand));
        }
        let mut by_stage: Vec<Option<Layout>> = (0..parts.graph.n_stages).map(|_| None).collect();
        let mut left = self.slot_memory();
        for own in own.iter().copied().flatten().filter(|own| own.memory.is_some()).map(Some).chain([None]) {
            let is_here = |stage: usize| {
                let of = own_of(stage).filter(|of| of.memory.is_some());
                of.map(|of| &of.name.value) == own.map(|own| &own.name.value)
            };
            let (stages, demands): (Vec<usize>, Vec<SlotDemand<'_>>) =
                all.extract_if(.., |(stage, _)| is_here(*stage)).unzip();
            let bound = match own.and_then(|own| Some((own, own.memory.as_ref()?))) {
                Some((own, memory)) => SlotMemory {
                    limit: Some(memory.value.min(left.limit.unwrap_or(u64::MAX))),
                    span: Some(memory.span),
                    called: format!("`memory` of pipeline `{}`", own.name.value),
                },
                None => left.clone(),
            };
            let layouts = match allot(&demands, bound.limit, &mut self.reasons) {
                Ok(layouts) => layouts,
                Err(error) => {
                    self.report(&error, &stages, &bound);
                    return None;
                }
            };
            let taken: u64 = layouts.iter().map(|layout| layout.total_bytes() as u64).sum();
            left.limit = left.limit.map(|limit| limit.saturating_sub(taken));
            for ((stage, demand), layout) in stages.into_iter().zip(&demands).zip(layouts) {
                by_stage[stage] = Some((demand.max_batch, layout));
            }
        }
        Some(by_stage)
    }

    /// Some worker of the stage runs on a GPU.
    fn is_on_cuda(&self, stage: usize) -> bool {
        self.parts.workers[stage].iter().any(|w| self.parts.devices[w.device.index()].is_cuda())
    }

    /// What all slots together may take: as the file says, else half of the memory of the machine.
    fn slot_memory(&self) -> SlotMemory {
        match &self.parts.workflow.memory {
            Some(limit) => SlotMemory {
                limit: Some(limit.value),
                span: Some(limit.span),
                called: "`limits.memory`".to_owned(),
            },
            None => {
                let memory = self.parts.machine.as_ref().map_or(0, |m| m.memory);
                let limit = (memory > 0).then_some(memory / 2);
                SlotMemory { limit, span: None, called: "half of this machine's memory".to_owned() }
            }
        }
    }

    fn report(&mut self, error: &SlotError, stages: &[usize], bound: &SlotMemory) {
        let workflow = &self.parts.workflow;
        match error {
            SlotError::Layout { stage, error } => {
                let name = &workflow.stages[stages[*stage]].name;
                self.diags
                    .error(name.span, format!("batches of stage `{}` are too large: {error}", name.value))
                    .help("lower `batch.max` or the size of the images");
            }
            SlotError::TooLittleMemory { needed } => {
                let (needed, limit) = (format_bytes(*needed), format_bytes(bound.limit.unwrap_or_default()));
                let message =
                    format!("one batch slot per worker takes {needed}, but {} is {limit}", bound.called);
                let help = "lower `batch.max` or `workers`, or raise `limits.memory`";
                self.diags.error(bound.span, message).help(help);
            }
        }
    }

    fn max_batch(&mut self, stage: usize, model: &RawModel, fixed: Option<usize>) -> Option<usize> {
        let raw = &self.parts.workflow.stages[stage];
        let asked = raw.batch()?.max_batch.as_ref();
        let name = &raw.name.value;
        if let (Some(asked), Some(limit)) = (asked, &model.max_batch)
            && asked.value > limit.value
        {
            self.diags.error(
                asked.span,
                format!(
                    "stage `{name}` asks for batches of {}, but `max_batch` of model `{}` is {}",
                    asked.value, model.name.value, limit.value
                ),
            );
            return None;
        }
        let on_cuda = self.is_on_cuda(stage);
        let asked = asked.or(model.max_batch.as_ref());
        let (max, why) = match (fixed, asked) {
            (Some(fixed), asked) => {
                if let Some(asked) = asked.filter(|a| a.value != fixed as u64) {
                    self.diags
                        .warning(
                            asked.span,
                            format!("model `{}` takes batches of {fixed} only", model.name.value),
                        )
                        .label("has no effect")
                        .help("export the model with an open batch dimension to choose the size");
                }
                (fixed, "the only size that the model takes")
            }
            (None, Some(asked)) => (asked.value as usize, "as asked"),
            (None, None) if on_cuda => (DEFAULT_BATCH_CUDA, "the default on a GPU"),
            (None, None) => (DEFAULT_BATCH_CPU, "the default on the CPU, where larger ones gain nothing"),
        };
        let sizes = raw.batch()?.sizes.as_ref();
        if let Some((sizes, size)) = sizes.and_then(|s| Some((s, s.value.iter().find(|n| **n > max as u64)?)))
        {
            let what =
                format!("stage `{name}`: `batch.sizes` has {size}, but its batches are of up to {max}");
            self.diags.error(sizes.span, what).help("leave it out, or raise `batch.max`");
            return None;
        }
        self.reasons.push(format!("stage `{name}`: batches of up to {max}: {why}"));
        Some(max)
    }

    /// The pipeline of every source and stage: what is connected shares one, numbered in the order of the sources.
    fn pipelines(&self) -> (Vec<PipelineId>, Vec<PipelineId>) {
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

    fn source_plans(&self, pipelines: &[PipelineId]) -> Option<Vec<SourcePlan>> {
        let plan = |(source, pipeline): (usize, &PipelineId)| {
            let raw = &self.parts.workflow.sources[source];
            let connected = self.parts.sources[source].as_ref()?;
            Some(SourcePlan {
                name: raw.name.value.clone(),
                pipeline: *pipeline,
                kind: raw.kind.as_ref()?.name().to_owned(),
                listing: self.parts.listings[source].clone()?,
                expand: connected.expand.clone(),
                names_repeat: connected.names_repeat,
                gives: connected.gives.clone(),
                fetch: Arc::clone(&connected.fetch),
                sandbox_read: self.parts.reads[source].clone(),
                settings: connected.settings.clone(),
                decoders: connected.decoders,
            })
        };
        pipelines.iter().enumerate().map(plan).collect()
    }

    fn stage_plans(&self, pipelines: &[PipelineId], layouts: Vec<Option<Layout>>) -> Option<Vec<StagePlan>> {
        layouts
            .into_iter()
            .enumerate()
            .map(|(stage, layout)| {
                let raw = &self.parts.workflow.stages[stage];
                let from = origins(&self.parts.graph.reads[stage]);
                let (reads, gives, runs, about) = match self.parts.wired[stage].as_ref()? {
                    Wired::Batch { model, inputs, iteration, fixed_batch, gives, .. } => {
                        let batch = self.batch_plan(stage, *model, (*fixed_batch, iteration), layout?)?;
                        (inputs, gives, Shape::Batch(Box::new(batch)), None)
                    }
                    Wired::Stage { reads, connected, .. } => {
                        let runs = match &connected.runs {
                            Runs::Map(map) => Shape::Map(Arc::clone(map)),
                            Runs::Fold(fold) => Shape::Fold(FoldPlan::Parts(Arc::clone(fold))),
                            Runs::Reduce(reduce) => Shape::Fold(FoldPlan::Run(Arc::clone(reduce))),
                        };
                        (reads, &connected.gives, runs, Some(connected))
                    }
                };
                Some(StagePlan {
                    name: raw.name.value.clone(),
                    pipeline: pipelines[stage],
                    kind: raw.kind_name().to_owned(),
                    home: *from.first()?,
                    within: Vec::new(),
                    from,
                    reads: reads.clone(),
                    gives: gives.clone(),
                    settings: about.map_or(Json::Null, |c| c.settings.clone()),
                    details: about.map_or_else(Vec::new, |c| c.details.clone()),
                    about: about.map_or_else(String::new, |c| c.about.clone()),
                    runs,
                })
            })
            .collect()
    }

    fn batch_plan(
        &self,
        stage: usize,
        model: usize,
        (fixed_batch, iteration): (Option<usize>, &Option<Iteration>),
        (max_batch, layout): Layout,
    ) -> Option<BatchPlan> {
        let wait = self.parts.workflow.stages[stage].batch()?.wait;
        let on_cuda = self.is_on_cuda(stage);
        let sizes = match fixed_batch {
            _ if !on_cuda => Vec::new(),
            Some(n) => vec![n],
            None => self.batch_sizes(stage, max_batch)?,
        };
        let mut workers = self.parts.workers[stage].clone();
        cut_growth(&mut workers, layout.slots);
        let raw = &self.parts.workflow.models[model];
        Some(BatchPlan {
            model: ModelId(model as u16), // tables are no more than ids
            carries: Vec::new(),
            max_batch,
            fixed_batch,
            wait,
            batch_sizes: sizes,
            workers,
            streams: raw.streams(),
            ready: ready_batches(&layout, !on_cuda),
            priority: raw.priority,
            recycle: raw.recycle,
            gives_memory_back: raw.tuning.wanted.shrink,
            iteration: iteration.clone(),
            layout,
            settings: settings_of(raw, stage, &self.parts.wired)?,
        })
    }

    /// The sizes that batches of a GPU are padded to. One, unless the file names more: a convolution of ONNX Runtime keeps the plan of cuDNN for
    /// one shape, and makes it anew whenever the shape changes.
    fn batch_sizes(&self, stage: usize, max: usize) -> Option<Vec<usize>> {
        let asked = self.parts.workflow.stages[stage].batch()?.sizes.iter().flat_map(|sizes| &sizes.value);
        let mut sizes: Vec<usize> = asked.map(|size| *size as usize).chain([max]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        Some(sizes)
    }

    fn sink_plans(&self, pipelines: &[PipelineId]) -> Option<Vec<SinkPlan>> {
        (0..self.parts.workflow.sinks.len())
            .map(|sink| {
                let raw = &self.parts.workflow.sinks[sink];
                let links = &self.parts.graph.sinks[sink];
                let connected = self.parts.records[sink].as_ref()?;
                let from = origins(links);
                let (kind, path) = (raw.kind.as_ref()?, self.parts.sink_paths[sink].as_ref()?);
                let files = || FilesPlan {
                    folder: path.parent().unwrap_or(path).to_owned(),
                    extension: connected.encoder.extension().unwrap_or(kind.extension()).to_owned(),
                    numbered: false,
                };
                let (pipeline, home) = match raw.is_of_failures {
                    // No row reaches it.
                    true => (PipelineId(0), Origin::Stage(StageId(u16::MAX))),
                    false => (pipelines[links.iter().flatten().find_map(Link::stage)?], *from.first()?),
                };
                Some(SinkPlan {
                    name: raw.name.value.clone(),
                    pipeline,
                    kind: kind.name().to_owned(),
                    is_of_failures: raw.is_of_failures,
                    home,
                    from,
                    reads: connected.reads.clone(),
                    columns: connected.columns.clone(),
                    encoder: Arc::clone(&connected.encoder),
                    path: self.parts.output.join(path),
                    files: (kind.writes() == Writes::FileEach).then(files),
                    part_files: parts_of(raw, path),
                    bucket: bucket_of(raw),
                    ordered: raw.ordered,
                })
            })
            .collect()
    }

    fn device_plans(&self, near: Vec<Option<NodeCores>>) -> Vec<DevicePlan> {
        let headroom = self.parts.workflow.devices.headroom;
        let plan = |(device, near): (&Device, Option<NodeCores>)| DevicePlan {
            spec: DeviceSpec { name: device.name.clone(), kind: device.kind.clone() },
            product: device.product.clone(),
            memory: device.memory.map(|(total, free)| {
                let of_shares = super::of_shares(Some(&self.parts.tasks), device);
                DeviceMemory { total, free, headroom, of_shares }
            }),
            near,
        };
        self.parts.devices.iter().zip(near).map(plan).collect()
    }
}

/// What links lead to, each once.
fn origins(links: &[Option<Link>]) -> Vec<Origin> {
    let mut from: Vec<Origin> = Vec::new();
    for link in links.iter().flatten() {
        if !from.contains(&link.target) {
            from.push(link.target);
        }
    }
    from
}

fn placed(parts: &Parts, device: usize) -> Placed<'_> {
    let workers = parts.workers.iter().flatten().filter(|w| w.device.index() == device);
    let threads = workers.map(|w| w.count * w.threads).sum();
    Placed { device: &parts.devices[device], threads }
}

/// Each worker needs a slot: where memory for slots is short, fewer may come.
fn cut_growth(workers: &mut [WorkerPlan], slots: usize) {
    while workers.iter().map(WorkerPlan::most).sum::<usize>() > slots {
        let Some(largest) = workers.iter_mut().filter(|s| s.growth.is_some()).max_by_key(|s| s.most()) else {
            return;
        };
        largest.growth =
            largest.growth.map(|g| Growth { most: g.most - 1, ..g }).filter(|g| g.most > largest.count);
    }
}

/// Digest of what the sessions of a batch stage are opened with; `None` where that is not known.
pub(super) fn settings_of(model: &RawModel, stage: usize, wired: &[Option<Wired>]) -> Option<[u8; 32]> {
    let Some(Wired::Batch { tensors, pixels, iteration, .. }) = &wired[stage] else { return None };
    Some(settings(model, tensors, pixels, iteration.is_some()))
}

/// The largest batch of a stage on a GPU, before anything else about it is known.
pub(super) fn largest_on_cuda(model: &RawModel, stage: &RawStage, wired: Option<&Wired>) -> usize {
    if let Some(Wired::Batch { fixed_batch: Some(fixed), .. }) = wired {
        return *fixed;
    }
    let asked = stage.batch().and_then(|batch| batch.max_batch.as_ref());
    asked.or(model.max_batch.as_ref()).map_or(DEFAULT_BATCH_CUDA, |asked| asked.value as usize)
}

/// Names of a manifest may repeat; those of what is found on the disk do not.
fn number_files(plan: &mut Plan) {
    let repeats = |origin: &Origin| match origin {
        Origin::Source(source) => {
            let source = &plan.sources[source.index()];
            let is_list =
                matches!(source.listing, ListingSpec::Manifest { .. } | ListingSpec::ObjectManifest { .. });
            source.names_repeat || is_list
        }
        Origin::Stage(_) => false,
    };
    let may_repeat = |sink: &SinkPlan| sink.from.iter().any(|from| plan.ancestors(*from).iter().any(repeats));
    let numbered: Vec<bool> = plan.sinks.iter().map(may_repeat).collect();
    for (sink, numbered) in plan.sinks.iter_mut().zip(numbered) {
        if let Some(files) = &mut sink.files {
            files.numbered = numbered;
        }
    }
}

fn pipeline_plans(
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
            // The slots, with all that may go together, and what is being read for them.
            plan.window += (batch.layout.max_rows + batch.ready * batch.max_batch) * batch.layout.slots;
        }
        plan.stages.push(StageId(id));
    }
    for (id, sink) in (0..).zip(sinks).filter(|(_, sink)| !sink.is_of_failures) {
        plans[sink.pipeline.index()].sinks.push(SinkId(id));
    }
    plans
}
