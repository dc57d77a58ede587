//! The plan: what will run where, fully resolved. Made by this crate, carried out by `orchestra-runtime`; data only.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::shapes::{Encoder, Fan, Fetch, Fold, Map, Reduce};
use orchestra_core::{Code, DeviceKind, Iteration, SandboxMode, SandboxRules};
use orchestra_core::{
    DeviceId, DeviceSpec, ModelId, PipelineId, PixelInput, Provider, SessionTuning, SinkId, SourceId,
    StageId, TensorSpec,
};
use orchestra_store::{Expand, ObjectOutput};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::measured::MeasureKey;
use crate::part_names::PartFilesPlan;
use crate::tasks::{LatePlan, TasksPlan};

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
    pub late: Option<LatePlan>,
    /// Devices that a stage uses.
    pub devices: Vec<DevicePlan>,
    /// The connected graphs of the file.
    pub pipelines: Vec<PipelinePlan>,
    /// `[limits]`
    pub limits: Limits,
    /// `[telemetry]`
    pub telemetry: TelemetryPlan,
    /// Threads that read and decode, over all pipelines.
    pub loader_threads: usize,
    /// Bytes of memory that loader processes may take together for decoding.
    pub loader_bytes: u64,
    /// The cores that these threads are kept on; `None`: they may run anywhere.
    pub loaders_near: Option<NodeCores>,
    /// What a resumed run must have in common with the run that it continues: one entry per thing, `(what, digest)`; for example
    /// `("stage `pixels`", …)`, `("model `digits`", …)`. Settings that change no result (threads, devices, batch size) are absent.
    pub fingerprint: Vec<(String, String)>,
    /// Why it is this plan: one sentence per decision (devices, workers, batch sizes, slots), for people.
    pub reasons: Vec<String>,
}

impl Plan {
    /// The batch stages, with their ids.
    pub fn batch_stages(&self) -> impl Iterator<Item = (StageId, &BatchPlan)> {
        (0..).map(StageId).zip(&self.stages).filter_map(|(id, stage)| Some((id, stage.batch()?)))
    }

    /// Whether every model runs on the cores.
    #[must_use]
    pub fn is_on_cpu(&self) -> bool {
        self.devices.iter().all(|device| device.spec.kind == DeviceKind::Cpu)
    }

    /// Whether some model is to run on TensorRT.
    #[must_use]
    pub fn needs_tensorrt(&self) -> bool {
        self.models.iter().any(|model| matches!(model.tuning.provider, Provider::TensorRt(_)))
    }

    /// This plan with as many workers from the start as there will be: what the file asks for, and nothing that would have to be measured
    /// first.
    #[must_use]
    pub fn without_growth(mut self) -> Self {
        let workers = self.stages.iter_mut().flat_map(|stage| match &mut stage.runs {
            Shape::Batch(infer) => infer.workers.as_mut_slice(),
            Shape::Map(_) | Shape::Fold(_) => &mut [],
        });
        for worker in workers {
            if let Some(Growth { most, is_asked: true }) = worker.growth.take() {
                worker.count = most;
            }
        }
        self
    }

    /// Under what it is kept how much one worker of the stage takes of the GPU.
    #[must_use]
    pub fn measure_key<'a>(&'a self, infer: &'a BatchPlan, device: &'a DevicePlan) -> MeasureKey<'a> {
        MeasureKey {
            model: &self.models[infer.model.index()].digest,
            device: &device.product,
            max_batch: infer.max_batch,
            settings: &infer.settings,
        }
    }

    /// Per model input of a stage: what its graph has to make of the pixels that it is given, where it is given pixels.
    #[must_use]
    pub fn pixel_inputs(&self, stage: StageId) -> Vec<Option<PixelInput>> {
        let of = |read: &ColumnRef| match &self.column(*read).ty {
            ColumnType::Pixels { input, .. } => Some(input.clone()),
            _ => None,
        };
        self.stages[stage.index()].reads.iter().map(of).collect()
    }

    /// The model outputs of a stage of which only the largest numbers are read.
    #[must_use]
    pub fn largest_outputs(&self, stage: StageId) -> Vec<String> {
        let gives = self.stages[stage.index()].gives.0.iter();
        let largest = gives.filter(|column| matches!(column.ty, ColumnType::Largest { .. }));
        largest.map(|column| column.name.clone()).collect()
    }

    /// The columns that a source or a stage gives.
    #[must_use]
    pub fn gives(&self, from: Origin) -> &Schema {
        match from {
            Origin::Source(source) => &self.sources[source.index()].gives,
            Origin::Stage(stage) => &self.stages[stage.index()].gives,
        }
    }

    /// A column.
    #[must_use]
    pub fn column(&self, read: ColumnRef) -> &Column {
        &self.gives(read.from).0[read.column]
    }

    /// The name of a source or a stage.
    #[must_use]
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
    #[must_use]
    pub fn home_of(&self, from: Origin) -> Origin {
        match from.stage().map(|stage| &self.stages[stage.index()]) {
            Some(StagePlan { runs: Shape::Map(_), home, .. }) => *home,
            _ => from,
        }
    }

    /// Everything that `from` is made of, itself included.
    #[must_use]
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

/// How many records of a sink an item has that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordsPerItem {
    /// One.
    One,
    /// None where a stage dropped its row.
    AtMostOne,
    /// One for each of its parts.
    Any,
    /// One for an item that has failed, and none for one that is done.
    Failed,
    /// Records are of the whole run, not of items.
    OfRun,
}

impl Plan {
    /// How many records of a sink an item has that is done.
    #[must_use]
    pub fn records_of(&self, sink: &SinkPlan) -> RecordsPerItem {
        if sink.is_of_failures {
            return RecordsPerItem::Failed;
        }
        let stage = |origin: Origin| origin.stage().map(|stage| &self.stages[stage.index()]);
        let ends: Vec<&StagePlan> = sink.from.iter().copied().filter_map(stage).collect();
        if ends.iter().any(|stage| stage.reduce().is_some()) {
            return RecordsPerItem::OfRun;
        }
        if ends.iter().any(|stage| !stage.within.is_empty()) {
            return RecordsPerItem::Any;
        }
        let before = sink.from.iter().flat_map(|from| self.ancestors(*from)).filter_map(stage);
        let drops = |stage: &StagePlan| stage.fan() == Fan::AtMostOne && stage.within.is_empty();
        if before.into_iter().any(drops) { RecordsPerItem::AtMostOne } else { RecordsPerItem::One }
    }

    /// The sources of whose items a sink has records.
    pub fn sources_of<'a>(&'a self, sink: &'a SinkPlan) -> impl Iterator<Item = &'a SourcePlan> {
        let before: BTreeSet<Origin> = sink.from.iter().flat_map(|from| self.ancestors(*from)).collect();
        (0..).map(SourceId).zip(&self.sources).filter_map(move |(id, source)| {
            (sink.is_of_failures || before.contains(&Origin::Source(id))).then_some(source)
        })
    }
}

/// Where items come from.
#[derive(Debug, Clone, Serialize)]
pub struct SourcePlan {
    /// Table name.
    pub name: String,
    /// The graph it belongs to.
    pub pipeline: PipelineId,
    /// As `kind = ".."` names it.
    pub kind: String,
    /// How to list it.
    pub listing: orchestra_store::ListingSpec,
    /// Makes items of files, where a file is not one item.
    #[serde(skip)]
    pub expand: Option<Arc<dyn Expand>>,
    /// Two items of a file may have the same name.
    #[serde(skip)]
    pub names_repeat: bool,
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

/// A model file and what is known of it without loading it.
#[derive(Debug, Clone, Serialize)]
pub struct ModelPlan {
    /// Table name.
    pub name: String,
    /// The file, absolute.
    pub path: PathBuf,
    /// SHA-256 of the file; with external weights, over that and the names and digests of the weight files.
    pub digest: [u8; 32],
    /// SHA-256 of the file alone: what a worker compares before it loads it.
    pub file_digest: [u8; 32],
    /// Inputs, from the file.
    pub inputs: Vec<TensorSpec>,
    /// Outputs, from the file. Dimensions that the file does not state are `Dynamic`.
    pub outputs: Vec<TensorSpec>,
    /// Custom operator libraries, absolute, with the SHA-256 of each: a worker compares it before it loads one.
    pub custom_ops: Vec<(PathBuf, [u8; 32])>,
    /// Ceiling of the provider's memory arena in bytes.
    pub memory_limit: Option<u64>,
    /// Device memory of one worker in bytes, where the file declares it.
    pub memory: Option<u64>,
    /// Whether f32 products may be rounded to TF32 on a GPU.
    pub tf32: bool,
    /// What else it asks of its sessions.
    pub tuning: SessionTuning,
    /// What its workers may do.
    pub sandbox: SandboxRules,
    /// What is run instead of a model file; `path` is then its script, executable or source.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

/// When a healthy worker is replaced.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Recycle {
    /// After this many batches.
    pub batches: Option<u64>,
    /// When its resident memory has grown by this many bytes since its first batch.
    pub growth_bytes: Option<u64>,
}

/// A stage.
#[derive(Debug, Clone, Serialize)]
pub struct StagePlan {
    /// Table name.
    pub name: String,
    /// The graph it belongs to.
    pub pipeline: PipelineId,
    /// As `kind = ".."` names it.
    pub kind: String,
    /// What it reads from, in the order of the file, each once.
    pub from: Vec<Origin>,
    /// The columns that it takes, in the order in which it takes them.
    pub reads: Vec<ColumnRef>,
    /// The columns that it gives.
    pub gives: Schema,
    /// Where its rows come from: the source, or the stage that runs in workers or folds, whose rows it is reached by.
    pub home: Origin,
    /// The stages whose parts its rows are, outermost first.
    #[serde(skip)]
    pub within: Vec<StageId>,
    /// What decides about its results. An object.
    pub settings: Json,
    /// Its settings in a few words, one line each.
    #[serde(skip)]
    pub details: Vec<String>,
    /// The same in a line.
    #[serde(skip)]
    pub about: String,
    /// What it runs as.
    pub runs: Shape,
}

/// What a stage runs as.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "shape", rename_all = "lowercase")]
pub enum Shape {
    /// Rows to rows, in the thread that made the row.
    Map(#[serde(skip)] Arc<dyn Map>),
    /// Batches of rows, in worker processes.
    Batch(Box<BatchPlan>),
    /// Several rows of one token, or of all items, to one row.
    Fold(FoldPlan),
}

/// What a fold brings together.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum FoldPlan {
    /// The parts of a token, to a row of the kind.
    Parts(#[serde(skip)] Arc<dyn Fold>),
    /// The rows of a token that come by several ways. It gives no columns of its own; it carries those that are read behind it.
    Inputs {
        /// The ways, at least two.
        inputs: Vec<JoinInput>,
    },
    /// The rows of all items of the run. Only sinks read what it gives, once all items have ended.
    Run(#[serde(skip)] Arc<dyn Reduce>),
}

/// A way by which rows reach a join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JoinInput {
    /// Whose rows.
    pub home: Origin,
    /// The stages of that way which are read: the home, or maps that its rows go through.
    pub from: Vec<Origin>,
    /// The columns that stages behind the join read of it.
    pub reads: Vec<ColumnRef>,
}

impl StagePlan {
    /// Whether the planner added it, to bring rows together that a stage or sink reads.
    #[must_use]
    pub fn is_join(&self) -> bool {
        matches!(self.runs, Shape::Fold(FoldPlan::Inputs { .. }))
    }

    /// How many rows it makes of one.
    #[must_use]
    pub fn fan(&self) -> Fan {
        match &self.runs {
            Shape::Map(map) => map.fan(),
            Shape::Batch(_) | Shape::Fold(_) => Fan::One,
        }
    }

    /// What it makes of the rows of all items, if it reduces them.
    #[must_use]
    pub fn reduce(&self) -> Option<&Arc<dyn Reduce>> {
        match &self.runs {
            Shape::Fold(FoldPlan::Run(reduce)) => Some(reduce),
            _ => None,
        }
    }

    /// The batches, if it runs in workers.
    #[must_use]
    pub fn batch(&self) -> Option<&BatchPlan> {
        match &self.runs {
            Shape::Batch(infer) => Some(infer),
            Shape::Map(_) | Shape::Fold(_) => None,
        }
    }
}

/// A source or a stage, as what gives rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A source.
    Source(SourceId),
    /// A stage.
    Stage(StageId),
}

impl Origin {
    /// The stage, if it is one.
    #[must_use]
    pub fn stage(self) -> Option<StageId> {
        match self {
            Origin::Source(_) => None,
            Origin::Stage(stage) => Some(stage),
        }
    }
}

/// A column of what a source or a stage gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ColumnRef {
    /// Who gives it.
    pub from: Origin,
    /// Which of its columns.
    pub column: usize,
}

/// A batch stage.
#[derive(Debug, Clone, Serialize)]
pub struct BatchPlan {
    /// The model.
    pub model: ModelId,
    /// Columns of what comes before, which stages behind it still read.
    pub carries: Vec<ColumnRef>,
    /// Largest batch that the model runs, at least 1. Where slots have room for several, those may go to a worker together.
    pub max_batch: usize,
    /// The only batch size the model accepts, if it has one (then equal to `max_batch`): smaller batches are padded.
    pub fixed_batch: Option<usize>,
    /// How long the oldest item waits for company.
    pub wait: Duration,
    /// Batch sizes that a worker runs once before it is ready and that smaller batches are padded to, ascending (CUDA; empty on the CPU).
    pub batch_sizes: Vec<usize>,
    /// Who runs it.
    pub workers: Vec<WorkerPlan>,
    /// Batches that each worker runs at once, at least 1.
    pub streams: usize,
    /// Batches, or as many as go together, that wait at each worker beyond those, at least 1.
    pub ready: usize,
    /// Share of a device's workers relative to other stages on it; 1 to 100.
    pub priority: u32,
    /// When a worker is replaced although nothing failed.
    pub recycle: Recycle,
    /// Whether a worker gives back after each run what the run left unused.
    pub gives_memory_back: bool,
    /// How the model runs on its own outputs, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<Iteration>,
    /// Where rows lie, and how many slots there are.
    #[serde(skip)]
    pub layout: BatchLayout,
    /// Of all that decides, beside the model, the GPU and the largest batch, what a worker takes of a GPU's memory: see
    /// [`MeasureKey::settings`](crate::MeasureKey).
    #[serde(skip)]
    pub settings: [u8; 32],
}

impl BatchPlan {
    /// Batches that may go to a worker together, at least 1. It runs them one after the other and answers once.
    #[must_use]
    pub fn together(&self) -> usize {
        self.layout.max_rows / self.max_batch
    }

    /// The most slots that all workers together hold, running or ready.
    #[must_use]
    pub fn held_by_workers(&self) -> usize {
        let workers: usize = self.workers.iter().map(WorkerPlan::most).sum();
        workers * (self.streams + self.ready)
    }
}

/// Workers of one batch stage on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WorkerPlan {
    /// Where.
    pub device: DeviceId,
    /// How many processes the run starts with.
    pub count: usize,
    /// How many it may become in the run, once it is known what one takes of the GPU; `None`: it stays as it is.
    pub growth: Option<Growth>,
    /// Intra-op threads of each, shared by the batches that it runs at once.
    pub threads: usize,
    /// How many more processes stand by, loaded and idle, until a worker dies.
    pub spares: usize,
    /// Device memory of each, where it is known.
    pub memory: Option<WorkerMemory>,
}

impl WorkerPlan {
    /// How many processes there may be, those that stand by left out.
    #[must_use]
    pub fn most(&self) -> usize {
        self.growth.map_or(self.count, |growth| growth.most)
    }
}

/// How far the workers of a stage may grow within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// No more than this, more than there are at first.
    pub most: usize,
    /// The file asks for that number: it is believed where nothing can be measured.
    pub is_asked: bool,
}

/// What a worker takes of a GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "known", content = "bytes", rename_all = "lowercase")]
pub enum WorkerMemory {
    /// `models.*.memory` says so.
    Declared(u64),
    /// An earlier run found out.
    Measured(u64),
}

impl WorkerMemory {
    /// The amount.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            WorkerMemory::Declared(bytes) | WorkerMemory::Measured(bytes) => bytes,
        }
    }

    /// How it is known, in a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            WorkerMemory::Declared(_) => "declared",
            WorkerMemory::Measured(_) => "measured",
        }
    }
}

/// Where records go.
#[derive(Debug, Clone, Serialize)]
pub struct SinkPlan {
    /// Table name.
    pub name: String,
    /// The graph it belongs to.
    pub pipeline: PipelineId,
    /// As `kind = ".."` names it.
    pub kind: String,
    /// The stages whose results are written; empty for the failures of the run.
    pub from: Vec<Origin>,
    /// It writes the failures of all pipelines.
    pub is_of_failures: bool,
    /// The columns of a record, in order.
    pub reads: Vec<ColumnRef>,
    /// What records call them.
    pub columns: Vec<String>,
    /// Whose rows reach it, as [`StagePlan::home`].
    pub home: Origin,
    /// Makes the records.
    #[serde(skip)]
    pub encoder: Arc<dyn Encoder>,
    /// The file, absolute; of records that are files of their own, the index of them; of part files, a glob that they fit.
    pub path: PathBuf,
    /// Where each record is a file of its own: where they lie, and how they are called. With `part_files`, they wait in these for a store.
    pub files: Option<FilesPlan>,
    /// Where many records make a file: how those are called.
    pub part_files: Option<PartFilesPlan>,
    /// Where the part files go that are whole: they lie in the output folder no longer than it takes.
    pub bucket: Option<BucketPlan>,
    /// Records in the order of the source.
    pub ordered: bool,
}

/// A prefix of a store.
#[derive(Debug, Clone, Serialize)]
pub struct BucketPlan {
    /// What the URLs of all objects begin with, up to a slash.
    pub url: String,
    /// What writes there.
    #[serde(skip)]
    pub store: Arc<dyn ObjectOutput>,
}

impl SinkPlan {
    /// Where its records are, for people: a path, or a URL.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        match &self.bucket {
            Some(bucket) => match &self.files {
                Some(files) => format!("{}*.{}", bucket.url, files.extension).into(),
                None => {
                    let name = self.path.file_name().map(|name| name.to_string_lossy());
                    format!("{}{}", bucket.url, name.unwrap_or_default()).into()
                }
            },
            None => self.path.clone(),
        }
    }
}

/// Files that are records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilesPlan {
    /// The folder, relative to the output folder.
    pub folder: PathBuf,
    /// What their names end with, without the dot.
    pub extension: String,
    /// Whether the names of items may repeat, so that the number of the item becomes a part of the name.
    pub numbered: bool,
}

/// A device that is used.
#[derive(Debug, Clone, Serialize)]
pub struct DevicePlan {
    /// Name and kind.
    pub spec: DeviceSpec,
    /// The product, where known; may be empty.
    pub product: String,
    /// Memory in bytes and what of it is free, where known.
    pub memory: Option<DeviceMemory>,
    /// Where its workers are kept, on a machine with several NUMA nodes.
    pub near: Option<NodeCores>,
}

/// The cores of a NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeCores {
    /// The kernel's number for the node.
    pub node: u32,
    /// Its cores that this process may use.
    pub cores: Vec<u32>,
}

/// Memory of a device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// All of it.
    pub total: u64,
    /// What nobody used when the plan was made.
    pub free: u64,
    /// What the plan leaves unused (`devices.headroom`).
    pub headroom: u64,
}

/// Of the window of a pipeline: items that may be on their way from the models to the disk. Several hundred of them come together in
/// one commit, while as many again are on their way.
pub const BETWEEN_COMMITS: usize = 2048;

/// A connected graph.
#[derive(Debug, Clone, Serialize)]
pub struct PipelinePlan {
    /// The name of its first source.
    pub name: String,
    /// Its sources.
    pub sources: Vec<SourceId>,
    /// Its stages, each after what it reads from.
    pub stages: Vec<StageId>,
    /// Its sinks.
    pub sinks: Vec<SinkId>,
    /// Items that may be between the source and their commit at any moment.
    pub window: usize,
    /// The one sink of all items, where each ends there with one record, in any order: nothing has to be counted then.
    pub linear: Option<SinkId>,
    /// Bytes that the pictures which stages carry along may take.
    pub carried_bytes: u64,
}

/// `[limits]`
#[derive(Debug, Clone, Serialize)]
pub struct Limits {
    /// Stop the run beyond this many failures.
    pub max_failed: Option<MaxFailed>,
    /// How long reading and decoding one item may take.
    pub item_timeout: Duration,
    /// How long one batch may run in a worker.
    pub batch_timeout: Duration,
    /// How long a worker may take to load its model and to warm up.
    pub load_timeout: Duration,
    /// How long a run that is told to stop may take to finish what is in flight.
    pub grace: Duration,
    /// Pictures that claim more pixels are refused.
    pub max_pixels: u64,
    /// Whether workers are confined, where their model does not say.
    pub sandbox: SandboxMode,
}

/// `limits.max_failed`
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum MaxFailed {
    /// That many items.
    Items(u64),
    /// That share of all items, 0.0 to 1.0.
    Share(f64),
}

impl MaxFailed {
    /// Whether `failed` of `total` items are more than allowed.
    #[must_use]
    pub fn is_exceeded(self, failed: u64, total: u64) -> bool {
        match self {
            MaxFailed::Items(n) => failed > n,
            MaxFailed::Share(share) => failed as f64 > share * total as f64,
        }
    }
}

/// `[telemetry]`
#[derive(Debug, Clone, Default, Serialize)]
pub struct TelemetryPlan {
    /// Address of a collector that takes OTLP, for example `http://localhost:4318`.
    pub otlp: Option<String>,
    /// How to send to it; `None`: as the address or the environment suggest.
    pub protocol: Option<OtlpProtocol>,
    /// The share of the items that get a trace of their own, 0.0 to 1.0; `None`: as the environment says, else one in a hundred.
    pub sample: Option<f64>,
    /// Items that take longer are traced whatever the share; `None`: those that take ten times as long as usual.
    pub slow: Option<Duration>,
    /// How long the end of a run waits for spans that are not made yet, and again for those that are not sent; `None`: some seconds.
    pub flush_timeout: Option<Duration>,
    /// Where the page of metrics is served: `HOST:PORT`, or a port of this machine alone.
    pub metrics: Option<String>,
    /// What the lines of the log files look like; `None`: text.
    pub log_format: Option<LogFormat>,
}

/// What a log line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: time, level, message, and `name=value` for each field.
    Text,
    /// For programs: one JSON object.
    Json,
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OtlpProtocol {
    /// gRPC, usually on port 4317.
    #[serde(rename = "grpc")]
    Grpc,
    /// Protobuf over HTTP/1.1, usually on port 4318.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

impl OtlpProtocol {
    /// What files and variables call them.
    pub const NAMES: [(&str, Self); 2] = [("grpc", Self::Grpc), ("http/protobuf", Self::HttpProtobuf)];

    /// The protocol that files and variables call so.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, protocol)| *protocol)
    }
}
