//! Opens a session as the plan wants it, and says where its nodes run. It neither checks tensors nor runs anything.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;

use orchestra_core::{DeviceKind, ErrorClass, Provider};
use orchestra_worker::frames::Load;
use ort::AsPointer;
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};

use super::largest_graph::put_behind;
use super::pixel_graph::{Front, put_in_front};
use super::tensorrt::{self, Engines};
use super::{cpu_arena, cuda, errors, graphs};
use crate::spec::OnnxSpec;
use orchestra_worker::serve::LoadError;

/// A session for the model, on the device. What TensorRT compiles is kept among `engines`.
pub fn open(
    environment: &Environment,
    load: &Load,
    spec: &OnnxSpec,
    engines: Option<&Engines>,
) -> Result<Session, LoadError> {
    let mut builder = options(environment, load.threads).map_err(|e| errors::load(&e.to_string()))?;
    if let DeviceKind::Cuda { .. } = load.device {
        // First of all: custom operators may need these libraries, too.
        cuda::preload(spec.preload.iter().filter(|library| is_needed(library, spec)));
    }
    for (library, _) in &spec.custom_ops {
        let registered = builder.with_operator_library(library);
        builder = registered.map_err(|e| LoadError {
            class: ErrorClass::Permanent,
            error: format!(
                "custom operators `{}` cannot be registered: {e}; check `custom_ops` of the model",
                library.display()
            ),
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
        let mut refused = errors::load(&e.to_string());
        if graphs::is_refusal(&refused.error) {
            refused.error += "; without `cuda_graphs` the model runs kernel by kernel";
        }
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

/// The model with nodes in front of its inputs that take pixels, and behind its outputs of which the largest numbers are read; `None` where there
/// are none.
fn edited(load: &Load, spec: &OnnxSpec) -> Result<Option<Vec<u8>>, LoadError> {
    let fronts: Vec<Front<'_>> = load
        .layout
        .inputs
        .iter()
        .zip(&spec.pixel_inputs)
        .filter_map(|(region, pixels)| Some(Front { region, pixels: pixels.as_ref()? }))
        .collect();
    if fronts.is_empty() && spec.largest_outputs.is_empty() {
        return Ok(None);
    }
    let path = spec.model.display();
    let refused = |error: String| LoadError { class: ErrorClass::Permanent, error };
    let mut model =
        std::fs::read(&spec.model).map_err(|e| refused(format!("model `{path}` cannot be read: {e}")))?;
    if !fronts.is_empty() {
        model = put_in_front(&model, &fronts).map_err(|what| {
            let help = "use `normalize = \"host\"` in its image stage";
            refused(format!("model `{path}` cannot take pixels: {what}; {help}"))
        })?;
    }
    if !spec.largest_outputs.is_empty() {
        model = put_behind(&model, &spec.largest_outputs).map_err(|what| {
            refused(format!("model `{path}` cannot give its largest numbers alone: {what}"))
        })?;
    }
    Ok(Some(model))
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

/// Nodes per execution provider. An error where a GPU's model would run elsewhere under its name: if the provider that it asks for has no node,
/// or if too many others stay on the cores.
pub fn providers(session: &Session, load: &Load, spec: &OnnxSpec) -> Result<Vec<(String, u32)>, LoadError> {
    let nodes = assignment(session).map_err(|e| errors::load(&e.to_string()))?;
    let mut assigned = BTreeMap::<String, u32>::new();
    for node in &nodes {
        *assigned.entry(node.provider.clone()).or_default() += 1;
    }
    let assigned: Vec<(String, u32)> = assigned.into_iter().collect();
    if let DeviceKind::Cuda { .. } = load.device {
        on_the_gpu(&nodes, &assigned, spec)
            .map_err(|error| LoadError { class: ErrorClass::Permanent, error })?;
    }
    Ok(assigned)
}

/// The provider that takes what no other one does.
const CORES: &str = "CPUExecutionProvider";

/// Nodes that stay on the cores, of those that could run on a GPU: more than this part of them is too many.
const FEW: f64 = 0.1;

/// Operators that compute shapes and places, which ONNX Runtime keeps on the cores on purpose where it can tell.
const OF_SHAPES: [&str; 25] = [
    "Add",
    "Cast",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Div",
    "Equal",
    "Expand",
    "Gather",
    "Greater",
    "Identity",
    "Less",
    "Max",
    "Min",
    "Mul",
    "Range",
    "ReduceProd",
    "Reshape",
    "Shape",
    "Size",
    "Slice",
    "Squeeze",
    "Sub",
    "Unsqueeze",
    "Where",
];

/// Whether a model runs on the GPU that it is for.
fn on_the_gpu(nodes: &[Node], assigned: &[(String, u32)], spec: &OnnxSpec) -> Result<(), String> {
    let (wanted, instead) = match &spec.tuning.provider {
        Provider::Cuda => (cuda::NAME, "use `devices = [\"cpu\"]` for it"),
        Provider::TensorRt(_) => (tensorrt::NAME, "leave `provider = \"tensorrt\"` out to run it on CUDA"),
    };
    if assigned.iter().all(|(name, _)| name != wanted) {
        return Err(format!(
            "no node of the model runs on `{wanted}` (nodes per provider: {assigned:?}); {instead}"
        ));
    }
    let counts = |node: &&Node| node.provider != CORES || !OF_SHAPES.contains(&&node.operator[..]);
    let (all, stay): (usize, Vec<&Node>) = {
        let counted = || nodes.iter().filter(counts);
        (counted().count(), counted().filter(|node| node.provider == CORES).collect())
    };
    if spec.tuning.allow_cpu_nodes || stay.len() as f64 <= FEW * all as f64 {
        return Ok(());
    }
    const NAMED: usize = 8;
    let names: Vec<String> =
        stay.iter().take(NAMED).map(|node| format!("{} `{}`", node.operator, node.name)).collect();
    let more = if stay.len() > NAMED { format!(" and {} more", stay.len() - NAMED) } else { String::new() };
    Err(format!(
        "{} of {all} nodes would stay on the cores, because no provider of the GPU has them: {}{more}; set `allow_cpu_nodes = true` if that is meant, \
         or `devices = [\"cpu\"]`",
        stay.len(),
        names.join(", ")
    ))
}

/// A node of the optimised graph, and who runs it.
#[derive(Debug, Clone)]
struct Node {
    provider: String,
    operator: String,
    name: String,
}

/// All nodes of the session's graph.
fn assignment(session: &Session) -> ort::Result<Vec<Node>> {
    let api = ort::api();
    let (mut subgraphs, mut count) = (std::ptr::null(), 0);
    // SAFETY: the session is alive, and the out pointers are valid; the array belongs to the session.
    let status = unsafe { (api.Session_GetEpGraphAssignmentInfo)(session.ptr(), &mut subgraphs, &mut count) };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    let mut all = Vec::new();
    for at in 0..count {
        // SAFETY: the array has `count` entries, which live as long as the session.
        let subgraph = unsafe { *subgraphs.add(at) };
        // SAFETY: as above; the string lives as long as the session.
        let provider = unsafe { text(|name| (api.EpAssignedSubgraph_GetEpName)(subgraph, name)) }?;
        let (mut nodes, mut node_count) = (std::ptr::null(), 0);
        // SAFETY: as above; the array belongs to the session.
        let status = unsafe { (api.EpAssignedSubgraph_GetNodes)(subgraph, &mut nodes, &mut node_count) };
        // SAFETY: the status was just returned by the API.
        unsafe { ort::Error::result_from_status(status) }?;
        for at in 0..node_count {
            // SAFETY: the array has `node_count` entries, which live as long as the session.
            let node = unsafe { *nodes.add(at) };
            // SAFETY: as above; the strings live as long as the session.
            let (operator, name) = unsafe {
                (
                    text(|name| (api.EpAssignedNode_GetOperatorType)(node, name))?,
                    text(|name| (api.EpAssignedNode_GetName)(node, name))?,
                )
            };
            all.push(Node { provider: provider.clone(), operator, name });
        }
    }
    Ok(all)
}

/// A text that a call of the API gives.
///
/// # Safety
/// `get` is such a call: it leaves a pointer to a string that ends with 0 and is not freed before this returns, or gives an error.
unsafe fn text(
    get: impl FnOnce(*mut *const std::ffi::c_char) -> ort::sys::OrtStatusPtr,
) -> ort::Result<String> {
    let mut found = std::ptr::null();
    let status = get(&mut found);
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    // SAFETY: the call succeeded, so it is a string that ends with 0.
    Ok(unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(of: &[(&str, &str, usize)]) -> Vec<Node> {
        let node = |provider: &str, operator: &str, n| Node {
            provider: provider.to_owned(),
            operator: operator.to_owned(),
            name: format!("/{operator}_{n}"),
        };
        of.iter()
            .flat_map(|(provider, operator, n)| (0..*n).map(move |n| node(provider, operator, n)))
            .collect()
    }

    fn judged(nodes: &[Node], allow_cpu_nodes: bool) -> Result<(), String> {
        let mut spec = OnnxSpec::default();
        spec.tuning.allow_cpu_nodes = allow_cpu_nodes;
        let assigned: Vec<(String, u32)> = nodes.iter().map(|node| (node.provider.clone(), 1)).collect();
        on_the_gpu(nodes, &assigned, &spec)
    }

    #[test]
    fn a_model_of_which_much_stays_on_the_cores_is_refused_with_names_unless_that_is_allowed() {
        let half = nodes(&[(cuda::NAME, "Conv", 10), (CORES, "NonMaxSuppression", 10)]);
        let why = judged(&half, false).unwrap_err();
        assert!(why.contains("10 of 20 nodes would stay on the cores"), "{why}");
        assert!(why.contains("NonMaxSuppression `/NonMaxSuppression_7` and 2 more"), "{why}");
        assert_eq!(judged(&half, true), Ok(()));
        assert_eq!(
            judged(&nodes(&[(cuda::NAME, "Conv", 10), (CORES, "NonMaxSuppression", 1)]), false),
            Ok(())
        );
    }

    #[test]
    fn nodes_that_compute_shapes_do_not_count() {
        let shapes = nodes(&[(cuda::NAME, "Conv", 4), (CORES, "Gather", 30), (CORES, "Unsqueeze", 30)]);
        assert_eq!(judged(&shapes, false), Ok(()));
    }

    #[test]
    fn a_provider_without_nodes_is_refused_whatever_is_allowed() {
        let none = nodes(&[(CORES, "Conv", 4)]);
        assert!(judged(&none, true).unwrap_err().contains("no node of the model runs on"));
    }
}
