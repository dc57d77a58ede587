//! For the tests of the providers: what a worker is told to load, and whether a provider passes on what it should and nothing else.

use std::collections::BTreeSet;
use std::fmt::Debug;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{DType, DeviceKind, Dim, TensorSpec};
use orchestra_worker::frames::Load;

use crate::spec::OnnxSpec;

pub fn tensor(name: &str, batch: Dim, row: &[usize]) -> TensorSpec {
    let row = row.iter().map(|n| Dim::Fixed(*n)).collect();
    TensorSpec { name: name.into(), dtype: DType::F32, row, batch }
}

/// A model with 1 GiB of memory.
pub fn spec(inputs: &[TensorSpec]) -> OnnxSpec {
    OnnxSpec {
        library: "/nowhere/libonnxruntime.so".into(),
        model: "/m.onnx".into(),
        memory_limit: Some(1 << 30),
        tf32: true,
        pixel_inputs: inputs.iter().map(|_| None).collect(),
        ..OnnxSpec::default()
    }
}

/// What a worker of a GPU is told of it, with full batches of 8.
pub fn load(inputs: &[TensorSpec]) -> Load {
    Load {
        spec: spec(inputs).encode().unwrap(),
        device: DeviceKind::Cuda { uuid: "GPU-0".into() },
        threads: 1,
        streams: 1,
        padded_to: None,
        layout: BatchLayout::new(inputs, &[], 8, 1).unwrap(),
        answer_bytes: 0,
    }
}

/// Whether these are the options of a provider, all of them. It shows them in its debugging text alone: `Name({"key": "value", ...})`.
pub fn told(provider: &impl Debug, expected: &[(&str, &str)]) -> bool {
    let text = format!("{provider:?}");
    let map = text.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(map, _)| map);
    let found: BTreeSet<String> = map.split(", ").map(str::to_owned).collect();
    let expected: BTreeSet<String> =
        expected.iter().map(|(key, value)| format!("{key:?}: {value:?}")).collect();
    if found != expected {
        eprintln!("told {found:#?}, expected {expected:#?}");
    }
    found == expected
}
