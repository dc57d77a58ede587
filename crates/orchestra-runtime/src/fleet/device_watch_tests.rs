//! What is noticed of devices, and what of them is told to whom.

use std::sync::mpsc::{Receiver, Sender, channel};

use orchestra_machine::FakeProbe;

use super::*;
use crate::fault_tests::gpus::Gpus;

fn gpu(n: usize) -> Gpu {
    let (memory_total, memory_free) = (24 << 30, 20 << 30);
    Gpu { uuid: format!("GPU-{n}"), memory_total, memory_free, utilization: Some(50), ..Gpu::default() }
}

/// A CPU, then so many GPUs.
fn watch(n_gpus: usize) -> (DeviceWatch, FakeProbe) {
    let cpu = DeviceSpec { name: "cpu".into(), kind: DeviceKind::Cpu };
    let gpus = (0..n_gpus)
        .map(|n| DeviceSpec { name: format!("cuda:{n}"), kind: DeviceKind::Cuda { uuid: gpu(n).uuid } });
    let devices = std::iter::once(cpu).chain(gpus).map(|spec| WatchedDevice::new(&spec, false)).collect();
    (DeviceWatch { devices }, FakeProbe::new((0..n_gpus).map(gpu).collect()))
}

/// This process as a worker of a device.
fn live(device: u16) -> LiveWorker {
    let (worker, stage) = (orchestra_core::WorkerId(7), orchestra_core::StageId(1));
    LiveWorker { worker, stage, device: DeviceId(device), pid: std::process::id() }
}

fn look(watch: &DeviceWatch, probe: &dyn GpuProbe) {
    for n in 0..watch.devices.len() {
        watch.look(DeviceId(n as u16), Some(probe), &[], || true, Duration::ZERO);
    }
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
        look(&watch, &probe);
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
    let (mut watch, probe) = watch(2);
    let (first, second) = (ear(&watch, 1), ear(&watch, 2));
    look(&watch, &probe);
    probe.set(Err(ProbeError::Lost("GPU-0".into())));
    // Only GPU 0 is asked with this answer.
    watch.devices[2].uuid = None;
    for _ in 0..3 {
        look(&watch, &probe);
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
    look(&watch, &probe);
    let all = probe.gpus();
    probe.lose("GPU-0");
    for _ in 1..MISSING_IN_A_ROW {
        look(&watch, &probe);
    }
    probe.set(all);
    look(&watch, &probe);
    assert!(heard.lock().unwrap().is_empty() && watch.lost(DeviceId(1)).is_none());
    probe.lose("GPU-0");
    for _ in 0..MISSING_IN_A_ROW {
        look(&watch, &probe);
    }
    assert_eq!(heard.lock().unwrap().len(), 1);
    assert_eq!(watch.lost(DeviceId(2)), None);
}

#[test]
fn a_driver_that_fails_loses_no_device_and_is_noted_once() {
    let (watch, probe) = watch(1);
    look(&watch, &probe);
    probe.set(Err(ProbeError::NoPermission("not now".into())));
    for _ in 0..10 {
        look(&watch, &probe);
    }
    assert_eq!(watch.lost(DeviceId(1)), None);
    assert!(locked(&watch.devices[1].watched).has_complained);
    // What was never there is not lost either: then the worker says what is wrong.
    let (watch, probe) = super::tests::watch(1);
    probe.lose("GPU-0");
    for _ in 0..10 {
        look(&watch, &probe);
    }
    assert_eq!(watch.lost(DeviceId(1)), None);
}

#[test]
fn a_gpu_that_was_planned_with_and_vanishes_before_the_first_look_is_lost() {
    let (watch, probe) = watch(1);
    locked(&watch.devices[1].watched).is_known = true;
    let heard = ear(&watch, 1);
    probe.lose("GPU-0");
    for _ in 0..MISSING_IN_A_ROW {
        look(&watch, &probe);
    }
    assert_eq!(heard.lock().unwrap().len(), 1);
}

#[test]
fn workers_are_measured_by_their_processes() {
    let (watch, _) = watch(0);
    let me = live(0);
    let gone = LiveWorker { worker: orchestra_core::WorkerId(8), pid: u32::MAX, ..me };
    watch.look(DeviceId(0), None, &[me, gone], || true, Duration::ZERO);
    let workers = watch.workers();
    assert_eq!(workers.len(), 1);
    assert_eq!((workers[0].worker, workers[0].pid), (me.worker, me.pid));
    assert!(workers[0].resident_bytes > 0);
    assert_eq!(watch.usage(DeviceId(0)).worker_memory_max, Some(workers[0].resident_bytes));
}

#[test]
fn in_a_container_another_process_of_the_same_number_is_not_taken_for_a_worker() {
    let ((watch, _), gpus) = (watch(1), Gpus::new(1, 24));
    let pid = std::process::id();
    gpus.probe.change("GPU-0", |gpu| {
        gpu.processes = vec![orchestra_machine::GpuProcess { pid, memory: Some(9 << 30) }];
    });
    let me = live(1);
    let held = |probe: &dyn GpuProbe| {
        watch.look(DeviceId(1), Some(probe), &[me], || true, Duration::ZERO);
        watch.usage(DeviceId(1)).worker_gpu_memory_max
    };
    assert_eq!(held(&Gpus { ids_are_ours: false, ..gpus.clone() }), None);
    assert_eq!(held(&gpus), Some(9 << 30));
}

/// A driver that answers about all GPUs but one, until it is told to.
struct HangingProbe {
    others: FakeProbe,
    hangs: String,
    is_asked: Sender<()>,
    may_answer: Mutex<Receiver<()>>,
}

impl GpuProbe for HangingProbe {
    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
        self.others.gpus()
    }

    fn gpu_by_uuid(&self, uuid: &str) -> Result<Gpu, ProbeError> {
        if uuid == self.hangs {
            self.is_asked.send(()).unwrap();
            self.may_answer.lock().unwrap().recv().unwrap();
        }
        self.others.gpu_by_uuid(uuid)
    }
}

#[test]
fn a_device_whose_driver_hangs_is_called_silent_and_hides_no_other_device() {
    let (watch, others) = watch(2);
    let (asked, is_asked) = channel();
    let (answer, may_answer) = channel();
    let probe =
        HangingProbe { others, hangs: gpu(0).uuid, is_asked: asked, may_answer: Mutex::new(may_answer) };
    let at = |device, now| watch.look(DeviceId(device), Some(&probe), &[], || true, now);
    // Once it answers.
    answer.send(()).unwrap();
    at(1, Duration::ZERO);
    is_asked.recv().unwrap();
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| at(1, Duration::ZERO));
        is_asked.recv().unwrap();
        let (tell, told) = channel();
        watch.ask(DeviceId(2), move |gpu| tell.send(gpu).unwrap());
        at(2, Duration::ZERO);
        assert_eq!(told.try_recv(), Ok(Some(gpu(1))), "the other one is seen");
        watch.note_silence(PATIENCE);
        assert!(!locked(&watch.devices[1].watched).is_silent, "it may take its time");
        watch.note_silence(PATIENCE + Duration::from_millis(1));
        let silent: Vec<bool> = watch.devices.iter().map(|d| locked(&d.watched).is_silent).collect();
        assert_eq!(silent, [false, true, false]);
        assert_eq!((watch.latest(DeviceId(1)), watch.lost(DeviceId(1))), (None, None));
        answer.send(()).unwrap();
        hanging.join().unwrap();
    });
    assert_eq!(watch.latest(DeviceId(1)), Some(gpu(0)));
    watch.note_silence(PATIENCE * 10);
    assert!(!locked(&watch.devices[1].watched).is_silent, "no look goes on");
}

#[test]
fn who_asks_is_told_what_is_seen_by_a_look_that_begins_after_that() {
    let (watch, probe) = watch(1);
    let (tell, told) = channel();
    let ask = |device| {
        let tell = tell.clone();
        watch.ask(DeviceId(device), move |gpu| tell.send(gpu.map(|gpu| gpu.memory_used())).unwrap());
    };
    look(&watch, &probe);
    probe.change("GPU-0", |gpu| gpu.memory_free = 1 << 30);
    ask(1);
    assert!(told.try_recv().is_err(), "no look since");
    look(&watch, &probe);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [Some(23 << 30)], "once");
    probe.set(Err(ProbeError::NoDriver("gone".into())));
    ask(0);
    ask(1);
    look(&watch, &probe);
    ask(7);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [None; 3], "a CPU, a driver that fails, no such device");
}

#[test]
fn who_is_told_of_a_loss_may_ask_the_watch_back() {
    let (watch, probe) = watch(1);
    let watch = Arc::new(watch);
    look(&watch, &probe);
    let (tell, told) = channel();
    let same = Arc::clone(&watch);
    watch.when_lost(DeviceId(1), move |_| tell.send(same.lost(DeviceId(1)).is_some()).unwrap());
    probe.set(Err(ProbeError::Lost("GPU-0".into())));
    look(&watch, &probe);
    assert_eq!(told.try_recv(), Ok(true), "nothing is locked then");
}
