//! How the memory of a GPU is shared out: by what a worker takes (as declared), by priority, and up to the
//! headroom; and where its workers are kept on a machine of several NUMA nodes.

use crate::common::{DIGITS, FakeHost, crops, model, second_model, set};
use orchestra_plan::{
    DeviceView, LEAST_LOADER_BYTES, MachineView, Plan, PlanOptions, RenderStyle, WorkerGrowth, WorkerPlan,
    describe, machine_from_toml,
};
use orchestra_testkit::workflow_file::WorkflowFile;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn workers(plan: &Plan) -> Vec<WorkerPlan> {
    plan.batch_stages().flat_map(|(_, infer)| infer.workers.clone()).collect()
}

fn counts(plan: &Plan) -> Vec<usize> {
    workers(plan).iter().map(|w| w.count).collect()
}

/// Eight GPUs of 24 GB in a machine of two nodes.
fn server() -> MachineView {
    let text = "cores = 96\nmemory = \"384GiB\"\nnodes = 2\n\
        [[devices]]\ncount = 4\nmodel = \"L4\"\nmemory = \"24GiB\"\nfree = \"23.5GiB\"\nmps = true\nnode = 0\n\
        [[devices]]\ncount = 4\nmodel = \"L4\"\nmemory = \"24GiB\"\nfree = \"23.5GiB\"\nmps = true\nnode = 1\n";
    let (machine, diagnostics) = machine_from_toml(text, "server.toml");
    machine.unwrap_or_else(|| panic!("{:?}", diagnostics.all()))
}

#[test]
fn as_many_workers_as_fit_beside_the_headroom_on_each_of_eight_gpus() {
    let host = FakeHost::with(server());
    for (memory, asked, fit) in [
        ("5GiB", "", 4),
        ("5GiB", "workers = 9", 4),
        ("5GiB", "workers = 2", 2),
        ("8GiB", "", 2),
        ("21.5GiB", "", 1),
    ] {
        let plan = host.good(&model(&format!("memory = \"{memory}\"\n{asked}")));
        assert_eq!(counts(&plan), [fit; 8], "{memory} {asked}");
    }
    let more_headroom = model("memory = \"5GiB\"") + "[devices]\nheadroom = \"4GiB\"\n";
    assert_eq!(counts(&host.good(&more_headroom)), [3; 8]);
}

#[test]
fn where_processes_take_turns_one_worker_has_a_gpu_unless_more_are_asked_for_or_priorities_differ() {
    let text = "cores = 16\n[[devices]]\nmodel = \"L4\"\nmemory = \"24GiB\"\n";
    let host = FakeHost::with(machine_from_toml(text, "turns.toml").0.unwrap());
    let declared = host.good(&model("memory = \"2GiB\""));
    assert_eq!(counts(&declared), [1]);
    let why = "stage `classify` on cuda:0: 1 worker: 2 GiB each (declared); more would take turns with it, as no MPS is there";
    assert!(describe(&declared).contains(why), "{}", describe(&declared));
    assert_eq!(counts(&host.good(&model("memory = \"2GiB\"\nworkers = 3"))), [3]);
    let unknown = host.good(DIGITS);
    assert_eq!((counts(&unknown), workers(&unknown)[0].growth), (vec![1], None));
    assert!(
        describe(&unknown).contains("1 worker: what one takes is measured in the run; more would take turns")
    );

    let second = |priority| second_model(&format!("memory = \"2GiB\"\npriority = {priority}"));
    let first = model("memory = \"2GiB\"\npriority = 10");
    assert_eq!(counts(&host.good(&(first.clone() + &second(10)))), [1, 1]);
    assert_eq!(
        counts(&host.good(&(first + &second(30)))),
        [1, 3],
        "turns are equal, so numbers make the shares"
    );
}

#[test]
fn two_models_share_a_gpu_by_need_and_priority() {
    let two = |heavy: &str, light: &str| {
        model(&format!("memory = \"4GiB\"\n{heavy}")) + &second_model(&format!("memory = \"2GiB\"\n{light}"))
    };
    let gpu = |free: u64| {
        let gpu = DeviceView {
            name: "cuda:0".into(),
            uuid: "GPU-0".into(),
            total: 24 * GIB,
            free: free * GIB,
            mps: true,
            ..DeviceView::default()
        };
        FakeHost::with(MachineView {
            cores: 8,
            memory: 64 * GIB,
            devices: vec![gpu],
            ..MachineView::default()
        })
    };
    assert_eq!(counts(&gpu(24).good(&two("", ""))), [4, 3]);
    let weighed = gpu(24).good(&two("priority = 10", "priority = 30"));
    assert_eq!(counts(&weighed), [1, 3]);
    assert!(describe(&weighed).contains("2 GiB each (declared); its share by `priority`"));
    assert_eq!(
        counts(&gpu(24).good(&two("priority = 10\nworkers = 2", "priority = 30"))),
        [2, 4],
        "as asked"
    );
    assert_eq!(counts(&gpu(8).good(&two("", ""))), [1, 1]);
    // What does not fit the one may still fit the other.
    assert_eq!(counts(&gpu(11).good(&two("", ""))), [1, 2]);

    let (plan, diagnostics) = gpu(7).plan(&two("", ""), &PlanOptions::default());
    assert!(plan.is_none() && diagnostics.cause() == Some(orchestra_plan::Cause::Unavailable));
    let error = diagnostics.errors().next().unwrap();
    assert_eq!(
        error.message,
        "device `cuda:0` is too full: one worker per model needs 6 GiB (`classify` 4 GiB + `second` 2 GiB), and 7 GiB of 24 GiB \
         are free, 2 GiB of them headroom"
    );
}

#[test]
fn a_model_of_which_nothing_is_known_is_left_room() {
    let unknown = &second_model("");
    let host = FakeHost::with(server());
    assert_eq!(counts(&host.good(&(model("memory = \"5GiB\"") + unknown))), [1; 16]);
    let asked = counts(&host.good(&(model("memory = \"5GiB\"\nworkers = 3") + unknown)));
    assert_eq!((&asked[..8], &asked[8..]), (&[3; 8][..], &[1; 8][..]), "who asks is given");
    let plan = host.good(&(model("memory = \"5GiB\"") + unknown));
    assert!(
        workers(&plan).iter().all(|w| w.growth == Some(WorkerGrowth { most: 4, is_asked: false })),
        "both may grow"
    );
    assert!(describe(&plan).contains("another model here is measured in the run first, then up to 4"));
}

#[test]
fn where_nothing_is_known_one_worker_is_measured_in_the_run_and_there_are_slots_for_those_that_may_follow() {
    let host = FakeHost::with(server());
    for (asked, most, is_asked) in [("", 4, false), ("workers = 6", 6, true)] {
        let plan = host.good(&model(asked));
        assert!(
            workers(&plan).iter().all(|w| (w.count, w.growth) == (1, Some(WorkerGrowth { most, is_asked })))
        );
        let slots = plan.batch_stages().next().unwrap().1.layout.slots;
        assert_eq!(slots, 2 * 8 * most + 2);
        let text = describe(&plan);
        for part in [
            &format!(
                "cuda:0 to cuda:7: 1 worker of 1 thread at first, up to {most} once it is known that they fit"
            ),
            &format!("what one takes is measured in the run, then up to {most} as far as they fit"),
        ] {
            assert!(text.contains(part.as_str()), "`{part}` is missing:\n{text}");
        }
        let fixed = plan.without_growth();
        assert!(
            workers(&fixed).iter().all(|w| w.count == if is_asked { most } else { 1 } && w.growth.is_none())
        );
    }
    let one = host.good(&model("workers = 1"));
    assert!(workers(&one).iter().all(|w| (w.count, w.growth) == (1, None)));
    // With memory for few slots, as few workers may come; the first ones of all devices need theirs.
    let tight = model("") + "[limits]\nmemory = \"1500KiB\"\n";
    let plan = host.good(&tight);
    let slots = plan.batch_stages().next().unwrap().1.layout.slots;
    let most: usize = workers(&plan).iter().map(WorkerPlan::most).sum();
    assert!((8..32).contains(&slots) && most == slots, "{most} workers, {slots} slots");
    let offline =
        PlanOptions { offline: true, devices: Some(vec!["cuda:0".into()]), ..PlanOptions::default() };
    assert_eq!(workers(&host.good_with(&model("workers = 3"), &offline))[0].count, 3);
}

/// A command with half a GPU, beside the model of this memory.
fn with_a_command(memory: &str, share: &str) -> String {
    model(memory) + &format!("\n[tasks.train]\ncommand = [\"train\"]\ndevice = 0.5\n{share}\n")
}

#[test]
fn more_workers_than_one_leave_commands_what_they_ask_for_and_the_plan_says_what_does_not_fit() {
    let host = FakeHost::with(server());
    // Of 21.5 GiB.
    for (memory, share, count, of_models) in [
        ("memory = \"5GiB\"", "", 4, 20.0),
        ("memory = \"5GiB\"", "gpu_memory = \"6GiB\"", 3, 15.0),
        ("memory = \"5GiB\"", "gpu_memory = \"16.5GiB\"", 1, 5.0),
        ("memory = \"5GiB\"", "gpu_memory = \"16.5GiB\"\npriority = 90", 1, 5.0),
        ("", "gpu_memory = \"6GiB\"", 1, 15.5),
    ] {
        let text = with_a_command(memory, share);
        let (plan, diagnostics) = host.plan(&text, &PlanOptions::default());
        let plan = plan.unwrap();
        assert_eq!(counts(&plan), [count; 8], "{text}");
        let gib = plan.tasks.gpus[7].of_models as f64 / GIB as f64;
        assert!((gib - of_models).abs() < 1e-9, "{gib}: {text}");
        assert_eq!(diagnostics.warnings().count(), 0, "{text}");
    }
    let (plan, diagnostics) =
        host.plan(&with_a_command("memory = \"5GiB\"", "gpu_memory = \"17GiB\""), &PlanOptions::default());
    let warning = diagnostics.warnings().next().unwrap();
    assert_eq!(warning.message, "task `train` has no room beside the models");
    let said = "it asks for 17 GiB, and models leave 16.5 GiB of a GPU";
    assert!(
        diagnostics.render(RenderStyle::Plain).contains(said),
        "{}",
        diagnostics.render(RenderStyle::Plain)
    );
    // A GPU without models has room for it.
    let elsewhere = with_a_command("memory = \"5GiB\"\ndevices = \"cuda:0\"", "gpu_memory = \"17GiB\"");
    assert_eq!(host.plan(&elsewhere, &PlanOptions::default()).1.warnings().count(), 0);
    let text = describe(&host.good(&with_a_command("memory = \"5GiB\"", "gpu_memory = \"6GiB\"")));
    for line in [
        "  cuda:0 to cuda:7    23.5 GiB free - 2 GiB headroom - 6 GiB for commands = 15.5 GiB for workers",
        "  cuda:7    21.5 GiB for commands, 15 GiB of it taken while models are there",
    ] {
        assert!(text.lines().any(|l| l == line), "`{line}` is missing:\n{text}");
    }
    assert_eq!(plan.unwrap().devices[0].memory.unwrap().of_shares, 17 * GIB);
}

proptest! {
    /// Whatever workers take and commands ask for: both together are no more than what is free, or it is said that they are not.
    #[test]
    fn models_and_a_command_are_never_promised_more_than_a_gpu_has(
        memory in 1u64..21,
        workers in 0usize..6,
        share in 1u64..21,
    ) {
        let workers = if workers == 0 { String::new() } else { format!("workers = {workers}") };
        let text = with_a_command(
            &format!("memory = \"{memory}GiB\"\n{workers}"),
            &format!("gpu_memory = \"{share}GiB\""),
        );
        let (plan, diagnostics) = FakeHost::with(server()).plan(&text, &PlanOptions::default());
        let plan = plan.unwrap();
        for (worker, gpu) in self::workers(&plan).iter().zip(&plan.tasks.gpus) {
            let claimed = worker.count as u64 * memory * GIB;
            prop_assert_eq!(gpu.of_models, claimed);
            let fits = claimed + share * GIB <= gpu.memory.unwrap();
            prop_assert!(fits || worker.count == 1, "{}", text);
            prop_assert_eq!(fits, diagnostics.warnings().count() == 0);
        }
    }
}

#[test]
fn workers_of_a_gpu_are_kept_on_its_node_and_the_plan_says_so() {
    let plan = FakeHost::with(server()).good(&model("memory = \"5GiB\""));
    let nodes: Vec<u32> = plan.devices.iter().map(|d| d.cpu_affinity.as_ref().unwrap().node).collect();
    assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(plan.devices[7].cpu_affinity.as_ref().unwrap().cores, (48..96).collect::<Vec<u32>>());
    // 96 loaders need both nodes.
    assert_eq!(plan.loader_affinity, None);
    let text = describe(&plan);
    assert!(
        text.contains("device cuda:4 to cuda:7: its workers stay on NUMA node 1 (cores 48-95)"),
        "{text}"
    );
    assert!(text.contains("2 GiB kept as headroom, on NUMA node 1"), "{text}");

    let one = PlanOptions {
        devices: Some(vec!["cuda:5".into()]),
        set: vec![("limits.loaders".into(), "40".into())],
        ..PlanOptions::default()
    };
    let plan = FakeHost::with(server()).good_with(DIGITS, &one);
    assert_eq!(plan.loader_affinity.as_ref().unwrap().node, 1);
    assert!(describe(&plan).contains("loaders   40 processes on NUMA node 1"));
}

#[test]
fn a_machine_of_one_node_keeps_nothing_anywhere() {
    for nodes in ["", "nodes = 1\n"] {
        let text = format!("cores = 8\n{nodes}[[devices]]\nmemory = \"24GiB\"\nnode = 0\n");
        let host = FakeHost::with(machine_from_toml(&text, "m").0.unwrap());
        let plan = host.good(DIGITS);
        assert_eq!((plan.devices[0].cpu_affinity.clone(), plan.loader_affinity.clone()), (None, None));
        assert!(!describe(&plan).contains("NUMA"));
    }
}

#[test]
fn a_described_machine_is_cut_into_nodes_that_share_its_cores() {
    for (nodes, cores, expected) in [(2, 5, [2, 3].as_slice()), (4, 8, &[2, 2, 2, 2]), (3, 2, &[0, 1, 1])] {
        let machine = machine_from_toml(&format!("cores = {cores}\nnodes = {nodes}\n"), "m").0.unwrap();
        let found: Vec<usize> = machine.nodes.iter().map(|n| n.cores.len()).collect();
        assert_eq!(found, expected);
        let all: Vec<u32> = machine.nodes.into_iter().flat_map(|n| n.cores).collect();
        assert_eq!(all, (0..cores).collect::<Vec<u32>>());
    }
    let (none, diagnostics) =
        machine_from_toml("cores = 8\nnodes = 2\n[[devices]]\nmemory = \"1GiB\"\nnode = 2\n", "m");
    assert!(
        none.is_none() && diagnostics.errors().any(|e| e.message.contains("`node`")),
        "{:?}",
        diagnostics.all()
    );
}

#[test]
fn no_more_loaders_are_planned_than_memory_has_room_for() {
    let plan_of =
        |memory: &str| FakeHost::with_cores(16).good_with(DIGITS, &set(&[("limits.memory", memory)]));
    let why = |plan: &Plan| plan.reasons.iter().find(|reason| reason.starts_with("loaders: ")).cloned();
    let little = plan_of("512MiB");
    assert_eq!((little.loader_bytes, little.n_loaders()), (256 << 20, 2));
    assert!(little.loader_share() >= LEAST_LOADER_BYTES);
    let reason = why(&little).unwrap();
    assert!(reason.contains("2 instead of 16") && reason.contains("limits.memory"), "{reason}");
    assert!(describe(&little).contains("loaders   2 processes"));
    // A source without a loader would never end.
    assert_eq!(plan_of("20MiB").n_loaders(), 1);
    let enough = plan_of("4GiB");
    assert_eq!((enough.n_loaders(), why(&enough)), (16, None));
    assert_eq!(enough.loader_share(), 128 << 20);
    assert_eq!(little.fingerprint, enough.fingerprint, "a run goes on with more memory");
}

proptest! {
    /// However much memory, cores and slots there are: what slots, carried pictures, one loader that has an item alone and all others take together
    /// is no more than the limit, and each of them can decode.
    #[test]
    fn a_loader_that_has_an_item_alone_and_the_shares_of_all_others_stay_within_the_limit(
        memory in prop_oneof![256u64..1024, 1024u64..16_384].prop_map(|mib| mib << 20),
        cores in 1usize..65,
        batch in prop_oneof![1usize..64, 64usize..20_000],
        carries in any::<bool>(),
    ) {
        let crops = crops();
        let (text, stage) = if carries { (&*crops, "find") } else { (DIGITS, "classify") };
        let batch = format!("{{ max = {batch} }}");
        let more = set(&[("limits.memory", &memory.to_string()), (&format!("stages.{stage}.batch"), &batch)]);
        let (plan, _) = FakeHost::with_cores(cores).plan(text, &more);
        // Where not even the slots fit, there is none.
        let Some(plan) = plan else { return Ok(()) };
        let slots: u64 = plan.batch_stages().map(|(_, batch)| batch.layout.total_bytes() as u64).sum();
        let carried = plan.pipelines[0].carried_bytes;
        prop_assert_eq!(carried > 0, carries);
        let (n, share, alone) = (plan.n_loaders() as u64, plan.loader_share(), plan.alone_bytes());
        prop_assert!(slots + carried + (n - 1) * share + alone <= memory.max(slots + carried));
        prop_assert!(n * share <= plan.loader_bytes && alone <= plan.loader_bytes);
        prop_assert!(n == 1 || share >= LEAST_LOADER_BYTES, "{n} of {share}");
        prop_assert!(n == 1 || alone >= (plan.loader_bytes / 2).max(carried + LEAST_LOADER_BYTES), "{alone}");
    }
}

/// A model whose output has any shape, and one whose output has not.
fn open() -> WorkflowFile {
    WorkflowFile::of_pictures("scans")
        .model("any", "any.onnx")
        .model("digits", "digits.onnx")
        .stage("pixels", "image", "scans", "size = [32, 32]")
        .infer("scores", "pixels", "any")
        .gray("gray", "scans", [32, 32], "")
        .infer("digit", "gray", "digits")
        .results(["scores", "digit"])
}

proptest! {
    /// Whatever is asked for: all blocks of slots, and a quarter for outputs of open shape, are within the limit, and each worker that may come has a
    /// slot.
    #[test]
    fn the_slots_of_all_stages_stay_within_the_limit_on_any_machine(
        memory in (16u32..36, 0u64..4096).prop_map(|(power, more)| (1 << power) + (more << (power - 12))),
        (cores, gpus, mps) in (1usize..65, 0usize..9, any::<bool>()),
        (batch, workers, streams) in (1usize..5_000, 1usize..9, 1usize..5),
        (is_open, is_asked) in any::<(bool, bool)>(),
    ) {
        let mut host = FakeHost::with_gpus(gpus);
        let machine = host.machine.as_mut().unwrap();
        machine.cores = cores;
        machine.devices.iter_mut().for_each(|gpu| gpu.mps = mps);
        let (text, stage) =
            if is_open { (open().to_string(), "digit") } else { (model("") + &second_model(""), "classify") };
        let keys = [("limits.memory", memory as usize), ("models.digits.streams", streams), ("models.digits.workers", workers)];
        let mut set: Vec<_> = keys.map(|(key, value)| (key.to_owned(), value.to_string())).into();
        set.push((format!("stages.{stage}.batch"), format!("{{ max = {batch} }}")));
        set.retain(|(key, _)| is_asked || !key.ends_with("workers"));
        let Some(plan) = host.plan(&text, &PlanOptions { set, ..PlanOptions::default() }).0 else { return Ok(()) };
        let slots: u64 = plan.batch_stages().map(|(_, batch)| batch.layout.total_bytes() as u64).sum();
        let of_open = if is_open { memory / 4 } else { 0 };
        prop_assert!(slots + of_open + plan.bytes_left <= memory, "{} of {}", slots, memory);
        for (_, batch) in plan.batch_stages() {
            let workers: usize = batch.workers.iter().map(WorkerPlan::most).sum();
            prop_assert!(workers <= batch.layout.slots);
            let answers = (batch.held_by_workers() + workers + 1) as u64;
            let of_answer = if batch.layout.outputs.contains(&None) { (memory / 4 / answers).max(1 << 20) } else { 0 };
            prop_assert_eq!(batch.answer_bytes as u64, of_answer);
        }
    }
}

#[test]
fn a_number_of_loaders_that_memory_has_no_room_for_is_a_warning_at_its_place() {
    let warnings = |text: &str, memory: &str, more: &str| {
        let text = format!("{text}[limits]\nmemory = \"{memory}\"\n{more}");
        let (plan, diagnostics) = FakeHost::with_cores(16).plan(&text, &PlanOptions::default());
        let said: Vec<String> = diagnostics.warnings().map(|warning| warning.message.clone()).collect();
        (plan.unwrap().n_loaders(), said, diagnostics.render(RenderStyle::Plain))
    };
    let (n, said, report) = warnings(DIGITS, "512MiB", "loaders = 6\n");
    assert_eq!((n, &said[..]), (2, &["`limits.loaders` is 6, but memory has room for 2".to_owned()][..]));
    assert!(report.contains("loaders = 6") && report.contains("2 start"), "{report}");
    // Nothing is said where the file asks for no number, or for one that memory has room for.
    for (memory, more) in [("512MiB", ""), ("512MiB", "loaders = 2\n"), ("4GiB", "loaders = 6\n")] {
        assert_eq!(warnings(DIGITS, memory, more).1, [""; 0], "{memory} {more}");
    }
}
