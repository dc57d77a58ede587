//! What a driver tells of a GPU is seen while a run goes on, its loss ends workers that hang, and workers and loaders are kept on the cores that the plan
//! names. There is no GPU here: a probe stands in for the driver, and workers that copy for CUDA. That the work of a lost GPU moves,
//! `fault_tests/devices.rs` and `measuring.rs` of the runtime show.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Workplace, all_copied, audited, bounded, copying, hurried, until};
use orchestra_launch::{
    DeviceId, FakeProbe, Gpu, Launcher, Library, Machine, Plan, PlanOptions, RenderStyle, RunHandle,
    RunOutcome, StartOptions, WorkerEvent,
};
use orchestra_testkit::faulty::FAULT;

const ITEMS: u64 = 200;

fn uuid(n: usize) -> String {
    format!("GPU-{n}")
}

fn gpu(n: usize) -> Gpu {
    let (memory_total, memory_free) = (24 << 30, 20 << 30);
    Gpu { index: n as u32, uuid: uuid(n), memory_total, memory_free, utilization: Some(50), ..Gpu::default() }
}

/// So many GPUs with one worker each.
fn workplace(n_gpus: usize) -> Workplace {
    let mut place = copying(ITEMS, 4, 1, "workers = 1");
    let names: Vec<String> = (0..n_gpus).map(|n| format!("cuda:{n}")).collect();
    place.set("use = [\"cpu\"]", &format!("use = {names:?}"));
    place
}

fn plan(place: &Workplace, machine: &Machine) -> Plan {
    let file = place.path("workflow.toml");
    place.write_workflow();
    let (plan, diagnostics) = orchestra_launch::plan_file(&file, &PlanOptions::default(), machine).unwrap();
    plan.unwrap_or_else(|| panic!("{}", diagnostics.render(RenderStyle::Plain)))
}

fn machine(n_gpus: usize) -> Machine {
    Machine { gpus: (0..n_gpus).map(gpu).collect(), gpu_error: None, ..orchestra_launch::machine() }
}

/// What a run needs of ONNX Runtime when its workers need none.
fn no_library() -> Library {
    Library {
        path: "/nowhere/libonnxruntime.so".into(),
        version: None,
        origin: orchestra_launch::LibraryOrigin::Explicit,
        flavor: orchestra_launch::Flavor::Gpu,
        cuda: orchestra_launch::CudaLibraries::default(),
    }
}

fn options(launcher: impl Launcher + 'static, probe: &FakeProbe) -> StartOptions {
    StartOptions { probe: Some(Arc::new(probe.clone())), ..hurried(launcher) }
}

async fn start(place: &Workplace, plan: Plan, options: StartOptions) -> RunHandle {
    let mut options = orchestra_launch::run_options(options, &plan, Some(&no_library())).unwrap();
    options.devices.look_every = Duration::from_millis(5);
    let run = place.prepare(Arc::new(plan)).unwrap().start(options).await.unwrap();
    place.watch(&run);
    run
}

async fn ended(run: RunHandle, code: i32) -> RunOutcome {
    Workplace::ended_with(bounded("the run ends", run.wait()), code).await
}

/// The cores on which a process may run, as the kernel writes them.
fn allowed(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

#[test]
fn the_workers_of_each_device_are_kept_on_the_cores_of_its_node() {
    audited(async {
        let place = copying(ITEMS, 4, 2, "workers = 1");
        // Two nodes of one core each; on a machine with a single core they share it.
        let cores: Vec<u32> = orchestra_launch::machine().nodes.into_iter().flat_map(|n| n.cores).collect();
        let (first, last) = (*cores.first().unwrap_or(&0), *cores.last().unwrap_or(&0));
        let mut machine = orchestra_launch::machine();
        machine.nodes = vec![
            orchestra_launch::Node { id: 0, cores: vec![first] },
            orchestra_launch::Node { id: 1, cores: vec![last] },
        ];
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&seen);
        let mut options = options(place.faulty_workers(&[(FAULT, "none")]), &FakeProbe::new(Vec::new()));
        options.events = Some(Arc::new(move |event| {
            if let WorkerEvent::Started { device, pid: Some(pid), .. } = event {
                notes.lock().unwrap().push((*device, allowed(*pid)));
            }
        }));
        ended(start(&place, plan(&place, &machine), options).await, 0).await;
        all_copied(&place, ITEMS, "kept on cores");
        let mut seen = seen.lock().unwrap().clone();
        seen.sort();
        let expected = [(DeviceId(0), Some(first.to_string())), (DeviceId(1), Some(last.to_string()))];
        assert_eq!(seen, expected);
    });
}

#[test]
fn what_a_run_takes_can_be_seen_while_it_runs() {
    audited(async {
        let place = workplace(1);
        let probe = FakeProbe::new(vec![gpu(0)]);
        // It waits for us: the run does not end before its GPU is lost.
        let workers = place.faulty_workers(&[(FAULT, "hang-on-batch:1")]);
        let run = start(&place, plan(&place, &machine(1)), options(workers, &probe)).await;
        let snapshots = run.snapshots();
        until("the GPU is seen", || snapshots.borrow().devices[0].gpu == Some(gpu(0))).await;
        probe.change(&uuid(0), |gpu| gpu.memory_free = 1 << 30);
        let used = || snapshots.borrow().devices[0].gpu.as_ref().map(Gpu::memory_used);
        until("its memory changes", || used() == Some(23 << 30)).await;
        probe.lose(&uuid(0));
        assert_eq!(ended(run, 69).await.report.devices[0].usage.memory_used_max, Some(23 << 30));
    });
}

/// Where the threads of this process with this name may run.
fn threads_on(name: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_task = tasks.filter_map(|task| {
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        let id = task.file_name().to_str()?.parse().ok()?;
        (comm.trim() == name).then(|| allowed(id))?
    });
    of_task.collect()
}

#[test]
fn loaders_are_kept_on_the_node_of_the_gpus_if_all_of_these_are_on_one() {
    audited(async {
        let mut place = workplace(1);
        place.set("[limits]\n", "[limits]\nloaders = 1\n");
        let cores: Vec<u32> = orchestra_launch::machine().nodes.into_iter().flat_map(|n| n.cores).collect();
        let last = *cores.last().unwrap_or(&0);
        let mut machine = machine(1);
        let node = |id| orchestra_launch::Node { id, cores: vec![last] };
        machine.nodes = vec![node(0), node(1)];
        machine.gpus[0].numa_node = Some(1);
        let plan = plan(&place, &machine);
        assert_eq!(plan.loader_affinity.as_ref().map(|near| near.node), Some(1));
        let probe = FakeProbe::new(vec![gpu(0)]);
        let workers = place.faulty_workers(&[(FAULT, "hang-on-batch:1")]);
        let run = start(&place, plan, options(workers, &probe)).await;
        until("the loader is on its core", || threads_on("loader") == [last.to_string()]).await;
        let snapshots = run.snapshots();
        until("the GPU is seen", || snapshots.borrow().devices[0].gpu.is_some()).await;
        probe.lose(&uuid(0));
        ended(run, 69).await;
    });
}
