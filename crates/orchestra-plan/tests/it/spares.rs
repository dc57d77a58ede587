//! Spare workers: who gets one unasked, and what the plan says about it.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use crate::common::{DIGITS, FakeHost, digits};
use orchestra_plan::{MachineView, Plan, PlanOptions, describe};

/// Spares as `device: count`, and the sentences about them.
fn spares(plan: &Plan) -> (Vec<String>, String) {
    let workers = plan.batch_stages().flat_map(|(_, infer)| &infer.workers);
    let counts = workers.map(|w| format!("{}: {}", plan.devices[w.device.index()].spec.name, w.spares));
    let about = |r: &&String| r.contains("spare");
    (counts.collect(), plan.reasons.iter().filter(about).cloned().collect::<Vec<_>>().join("\n"))
}

fn machine(memory: u64) -> FakeHost {
    FakeHost::with(MachineView { cores: 4, memory, ..MachineView::default() })
}

fn asked(n: &str) -> String {
    digits(&[("path = \"digits.onnx\"", &format!("path = \"digits.onnx\"\nspare = {n}"))])
}

#[test]
fn a_small_model_on_the_cpu_gets_a_spare_and_the_plan_says_so() {
    let plan = FakeHost::with_cores(4).good(DIGITS);
    let (counts, why) = spares(&plan);
    assert_eq!(counts, ["cpu: 1"]);
    assert_eq!(
        why,
        "stage `classify` on cpu: 1 spare, loaded and idle: it stands in when a worker dies, and a small model costs little twice"
    );
    let text = describe(&plan);
    assert!(text.contains("    cpu: 4 workers of 1 thread, and 1 spare, loaded and idle\n"), "{text}");
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["stages"][1]["runs"]["workers"][0]["spares"], 1);
}

#[test]
fn a_large_model_gets_none_unless_it_is_asked_for() {
    let text = digits(&[("digits.onnx", "large.onnx")]);
    let (counts, why) = spares(&FakeHost::with_cores(4).good(&text));
    assert_eq!(counts, ["cpu: 0"]);
    assert_eq!(
        why,
        "stage `classify` on cpu: no spare: the model is larger than 64 MiB (98 MiB); `spare = 1` of the model adds one"
    );
    let text = text.replace("path = \"large.onnx\"", "path = \"large.onnx\"\nspare = 1");
    assert_eq!(spares(&FakeHost::with_cores(4).good(&text)).0, ["cpu: 1"]);
}

#[test]
fn a_machine_with_little_or_unknown_memory_gets_none_unless_it_is_asked_for() {
    for (memory, says) in [
        (1 << 30, "workers and spare could take more than a quarter of 1 GiB"),
        (0, "the memory of the machine is not known"),
    ] {
        let (counts, why) = spares(&machine(memory).good(DIGITS));
        assert_eq!(counts, ["cpu: 0"], "{memory}");
        assert!(why.contains(says) && why.contains("`spare = 1`"), "{why}");
        let (counts, why) = spares(&machine(memory).good(&asked("2")));
        assert_eq!(counts, ["cpu: 2"], "{memory}");
        assert_eq!(why, "stage `classify` on cpu: 2 spares, loaded and idle: as asked");
    }
}

#[test]
fn memory_that_one_spare_takes_is_not_given_to_another() {
    let second = r#"
[models.again]
path = "digits.onnx"
[stages.again]
kind = "infer"
from = "pixels"
model = "again"
[sinks.again]
kind = "jsonl"
from = "again"
"#;
    let text = format!("{DIGITS}{second}");
    // Two workers each, a hundred MiB or so apiece, and room for one more.
    assert_eq!(spares(&machine(2 << 30).good(&text)).0, ["cpu: 1", "cpu: 0"]);
    assert_eq!(spares(&machine(4 << 30).good(&text)).0, ["cpu: 1", "cpu: 1"]);
}

#[test]
fn a_gpu_gets_none_unless_it_is_asked_for_and_then_its_memory_counts() {
    let host = FakeHost::with_gpus(1);
    let (counts, why) = spares(&host.good(DIGITS));
    assert_eq!(counts, ["cuda:0: 0"]);
    assert!(why.contains("no spare: it would take a worker's memory on the GPU"), "{why}");
    let with = |more: &str| asked(&format!("1\n{more}"));
    let plan = host.good(&with("memory = \"20GiB\""));
    assert_eq!(spares(&plan).0, ["cuda:0: 1"]);
    assert_eq!(plan.batch_stages().next().unwrap().1.workers[0].count, 1, "the spare takes the other's room");
    assert_eq!(
        host.errors(&with("memory = \"30GiB\""), &PlanOptions::default()),
        [
            "device `cuda:0` is too full: one worker per model, with the spares, needs 60 GiB, and 60 GiB of 80 GiB are free, 2 GiB of them headroom"
        ]
    );
}

#[test]
fn every_device_of_a_model_has_spares_of_its_own() {
    let options = PlanOptions { devices: Some(vec!["cpu".into(), "cpu".into()]), ..PlanOptions::default() };
    let (counts, _) = spares(&FakeHost::with_cores(4).good_with(DIGITS, &options));
    assert_eq!(counts, ["cpu: 1", "cpu:1: 1"]);
}

#[test]
fn spares_can_be_declined() {
    let (counts, why) = spares(&FakeHost::with_cores(4).good(&asked("0")));
    assert_eq!(
        (counts, &why[..]),
        (vec!["cpu: 0".to_owned()], "stage `classify` on cpu: no spare: as asked")
    );
}
