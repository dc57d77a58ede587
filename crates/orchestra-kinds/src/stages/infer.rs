//! `kind = "infer"`: runs an ONNX model over batches of rows, in worker processes. What runs where follows from the model and the machine,
//! and is planned with them.

use orchestra_plan::{Draft, Fields, Key, StageKind, Upstreams, key};

use super::shared::batches::{INPUTS, MAX, MODEL, WAIT, draft, upstreams_of_model};

pub struct Infer;

const KEYS: [Key; 3] =
    [INPUTS, MODEL, key("batch", "table", "by device", "how rows become batches").of(&[MAX, WAIT])];

impl StageKind for Infer {
    fn name(&self) -> &'static str {
        "infer"
    }

    fn about(&self) -> &'static str {
        "Runs a model. It gives the outputs of the model, one tensor each."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn upstreams(&self, f: &mut Fields<'_, '_>) -> Upstreams {
        upstreams_of_model(f)
    }

    fn read(&self, f: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Batch(draft(f)))
    }
}
