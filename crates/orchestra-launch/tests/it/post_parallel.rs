//! What follows a model runs beside the actors, and several batches of it at once: here `draw`, and a stage behind it that lets no row through
//! before a second one is in it. Where one thread did it all, or that of the actor, no second one would come.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::common::number_stages::TestStage;
use crate::common::{AS_IT_IS, Workplace};
use orchestra_launch::kind::{ColumnType, DType, ItemError, Schema, TensorView, Value, fixed_tensor};
use orchestra_testkit::models;

const ITEMS: u64 = 24;
/// Beyond it, no second row comes.
const BOUND: Duration = Duration::from_secs(60);

/// The threads that have been in the stage `meet`.
static THREADS: Mutex<Option<HashSet<ThreadId>>> = Mutex::new(None);
static CAME: Condvar = Condvar::new();

/// A list of no boxes for each row.
fn no_boxes() -> TestStage {
    let gives = |_: &ColumnType| {
        let corners = ColumnType::Tensor(fixed_tensor("box", DType::F32, &[4]));
        Schema::of("boxes", ColumnType::List(Schema::of("box", corners)))
    };
    TestStage::new("no-boxes", |_, _| true, gives, |_, emit| emit.row(&[Value::List(&[])]))
}

/// Waits until a second thread is here, or was.
fn meet() -> TestStage {
    let gives =
        |_: &ColumnType| Schema::of("bytes", ColumnType::Tensor(fixed_tensor("bytes", DType::I64, &[])));
    TestStage::new(
        "meet",
        |_, _| true,
        gives,
        |inputs, emit| {
            let [Value::Bytes(drawing)] = inputs else { panic!("no drawing") };
            let mut threads = THREADS.lock().unwrap();
            threads.get_or_insert_default().insert(thread::current().id());
            CAME.notify_all();
            let is_alone =
                |threads: &mut Option<HashSet<ThreadId>>| threads.as_ref().is_none_or(|t| t.len() < 2);
            let (threads, waited) = CAME.wait_timeout_while(threads, BOUND, is_alone).unwrap();
            drop(threads);
            if waited.timed_out() {
                return Err(ItemError::result("no second batch is worked on while one is"));
            }
            let bytes = (drawing.len() as i64).to_ne_bytes();
            emit.row(&[Value::Tensor(TensorView {
                name: "bytes",
                dtype: DType::I64,
                shape: &[],
                data: &bytes,
            })])
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn draw_and_what_follows_it_work_on_two_batches_at_once() {
    let mut place = Workplace::with_pictures(ITEMS);
    let model = models::blocks(&place.models(), [1, 32, 32]).unwrap();
    place
        .model("blocks", model, "workers = 1")
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "blocks", 4)
        .add("[stages.boxes]\nkind = \"no-boxes\"\nfrom = \"read.blocks\"")
        .add("[stages.drawn]\nkind = \"draw\"\nfrom = [\"scans\", \"boxes\"]\nformat = \"png\"")
        .add("[stages.met]\nkind = \"meet\"\nfrom = \"drawn\"")
        .sink("sizes", "met", "")
        .devices(1);
    let kinds = orchestra_launch::kinds().with_stage(no_boxes()).with_stage(meet());
    Workplace::ended_with(place.run_plan(place.plan_with(kinds)), 0).await;
    assert_eq!(place.lines("sizes.jsonl").len() as u64, ITEMS);
}
