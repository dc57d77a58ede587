//! The real host: a workflow on disk with a model written by hand.

use std::fs;
use std::path::Path;

use orchestra_plan::{MachineView, PlanOptions, RealHost, RenderStyle, plan};

/// `x: f32[batch, 3, 2, 2] -> y: f32[batch, 2]`, byte by byte: see onnx.proto3.
fn model() -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat();
    let value = |name: &str, dims: &[u8]| {
        let open = field(1, &field(2, b"batch"));
        let fixed: Vec<u8> = dims.iter().flat_map(|d| field(1, &[0x08, *d])).collect();
        let tensor = [&[0x08, 1][..], &field(2, &[open, fixed].concat())].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let graph = [field(11, &value("x", &[3, 2, 2])), field(12, &value("y", &[2]))].concat();
    [&[0x08, 10][..], &field(7, &graph)].concat()
}

fn workflow(folder: &Path) -> std::path::PathBuf {
    for name in ["flows", "data/images", "data/models"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    fs::write(folder.join("data/images/a.png"), b"x").unwrap();
    fs::write(folder.join("data/models/tiny.onnx"), model()).unwrap();
    let file = folder.join("flows/tiny.toml");
    let text = "version = 1
[sources.s]
kind = \"images\"
paths = [\"../data/images/*.png\"]
[models.tiny]
path = \"../data/models/tiny.onnx\"
[stages.pixels]
kind = \"image\"
from = \"s\"
size = [2, 2]
[stages.run]
kind = \"infer\"
from = \"pixels\"
model = \"tiny\"
[sinks.out]
kind = \"jsonl\"
from = \"run\"
";
    fs::write(&file, text).unwrap();
    file
}

fn host() -> RealHost {
    RealHost::with_machine(orchestra_kinds::builtin(), MachineView { cores: 2, ..MachineView::default() })
}

#[test]
fn a_workflow_on_disk_is_planned() {
    let folder = tempfile::tempdir().unwrap();
    let file = workflow(folder.path());
    let text = fs::read_to_string(&file).unwrap();
    let (plan, diags) = plan(&text, &file, &PlanOptions::default(), &host());
    let plan = plan.unwrap_or_else(|| panic!("{}", diags.render(RenderStyle::Plain)));
    assert_eq!(plan.name, "tiny");
    assert_eq!(plan.models[0].path, folder.path().canonicalize().unwrap().join("data/models/tiny.onnx"));
    assert_eq!(plan.models[0].outputs[0].to_string(), "f32[batch, 2]");
}

#[test]
fn what_is_missing_on_disk_is_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = workflow(folder.path());
    fs::remove_file(folder.path().join("data/images/a.png")).unwrap();
    fs::write(folder.path().join("data/models/tiny.onnx"), &model()[..20]).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let (plan, diags) = plan(&text, &file, &PlanOptions::default(), &host());
    assert!(plan.is_none());
    let messages: Vec<&str> = diags.errors().map(|d| d.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "`../data/images/*.png` matches no file",
            "model `tiny`: the file is cut short: it ends inside a field, after 20 bytes"
        ]
    );
}

#[test]
fn reports_have_colours_and_a_form_for_programs() {
    let (_, diags) = plan("version = 2\n", Path::new("/f.toml"), &PlanOptions::default(), &host());
    assert!(diags.render(RenderStyle::Coloured).contains("\u{1b}["));
    assert!(!diags.render(RenderStyle::Plain).contains('\u{1b}'));
    let json = diags.to_json();
    assert_eq!(json["file"], "/f.toml");
    assert_eq!(json["errors"][0]["line"], 1);
    assert_eq!(json["errors"][0]["column"], 11);
    assert_eq!(json["errors"][0]["cause"], "file");
    assert!(json["errors"][1].get("line").is_none());
}
