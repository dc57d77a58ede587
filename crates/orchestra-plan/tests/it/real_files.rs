//! The real host: a workflow on disk with a model.

use std::fs;
use std::path::Path;

use orchestra_core::DType;
use orchestra_plan::{MachineView, PlanOptions, RealHost, RenderStyle, plan};
use orchestra_testkit::models::spec;
use orchestra_testkit::onnx::ModelBuilder;
use orchestra_testkit::workflow_file::WorkflowFile;

fn workflow(folder: &Path) -> std::path::PathBuf {
    for name in ["flows", "data/images", "data/models"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    fs::write(folder.join("data/images/a.png"), b"x").unwrap();
    ModelBuilder::new("tiny")
        .input(&spec("x", DType::F32, &[3, 2, 2]))
        .output(&spec("y", DType::F32, &[2]))
        .write(&folder.join("data/models"))
        .unwrap();
    let file = folder.join("flows/tiny.toml");
    let flow = WorkflowFile::new()
        .source("s", "images", "paths = ['../data/images/*.png']")
        .model("tiny", "../data/models/tiny.onnx")
        .stage("pixels", "image", "s", "size = [2, 2]")
        .infer("run", "pixels", "tiny")
        .sink("out", "jsonl", "run");
    fs::write(&file, flow).unwrap();
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
    let model = folder.path().join("data/models/tiny.onnx");
    let whole = fs::read(&model).unwrap();
    fs::write(model, &whole[..20]).unwrap();
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
