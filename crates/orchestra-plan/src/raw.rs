//! The workflow file as read: every table typed, nothing resolved. Knows neither files nor devices.

use std::sync::Arc;
use std::time::Duration;

use orchestra_core::SandboxMode;
use orchestra_store::Watch;

use crate::bytes::parse_bytes;
use crate::diagnostics::{Diagnostics, Span};
use crate::fields::{At, Fields};
use crate::keys;
use crate::kind::{BatchDraft, Draft, Key, Kinds, ProgramDraft, Reads, SinkKind, SourceKind, StageKind};
use crate::nearest::suggestion;
use crate::plan::{Limits, LogFormat, MaxFailed, OtlpProtocol, Recycle, TelemetryPlan};
use crate::tasks::RawTask;
use crate::tree::{Entry, Table, Value};
use crate::tuning::RawTuning;
use crate::{models, sinks, sources, tasks};

const TABLES: [&str; 9] =
    ["sources", "models", "stages", "sinks", "tasks", "pipelines", "devices", "limits", "telemetry"];

/// Default of `limits.max_pixels`: 2^28, a square of 16,384 pixels.
const MAX_PIXELS: u64 = 1 << 28;
/// Of a source, whose list takes some dozens of bytes for each.
const MAX_ITEMS: u64 = 100_000_000;

/// Tables of one kind. Ids of the plan have 16 bits; a file beyond this bound is a mistake of the program that generated it.
const MAX_TABLES: usize = 10_000;

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
    pub loaders: Option<usize>,
    pub telemetry: TelemetryPlan,
}

/// `[pipelines.NAME]`: what holds for one pipeline instead of what `[limits]` says.
pub(crate) struct RawPipeline {
    pub name: At<String>,
    pub max_failed: Option<MaxFailed>,
    pub item_timeout: Option<Duration>,
    pub batch_timeout: Option<Duration>,
    pub load_timeout: Option<Duration>,
    pub memory: Option<At<u64>>,
    pub loaders: Option<At<u64>>,
    /// Of its keys, those that have no effect on a pipeline without a model.
    pub of_models: Vec<At<&'static str>>,
}

impl RawPipeline {
    /// Processes that it names; 0: it names none.
    pub fn n_loaders(&self) -> usize {
        self.loaders.as_ref().map_or(0, |n| n.value as usize)
    }

    /// Its limits, where those of the file are these.
    pub fn limits(&self, of_file: &Limits) -> Limits {
        let timeouts = [
            ("item_timeout", self.item_timeout),
            ("batch_timeout", self.batch_timeout),
            ("load_timeout", self.load_timeout),
        ];
        let own = timeouts.iter().filter(|(_, own)| own.is_some()).map(|(key, _)| *key).collect();
        Limits {
            max_failed: self.max_failed,
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
    pub spare: Option<At<u64>>,
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
    pub reads: Reads,
    /// `None` when its kind is missing or unknown.
    pub kind: Option<Arc<dyn StageKind>>,
    /// `None` when a setting is wrong, too.
    pub draft: Option<Draft>,
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

pub(crate) fn read(root: &Table, kinds: &Kinds, diags: &mut Diagnostics) -> RawWorkflow {
    // Errors about the file as a whole point at its first line.
    let top = Span::new(0, 0..0);
    let mut allowed = keys::names(&keys::TOP_LEVEL);
    allowed.extend(TABLES);
    let mut fields = Fields::new("the workflow file".into(), top, root, &allowed, diags);
    version(&mut fields);
    let name = fields.string("name").map(|n| n.value);
    let (limits, memory, loaders) = limits(&mut fields);
    let devices = devices(&mut fields);
    let telemetry = telemetry(&mut fields);
    let mut programs = Vec::new();
    let stage = |name: At<String>, _: &Entry, table: &Table, diags: &mut Diagnostics| {
        read_stage(name, table, kinds, &limits, &mut programs, diags)
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
        tasks: tasks(root, diags),
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
    let mut f = Fields::new(what, name.span, table, &keys::names(&keys::PIPELINE), diags);
    let of_models = ["batch_timeout", "load_timeout", "memory"].into_iter();
    let of_models = of_models.filter_map(|key| Some(At::new(key, f.entry(key)?.key_span))).collect();
    RawPipeline {
        max_failed: max_failed(&mut f),
        item_timeout: positive(&mut f, "item_timeout"),
        batch_timeout: positive(&mut f, "batch_timeout"),
        load_timeout: positive(&mut f, "load_timeout"),
        memory: f.bytes("memory"),
        loaders: f.integer("loaders", 1..=1024),
        of_models,
        name,
    }
}

/// `[stages.*]`: reads a table by its kind. A program that the stage runs instead of a model is added to `programs`.
fn read_stage(
    name: At<String>,
    table: &Table,
    kinds: &Kinds,
    limits: &Limits,
    programs: &mut Vec<RawModel>,
    diags: &mut Diagnostics,
) -> RawStage {
    let what = format!("stage `{}`", name.value);
    let Some(kind) = kind(&what, table, name.span, &kinds.stages, |k| k.name(), diags) else {
        return RawStage { name, reads: Vec::new(), kind: None, draft: None };
    };
    let allowed = allowed(&keys::STAGE, kind.keys());
    let mut fields = Fields::new(what, name.span, table, &allowed, diags);
    let reads = kind.reads(&mut fields);
    let mut draft = kind.read(&mut fields, limits);
    if let Some(Draft::Batch(BatchDraft { model: Some(model), program: Some(program), .. })) = &mut draft {
        // No table can be called so.
        model.value = format!("{}/{}", name.value, model.value);
        programs.push(models::of_program(model.clone(), Arc::clone(program), &mut fields));
    }
    RawStage { name, reads, kind: Some(kind), draft }
}

/// The names of all keys of a table of some kind.
pub(crate) fn allowed(common: &[Key], own: &[Key]) -> Vec<&'static str> {
    let mut names = vec!["kind"];
    names.extend(keys::names(common.iter().chain(own)));
    names
}

/// The kind that a table names: one of `kinds`, else reported.
pub(crate) fn kind<K: ?Sized>(
    what: &str,
    table: &Table,
    span: Span,
    kinds: &[Arc<K>],
    name_of: impl Fn(&K) -> &'static str,
    diags: &mut Diagnostics,
) -> Option<Arc<K>> {
    let names: Vec<&str> = kinds.iter().map(|k| name_of(k)).collect();
    let Some(entry) = table.get("kind") else {
        diags
            .error(span, format!("{what} needs the key `kind`"))
            .label("`kind` is missing")
            .help(suggestion("kinds", "", names.iter().copied()));
        return None;
    };
    let Value::String(text) = &entry.node.value else {
        diags
            .error(entry.node.span, format!("`kind` of {what} must be a string"))
            .label(format!("found {}", entry.node.found()));
        return None;
    };
    // The last of a name wins, so that a host can replace a kind.
    let found = kinds.iter().rev().find(|k| name_of(k) == text).cloned();
    if found.is_none() {
        diags.error(entry.node.span, format!("{what} has the unknown kind `{text}`")).help(suggestion(
            "kinds",
            text,
            names.iter().copied(),
        ));
    }
    found
}

fn tables<T>(
    root: &Table,
    key: &str,
    what: &str,
    diags: &mut Diagnostics,
    mut read: impl FnMut(At<String>, &Entry, &Table, &mut Diagnostics) -> T,
) -> Vec<T> {
    let Some(section) = root.get(key) else { return Vec::new() };
    let Value::Table(named) = &section.node.value else {
        diags
            .error(section.key_span, format!("`{key}` must hold named tables"))
            .label(format!("found {}", section.node.found()))
            .help(format!("write [{key}.some_name] and its keys below it"));
        return Vec::new();
    };
    if named.entries.len() > MAX_TABLES {
        diags.error(section.key_span, format!("`{key}` holds more than {MAX_TABLES} tables"));
        return Vec::new();
    }
    let mut result = Vec::new();
    for entry in &named.entries {
        let name = At::new(entry.key.clone(), entry.key_span);
        if entry.key.is_empty()
            || !entry.key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        {
            diags
                .error(name.span, format!("`{}` is no name for a {what}", entry.key))
                .help("names are made of letters, digits, `_` and `-`");
        }
        match &entry.node.value {
            Value::Table(table) => result.push(read(name, entry, table, diags)),
            _ => {
                diags
                    .error(entry.key_span, format!("{what} `{}` must be a table", entry.key))
                    .label(format!("found {}", entry.node.found()))
                    .help(format!("write [{key}.some_name] and its keys below it"));
            }
        }
    }
    result
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

fn limits(fields: &mut Fields<'_, '_>) -> (Limits, Option<At<u64>>, Option<usize>) {
    let mut limits = Limits {
        max_failed: None,
        item_timeout: Duration::from_secs(30),
        batch_timeout: Duration::from_secs(60),
        load_timeout: Duration::from_secs(600),
        // What sends SIGTERM and then SIGKILL mostly leaves 30 seconds between.
        grace: Duration::from_secs(25),
        max_pixels: MAX_PIXELS,
        max_items: MAX_ITEMS,
        sandbox: SandboxMode::default(),
        own: None,
    };
    let Some(mut f) = fields.section("limits", &keys::LIMITS) else { return (limits, None, None) };
    limits.max_failed = max_failed(&mut f);
    limits.item_timeout = positive(&mut f, "item_timeout").unwrap_or(limits.item_timeout);
    limits.batch_timeout = positive(&mut f, "batch_timeout").unwrap_or(limits.batch_timeout);
    limits.load_timeout = positive(&mut f, "load_timeout").unwrap_or(limits.load_timeout);
    limits.grace = f.duration("grace").unwrap_or(limits.grace);
    limits.max_pixels = f.integer("max_pixels", 1..=1 << 40).map_or(MAX_PIXELS, |n| n.value);
    limits.max_items = f.integer("max_items", 1..=1 << 40).map_or(MAX_ITEMS, |n| n.value);
    limits.sandbox = f.choice("sandbox", &SandboxMode::NAMES).map_or(limits.sandbox, |mode| mode.value);
    let memory = f.bytes("memory");
    let loaders = f.integer("loaders", 1..=1024).map(|n| n.value as usize);
    (limits, memory, loaders)
}

fn positive(f: &mut Fields<'_, '_>, key: &str) -> Option<Duration> {
    let duration = f.duration(key)?;
    if duration.is_zero()
        && let Some(entry) = f.entry(key)
    {
        f.bad(key, entry.node.span, "must be longer than nothing");
        return None;
    }
    Some(duration)
}

fn max_failed(f: &mut Fields<'_, '_>) -> Option<MaxFailed> {
    let node = &f.entry("max_failed")?.node;
    let expected = "a number of items or a share of them, for example 100 or \"1%\"";
    match &node.value {
        Value::Integer(n) if *n >= 0 => return Some(MaxFailed::Items(n.unsigned_abs())),
        Value::String(text) => {
            let share = text.trim().strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
            if let Some(share) = share.filter(|s| (0.0..=100.0).contains(s)) {
                return Some(MaxFailed::Share(share / 100.0));
            }
        }
        _ => {}
    }
    f.wrong("max_failed", node, expected);
    None
}

fn devices(fields: &mut Fields<'_, '_>) -> RawDevices {
    let default = RawDevices { use_: None, headroom: parse_bytes("2GiB").unwrap_or_default(), slots: None };
    let Some(mut f) = fields.section("devices", &keys::DEVICES) else { return default };
    let use_ = f.strings("use").filter(|names| !matches!(&names[..], [one] if one.value == "auto"));
    if let (Some([]), Some(entry)) = (use_.as_deref(), f.entry("use")) {
        f.bad("use", entry.node.span, "names no device")
            .help("\"auto\" takes all GPUs, or the CPU where there is none");
    }
    RawDevices {
        use_,
        headroom: f.bytes("headroom").map_or(default.headroom, |b| b.value),
        slots: f.integer("slots", 1..=4096).map(|n| n.value as usize),
    }
}

fn telemetry(fields: &mut Fields<'_, '_>) -> TelemetryPlan {
    let Some(mut f) = fields.section("telemetry", &keys::TELEMETRY) else { return TelemetryPlan::default() };
    let otlp = f.string("otlp");
    if let Some(url) = &otlp
        && !url.value.starts_with("http://")
    {
        f.bad("otlp", url.span, "is no address of a collector")
            .help("for example otlp = \"http://localhost:4318\"; traces are sent without encryption, so `https://` cannot be used");
    }
    TelemetryPlan {
        otlp: otlp.map(|u| u.value),
        protocol: f.choice("protocol", &OtlpProtocol::NAMES).map(|p| p.value),
        sample: sample(&mut f),
        slow: f.duration("slow"),
        flush_timeout: f.duration("flush_timeout"),
        metrics: metrics_page(&mut f),
        log_format: f
            .choice("log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])
            .map(|l| l.value),
    }
}

fn metrics_page(f: &mut Fields<'_, '_>) -> Option<String> {
    let address = f.string("metrics")?;
    let port = address.value.rsplit_once(':').map_or(&address.value[..], |(_, port)| port);
    if port.parse::<u16>().is_err() || address.value.contains('/') {
        f.bad("metrics", address.span, "is no address to listen on")
            .help("HOST:PORT, for example metrics = \"127.0.0.1:9464\" for this machine alone");
        return None;
    }
    Some(address.value)
}

fn sample(f: &mut Fields<'_, '_>) -> Option<f64> {
    let share = f.numbers("sample")?;
    match share.value[..] {
        [one] if (0.0..=1.0).contains(&one) => Some(one),
        _ => {
            f.bad("sample", share.span, "is no share of the items")
                .help("a number from 0.0 to 1.0: 0.01 traces one item in a hundred, and those that fail or are slow");
            None
        }
    }
}
