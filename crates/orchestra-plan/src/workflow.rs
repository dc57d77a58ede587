//! The workflow file as a graph of nodes: each table is read once, as it stands there, and the passes of the planner fill in what they find out of it.
//! Reading resolves nothing and knows neither files nor devices.

mod metrics;
mod models;
mod read;
mod settings;
mod sinks;
mod sources;
mod tables;
mod tasks;
mod tuning;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::data::Column;
use orchestra_core::{Code, StageId, TensorSpec};

pub(crate) use self::metrics::{RawBest, must_have};
pub(crate) use self::read::{best_as_written, read, tasks_as_written};
pub(crate) use self::settings::serve;
pub(crate) use self::tables::declared;
pub use self::tables::keys_of_sink;
pub(crate) use self::tasks::{RawCommand, RawDevice, RawTask, value_lists};
pub(crate) use self::tuning::RawTuning;
use crate::diagnostics::Span;
use crate::fields::{Spanned, Upstreams};
use crate::keys::AskedWorkers;
use crate::kind::{BatchDraft, Draft, ProgramDraft, SinkKind, SourceKind, StageKind, Writes};
use crate::outputs::{ModelOutput, StageOutput, UnreadableOutput};
use crate::plan::{
    BatchPlan, ColumnRef, Limits, ModelPlan, Origin, Shape, SinkPlan, SourcePlan, StagePlan, TelemetryPlan,
};
use crate::tree::Table;

/// The file. What could not be read is absent, and reported.
///
/// Once it is resolved, its tables stand as the plan has them, so that places in them are ids: first those that are used, each stage after what it
/// reads from.
pub(crate) struct WorkflowTables {
    pub name: Option<String>,
    pub sources: Vec<SourceNode>,
    pub models: Vec<ModelNode>,
    pub stages: Vec<StageNode>,
    pub sinks: Vec<SinkNode>,
    pub tasks: Vec<RawTask>,
    pub pipelines: Vec<PipelineNode>,
    pub devices: RawDevices,
    pub limits: Limits,
    pub telemetry: TelemetryPlan,
    /// How many sources, models and stages lead to a sink.
    pub n_sources: usize,
    pub n_models: usize,
    pub n_stages: usize,
    /// Stages on no cycle: behind those that are used, those that are not.
    pub n_ordered: usize,
}

/// `[pipelines.NAME]`
pub(crate) struct PipelineNode {
    pub name: Spanned<String>,
    /// `[limits]` as it changes them.
    pub limits: Limits,
    /// Of its keys, those that have no effect on a pipeline without a model.
    pub of_models: Vec<Spanned<&'static str>>,
}

/// `[sources.NAME]`
#[derive(Default)]
pub(crate) struct SourceNode {
    pub name: Spanned<String>,
    /// `None` when its kind is missing or unknown.
    pub kind: Option<Arc<dyn SourceKind>>,
    pub table: Table,
    pub listing: Option<RawListing>,
    /// What its loaders may read beside its items.
    pub sandbox_read: Vec<Spanned<String>>,
    /// It uses values of tasks that have not ended.
    pub is_deferred: bool,
    /// Once it is connected without an error.
    pub plan: Option<SourcePlan>,
}

#[derive(Debug)]
pub(crate) enum RawListing {
    Paths(Vec<Spanned<String>>),
    Manifest {
        path: Spanned<String>,
        root: Option<Spanned<String>>,
    },
    /// No file is named: the kind has none.
    Generated,
}

/// What runs the batches of stages: `[models.NAME]`, or the program of one stage.
#[derive(Debug, Default)]
pub(crate) struct ModelNode {
    pub name: Spanned<String>,
    pub program: Option<StageProgram>,
    pub path: Option<Spanned<String>>,
    pub labels: Option<Spanned<String>>,
    pub asked: AskedWorkers,
    /// For inputs that are named, the axis along which items lie.
    pub batch_axes: Vec<(Spanned<String>, usize)>,
    pub max_batch: Option<Spanned<u64>>,
    pub memory_limit: Option<NonZeroU64>,
    pub streams: Option<Spanned<u64>>,
    pub custom_ops: Vec<Spanned<String>>,
    pub tf32: bool,
    pub tuning: RawTuning,
    /// It uses values of tasks that have not ended.
    pub is_deferred: bool,
    /// Once its file is read, or its program asked, without an error.
    pub known: Option<KnownModel>,
}

#[derive(Debug)]
pub(crate) struct StageProgram {
    pub stage: String,
    pub draft: Arc<dyn ProgramDraft>,
}

/// What is known of a model or a program before it runs.
#[derive(Debug, Default)]
pub(crate) struct KnownModel {
    pub plan: ModelPlan,
    pub labels: Option<Spanned<Vec<String>>>,
    pub metadata: Arc<BTreeMap<String, String>>,
    /// See [`Signature::made_by`](crate::Signature::made_by).
    pub made_by: Arc<BTreeMap<String, String>>,
    /// Version of ONNX's operators; 0 for a program.
    pub opset: i64,
    /// Per input: whether it takes any tensor of fixed shape.
    pub open_inputs: Vec<bool>,
    /// Outputs of a program; none of a model file.
    pub gives: Vec<Column>,
    /// Rows of a batch, where the stage does not say it.
    pub max_batch: Option<u64>,
    /// It runs on the cores, whatever the machine has.
    pub on_cores: bool,
    /// It is a program that may drop rows.
    pub drops: bool,
    /// All outputs of a model file; none of a program.
    pub declared: Vec<ModelOutput>,
    /// It has nodes that make maps of tensors.
    pub has_zip_map: bool,
}

impl ModelNode {
    /// What is run instead of a model file, if that is known.
    pub fn code(&self) -> Option<&Code> {
        self.known.as_ref()?.plan.code.as_ref()
    }

    /// Batches that each worker runs at once.
    pub fn streams(&self) -> usize {
        self.streams.as_ref().map_or(1, |n| n.value as usize)
    }
}

/// A resolved `from`.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub target: Origin,
    /// `stage.tensor`
    pub tensor: Option<String>,
    pub span: Span,
}

impl Link {
    pub fn stage(&self) -> Option<usize> {
        self.target.stage().map(StageId::index)
    }
}

/// `[stages.NAME]`
#[derive(Default)]
pub(crate) struct StageNode {
    pub name: Spanned<String>,
    /// What it reads from, as written, in order. The first part of an entry names a model input (`inputs = { .. }`).
    pub upstreams: Upstreams,
    /// `None` when its kind is missing or unknown.
    pub kind: Option<Arc<dyn StageKind>>,
    /// `None` when a setting is wrong, too.
    pub draft: Option<Draft>,
    /// The keys of its table, and where they stand.
    pub written: Vec<Spanned<String>>,
    /// What it runs instead of a model of the file, until `graph` puts that behind those.
    pub program: Option<Box<ModelNode>>,
    /// It uses values of tasks that have not ended.
    pub is_deferred: bool,
    /// One for each of `upstreams`; `None` was reported.
    pub links: Vec<Option<Link>>,
    /// The place of what runs its batches.
    pub model: Option<usize>,
    /// Once it is connected without an error.
    pub connected: Option<Connected>,
}

/// A stage all of whose inputs fit.
pub(crate) struct Connected {
    /// Its plan, as far as it is known.
    pub plan: StagePlan,
    /// Where the rows that it is made of lie in a picture, if that is one place and another stage says it.
    pub placed: Option<ColumnRef>,
    /// The labels of the model whose rows it gives.
    pub labels: Option<Spanned<Vec<String>>>,
    /// What that model says about itself.
    pub metadata: Arc<BTreeMap<String, String>>,
    /// See [`Signature::made_by`](crate::Signature::made_by).
    pub made_by: Arc<BTreeMap<String, String>>,
    /// Outputs of its model that no stage can read.
    pub unreadable: Vec<UnreadableOutput>,
    pub slots: Option<SlotTensors>,
}

/// What lies in the slots of a batch stage.
pub(crate) struct SlotTensors {
    /// The inputs of the model with every open dimension of the row filled in, what a loop keeps of each row, and where a trimmed row lies.
    pub inputs: Vec<TensorSpec>,
    /// What its workers give: those of the model's outputs that are read, and what a loop says of each row.
    pub outputs: Vec<TensorSpec>,
    /// The same outputs of the model, with what is known of them.
    pub given: Vec<StageOutput>,
}

impl StageNode {
    /// What its model and its batches shall be, if it runs one.
    pub fn batch(&self) -> Option<&BatchDraft> {
        match &self.draft {
            Some(Draft::Batch(batch)) => Some(batch),
            Some(Draft::Stage(_)) | None => None,
        }
    }

    /// The word for its kind; empty where that is not known.
    pub fn kind_name(&self) -> &'static str {
        self.kind.as_ref().map_or("", |kind| kind.name())
    }

    pub fn plan(&self) -> Option<&StagePlan> {
        Some(&self.connected.as_ref()?.plan)
    }

    /// The columns that its plan says it reads, each wherever it stands.
    pub fn reads_mut(&mut self) -> impl Iterator<Item = &mut ColumnRef> {
        self.connected.iter_mut().flat_map(
            |Connected { plan: StagePlan { reads, runs, .. }, placed, .. }| {
                let of_batch = match runs {
                    Shape::Batch(batch) => &mut batch.passthrough_columns[..],
                    Shape::Map(_) | Shape::Fold(_) => &mut [],
                };
                reads.iter_mut().chain(of_batch).chain(placed)
            },
        )
    }

    pub fn batch_plan(&self) -> Option<&BatchPlan> {
        self.plan()?.batch()
    }

    pub fn batch_plan_mut(&mut self) -> Option<&mut BatchPlan> {
        self.connected.as_mut()?.plan.batch_mut()
    }
}

/// `[sinks.NAME]`
#[derive(Default)]
pub(crate) struct SinkNode {
    pub name: Spanned<String>,
    /// `None` when its kind is missing or unknown.
    pub kind: Option<Arc<dyn SinkKind>>,
    pub table: Table,
    /// What it reads from, as written; empty after an error.
    pub from: Vec<Spanned<String>>,
    /// It writes the failures of the run, and reads from nothing.
    pub is_of_failures: bool,
    /// As written, or by default. Relative to the output folder.
    pub path: Option<Spanned<String>>,
    /// Of its part files.
    pub rows_per_file: Option<Spanned<u64>>,
    pub ordered: bool,
    /// Its file, relative to the output folder; `None` was reported.
    pub file: Option<PathBuf>,
    /// One for each of `from`; `None` was reported.
    pub links: Vec<Option<Link>>,
    /// Once it is connected without an error.
    pub plan: Option<SinkPlan>,
}

impl SinkNode {
    /// Whether its records go back to those who asked.
    pub fn replies(&self) -> bool {
        self.kind.as_ref().is_some_and(|kind| kind.writes() == Writes::Reply)
    }
}

#[derive(Debug)]
pub(crate) struct RawDevices {
    /// `None` is `"auto"`.
    pub use_: Option<Vec<Spanned<String>>>,
    pub headroom: u64,
    /// How many commands share the CPU.
    pub slots: Option<usize>,
}

impl WorkflowTables {
    /// Leaves tables to a later plan: those of a section that `is_late` says, by their names.
    pub fn defer(&mut self, is_late: impl Fn(&str, &str) -> bool) {
        for source in &mut self.sources {
            source.is_deferred = is_late("sources", &source.name.value);
        }
        for model in &mut self.models {
            model.is_deferred = is_late("models", &model.name.value);
        }
        for stage in &mut self.stages {
            stage.is_deferred = is_late("stages", &stage.name.value);
            if let Some(program) = &mut stage.program {
                program.is_deferred = stage.is_deferred;
            }
        }
    }

    /// Without sources, models, stages and sinks.
    pub fn of_tasks_alone(self) -> Self {
        let (sources, models, stages, sinks) = Default::default();
        let (n_sources, n_models, n_stages, n_ordered) = (0, 0, 0, 0);
        Self {
            sources,
            models,
            stages,
            sinks,
            pipelines: Vec::new(),
            n_sources,
            n_models,
            n_stages,
            n_ordered,
            ..self
        }
    }

    /// The name of a source or a stage.
    pub fn name_of(&self, target: Origin) -> &str {
        match target {
            Origin::Source(source) => &self.sources[source.index()].name.value,
            Origin::Stage(stage) => &self.stages[stage.index()].name.value,
        }
    }

    /// All that is used and runs batches.
    pub fn batch_stages(&self) -> impl Iterator<Item = (&StageNode, &ModelNode)> {
        let used = self.stages[..self.n_stages].iter();
        used.filter_map(|stage| Some((stage, &self.models[stage.model?])))
    }
}
