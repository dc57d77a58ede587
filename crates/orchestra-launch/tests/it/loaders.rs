//! Loader processes: a picture that kills its loader, hangs, takes all memory or tries to get out fails by name; all others are done, whatever
//! is done to the processes.

#[cfg(feature = "cloud")]
#[path = "../../../../tests/store/mod.rs"]
mod store;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{AS_IT_IS, Workplace, bounded, hurried, numbers};
use orchestra_core::DType;
use orchestra_launch::{ProcessLauncher, RunHandle, RunOutcome, StartOptions};
use orchestra_testkit::bait::LaidBait;
use orchestra_testkit::faulty::{LOADER_FAULT, LOADER_FAULT_ONCE, LOADER_FAULTS};
use orchestra_testkit::images::{index_of_blocks, write_trap_picture};
use orchestra_testkit::records::{ItemKey, items};
use orchestra_testkit::size::scaled;
use orchestra_testkit::striker::{Fault, strike};
use orchestra_testkit::trap_stage;
use orchestra_testkit::{SCRIBBLES, Trap, bait, models};
#[cfg(feature = "cloud")]
use store::Store;

const ITEMS: u64 = 400;

/// Pictures through the trap stage to a model.
fn workplace(items: u64) -> Workplace {
    workplace_of(items, |folder| models::blocks(folder, [1, 32, 32]).unwrap())
}

/// Likewise, to the model that this writes.
fn workplace_of(items: u64, write: impl FnOnce(&Path) -> PathBuf) -> Workplace {
    let mut place = Workplace::with_pictures(items);
    let model = write(&place.models());
    place
        .model("blocks", model, "workers = 1")
        .image("pixels", "scans", AS_IT_IS)
        .add("[stages.trap]\nkind = \"trap\"\nfrom = \"pixels\"")
        .infer("read", "trap", "blocks", 8)
        .sink("all", "read", "")
        .devices(1);
    place
}

/// Of 32 by 32 pixels, one of each of the 4 by 8 blocks.
fn one_of_each_block(pixels: &[f32]) -> Vec<f32> {
    (0..32).map(|block| pixels[(block / 8 * 8 + 4) * 32 + block % 8 * 4 + 2]).collect()
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
    trap(&place, 22, Trap::Threads);
    trap(&place, 200, Trap::Exit);
    trap(&place, 300, Trap::Fail);
    let outcome = Workplace::ended_with(run(&place, &[]), 65).await;
    failed(&place, ITEMS, &[(20, "crash"), (21, "crash"), (22, "crash"), (300, "result"), (200, "crash")]);
    assert!(outcome.report.loaders.restarts >= 8, "each of four twice: {:#?}", outcome.report);
    assert!(outcome.report.devices.iter().all(|device| device.restarts == 0), "no worker pays for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_never_ends_is_killed_with_its_loader_after_item_timeout_and_no_two_decode_at_once() {
    let mut place = workplace(ITEMS);
    place.add("[limits]\nloaders = 1\nitem_timeout = \"5s\"");
    [7, 8].into_iter().for_each(|index| trap(&place, index, Trap::Hang));
    let run = run(&place, &[]);
    tokio::pin!(run);
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let mut most = 0;
    let outcome = loop {
        tokio::select! {
            outcome = &mut run => break outcome,
            _ = look.tick() => most = most.max(place.loaders().len()),
        }
    };
    Workplace::must_end_with(&outcome, 65);
    let error = failed(&place, ITEMS, &[(7, "timeout"), (8, "timeout")]);
    assert!(error.contains("limits.item_timeout (5 s)"), "{error}");
    assert_eq!(
        (most, outcome.report.loaders.restarts),
        (1, 2),
        "loaders at once, and those that were replaced"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_takes_more_memory_than_loaders_may_have_fails_and_the_run_goes_on() {
    let mut place = workplace(ITEMS);
    place.add("[limits]\nmemory = \"512MiB\"");
    trap(&place, 11, Trap::Bloat);
    // One that is told so, and does not die of it.
    trap(&place, 12, Trap::OutOfMemory);
    Workplace::ended_with(run(&place, &[]), 65).await;
    let error = failed(&place, ITEMS, &[(11, "out_of_memory"), (12, "out_of_memory")]);
    assert!(error.contains("256 MiB") && error.contains("limits.memory"), "{error}");
    assert!(error.contains("the test stage found no memory"), "{error}");
}

/// What a picture does in a loader that makes it try to get out: the error that it fails with, which names what it got through with.
async fn intrude(place: &mut Workplace, total: u64, sandbox: &str) -> String {
    let private = tempfile::tempdir().unwrap();
    let bait = LaidBait::new(private.path(), &place.path("images")).unwrap();
    bait::leave_open();
    bait::a_plain_child_has_them().unwrap();
    place.add(&format!("[limits]\nsandbox = \"{sandbox}\""));
    let (name, text) = bait.variable();
    let outcome = Workplace::ended_with(run(place, &[(name, &text)]), 65).await;
    assert_eq!(outcome.report.loaders.restarts, 0, "none was lost: {:#?}", outcome.report.loaders);
    let error = failed(place, total, &[(5, "result")]);
    assert_eq!(bait.is_untouched(), sandbox != "off", "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoder_that_ran_wild_reads_and_writes_no_file_and_reaches_no_network_and_no_process() {
    if !bait::has_secret(
        "loaders::a_decoder_that_ran_wild_reads_and_writes_no_file_and_reaches_no_network_and_no_process",
    ) {
        return;
    }
    for sandbox in ["auto", "require", "off"] {
        let mut place = workplace(ITEMS);
        trap(&place, 5, Trap::Intrude);
        let error = intrude(&mut place, ITEMS, sandbox).await;
        let through = bait::got_through(&error);
        match sandbox {
            // That the attempts can succeed at all.
            "off" => assert_eq!(through, bait::unconfined(&[bait::ALWAYS_CLOSED, bait::NEVER_GIVEN])),
            _ => assert_eq!(through, BTreeSet::new(), "sandbox = \"{sandbox}\""),
        }
    }
}

/// What reads objects has the network and certificates, and no more.
#[cfg(feature = "cloud")]
#[tokio::test(flavor = "multi_thread")]
async fn a_decoder_of_objects_that_ran_wild_connects_over_ip_and_reaches_nothing_else() {
    if !bait::has_secret(
        "loaders::a_decoder_of_objects_that_ran_wild_connects_over_ip_and_reaches_nothing_else",
    ) {
        return;
    }
    const OBJECTS: u64 = 40;
    for sandbox in ["auto", "require", "off"] {
        let mut place = workplace(OBJECTS);
        trap(&place, 5, Trap::Intrude);
        let store = Store::start(&place.path("images"));
        let url = |index| format!("http://127.0.0.1:{}/bucket/{index:08}.png", store.port());
        let urls: Vec<String> = (0..OBJECTS).map(url).collect();
        place.set("paths = [\"images\"]", &format!("paths = {urls:?}"));
        let error = intrude(&mut place, OBJECTS, sandbox).await;
        let through = bait::got_through(&error);
        match sandbox {
            "off" => assert_eq!(through, bait::unconfined(&[bait::ALWAYS_CLOSED, bait::NEVER_GIVEN])),
            // The names of users lie where those of hosts do.
            _ => assert_eq!(through, ["an address of TCP", "reading /etc/passwd"].into(), "{sandbox}"),
        }
    }
}

/// It writes over its region, with the place in it that says how far it is, and over whatever else it can map.
#[tokio::test(flavor = "multi_thread")]
async fn a_decoder_that_writes_over_all_memory_that_it_reaches_spoils_and_fails_no_other_item() {
    for sandbox in ["require", "auto"] {
        // Its worker copies rows, so records show what came out of the loader.
        let write = |folder: &Path| models::identity(folder, DType::F32, &[1, 32, 32]).unwrap();
        let mut place = workplace_of(ITEMS, write);
        place.add(&format!("[limits]\nloaders = 2\nsandbox = \"{sandbox}\""));
        // The first of its process: what that has sent, and the parent has not taken yet, is its own to spoil.
        trap(&place, 0, Trap::Scribble);
        let outcome = Workplace::ended_with(run(&place, &[]), 65).await;
        let error = failed(&place, ITEMS, &[(0, "crash")]);
        assert!(error.contains(SCRIBBLES), "it did not come to that: {error}");
        for (key, of_item) in &place.records(&["all.jsonl"]).done {
            let pixels = numbers(&of_item["all.jsonl"], "y");
            assert_eq!(index_of_blocks(&one_of_each_block(&pixels)), Some(key.index), "{key}");
        }
        assert!(outcome.report.devices.iter().all(|device| device.restarts == 0), "no worker pays for it");
    }
}

/// Links are followed wherever they lead; what none of them leads to stays closed.
#[tokio::test(flavor = "multi_thread")]
async fn pictures_that_are_links_to_elsewhere_are_read_and_a_hostile_one_still_gets_nowhere() {
    if !bait::has_secret(
        "loaders::pictures_that_are_links_to_elsewhere_are_read_and_a_hostile_one_still_gets_nowhere",
    ) {
        return;
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let mut place = workplace(ITEMS);
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
    let error = intrude(&mut place, ITEMS, "require").await;
    assert_eq!(bait::got_through(&error), BTreeSet::new());
}

/// Stops a loader of this place each time `every` more items are done, the oldest and the youngest in turn, each once, until the run is over.
/// Between two of them the run has always come further, however slow the machine is. Gives how many were stopped.
async fn stop_loaders(place: &Workplace, run: &RunHandle, every: u64) -> usize {
    let (meter, snapshots) = (run.meter(), run.snapshots());
    let is_over = || snapshots.has_changed().is_err();
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let mut struck: Vec<u32> = Vec::new();
    while !is_over() {
        let next = meter.stats().done.get() + every;
        while meter.stats().done.get() < next && !is_over() {
            look.tick().await;
        }
        let mut loaders = place.loaders();
        // A stopped one stays a process.
        loaders.retain(|loader| !struck.contains(&loader.pid));
        let target = if struck.len().is_multiple_of(2) { loaders.first() } else { loaders.last() };
        struck.extend(target.map(|l| l.pid).filter(|pid| strike(std::process::id(), *pid, Fault::Stop)));
    }
    struck.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn loaders_that_are_stopped_all_the_time_lose_and_double_nothing() {
    let items = scaled(8_000, 2_000);
    let place = workplace(items);
    let plan = place.plan_with(trap_stage::kinds());
    let run = bounded("the run starts", orchestra_launch::start(plan, options(&place, &[]))).await.unwrap();
    place.watch(&run);
    let stopped = bounded("all is done", stop_loaders(&place, &run, 500)).await;
    let outcome = Workplace::ended_with(bounded("the run ends", run.wait()), 0).await;
    failed(&place, items, &[]);
    assert!(outcome.report.loaders.restarts > 0, "{stopped} were stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_knows_no_such_kind_ends_the_run_with_its_name() {
    let place = workplace(ITEMS);
    let plan = place.plan_with(trap_stage::kinds());
    // The worker of the library knows the kinds of the library.
    let outcome =
        Workplace::ended_with(place.run_plan_with(plan, hurried(place.workers_of_ours())), 69).await;
    assert!(outcome.problems.iter().any(|p| p.contains("no kind `trap`")), "{:?}", outcome.problems);
}

/// It ends with 69, no item is blamed, however short its time is, no process is left, and with sound loaders it goes on. Without a model, so that
/// no worker is given up for want of time. Loaders that die are started a bounded number of times.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_to_which_no_loader_comes_ends_with_their_last_words_and_what_to_do() {
    const FEW: u64 = 12;
    let both = format!("this is version {}", orchestra_worker::BUILD);
    let anew = "build or install both anew";
    for (fault, says) in [
        (
            "never-hello",
            [
                "cannot be started: the last one did not say hello in time",
                "orchestra-faulty-worker worker loader` must be a loader",
                "lower `limits.loaders`",
            ],
        ),
        ("other-build", ["its version 0.0.7 speaks", &both, anew]),
        ("other-protocol", ["speaks another protocol", &both, anew]),
        (
            "die-at-start",
            ["the last one killed by SIGABRT", "(dying at once, as asked)", "`ulimit`, a control group"],
        ),
        (
            "",
            [
                "the last one exited with code 3 (libfoo.so: cannot open shared object file)",
                "`/bin/sh worker loader` must be a loader",
                "`orchestra::run_if_worker()`",
            ],
        ),
    ] {
        let mut place = Workplace::with_pictures(FEW);
        place
            .image("pixels", "scans", AS_IT_IS)
            .sink("all", "pixels", "")
            .add("[limits]\nloaders = 2\nitem_timeout = \"1s\"");
        let script = "echo libfoo.so: cannot open shared object file >&2; exit 3";
        let mut options = hurried(match fault {
            "" => {
                let args = vec!["-c".into(), script.into()];
                ProcessLauncher { program: "/bin/sh".into(), args, ..place.workers_of_ours() }
            }
            fault => place.faulty_workers(&[(LOADER_FAULT, fault)]),
        });
        if fault == "never-hello" {
            options.timeouts.handshake = Duration::from_millis(500);
        }
        let outcome = Workplace::ended_with(place.run_with(options), 69).await;
        assert_eq!(outcome.report.items.read, 0, "{:?}", outcome.report.items);
        let said = outcome.problems.join("\n");
        for words in says.into_iter().chain(["source `scans`: its loaders cannot be started"]) {
            assert!(said.contains(words), "nothing is said of `{words}`: {said}");
        }
        place.set("item_timeout = \"1s\"", "");
        Workplace::must_end_with(&place.run().await, 0);
        failed(&place, FEW, &[]);
    }
}

/// What it says is not believed where that can be seen; what it made up of an item of its own is that item's end.
#[tokio::test(flavor = "multi_thread")]
async fn a_loader_that_ran_wild_holds_up_no_run_and_is_replaced() {
    for name in LOADER_FAULTS {
        let mut place = workplace(ITEMS);
        place.add("[limits]\nloaders = 1\nitem_timeout = \"20s\"");
        let once = place.path("once");
        let variables = [(LOADER_FAULT, name), (LOADER_FAULT_ONCE, once.to_str().unwrap())];
        let outcome = run(&place, &variables).await;
        assert!(once.exists(), "no loader misbehaved with {name}");
        // The first item is what the nonsense was about.
        let is_of_item = ["no-row", "nonsense"].contains(&name);
        let bad: &[(u64, &str)] = if is_of_item { &[(0, "crash")] } else { &[] };
        Workplace::must_end_with(&outcome, if bad.is_empty() { 0 } else { 65 });
        failed(&place, ITEMS, bad);
        assert!(outcome.report.loaders.restarts >= 1, "{name}: {:#?}", outcome.report.loaders);
    }
}
