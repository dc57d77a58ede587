//! The last step: a plan of all that is used, with numbers for everything. Finds errors of size only.

use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::{DeviceSpec, PipelineId, StageId};
use orchestra_store::ListingSpec;
use serde_json::Value as Json;

use super::Parts;
use super::fewer_loaders::fewer_loaders;
use super::memory::{LOADER_BYTES, Layout};
use super::pipelines::pipeline_plans;
use crate::devices::Device;
use crate::diagnostics::Diagnostics;
use crate::fingerprint::fingerprint;
use crate::graph::Link;
use crate::kind::{Runs, Writes};
use crate::models::Model;
use crate::near_cores::{Placed, near};
use crate::plan::{
    DeviceMemory, DevicePlan, FilesPlan, FoldPlan, NodeCores, Origin, Plan, Shape, SinkPlan, SourcePlan,
    StagePlan,
};
use crate::routing::route;
use crate::sinks::{bucket_of, parts_of};
use crate::wiring::Wired;

pub(super) struct Assembler<'a> {
    pub(super) parts: &'a Parts,
    file: PathBuf,
    pub(super) reasons: Vec<String>,
    pub(super) diags: &'a mut Diagnostics,
}

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
        let layouts = self.layouts()?;
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
            bytes_left: 2 * LOADER_BYTES,
            loaders_near: near.loaders,
            fingerprint: Vec::new(),
            reasons: std::mem::take(&mut self.reasons),
            file: self.file.clone(),
        };
        route(&mut plan, workflow, &self.parts.graph, self.diags)?;
        number_files(&mut plan);
        self.share_memory(&mut plan);
        fewer_loaders(&mut plan, workflow.loaders.as_ref(), self.diags);
        plan.fingerprint = fingerprint(&plan, &workflow.sources);
        plan.fingerprint.extend(self.parts.outputs_of_tasks.iter().cloned());
        Some(plan)
    }

    fn used_models(&self) -> impl Iterator<Item = &'a Model> {
        self.parts.models[..self.parts.graph.n_models].iter().flatten()
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
                n_items: self.parts.n_items[source],
                gives: connected.gives.clone(),
                fetch: Arc::clone(&connected.fetch),
                sandbox_read: self.parts.sandbox_reads[source].clone(),
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
                    Wired::Batch { model, inputs, given, iteration, trim, fixed_batch, gives, .. } => {
                        let outputs = given.iter().map(|output| output.read.clone()).collect();
                        let wired = (*fixed_batch, iteration, *trim, outputs);
                        let batch = self.batch_plan(stage, *model, wired, layout?)?;
                        (inputs, gives, Shape::Batch(Box::new(batch)), None)
                    }
                    Wired::Stage { reads, connected, .. } => {
                        let runs = match &connected.runs {
                            Runs::Map(map) => Shape::Map(Arc::clone(map)),
                            Runs::Fold(fold) => Shape::Fold(FoldPlan::Parts(Arc::clone(fold))),
                            Runs::Reduce(reduce) => Shape::Fold(FoldPlan::Reduce(Arc::clone(reduce))),
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
