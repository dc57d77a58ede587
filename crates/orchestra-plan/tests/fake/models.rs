//! Models and GPUs that exist in memory only, for tests of several crates that need a plan.

use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{DeviceView, ModelFile, Signature};

/// Models by name. Any other name that is a signature in this form is a model of that signature.
const MODELS: [(&str, &str); 22] = [
    ("fake", "x:f32:?,1,1,1~y:f32:?,1"),
    ("fake-open", "x:f32:?,1,1,1~y:f32:?,?"),
    ("digits", "image:f32:?,1,32,32~logits:f32:?,10"),
    ("large", "image:f32:?,1,32,32~logits:f32:?,10"),
    ("boxes", "image:f32:?,1,32,32~boxes:f32:?,20,5"),
    ("score", "image:f32:?,1,32,32~score:f32:?"),
    ("four", "image:f32:4,1,32,32~logits:f32:4,10"),
    ("bytes", "image:u8:?,64,48,3~logits:f16:?,3,1,1"),
    ("any", "image:f32:?,3,?,?~scores:f32:?,?"),
    ("two", "image:f32:?,3,8,8+mask:u8:?,8,8,1~scores:f32:?,3+boxes:f32:?,?,4"),
    ("yolo", "image:f32:?,1,32,32~output0:f32:?,14,21"),
    ("ssd", "image:f32:?,1,32,32~boxes:f32:?,20,4+scores:f32:?,20,3"),
    ("dbnet", "image:f32:?,1,32,32~maps:f32:?,1,32,32"),
    ("embed", "image:f32:?,3,8,8~features:f32:?,16"),
    ("embed_any", "image:f32:?,3,?,?~features:f32:?,16"),
    ("open_two", "image:f32:?,3,?,?+mask:f32:?,?,?,?~logits:f32:?,3"),
    ("head", "features:f32:?,16~logits:f32:?,3"),
    ("loop", "x:f32:?~y:f32:?"),
    ("text", "image:f32:?,1,32,32~letters:f32:?,40,97"),
    ("tokens", "ids:i64:?,128~ids:i64:?,3"),
    ("sloppy", "image:f32:?,1,32,32~logits:f32:1,10"),
    ("uneven", "image:f32:4,1,32,32~logits:f32:2,10"),
];

pub fn gpus(n: usize, total: u64, free: u64) -> Vec<DeviceView> {
    let gpu = |n| DeviceView {
        name: format!("cuda:{n}"),
        uuid: format!("GPU-{n}"),
        model: "H100".into(),
        total,
        free,
        mps: true,
        node: None,
    };
    (0..n).map(gpu).collect()
}

/// The model of this name, a file of so many bytes.
pub fn model_of(name: &str, bytes: u64) -> Option<ModelFile> {
    let known = MODELS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    let signature = signature(known.unwrap_or(name))?;
    // Models of one plan are told apart by it.
    let digest = [name.len() as u8; 32];
    Some(ModelFile { digest, file_digest: digest, weights: Vec::new(), bytes, signature })
}

/// `name:dtype:batch,dim,dim`, with `?` for open dimensions; several tensors are joined by `+`, inputs and outputs by `~`.
fn signature(text: &str) -> Option<Signature> {
    let (inputs, outputs) = text.split_once('~')?;
    let tensors = |list: &str| list.split('+').map(tensor).collect::<Option<Vec<_>>>();
    Some(Signature {
        inputs: tensors(inputs)?,
        outputs: tensors(outputs)?.into_iter().map(Into::into).collect(),
        ir_version: 10,
        opset: 20,
        ..Signature::default()
    })
}

fn tensor(text: &str) -> Option<TensorSpec> {
    let mut parts = text.split(':');
    let (name, dtype, dims) = (parts.next()?, parts.next()?, parts.next()?);
    let dtype = *DType::ALL.iter().find(|d| d.name() == dtype)?;
    // What `read_model` gives: a dimension below 1 is open.
    let dim = |d: &str| match d.parse() {
        Ok(n) if n > 0 => Dim::Fixed(n),
        _ => Dim::Dynamic,
    };
    let mut dims = dims.split(',').map(dim);
    Some(TensorSpec { name: name.into(), dtype, batch: dims.next()?, row: dims.collect() })
}
