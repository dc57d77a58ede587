//! The parent never maps ONNX Runtime or CUDA, and processes share no memory that is not theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::common::{Workplace, until};
use orchestra_testkit::processes::with_variable;
use orchestra_testkit::striker::loaders_of;
use rustix::process::{Pid, Signal, kill_process};

/// What only workers may load. NVML (libnvidia-ml) is no part of it, and neither is `libcuda.so`, which it opens by itself since driver 580: it
/// makes no CUDA context.
const FORBIDDEN: [&str; 5] = ["libonnxruntime", "libcudart", "libcudnn", "libcublas", "liborchestra_testkit"];

fn maps(pid: u32) -> String {
    // Empty where it is gone: what is looked for must have been seen in others.
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default()
}

/// Memory without a file that is shared with other processes: its name, and whether it is mapped writable.
fn shared_memory(maps: &str) -> Vec<(&str, bool)> {
    maps.lines()
        .filter_map(|line| {
            let name = line.split_once("/memfd:")?.1.strip_suffix(" (deleted)")?;
            Some((name, line.contains(" rw-s ")))
        })
        .collect()
}

/// The writable memory that a process shares: each piece by its inode, with its name.
fn writable_memory(maps: &str) -> BTreeMap<&str, &str> {
    let piece = |line| {
        let (_, name) = str::split_once(line, "/memfd:")?;
        line.contains(" rw-s ").then_some((line.split_whitespace().nth(4)?, name.strip_suffix(" (deleted)")?))
    };
    maps.lines().filter_map(piece).collect()
}

#[test]
fn each_loader_writes_to_a_region_of_its_own_and_to_no_other_shared_memory() {
    let place = Workplace::with_gate(1_000);
    place.edit("[devices]", "[limits]\nloaders = 3\n[devices]");
    let mut run = place.start_until(1);
    let pid = run.pid();
    let mut of_all: Vec<String> = Vec::new();
    let all_are_there = run.until("three loaders have their regions", || {
        of_all = loaders_of(pid).into_iter().map(|loader| maps(loader.pid)).collect();
        of_all.len() == 3 && of_all.iter().all(|maps| !writable_memory(maps).is_empty())
    });
    assert!(all_are_there, "{}", run.said());
    let regions: Vec<_> = of_all.iter().map(|maps| writable_memory(maps)).collect();
    assert!(regions.iter().all(|own| own.values().eq(&["orchestra-loader"])), "{regions:?}");
    let inodes: BTreeSet<_> = regions.iter().flat_map(BTreeMap::keys).collect();
    assert_eq!(inodes.len(), 3, "{regions:?}");
    place.open_gate();
    run.wait().must_exit(0);
    place.nothing_is_left();
}

#[test]
fn the_parent_maps_no_runtime_while_its_workers_do() {
    let place = Workplace::with_gate(1_000);
    let mut run = place.start_until(100);
    let pid = run.pid();
    // The official builds of ONNX Runtime report sessions to their maker unless this is set. One that has just been started has the environment of the
    // run for a moment.
    let workers = run.workers();
    let all_silent = || {
        let silent: Vec<u32> = with_variable("ORT_DISABLE_TELEMETRY", "1").iter().map(|p| p.pid).collect();
        workers.iter().all(|worker| silent.contains(worker))
    };
    assert!(run.until("all workers have the variable", all_silent), "{workers:?}: {}", run.said());
    let (mut looks, mut inputs) = (0, BTreeSet::new());
    // A worker had the runtime at a moment at which the parent could be looked at.
    let mut seen_in_worker = false;
    until("the run ends", || {
        let maps_of_parent = maps(pid);
        for library in FORBIDDEN {
            assert!(!maps_of_parent.contains(library), "the parent maps `{library}`:\n{maps_of_parent}");
        }
        let of_workers: Vec<(u32, String)> = run.workers().into_iter().map(|w| (w, maps(w))).collect();
        // One that has ended meanwhile was perhaps read in part.
        let live = run.workers();
        let maps_of_workers: Vec<String> = of_workers
            .into_iter()
            .filter(|(worker, _)| live.contains(worker))
            .map(|(_, maps)| maps)
            .collect();
        if maps_of_workers.iter().any(|m| m.contains("libonnxruntime"))
            && maps_of_parent.contains("/orchestra")
        {
            looks += 1;
            seen_in_worker = true;
        }
        // What has a name would stay behind when everybody is killed.
        let has_name = |maps: &String| maps.contains("/dev/shm/");
        assert!(
            !has_name(&maps_of_parent) && !maps_of_workers.iter().any(has_name),
            "shared memory has a name"
        );
        for (name, is_writable) in shared_memory(&maps_of_parent) {
            let is_input = !name.starts_with("outputs-") && name != "orchestra-loader";
            assert_eq!(is_writable, is_input, "in the parent: {name}");
            inputs.extend(is_input.then(|| name.to_owned()));
        }
        for maps in maps_of_workers.iter().filter(|maps| maps.contains("libonnxruntime")) {
            let (own, read): (Vec<_>, Vec<_>) =
                shared_memory(maps).into_iter().partition(|(_, is_writable)| *is_writable);
            assert!(own.len() == 1 && own[0].0.starts_with("outputs-"), "in a worker: {own:?}");
            assert!(read.len() == 1 && inputs.contains(read[0].0), "in a worker: {read:?}");
        }
        if seen_in_worker {
            place.open_gate();
        }
        !run.is_running()
    });
    run.wait().must_exit(0);
    assert!(seen_in_worker, "no worker was seen with the runtime: the look at the parent proves nothing");
    assert_eq!(inputs.len(), 1, "the inputs of one stage lie in one file that has no name");
    println!("{looks} looks at the parent");
    place.nothing_is_left();
}

/// With the files gone, nothing could be decoded again: what the dead workers held goes to their successors from memory.
#[test]
fn pictures_that_were_decoded_are_not_decoded_again_when_workers_die() {
    // They are one batch, which leaves only once it is full: where it waits at the gate, all are decoded.
    const ITEMS: u64 = 8;
    let place = Workplace::with_gate(ITEMS);
    place.edit("wait = \"5ms\"", "wait = \"1h\"");
    place.close_gate_after(0);
    let mut run = place.start(&[]);
    run.must_reach("the batch is with a worker", || place.waiting_at_gate() == 1);
    fs::remove_dir_all(place.images()).unwrap();
    let victims = run.workers();
    assert!(!victims.is_empty());
    for victim in victims {
        let pid = i32::try_from(victim).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
    place.open_gate();
    run.wait().must_exit(0);
    place.holds_exactly(ITEMS);
    let report = place.report();
    assert!(place.restarts() > 0 && report["batches_by_reason"]["retry"].as_u64() > Some(0), "{report}");
    assert_eq!(report["stages"]["pixels"]["in"], ITEMS, "{report}");
    place.nothing_is_left();
}
