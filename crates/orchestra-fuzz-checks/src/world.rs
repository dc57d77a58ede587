//! A world for the planner that exists in memory only, so that no workflow file can make it look at the real one. Plans nothing.

#[path = "../../orchestra-plan/tests/fake/models.rs"]
mod models;

use std::io;
use std::path::Path;

use orchestra_plan::{FileKind, Files, Host, LookRequest, MachineView, ModelError, ModelFile};
use orchestra_store::{FileKinds as _, ItemEntry, ListError, ListingSpec};

pub(crate) const FOLDER: &str = "/flows";

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
        let no_gpu = (count == 0).then(|| "libnvidia-ml.so was not found".into());
        let devices = models::gpus(count, 80 << 30, 60 << 30);
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
        match name.ok_or(ModelError::Missing)? {
            "cut" => Err(ModelError::Truncated(1234)),
            "photo" => Err(ModelError::NotOnnx("it holds no graph".into())),
            name => models::model_of(name, 1 << 20).ok_or(ModelError::Missing),
        }
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
