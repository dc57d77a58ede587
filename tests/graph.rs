//! `orchestra graph` draws every workflow file that we hand out, from the file alone. What a picture looks like is tested where it is
//! drawn.

use std::fs;

use crate::common::{Ended, Workplace, repository};

fn graph(place: &Workplace, file: &str, more: &[&str]) -> Ended {
    place.on("graph", &repository().join("configs").join(file), more)
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
    let path = place.path("any");
    graph(&place, "cpu.toml", &["--json", "--output", path.to_str().unwrap()]).must_exit(0);
    assert!(fs::read_to_string(&path).unwrap().starts_with('{'));
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
fn what_is_wrong_with_the_file_is_said_and_nothing_is_drawn() {
    let place = Workplace::new();
    let file = place.workflow();
    fs::write(&file, "version = 1\n[sinks.a]\nkind = \"jsonl\"\nfrom = \"no-such-stage\"\n").unwrap();
    let out = place.path("g.mmd");
    let arguments = ["graph", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    place.command(&arguments).must_exit(78).must_say(&["no-such-stage"]);
    assert!(!out.exists());
    place.command(&["graph", "/no/such/file.toml"]).must_exit(78).must_say(&["/no/such/file.toml"]);
}
