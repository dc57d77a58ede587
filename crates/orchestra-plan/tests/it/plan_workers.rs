//! How the workers of right files are divided among devices, cores and memory.

use crate::common::{DIGITS, FakeHost, digits, infer, on, set, workers_of};
use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{Code, DeviceKind, PipelineId};
use orchestra_plan::{PlanOptions, describe};
use orchestra_testkit::workflow_file::WorkflowFile;

#[test]
fn all_gpus_are_used_and_the_batch_sizes_are_planned() {
    let plan = FakeHost::with_gpus(2).good(DIGITS);
    assert_eq!(workers_of(&plan, "classify"), ["cuda:0: 1 x 1", "cuda:1: 1 x 1"]);
    assert_eq!(infer(&plan, "classify").padded_to, Some(32), "a change of size costs a GPU time");
    assert_eq!(plan.devices[1].spec.kind, DeviceKind::Cuda { uuid: "GPU-1".into() });
    let memory = plan.devices[0].memory.unwrap();
    assert_eq!((memory.total >> 30, memory.free >> 30, memory.headroom >> 30), (80, 60, 2));
}

fn two_models() -> WorkflowFile {
    WorkflowFile::new()
        .source("a", "images", "paths = ['a']")
        .source("b", "images", "manifest = '-'")
        .table("models.heavy", "path = 'digits.onnx'\npriority = 30")
        .model("light", "digits.onnx")
        .gray("pa", "a", [32, 32], "")
        .gray("pb", "b", [32, 32], "")
        .infer("light", "pb", "light")
        .infer("heavy", "pa", "heavy")
        .sink("a", "jsonl", "heavy")
        .sink("b", "jsonl", "light")
        .table("sinks.pixels", "kind = 'jsonl'\nfrom = 'pb'\nordered = true")
}

#[test]
fn unconnected_graphs_are_pipelines_that_share_cores_by_priority() {
    let plan = FakeHost::with_cores(8).good(&two_models());
    let names: Vec<&str> = plan.pipelines.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(plan.pipelines[1].sinks.len(), 2);
    for (index, pipeline) in plan.pipelines.iter().enumerate() {
        for stage in &pipeline.stages {
            assert_eq!(plan.stages[stage.index()].pipeline, PipelineId(index as u16));
        }
    }
    assert_eq!(workers_of(&plan, "heavy"), ["cpu: 6 x 1"]);
    assert_eq!(workers_of(&plan, "light"), ["cpu: 2 x 1"]);
    for (cores, heavy, light) in [(1, "1 x 1", "1 x 1"), (4, "3 x 1", "1 x 1"), (64, "8 x 6", "8 x 2")] {
        let plan = FakeHost::with_cores(cores).good(&two_models());
        assert_eq!(workers_of(&plan, "heavy"), [format!("cpu: {heavy}")], "{cores}");
        assert_eq!(workers_of(&plan, "light"), [format!("cpu: {light}")], "{cores}");
    }
    let equal = FakeHost::with_cores(1).good(&two_models().replace("priority = 30", ""));
    assert_eq!(workers_of(&equal, "heavy"), ["cpu: 1 x 1"]);
}

#[test]
fn each_of_several_stages_may_have_all_cores_unless_the_file_says_otherwise() {
    let most = |cores: usize, more: &str| {
        let plan = FakeHost::with_cores(cores).good(&two_models().replace("priority = 30", more));
        let workers = infer(&plan, "heavy").workers[0];
        (workers.count, workers.threads, workers.growth.map(|growth| growth.most))
    };
    assert_eq!(most(1, ""), (1, 1, None));
    assert_eq!(most(2, ""), (1, 1, Some(2)));
    assert_eq!(most(8, ""), (4, 1, Some(8)));
    assert_eq!(most(64, ""), (8, 4, Some(16)));
    assert_eq!(most(8, "threads = 2"), (2, 2, Some(4)));
    assert_eq!(most(8, "streams = 2"), (2, 1, Some(4)));
    assert_eq!(most(8, "workers = 1"), (1, 4, None), "as asked");
    assert_eq!(most(8, "priority = 30"), (6, 1, None), "shares are asked for");
    let alone = FakeHost::with_cores(8).good(DIGITS);
    assert_eq!(infer(&alone, "classify").workers[0].growth, None, "it has all of them");
}

#[test]
fn a_program_is_planned_as_it_says_and_runs_on_the_cores_unless_it_asks_for_gpus() {
    let stage = |name: &str, more: &str| {
        format!(
            "[stages.{name}]\nkind = \"python\"\nscript = \"{name}.py\"\nfrom = \"classify\"\n{more}\n[sinks.of_{name}]\nkind = \"jsonl\"\nfrom = \"{name}\"\n"
        )
    };
    let text = format!("{DIGITS}{}{}", stage("cores", ""), stage("gpu", "batch = { max = 4 }"));
    let plan = FakeHost::with_gpus(1).good(&text);
    assert_eq!(workers_of(&plan, "classify"), ["cuda:0: 1 x 1"]);
    assert_eq!(
        (workers_of(&plan, "cores"), workers_of(&plan, "gpu")),
        (vec!["cpu: 8 x 1".to_owned()], vec!["cuda:0: 1 x 1".to_owned()])
    );
    assert_eq!((infer(&plan, "cores").max_batch, infer(&plan, "gpu").max_batch), (16, 4));
    let layout = &infer(&plan, "cores").layout;
    let input = &layout.inputs[0].tensor;
    assert_eq!((input.to_string(), layout.outputs[0].is_none()), ("f32[batch, 10]".to_owned(), true));
    let described = describe(&plan);
    assert!(
        described.contains("python cores <- classify: model cores/cores.py, gives y f16[batch, 2, ?]"),
        "{described}"
    );
    // Another script, or the same one after a change, does not go on where this one was.
    let changed = text.replace("script = \"cores.py\"", "script = \"gpu.py\"");
    assert_ne!(FakeHost::with_gpus(1).good(&changed).fingerprint, plan.fingerprint);
}

#[test]
fn a_kernel_runs_on_gpus_alone_and_needs_nothing_of_what_models_need_of_one() {
    let kernel = r#"
[stages.twice]
kind = "cuda"
from = "pixels"
source = "twice.cu"
kernel = "twice"
outputs = { y = { dtype = "f32", shape = [1, 32, 32] } }
[sinks.twice]
kind = "jsonl"
from = "twice"
"#;
    let source = |host: FakeHost| {
        host.file("/flows/twice.cu", "#include \"a.cuh\"\n")
            .file("/flows/a.cuh", "#include \"b.cuh\"\n#include \"a.cuh\"")
            .file("/flows/b.cuh", "// b")
    };
    let text = format!("{DIGITS}{kernel}");
    let plan = source(FakeHost::with_gpus(2)).good(&text);
    assert_eq!(workers_of(&plan, "twice"), ["cuda:0: 1 x 1", "cuda:1: 1 x 1"]);
    let model = plan.models.iter().find(|model| model.name == "twice/twice.cu").unwrap();
    let Some(Code::Kernel(kernel)) = &model.code else { panic!("{:?}", model.code) };
    let headers: Vec<&str> = kernel.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((headers, kernel.block), (vec!["a.cuh", "b.cuh"], 256));
    let changed = source(FakeHost::with_gpus(2)).file("/flows/b.cuh", "// c").good(&text);
    assert_ne!(changed.fingerprint, plan.fingerprint, "what it includes makes its results, too");

    // A GPU for which ONNX Runtime lacks something does for the kernel, and the model takes the cores.
    let mut host = source(FakeHost::with_gpus(1));
    if let Ok(machine) = &mut host.machine {
        machine.for_commands = std::mem::take(&mut machine.devices);
        machine.no_gpu = Some("no cuBLAS".into());
    }
    let plan = host.good(&text);
    assert_eq!(workers_of(&plan, "twice"), ["cuda:0: 1 x 1"]);
    assert!(workers_of(&plan, "classify").iter().all(|worker| worker.starts_with("cpu")));
    let lacks = ["device `cuda:0` is not available"];
    assert_eq!(host.errors(&text, &on(&["cuda:0"])), lacks);
    let cores = text.replace("[models.digits]", "[models.digits]\ndevices = [\"cpu\"]");
    let plan = host.good_with(&cores, &on(&["cpu", "cuda:0"]));
    assert_eq!(workers_of(&plan, "twice"), ["cuda:0: 1 x 1"]);

    let refused = ["stage `twice` launches a CUDA kernel, which runs on GPUs alone"];
    assert_eq!(source(FakeHost::with_cores(4)).errors(&text, &PlanOptions::default()), refused);
    assert_eq!(source(FakeHost::with_gpus(1)).errors(&text, &on(&["cpu"])), refused);
    let offline = PlanOptions { offline: true, ..PlanOptions::default() };
    source(FakeHost::with_cores(4)).good_with(&text, &offline);
}

#[test]
fn two_cpu_devices_halve_the_cores() {
    let host = FakeHost::with_cores(4);
    let plan = host.good_with(DIGITS, &on(&["cpu", "cpu"]));
    assert_eq!(workers_of(&plan, "classify"), ["cpu: 2 x 1", "cpu:1: 2 x 1"]);
    let plan = host.good(&format!("{DIGITS}\n[devices]\nuse = [\"cpu\", \"cpu\"]"));
    assert_eq!(workers_of(&plan, "classify"), ["cpu: 2 x 1", "cpu:1: 2 x 1"]);
}

#[test]
fn workers_and_threads_can_be_asked_for() {
    let host = FakeHost::with_cores(32);
    assert_eq!(workers_of(&host.good(DIGITS), "classify"), ["cpu: 8 x 4"]);
    let ask = |pairs: &[(&str, &str)]| workers_of(&host.good_with(DIGITS, &set(pairs)), "classify");
    assert_eq!(ask(&[("models.digits.workers", "2")]), ["cpu: 2 x 16"]);
    assert_eq!(ask(&[("models.digits.threads", "16")]), ["cpu: 2 x 16"]);
    assert_eq!(ask(&[("models.digits.workers", "3"), ("models.digits.threads", "1")]), ["cpu: 3 x 1"]);
}

#[test]
fn several_batches_at_once_take_their_cores_and_slots_and_are_told_of() {
    let host = FakeHost::with_cores(8);
    let plan = host.good_with(DIGITS, &set(&[("models.digits.streams", "2")]));
    assert_eq!(workers_of(&plan, "classify"), ["cpu: 4 x 1"]);
    let run = infer(&plan, "classify");
    assert_eq!((run.streams, run.held_by_workers(), run.layout.slots), (2, 16, 18));
    let text = describe(&plan);
    assert!(text.contains("cpu: 4 workers of 1 thread, with 2 batches at once in each"), "{text}");
    let asked = set(&[("models.digits.streams", "8"), ("models.digits.workers", "1")]);
    let plan = FakeHost::with_gpus(1).good_with(DIGITS, &asked);
    assert_eq!(infer(&plan, "classify").layout.slots, 11);
    assert!(describe(&plan).contains("with 8 batches at once in each"));
    let one = host.good_with(DIGITS, &set(&[("models.digits.streams", "1")]));
    assert_eq!(describe(&one), describe(&host.good(DIGITS)), "one is what there is without the key");
    for wrong in ["0", "9", "\"two\""] {
        let errors = host.errors(DIGITS, &set(&[("models.digits.streams", wrong)]));
        assert!(errors[0].contains("`streams`"), "{errors:?}");
    }
}

#[test]
fn a_model_may_have_devices_of_its_own() {
    let host = FakeHost::with_gpus(2);
    let plan = host.good(&two_models().replace("priority = 30", "devices = [\"cuda:1\"]"));
    assert_eq!(workers_of(&plan, "heavy"), ["cuda:1: 1 x 1"]);
    assert_eq!(workers_of(&plan, "light"), ["cuda:0: 1 x 1", "cuda:1: 1 x 1"]);
    let plan = host.good(&two_models().replace("priority = 30", "devices = [\"cpu\"]"));
    assert_eq!(workers_of(&plan, "heavy"), ["cpu: 8 x 2"]);
    let errors = host.errors(&two_models().replace("priority = 30", "devices = [\"cuda:1\"]"), &on(&["cpu"]));
    assert_eq!(errors, ["device `cuda:1` is not among the devices in use"]);
}

#[test]
fn devices_of_the_command_line_replace_those_of_the_file() {
    let host = FakeHost::with_gpus(2);
    assert_eq!(workers_of(&host.good_with(DIGITS, &on(&["cuda:1"])), "classify"), ["cuda:1: 1 x 1"]);
    assert_eq!(workers_of(&host.good_with(DIGITS, &on(&["GPU-0"])), "classify"), ["cuda:0: 1 x 1"]);
    assert_eq!(workers_of(&host.good_with(DIGITS, &on(&["cpu"])), "classify"), ["cpu: 8 x 2"]);
    let (_, diags) = host.plan(DIGITS, &on(&["cuda:0", "cuda:7"]));
    let error = diags.errors().next().unwrap();
    assert_eq!(error.message, "device `cuda:7` is not available");
    assert_eq!(diags.line_and_column(error.span.unwrap()), (1, 8));
    assert_eq!(diags.to_json()["errors"][0]["in"], "--devices");
}

#[test]
fn a_device_that_is_named_must_exist_and_the_reason_is_given() {
    let (_, diags) = FakeHost::with_cores(2).plan(DIGITS, &on(&["cuda:0"]));
    let error = diags.errors().next().unwrap();
    assert_eq!(error.label, "libnvidia-ml.so was not found");
    assert_eq!(diags.cause(), Some(orchestra_plan::Cause::Unavailable));
}

#[test]
fn a_model_of_one_batch_size_gets_that_size() {
    let plan = FakeHost::with_gpus(1).good(&digits(&[("digits.onnx", "four.onnx")]));
    let run = infer(&plan, "classify");
    assert_eq!((run.max_batch, run.fixed_batch, run.padded_to), (4, Some(4), Some(4)));
    assert_eq!(run.layout.slot_rows, 4);
}

#[test]
fn where_small_batches_run_on_the_cores_two_wait_at_each_worker() {
    let (cores, gpu) = (FakeHost::with_cores(2), FakeHost::with_gpus(1));
    let ready_and_slots = |host: &FakeHost, max: &str| {
        let plan = host.good_with(DIGITS, &set(&[("stages.classify.batch.max", max)]));
        let run = infer(&plan, "classify");
        let workers: usize = run.workers.iter().map(|w| w.most()).sum();
        assert_eq!(run.held_by_workers(), workers * (1 + run.ready));
        (run.ready, run.layout.slots - run.held_by_workers())
    };
    assert_eq!(ready_and_slots(&cores, "64"), (2, 2));
    assert_eq!(ready_and_slots(&cores, "512"), (1, 2), "more than a mebibyte");
    assert_eq!(ready_and_slots(&gpu, "64"), (1, 2));
}

#[test]
fn a_bound_on_memory_takes_slots_but_leaves_one_per_worker() {
    let host = FakeHost::with_cores(2);
    let layout = |memory: &str| {
        infer(&host.good_with(DIGITS, &set(&[("limits.memory", memory)])), "classify").layout.clone()
    };
    let full = infer(&host.good(DIGITS), "classify").layout.clone();
    let bytes = |slots: usize| BatchLayout { slots, ..full.clone() }.total_bytes();
    assert_eq!((layout(&bytes(8).to_string()), full.slots), (full.clone(), 8));
    let slots = |bytes: usize| layout(&bytes.to_string()).slots;
    assert_eq!((slots(bytes(8) - 1), slots(bytes(2))), (7, 2));
    assert_eq!(host.errors(DIGITS, &set(&[("limits.memory", &(bytes(2) - 1).to_string())])).len(), 1);
}
