//! Every example gives what its own `check.py` accepts, and those with pictures give what Pillow, numpy and ONNX Runtime for Python make of the same
//! files. That kills change nothing of it, `kills.rs` says of each shape of a workflow.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Workplace, copy_folder, python, python_env, repository};

/// Those that are run here.
const HERE: [&str; 10] = [
    "chunk-mean",
    "digits",
    "embeddings",
    "ensemble",
    "hundred-commands",
    "hundred-tasks",
    "pages",
    "post-sum",
    "refine",
    "vector-add",
];
/// Those whose check another test runs.
const ELSEWHERE: [(&str, &str); 5] = [
    ("prepare-train-infer", "late.rs"),
    ("pycuda-queue", "python_stage.rs"),
    ("python-worker", "python_stage.rs"),
    ("read-text", "read_text.rs"),
    ("train-many", "late.rs"),
];
/// Those that `scripts/examples_reference.py` knows.
const OF_PICTURES: [&str; 4] = ["digits", "embeddings", "ensemble", "pages"];

#[track_caller]
fn accepts(program: &mut Command) {
    let done = program.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{program:?}: {said}{}", String::from_utf8_lossy(&done.stderr));
    print!("{said}");
}

/// The Python that a check needs; `None`: the test is skipped.
#[track_caller]
fn python_for(example: &str) -> Option<String> {
    match example {
        "embeddings" => python_env("pyarrow"),
        "vector-add" => python().map(str::to_owned),
        _ => Some("python3".to_owned()),
    }
}

#[test]
fn every_example_gives_what_its_check_accepts_and_what_another_runtime_computes() {
    let place = Workplace::new();
    let examples = place.path("examples");
    copy_folder(&repository().join("examples"), &examples);
    copy_folder(&repository().join("models"), &place.path("models"));
    let has_check = |folder: &PathBuf| folder.join("check.py").exists();
    let found = fs::read_dir(&examples).unwrap().map(|entry| entry.unwrap().path()).filter(has_check);
    let found: BTreeSet<_> = found.map(|folder| folder.file_name().unwrap().to_owned()).collect();
    let known = HERE.into_iter().chain(ELSEWHERE.map(|(name, _)| name));
    assert_eq!(found, known.map(Into::into).collect());
    for (name, test) in ELSEWHERE {
        let test = fs::read_to_string(repository().join("tests").join(test)).unwrap();
        assert!(test.contains(name) && test.contains("check.py"), "no test checks {name}");
    }

    for name in HERE {
        let Some(python) = python_for(name) else { continue };
        let folder = examples.join(name);
        if name == "vector-add" && !folder.join("vectors.npz").exists() {
            accepts(Command::new(&python).arg(folder.join("data.py")));
        }
        let (file, out) = (folder.join("workflow.toml"), place.path(&format!("out-{name}")));
        let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
        place.start_command(&arguments).wait().must_exit(0);
        place.start_command(&arguments).wait().must_exit(0).must_say(&["nothing is left to do"]);
        accepts(Command::new(python).arg(folder.join("check.py")).arg("--output").arg(&out));
        if OF_PICTURES.contains(&name)
            && let Some(python) = python_env("reference")
        {
            let script = repository().join("scripts/examples_reference.py");
            accepts(Command::new(python).arg(script).arg(name).arg(&out));
        }
    }
    place.no_process_is_left();
}
