//! A workflow file in, a plan and its diagnostics out.
//!
//! [`plan`] is a function of the text, the options and a [`Host`]: files, models and devices are reached through that trait alone.
//! It starts nothing, prints nothing and loads no model; every error of the file is collected, with its place and what to do.

mod build;
mod bytes;
mod describe;
mod devices;
mod diagnostics;
mod fields;
mod fingerprint;
mod graph;
mod graph_view;
mod host;
mod iteration;
mod key;
pub mod keys;
mod kind;
mod machine_file;
mod models;
mod near_cores;
mod nearest;
mod no_effect;
mod onnx;
mod outputs;
mod part_names;
mod plan;
mod priority;
mod raw;
mod removed_keys;
mod routing;
mod schema;
mod settings;
mod sinks;
mod slots;
mod sources;
mod store_parts;
mod tasks;
pub mod tree;
mod tuning;
mod variables;
mod wiring;
mod worker_placement;

pub use build::{PlanOptions, plan};
pub use bytes::{format_bytes, parse_bytes};
pub use describe::{describe, items_in_words};
pub use diagnostics::{Cause, Diagnostic, Diagnostics, RenderStyle, Severity, Span, visible};
pub use fields::{At, Fields};
pub use graph_view::{Edge, GraphView, Node, NodeKind, PipelineView};
pub use host::{
    AskProgram, DeviceView, FileKind, FindCompilers, HasBest, Host, LookInto, LookRequest, MAX_METADATA,
    MachineView, ModelError, ModelFile, NodeView, ProbeModel, ProbeRequest, RealHost, Signature, TasksDone,
};
pub use iteration::{IterationDraft, UntilDraft};
pub use key::{Key, joined, key};
pub use kind::{
    BatchDraft, Connect, Draft, Input, InputColumns, Kinds, ProgramContext, ProgramDraft, ReadBack,
    ReadRecord, ResolvedProgram, Runs, SinkKind, SourceConnected, SourceContext, SourceKind, StageConnected,
    StageContext, StageKind, Typed, TypedStage, Upstreams, Writes,
};
pub use machine_file::machine_from_toml;
pub use models::{MAX_BATCH, read_labels, read_text};
pub use nearest::list;
pub use onnx::read_model;
pub use orchestra_core::{Choice, Word, choices as declare_choices};
pub use outputs::{Holds, ModelOutput, OutputDim, UnreadableOutput};
pub use part_names::{PartFilesPlan, part_number};
pub use plan::{
    BETWEEN_COMMITS, BatchPlan, BucketPlan, ColumnRef, DeviceMemory, DevicePlan, FilesPlan, FoldPlan, Growth,
    JoinWay, KnownItems, LEAST_LOADER_BYTES, Limits, LogFormat, MaxFailed, ModelPlan, NodeCores, Origin,
    OtlpProtocol, PipelinePlan, Plan, RecordsPerItem, Recycle, Shape, SinkPlan, SourcePlan, StagePlan,
    TelemetryPlan, WorkerPlan,
};
pub use schema::workflow_schema;
pub use serde_json::Value as Json;
pub use settings::{NamedTexts, Setting, Settings, setting};
pub use sinks::{FAILURES, RESERVED, failure_schema};
pub use tasks::{
    BEST_FOLDER, BestOf, BestValue, LatePlan, TASKS_FOLDER, TaskGpu, TaskMetric, TaskPlan, TasksEnded,
    TasksPlan, is_output_of_task,
};
