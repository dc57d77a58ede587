//! What follows a model runs beside the actors, and several batches of it at once: here `draw`, and a stage behind it that lets no row through
//! before a second one is in it. Where one thread did it all, or that of the actor, no second one would come.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::common::{AS_IT_IS, Workplace};
use orchestra::kind::{
    ColumnType, Connect, DType, Draft, Emit, Fields, Map, MapRun, Refusal, Reported, Runs, Schema,
    StageConnected, StageContext, StageKind, TensorView, Value, fixed_tensor,
};
use orchestra_testkit::models;

const ITEMS: u64 = 24;
/// Beyond it, no second row comes.
const BOUND: Duration = Duration::from_secs(60);

/// The threads that have been in the stage `meet`.
static THREADS: Mutex<Option<HashSet<ThreadId>>> = Mutex::new(None);
static CAME: Condvar = Condvar::new();

/// A stage of this test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A list of no boxes for each row.
    NoBoxes,
    /// Waits until a second thread is here, or was.
    Meet,
}

impl StageKind for Stage {
    fn name(&self) -> &'static str {
        match self {
            Stage::NoBoxes => "no-boxes",
            Stage::Meet => "meet",
        }
    }

    fn about(&self) -> &'static str {
        "A stage of a test."
    }

    fn read(&self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Stage(Box::new(*self)))
    }
}

impl Connect for Stage {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let column = stage.column(0, "anything", |_| true)?;
        let gives = match self {
            Stage::NoBoxes => {
                let corners = ColumnType::Tensor(fixed_tensor("box", DType::F32, &[4]));
                Schema::of("boxes", ColumnType::List(Schema::of("box", corners)))
            }
            Stage::Meet => Schema::of("bytes", ColumnType::Tensor(fixed_tensor("bytes", DType::I64, &[]))),
        };
        Ok(StageConnected {
            gives,
            reads: vec![(0, column)],
            runs: Runs::Map(Arc::new(*self)),
            settings: serde_json::json!({}),
            details: Vec::new(),
            about: self.name().to_owned(),
        })
    }
}

impl Map for Stage {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(*self)
    }

    fn cost(&self) -> usize {
        8
    }
}

impl MapRun for Stage {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [Value::Bytes(drawing)] = inputs else { return emit.row(&[Value::List(&[])]) };
        let mut threads = THREADS.lock().unwrap();
        threads.get_or_insert_default().insert(thread::current().id());
        CAME.notify_all();
        let is_alone = |threads: &mut Option<HashSet<ThreadId>>| threads.as_ref().is_none_or(|t| t.len() < 2);
        let (threads, waited) = CAME.wait_timeout_while(threads, BOUND, is_alone).unwrap();
        drop(threads);
        if waited.timed_out() {
            return Err(Refusal::result("no second batch is worked on while one is"));
        }
        let bytes = (drawing.len() as i64).to_ne_bytes();
        emit.row(&[Value::Tensor(TensorView { name: "bytes", dtype: DType::I64, shape: &[], data: &bytes })])
    }
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
    let kinds = orchestra::kinds().with_stage(Stage::NoBoxes).with_stage(Stage::Meet);
    let outcome = place.run_plan(place.plan_with(kinds)).await;
    Workplace::must_end_with(&outcome, 0);
    assert_eq!(place.lines("sizes.jsonl").len() as u64, ITEMS);
}
