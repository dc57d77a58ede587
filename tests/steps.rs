//! Loops that step through what a row has: each item has what a plain loop over ONNX Runtime gives for it alone, whatever shares its batch, and what cannot step
//! is refused with the reason. That no item is lost with a worker, `kills.rs` says.

use std::fs;
use std::process::Command;

use crate::common::random::random;
use crate::common::{Workplace, npy, python_env, repository};
use orchestra_testkit::models;

#[test]
fn each_item_has_what_a_plain_loop_gives_whatever_the_lengths_of_others_in_its_batch() {
    let Some(python) = python_env("reference") else { return };
    let place = Workplace::new();
    let script = |what: &str, more: &str| {
        let mut command = Command::new(&python);
        command.arg(repository().join("scripts/loop_steps.py")).arg(what).arg(place.path(".")).arg(more);
        let ended = command.output().unwrap();
        assert!(
            ended.status.success(),
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
    };
    let mut rng = random();
    script("make", &rng.u32(..).to_string());
    let each = "kind = \"iterate\"\nmodel = \"m\"\neach = [\"gain\", \"x\"]\nfeed = { state = \"next\" }\ncollect = [\"level\", \"heard\"]";
    let inputs =
        |state: &str| format!("inputs = {{ x = \"frames\", gain = \"frames\", state = {state}, rate = 8 }}");
    let mut batch = || format!("batch = {{ max = {}, wait = \"20ms\" }}", rng.u32(2..20));
    place.write(format!(
        "version = 1\n[sources.arrays]\nkind = \"files\"\npaths = [\"arrays\"]\n[models.m]\npath = \"model.onnx\"\nworkers = 2\n\
         [stages.frames]\nkind = \"python\"\nfrom = \"arrays.content\"\nscript = \"frames.py\"\npython = {python:?}\n\
         [stages.all]\n{each}\n{}\n{}\n[stages.some]\n{each}\nrounds = 5\n{}\n{}\n[stages.low]\n{each}\nuntil = \"level < 0.4\"\n{}\n{}\n\
         [sinks.all]\nkind = \"jsonl\"\nfrom = \"all\"\n[sinks.some]\nkind = \"jsonl\"\nfrom = \"some\"\n[sinks.low]\nkind = \"jsonl\"\nfrom = \"low\"\n\
         [devices]\nuse = [\"cpu\"]\n",
        inputs("0"),
        batch(),
        inputs("\"frames.start\""),
        batch(),
        inputs("[[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]"),
        batch(),
    ));
    place.run(&[]).must_exit(0);
    script("check", place.out().to_str().unwrap());
}

/// A workflow that adds up the numbers of each row of `x.npy`, `[items, 4]`.
fn sums(stage: &str) -> Workplace {
    let place = Workplace::new();
    models::running_sum(&place.path("models")).unwrap();
    fs::write(place.path("x.npy"), npy("(3, 4)", (0..12).map(|n| n as f32))).unwrap();
    place.write(format!(
        "version = 1\n[sources.s]\nkind = \"tensors\"\npaths = [\"x.npy\"]\n[models.m]\npath = \"models/running_sum.onnx\"\n\
         [stages.sum]\nkind = \"iterate\"\nmodel = \"m\"\n{stage}\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"sum\"\nordered = true\n[devices]\nuse = [\"cpu\"]\n"
    ));
    place
}

const SUMS: &str = "inputs = { x = \"s\", total = 0 }\neach = \"x\"\nfeed = { total = \"next\" }";

#[test]
fn a_row_of_fixed_length_is_stepped_through_and_gives_the_last_round_or_all() {
    let place = sums(SUMS);
    place.run(&[]).must_exit(0);
    let of = |place: &Workplace, name: &str| -> Vec<String> {
        let lines = place.lines("o.jsonl");
        lines
            .iter()
            .map(|line| line["result"][name].get("data").unwrap_or(&line["result"][name]).to_string())
            .collect()
    };
    assert_eq!(of(&place, "next"), ["6.0", "22.0", "38.0"]);
    assert_eq!(of(&place, "rounds"), ["4", "4", "4"]);
    let place = sums(&format!("{SUMS}\ncollect = \"next\"\nrounds = 3"));
    place.run(&[]).must_exit(0);
    assert_eq!(of(&place, "next"), ["[0.0,1.0,3.0]", "[4.0,9.0,15.0]", "[8.0,17.0,27.0]"]);
    let planned = place.on_file("plan", &["--devices", "cpu"]);
    planned
        .must_exit(0)
        .must_print(&["loop: a round for each part of x, up to 3 rounds, total <- next, all rounds of next"]);
}

#[test]
fn what_cannot_step_is_refused_with_the_reason() {
    let inputs = "inputs = { x = \"s\", total = 0 }";
    for (stage, says) in [
        (inputs.to_owned(), &["needs the key `rounds`", "each = \"input\""][..]),
        (
            format!("{inputs}\neach = \"y\""),
            &["model `m` has no input `y` that can step through a row", "`x`"],
        ),
        (format!("{SUMS}\ncollect = [\"y\"]"), &["has no output `y`", "`next`"]),
        (format!("{SUMS}\ncollect = [\"next\", \"next\"]"), &["output `next` of stage `sum` is named twice"]),
        (
            format!("{inputs}\neach = [\"x\", \"total\"]\nfeed = {{ total = \"next\" }}"),
            &["input `total` of model `m` cannot step through a row", "output of the round before"],
        ),
        (
            format!("{inputs}\neach = \"x\"\nfeed = {{ x = \"next\" }}"),
            &["input `x` of stage `sum` cannot step through a row", "output of the round before"],
        ),
        (
            format!("{inputs}\neach = [\"x\", \"total\"]\nfeed = {{ x = \"next\" }}"),
            &["input `total` of model `m` cannot step through a row: it is a constant"],
        ),
        (format!("{SUMS}\nrounds = 0"), &["`rounds` of stage `sum` must be from 1"]),
    ] {
        let said = sums(&stage).on_file("check", &[]);
        said.must_exit(78).must_say(says);
    }
    // A row of two dimensions has no parts that are single numbers.
    let place = sums(SUMS);
    fs::write(place.path("x.npy"), npy("(3, 2, 2)", (0..12).map(|n| n as f32))).unwrap();
    place.on_file("check", &[]).must_exit(78).must_say(&["a tensor for `x` to step through, f32[?]"]);
}
