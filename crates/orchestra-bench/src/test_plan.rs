//! A small plan for unit tests: one source, one image stage, one infer stage. It stands for nothing that exists on disk.

use std::path::PathBuf;
use std::time::Duration;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{
    Channels, DType, DeviceId, DeviceKind, DeviceSpec, Dim, Fit, ImageSpec, Layout, ModelId, PipelineId,
    ResizeFilter, SessionTuning, SourceId, StageId, TensorSpec,
};
use orchestra_plan::{
    DevicePlan, InferPlan, InputFrom, Limits, ModelPlan, PipelinePlan, Plan, Recycle, SourcePlan, StageKind,
    StagePlan, TelemetryPlan, WorkerPlan,
};

/// What differs from test to test.
#[derive(Debug, Clone, Copy)]
pub struct Small {
    pub gpu: bool,
    pub workers: usize,
    pub threads: usize,
    pub batch: usize,
    pub loaders: usize,
}

pub fn plan(small: Small) -> Plan {
    let tensor = |name: &str, n: usize| TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        row: vec![Dim::Fixed(n)],
        batch: Dim::Dynamic,
    };
    let (inputs, outputs) = (vec![tensor("pixels", 4)], vec![tensor("y", 2)]);
    let layout = BatchLayout::new(&inputs, &outputs, small.batch, 2 * small.workers + 2).unwrap();
    let kind = match small.gpu {
        true => DeviceKind::Cuda { uuid: "GPU-0".into() },
        false => DeviceKind::Cpu,
    };
    let name = if small.gpu { "cuda:0" } else { "cpu" };
    let infer = InferPlan {
        model: ModelId(0),
        inputs: vec![InputFrom { stage: StageId(0), output: 0 }],
        max_batch: small.batch,
        fixed_batch: None,
        wait: Duration::ZERO,
        ladder: Vec::new(),
        workers: vec![WorkerPlan {
            device: DeviceId(0),
            count: small.workers,
            growth: None,
            threads: small.threads,
            spares: 0,
            memory: None,
        }],
        streams: 1,
        ready: 1,
        layout,
        settings: [0; 32],
    };
    let model = ModelPlan {
        name: "m".into(),
        path: PathBuf::from("/m.onnx"),
        digest: [0; 32],
        file_digest: [0; 32],
        inputs,
        outputs,
        custom_ops: Vec::new(),
        memory_limit: None,
        memory: None,
        priority: 10,
        recycle: Recycle::default(),
        tf32: true,
        tuning: SessionTuning::default(),
    };
    let stage = |name: &str, kind| StagePlan { name: name.into(), pipeline: PipelineId(0), kind };
    Plan {
        name: "small".into(),
        file: PathBuf::from("/w.toml"),
        output: PathBuf::from("/out"),
        sources: vec![source()],
        models: vec![model],
        stages: vec![
            stage("pixels", StageKind::Image { source: SourceId(0), spec: spec() }),
            stage("run", StageKind::Infer(infer)),
        ],
        sinks: Vec::new(),
        devices: vec![DevicePlan {
            spec: DeviceSpec { name: name.into(), kind },
            product: String::new(),
            memory: None,
            near: None,
        }],
        pipelines: vec![PipelinePlan {
            name: "s".into(),
            sources: vec![SourceId(0)],
            stages: vec![StageId(0), StageId(1)],
            sinks: Vec::new(),
            window: 64,
        }],
        limits: Limits {
            max_failed: None,
            item_timeout: Duration::from_secs(30),
            batch_timeout: Duration::from_secs(60),
            grace: Duration::from_secs(25),
            max_pixels: 1 << 28,
        },
        telemetry: TelemetryPlan::default(),
        loader_threads: small.loaders,
        loaders_near: None,
        fingerprint: Vec::new(),
        reasons: Vec::new(),
    }
}

fn source() -> SourcePlan {
    let listing = orchestra_source::ListingSpec::Paths { base: PathBuf::from("/"), patterns: Vec::new() };
    SourcePlan { name: "s".into(), pipeline: PipelineId(0), listing }
}

fn spec() -> ImageSpec {
    ImageSpec {
        size: [2, 2],
        fit: Fit::Stretch,
        shorter: 2,
        filter: ResizeFilter::Bilinear,
        color: Channels::Gray,
        layout: Layout::Nchw,
        dtype: DType::F32,
        scale: 1.0,
        mean: vec![0.0],
        std: vec![1.0],
        pad: vec![0],
        max_pixels: 1 << 28,
        fast: false,
        in_graph: None,
    }
}
