//! `[models.*]`: reading the tables, and what their files say. Loads no weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::{DType, Dim, Provider, SandboxMode, SandboxRules, TensorSpec};
use sha2::{Digest as _, Sha256};

use crate::build::resolve;
use crate::diagnostics::Diagnostics;
use crate::fields::{At, Fields};
use crate::fingerprint::hex;
use crate::host::{FileKind, Host, ModelError, ModelFile};
use crate::keys;
use crate::kind::{ProgramContext, ProgramDraft, ResolvedProgram};
use crate::outputs::ModelOutput;
use crate::plan::{ModelPlan, Recycle};
use crate::raw::{RawModel, RawSandbox};
use crate::tree::{Entry, Table};
use crate::tuning::{self, RawTuning};

/// Largest batch that can be asked for.
pub const MAX_BATCH: u64 = 65_536;

/// A model whose file has been read.
#[derive(Debug)]
pub(crate) struct Model {
    pub plan: ModelPlan,
    pub labels: Option<At<Vec<String>>>,
    pub metadata: Arc<BTreeMap<String, String>>,
    /// Version of ONNX's operators; 0 for a program.
    pub opset: i64,
    /// Per input: whether it takes any tensor of fixed shape.
    pub open_inputs: Vec<bool>,
    /// Rows of a batch, where the stage does not say it.
    pub max_batch: Option<u64>,
    /// It runs on the cores, whatever the machine has.
    pub on_cores: bool,
    /// All outputs of a model file; none of a program.
    pub declared: Vec<ModelOutput>,
    /// It has nodes that make maps of tensors.
    pub has_zip_map: bool,
}

pub(crate) fn read(name: At<String>, _: &Entry, table: &Table, diags: &mut Diagnostics) -> RawModel {
    let what = format!("model `{}`", name.value);
    let mut f = Fields::new(what, name.span, table, &keys::MODEL, diags);
    let streams = f.integer("streams");
    let tuning = tuning::read(&mut f, streams.as_ref().is_some_and(|n| n.value > 1));
    RawModel {
        path: f.required_string("path", "name the ONNX file, relative to this file"),
        labels: f.string("labels"),
        max_batch: f.integer("max_batch"),
        memory_limit: at_least_one(&mut f, "memory_limit"),
        streams,
        custom_ops: f.strings("custom_ops").unwrap_or_default(),
        tf32: f.value("tf32"),
        tuning,
        ..workers(name, &mut f)
    }
}

/// The model that stands for a program: the table of its stage says how its workers are run.
pub(crate) fn of_program(
    name: At<String>,
    program: Arc<dyn ProgramDraft>,
    f: &mut Fields<'_, '_>,
) -> RawModel {
    RawModel { program: Some(program), ..workers(name, f) }
}

/// What `keys::WORKERS` say, and nothing else.
fn workers(name: At<String>, f: &mut Fields<'_, '_>) -> RawModel {
    let devices = f.strings("devices").filter(|names| !matches!(&names[..], [one] if one.value == "auto"));
    if let (Some([]), Some(entry)) = (devices.as_deref(), f.entry("devices")) {
        f.bad("devices", entry.node.span, "names no device").help("leave the key out to use all devices");
    }
    RawModel {
        program: None,
        path: None,
        labels: None,
        devices,
        workers: f.integer("workers"),
        max_batch: None,
        memory: at_least_one(f, "memory"),
        memory_limit: None,
        priority: f.value("priority"),
        threads: f.integer("threads").map(|n| n.value as usize),
        streams: None,
        custom_ops: Vec::new(),
        recycle: recycle(f),
        tf32: true,
        tuning: RawTuning::default(),
        sandbox: RawSandbox {
            mode: f.get("sandbox"),
            read: f.strings("sandbox_read").unwrap_or_default(),
            write: f.strings("sandbox_write").unwrap_or_default(),
            env: f.strings("sandbox_env").unwrap_or_default(),
        },
        name,
    }
}

fn at_least_one(f: &mut Fields<'_, '_>, key: &str) -> Option<At<u64>> {
    let bytes = f.bytes(key)?;
    if bytes.value == 0 {
        f.bad(key, bytes.span, "must be more than nothing");
        return None;
    }
    Some(bytes)
}

fn recycle(f: &mut Fields<'_, '_>) -> Recycle {
    let Some(mut f) = f.table("recycle") else { return Recycle::default() };
    if f.entry("batches").is_none() && f.entry("growth").is_none() {
        let message = format!("{} has no effect: it has neither `batches` nor `growth`", f.what);
        f.diags.warning(f.span, message).help("leave it out, or say when a worker is to be replaced");
    }
    Recycle {
        batches: f.integer("batches").map(|n| n.value),
        growth_bytes: at_least_one(&mut f, "growth").map(|b| b.value),
    }
}

/// Reads the model's file, labels and libraries; `None` after an error.
pub(crate) fn load(raw: &RawModel, folder: &Path, host: &dyn Host, diags: &mut Diagnostics) -> Option<Model> {
    let labels = raw.labels.as_ref().map(|l| read_labels(l, folder, host, diags));
    let custom_ops: Vec<_> = raw.custom_ops.iter().map(|l| library(raw, l, folder, host, diags)).collect();
    check_sandbox(raw, folder, host, diags);
    if let Some(program) = &raw.program {
        return connect_program(raw, program.as_ref(), folder, host, diags);
    }
    let written = raw.path.as_ref()?;
    let path = resolve(folder, &written.value, host);
    let file = match host.model(&path) {
        Ok(file) => file,
        Err(error) => {
            let name = &raw.name.value;
            let d = diags.error(written.span, format!("model `{name}`: {error}")).unavailable();
            d.label(format!("looked for `{}`", path.display()));
            match error {
                ModelError::Missing => d.help("paths are relative to the folder of the workflow file"),
                ModelError::NotOnnx(_) => {
                    d.help("name a file in the ONNX format, which often ends in `.onnx`")
                }
                ModelError::Truncated(_) => d.help("copy, download or export it again"),
                _ => d,
            };
            return None;
        }
    };
    let labels = match labels {
        Some(None) => return None,
        labels => labels.flatten(),
    };
    let ModelFile { file_digest, digest, weights, signature, .. } = file;
    if let Some(operator) = signature.training() {
        let what = format!(
            "model `{}` was exported for training: its `{operator}` has `training_mode = 1`",
            raw.name.value
        );
        diags
            .error(written.span, what)
            .label("it would judge an item by the others of its batch")
            .help("export it for inference, in PyTorch after `model.eval()`");
        return None;
    }
    let beside = path.parent().unwrap_or(Path::new(""));
    let weights = weights.into_iter().map(|(name, digest)| (beside.join(name), digest)).collect();
    let (outputs, has_zip_map) = (signature.output_tensors(), signature.has_zip_map());
    let (metadata, opset, declared) = (Arc::new(signature.metadata), signature.opset, signature.outputs);
    let custom_ops = custom_ops.into_iter().collect::<Option<Vec<_>>>()?;
    let mut tuning = raw.tuning.wanted.clone();
    if let Provider::TensorRt(wanted) = &mut tuning.provider {
        wanted.engines = host.engines().map(|folder| folder.join(hex(&digest)));
    }
    let open_inputs = vec![false; signature.inputs.len()];
    let plan = ModelPlan {
        name: raw.name.value.clone(),
        path,
        digest,
        file_digest,
        weights,
        inputs: signature.inputs,
        outputs,
        custom_ops,
        memory_limit: raw.memory_limit.as_ref().map(|m| m.value),
        memory: raw.memory.as_ref().map(|m| m.value),
        tf32: raw.tf32,
        tuning,
        sandbox: sandbox_rules(raw, folder, host),
        code: None,
    };
    Some(Model {
        plan,
        labels,
        metadata,
        opset,
        open_inputs,
        max_batch: None,
        on_cores: false,
        declared,
        has_zip_map,
    })
}

/// Asks a program what it takes and gives; `None` after an error.
fn connect_program(
    raw: &RawModel,
    program: &dyn ProgramDraft,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<Model> {
    let rules = sandbox_rules(raw, folder, host);
    let stage = raw.name.value.split('/').next().unwrap_or_default();
    let mut context = ProgramContext { stage, span: raw.name.span, host, folder, rules: &rules, diags };
    let ResolvedProgram { path, identity, inputs, outputs, max_batch, gpu, code } =
        program.resolve(&mut context)?;
    let digest: [u8; 32] = Sha256::digest(identity).into();
    let open_inputs = inputs.iter().map(|(_, tensor)| tensor.is_none()).collect();
    // What an open input is, is known with what feeds it.
    let tensor = |(name, tensor): (String, Option<TensorSpec>)| {
        let open = TensorSpec { name, dtype: DType::F32, row: Vec::new(), batch: Dim::Dynamic };
        tensor.unwrap_or(open)
    };
    let plan = ModelPlan {
        name: raw.name.value.clone(),
        path,
        digest,
        file_digest: digest,
        weights: Vec::new(),
        inputs: inputs.into_iter().map(tensor).collect(),
        outputs,
        custom_ops: Vec::new(),
        memory_limit: None,
        memory: raw.memory.as_ref().map(|m| m.value),
        tf32: raw.tf32,
        tuning: raw.tuning.wanted.clone(),
        sandbox: rules,
        code: Some(code),
    };
    let metadata = Arc::default();
    Some(Model {
        plan,
        labels: None,
        metadata,
        opset: 0,
        open_inputs,
        max_batch,
        on_cores: !gpu,
        declared: Vec::new(),
        has_zip_map: false,
    })
}

fn sandbox_rules(raw: &RawModel, folder: &Path, host: &dyn Host) -> SandboxRules {
    let paths = |written: &[At<String>]| written.iter().map(|p| resolve(folder, &p.value, host)).collect();
    SandboxRules {
        mode: raw.sandbox.mode.unwrap_or_default(),
        read: paths(&raw.sandbox.read),
        write: paths(&raw.sandbox.write),
        env: raw.sandbox.env.iter().map(|name| name.value.clone()).collect(),
    }
}

/// The places that a key of a table allows to its processes. Reports those that no sandbox can allow.
pub(crate) fn allowed_paths(
    (what, key, is_off): (&str, &str, bool),
    paths: &[At<String>],
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Vec<PathBuf> {
    let mut resolved = Vec::new();
    for written in paths {
        if written.value.trim().is_empty() {
            diags.error(written.span, format!("{what}: `{key}` holds an empty path"));
            continue;
        }
        let path = resolve(folder, &written.value, host);
        if !is_off && host.file_kind(&path) == FileKind::Missing {
            diags
                .warning(written.span, format!("{what}: there is no `{}` to allow", written.value))
                .label(format!("looked for `{}`", path.display()))
                .help("a process may use what is there when it starts; create it before the run");
        }
        resolved.push(path);
    }
    resolved
}

/// Reports what no sandbox can allow.
fn check_sandbox(raw: &RawModel, folder: &Path, host: &dyn Host, diags: &mut Diagnostics) {
    let (name, sandbox) = (&raw.name.value, &raw.sandbox);
    let (what, is_off) = (format!("model `{name}`"), sandbox.mode == Some(SandboxMode::Off));
    for (key, paths) in [("sandbox_read", &sandbox.read), ("sandbox_write", &sandbox.write)] {
        allowed_paths((&what, key, is_off), paths, folder, host, diags);
    }
    for written in &sandbox.env {
        if written.value.is_empty() || written.value.contains(['=', '\0']) {
            diags
                .error(
                    written.span,
                    format!(
                        "model `{name}`: `{}` can be no name of a variable",
                        written.value.escape_debug()
                    ),
                )
                .help("write the name alone: its value is that of the environment of the run");
        }
    }
}

fn library(
    raw: &RawModel,
    written: &At<String>,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<(PathBuf, [u8; 32])> {
    let path = resolve(folder, &written.value, host);
    match host.digest(&path) {
        Ok(digest) => Some((path, digest)),
        Err(error) => {
            let name = &raw.name.value;
            diags
                .error(
                    written.span,
                    format!("model `{name}`: operator library `{}` cannot be read: {error}", written.value),
                )
                .label(format!("looked for `{}`", path.display()))
                .unavailable();
            None
        }
    }
}

/// Class names that are read, at most: each is copied for every stage that uses it.
const MOST_LABELS: usize = 1 << 20;

/// Reads class names, one per line. Blank lines at the end do not count.
pub fn read_labels(
    written: &At<String>,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<At<Vec<String>>> {
    let help = "a labels file is text with one class name per line, in the order of the classes";
    let text = read_text("labels", help, written, folder, host, diags)?;
    let n = text.trim_end().lines().count();
    if n > MOST_LABELS {
        let message = format!("labels `{}` has {n} lines, and at most {MOST_LABELS} are read", written.value);
        diags.error(written.span, message).help(help);
        return None;
    }
    Some(At::new(text.trim_end().lines().map(|l| l.trim().to_owned()).collect(), written.span))
}

/// Reads a text that the file names, without its byte order mark. That it cannot be read, is no UTF-8, or has nothing but blanks is reported:
/// `what` is the key that names it, `help` what it should be.
pub fn read_text(
    what: &str,
    help: &str,
    written: &At<String>,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<String> {
    let path = resolve(folder, &written.value, host);
    let text = host.read(&path).map_err(|error| error.to_string()).and_then(|bytes| {
        let text = String::from_utf8(bytes).map_err(|_| "it is no UTF-8 text".to_owned())?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        if text.trim_end().is_empty() { Err("it is empty".into()) } else { Ok(text.to_owned()) }
    });
    text.map_err(|reason| {
        diags
            .error(written.span, format!("{what} `{}` cannot be read: {reason}", written.value))
            .label(format!("looked for `{}`", path.display()))
            .help(help);
    })
    .ok()
}
