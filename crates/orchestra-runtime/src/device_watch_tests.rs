//! What is noticed of devices, and what of them is told to whom.

use orchestra_core::DeviceSpec;
use orchestra_machine::FakeProbe;

use super::*;

fn gpu(n: usize) -> Gpu {
    Gpu { uuid: format!("GPU-{n}"), memory_total: 24 << 30, memory_free: 20 << 30, ..Gpu::default() }
}

/// A CPU, then so many GPUs.
fn watch(n_gpus: usize) -> (DeviceWatch, FakeProbe) {
    let cpu = DeviceSpec { name: "cpu".into(), kind: DeviceKind::Cpu };
    let gpus = (0..n_gpus)
        .map(|n| DeviceSpec { name: format!("cuda:{n}"), kind: DeviceKind::Cuda { uuid: gpu(n).uuid } });
    let watched = std::iter::once(cpu).chain(gpus).map(|spec| Watched {
        name: spec.name,
        uuid: match spec.kind {
            DeviceKind::Cuda { uuid } => Some(uuid),
            DeviceKind::Cpu => None,
        },
        ..Watched::default()
    });
    (DeviceWatch(Mutex::new(watched.collect())), FakeProbe::new((0..n_gpus).map(gpu).collect()))
}

/// What a manager of the device would hear.
fn ear(watch: &DeviceWatch, device: u16) -> Arc<Mutex<Vec<String>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&heard);
    watch.when_lost(DeviceId(device), move |why| notes.lock().unwrap().push(why));
    heard
}

#[test]
fn each_of_one_two_and_eight_gpus_is_seen_and_the_cpu_has_none() {
    for n in [1, 2, 8] {
        let (watch, probe) = watch(n);
        assert_eq!(watch.latest(DeviceId(1)), None);
        watch.look(Some(&probe), &[], |_| true);
        assert_eq!(watch.latest(DeviceId(0)), None);
        for device in 1..=n {
            assert_eq!(watch.latest(DeviceId(device as u16)), Some(gpu(device - 1)));
        }
        assert_eq!(watch.usage(DeviceId(n as u16)).memory_used_max, Some(4 << 30));
        assert_eq!(watch.latest(DeviceId(n as u16 + 1)), None);
    }
}

#[test]
fn a_gpu_that_the_driver_calls_lost_is_told_once_and_the_other_goes_on() {
    let (watch, probe) = watch(2);
    let (first, second) = (ear(&watch, 1), ear(&watch, 2));
    watch.look(Some(&probe), &[], |_| true);
    probe.set(Err(ProbeError::Lost("GPU-0".into())));
    // Only GPU 0 is asked with this answer.
    watch.0.lock().unwrap()[2].uuid = None;
    for _ in 0..3 {
        watch.look(Some(&probe), &[], |_| true);
    }
    assert_eq!(first.lock().unwrap().len(), 1);
    assert!(first.lock().unwrap()[0].contains("`GPU-0` is lost"), "{first:?}");
    assert!(second.lock().unwrap().is_empty());
    assert_eq!((watch.latest(DeviceId(1)), watch.lost(DeviceId(2))), (None, None));
    assert_eq!(ear(&watch, 1).lock().unwrap().len(), 1, "who comes late is told at once");
}

#[test]
fn a_gpu_that_is_missing_for_a_moment_is_not_lost_and_one_that_stays_away_is() {
    let (watch, probe) = watch(2);
    let heard = ear(&watch, 1);
    watch.look(Some(&probe), &[], |_| true);
    let all = probe.gpus();
    probe.lose("GPU-0");
    for _ in 1..MISSING_IN_A_ROW {
        watch.look(Some(&probe), &[], |_| true);
    }
    probe.set(all);
    watch.look(Some(&probe), &[], |_| true);
    assert!(heard.lock().unwrap().is_empty() && watch.lost(DeviceId(1)).is_none());
    probe.lose("GPU-0");
    for _ in 0..MISSING_IN_A_ROW {
        watch.look(Some(&probe), &[], |_| true);
    }
    assert_eq!(heard.lock().unwrap().len(), 1);
    assert_eq!(watch.lost(DeviceId(2)), None);
}

#[test]
fn a_driver_that_fails_loses_no_device_and_is_noted_once() {
    let (watch, probe) = watch(1);
    watch.look(Some(&probe), &[], |_| true);
    probe.set(Err(ProbeError::NoPermission("not now".into())));
    for _ in 0..10 {
        watch.look(Some(&probe), &[], |_| true);
    }
    assert_eq!(watch.lost(DeviceId(1)), None);
    assert!(watch.0.lock().unwrap()[1].has_complained);
    // What was never there is not lost either: then the worker says what is wrong.
    let (watch, probe) = super::tests::watch(1);
    probe.lose("GPU-0");
    for _ in 0..10 {
        watch.look(Some(&probe), &[], |_| true);
    }
    assert_eq!(watch.lost(DeviceId(1)), None);
}

#[test]
fn a_gpu_that_was_planned_with_and_vanishes_before_the_first_look_is_lost() {
    let (watch, probe) = watch(1);
    watch.0.lock().unwrap()[1].is_known = true;
    let heard = ear(&watch, 1);
    probe.lose("GPU-0");
    for _ in 0..MISSING_IN_A_ROW {
        watch.look(Some(&probe), &[], |_| true);
    }
    assert_eq!(heard.lock().unwrap().len(), 1);
}

#[test]
fn workers_are_measured_by_their_processes() {
    let (watch, _) = watch(0);
    let me = LiveWorker { worker: orchestra_core::WorkerId(7), device: DeviceId(0), pid: std::process::id() };
    let gone = LiveWorker { worker: orchestra_core::WorkerId(8), pid: u32::MAX, ..me };
    watch.look(None, &[me, gone], |_| true);
    let workers = watch.workers();
    assert_eq!(workers.len(), 1);
    assert_eq!((workers[0].worker, workers[0].pid), (me.worker, me.pid));
    assert!(workers[0].resident_bytes > 0);
    assert_eq!(watch.usage(DeviceId(0)).worker_memory_max, Some(workers[0].resident_bytes));
}
