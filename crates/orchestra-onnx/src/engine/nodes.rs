//! Where the nodes of a session run, and whether that is where the plan wants them. It opens and runs nothing.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};

use orchestra_core::{DeviceKind, ErrorClass, Provider};
use orchestra_worker::frames::Load;
use orchestra_worker::serve::LoadError;
use ort::AsPointer;
use ort::session::Session;

use super::shape_nodes::{ShapeNodes, shape_nodes};
use super::{cuda, errors, rows_graph, tensorrt};
use crate::spec::OnnxSpec;

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
        // A file that is no protocol buffer message tells nothing of its nodes, and ONNX Runtime has read it.
        let of_shapes = || std::fs::read(&spec.model).ok().and_then(|model| shape_nodes(&model).ok());
        on_the_gpu(&nodes, &assigned, spec, || of_shapes().unwrap_or_default())
            .map_err(|error| LoadError { class: ErrorClass::Permanent, error })?;
    }
    Ok(assigned)
}

/// The provider that takes what no other one does.
const CORES: &str = "CPUExecutionProvider";

/// Nodes that stay on the cores, of those that could run on a GPU: more than this part of them is too many.
const FEW: f64 = 0.1;

/// Whether a model runs on the GPU that it is for. `of_shapes` reads the model; it is called where many nodes stay on the cores.
fn on_the_gpu(
    nodes: &[Node],
    assigned: &[(String, u32)],
    spec: &OnnxSpec,
    of_shapes: impl FnOnce() -> ShapeNodes,
) -> Result<(), String> {
    let (wanted, instead) = match &spec.tuning.provider {
        Provider::Cuda => (cuda::NAME, "use `devices = [\"cpu\"]` for it"),
        Provider::TensorRt(_) => (tensorrt::NAME, "leave `provider = \"tensorrt\"` out to run it on CUDA"),
    };
    if assigned.iter().all(|(name, _)| name != wanted) {
        return Err(format!(
            "no node of the model runs on `{wanted}` (nodes per provider: {assigned:?}); {instead}"
        ));
    }
    if spec.tuning.allow_cpu_nodes {
        return Ok(());
    }
    // Shapes of what is put behind a model are computed on the cores, as they should.
    let stays = |node: &&Node| node.provider == CORES && !node.name.starts_with(rows_graph::NODES);
    let (mut all, mut stay) = (nodes.len(), nodes.iter().filter(|node| stays(node)).collect());
    let is_few = |stay: &Vec<&Node>, all: usize| stay.len() as f64 <= FEW * all as f64;
    if is_few(&stay, all) {
        return Ok(());
    }
    let mut of_shapes = of_shapes();
    stay.retain(|node| match of_shapes.get_mut(&(node.operator.clone(), node.name.clone())) {
        Some(count @ 1..) => {
            *count -= 1;
            all -= 1;
            false
        }
        _ => true,
    });
    if is_few(&stay, all) {
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

/// A node of the optimised graph, and the provider that runs it.
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
unsafe fn text(get: impl FnOnce(*mut *const c_char) -> ort::sys::OrtStatusPtr) -> ort::Result<String> {
    let mut found = std::ptr::null();
    let status = get(&mut found);
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    // SAFETY: the call succeeded, so it is a string that ends with 0.
    Ok(unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use orchestra_testkit::models;

    use super::super::provider_options::load;
    use super::super::{fake_gpu, library, session};
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
        on_the_gpu(nodes, &assigned, &spec, || of_shapes(nodes))
    }

    /// As a model would have it whose `Gather` and `Unsqueeze` are on shapes, and one `Add` of several.
    fn of_shapes(nodes: &[Node]) -> ShapeNodes {
        let is_of_shapes =
            |node: &&Node| matches!(&node.operator[..], "Gather" | "Unsqueeze") || node.name == "/Add_0";
        let place = |node: &Node| ((node.operator.clone(), node.name.clone()), 1);
        nodes.iter().filter(is_of_shapes).map(place).collect()
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
        // Each of them once: another node of that name is another node.
        let twice = [&shapes[..], &nodes(&[(CORES, "Gather", 4)])].concat();
        assert!(judged(&twice, false).unwrap_err().starts_with("4 of 8 nodes"));
    }

    #[test]
    fn sums_and_products_of_rows_count_though_shapes_are_added_up_by_the_same_operators() {
        let rows = nodes(&[(cuda::NAME, "Conv", 10), (CORES, "Add", 3)]);
        let why = judged(&rows, false).unwrap_err();
        assert!(why.starts_with("2 of 12 nodes") && why.contains("Add `/Add_1`"), "{why}");
    }

    /// Names of nodes in ONNX Runtime's account are those of the file, after all that it has done to the graph.
    #[test]
    fn nodes_of_shapes_are_known_by_their_names_in_a_session() {
        let folder = tempfile::tempdir().unwrap();
        let model = models::scaled_by_its_batch(folder.path()).unwrap();
        let environment = library::environment(&fake_gpu::library(), None).unwrap();
        let spec = OnnxSpec { model: model.clone(), ..OnnxSpec::default() };
        let load = Load { device: DeviceKind::Cpu, ..load(&[]) };
        let session = session::open(&environment, &load, &spec, None).unwrap();
        let found = assignment(&session).unwrap();
        let of_file = shape_nodes(&std::fs::read(model).unwrap()).unwrap();
        let is_of_shapes = |node: &Node| of_file.contains_key(&(node.operator.clone(), node.name.clone()));
        let mut of: Vec<_> = found.iter().map(|node| (&node.operator[..], is_of_shapes(node))).collect();
        of.sort_unstable();
        assert_eq!(of, [("Add", true), ("Cast", true), ("Mul", false), ("Shape", true)]);
    }

    #[test]
    fn a_provider_without_nodes_is_refused_whatever_is_allowed() {
        let none = nodes(&[(CORES, "Conv", 4)]);
        assert!(judged(&none, true).unwrap_err().contains("no node of the model runs on"));
    }
}
