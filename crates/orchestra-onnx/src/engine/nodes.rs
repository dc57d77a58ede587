//! Where the nodes of a session run, and whether that is where the plan wants them. It opens and runs nothing.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};

use orchestra_core::{DeviceKind, Provider};
use orchestra_worker::frames::Load;
use orchestra_worker::load_error::LoadError;
use ort::AsPointer;
use ort::session::Session;

use super::{cuda, errors, tensorrt};
use crate::spec::OnnxSpec;

/// Nodes per execution provider. An error where the provider that a GPU's model asks for has no node: it would run elsewhere under its name.
pub fn providers(session: &Session, load: &Load, spec: &OnnxSpec) -> Result<Vec<(String, u32)>, LoadError> {
    let assigned = assignment(session).map_err(errors::load)?;
    let assigned: Vec<(String, u32)> = assigned.into_iter().collect();
    if let DeviceKind::Cuda { .. } = load.device {
        check_provider(&assigned, spec).map_err(LoadError::permanent)?;
    }
    Ok(assigned)
}

fn check_provider(assigned: &[(String, u32)], spec: &OnnxSpec) -> Result<(), String> {
    let (wanted, instead) = match &spec.tuning.provider {
        Provider::Cuda => (cuda::NAME, "use `devices = [\"cpu\"]` for it"),
        Provider::TensorRt(_) => (tensorrt::NAME, "leave `provider = \"tensorrt\"` out to run it on CUDA"),
    };
    if assigned.iter().all(|(name, _)| name != wanted) {
        return Err(format!(
            "no node of the model runs on `{wanted}` (nodes per provider: {assigned:?}); {instead}"
        ));
    }
    Ok(())
}

/// Nodes of the session's optimised graph, by the provider that runs them.
fn assignment(session: &Session) -> ort::Result<BTreeMap<String, u32>> {
    let api = ort::api();
    let (mut subgraphs, mut count) = (std::ptr::null(), 0);
    // SAFETY: the session is alive, and the out pointers are valid; the array belongs to the session.
    let status = unsafe { (api.Session_GetEpGraphAssignmentInfo)(session.ptr(), &mut subgraphs, &mut count) };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    let mut assigned = BTreeMap::new();
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
        *assigned.entry(provider).or_default() += u32::try_from(node_count).unwrap_or(u32::MAX);
    }
    Ok(assigned)
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
    use super::*;

    #[test]
    fn a_provider_without_nodes_is_refused() {
        let why =
            check_provider(&[("CPUExecutionProvider".to_owned(), 4)], &OnnxSpec::default()).unwrap_err();
        assert!(why.contains("no node of the model runs on `CUDAExecutionProvider`"), "{why}");
        assert!(why.contains("(\"CPUExecutionProvider\", 4)"), "{why}");
        assert_eq!(check_provider(&[(cuda::NAME.to_owned(), 4)], &OnnxSpec::default()), Ok(()));
    }
}
