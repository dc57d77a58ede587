//! What a worker reads of a model's file and writes into it: nodes in front of its inputs and behind its outputs. It loads no model.

use orchestra_onnx::untrusted::edited_models;
use orchestra_plan::read_model;

use crate::memory::measured;
use crate::scratch;

/// What an edit may take beyond copies of the file.
const SLACK: usize = 1 << 20;
/// Copies of the file: the graph, and the model around it, as they grow.
const COPIES: usize = 8;

/// A model is edited or refused, in memory bounded by the file; what was edited is a model still, if it was one before.
pub fn model_edit(bytes: &[u8]) {
    let (edited, taken) = measured(|| edited_models(bytes));
    assert!(taken.peak <= SLACK + COPIES * bytes.len(), "{taken:?} for a model of {} bytes", bytes.len());
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
