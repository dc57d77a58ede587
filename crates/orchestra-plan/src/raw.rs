//! The workflow file as read: every table typed, nothing resolved. Knows neither files nor devices.

mod settings;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use orchestra_core::SandboxMode;
use orchestra_store::Watch;

pub(crate) use self::settings::positive;
use self::settings::{devices, limits, max_failed, telemetry};
use self::tables::tables;
pub(crate) use self::tables::{declared, kind};
use crate::diagnostics::{Diagnostics, Span};
use crate::fields::{At, Fields};
use crate::key::key;
use crate::keys;
use crate::kind::{BatchDraft, Draft, Kinds, ProgramDraft, SinkKind, SourceKind, StageKind, Upstreams};
use crate::plan::{Limits, MaxFailed, Recycle, TelemetryPlan};
use crate::tasks::RawTask;
use crate::tree::{Entry, Table, Value};
use crate::tuning::RawTuning;
use crate::{models, sinks, sources, tasks};

const TABLES: [&str; 9] =
    ["sources", "models", "stages", "sinks", "tasks", "pipelines", "devices", "limits", "telemetry"];

/// The file. What could not be read is absent, and reported.
pub(crate) struct RawWorkflow {
    pub name: Option<String>,
    pub sources: Vec<RawSource>,
    pub models: Vec<RawModel>,
    pub stages: Vec<RawStage>,
    pub sinks: Vec<RawSink>,
    pub tasks: Vec<RawTask>,
    pub pipelines: Vec<RawPipeline>,
    pub devices: RawDevices,
    pub limits: Limits,
    pub memory: Option<At<u64>>,
    pub loaders: Option<At<u64>>,
    pub telemetry: TelemetryPlan,
}

/// `[pipelines.NAME]`: what holds for one pipeline instead of what `[limits]` says.
pub(crate) struct RawPipeline {
    pub name: At<String>,
    pub max_failed: Option<MaxFailed>,
    pub first_failed: Option<At<u64>>,
    pub item_timeout: Option<Duration>,
    pub batch_timeout: Option<Duration>,
    pub load_timeout: Option<Duration>,
    /// Of its keys, those that have no effect on a pipeline without a model.
    pub of_models: Vec<At<&'static str>>,
}

impl RawPipeline {
    /// Its limits, where those of the file are these.
    pub fn limits(&self, of_file: &Limits) -> Limits {
        let first_failed = self.first_failed.as_ref().map(|n| n.value);
        let set = [
            ("first_failed", first_failed.is_some()),
            ("item_timeout", self.item_timeout.is_some()),
            ("batch_timeout", self.batch_timeout.is_some()),
            ("load_timeout", self.load_timeout.is_some()),
        ];
        let own = set.iter().filter(|(_, is_set)| *is_set).map(|(key, _)| *key).collect();
        Limits {
            max_failed: self.max_failed,
            first_failed: first_failed.unwrap_or(of_file.first_failed),
            item_timeout: self.item_timeout.unwrap_or(of_file.item_timeout),
            batch_timeout: self.batch_timeout.unwrap_or(of_file.batch_timeout),
            load_timeout: self.load_timeout.unwrap_or(of_file.load_timeout),
            own: Some((self.name.value.clone(), own)),
            ..of_file.clone()
        }
    }
}

pub(crate) struct RawSource {
    pub name: At<String>,
    /// `None` when its kind is missing or unknown.
    pub kind: Option<Arc<dyn SourceKind>>,
    pub table: Table,
    pub listing: Option<RawListing>,
    /// New files are taken, too.
    pub watch: Option<At<Watch>>,
    /// What its loaders may read beside its items.
    pub sandbox_read: Vec<At<String>>,
}

#[derive(Debug)]
pub(crate) enum RawListing {
    Paths(Vec<At<String>>),
    Manifest {
        path: At<String>,
        root: Option<At<String>>,
    },
    /// No file is named: the kind has none.
    Generated,
}

#[derive(Debug)]
pub(crate) struct RawModel {
    pub name: At<String>,
    /// What is run instead of a model file.
    pub program: Option<Arc<dyn ProgramDraft>>,
    pub path: Option<At<String>>,
    pub labels: Option<At<String>>,
    pub devices: Option<Vec<At<String>>>,
    pub workers: Option<At<u64>>,
    pub max_batch: Option<At<u64>>,
    pub memory: Option<At<u64>>,
    pub memory_limit: Option<At<u64>>,
    pub priority: u32,
    pub threads: Option<usize>,
    pub streams: Option<At<u64>>,
    pub custom_ops: Vec<At<String>>,
    pub recycle: Recycle,
    pub tf32: bool,
    pub tuning: RawTuning,
    pub sandbox: RawSandbox,
}

/// What a file says about the sandbox of a model's workers.
#[derive(Debug, Default)]
pub(crate) struct RawSandbox {
    pub mode: Option<SandboxMode>,
    pub read: Vec<At<String>>,
    pub write: Vec<At<String>>,
    pub env: Vec<At<String>>,
}

impl RawModel {
    /// Batches that each worker runs at once.
    pub fn streams(&self) -> usize {
        self.streams.as_ref().map_or(1, |n| n.value as usize)
    }
}

pub(crate) struct RawStage {
    pub name: At<String>,
    /// What it reads from, as written, in order. The first part of an entry names a model input (`inputs = { .. }`).
    pub upstreams: Upstreams,
    /// `None` when its kind is missing or unknown.
    pub kind: Option<Arc<dyn StageKind>>,
    /// `None` when a setting is wrong, too.
    pub draft: Option<Draft>,
    /// The keys of its table, and where they stand.
    pub written: Vec<At<String>>,
}

impl RawStage {
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
}

pub(crate) struct RawSink {
    pub name: At<String>,
    /// `None` when its kind is missing or unknown.
    pub kind: Option<Arc<dyn SinkKind>>,
    pub table: Table,
    /// What it reads from, as written; empty after an error.
    pub from: Vec<At<String>>,
    /// It writes the failures of the run, and reads from nothing.
    pub is_of_failures: bool,
    /// Relative to the output folder.
    pub path: Option<At<String>>,
    /// Of its part files.
    pub rows_per_file: Option<At<u64>>,
    pub ordered: bool,
}

#[derive(Debug)]
pub(crate) struct RawDevices {
    /// `None` is `"auto"`.
    pub use_: Option<Vec<At<String>>>,
    pub headroom: u64,
    /// How many commands share the CPU.
    pub slots: Option<usize>,
}

/// `tasks` were read before: what follows may use values of them.
pub(crate) fn read(root: &Table, tasks: Vec<RawTask>, kinds: &Kinds, diags: &mut Diagnostics) -> RawWorkflow {
    // Errors about the file as a whole point at its first line.
    let top = Span::new(0, 0..0);
    let tables_of = TABLES.map(|name| key(name, "table", "none", "tables"));
    let keys = [&keys::TOP_LEVEL[..], &tables_of].concat();
    let mut fields = Fields::new("the workflow file".into(), top, root, &keys, diags);
    version(&mut fields);
    let name = fields.string("name").map(|n| n.value);
    let (limits, memory, loaders) = limits(&mut fields);
    let devices = devices(&mut fields);
    let telemetry = telemetry(&mut fields);
    let mut programs = Vec::new();
    let stage = |name: At<String>, _: &Entry, table: &Table, diags: &mut Diagnostics| {
        read_stage(name, table, kinds, &mut programs, diags)
    };
    let stages = tables(root, "stages", "stage", diags, stage);
    let source = |name: At<String>, _: &Entry, table: &Table, diags: &mut Diagnostics| {
        sources::read(name, table, kinds, diags)
    };
    let sink = |name: At<String>, _: &Entry, table: &Table, diags: &mut Diagnostics| {
        sinks::read(name, table, kinds, diags)
    };
    let mut models = tables(root, "models", "model", diags, models::read);
    models.extend(programs);
    for model in &mut models {
        model.sandbox.mode.get_or_insert(limits.sandbox);
    }
    RawWorkflow {
        name,
        sources: tables(root, "sources", "source", diags, source),
        models,
        stages,
        sinks: tables(root, "sinks", "sink", diags, sink),
        tasks,
        pipelines: tables(root, "pipelines", "pipeline", diags, pipeline),
        devices,
        limits,
        memory,
        loaders,
        telemetry,
    }
}

/// `[tasks.*]`, as written.
pub(crate) fn tasks(root: &Table, diags: &mut Diagnostics) -> Vec<RawTask> {
    tables(root, "tasks", "task", diags, tasks::read)
}

fn pipeline(name: At<String>, _: &Entry, table: &Table, diags: &mut Diagnostics) -> RawPipeline {
    let what = format!("pipeline `{}`", name.value);
    let mut f = Fields::new(what, name.span, table, &keys::PIPELINE, diags);
    let of_models = ["batch_timeout", "load_timeout"].into_iter();
    let of_models = of_models.filter_map(|key| Some(At::new(key, f.entry(key)?.key_span))).collect();
    RawPipeline {
        max_failed: max_failed(&mut f),
        first_failed: f.integer("first_failed"),
        item_timeout: positive(&mut f, "item_timeout"),
        batch_timeout: positive(&mut f, "batch_timeout"),
        load_timeout: positive(&mut f, "load_timeout"),
        of_models,
        name,
    }
}

/// `[stages.*]`: reads a table by its kind. A program that the stage runs instead of a model is added to `programs`.
fn read_stage(
    name: At<String>,
    table: &Table,
    kinds: &Kinds,
    programs: &mut Vec<RawModel>,
    diags: &mut Diagnostics,
) -> RawStage {
    let what = format!("stage `{}`", name.value);
    let names = kinds.stages.iter().map(|kind| kind.name());
    let Some(kind) = kind(&what, table, name.span, names, |name| kinds.stage(name), diags) else {
        return RawStage { name, upstreams: Vec::new(), kind: None, draft: None, written: Vec::new() };
    };
    let keys = declared(&keys::STAGE, kind.keys());
    let mut fields = Fields::new(what, name.span, table, &keys, diags);
    let upstreams = kind.upstreams(&mut fields);
    let mut draft = kind.read(&mut fields);
    if let Some(Draft::Batch(BatchDraft { model: Some(model), program: Some(program), .. })) = &mut draft {
        // No table can be called so.
        model.value = format!("{}/{}", name.value, model.value);
        programs.push(models::of_program(model.clone(), Arc::clone(program), &mut fields));
    }
    let written = table.entries.iter().map(|entry| At::new(entry.key.clone(), entry.key_span)).collect();
    RawStage { name, upstreams, kind: Some(kind), draft, written }
}

fn version(fields: &mut Fields<'_, '_>) {
    let Some(entry) = fields.entry("version") else {
        fields.missing("version", "add `version = 1` as the first line");
        return;
    };
    if !matches!(entry.node.value, Value::Integer(1)) {
        let found = entry.node.found();
        fields
            .diags
            .error(entry.node.span, "`version` of the workflow file must be 1")
            .label(format!("found {found}"))
            .help("this build reads version 1 of the format");
    }
}
