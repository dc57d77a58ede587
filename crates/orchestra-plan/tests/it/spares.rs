//! Spare workers: who gets one unasked, and what the plan says about it.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use crate::common::{DIGITS, FakeHost, infer, model, on, second_model};
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

#[test]
fn a_small_model_on_a_cpu_with_memory_gets_a_spare_unasked_and_every_other_when_asked() {
    let (cores, gpu) = (FakeHost::with_cores(4), FakeHost::with_gpus(1));
    let large = |keys: &str| model(keys).replace("digits.onnx", "large.onnx");
    for (host, text, count, why) in [
        (
            &cores,
            DIGITS.to_owned(),
            "cpu: 1",
            "1 spare, loaded and idle: it stands in when a worker dies, and a small model costs little twice",
        ),
        (
            &cores,
            large(""),
            "cpu: 0",
            "no spare: the model is larger than 64 MiB (98 MiB); `spare = 1` of the model adds one",
        ),
        (&cores, large("spare = 1"), "cpu: 1", "1 spare, loaded and idle: as asked"),
        (&cores, model("spare = 0"), "cpu: 0", "no spare: as asked"),
        (
            &machine(1 << 30),
            DIGITS.to_owned(),
            "cpu: 0",
            "workers and spare could take more than a quarter of 1 GiB; `spare = 1`",
        ),
        (&machine(1 << 30), model("spare = 2"), "cpu: 2", "2 spares, loaded and idle: as asked"),
        (&machine(0), DIGITS.to_owned(), "cpu: 0", "the memory of the machine is not known; `spare = 1`"),
        (&machine(0), model("spare = 2"), "cpu: 2", "2 spares, loaded and idle: as asked"),
        (
            &gpu,
            DIGITS.to_owned(),
            "cuda:0: 0",
            "no spare: it would take a worker's memory on the GPU; `spare = 1`",
        ),
        (&gpu, model("spare = 1\nmemory = \"20GiB\""), "cuda:0: 1", "1 spare, loaded and idle: as asked"),
    ] {
        let (counts, said) = spares(&host.good(&text));
        assert_eq!((counts, said.lines().count()), (vec![count.to_owned()], 1), "{text}: {said}");
        let device = count.rsplit_once(':').unwrap().0;
        assert!(said.starts_with(&format!("stage `classify` on {device}: ")) && said.contains(why), "{said}");
    }
    let plan = cores.good(DIGITS);
    assert!(describe(&plan).contains("    cpu: 4 workers of 1 thread, and 1 spare, loaded and idle\n"));
    assert_eq!(serde_json::to_value(&plan).unwrap()["stages"][1]["runs"]["workers"][0]["spares"], 1);
    let (counts, _) = spares(&cores.good_with(DIGITS, &on(&["cpu", "cpu"])));
    assert_eq!(counts, ["cpu: 1", "cpu:1: 1"], "every device of a model has spares of its own");
}

#[test]
fn memory_that_one_spare_takes_is_not_given_to_another_or_to_a_worker() {
    let text = DIGITS.to_owned() + &second_model("");
    // Two workers each, a hundred MiB or so apiece, and room for one more.
    assert_eq!(spares(&machine(2 << 30).good(&text)).0, ["cpu: 1", "cpu: 0"]);
    assert_eq!(spares(&machine(4 << 30).good(&text)).0, ["cpu: 1", "cpu: 1"]);
    let gpu = FakeHost::with_gpus(1);
    let plan = gpu.good(&model("spare = 1\nmemory = \"20GiB\""));
    assert_eq!(infer(&plan, "classify").workers[0].count, 1, "the spare takes the other's room");
    assert_eq!(
        gpu.errors(&model("spare = 1\nmemory = \"30GiB\""), &PlanOptions::default()),
        [
            "device `cuda:0` is too full: one worker per model, with the spares, needs 60 GiB, and 60 GiB of 80 GiB are free, 2 GiB of them headroom"
        ]
    );
}
