//! What a worker reads of a model's file and writes into it: nodes in front of its inputs and behind its outputs. It loads no model.

use orchestra_onnx::untrusted::{edited_models, nodes_of_shapes};
use orchestra_plan::read_model;

use crate::memory::measured;
use crate::scratch;

/// What an edit may take beyond copies of the file.
const SLACK: usize = 1 << 20;
/// Copies of the file: the graph, and the model around it, as they grow.
const COPIES: usize = 8;
/// Bytes for each of the file's where nodes are listed: each node and each of its tensors, two bytes at least, is an entry of a table.
const PER_BYTE: usize = 64;

/// The nodes of a model are listed, and it is edited or refused, in memory bounded by the file; what was edited is a model still, if it was one before.
pub fn model_edit(bytes: &[u8]) {
    let (edited, taken) = measured(|| edited_models(bytes));
    assert!(taken.peak <= SLACK + COPIES * bytes.len(), "{taken:?} for a model of {} bytes", bytes.len());
    let (listed, taken) = measured(|| nodes_of_shapes(bytes));
    assert!(taken.peak <= SLACK + PER_BYTE * bytes.len(), "{taken:?} for a model of {} bytes", bytes.len());
    assert!(listed.unwrap_or(0) <= bytes.len());
    let signature = |bytes: &[u8]| read_model(&scratch::write("model.onnx", bytes)).ok();
    for edited in edited {
        match edited {
            Ok(edited) if signature(bytes).is_some() => {
                assert!(signature(&edited).is_some(), "the edited model cannot be read");
            }
            Ok(_) => {}
            Err(why) => assert!(!why.is_empty()),
        }
    }
}
