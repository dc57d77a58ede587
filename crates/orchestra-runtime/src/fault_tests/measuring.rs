//! What a run finds out about the memory of its workers, and keeps for later plans.

use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::DeviceId;
use orchestra_machine::{FakeProbe, Gpu};
use orchestra_plan::{MeasureKey, Measurements};

use super::fake_plan::plan_of;
use super::fake_process::FakeLauncher;
use super::log::Log;
use super::script::Script;
use super::stage::Stage;
use crate::context::{RunContext, RunOptions};
use crate::device_watch::DeviceOptions;
use crate::worker_memory::keep;

#[tokio::test(start_paused = true)]
async fn a_run_keeps_what_its_only_worker_took_of_the_gpu_once_it_has_done_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let measurements = Measurements::new(folder.path());
    let stage = Stage::of(1);
    let plan = Arc::new(plan_of(&stage));
    let options = RunOptions {
        launcher: Arc::new(FakeLauncher::new(Log::start(), |_| Script::honest())),
        library: PathBuf::from("libnone.so"),
        timeouts: stage.timeouts,
        restart: stage.restart,
        trace: None,
        events: None,
        devices: DeviceOptions { measurements: Some(measurements.clone()), ..DeviceOptions::default() },
    };
    let context = RunContext::new(Arc::clone(&plan), "fake-run".to_owned(), options);
    let gpu = Gpu { uuid: "GPU-0".into(), memory_total: 80 << 30, memory_free: 79 << 30, ..Gpu::default() };
    let probe = FakeProbe::new(vec![gpu]);
    let take = |bytes| probe.change("GPU-0", |gpu| gpu.memory_free -= bytes);
    context.watch.look(Some(&probe), &[], |_| false);
    take(2 << 30);
    context.watch.look(Some(&probe), &[], |_| true);
    take(1 << 30);
    context.watch.look(Some(&probe), &[], |_| true);
    take(5 << 30);
    context.watch.look(Some(&probe), &[], |_| false);
    let key =
        MeasureKey { model: &plan.models[0].digest, device: "fake", max_batch: stage.max_batch, tuning: "" };
    let stats = context.stats.device(DeviceId(0));
    stats.starts.add(1);
    keep(&context);
    assert_eq!(measurements.look_up(&key), None, "it has not done a batch");
    stats.batches.add(1);
    keep(&context);
    assert_eq!(measurements.look_up(&key), Some(3 << 30));
}
