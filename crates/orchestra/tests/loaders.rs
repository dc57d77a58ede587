//! Loader processes: a picture that kills its loader, hangs, takes all memory or tries to get out fails by name; all others are done, whatever
//! is done to the processes.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::LazyLock;
use std::time::Duration;

use common::{AS_IT_IS, Workplace, audited, bounded, hurried, until};
use orchestra::{RunOutcome, StartOptions};
use orchestra_testkit::faulty::{LOADER_FAULT, LOADER_FAULT_ONCE, LoaderFault};
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::{ItemKey, items};
use orchestra_testkit::striker::{Fault, Striker, strike};
use orchestra_testkit::trap_stage::{self, BLOAT};
use orchestra_testkit::{GOT_THROUGH, INHERITED_FD, INTRUDE, Trap, models};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

const ITEMS: u64 = 400;

/// Pictures through the trap stage to a model.
fn workplace(items: u64) -> Workplace {
    let mut place = Workplace::with_pictures(items);
    let model = models::blocks(&place.models(), [1, 32, 32]).unwrap();
    place
        .model("blocks", model, "workers = 1")
        .image("pixels", "scans", AS_IT_IS)
        .add("[stages.trap]\nkind = \"trap\"\nfrom = \"pixels\"")
        .infer("read", "trap", "blocks", 8)
        .sink("all", "read", "")
        .devices(1);
    place
}

/// Loaders that know the trap stage.
fn options(place: &Workplace, variables: &[(&str, &str)]) -> StartOptions {
    hurried(place.faulty_workers(variables))
}

async fn run(place: &Workplace, variables: &[(&str, &str)]) -> RunOutcome {
    let plan = place.plan_with(trap_stage::kinds());
    place.run_plan_with(plan, options(place, variables)).await
}

/// All items but these are done, and these failed as they should, the last of them with this error.
fn failed(place: &Workplace, total: u64, failed: &[(u64, &str)]) -> String {
    let records = place.records(&["all.jsonl"]);
    let bad = |index: &u64| failed.iter().any(|(bad, _)| bad == index);
    let done = items("scans", (0..total).filter(|index| !bad(index)));
    records.must_be(1, &done, &items("scans", failed.iter().map(|(index, _)| *index))).unwrap();
    let mut error = String::new();
    for (index, kind) in failed {
        let key = ItemKey { source: "scans".into(), index: *index };
        assert_eq!(records.failure_kind(&key), Some(*kind), "{:?}", records.failed[&key]);
        error = records.failed[&key]["error"].as_str().unwrap().to_owned();
    }
    error
}

fn trap(place: &Workplace, index: u64, trap: Trap) {
    write_trap_picture(&place.path("images"), index, trap).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_kills_its_loader_fails_by_name_and_its_neighbours_are_done() {
    let place = workplace(ITEMS);
    trap(&place, 20, Trap::Abort);
    trap(&place, 21, Trap::Segfault);
    trap(&place, 200, Trap::Exit);
    trap(&place, 300, Trap::Fail);
    let outcome = run(&place, &[]).await;
    Workplace::must_end_with(&outcome, 65);
    failed(&place, ITEMS, &[(20, "crash"), (21, "crash"), (300, "result"), (200, "crash")]);
    assert!(outcome.report.loaders.restarts >= 6, "each of three twice: {:#?}", outcome.report);
    assert!(outcome.report.devices.iter().all(|device| device.restarts == 0), "no worker pays for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_never_ends_is_killed_with_its_loader_after_item_timeout() {
    let mut place = workplace(ITEMS);
    place.add("[limits]\nitem_timeout = \"1s\"");
    trap(&place, 7, Trap::Hang);
    let outcome = run(&place, &[]).await;
    Workplace::must_end_with(&outcome, 65);
    let error = failed(&place, ITEMS, &[(7, "timeout")]);
    assert!(error.contains("limits.item_timeout (1 s)"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_takes_more_memory_than_loaders_may_have_fails_and_the_run_goes_on() {
    let mut place = workplace(ITEMS);
    place.add("[limits]\nmemory = \"512MiB\"");
    orchestra_testkit::images::write_first_pixel(&place.path("images"), 11, BLOAT).unwrap();
    // One that is told so, and does not die of it.
    trap(&place, 12, Trap::OutOfMemory);
    let outcome = run(&place, &[]).await;
    Workplace::must_end_with(&outcome, 65);
    let error = failed(&place, ITEMS, &[(11, "out_of_memory"), (12, "out_of_memory")]);
    assert!(error.contains("256 MiB") && error.contains("limits.memory"), "{error}");
    assert!(error.contains("the test stage found no memory"), "{error}");
}

/// Leaves a descriptor open that every program inherits which this process starts.
fn leave_open() {
    static OPEN: LazyLock<OwnedFd> = LazyLock::new(|| {
        let open = fcntl_dupfd_cloexec(File::open("/etc/hostname").unwrap(), INHERITED_FD).unwrap();
        assert_eq!(open.as_raw_fd(), INHERITED_FD, "the number is taken");
        fcntl_setfd(&open, FdFlags::empty()).unwrap();
        open
    });
    LazyLock::force(&OPEN);
}

/// What a picture does in a loader that makes it try to get out: the names of what it got through with.
async fn intrude(sandbox: &str) -> String {
    let private = tempfile::tempdir().unwrap();
    std::fs::write(private.path().join("secret.txt"), "nobody writes this").unwrap();
    std::fs::write(private.path().join("removable"), "nobody removes this").unwrap();
    leave_open();
    let mut place = workplace(ITEMS);
    place.add(&format!("[limits]\nsandbox = \"{sandbox}\""));
    trap(&place, 5, Trap::Intrude);
    let outcome = run(&place, &[(INTRUDE, private.path().to_str().unwrap())]).await;
    Workplace::must_end_with(&outcome, 65);
    let error = failed(&place, ITEMS, &[(5, "result")]);
    let is_untouched = std::fs::read_to_string(private.path().join("secret.txt")).unwrap()
        == "nobody writes this"
        && private.path().join("removable").exists()
        && !private.path().join("written").exists();
    assert_eq!(is_untouched, sandbox != "off", "{error}");
    error.split_once(GOT_THROUGH).unwrap().1.trim().trim_end_matches('.').to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoder_that_ran_wild_reads_and_writes_no_file_and_reaches_no_network_and_no_process() {
    for sandbox in ["auto", "require"] {
        assert_eq!(intrude(sandbox).await, "", "sandbox = \"{sandbox}\"");
    }
}

/// That the attempts can succeed at all.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_sandbox_a_decoder_may_what_its_user_may() {
    let through = intrude("off").await;
    for attempt in [
        "reading /etc/passwd",
        "reading a secret",
        "listing a folder",
        "writing a file",
        "an address of TCP",
        "a local socket",
        "another process",
        "a signal to the parent",
    ] {
        assert!(through.contains(attempt), "not `{attempt}`: {through}");
    }
}

/// Links are followed wherever they lead; what none of them leads to stays closed.
#[tokio::test(flavor = "multi_thread")]
async fn pictures_that_are_links_to_elsewhere_are_read_and_a_hostile_one_still_gets_nowhere() {
    let elsewhere = tempfile::tempdir().unwrap();
    let private = tempfile::tempdir().unwrap();
    std::fs::write(private.path().join("secret.txt"), "nobody reads this").unwrap();
    let mut place = workplace(ITEMS);
    place.add("[limits]\nsandbox = \"require\"");
    trap(&place, 5, Trap::Intrude);
    for index in 0..ITEMS {
        let link = place.path("images").join(format!("{index:08}.png"));
        let folder = elsewhere.path().join(format!("{}", index % 3));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("{index}.png"));
        std::fs::copy(&link, &file).unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
    }
    let outcome = run(&place, &[(INTRUDE, private.path().to_str().unwrap())]).await;
    Workplace::must_end_with(&outcome, 65);
    let error = failed(&place, ITEMS, &[(5, "result")]);
    assert_eq!(error.split_once(GOT_THROUGH).unwrap().1.trim(), ".", "{error}");
    assert_eq!(outcome.report.loaders.restarts, 0, "none was lost: {:#?}", outcome.report.loaders);
}

#[tokio::test(flavor = "multi_thread")]
async fn loaders_that_are_killed_or_stopped_all_the_time_lose_and_double_nothing() {
    for (fault, items) in [(Fault::Kill, 20_000), (Fault::Stop, 8_000)] {
        let place = workplace(items);
        let plan = place.plan_with(trap_stage::kinds());
        let run = bounded("the run starts", orchestra::start(plan, options(&place, &[]))).await.unwrap();
        place.watch(&run);
        let striker = Striker::of_loaders(std::process::id(), Duration::from_millis(20), fault);
        let outcome = bounded("the run ends", run.wait()).await;
        let struck = striker.stop();
        Workplace::must_end_with(&outcome, 0);
        failed(&place, items, &[]);
        assert!(outcome.report.loaders.restarts > 0, "{fault:?}: {} strikes", struck.len());
    }
}

#[test]
fn a_run_that_is_aborted_while_a_decoder_hangs_leaves_no_process() {
    audited(async {
        let place = workplace(ITEMS);
        trap(&place, 0, Trap::Hang);
        let plan = place.plan_with(trap_stage::kinds());
        let run = bounded("the run starts", orchestra::start(plan, options(&place, &[]))).await.unwrap();
        place.watch(&run);
        let meter = run.meter();
        until("others are done", || meter.stats().done.get() > 100).await;
        run.stop_handle().abort();
        Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 130);
        assert_eq!(place.loaders(), [], "no loader outlives its run");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_knows_no_such_kind_ends_the_run_with_its_name() {
    let place = workplace(ITEMS);
    let plan = place.plan_with(trap_stage::kinds());
    // The worker of the library knows the kinds of the library.
    let outcome = place.run_plan_with(plan, hurried(place.workers_of_ours())).await;
    Workplace::must_end_with(&outcome, 69);
    assert!(outcome.problems.iter().any(|p| p.contains("no kind `trap`")), "{:?}", outcome.problems);
}

/// What it says is not believed where that can be seen; what it made up of an item of its own is that item's end.
#[tokio::test(flavor = "multi_thread")]
async fn a_loader_that_ran_wild_holds_up_no_run_and_is_replaced() {
    for (name, fault) in LoaderFault::NAMES {
        let mut place = workplace(ITEMS);
        place.add("[limits]\nloaders = 1\nitem_timeout = \"20s\"");
        let once = place.path("once");
        let variables = [(LOADER_FAULT, name), (LOADER_FAULT_ONCE, once.to_str().unwrap())];
        let outcome = run(&place, &variables).await;
        assert!(once.exists(), "no loader misbehaved with {name}");
        // The first item is what the nonsense was about.
        let bad: &[(u64, &str)] = if fault == LoaderFault::Nonsense { &[(0, "crash")] } else { &[] };
        Workplace::must_end_with(&outcome, if bad.is_empty() { 0 } else { 65 });
        failed(&place, ITEMS, bad);
        assert!(outcome.report.loaders.restarts >= 1, "{name}: {:#?}", outcome.report.loaders);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_loader_that_is_killed_once_costs_no_item() {
    let place = workplace(ITEMS);
    let plan = place.plan_with(trap_stage::kinds());
    let run = bounded("the run starts", orchestra::start(plan, options(&place, &[]))).await.unwrap();
    place.watch(&run);
    until("a loader is there", || {
        place.loaders().first().is_some_and(|loader| strike(std::process::id(), loader.pid, Fault::Kill))
    })
    .await;
    Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 0);
    failed(&place, ITEMS, &[]);
}
