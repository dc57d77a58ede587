//! A world for the planner that exists in memory only, so that no workflow file can make it look at the real one. Plans nothing.

use std::io;
use std::path::Path;

use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::{
    DeviceView, FileKind, Files, Host, LookRequest, MachineView, ModelError, ModelFile, Signature,
};
use orchestra_store::{FileKinds as _, ItemEntry, ListError, ListingSpec};

pub(crate) const FOLDER: &str = "/flows";

/// Models by name. Any other name that is a signature in this form, and ends in `.onnx`, is a model of that signature.
const MODELS: [(&str, &str); 11] = [
    ("digits", "image:f32:?,1,32,32~logits:f32:?,10"),
    ("score", "image:f32:?,1,32,32~score:f32:?"),
    ("four", "image:f32:4,1,32,32~logits:f32:4,10"),
    ("bytes", "image:u8:?,64,48,3~logits:f16:?,3,1,1"),
    ("any", "image:f32:?,3,?,?~scores:f32:?,?"),
    ("two", "image:f32:?,3,8,8+mask:u8:?,8,8,1~scores:f32:?,3+boxes:f32:?,?,4"),
    ("embed", "image:f32:?,3,8,8~features:f32:?,16"),
    ("head", "features:f32:?,16~logits:f32:?,3"),
    ("tokens", "ids:i64:?,128~ids:i64:?,3"),
    ("sloppy", "image:f32:?,1,32,32~logits:f32:1,10"),
    ("uneven", "image:f32:4,1,32,32~logits:f32:2,10"),
];

/// The world that a plan is made in.
pub(crate) struct World {
    pub(crate) machine: Result<MachineView, String>,
    /// The model that every path names; `None`: the path says which.
    pub(crate) model: Option<ModelFile>,
    /// The first item of every source, and what it holds; `None`: a picture that holds nothing.
    pub(crate) item: Option<(&'static str, Vec<u8>)>,
}

impl World {
    /// A machine with that many GPUs of 80 GiB, of which 60 are free.
    pub(crate) fn with_gpus(count: usize) -> World {
        let gpu = |n| DeviceView {
            name: format!("cuda:{n}"),
            uuid: format!("GPU-{n}{n}{n}{n}"),
            model: "H100".into(),
            total: 80 << 30,
            free: 60 << 30,
            mps: true,
            node: None,
        };
        let no_gpu = (count == 0).then(|| "libnvidia-ml.so was not found".into());
        let devices = (0..count).map(gpu).collect();
        let machine = MachineView { cores: 8, memory: 32 << 30, devices, no_gpu, ..MachineView::default() };
        World { machine: Ok(machine), model: None, item: None }
    }
}

impl Files for World {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if let Some((item, bytes)) = &self.item
            && *item == name
        {
            return Ok(bytes.clone());
        }
        match name {
            "binary.txt" => Ok(vec![0xff, 0xfe]),
            "empty.txt" => Ok(Vec::new()),
            "ops.so" => Ok(b"library".to_vec()),
            // `labels10.txt` has 10 lines.
            _ => match name.strip_prefix("labels").and_then(|n| n.strip_suffix(".txt")?.parse::<u8>().ok()) {
                Some(count) => Ok((0..count).map(|i| format!("class {i}\n")).collect::<String>().into()),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }

    /// In this process, of a copy on the disk: kinds open files by their paths.
    fn look(&self, request: &LookRequest<'_>) -> Option<Result<Vec<u8>, ListError>> {
        let Ok(bytes) = self.read(request.file) else {
            return Some(self.kinds().describe(request.question, request.file));
        };
        let copy = tempfile::NamedTempFile::new().expect("a file can be made for the test");
        std::fs::write(copy.path(), bytes).expect("a file can be made for the test");
        Some(self.kinds().describe(request.question, copy.path()))
    }

    fn file_kind(&self, path: &Path) -> FileKind {
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv" | "txt" | "jsonl" | "onnx") => FileKind::Regular,
            Some("pipe") => FileKind::Other,
            Some(_) => FileKind::Missing,
            None => FileKind::Folder,
        }
    }
}

impl Host for World {
    fn kinds(&self) -> orchestra_plan::Kinds {
        orchestra_kinds::builtin()
    }

    fn model(&self, path: &Path) -> Result<ModelFile, ModelError> {
        if let Some(model) = &self.model {
            return Ok(model.clone());
        }
        let name = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".onnx"));
        let name = name.ok_or(ModelError::Missing)?;
        match name {
            "cut" => return Err(ModelError::Truncated(1234)),
            "photo" => return Err(ModelError::NotOnnx("it holds no graph".into())),
            _ => {}
        }
        let known = MODELS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        let signature = signature(known.unwrap_or(name)).ok_or(ModelError::Missing)?;
        let digest = [name.len() as u8; 32];
        Ok(ModelFile { digest, file_digest: digest, weights: Vec::new(), bytes: 1 << 20, signature })
    }

    fn first_item(&self, spec: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        let name = self.item.as_ref().map_or("a.png", |(name, _)| name);
        let item = ItemEntry { name: name.into(), locator: Path::new("/flows/images").join(name) };
        match spec {
            ListingSpec::Paths { patterns, base } => match patterns.first().map(String::as_str) {
                Some(p) if p.starts_with("missing") => {
                    Err(ListError::NoSuchFile { pattern: p.into(), path: base.join(p) })
                }
                Some(p) if p.starts_with('[') => {
                    Err(ListError::BadPattern { pattern: p.into(), reason: "unclosed".into() })
                }
                Some(p) if !p.starts_with("none/") => Ok(Some(item)),
                _ => Ok(None),
            },
            ListingSpec::Generated => Ok(None),
            ListingSpec::Objects { .. } | ListingSpec::ObjectManifest { .. } => Ok(Some(item)),
            ListingSpec::Manifest { path, .. } => {
                Ok((!path.as_ref().is_some_and(|p| p.ends_with("empty.csv"))).then_some(item))
            }
        }
    }

    fn machine(&self) -> Result<MachineView, String> {
        self.machine.clone()
    }
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
