//! Every example gives what its own `check.py` accepts, and those with pictures give what Pillow, numpy and ONNX Runtime for Python make of the same
//! files. The deep check kills each of them, too; `kills.rs` kills every shape of a workflow.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{Workplace, copy_folder, python, python_env, repository};
use orchestra_testkit::skip::is_deep_check;
use orchestra_testkit::striker::{Fault, loaders_of, strike_any, workers_of};
use rustix::process::Signal;
use serde_json::Value;

/// Those that are run here.
const HERE: [&str; 15] = [
    "audio",
    "chunk-mean",
    "digits",
    "embeddings",
    "ensemble",
    "faces",
    "files",
    "hundred-commands",
    "hundred-tasks",
    "pages",
    "post-sum",
    "refine",
    "search",
    "tables",
    "vector-add",
];
/// Those whose check another test runs.
const ELSEWHERE: [(&str, &str); 7] = [
    ("prepare-train-infer", "late.rs"),
    ("pycuda-queue", "python_stage.rs"),
    ("python-worker", "python_stage.rs"),
    ("read-text", "read_text.rs"),
    ("serve", "serve.rs"),
    ("train-many", "late.rs"),
    ("train-zoo", "late.rs"),
];
/// Those with stages in Python, which are compared with what packages say.
const IN_PYTHON: [&str; 4] = ["audio", "faces", "files", "search"];
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
        "tables" => python_env("tables"),
        _ if IN_PYTHON.contains(&example) => python_env("reference"),
        "vector-add" => python().map(str::to_owned),
        _ => Some("python3".to_owned()),
    }
}

/// Copies examples and models to `place`, whose folder of examples it gives.
fn copy_examples(place: &Workplace) -> PathBuf {
    let examples = place.path("examples");
    copy_folder(&repository().join("examples"), &examples);
    copy_folder(&repository().join("models"), &place.path("models"));
    if !examples.join("vector-add/vectors.npz").exists()
        && let Some(python) = python_for("vector-add")
    {
        accepts(Command::new(python).arg(examples.join("vector-add/data.py")));
    }
    examples
}

/// Makes what an example in Python works on, as its page says; `false`: it was skipped.
#[track_caller]
fn prepare(name: &str, folder: &Path, place: &Workplace) -> bool {
    if !IN_PYTHON.contains(&name) && name != "tables" {
        return true;
    }
    let Some(python) = python_for(name) else { return false };
    symlink(Path::new(&python).ancestors().nth(2).unwrap(), folder.join(".venv")).unwrap();
    if folder.join("data.py").exists() {
        accepts(Command::new(&python).arg(folder.join("data.py")));
    }
    if name == "search" {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        place.command(&["run", &path("index.toml"), "--output", &path("index")]).must_exit(0);
    }
    true
}

/// The example's own check; `false`: it was skipped.
#[track_caller]
fn check(name: &str, folder: &Path, out: &Path) -> bool {
    let Some(python) = python_for(name) else { return false };
    accepts(Command::new(python).arg(folder.join("check.py")).arg("--output").arg(out));
    true
}

#[test]
fn every_example_gives_what_its_check_accepts_and_what_another_runtime_computes() {
    let place = Workplace::new();
    let examples = copy_examples(&place);
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
        let folder = examples.join(name);
        let (file, out) = (folder.join("workflow.toml"), place.path(&format!("out-{name}")));
        let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
        if !prepare(name, &folder, &place) {
            continue;
        }
        place.command(&arguments).must_exit(0);
        if name == "digits" {
            account_adds_up(&serde_json::from_slice(&fs::read(out.join("run.json")).unwrap()).unwrap());
        }
        place.command(&arguments).must_exit(0).must_say(&["nothing is left to do"]);
        if check(name, &folder, &out)
            && OF_PICTURES.contains(&name)
            && let Some(python) = python_env("reference")
        {
            let script = repository().join("scripts/examples_reference.py");
            accepts(Command::new(python).arg(script).arg(name).arg(&out));
        }
    }
    place.no_process_is_left();
}

#[test]
fn every_example_gives_that_while_its_processes_are_killed_and_the_run_itself() {
    if !is_deep_check("examples") {
        return;
    }
    let place = Workplace::new();
    let examples = copy_examples(&place);
    for name in HERE {
        let folder = examples.join(name);
        let (file, out) = (folder.join("workflow.toml"), place.path(&format!("out-{name}")));
        let arguments = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
        if !prepare(name, &folder, &place) {
            continue;
        }
        let journal = || fs::metadata(out.join(".orchestra/journal")).map_or(0, |journal| journal.len());
        // Before there is anything, when the run has a process, and whenever more is done than at the kill before.
        let (mut deaths, mut done) = (0, 0);
        for moment in 0..6 {
            let mut run = place.start_command(&arguments);
            let pid = run.pid();
            let reached = run.until("the moment of the kill", || match moment {
                0 => out.join(".orchestra").exists(),
                1 => !workers_of(pid).is_empty() || !loaders_of(pid).is_empty(),
                _ => journal() > done,
            });
            if !reached {
                run.wait().must_exit(0);
                break;
            }
            run.signal(Signal::KILL);
            deaths += usize::from(run.wait().status.code().is_none());
            done = journal();
            place.no_process_is_left();
        }
        let log = || fs::metadata(out.join("logs/run.log")).map_or(0, |log| log.len());
        let planned = log();
        let mut run = place.start_command(&arguments);
        // A start whose scripts are killed while they are asked what they take has no plan.
        if IN_PYTHON.contains(&name) {
            run.until("the plan is there", || log() > planned);
        }
        let storm = strike_any(run.pid(), Duration::from_millis(50), Fault::Kill);
        let ended = run.wait();
        let killed = storm.stop().len();
        // A command that is killed more often than its `retries` allow has failed, and runs again with the next start. No item fails for that.
        if ended.status.code() == Some(65) {
            let report = fs::read(out.join("run.json")).unwrap();
            let report: Value = serde_json::from_slice(&report).unwrap();
            assert_eq!(report["items"]["failed"], 0, "{name}: {}", ended.stderr);
            place.command(&arguments).must_exit(0);
        } else if ended.status.code() == Some(78) {
            // A file is refused whose listers die eight times in a row, which on a busy machine they do here. The next start lists it anew.
            ended.must_say(&["cannot be listed", "ended 8 loaders"]);
            place.command(&arguments).must_exit(0);
        } else {
            ended.must_exit(0);
        }
        println!("{name}: {deaths} runs and {killed} of its processes were killed");
        assert!(deaths > 0, "{name} is done before it can be struck");
        place.command(&["verify", out.to_str().unwrap()]).must_exit(0).must_print(&["0 lost, 0 doubled"]);
        check(name, &folder, &out);
        place.no_process_is_left();
    }
}

/// Of a run that read 400 images, and failed none.
fn account_adds_up(report: &Value) {
    let items = &report["items"];
    let of = |name: &str| items[name].as_u64().unwrap();
    assert_eq!(of("read"), of("done") + of("failed"));
    assert_eq!((of("read"), of("total"), of("failed"), of("resumed")), (400, 400, 0, 0));
    assert_eq!((&report["workflow"], &report["exit_code"]), (&"digits".into(), &0.into()));
    let stages = report["stages"].as_object().unwrap();
    assert_eq!(stages.keys().collect::<Vec<_>>(), ["answer", "classify", "pixels"]);
    for (name, stage) in stages {
        let n = |key: &str| stage[key].as_u64().unwrap();
        assert_eq!((n("in"), n("out"), n("failed")), (400, 400, 0), "{name}: {stage}");
    }
    let devices = report["devices"].as_array().unwrap();
    let batches: u64 = devices.iter().map(|d| d["batches"].as_u64().unwrap()).sum();
    let rows: f64 =
        devices.iter().map(|d| d["batches"].as_f64().unwrap() * d["mean_batch"].as_f64().unwrap()).sum();
    assert!((rows - 400.0).abs() < 1e-6, "{report}");
    let left: u64 =
        report["batches_by_reason"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(left, batches, "{report}");
    for device in devices {
        let n = |key: &str| device[key].as_u64().unwrap();
        assert!(n("starts") == n("workers") && n("restarts") == 0, "{report}");
        assert!((0.0..=1.0).contains(&device["busy"].as_f64().unwrap()), "{report}");
    }
    assert!(!report["run_id"].as_str().unwrap().is_empty());
    assert!(report["started"].as_str().unwrap().ends_with('Z'));
}
