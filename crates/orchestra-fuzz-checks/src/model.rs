//! Model files: bytes to the signature of an ONNX model, and a plan with a model of that signature. It loads no model.

use orchestra_plan::{ModelFile, PlanOptions, Signature, read_model};
use sha2::{Digest, Sha256};

use crate::memory::measured;
use crate::world::World;
use crate::{scratch, workflow};

/// What reading a model may take beyond a multiple of its size: buffers, and one name or shape of the longest length that is believed.
const SLACK: usize = 4 << 20;
/// What a byte of the file may cost: a node without fields is two bytes in the file.
const PER_BYTE: usize = 256;

/// Dimensions of a tensor, the batch included; records hold lists within lists, one for each.
const MOST_DIMS: usize = 64;

/// A model between an image stage and everything that can read from it; the signature decides what fits.
const WORKFLOW: &str = "version = 1\n\
    [sources.scans]\nkind = \"images\"\npaths = [\"*.png\"]\n\
    [models.any]\npath = \"any.onnx\"\n\
    [stages.pixels]\nkind = \"image\"\nfrom = \"scans\"\nsize = [8, 8]\n\
    [stages.run]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"any\"\n\
    [stages.best]\nkind = \"classify\"\nfrom = \"run\"\n\
    [sinks.all]\nkind = \"jsonl\"\nfrom = \"run\"\n\
    [sinks.best]\nkind = \"jsonl\"\nfrom = \"best\"\n";

/// A model file gives its signature or says why not, in bounded memory; and what it says of itself breaks no plan.
pub fn onnx_signature(bytes: &[u8]) {
    let path = scratch::write("model.onnx", bytes);
    let (read, taken) = measured(|| read_model(&path));
    assert!(taken.peak <= SLACK + PER_BYTE * bytes.len(), "{taken:?} for a model of {} bytes", bytes.len());
    match read {
        Ok(model) => check(bytes, model),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn check(bytes: &[u8], model: ModelFile) {
    assert_eq!(model.file_digest, <[u8; 32]>::from(Sha256::digest(bytes)));
    let Signature { inputs, text_inputs, outputs, .. } = &model.signature;
    assert!(inputs.len() + text_inputs.len() > 0 && !outputs.is_empty());
    assert!(inputs.iter().all(|t| t.row.len() < MOST_DIMS));
    assert!(outputs.iter().filter_map(|t| t.dims.as_ref()).all(|dims| dims.len() <= MOST_DIMS));
    let world = World { model: Some(model), ..World::with_gpus(1) };
    for offline in [false, true] {
        workflow::check(WORKFLOW, &PlanOptions { offline, ..PlanOptions::default() }, &world);
    }
}
