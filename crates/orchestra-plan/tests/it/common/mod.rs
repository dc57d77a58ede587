//! A world in memory for the planner: models, files, sources and machines that need no disk. Plans nothing itself.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use orchestra_core::{Program, SandboxRules};
use orchestra_plan::{
    BatchPlan, Diagnostics, FileKind, Files, Host, LookRequest, MachineView, ModelError, ModelFile, Plan,
    PlanOptions, RenderStyle, TaskResults,
};
use orchestra_store::{FileKinds as _, ItemEntry, ListError, ListingSpec};
use orchestra_testkit::workflow_file::WorkflowFile;

#[path = "../../fake/models.rs"]
mod models;
pub mod schema;

pub const FOLDER: &str = "/flows";

pub struct FakeHost {
    pub files: HashMap<PathBuf, Vec<u8>>,
    pub machine: Result<MachineView, String>,
    pub results: TaskResults,
}

impl FakeHost {
    /// A machine with some cores and no GPU.
    pub fn with_cores(cores: usize) -> Self {
        let no_gpu = Some("libnvidia-ml.so was not found".into());
        Self::with(MachineView { cores, memory: 8 << 30, no_gpu, ..MachineView::default() })
    }

    /// A machine with GPUs of 80 GiB, of which 60 are free.
    pub fn with_gpus(n: usize) -> Self {
        Self::with(MachineView {
            cores: 16,
            memory: 64 << 30,
            devices: models::gpus(n, 80 << 30, 60 << 30),
            ..MachineView::default()
        })
    }

    pub fn with(machine: MachineView) -> Self {
        let mut files = HashMap::new();
        for n in [3, 9, 10] {
            let lines: String = (0..n).map(|i| format!("class {i}\n")).collect();
            files.insert(Path::new(FOLDER).join(format!("labels{n}.txt")), lines.into_bytes());
        }
        let contents: [(&str, &[u8]); 9] = [
            ("binary.txt", &[0xff, 0xfe]),
            ("ops.so", b"library"),
            ("list.csv", b"a.png\n"),
            ("empty.csv", b""),
            ("rows.txt", b"a\n"),
            ("rows.csv", b"name,size\na,1\nb,2\n"),
            ("pairs.csv", b"a,b\nx,true\ny,false\n"),
            ("twice.csv", b"lr,seed,lr\n1,2,3\n"),
            ("rows.jsonl", b"{\"lr\": 0.1, \"row\": \"a b\"}\n\n{\"lr\": 0.001, \"row\": \"it's\"}\n"),
        ];
        files.extend(contents.map(|(name, bytes)| (Path::new(FOLDER).join(name), bytes.to_vec())));
        Self { files, machine: Ok(machine), results: TaskResults::default() }
    }

    /// As it is, with one more file.
    pub fn file(self, path: &str, text: &str) -> Self {
        self.bytes(path, text.as_bytes().to_vec())
    }

    /// As it is, with one more file of these bytes.
    pub fn bytes(mut self, path: &str, bytes: Vec<u8>) -> Self {
        self.files.insert(path.into(), bytes);
        self
    }

    pub fn plan(&self, text: &str, options: &PlanOptions) -> (Option<Plan>, Diagnostics) {
        let (plan, diags) = orchestra_plan::plan(text, &Path::new(FOLDER).join("flow.toml"), options, self);
        // With `set` the file alone need not be right.
        if plan.is_some() && options.set.is_empty() {
            assert_eq!(
                schema::refusals(text),
                [""; 0],
                "the schema refuses a file that can be planned:\n{text}"
            );
        }
        (plan, diags)
    }

    /// The plan of a file that must be right.
    pub fn good(&self, text: &str) -> Plan {
        self.good_with(text, &PlanOptions::default())
    }

    pub fn good_with(&self, text: &str, options: &PlanOptions) -> Plan {
        let (plan, diags) = self.plan(text, options);
        plan.unwrap_or_else(|| panic!("no plan:\n{}", diags.render(RenderStyle::Plain)))
    }

    pub fn errors(&self, text: &str, options: &PlanOptions) -> Vec<String> {
        let (plan, diags) = self.plan(text, options);
        assert_eq!(plan.is_none(), diags.has_errors());
        diags.errors().map(|d| d.message.clone()).collect()
    }
}

impl Files for FakeHost {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// In this process, of a copy on the disk: kinds open files by their paths.
    fn look(&self, request: &LookRequest<'_>) -> Option<Result<Vec<u8>, ListError>> {
        let Ok(bytes) = self.read(request.file) else {
            return Some(self.kinds().describe(request.question, request.file));
        };
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(copy.path(), bytes).unwrap();
        Some(self.kinds().describe(request.question, copy.path()))
    }

    fn variable(&self, name: &str) -> Option<String> {
        let variables = [("THREE", "3"), ("FOLDER", "images"), ("SIZES", "[32, 32]")];
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn file_kind(&self, path: &Path) -> FileKind {
        let is_script = path.extension().is_some_and(|e| e == "py") && !path.ends_with("nowhere.py");
        if is_script || self.files.contains_key(path) { FileKind::Regular } else { FileKind::Missing }
    }

    fn ask(&self, program: &Program, _: &SandboxRules) -> Result<Vec<u8>, String> {
        let command: Vec<&str> = program.command.iter().map(String::as_str).collect();
        let answer = match command[..] {
            ["python9", ..] => return Err("it is not there".to_owned()),
            [_, "-c", _] => r#"{ "executable": "/usr/bin/python3", "read": ["/usr", "/opt/python"] }"#,
            [.., "/flows/broken.py"] => r#"{ "error": "NameError: name 'np' is not defined (broken.py:7)" }"#,
            [.., "/flows/rubbish.py"] => "{{{",
            [.., "/flows/slow.py"] => return Err("it took longer than 60 s".to_owned()),
            [.., "/flows/cores.py"] => {
                r#"{ "name": "f", "inputs": [{ "name": "x", "dtype": null, "shape": null }],
                     "outputs": [{ "name": "y", "dtype": "float16", "shape": [2, null] }], "batch": 16, "gpu": false, "drops": false, "files": [] }"#
            }
            [.., "/flows/gpu.py"] => {
                r#"{ "name": "f", "inputs": [{ "name": "x", "dtype": null, "shape": null }],
                     "outputs": [{ "name": "y", "dtype": "float32", "shape": [] }], "batch": null, "gpu": true, "drops": false, "files": [] }"#
            }
            [.., "/flows/silent.py"] => {
                r#"{ "name": "f", "inputs": [{ "name": "x", "dtype": null, "shape": null }], "outputs": null, "batch": null, "gpu": false, "drops": false, "files": [] }"#
            }
            _ => {
                r#"{ "name": "f", "inputs": [{ "name": "left", "dtype": null, "shape": null }, { "name": "right", "dtype": "float32", "shape": [null, 8] }],
                     "outputs": [{ "name": "y", "dtype": "float32", "shape": [2, null] }], "batch": 16, "gpu": false, "drops": false, "files": [["stage.py", "00"]] }"#
            }
        };
        Ok(answer.as_bytes().to_vec())
    }
}

impl Host for FakeHost {
    fn kinds(&self) -> orchestra_plan::Kinds {
        orchestra_kinds::builtin()
    }

    fn model(&self, path: &Path) -> Result<ModelFile, ModelError> {
        let name = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".onnx"));
        match name.ok_or(ModelError::Missing)? {
            "cut" => Err(ModelError::Truncated(1234)),
            "photo" => Err(ModelError::NotOnnx("it holds no graph".into())),
            name => {
                let bytes = if name == "large" { 98 << 20 } else { 1 << 20 };
                models::model_of(name, bytes).ok_or(ModelError::Missing)
            }
        }
    }

    fn first_item(&self, spec: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        let item = ItemEntry { name: "a.png".into(), locator: "/flows/images/a.png".into() };
        match spec {
            ListingSpec::Paths { patterns, base } => match patterns[0].as_str() {
                p if p.starts_with("none/") => Ok(None),
                p if p.starts_with("missing") => {
                    Err(ListError::NoSuchFile { pattern: p.into(), path: base.join(p) })
                }
                p if self.files.contains_key(&base.join(p)) => {
                    Ok(Some(ItemEntry { name: p.into(), locator: base.join(p) }))
                }
                _ => Ok(Some(item)),
            },
            ListingSpec::Generated => Ok(None),
            ListingSpec::Objects { .. } | ListingSpec::ObjectManifest { .. } => Ok(Some(item)),
            ListingSpec::Manifest { path, .. } => {
                let empty = path.as_ref().is_some_and(|p| self.files.get(p).is_some_and(Vec::is_empty));
                Ok((!empty).then_some(item))
            }
        }
    }

    fn task_results(&self, _: &Path) -> TaskResults {
        self.results.clone()
    }

    fn machine(&self) -> Result<MachineView, String> {
        self.machine.clone()
    }
}

/// A right workflow: images of digits, classified.
pub const DIGITS: &str = r#"
version = 1
name = "digits"

[sources.scans]
kind = "images"
paths = ["images/*.png"]

[models.digits]
path = "digits.onnx"
labels = "labels10.txt"

[stages.pixels]
kind = "image"
from = "scans"
size = [32, 32]
color = "gray"

[stages.classify]
kind = "infer"
from = "pixels"
model = "digits"

[stages.answer]
kind = "classify"
from = "classify"
top_k = 3

[sinks.results]
kind = "jsonl"
from = "answer"
"#;

/// `DIGITS` with some text replaced.
pub fn digits(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(DIGITS.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "`{from}` is not in the workflow");
        text.replacen(from, to, 1)
    })
}

/// `DIGITS` with more keys of its model.
pub fn model(keys: &str) -> String {
    digits(&[("path = \"digits.onnx\"", &format!("path = \"digits.onnx\"\n{keys}"))])
}

/// A second model with these keys for the rows of `DIGITS`, to be put behind it.
pub fn second_model(keys: &str) -> String {
    format!(
        "\n[models.other]\npath = \"digits.onnx\"\n{keys}\n[stages.second]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"other\"\n\
         [sinks.more]\nkind = \"jsonl\"\nfrom = \"second\"\n"
    )
}

/// A page, the parts that a model finds on it, and what another model makes of each part, brought together again.
pub fn crops() -> WorkflowFile {
    WorkflowFile::of_pictures("pages")
        .model("boxes", "boxes.onnx")
        .model("digits", "digits.onnx")
        .gray("small", "pages", [32, 32], "")
        .infer("find", "small", "boxes")
        .stage("parts", "crop", ["pages", "find"], "size = [32, 32]\ncolor = 'gray'")
        .infer("read", "parts", "digits")
        .stage("number", "gather", "read", "")
        .results("number")
}

#[track_caller]
pub fn infer<'a>(plan: &'a Plan, name: &str) -> &'a BatchPlan {
    let found = plan.batch_stages().find(|(id, _)| plan.stages[id.index()].name == name);
    found.unwrap_or_else(|| panic!("no infer stage `{name}`")).1
}

/// Workers of a stage as `device: count x threads`.
pub fn workers_of(plan: &Plan, stage: &str) -> Vec<String> {
    infer(plan, stage)
        .workers
        .iter()
        .map(|w| format!("{}: {} x {}", plan.devices[w.device.index()].spec.name, w.count, w.threads))
        .collect()
}

/// With these `--set`.
pub fn set(pairs: &[(&str, &str)]) -> PlanOptions {
    let set = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    PlanOptions { set, ..PlanOptions::default() }
}

/// On these devices.
pub fn on(devices: &[&str]) -> PlanOptions {
    PlanOptions { devices: Some(devices.iter().map(|d| (*d).into()).collect()), ..PlanOptions::default() }
}
