//! What a workflow file says to those who serve it: its models, each for a plan in which it stands alone, and `[serve]`. Looks into no model file.

use std::path::{Path, PathBuf};

use crate::build::PlanOptions;
use crate::diagnostics::Diagnostics;
use crate::fields::Fields;
use crate::key::key;
use crate::plan::ServeSettings;
use crate::tree::{self, Table, Toml};
use crate::workflow;

/// What a workflow file says of a model.
#[derive(Debug, Clone, Default)]
pub struct ModelTables {
    pub name: String,
    pub path: PathBuf,
    /// `[models.NAME]`
    pub table: Table,
    /// What holds for everything in the file: limits, devices, variables.
    pub shared: Table,
}

/// Tables that a plan of one model has not, or has its own of.
const OF_GRAPHS: [&str; 10] =
    ["version", "name", "sources", "models", "stages", "sinks", "tasks", "best", "pipelines", "serve"];

/// The models of the workflow `text` of the file `file` that no stage runs, and whether it has sources, too.
///
/// # Errors
/// It is no TOML, or a model has no path. What is wrong with its other keys a plan says.
pub fn model_tables(
    text: &str,
    file: &Path,
    options: &PlanOptions,
) -> Result<(Vec<ModelTables>, bool), Diagnostics> {
    let (root, mut found) = read(text, file, options);
    let shared = root.entries.iter().filter(|entry| !OF_GRAPHS.contains(&&*entry.key)).cloned();
    let shared = Table { span: root.span, entries: shared.collect() };
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut models = Vec::new();
    let entries = match root.get("models").map(|models| &models.node.value) {
        Some(Toml::Table(models)) => &models.entries[..],
        _ => &[],
    };
    let stages = match root.get("stages").map(|stages| &stages.node.value) {
        Some(Toml::Table(stages)) => &stages.entries[..],
        _ => &[],
    };
    let is_used = |name: &str| stages.iter().any(|stage| names_model(&stage.node.value, name));
    for entry in entries.iter().filter(|entry| !is_used(&entry.key)) {
        let Toml::Table(table) = &entry.node.value else { continue };
        match table.get("path").map(|path| &path.node.value) {
            Some(Toml::String(path)) => models.push(ModelTables {
                name: entry.key.clone(),
                path: folder.join(path),
                table: table.clone(),
                shared: shared.clone(),
            }),
            _ => drop(
                found
                    .error(entry.key_span, format!("model `{}` has no file", entry.key))
                    .help("path = \"model.onnx\""),
            ),
        }
    }
    let has_sources = root.get("sources").is_some();
    if found.has_errors() { Err(found) } else { Ok((models, has_sources)) }
}

/// `[serve]` of the workflow `text` of the file `file`, with the token that its `token_file` holds.
///
/// # Errors
/// It is no TOML, or the table is wrong.
pub fn serve_settings(
    text: &str,
    file: &Path,
    options: &PlanOptions,
) -> Result<(ServeSettings, Option<String>), Diagnostics> {
    let (root, mut found) = read(text, file, options);
    let keys = [key("serve", "table", "none", "the table")];
    let serve = root.entries.iter().filter(|entry| entry.key == "serve").cloned().collect();
    let table = Table { span: root.span, entries: serve };
    let mut fields = Fields::new("the workflow file".into(), root.span, &table, &keys, &mut found);
    let serve = workflow::serve(&mut fields);
    let folder = file.parent().unwrap_or(Path::new("/"));
    let token = serve.token_file.as_ref().and_then(|token_file| {
        let token = token_of(&folder.join(&token_file.value));
        token.map_err(|why| found.error(token_file.span, why)).ok()
    });
    if found.has_errors() { Err(found) } else { Ok((serve, token)) }
}

/// The token that a file holds, or why there is none.
pub fn token_of(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the token file `{}` cannot be read: {error}", file.display()))?;
    match text.trim() {
        "" => Err(format!("the token file `{}` is empty: it holds the token, as text", file.display())),
        token => Ok(token.to_owned()),
    }
}

fn read(text: &str, file: &Path, options: &PlanOptions) -> (Table, Diagnostics) {
    let mut found = Diagnostics::new(&file.display().to_string(), text, options.audience);
    let mut root = tree::parse(text, &mut found).unwrap_or_default();
    for (key, value) in &options.set {
        tree::set(&mut root, key, value, &mut found);
    }
    (root, found)
}

fn names_model(stage: &Toml, name: &str) -> bool {
    let Toml::Table(stage) = stage else { return false };
    matches!(stage.get("model").map(|model| &model.node.value), Some(Toml::String(model)) if model == name)
}
