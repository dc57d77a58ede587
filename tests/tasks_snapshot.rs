//! Commands that see the working tree as it was when their run began (`snapshot = true`).

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::Workplace;

fn git(folder: &Path, arguments: &[&str]) {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments);
    let output = git.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

#[test]
fn all_commands_of_a_run_see_the_tree_as_it_was_when_the_run_began() {
    let place = Workplace::new();
    fs::create_dir(place.path("code")).unwrap();
    let (code, began, go) = (place.path("code/version"), place.path("began"), place.path("go"));
    let tables = "version = 1
[devices]
slots = 1
[tasks.a]
command = \"touch BEGAN; while ! test -e GO; do sleep 0.05; done; cat version > {output}/seen\"
matrix = { n = [1, 2] }
cwd = \"code\"
snapshot = true
outputs = \"{output}/seen\"
";
    let text = tables.replace("BEGAN", began.to_str().unwrap()).replace("GO", go.to_str().unwrap());
    fs::write(place.workflow(), text).unwrap();
    let seen = || {
        [1, 2].map(|n| fs::read_to_string(place.out().join(format!("tasks/a/n={n}/output/seen"))).unwrap())
    };

    fs::write(&code, "1").unwrap();
    let mut run = place.start(&[]);
    assert!(run.until("the first runs", || began.exists()), "{}", run.said());
    fs::write(&code, "2").unwrap();
    fs::write(&go, "").unwrap();
    run.wait().must_exit(0);
    assert_eq!(seen(), ["1", "1"]);

    place.run(&[]).must_exit(0).must_say(&["2 tasks, 2 done"]);
    assert_eq!(seen(), ["2", "2"], "what they run in has changed");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    assert_eq!(fs::read_dir(place.out().join(".orchestra/trees")).unwrap().count(), 1);
    place.nothing_is_left();

    fs::write(&code, vec![0; 64]).unwrap();
    fs::File::create(place.path("code/data")).unwrap().set_len(2 << 30).unwrap();
    place.run(&[]).must_exit(78).must_say(&["holds more than 1024 MiB"]);
}

/// `b` belongs to the second part of the run; `w` and the sink write into the tree.
const TWO_PARTS: &str = r#"version = 1
[tasks.prepare]
command = "touch began; while ! test -e go; do sleep 0.05; done; echo '{\"n\": 1}' > {output}/rows.jsonl"
[tasks.b]
command = "cat version > {output}/seen; ls >> {output}/seen"
cwd = "code"
snapshot = true
after = ["sinks.results", "w"]
[tasks.w]
command = "echo 1 > code/made"
outputs = "code/made"
[sources.rows]
kind = "jsonl"
paths = ["{tasks.prepare.output}/*.jsonl"]
[sources.rows.columns]
n = "f32"
[stages.twice]
kind = "select"
from = "rows"
columns = { m = "n * 2" }
[sinks.results]
kind = "jsonl"
from = "twice"
path = "results.jsonl"
"#;

#[test]
fn commands_of_both_parts_of_a_run_see_one_tree_without_what_the_run_writes() {
    let place = Workplace::new();
    let code = place.path("code");
    fs::create_dir(&code).unwrap();
    fs::write(code.join("version"), "1\n").unwrap();
    fs::write(place.workflow(), TWO_PARTS).unwrap();
    let mut run = place.start(&[]);
    assert!(run.until("the first part runs", || place.path("began").exists()), "{}", run.said());
    fs::write(code.join("version"), "2\n").unwrap();
    fs::write(place.path("go"), "").unwrap();
    run.wait().must_exit(0);
    let seen = || fs::read_to_string(place.out().join("tasks/b/output/seen")).unwrap();
    assert_eq!(seen(), "1\nversion\n");
    assert!(place.out().join("results.jsonl").exists() && code.join("made").exists());
    place.run(&[]).must_exit(0);
    assert_eq!(seen(), "2\nversion\n", "what it runs in has changed");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
}

/// What a command sees of `code`.
const LOOK: &str = "version = 1
[tasks.look]
command = \"find . -type f | sort > {output}/seen\"
cwd = \"code\"
snapshot = true
";

/// As where a hook of git starts the run.
#[test]
fn a_tree_is_that_of_its_folder_whatever_repository_the_environment_names() {
    let place = Workplace::new();
    let (code, other) = (place.path("code"), place.path("other"));
    for (folder, file) in [(&code, "version"), (&other, "strange")] {
        fs::create_dir(folder).unwrap();
        git(folder, &["init"]);
        fs::write(folder.join(file), "1").unwrap();
        git(folder, &["add", file]);
    }
    fs::write(place.workflow(), LOOK).unwrap();
    let repository = other.join(".git");
    let index = repository.join("index");
    let variables = [("GIT_DIR", &repository), ("GIT_WORK_TREE", &other), ("GIT_INDEX_FILE", &index)];
    let variables = variables.map(|(name, path)| (name, path.to_str().unwrap()));
    place.run_with(&variables).must_exit(0);
    assert_eq!(fs::read_to_string(place.out().join("tasks/look/output/seen")).unwrap(), "./version\n");
}
