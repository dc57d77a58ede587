//! The last step: a plan of all that is used, with numbers for everything. Finds errors of size only.

use std::path::Path;

use orchestra_core::{DeviceSpec, PipelineId};
use orchestra_store::ListingSpec;

use crate::cpu_affinity::{PlacedDevice, cpu_affinity};
use crate::cx::Cx;
use crate::devices::Device;
use crate::diagnostics::Reported;
use crate::fingerprint::fingerprint;
use crate::host::MachineView;
use crate::memory::{LOADER_BYTES, SlotMemory, fewer_loaders};
use crate::pipelines::{Pipelines, loader_threads};
use crate::place::{cores_each, of_shares};
use crate::plan::{
    DeviceMemory, DevicePlan, ModelPlan, Origin, Plan, SinkPlan, SourcePlan, StagePlan, TasksPlan,
};
use crate::rules::passthrough;
use crate::workflow::{Link, SinkNode, SourceNode, StageNode, WorkflowTables};

/// Nothing in `workflow` that is used may be without a plan: errors ended the planning before.
pub(crate) fn assemble(
    mut workflow: WorkflowTables,
    devices: &[Device],
    machine: Option<&MachineView>,
    tasks: TasksPlan,
    file: &Path,
    cx: &mut Cx<'_>,
) -> Result<Plan, Reported> {
    let loader_threads = loader_threads(&workflow, machine);
    let memory = SlotMemory::of(&workflow, machine);
    memory.lay_out(&mut workflow, devices, cx)?;
    let workflow = &workflow;
    let pipelines = Pipelines::of(workflow);
    let own = pipelines.own_limits(workflow, cx)?;
    let stages = workflow.stages[..workflow.n_stages].iter();
    let stages = stages.zip(&pipelines.of_stages).map(|(node, pipeline)| stage_plan(node, *pipeline));
    let stages: Vec<StagePlan> = stages.collect::<Option<_>>().ok_or(Reported)?;
    let used: Vec<_> = devices.iter().enumerate().map(|(at, device)| placed(&stages, at, device)).collect();
    let nodes = machine.map_or(&[][..], |m| &m.nodes);
    let affinity = cpu_affinity(&used, nodes, loader_threads, &mut cx.reasons);
    let sources = workflow.sources[..workflow.n_sources].iter();
    let sources = sources.zip(&pipelines.of_sources).map(|(node, pipeline)| source_plan(node, *pipeline));
    let models = workflow.models[..workflow.n_models].iter();
    let models = models.map(|model| Some(model.known.as_ref()?.plan.clone()));
    let sinks = workflow.sinks.iter().map(|sink| sink_plan(sink, &pipelines));
    let headroom = workflow.devices.headroom;
    let cores = cores_each(devices, machine);
    let device_plan = |(device, cpu_affinity): (&Device, _)| DevicePlan {
        spec: DeviceSpec { name: device.name.clone(), kind: device.kind.clone() },
        product: device.product.clone(),
        memory: device.memory.map(|(total, free)| {
            let of_shares = of_shares(Some(&tasks), device);
            DeviceMemory { total, free, headroom, of_shares }
        }),
        cores: if device.is_cuda() { 0 } else { cores },
        cpu_affinity,
    };
    let devices = devices.iter().zip(affinity.devices).map(device_plan).collect();
    let stem = || file.file_stem().map_or_else(|| "workflow".into(), |s| s.to_string_lossy().into_owned());
    let mut plan = Plan {
        name: workflow.name.clone().unwrap_or_else(stem),
        output: cx.output.clone(),
        sources: sources.collect::<Option<_>>().ok_or(Reported)?,
        models: models.collect::<Option<Vec<ModelPlan>>>().ok_or(Reported)?,
        stages,
        sinks: sinks.collect::<Option<_>>().ok_or(Reported)?,
        devices,
        tasks,
        deferred: None,
        pipelines: Vec::new(),
        limits: workflow.limits.clone(),
        telemetry: workflow.telemetry.clone(),
        loader_threads,
        loader_bytes: LOADER_BYTES,
        bytes_left: 2 * LOADER_BYTES,
        loader_affinity: affinity.loaders,
        fingerprint: Vec::new(),
        reasons: std::mem::take(&mut cx.reasons),
        file: file.to_owned(),
    };
    pipelines.put_into(&mut plan, &own, cx);
    passthrough::route(&mut plan, workflow, cx)?;
    number_files(&mut plan);
    memory.share_rest(&mut plan);
    fewer_loaders(&mut plan, workflow.limits.loaders.as_ref(), cx);
    plan.fingerprint = fingerprint(&plan, &workflow.sources);
    Ok(plan)
}

fn source_plan(node: &SourceNode, pipeline: PipelineId) -> Option<SourcePlan> {
    Some(SourcePlan { pipeline, ..node.plan.clone()? })
}

fn stage_plan(node: &StageNode, pipeline: PipelineId) -> Option<StagePlan> {
    Some(StagePlan { pipeline, ..node.plan()?.clone() })
}

fn sink_plan(node: &SinkNode, pipelines: &Pipelines) -> Option<SinkPlan> {
    let mut plan = node.plan.clone()?;
    if let Some(stage) = node.links.iter().flatten().find_map(Link::stage) {
        plan.pipeline = pipelines.of_stages[stage];
    }
    Some(plan)
}

/// A device, with the threads of all workers on it.
fn placed<'a>(stages: &[StagePlan], at: usize, device: &'a Device) -> PlacedDevice<'a> {
    let workers = stages.iter().filter_map(StagePlan::batch).flat_map(|batch| &batch.workers);
    let threads = workers.filter(|w| w.device.index() == at).map(|w| w.count * w.threads).sum();
    PlacedDevice { device, threads }
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
