//! Reads the tables of a workflow file, each by itself.

use std::sync::Arc;

use super::metrics::{self, RawBest};
use super::settings::{devices, limits, positive, serve, telemetry};
use super::tables::{declared, kind, tables};
use super::{PipelineNode, RawTask, StageNode, StageProgram, WorkflowTables, models, sinks, sources, tasks};
use crate::diagnostics::{Diagnostics, Span};
use crate::fields::{Fields, Spanned};
use crate::key::{Key, key};
use crate::keys;
use crate::kind::{BatchDraft, Draft, Kinds, StageKind};
use crate::matrix::{self, Matrices, MatrixKind, StageVariant};
use crate::plan::Limits;
use crate::tree::{Table, Toml};

const TABLES: [&str; 11] = [
    "sources",
    "models",
    "stages",
    "sinks",
    "tasks",
    "best",
    "pipelines",
    "devices",
    "limits",
    "serve",
    "telemetry",
];

/// `tasks` were read before: what follows may use values of them.
pub(crate) fn read(
    root: &Table,
    tasks: Vec<RawTask>,
    kinds: &Kinds,
    diags: &mut Diagnostics,
) -> WorkflowTables {
    let matrices = Matrices::read(root, diags);
    // Errors about the file as a whole point at its first line.
    let top = Span::new(0, 0..0);
    let tables_of = TABLES.map(|name| key(name, "table", "none", "tables"));
    let keys = [keys::TOP_LEVEL, &tables_of].concat();
    let mut fields = Fields::new("the workflow file".into(), top, root, &keys, diags);
    version(&mut fields);
    let name = fields.string("name").map(|n| n.value);
    let limits = limits(&mut fields);
    let devices = devices(&mut fields);
    serve(&mut fields); // For its mistakes: `serve_settings` reads it for those who serve.
    let telemetry = telemetry(&mut fields);
    let mut models = tables(root, "models", "model", diags, models::read);
    let mut stages = tables(root, "stages", "stage", diags, |name, table, diags| {
        read_stage(name, table, kinds, &matrices, diags)
    });
    stages.extend(stages.iter().filter_map(|stage| parts_of(stage, &matrices)).collect::<Vec<_>>());
    for stage in &mut stages {
        let parts = matrices.used(&stage.name.value).map(|matrix| (None, matrix.name.clone()));
        stage.upstreams.extend(parts);
    }
    let programs = stages.iter_mut().filter_map(|stage| stage.program.as_deref_mut());
    for model in models.iter_mut().chain(programs) {
        model.asked.sandbox.get_or_insert(limits.sandbox);
    }
    WorkflowTables {
        name,
        sources: tables(root, "sources", "source", diags, |name, table, diags| {
            sources::read(name, table, kinds, diags)
        }),
        models,
        stages,
        sinks: tables(root, "sinks", "sink", diags, |name, table, diags| {
            sinks::read(name, table, kinds, diags)
        }),
        tasks,
        pipelines: tables(root, "pipelines", "pipeline", diags, |name, table, diags| {
            pipeline(name, table, &limits, diags)
        }),
        devices,
        limits,
        telemetry,
        n_sources: 0,
        n_models: 0,
        n_stages: 0,
        n_ordered: 0,
    }
}

/// `[tasks.*]`, as written.
pub(crate) fn tasks_as_written(root: &Table, diags: &mut Diagnostics) -> Vec<RawTask> {
    tables(root, "tasks", "task", diags, tasks::read)
}

/// `[best.*]`, as written.
pub(crate) fn best_as_written(root: &Table, diags: &mut Diagnostics) -> Vec<RawBest> {
    tables(root, "best", "best", diags, metrics::read_best)
}

fn pipeline(name: Spanned<String>, table: &Table, of_file: &Limits, diags: &mut Diagnostics) -> PipelineNode {
    let what = format!("pipeline `{}`", name.value);
    let mut f = Fields::new(what, name.span, table, keys::PIPELINE, diags);
    let own = ["first_failed", "item_timeout", "batch_timeout", "load_timeout"];
    let own = own.into_iter().filter(|key| f.entry(key).is_some()).collect();
    let of_models = ["batch_timeout", "load_timeout"].into_iter();
    let of_models = of_models.filter_map(|key| Some(Spanned::new(key, f.entry(key)?.key_span))).collect();
    let limits = Limits {
        max_failed: f.get("max_failed"),
        first_failed: f.get("first_failed").unwrap_or(of_file.first_failed),
        item_timeout: positive(&mut f, "item_timeout").unwrap_or(of_file.item_timeout),
        batch_timeout: positive(&mut f, "batch_timeout").unwrap_or(of_file.batch_timeout),
        load_timeout: positive(&mut f, "load_timeout").unwrap_or(of_file.load_timeout),
        own: Some((name.value.clone(), own)),
        ..of_file.clone()
    };
    PipelineNode { name, limits, of_models }
}

fn read_stage(
    name: Spanned<String>,
    table: &Table,
    kinds: &Kinds,
    matrices: &Matrices,
    diags: &mut Diagnostics,
) -> StageNode {
    let what = format!("stage `{}`", name.value);
    let mut node = StageNode { name, ..StageNode::default() };
    let names = kinds.stages.iter().map(|kind| kind.name());
    let Some(kind) = kind(&what, table, node.name.span, names, |name| kinds.stage(name), diags) else {
        return node;
    };
    let keys = declared(keys::STAGE, kind.keys());
    let written = table.entries.iter().map(|entry| Spanned::new(entry.key.clone(), entry.key_span));
    node.written = written.collect();
    if matrices.is_broken(&node.name.value) {
        return StageNode { kind: Some(kind), ..node };
    }
    let variants = matrices.variants(&node.name.value, table);
    if !variants.is_empty() {
        let mut fields = Fields::again(what, node.name.span, table, &keys, diags);
        node.upstreams = kind.upstreams(&mut fields);
        node.draft = read_variants(&node, &*kind, &variants, &keys, matrices, diags);
        return StageNode { kind: Some(kind), ..node };
    }
    let mut fields = Fields::new(what, node.name.span, table, &keys, diags);
    node.upstreams = kind.upstreams(&mut fields);
    node.draft = kind.read(&mut fields);
    if let Some(Draft::Batch(BatchDraft { model, program: Some(draft), .. })) = &node.draft {
        let stage = node.name.value.clone();
        let name = Spanned::new(format!("{stage}/{}", model.value), model.span);
        let program = StageProgram { stage, draft: Arc::clone(draft) };
        node.program = Some(Box::new(models::of_program(name, program, &mut fields)));
    }
    StageNode { kind: Some(kind), ..node }
}

/// The settings of a stage for each of its variants. What is wrong with one of them is said once.
fn read_variants(
    node: &StageNode,
    kind: &dyn StageKind,
    variants: &[StageVariant],
    keys: &[Key],
    matrices: &Matrices,
    diags: &mut Diagnostics,
) -> Option<Draft> {
    let mut drafts = Vec::new();
    for StageVariant { label, name, table } in variants {
        let (before, what) = (diags.errors().count(), format!("stage `{name}`"));
        let mut fields = Fields::new(what, node.name.span, table, keys, diags);
        let draft = kind.read(&mut fields);
        if diags.errors().count() > before {
            return None;
        }
        match draft? {
            Draft::Stage(draft) => drafts.push((label.clone(), draft)),
            Draft::Batch(_) => {
                let message = format!(
                    "stage `{}` runs a model or a program, which is one for all variants",
                    node.name.value
                );
                let help = "give `matrix` to the stage before it; a program reads a value as a column: inputs = { .., scale = \"pixels.scale\" }";
                return diags.error(node.name.span, message).help(help).none();
            }
        }
    }
    let counts = matrices.used(&node.name.value).map(|matrix| matrix.variants.len()).collect();
    Some(matrix::draft_of_variants(drafts, counts))
}

/// The stage that makes the parts of the matrix of a stage.
fn parts_of(stage: &StageNode, matrices: &Matrices) -> Option<StageNode> {
    let matrix = matrices.of(&stage.name.value)?;
    Some(StageNode {
        name: matrix.name.clone(),
        upstreams: stage.upstreams.iter().map(|(_, from)| (None, from.clone())).collect(),
        kind: Some(Arc::new(MatrixKind)),
        draft: Some(matrix::draft_of_parts(matrix)),
        ..StageNode::default()
    })
}

fn version(fields: &mut Fields<'_, '_>) {
    let Some(entry) = fields.entry("version") else {
        fields.missing("version", "add `version = 1` as the first line");
        return;
    };
    if !matches!(entry.node.value, Toml::Integer(1)) {
        let found = entry.node.found();
        fields
            .diags
            .error(entry.node.span, "`version` of the workflow file must be 1")
            .label(format!("found {found}"))
            .help("this build reads version 1 of the format");
    }
}
