//! A graph that answers requests in memory: the shape `flow` of the table of kills. Workers and loaders die at each of its moments while eight callers
//! ask, half of whose requests are dropped; each that is kept is answered once, with what is its own, and all places are free at the end.

use std::collections::BTreeSet;
use std::fs;
use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{AS_IT_IS, Workplace, audited, bounded, hurried, until};
use crate::orchestra;
use ::orchestra::kind::OwnedValue;
use ::orchestra::{Flow, Item, OrchestraBuilder, Record, RequestError, StartError, Workflow};
use futures::future::{BoxFuture, join, join_all, poll_immediate};
use orchestra_core::DType;
use orchestra_core::row_bytes::StoredValue;
use orchestra_testkit::images::{Kind, index_of_blocks, write_pictures, write_trap_picture};
use orchestra_testkit::striker::{Fault, strike};
use orchestra_testkit::{Trap, models, trap_stage};

const CALLERS: u64 = 8;
/// Requests of each.
const EACH: u64 = 24;
const MOST: usize = 256;

/// When processes are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Items are read, and none has come through the model.
    Reading,
    /// A batch stands in a worker.
    MidBatch,
    /// Some have their answers.
    Answering,
    /// The last ones wait for theirs.
    Ending,
}

const MOMENTS: [Moment; 4] = [Moment::Reading, Moment::MidBatch, Moment::Answering, Moment::Ending];

/// The left and the right half of each picture, read apart by a model behind a gate: one record of both, one of the right half alone, and one for
/// each half.
fn workplace() -> Workplace {
    let mut place = Workplace::new();
    let boxes = models::constant_boxes(&place.models(), [1, 8, 8], 2).unwrap();
    place
        .add("[sources.scans]\nkind = \"request\"")
        .model("boxes", boxes, "workers = 1")
        .gated("blocks", 2)
        .image("small", "scans", "size = [8, 8]\ncolor = \"gray\"")
        .infer("find", "small", "boxes", 8)
        .add(
            "[stages.halves]\nkind = \"crop\"\nfrom = [\"scans\", \"find\"]\nsize = [32, 32]\ncolor = \"gray\"\nscale = 1.0\n\
             [stages.both]\nkind = \"gather\"\nfrom = \"read\"\n\
             [stages.kept]\nkind = \"filter\"\nfrom = \"read\"\nkeep = \"blocks[31] > 100\"\n\
             [stages.right]\nkind = \"gather\"\nfrom = \"kept\"",
        )
        .infer("read", "halves", "blocks", 8)
        .add(
            "[sinks.whole]\nkind = \"reply\"\nfrom = \"both\"\n[sinks.right]\nkind = \"reply\"\nfrom = \"right\"\n\
             [sinks.each]\nkind = \"reply\"\nfrom = \"read\"\n[limits]\nbatch_timeout = \"1h\"\nloaders = 2",
        )
        .devices(1);
    place
}

/// Pictures that show the index of their item.
fn pictures(place: &Workplace) -> Vec<Vec<u8>> {
    let paths = write_pictures(&place.path("images"), CALLERS * EACH, Kind::Png).unwrap();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

async fn start(place: &Workplace, builder: OrchestraBuilder) -> Flow {
    place.write_workflow();
    let workflow = Workflow::open(place.path("workflow.toml")).unwrap();
    let flow = builder.build().await.unwrap().flow(workflow).queue(MOST).start();
    let flow = bounded("the flow starts", flow).await.unwrap_or_else(|error| panic!("{error}"));
    place.watch_flow(flow.tree().observer());
    flow
}

/// The numbers of a tensor.
fn f32s(value: &StoredValue<'_>) -> Vec<f32> {
    let StoredValue::Tensor { data, .. } = value else { panic!("{value:?}") };
    data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// The index that the halves of a picture show together: a half shows each of its blocks twice.
fn whole_of(halves: &[Vec<f32>]) -> Option<u64> {
    let of_row =
        |row: usize| halves.iter().flat_map(move |half| (0..4).map(move |column| half[row * 8 + 2 * column]));
    index_of_blocks(&(0..4).flat_map(of_row).collect::<Vec<f32>>())
}

/// Ends the test unless these are the records of an item, each once, in the order of the sinks and of its parts.
#[track_caller]
fn must_be_of(records: &[Record], index: u64) {
    let sinks: Vec<&str> = records.iter().map(Record::sink).collect();
    assert_eq!(sinks, ["whole", "right", "each", "each"]);
    let each: Vec<Vec<f32>> = records[2..].iter().map(|record| f32s(&record.values().unwrap()[0])).collect();
    assert_eq!(whole_of(&each), Some(index));
    let parts = |record: &Record| match &record.values().unwrap()[..] {
        [StoredValue::List(parts)] => parts.iter().map(|part| f32s(&part[0])).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!((parts(&records[0]), parts(&records[1])), (each.clone(), vec![each[1].clone()]));
    let json = records[0].json().unwrap();
    let halves: Vec<Vec<f32>> = serde_json::from_value::<Vec<serde_json::Value>>(json)
        .unwrap()
        .into_iter()
        .map(|part| serde_json::from_value(part["blocks"].clone()).unwrap())
        .collect();
    assert_eq!(halves, each, "the same as JSON");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Worker,
    Loader,
}

async fn kill(place: &Workplace, victim: Victim, moment: Moment) {
    let hit = || {
        let processes = match victim {
            Victim::Worker => place.workers(),
            Victim::Loader => place.loaders(),
        };
        processes.first().is_some_and(|process| strike(std::process::id(), process.pid, Fault::Kill))
    };
    until(&format!("a {victim:?} is killed: {moment:?}"), hit).await;
}

/// Requests that are under way and will be dropped.
type Held = Arc<Mutex<Vec<BoxFuture<'static, ()>>>>;

/// Asks for each of its items, one after the other. Of two, one is asked and left to be dropped, the other is waited for.
async fn caller(flow: Flow, pictures: Arc<Vec<Vec<u8>>>, caller: u64, held: Held, answered: Arc<AtomicU64>) {
    for index in (caller * EACH)..(caller + 1) * EACH {
        let item = Item::bytes(pictures[index as usize].clone()).named(index.to_string());
        if index % 2 == 1 {
            let flow = flow.clone();
            let mut dropped: BoxFuture<'static, ()> = Box::pin(async move {
                drop(flow.process(item).await);
            });
            assert!(poll_immediate(&mut dropped).await.is_none());
            held.lock().unwrap().push(dropped);
            continue;
        }
        let records = flow.process(item).await.unwrap_or_else(|error| panic!("{index}: {error}"));
        must_be_of(&records, index);
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// One flow whose processes of one sort are killed at each moment.
async fn victims_die(victim: Victim) {
    let place = workplace();
    let (pictures, gate) = (Arc::new(pictures(&place)), place.gate());
    gate.close_after(0).unwrap();
    let flow = start(&place, orchestra(place.options())).await;
    let (held, answered) = (Held::default(), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let (held, answered) = (Arc::clone(&held), Arc::clone(&answered));
            tokio::spawn(caller(flow.clone(), Arc::clone(&pictures), n, held, answered))
        })
        .collect();
    let kept = CALLERS * EACH / 2;
    for moment in MOMENTS {
        match moment {
            Moment::Reading => until("requests wait", || flow.tree().waiting() as u64 >= CALLERS).await,
            Moment::MidBatch => until("a batch stands at the gate", || gate.n_waiting() > 0).await,
            Moment::Answering => {
                gate.raise_to(gate.n_rows() as usize + 64).unwrap();
                // What stands at the gate stands on, until its worker dies.
                let is_hit = |pid: u32| strike(std::process::id(), pid, Fault::Kill);
                until("workers die", || place.workers().iter().filter(|of| is_hit(of.pid)).count() > 0).await;
                until("some are answered", || answered.load(Ordering::Relaxed) > 0).await;
            }
            Moment::Ending => {
                gate.open().unwrap();
                until("the last ones are asked", || answered.load(Ordering::Relaxed) >= kept - CALLERS).await;
            }
        }
        kill(&place, victim, moment).await;
        // Half of those that are under way go with their callers: queued, in a loader, in a batch, or between.
        let dropped: Vec<_> = {
            let mut held = held.lock().unwrap();
            let half = held.len() / 2;
            held.drain(half..).collect()
        };
        drop(dropped);
    }
    for caller in callers {
        bounded("a caller has all its answers", caller).await.unwrap();
    }
    assert_eq!(answered.load(Ordering::Relaxed), kept);
    held.lock().unwrap().clear();
    until("what was dropped has ended", || flow.tree().waiting() == 0).await;
    until("all slots are free", || flow.tree().observer().slots_in_use() == 0).await;
    let meter = flow.tree().meter();
    assert_eq!((meter.stats().in_flight(), flow.tree().observer().slots_lost()), (0, 0));
    assert_eq!(meter.stats().failed.get(), 0, "a kill from outside fails no item");
    // As many as at first may ask again.
    let again = (0..MOST).map(|n| {
        let index = n % pictures.len();
        let item = Item::bytes(pictures[index].clone());
        let flow = &flow;
        async move { must_be_of(&flow.process(item).await.unwrap(), index as u64) }
    });
    bounded("all places are free", join_all(again)).await;
    match victim {
        Victim::Worker => bounded("the flow ends", flow.drain()).await,
        Victim::Loader => drop(flow),
    }
    until("its processes are gone", || place.workers().is_empty() && place.loaders().is_empty()).await;
}

#[test]
fn workers_that_die_cost_no_request() {
    audited(victims_die(Victim::Worker));
}

#[test]
fn loaders_that_die_cost_no_request() {
    audited(victims_die(Victim::Loader));
}

#[test]
fn a_bad_item_fails_alone_and_by_name_and_other_errors_say_what_to_do() {
    audited(async {
        let place = workplace();
        let pictures = pictures(&place);
        let flow = start(&place, orchestra(place.options())).await;
        let bad = flow.process(Item::bytes(&b"no picture"[..]).named("bad")).into_future();
        let good = flow.process(Item::bytes(pictures[5].clone())).into_future();
        let (bad, good) = bounded("both are answered", join(bad, good)).await;
        must_be_of(&good.unwrap(), 5);
        let Err(RequestError::Failed(failure)) = bad else { panic!("{bad:?}") };
        assert!(failure.stage == "small" && !failure.error.is_empty(), "{failure:?}");
        let row = flow.process(Item::columns([("name", OwnedValue::Text("5".into()))])).await.unwrap_err();
        assert!(row.is_client_fault() && row.to_string().contains("source `scans` takes"), "{row}");
        let late = flow.process(Item::bytes(pictures[6].clone())).deadline(Duration::ZERO).await;
        assert_eq!(late.unwrap_err(), RequestError::Deadline);
        let ever = flow.process(Item::bytes(pictures[6].clone())).deadline(Duration::MAX);
        must_be_of(&bounded("it is answered", ever.into_future()).await.unwrap(), 6);
        bounded("the flow ends", flow.drain()).await;
        let over = flow.process(Item::bytes(pictures[6].clone())).await.unwrap_err();
        assert_eq!(over, RequestError::Closed("it was drained".to_owned()));
    });
}

#[test]
fn a_flow_that_is_reloaded_is_what_its_file_says_then() {
    audited(async {
        let place = workplace();
        let picture = pictures(&place).swap_remove(7);
        let flow = start(&place, orchestra(place.options())).await;
        let sinks = async || {
            let records = flow.process(Item::bytes(picture.clone())).await.unwrap();
            records.iter().map(|record| record.sink().to_owned()).collect::<BTreeSet<_>>()
        };
        let file = place.path("workflow.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(sinks().await, ["each", "right", "whole"].map(str::to_owned).into());
        fs::write(&file, "no workflow [").unwrap();
        let refused = bounded("it is refused", flow.reload()).await.unwrap_err();
        assert!(matches!(refused, StartError::Workflow(_)), "{refused}");
        fs::remove_file(&file).unwrap();
        let refused = bounded("it is refused", flow.reload()).await.unwrap_err();
        assert!(refused.to_string().contains("workflow.toml"), "{refused}");
        assert_eq!(sinks().await.len(), 3, "the one in use goes on");
        fs::write(&file, text.replace("[sinks.each]", "[sinks.halves_apart]")).unwrap();
        bounded("it is reloaded", flow.reload()).await.unwrap();
        place.watch_flow(flow.tree().observer());
        assert_eq!(sinks().await, ["halves_apart", "right", "whole"].map(str::to_owned).into());
        bounded("the flow ends", flow.drain()).await;
    });
}

#[test]
fn an_item_that_kills_loaders_fails_alone() {
    audited(async {
        let mut place = Workplace::new();
        let model = models::identity(&place.models(), DType::F32, &[1, 32, 32]).unwrap();
        place
            .add("[sources.scans]\nkind = \"request\"")
            .model("same", model, "workers = 1")
            .image("pixels", "scans", AS_IT_IS)
            .add("[stages.trap]\nkind = \"trap\"\nfrom = \"pixels\"")
            .infer("read", "trap", "same", 8)
            .add("[sinks.all]\nkind = \"reply\"\nfrom = \"read\"")
            .devices(1);
        let trap = fs::read(write_trap_picture(&place.path("images"), 7, Trap::Abort).unwrap()).unwrap();
        let pictures = pictures(&place);
        let workers = hurried(place.faulty_workers(&[]));
        let flow = start(&place, orchestra(workers).kinds(trap_stage::kinds())).await;
        let good =
            pictures[..20].iter().map(|picture| flow.process(Item::bytes(picture.clone())).into_future());
        let bad = flow.process(Item::bytes(trap).named("trap")).into_future();
        let (bad, good) = bounded("all are answered", join(bad, join_all(good))).await;
        for (index, records) in (0..).zip(good) {
            let pixels = f32s(&records.unwrap()[0].values().unwrap()[0]);
            let blocks: Vec<f32> =
                (0..32).map(|block| pixels[(block / 8 * 8 + 4) * 32 + block % 8 * 4 + 2]).collect();
            assert_eq!(index_of_blocks(&blocks), Some(index));
        }
        let Err(RequestError::Failed(failure)) = bad else { panic!("{bad:?}") };
        assert!(failure.attempts >= 2 && failure.error.contains("loader"), "{failure:?}");
        bounded("the flow ends", flow.drain()).await;
    });
}

#[test]
fn a_file_that_lists_its_items_is_no_flow() {
    audited(async {
        let place = Workplace::reading(1, ("affine", ""), 4, |folder| models::affine(folder, &[1, 32, 32]));
        place.write_workflow();
        let workflow = Workflow::open(place.path("workflow.toml")).unwrap();
        let orchestra = orchestra(place.options()).build().await.unwrap();
        let refused = orchestra.flow(workflow).start().await.err().unwrap();
        assert!(
            matches!(refused, StartError::Options(_)) && refused.to_string().contains("takes requests"),
            "{refused}"
        );
    });
}
