//! A workflow file in, a plan and its diagnostics out.
//!
//! [`plan`] is a function of the text, the options and a [`Host`]: files, models and devices are reached through that trait alone.
//! It starts nothing, prints nothing and loads no model; every error of the file is collected, with its place and what to do.

mod assemble;
mod batches;
mod build;
mod bytes;
mod connect;
mod cpu_affinity;
mod cx;
mod describe;
mod devices;
mod diagnostics;
mod digest;
mod fields;
mod files;
mod fingerprint;
mod graph;
mod graph_view;
mod host;
mod iteration;
mod key;
pub mod keys;
mod kind;
mod machine_file;
mod matrix;
mod memory;
mod model_file;
mod model_tables;
mod models;
mod nearest;
mod no_effect;
mod onnx;
mod outputs;
mod part_names;
mod pipelines;
mod place;
mod plan;
mod priority;
mod requests;
mod rules;
mod schema;
mod settings;
mod shell;
mod sinks;
mod slots;
mod sources;
mod store_parts;
mod tasks;
mod template;
pub mod tree;
mod variables;
mod worker_placement;
mod workflow;

pub use build::{PlanOptions, plan, plan_tables};
pub use bytes::{format_bytes, parse_bytes};
pub use describe::{describe, items_in_words};
pub use diagnostics::{Audience, Cause, Diagnostic, Diagnostics, RenderStyle, Reported, Severity, Span};
pub use fields::{Fields, NamedTexts, Spanned, Upstreams};
pub use files::{FileKind, Files, LookRequest};
pub use graph_view::{Edge, GraphNode, GraphView, NodeKind, PipelineView};
pub use host::{
    AskProgram, DeviceView, FindCompilers, FindTaskHistory, FindTaskResults, Host, LookInto, MachineView,
    NodeView, ProbeModel, ProbeRequest, RealHost,
};
pub use key::{Key, joined, key};
pub use kind::{
    BatchDraft, Connect, Draft, Drafted, Input, InputColumns, ItemSchema, Items, IterationDraft, Kinds,
    ObjectAccess, ProgramContext, ProgramDraft, ReadBack, ReadOptions, ReadRecord, ResolvedProgram, Runs,
    SinkContext, SinkKind, SourceConnected, SourceContext, SourceKind, StageConnected, StageContext,
    StageKind, Typed, TypedSink, TypedSource, TypedStage, UntilDraft, Writes, file_of,
};
pub use machine_file::machine_from_toml;
pub use model_file::{MAX_METADATA, ModelError, ModelFile, Signature};
pub use model_tables::{ModelTables, model_tables, serve_settings, token_of};
pub use models::{MAX_BATCH, read_labels, read_text};
pub use nearest::{list, toml_key};
pub use onnx::read_model;
pub use orchestra_core::{Choice, Word, choices as declare_choices};
pub use outputs::{ModelOutput, OutputDim, OutputType, UnreadableOutput};
pub use part_names::{PartFilesPlan, part_number};
pub use plan::{
    BEST_FOLDER, BETWEEN_COMMITS, BatchPlan, BestOf, BucketPlan, ColumnRef, DeferredPlan, DeviceMemory,
    DevicePlan, FilesPlan, FoldPlan, JoinWay, KnownItems, LEAST_LOADER_BYTES, LateValue, Limits, LogFormat,
    MaxFailed, ModelPlan, NodeCores, Origin, OtlpProtocol, PipelinePlan, Plan, RecordsPerItem, Recycle,
    ScalarInput, ServeSettings, Shape, SinkPlan, SourcePlan, StagePlan, TASKS_FOLDER, TaskGpu, TaskHistory,
    TaskMetric, TaskPlan, TaskResults, TasksPlan, TelemetryPlan, ValueOwner, WorkerGrowth, WorkerPlan,
    fed_texts,
};
pub use schema::workflow_schema;
pub use serde_json::Value as Json;
pub use settings::{Bytes, Setting, Settings, setting};
pub use sinks::{FAILURES, RESERVED, failure_schema};
pub use tasks::is_output_of_task;
pub use workflow::keys_of_sink;
