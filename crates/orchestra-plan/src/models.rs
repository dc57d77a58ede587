//! What the files of models and the programs of stages say. Loads no weights.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::{DType, Dim, Provider, SandboxMode, SandboxRules, TensorSpec};
use sha2::{Digest as _, Sha256};

use crate::cx::Cx;
use crate::diagnostics::{Diagnostics, Reported, Span};
use crate::digest::hex;
use crate::fields::Spanned;
use crate::files::{FileKind, Files};
use crate::kind::{ProgramContext, ResolvedProgram};
use crate::model_file::{ModelError, ModelFile, Signature};
use crate::nearest::suggestion;
use crate::plan::ModelPlan;
use crate::workflow::{KnownModel, ModelNode, StageProgram};

/// Largest batch that can be asked for.
pub const MAX_BATCH: u64 = 65_536;

/// Reads the model's file, labels and libraries, or asks its program.
pub(crate) fn connect(model: &ModelNode, cx: &mut Cx<'_>) -> Result<KnownModel, Reported> {
    let labels = model.labels.as_ref().map(|l| read_labels(l, &cx.folder, cx.host, &mut cx.diags));
    let custom_ops: Vec<_> = model.custom_ops.iter().map(|written| library(model, written, cx)).collect();
    check_sandbox(model, cx);
    if let Some(program) = &model.program {
        return connect_program(model, program, cx);
    }
    let written = model.path.as_ref().ok_or(Reported)?;
    let path = cx.resolve(&written.value);
    let file = model_file(&model.name.value, written.span, &path, cx)?;
    let labels = labels.transpose()?;
    let ModelFile { file_digest, digest, weights, mut signature, .. } = file;
    turn_inputs(model, &mut signature, cx)?;
    let beside = path.parent().unwrap_or(Path::new(""));
    let weights = weights.into_iter().map(|(name, digest)| (beside.join(name), digest)).collect();
    let (outputs, has_zip_map) = (signature.output_tensors(), signature.has_zip_map());
    let custom_ops = custom_ops.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut tuning = model.tuning.wanted.clone();
    if let Provider::TensorRt(wanted) = &mut tuning.provider {
        wanted.engines = cx.host.engines().map(|folder| folder.join(hex(&digest)));
    }
    let plan = ModelPlan {
        name: model.name.value.clone(),
        path,
        digest,
        file_digest,
        weights,
        inputs: signature.inputs,
        text_inputs: signature.text_inputs,
        scalars: signature.scalars,
        batch_axes: signature.batch_axes,
        outputs,
        custom_ops,
        memory_limit: model.memory_limit.map(NonZeroU64::get),
        memory: model.asked.memory.as_ref().map(|m| m.value.get()),
        tf32: model.tf32,
        tuning,
        sandbox: sandbox_rules(model, cx),
        code: None,
    };
    Ok(KnownModel {
        open_inputs: vec![false; plan.inputs.len()],
        plan,
        labels,
        metadata: Arc::new(signature.metadata),
        made_by: Arc::new(signature.made_by),
        opset: signature.opset,
        declared: signature.outputs,
        has_zip_map,
        ..KnownModel::default()
    })
}

/// Has items lie along the axes that the file says.
fn turn_inputs(model: &ModelNode, signature: &mut Signature, cx: &mut Cx<'_>) -> Result<(), Reported> {
    for (name, axis) in &model.batch_axes {
        let (model, input) = (&model.name.value, &name.value);
        let Some(tensor) = signature.inputs.iter_mut().find(|tensor| tensor.name == *input) else {
            let names = signature.inputs.iter().map(|tensor| &*tensor.name);
            let message =
                format!("`batch_axis` of model `{model}`: it has no input `{input}` with dimensions");
            return cx.error(name.span, message).help(suggestion("inputs", input, names)).fail();
        };
        let turned = signature.batch_axes.iter().position(|(turned, _)| turned == input);
        let before = turned.map_or(0, |at| signature.batch_axes.remove(at).1);
        let mut dims = tensor.row.clone();
        dims.insert(before.min(dims.len()), tensor.batch);
        if *axis >= dims.len() {
            let message = format!("`batch_axis` of model `{model}`: input `{input}` has no axis {axis}");
            let help = format!("it has {} dimensions: the last one is axis {}", dims.len(), dims.len() - 1);
            return cx.error(name.span, message).help(help).fail();
        }
        tensor.batch = dims.remove(*axis);
        tensor.row = dims;
        if *axis > 0 {
            signature.batch_axes.push((input.clone(), *axis));
        }
    }
    Ok(())
}

/// Reads the file of a model; reports one that cannot be run.
fn model_file(name: &str, span: Span, path: &Path, cx: &mut Cx<'_>) -> Result<ModelFile, Reported> {
    let file = cx.host.model(path).or_else(|error| {
        let d = cx.error(span, format!("model `{name}`: {error}")).unavailable();
        d.label(format!("looked for `{}`", path.display()));
        match error {
            ModelError::Missing => d.help("paths are relative to the folder of the workflow file"),
            ModelError::NotOnnx(_) => d.help("name a file in the ONNX format, which often ends in `.onnx`"),
            ModelError::Truncated(_) => d.help("copy, download or export it again"),
            _ => d,
        };
        d.fail()
    })?;
    let Some(operator) = file.signature.training() else { return Ok(file) };
    cx.error(
        span,
        format!("model `{name}` was exported for training: its `{operator}` has `training_mode = 1`"),
    )
    .label("it would judge an item by the others of its batch")
    .help("export it for inference, in PyTorch after `model.eval()`")
    .fail()
}

/// Asks a program what it takes and gives.
fn connect_program(
    model: &ModelNode,
    program: &StageProgram,
    cx: &mut Cx<'_>,
) -> Result<KnownModel, Reported> {
    let rules = sandbox_rules(model, cx);
    let mut context = ProgramContext {
        what: &format!("stage `{}`", program.stage),
        span: model.name.span,
        host: cx.host,
        folder: &cx.folder,
        rules: &rules,
        diags: &mut cx.diags,
    };
    let ResolvedProgram { path, identity, inputs, outputs, max_batch, gpu, drops, code } =
        program.draft.resolve(&mut context)?;
    let digest: [u8; 32] = Sha256::digest(identity).into();
    let open_inputs = inputs.iter().map(|(_, tensor)| tensor.is_none()).collect();
    // What an open input is, is known with what feeds it.
    let tensor = |(name, tensor): (String, Option<TensorSpec>)| {
        let open = TensorSpec { name, dtype: DType::F32, row: Vec::new(), batch: Dim::Dynamic };
        tensor.unwrap_or(open)
    };
    let plan = ModelPlan {
        name: model.name.value.clone(),
        path,
        digest,
        file_digest: digest,
        inputs: inputs.into_iter().map(tensor).collect(),
        outputs: outputs.iter().filter_map(|output| output.ty.tensor().cloned()).collect(),
        memory: model.asked.memory.as_ref().map(|m| m.value.get()),
        tf32: model.tf32,
        sandbox: rules,
        code: Some(code),
        ..ModelPlan::default()
    };
    let on_cores = !gpu;
    Ok(KnownModel { plan, open_inputs, gives: outputs, max_batch, on_cores, drops, ..KnownModel::default() })
}

fn sandbox_rules(model: &ModelNode, cx: &Cx<'_>) -> SandboxRules {
    let paths = |written: &[Spanned<String>]| written.iter().map(|path| cx.resolve(&path.value)).collect();
    SandboxRules {
        mode: model.asked.sandbox.unwrap_or_default(),
        read: paths(&model.asked.sandbox_read),
        write: paths(&model.asked.sandbox_write),
        env: model.asked.sandbox_env.iter().map(|name| name.value.clone()).collect(),
    }
}

/// The places that a key of a table allows to its processes. Reports those that no sandbox can allow.
pub(crate) fn allowed_paths(
    (what, key, is_off): (&str, &str, bool),
    paths: &[Spanned<String>],
    cx: &mut Cx<'_>,
) -> Vec<PathBuf> {
    let mut resolved = Vec::new();
    for written in paths {
        if written.value.trim().is_empty() {
            cx.error(written.span, format!("{what}: `{key}` holds an empty path"));
            continue;
        }
        let path = cx.resolve(&written.value);
        if !is_off && cx.host.file_kind(&path) == FileKind::Missing {
            cx.warning(written.span, format!("{what}: there is no `{}` to allow", written.value))
                .label(format!("looked for `{}`", path.display()))
                .help("a process may use what is there when it starts; create it before the run");
        }
        resolved.push(path);
    }
    resolved
}

/// Reports what no sandbox can allow.
fn check_sandbox(model: &ModelNode, cx: &mut Cx<'_>) {
    let (what, asked) = (format!("model `{}`", model.name.value), &model.asked);
    let is_off = asked.sandbox == Some(SandboxMode::Off);
    for (key, paths) in [("sandbox_read", &asked.sandbox_read), ("sandbox_write", &asked.sandbox_write)] {
        allowed_paths((&what, key, is_off), paths, cx);
    }
    for written in &asked.sandbox_env {
        if written.value.is_empty() || written.value.contains(['=', '\0']) {
            let name = written.value.escape_debug();
            cx.error(written.span, format!("{what}: `{name}` can be no name of a variable"))
                .help("write the name alone: its value is that of the environment of the run");
        }
    }
}

fn library(
    model: &ModelNode,
    written: &Spanned<String>,
    cx: &mut Cx<'_>,
) -> Result<(PathBuf, [u8; 32]), Reported> {
    let path = cx.resolve(&written.value);
    let digest = cx.host.digest(&path).or_else(|error| {
        let (name, library) = (&model.name.value, &written.value);
        let message = format!("model `{name}`: operator library `{library}` cannot be read: {error}");
        let label = format!("looked for `{}`", path.display());
        cx.error(written.span, message).label(label).unavailable().fail()
    })?;
    Ok((path, digest))
}

/// Lines of a text that are read, at most: each is copied for every stage that uses it.
const MOST_LINES: usize = 1 << 20;

/// Reads class names, one per line. Blank lines at the end do not count.
pub fn read_labels(
    written: &Spanned<String>,
    folder: &Path,
    host: &dyn Files,
    diags: &mut Diagnostics,
) -> Result<Spanned<Vec<String>>, Reported> {
    let help = "a labels file is text with one class name per line, in the order of the classes";
    let text = read_text("labels", help, written, folder, host, diags)?;
    let lines = text.trim_end().lines();
    Ok(Spanned::new(lines.map(|line| line.trim().to_owned()).collect(), written.span))
}

/// Reads a text that the file names, without its byte order mark. That it cannot be read, is no UTF-8, has nothing but blanks or too many lines is reported:
/// `what` is the key that names it, `help` what it should be.
pub fn read_text(
    what: &str,
    help: &str,
    written: &Spanned<String>,
    folder: &Path,
    host: &dyn Files,
    diags: &mut Diagnostics,
) -> Result<String, Reported> {
    let path = host.resolve(&folder.join(&written.value));
    let text = host.read(&path).map_err(|error| error.to_string()).and_then(|bytes| {
        let text = String::from_utf8(bytes).map_err(|_| "it is no UTF-8 text".to_owned())?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        match () {
            () if text.trim_end().is_empty() => Err("it is empty".into()),
            () if text.lines().nth(MOST_LINES).is_some() => {
                Err(format!("it has more than {MOST_LINES} lines"))
            }
            () => Ok(text.to_owned()),
        }
    });
    text.or_else(|reason| {
        diags
            .error(written.span, format!("{what} `{}` cannot be read: {reason}", written.value))
            .label(format!("looked for `{}`", path.display()))
            .help(help)
            .fail()
    })
}
