//! The plan: what will run where, fully resolved. Made by this crate, carried out by `orchestra-runtime`; data only.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::shapes::{Fetch, Reduce, RequestItem};
use orchestra_core::{
    DeviceKind, PipelineId, PixelInput, Provider, ScriptProgram, SinkId, SourceId, StageId,
};
use orchestra_store::Expand;
use serde::Serialize;
use serde_json::Value as Json;

mod batch;
mod deferred;
mod settings;
mod sink;
mod stage;
mod tasks;

pub use orchestra_core::{ColumnRef, Origin};

pub use batch::{
    BatchPlan, DeviceMemory, DevicePlan, ModelPlan, NodeCores, Recycle, ScalarInput, WorkerGrowth,
    WorkerPlan, fed_texts,
};
pub use deferred::{DeferredPlan, TaskHistory, TaskResults};
pub use settings::{Limits, LogFormat, MaxFailed, OtlpProtocol, ServeSettings, TelemetryPlan};
pub use sink::{BucketPlan, FilesPlan, RecordsPerItem, SinkPlan};
pub use stage::{FoldPlan, JoinWay, Shape, StagePlan};
pub use tasks::{
    BEST_FOLDER, BestOf, LateValue, TASKS_FOLDER, TaskGpu, TaskMetric, TaskPlan, TasksPlan, ValueOwner,
};
pub(crate) use tasks::{NamedValues, id_of, link_name, task_names};

/// A workflow, resolved. Every id is an index into the table of its kind.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// `name` of the file, or the file's stem.
    pub name: String,
    /// The workflow file, absolute.
    pub file: PathBuf,
    /// Where results go: `--output`, else `out/` beside the file. Absolute.
    pub output: PathBuf,
    /// `[sources.*]`
    pub sources: Vec<SourcePlan>,
    /// `[models.*]` that a stage uses.
    pub models: Vec<ModelPlan>,
    /// `[stages.*]`, each after what it reads from.
    pub stages: Vec<StagePlan>,
    /// `[sinks.*]`
    pub sinks: Vec<SinkPlan>,
    /// `[tasks.*]`
    #[serde(skip_serializing_if = "TasksPlan::is_empty")]
    pub tasks: TasksPlan,
    /// The file has sources, models, stages and sinks, too, which use values of tasks that have not ended well: it is planned again when they
    /// have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "late")]
    pub deferred: Option<DeferredPlan>,
    /// Devices that a stage uses.
    pub devices: Vec<DevicePlan>,
    /// The connected graphs of the file.
    pub pipelines: Vec<PipelinePlan>,
    /// `[limits]`
    pub limits: Limits,
    /// `[telemetry]`
    pub telemetry: TelemetryPlan,
    /// Loaders of all pipelines: each is a thread with a process that reads and decodes.
    pub loader_threads: usize,
    /// Bytes of memory that loader processes may take together for decoding.
    pub loader_bytes: u64,
    /// Bytes of memory that slots and carried pictures leave: all loaders together take no more while one of them has an item alone, for which it gets
    /// more than its share.
    pub bytes_left: u64,
    /// The cores that they are kept on; `None`: they may run anywhere.
    #[serde(rename = "loaders_near")]
    pub loader_affinity: Option<NodeCores>,
    /// What a resumed run must have in common with the run that it continues: one entry per thing, `(what, digest)`; for example
    /// `("stage `pixels`", …)`, `("model `digits`", …)`. Settings that change no result (threads, devices, batch size) are absent.
    pub fingerprint: Vec<(String, String)>,
    /// Why it is this plan: one sentence per decision (devices, workers, batch sizes, slots), for people.
    pub reasons: Vec<String>,
}

/// The least that a loader process gets of [`Plan::loader_bytes`]: what decoding a small picture takes, and room for what it hands over.
pub const LEAST_LOADER_BYTES: u64 = 96 << 20;

/// Of [`Plan::record_bytes`]: far more than a commit takes, so a disk that keeps up holds up nothing.
const MOST_RECORD_BYTES: u64 = 256 << 20;

impl Plan {
    /// Whether rows of the one may go to workers of the other: all but what the files of models hold is the same.
    pub fn differs_by_models_alone(&self, other: &Plan) -> bool {
        let rest = |plan: &Plan| {
            let is_of_model = |what: &str| what.starts_with("model ");
            let of_results: Vec<_> =
                plan.fingerprint.iter().filter(|(what, _)| !is_of_model(what)).cloned().collect();
            let layouts: Vec<_> = plan.batch_stages().map(|(_, batch)| batch.layout.clone()).collect();
            let graph = serde_json::to_string(&(&plan.sources, &plan.stages, &plan.sinks)).ok();
            (of_results, layouts, graph)
        };
        rest(self) == rest(other)
    }

    /// Loader processes of all sources.
    pub fn n_loaders(&self) -> usize {
        self.pipelines.iter().map(PipelinePlan::n_loaders).sum()
    }

    /// What one of them may take: an equal part, or less, so that something is left for the one that has an item alone.
    pub fn loader_share(&self) -> u64 {
        let n = self.n_loaders().max(1) as u64;
        match n - 1 {
            0 => self.loader_bytes,
            others => {
                (self.loader_bytes / n).min(self.bytes_left.saturating_sub(self.least_alone()) / others)
            }
        }
    }

    /// What the one may take that has an item alone, while all others keep their shares.
    pub fn alone_bytes(&self) -> u64 {
        let others = (self.n_loaders().max(1) as u64 - 1) * self.loader_share();
        self.bytes_left.saturating_sub(others).min(self.loader_bytes)
    }

    /// Bytes of records that may wait to be written before sources hand out no further items: an eighth of `limits.memory`.
    pub fn record_bytes(&self) -> u64 {
        (self.loader_bytes / 4).min(MOST_RECORD_BYTES)
    }

    /// Half of what loaders may take, and room to decode beside the largest picture that can be carried on.
    pub(crate) fn least_alone(&self) -> u64 {
        let carried = self.pipelines.iter().map(|pipeline| pipeline.carried_bytes).max().unwrap_or(0);
        (self.loader_bytes / 2).max(carried + LEAST_LOADER_BYTES)
    }

    pub fn batch_stages(&self) -> impl Iterator<Item = (StageId, &BatchPlan)> {
        (0..).map(StageId).zip(&self.stages).filter_map(|(id, stage)| Some((id, stage.batch()?)))
    }

    /// By stage: the batch stages that its rows still come to, at most.
    pub fn batch_stages_behind(&self) -> Vec<usize> {
        let mut behind = vec![0; self.stages.len()];
        for (at, stage) in self.stages.iter().enumerate().rev() {
            let through = behind[at] + usize::from(stage.batch().is_some());
            for from in stage.from.iter().filter_map(|from| from.stage()) {
                behind[from.index()] = behind[from.index()].max(through);
            }
        }
        behind
    }

    pub fn pipeline_of(&self, stage: StageId) -> &PipelinePlan {
        &self.pipelines[self.stages[stage.index()].pipeline.index()]
    }

    /// The limits of the pipeline that a stage belongs to.
    pub fn limits_of(&self, stage: StageId) -> &Limits {
        &self.pipeline_of(stage).limits
    }

    /// The limits of the pipeline that reads a source.
    pub fn limits_of_source(&self, source: SourceId) -> &Limits {
        &self.pipelines[self.sources[source.index()].pipeline.index()].limits
    }

    /// The sink in which all rows that enter a chain behind this stage end there, one record each, so that nothing has to be counted.
    pub fn linear_from(&self, origin: Origin) -> Option<SinkId> {
        let stage = origin.stage()?; // What a loader has done is one item, which is counted.
        self.pipeline_of(stage).linear.filter(|sink| self.sinks[sink.index()].home == Some(origin))
    }

    /// The source whose items are requests, if the file has such: then all have, and all records are replies.
    pub fn asked(&self) -> Option<&SourcePlan> {
        self.sources.iter().find(|source| source.request.is_some())
    }

    /// Whether every model runs on the cores.
    pub fn is_on_cpu(&self) -> bool {
        self.devices.iter().all(|device| device.spec.kind == DeviceKind::Cpu)
    }

    /// Whether some model is to run on TensorRT.
    pub fn needs_tensorrt(&self) -> bool {
        self.models.iter().any(|model| matches!(model.tuning.provider, Provider::TensorRt(_)))
    }

    /// This plan with as many workers of GPUs from the start as there will be: what the file asks for, and nothing that would have to be
    /// measured first.
    pub fn without_growth(mut self) -> Self {
        let batches = self.stages.iter_mut().filter_map(StagePlan::batch_mut);
        let workers = batches.flat_map(|batch| &mut batch.workers);
        for worker in workers.filter(|worker| self.devices[worker.device.index()].cores == 0) {
            if let Some(WorkerGrowth { most, is_asked: true }) = worker.growth.take() {
                worker.count = most;
            }
        }
        self
    }

    /// Per model input of a stage: what its graph has to make of the pixels that it is given, where it is given pixels.
    pub fn pixel_inputs(&self, stage: StageId) -> Vec<Option<PixelInput>> {
        let of = |read: &ColumnRef| match &self.column(*read).ty {
            ColumnType::Pixels { input, .. } => Some(input.clone()),
            _ => None,
        };
        self.stages[stage.index()].reads.iter().map(of).collect()
    }

    /// The model outputs of a stage of which only the largest numbers are read.
    pub fn largest_outputs(&self, stage: StageId) -> Vec<String> {
        let gives = self.stages[stage.index()].gives.0.iter();
        let largest = gives.filter(|column| matches!(column.ty, ColumnType::Largest { .. }));
        largest.map(|column| column.name.clone()).collect()
    }

    /// The columns that a source or a stage gives.
    pub fn gives(&self, from: Origin) -> &Schema {
        match from {
            Origin::Source(source) => &self.sources[source.index()].gives,
            Origin::Stage(stage) => &self.stages[stage.index()].gives,
        }
    }

    pub fn column(&self, read: ColumnRef) -> &Column {
        &self.gives(read.from).0[read.column]
    }

    /// The name of a source or a stage.
    pub fn name_of(&self, from: Origin) -> &str {
        match from {
            Origin::Source(source) => &self.sources[source.index()].name,
            Origin::Stage(stage) => &self.stages[stage.index()].name,
        }
    }

    /// The stages that reduce the rows of all items, with their ids.
    pub fn reduces(&self) -> impl Iterator<Item = (StageId, &Arc<dyn Reduce>)> {
        (0..).map(StageId).zip(&self.stages).filter_map(|(id, stage)| Some((id, stage.reduce()?)))
    }

    /// Whose rows reach what reads `from`: `from` itself, or what the map `from` is reached by.
    pub fn home_of(&self, from: Origin) -> Origin {
        match from.stage().map(|stage| &self.stages[stage.index()]) {
            Some(StagePlan { runs: Shape::Map(_), home, .. }) => *home,
            _ => from,
        }
    }

    /// Everything that `from` is made of, itself included.
    pub fn ancestors(&self, from: Origin) -> BTreeSet<Origin> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(next) = open.pop() {
            if seen.insert(next)
                && let Some(stage) = next.stage()
            {
                open.extend_from_slice(&self.stages[stage.index()].from);
            }
        }
        seen
    }
}

/// Where items come from.
#[derive(Debug, Clone, Serialize)]
pub struct SourcePlan {
    pub name: String,
    /// The graph it belongs to.
    pub pipeline: PipelineId,
    /// As `kind = ".."` names it.
    pub kind: String,
    pub listing: orchestra_store::ListingSpec,
    /// Makes items of files, where a file is not one item.
    #[serde(skip)]
    pub expand: Option<Arc<dyn Expand>>,
    /// Its items are the rows of this stage, which reduces those of another pipeline: nothing is listed before that is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduced: Option<StageId>,
    /// Lists its items, in place of `expand`.
    #[serde(skip)]
    pub lister: Option<ScriptProgram>,
    /// Two items of a file may have the same name.
    #[serde(skip)]
    pub names_repeat: bool,
    /// How many items it has, as far as its kind knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_items: Option<KnownItems>,
    /// Its items are requests, which each bring this: nothing is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestItem>,
    /// The columns of an item.
    pub gives: Schema,
    /// Reads an item.
    #[serde(skip)]
    pub fetch: Arc<dyn Fetch>,
    /// Files and folders that its loaders may read beside those of its items. Absolute.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sandbox_read: Vec<PathBuf>,
    /// What decides about results beside the list.
    pub settings: Json,
    /// The decoders of its files with their versions, where those decide about results, too.
    pub decoders: Option<&'static str>,
}

/// How many items a source has, as far as that is known before it is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownItems {
    All(u64),
    /// In the first of its files.
    OfFirst(u64),
}

/// The part of a pipeline's window for items between the models and the disk. One commit takes several hundred of them, while as many again
/// come in.
pub const BETWEEN_COMMITS: usize = 2048;

/// A connected graph.
#[derive(Debug, Clone, Serialize)]
pub struct PipelinePlan {
    /// The name of its first source.
    pub name: String,
    pub sources: Vec<SourceId>,
    /// Its stages, each after what it reads from.
    pub stages: Vec<StageId>,
    pub sinks: Vec<SinkId>,
    /// It starts when these are complete, whose stages make its items.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<PipelineId>,
    /// `[limits]` as `[pipelines.NAME]` changes it. Its `max_failed` counts the items of this pipeline, and stops it alone.
    pub limits: Limits,
    /// Processes that read the items of each of its sources.
    pub loaders: usize,
    /// Items that may be between the source and their commit at any moment.
    pub window: usize,
    /// The one sink of all items, where each ends there with one record, in any order: nothing has to be counted then.
    pub linear: Option<SinkId>,
    /// Bytes that the pictures which stages carry along may take; 0 where none does.
    pub carried_bytes: u64,
}

impl PipelinePlan {
    /// Loader processes of all its sources.
    pub fn n_loaders(&self) -> usize {
        self.loaders * self.sources.len()
    }
}
