//! Along which axis items lie in the inputs of a model, by the names of dimensions. It reads no file.

use super::{fixed, name_of};
use orchestra_core::onnx_file::{DimensionProto, ValueInfoProto};

/// Along which axis items lie in each of these inputs: the first, unless several inputs share the name of another axis, which is the first of one of them, or
/// stands behind a first one that is fixed. Where one input takes any number of items, another whose first dimension is fixed has them along the first
/// that is open. A first dimension that is open and has no name may be the batch, so it is.
pub fn batch_axes(inputs: &[&&ValueInfoProto]) -> Vec<usize> {
    let shapes: Vec<&[DimensionProto]> = inputs.iter().map(|info| info.dims().unwrap_or_default()).collect();
    let is_open = |dim: &DimensionProto| fixed(dim).is_none();
    let firsts = || shapes.iter().filter_map(|dims| dims.first());
    if !firsts().any(is_open) {
        return vec![0; shapes.len()];
    }
    let at = |dims: &[DimensionProto], name: &str| dims.iter().position(|dim| name_of(dim) == Some(name));
    let open: Vec<_> = shapes.iter().filter(|dims| dims.iter().any(is_open)).collect();
    let is_shared = |name: &&str| open.len() > 1 && open.iter().all(|dims| at(dims, name).is_some());
    let leads = |name: &&str| firsts().any(|dim| !is_open(dim) || name_of(dim) == Some(name));
    let are_named = firsts().all(|dim| !is_open(dim) || name_of(dim).is_some());
    let names =
        open.first().filter(|_| are_named).into_iter().flat_map(|dims| dims.iter().filter_map(name_of));
    let batch = names.filter(is_shared).find(leads);
    let axis = |dims: &&[DimensionProto]| {
        batch
            .and_then(|batch| at(dims, batch))
            .or_else(|| dims.iter().position(is_open).filter(|_| !is_open(&dims[0])))
    };
    shapes.iter().map(|dims| axis(dims).unwrap_or(0)).collect()
}
