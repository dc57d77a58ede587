//! What the command says about itself: help of every command, completions, the schema of workflow files. All of it is made from the definitions that
//! it parses with.

use std::process::{Command, Stdio};

use crate::common::{ORCHESTRA, Workplace};

/// The commands that the help lists.
fn commands(place: &Workplace) -> Vec<String> {
    let help = place.command(&["--help"]);
    let list = help.must_exit(0).stdout.split("Commands:\n").nth(1).unwrap();
    let list = list.split("\n\n").next().unwrap().lines();
    // Lines that go on with a description are indented further.
    let names = list.filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
    let names: Vec<String> = names.map(|l| l.split(' ').next().unwrap().to_owned()).collect();
    for name in
        ["run", "check", "plan", "graph", "devices", "doctor", "inspect", "init", "schema", "completions"]
    {
        assert!(names.iter().any(|n| n == name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|n| n == "worker"), "{names:?}");
    names
}

#[test]
fn every_command_shows_examples_that_name_it_and_its_exit_codes() {
    let place = Workplace::new();
    for name in commands(&place) {
        let help = place.command(&[&name, "--help"]);
        let text = &help.must_exit(0).stdout;
        assert!(text.contains(&format!("Examples:\n  orchestra {name}")), "{text}");
        assert!(text.contains("Exit codes:"), "{text}");
    }
}

#[test]
fn completions_know_every_command_but_not_the_worker() {
    let place = Workplace::new();
    let commands = commands(&place);
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = place.command(&["completions", shell]);
        let script = &ended.must_exit(0).stdout;
        assert_eq!(ended.stderr, "");
        for name in &commands {
            assert!(script.contains(name.as_str()), "{shell}: {name}");
        }
        let words: Vec<&str> = script.split(|c: char| !c.is_alphanumeric() && c != '-').collect();
        assert!(!words.contains(&"worker"), "{shell}");
    }
    place.command(&["completions", "tcsh"]).must_exit(2).must_say(&["possible values"]);
}

#[test]
fn the_schema_is_printed_as_json() {
    let ended = Workplace::new().command(&["schema"]);
    let schema: serde_json::Value = serde_json::from_str(&ended.must_exit(0).stdout).unwrap();
    assert_eq!(schema, orchestra_launch::workflow_schema(&orchestra_launch::kinds()));
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
}

#[test]
fn a_reader_that_stops_reading_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    let child =
        Command::new(ORCHESTRA).args(["completions", "zsh"]).stdout(writer).stderr(Stdio::piped()).spawn();
    drop(reader);
    let ended = child.unwrap().wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr), (Some(0), Vec::new()));
}
