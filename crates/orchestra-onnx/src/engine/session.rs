//! Opens a session as the plan wants it. It neither checks tensors nor runs anything.

use std::path::Path;

use orchestra_core::{DeviceKind, Provider, ReadOutput};
use orchestra_worker::frames::Load;
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};

use super::graph_edit::{EditError, GraphEdit};
use super::pixel_graph::Front;
use super::tensorrt::{self, EngineCache};
use super::{
    axis_graph, constant_graph, cpu_arena, cuda, errors, largest_graph, pixel_graph, rows_graph, trim_graph,
};
use crate::spec::OnnxSpec;
use orchestra_worker::load_error::LoadError;

/// A session for the model, on the device. What TensorRT compiles is kept among `engines`.
pub fn open(
    environment: &Environment,
    load: &Load,
    spec: &OnnxSpec,
    engines: Option<&EngineCache>,
) -> Result<Session, LoadError> {
    let mut builder = options(environment, load.threads).map_err(errors::load)?;
    if let DeviceKind::Cuda { .. } = load.device {
        // First of all: custom operators may need these libraries, too.
        cuda::preload(spec.preload.iter().filter(|library| is_needed(library, spec)));
    }
    for (library, _) in &spec.custom_ops {
        let registered = builder.with_operator_library(library);
        builder = registered.map_err(|e| {
            LoadError::permanent(format!(
                "custom operators `{}` cannot be registered: {}; check `custom_ops` of the model",
                library.display(),
                errors::words(e)
            ))
        })?;
    }
    if let (DeviceKind::Cuda { .. }, Provider::TensorRt(wanted)) = (&load.device, &spec.tuning.provider) {
        // Before CUDA: what is registered first takes what it can.
        let registered = builder.with_execution_providers([tensorrt::provider(load, spec, wanted, engines)]);
        builder = registered.map_err(|e| tensorrt::not_usable(&e.into()))?;
    }
    if let DeviceKind::Cuda { .. } = load.device {
        let registered = builder.with_execution_providers([cuda::provider(spec)]);
        builder = registered.map_err(|e| cuda::not_usable(&e.into()))?;
    }
    let committed = match edited(load, spec)? {
        None => builder.commit_from_file(&spec.model),
        Some(model) => from_memory(builder, spec, &model),
    };
    committed.map_err(|e| {
        let mut refused = errors::load(e);
        if tensorrt::is_refusal_of_parts(&refused.error) {
            refused.error += "; TensorRT takes only parts of this model, whose shapes it does not know: leave `provider = \"tensorrt\"` out";
        }
        LoadError {
            class: refused.class,
            error: format!("onnx runtime refuses model `{}`: {}", spec.model.display(), refused.error),
        }
    })
}

/// Whether a library to preload is of use: those of TensorRT are large, and other models do without.
fn is_needed(library: &Path, spec: &OnnxSpec) -> bool {
    matches!(spec.tuning.provider, Provider::TensorRt(_)) || !tensorrt::is_library(library)
}

/// The model with nodes in front of its inputs that take pixels or are trimmed, and behind its outputs that have no rows as they are, or of
/// which the largest numbers are read. `None`: the file will do.
fn edited(load: &Load, spec: &OnnxSpec) -> Result<Option<Vec<u8>>, LoadError> {
    let fronts: Vec<Front<'_>> = load
        .layout
        .inputs
        .iter()
        .zip(&spec.pixel_inputs)
        .filter_map(|(span, pixels)| Some(Front { span, pixels: pixels.as_ref()? }))
        .collect();
    let behind: Vec<&ReadOutput> = spec.outputs.iter().filter(|output| output.needs_nodes()).collect();
    let is_as_it_is =
        fronts.is_empty() && spec.trim.is_none() && spec.constants.is_empty() && spec.batch_axes.is_empty();
    if is_as_it_is && behind.is_empty() && spec.largest_outputs.is_empty() {
        return Ok(None);
    }
    let path = &spec.model.display();
    let permanent = LoadError::permanent;
    let refused =
        |why: &'static str| move |what: EditError| permanent(format!("model `{path}` cannot {why}: {what}"));
    let model =
        std::fs::read(&spec.model).map_err(|e| permanent(format!("model `{path}` cannot be read: {e}")))?;
    let mut edit = GraphEdit::of(&model).map_err(refused("be edited"))?;
    for front in &fronts {
        pixel_graph::put_in_front(&mut edit, front).map_err(|what| {
            let help = "use `normalize = \"host\"` in its image stage";
            permanent(format!("model `{path}` cannot take pixels: {what}; {help}"))
        })?;
    }
    if let Some(trim) = &spec.trim {
        let span = load.layout.inputs.get(trim.input);
        let span =
            span.ok_or_else(|| permanent(format!("model `{path}` has no input {} to trim", trim.input)))?;
        trim_graph::put_in_front(&mut edit, span, trim).map_err(refused("be given trimmed rows"))?;
    }
    for (tensor, axis) in &spec.batch_axes {
        axis_graph::put_in_front(&mut edit, tensor, *axis).map_err(refused("be given rows of an input"))?;
    }
    for constant in &spec.constants {
        constant_graph::put_in_place(&mut edit, constant).map_err(refused("be given a constant"))?;
    }
    for output in behind {
        rows_graph::put_behind(&mut edit, output).map_err(|what| {
            permanent(format!(
                "model `{path}` cannot give rows of its output `{}`: {what}; export it with newer operators, or with the batch as the first \
                 dimension",
                output.tensor.name
            ))
        })?;
    }
    for output in &spec.largest_outputs {
        largest_graph::put_behind(&mut edit, output, &spec.rows_name(output))
            .map_err(refused("give its largest numbers alone"))?;
    }
    edit.apply().map(Some).map_err(refused("be edited"))
}

/// A session for a model in memory, whose external weights lie beside its file.
fn from_memory(builder: SessionBuilder, spec: &OnnxSpec, model: &[u8]) -> ort::Result<Session> {
    let folder = spec.model.parent().unwrap_or(Path::new("/")).to_string_lossy();
    let mut builder =
        builder.with_config_entry("session.model_external_initializers_file_folder_path", folder)?;
    builder.commit_from_memory(model)
}

fn options(environment: &Environment, threads: usize) -> ort::Result<SessionBuilder> {
    Ok(Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads.max(1))?
        .with_inter_threads(1)?
        .with_parallel_execution(false)?
        // A pattern is learned per shape; batches come in many sizes.
        .with_memory_pattern(false)?
        // Threads that spin between batches take the cores from the loaders.
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?
        .with_config_entry(cpu_arena::USE_IT.0, cpu_arena::USE_IT.1)?
        .with_config_entry("session.record_ep_graph_assignment_info", "1")?)
}
