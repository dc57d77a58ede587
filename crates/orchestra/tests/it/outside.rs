//! A crate outside of the workspace, made of what the guide shows, infers and sends a picture through a graph. Most of the library is built anew for it.

use std::fs;
use std::path::Path;
use std::process::Command;

use orchestra_testkit::skip::is_deep_check;

const GUIDE: &str = include_str!("../../../../docs/guide/library.md");
const GRAPH: &str = r#"
version = 1
[sources.picture]
kind = "request"
[models.digits]
path = "digits.onnx"
labels = "digits.labels.txt"
[stages.pixels]
kind = "image"
from = "picture"
size = [32, 32]
color = "gray"
[stages.logits]
kind = "infer"
from = "pixels"
model = "digits"
[stages.number]
kind = "classify"
from = "logits"
top_k = 1
[sinks.result]
kind = "reply"
from = "number"
"#;

/// The blocks of the guide that are whole programs.
fn programs() -> Vec<&'static str> {
    let blocks = GUIDE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("fn main()")).collect()
}

#[test]
fn the_guide_begins_with_programs_of_few_lines() {
    let lines: Vec<usize> = programs().iter().map(|program| program.lines().count()).collect();
    assert!(matches!(lines[..], [model, flow] if model <= 15 && flow <= 20), "{lines:?}");
}

#[test]
fn a_crate_outside_of_the_workspace_runs_what_the_guide_shows() {
    if !is_deep_check("outside") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (program, name) in programs().into_iter().zip(["infer", "read"]) {
        fs::create_dir_all(at("src/bin")).unwrap();
        fs::write(at("src/bin").join(format!("{name}.rs")), program).unwrap();
    }
    let dependencies = GUIDE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let dependencies = dependencies.replace("../orchestra", root.to_str().unwrap());
    fs::write(at("Cargo.toml"), format!("[package]\nname = \"host\"\nedition = \"2024\"\n{dependencies}"))
        .unwrap();
    for (from, to) in [
        ("Cargo.lock", "Cargo.lock"),
        ("models/digits.onnx", "digits.onnx"),
        ("models/digits.labels.txt", "digits.labels.txt"),
        ("tests/photo.jpg", "picture.jpg"),
    ] {
        fs::copy(root.join(from), at(to)).unwrap();
    }
    fs::write(at("read.toml"), GRAPH).unwrap();
    for (name, words) in [("infer", "["), ("read", "result ")] {
        // What is built for the crate stays for the next time.
        let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("outside");
        let mut run = Command::new(env!("CARGO"));
        run.args(["run", "--quiet", "--offline", "--bin", name]).env("CARGO_TARGET_DIR", target);
        let output = run.current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.starts_with(words),
            "{name}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
