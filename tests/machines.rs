//! `orchestra plan --machine`: plans for machines that are not here. Every machine file that we hand out is right.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, Workplace};
use serde_json::Value;

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").canonicalize().unwrap()
}

fn plan(place: &Workplace, file: &str, machine: &Path, more: &[&str]) -> Ended {
    let machine = ["--machine", machine.to_str().unwrap()];
    place.on("plan", &configs().join(file), &[&machine, more].concat())
}

#[test]
fn a_server_is_planned_for_on_a_machine_without_gpus() {
    let place = Workplace::new();
    let machine = configs().join("machines/8x24gb.toml");
    let ended = plan(&place, "eight-gpus.toml", &machine, &[]).exited(0);
    assert_eq!(ended.stderr, "");
    for part in ["8x24gb.toml: 96 cores, 384 GiB of memory, 8 GPUs", "cuda:7", "23.5 GiB free of 24 GiB"] {
        ended.must_print(&[part]);
    }
    let json: Value = serde_json::from_str(&plan(&place, "cpu.toml", &machine, &["--json"]).stdout).unwrap();
    assert_eq!(json["loader_threads"], 96);
}

#[test]
fn every_machine_file_can_plan_a_workflow_that_takes_what_is_there() {
    let place = Workplace::new();
    let files = fs::read_dir(configs().join("machines")).unwrap().map(|e| e.unwrap().path());
    let files: Vec<_> = files.collect();
    assert!(files.len() >= 2, "{files:?}");
    for machine in files {
        let ended = plan(&place, "two-pipelines.toml", &machine, &[]);
        assert_eq!(ended.must_exit(0).stderr, "", "{}", machine.display());
    }
}

#[test]
fn the_machine_of_the_guide_can_be_planned_for() {
    let place = Workplace::new();
    let guide = fs::read_to_string(configs().join("../docs/guide/running.md")).unwrap();
    let blocks = guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let machines: Vec<&str> = blocks.filter(|b| b.contains("[[devices]]")).collect();
    assert_eq!(machines.len(), 1, "{machines:?}");
    let machine = place.path("machine.toml");
    fs::write(&machine, machines[0]).unwrap();
    let ended = plan(&place, "eight-gpus.toml", &machine, &[]);
    assert_eq!(ended.must_exit(0).stderr, "");
}

#[test]
fn what_the_machine_lacks_is_not_available() {
    let place = Workplace::new();
    let ended = plan(&place, "eight-gpus.toml", &configs().join("machines/laptop.toml"), &[]);
    ended.must_exit(69).must_say(&["device `cuda:0` is not available", "the machine file names none"]);
}

#[test]
fn a_wrong_machine_file_is_shown_with_its_lines() {
    let place = Workplace::new();
    let machine = place.path("machine.toml");
    fs::write(&machine, "cores = 0\nmemry = \"1GiB\"\n[[devices]]\ncount = 2\n").unwrap();
    let ended = plan(&place, "cpu.toml", &machine, &[]);
    ended.must_exit(78).must_say(&["machine.toml:1", "cores", "memry", "memory"]);
    assert_eq!(ended.stdout, "");
    let missing = place.path("missing.toml");
    plan(&place, "cpu.toml", &missing, &[])
        .must_exit(78)
        .must_say(&["cannot read the machine file", "missing.toml"]);
}
