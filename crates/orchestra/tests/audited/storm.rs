//! Requests by the thousand while workers die: half of them are dropped at random moments, and of two workers one is killed a tenth of a second after each
//! of its starts. Each request that is kept is answered once, with what is its own; all places and rows are free at the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Workplace, audited, bounded, until};
use crate::orchestra;
use ::orchestra::{Flow, Item, Model, OrchestraBuilder, RequestError, Tensor, WorkerEvent, Workflow};
use fastrand::Rng;
use futures::future::{BoxFuture, join_all};
use orchestra_core::WorkerId;
use orchestra_core::row_bytes::StoredValue;
use orchestra_runtime::RequestFlow;
use orchestra_testkit::models;
use orchestra_testkit::size::scaled;
use orchestra_testkit::striker::{Fault, strike};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

const CALLERS: u64 = 32;
/// Fewer than there are callers: some wait for a place.
const QUEUE: usize = 24;
/// A request that is dropped has less time than this, in microseconds.
const DROPPED_WITHIN: u64 = 20_000;
const LIFE: Duration = Duration::from_millis(100);

/// How a request for a number is asked, which is answered with whether the answer is its own.
type Ask = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<bool, RequestError>> + Send + Sync>;

fn row(number: u64) -> Tensor {
    Tensor::new([1, 3], vec![number as f32; 3]).unwrap()
}

/// What the model, `y = 2 x + 1`, gives of it.
fn once(number: f32) -> f32 {
    2.0 * number + 1.0
}

/// Asks for numbers one after the other, and on until two workers are killed; every second request has a random time, and is dropped after it.
async fn caller(ask: Ask, numbers: std::ops::Range<u64>, answered: Arc<AtomicU64>, n_killed: Arc<AtomicU64>) {
    let mut random = Rng::with_seed(numbers.start);
    let mut last = numbers.end;
    let more = std::iter::from_fn(|| {
        last += 1;
        (n_killed.load(Ordering::Relaxed) < 2).then_some(last - 1)
    });
    for number in numbers.chain(more) {
        let asked = ask(number);
        let end = if number % 2 == 1 {
            timeout(Duration::from_micros(random.u64(..DROPPED_WITHIN)), asked).await.ok()
        } else {
            Some(bounded("a request is answered", asked).await)
        };
        if let Some(end) = end {
            assert!(matches!(end, Ok(true)), "{number}: {end:?}");
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Kills each worker [`LIFE`] after its start, but one, as long as that lives.
async fn killer(
    mut events: UnboundedReceiver<WorkerEvent>,
    is_over: Arc<AtomicBool>,
    n_killed: Arc<AtomicU64>,
) {
    let mut spared = None::<WorkerId>;
    while let Some(event) = events.recv().await {
        match event {
            WorkerEvent::Started { worker, .. } if spared.is_none() => spared = Some(worker),
            WorkerEvent::Started { pid: Some(pid), .. } => {
                // Nothing comes: its end is that of the life.
                drop(timeout(LIFE, std::future::pending::<()>()).await);
                let is_killed = strike(std::process::id(), pid, Fault::Kill);
                n_killed.fetch_add(u64::from(is_killed), Ordering::Relaxed);
            }
            WorkerEvent::Ended { worker, .. } if spared == Some(worker) => spared = None,
            _ => {}
        }
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
}

/// Workers whose lives are told to the receiver.
fn watched(place: &Workplace) -> (OrchestraBuilder, UnboundedReceiver<WorkerEvent>) {
    let (tell, told): (UnboundedSender<WorkerEvent>, _) = unbounded_channel();
    let tell = Mutex::new(tell);
    let hook = move |event: &WorkerEvent| drop(tell.lock().unwrap().send(event.clone()));
    (orchestra(place.options()).on_worker_event(hook), told)
}

/// `n` requests in the storm, or more. Every second one is kept.
async fn storm(n: u64, ask: Ask, events: UnboundedReceiver<WorkerEvent>) {
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let n_killed = Arc::new(AtomicU64::new(0));
    let killer = tokio::spawn(killer(events, Arc::clone(&is_over), Arc::clone(&n_killed)));
    let each = n / CALLERS;
    let callers = (0..CALLERS).map(|caller_at| {
        let numbers = caller_at * each..(caller_at + 1) * each;
        tokio::spawn(caller(Arc::clone(&ask), numbers, Arc::clone(&answered), Arc::clone(&n_killed)))
    });
    for caller in bounded("two workers are killed", join_all(callers)).await {
        caller.unwrap();
    }
    assert!(answered.load(Ordering::Relaxed) >= each / 2 * CALLERS);
    is_over.store(true, Ordering::Relaxed);
    // It looks at the next event; as many requests as have places run without it.
    let ends = join_all((0..QUEUE as u64).map(|number| ask(number))).await;
    assert!(ends.iter().all(|end| matches!(end, Ok(true))), "{ends:?}");
    drop(ask);
    bounded("the killer ends", killer).await.unwrap();
    let (answered, n_killed) = (answered.load(Ordering::Relaxed), n_killed.load(Ordering::Relaxed));
    println!("{n} requests, {answered} answered, {n_killed} workers killed");
}

/// All is home: requests, rows, places.
async fn all_is_home(tree: &RequestFlow) {
    until("what was dropped has ended", || tree.waiting() == 0).await;
    until("all slots are free", || tree.observer().slots_in_use() == 0).await;
    let meter = tree.meter();
    assert_eq!((meter.stats().in_flight(), tree.observer().slots_lost()), (0, 0));
    assert_eq!(meter.stats().failed.get(), 0, "a kill from outside fails no item");
}

#[test]
fn each_kept_request_of_a_model_is_answered_once_while_half_are_dropped_and_workers_die() {
    audited(async {
        let place = Workplace::new();
        let file = models::affine(&place.models(), &[3]).unwrap();
        let (builder, events) = watched(&place);
        let model = builder.build().await.unwrap().model(file).devices(["cpu"]).workers(2);
        let model = bounded("the model starts", model.max_batch(8).queue(QUEUE).start()).await.unwrap();
        place.watch_flow(model.tree().observer());
        let ask = |model: Model| -> Ask {
            Arc::new(move |number| {
                let model = model.clone();
                Box::pin(async move {
                    let answer = model.infer(row(number)).wait().await?;
                    Ok(answer["y"].as_slice::<f32>().unwrap() == [once(number as f32); 3])
                })
            })
        };
        storm(scaled(10_000, 1_600), ask(model.clone()), events).await;
        all_is_home(&model.tree()).await;
        bounded("the model ends", model.drain()).await;
        assert_eq!(place.workers(), []);
    });
}

/// Two models of two workers each, one behind the other: the rows of the second come from answers of the first.
#[test]
fn each_kept_request_of_a_graph_is_answered_once_while_half_are_dropped_and_workers_die() {
    audited(async {
        let mut place = Workplace::new();
        let file = models::affine(&place.models(), &[3]).unwrap();
        place
            .add("[sources.rows]\nkind = \"request\"\ncolumns = { x = \"f32[3]\" }")
            .model("affine", file, "workers = 2")
            .infer("first", "rows", "affine", 8)
            .infer("second", "first", "affine", 8)
            .add("[sinks.all]\nkind = \"reply\"\nfrom = \"second\"")
            .devices(1);
        place.write_workflow();
        let (builder, events) = watched(&place);
        let workflow = Workflow::open(place.path("workflow.toml")).unwrap();
        let flow = builder.build().await.unwrap().flow(workflow).queue(QUEUE);
        let flow = bounded("the flow starts", flow.start()).await.unwrap();
        place.watch_flow(flow.tree().observer());
        let ask = |flow: Flow| -> Ask {
            Arc::new(move |number| {
                let flow = flow.clone();
                Box::pin(async move {
                    let item = Tensor::new([3], vec![number as f32; 3]).unwrap();
                    let records = flow.process(Item::columns([("x", item.into())])).wait().await?;
                    let values = records[0].values().unwrap();
                    let StoredValue::Tensor { data, .. } = &values[0] else { panic!("{values:?}") };
                    let expected = [once(once(number as f32)); 3].map(f32::to_ne_bytes);
                    Ok(records.len() == 1 && **data == *expected.as_flattened())
                })
            })
        };
        storm(scaled(10_000, 800), ask(flow.clone()), events).await;
        all_is_home(&flow.tree()).await;
        bounded("the flow ends", flow.drain()).await;
        assert_eq!(place.workers(), []);
    });
}
