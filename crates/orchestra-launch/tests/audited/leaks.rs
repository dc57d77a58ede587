//! Runs leave nothing behind in the process that hosts them, however they end: no process, descriptor, memory, thread, actor or credit.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{AS_IT_IS, Workplace, audited, audited_without_runtime, bounded, hurried, until};
use orchestra_launch::{Earlier, RunHandle, StartOptions};
use orchestra_testkit::records::items;
use orchestra_testkit::{Trap, images, models, trap_stage};

const ITEMS: u64 = 200;

/// Two models in a row, and a branch.
fn workplace() -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    let same = models::affine(&place.models(), &[1, 32, 32]).unwrap();
    place
        .gated("blocks", 2)
        .model("affine", same, "")
        .image("pixels", "scans", AS_IT_IS)
        .infer("twice", "pixels", "affine", 4)
        .infer("read", "twice", "blocks", 2)
        .infer("also", "pixels", "blocks", 8)
        .sink("read", "read", "")
        .sink("also", "also", "")
        .devices(1);
    place
}

#[test]
fn a_worker_is_waited_for_when_its_host_has_dropped_its_runtime() {
    audited_without_runtime(|| {
        let place = Workplace::new();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let launched = runtime.block_on(async { place.launch_one() });
        // No task is left that would wait for it, and nothing that hears of its end.
        drop(runtime);
        drop(launched);
    });
}

#[test]
fn a_run_with_items_that_fail_leaves_nothing() {
    audited(async {
        let place = workplace();
        images::write_bad_pictures(&place.path("images")).unwrap();
        Workplace::must_end_with(&place.run().await, 65);
    });
}

#[test]
fn a_run_without_a_device_leaves_nothing() {
    audited(async {
        let place = workplace();
        let mut options = place.options();
        options.launcher = Some(Arc::new(place.faulty_workers(&[("ORCHESTRA_FAULT", "abort-at-load")])));
        options.restart.first_pause = std::time::Duration::from_millis(5);
        Workplace::must_end_with(&place.run_with(options).await, 69);
    });
}

/// A run that has done some items and then waits for the gate: whatever is done to it comes before its end. More rows than one of the branches has
/// pass, so that both have some.
async fn under_way(place: &Workplace) -> RunHandle {
    let gate = place.gate();
    gate.close_after(ITEMS as usize + 20).unwrap();
    let run = place.start().await;
    let meter = run.meter();
    until("items are done", || gate.n_waiting() > 0 && meter.stats().done.get() > 0).await;
    run
}

async fn is_stopped(abort: bool) {
    let place = workplace();
    let run = under_way(&place).await;
    let stop = run.stop_handle();
    if abort {
        stop.abort();
        stop.interrupt();
    } else {
        stop.interrupt();
        place.gate().open().unwrap();
    }
    Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 130);
    completes(&place).await;
}

/// Runs to the end what an earlier run has left.
async fn completes(place: &Workplace) {
    place.gate().open().unwrap();
    let outcome = Workplace::ended_with(place.run(), 0).await;
    assert!(outcome.report.items.resumed > 0, "the earlier run's results count");
    let records = place.records(&["read.jsonl", "also.jsonl"]);
    records.must_be(2, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
}

#[test]
fn a_run_that_is_interrupted_or_aborted_leaves_nothing() {
    [false, true].into_iter().for_each(|abort| audited(is_stopped(abort)));
}

#[test]
fn a_run_that_is_aborted_while_a_decoder_hangs_leaves_nothing() {
    audited(async {
        let mut place = Workplace::with_pictures(ITEMS);
        // The last one: on one core there is one loader.
        images::write_trap_picture(&place.path("images"), ITEMS - 1, Trap::Hang).unwrap();
        let model = models::blocks(&place.models(), [1, 32, 32]).unwrap();
        place
            .model("blocks", model, "workers = 1")
            .image("pixels", "scans", AS_IT_IS)
            .add("[stages.trap]\nkind = \"trap\"\nfrom = \"pixels\"")
            .infer("read", "trap", "blocks", 8)
            .sink("read", "read", "")
            .devices(1);
        let (plan, options) = (place.plan_with(trap_stage::kinds()), hurried(place.faulty_workers(&[])));
        let run = bounded("the run starts", orchestra_launch::start(plan, options)).await.unwrap();
        place.watch(&run);
        let meter = run.meter();
        until("others are done", || meter.stats().done.get() == ITEMS - 1).await;
        run.stop_handle().abort();
        Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 130);
        assert_eq!(place.loaders(), [], "no loader outlives its run");
    });
}

#[test]
fn a_run_that_is_dropped_or_whose_wait_is_given_up_leaves_nothing() {
    [false, true].into_iter().for_each(|waits| audited(is_dropped(waits)));
}

async fn is_dropped(waits: bool) {
    let place = workplace();
    let run = under_way(&place).await;
    if waits {
        let waiting = tokio::spawn(run.wait());
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
    } else {
        drop(run);
    }
    until("the output folder is free", || place.prepare(Arc::new(place.plan())).is_ok()).await;
    completes(&place).await;
}

#[test]
fn a_run_that_is_refused_leaves_nothing() {
    audited(async {
        let mut place = workplace();
        place.run().await;
        place.source("other", "images").image("more", "other", AS_IT_IS).sink("more", "more", "");
        assert!(orchestra_launch::start(place.plan(), place.options()).await.is_err());
        let options = StartOptions { earlier: Earlier::Discard, ..place.options() };
        Workplace::must_end_with(&place.run_with(options).await, 0);
    });
}

/// The audit itself: what is held is named, as long as it is held.
#[test]
fn a_run_under_way_is_seen_by_the_audit_and_one_that_is_over_is_not() {
    audited(async {
        let place = workplace();
        let run = under_way(&place).await;
        let left = place.leaks().join("\n");
        for what in ["process ", "holders", "slots in use"] {
            assert!(left.contains(what), "{left}");
        }
        place.gate().open().unwrap();
        Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 0);
        until("nothing is left", || place.leaks().is_empty()).await;
    });
}
