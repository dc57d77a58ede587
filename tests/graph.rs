//! `orchestra graph` draws every workflow file that we hand out, from the file alone. What a picture looks like is tested where it is
//! drawn.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, Workplace};
use serde_json::Value;

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").canonicalize().unwrap()
}

fn graph(place: &Workplace, file: &str, more: &[&str]) -> Ended {
    let file = configs().join(file);
    let mut arguments = vec!["graph", file.to_str().unwrap()];
    arguments.extend(more);
    place.start_command(&arguments).wait()
}

#[test]
fn the_name_of_the_output_says_the_format() {
    let place = Workplace::new();
    fs::create_dir(place.path("a.b")).unwrap();
    for (name, start) in [("g.mmd", "---"), ("a.b/g.mermaid", "---"), ("g.json", "{")] {
        let path = place.path(name);
        let ended = graph(&place, "cpu.toml", &["--output", path.to_str().unwrap()]);
        ended.must_exit(0).must_say(&["wrote ", name]);
        assert_eq!(ended.stdout, "");
        assert!(fs::read_to_string(&path).unwrap().starts_with(start), "{name}");
    }
    let quiet = graph(&place, "cpu.toml", &["-q", "--output", place.path("g.mmd").to_str().unwrap()]);
    assert_eq!(quiet.must_exit(0).stderr, "");
    for name in ["g", "g.svg", "mmd"] {
        let unclear = graph(&place, "cpu.toml", &["--output", place.path(name).to_str().unwrap()]);
        unclear.must_exit(2).must_say(&[name, "which format", "`.mmd`"]);
    }
    let folder = place.path("nowhere/g.mmd");
    graph(&place, "cpu.toml", &["--output", folder.to_str().unwrap()])
        .must_exit(75)
        .must_say(&["cannot write the picture", "nowhere"]);
}

#[test]
fn json_lists_nodes_and_edges() {
    let place = Workplace::new();
    let ended = graph(&place, "several-models.toml", &["--json"]);
    let view: Value = serde_json::from_str(&ended.must_exit(0).stdout).unwrap();
    let pipeline = &view["pipelines"][0];
    let nodes = pipeline["nodes"].as_array().unwrap();
    let kinds: Vec<&str> = nodes.iter().map(|n| n["kind"].as_str().unwrap()).collect();
    for (kind, number) in [("source", 1), ("image", 1), ("infer", 2), ("classify", 2), ("sink", 2)] {
        assert_eq!(kinds.iter().filter(|k| **k == kind).count(), number, "{kind}: {view}");
    }
    for edge in pipeline["edges"].as_array().unwrap() {
        assert!(edge["from"].as_u64() < edge["to"].as_u64(), "{edge}");
        assert!(edge["to"].as_u64().unwrap() < nodes.len() as u64, "{edge}");
    }
    let path = place.path("any");
    graph(&place, "cpu.toml", &["--json", "--output", path.to_str().unwrap()]).must_exit(0);
    assert!(fs::read_to_string(&path).unwrap().starts_with('{'));
}

#[test]
fn what_is_wrong_with_the_file_is_said_and_nothing_is_drawn() {
    let place = Workplace::new();
    let file = place.workflow();
    fs::write(&file, "version = 1\n[sinks.a]\nkind = \"jsonl\"\nfrom = \"no-such-stage\"\n").unwrap();
    let out = place.path("g.mmd");
    let arguments = ["graph", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    place.start_command(&arguments).wait().must_exit(78).must_say(&["no-such-stage"]);
    assert!(!out.exists());
    place
        .start_command(&["graph", "/no/such/file.toml"])
        .wait()
        .must_exit(78)
        .must_say(&["/no/such/file.toml"]);
}
