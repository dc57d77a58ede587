//! A kind of stage that orchestra does not have, as docs/guide/kinds.md shows it: one object, registered by the program that embeds the
//! library. What it does to a row reaches the records, and its keys are checked as those of any other kind.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::sync::Arc;

use common::{ONE_PIXEL_PER_BLOCK, Workplace, numbers, pixels};
use orchestra::kind::{
    ColumnType, Connect, DType, Draft, Emit, Fields, Key, Map, MapRun, Refusal, Runs, Schema, StageConnected,
    StageContext, StageKind, TensorView, Value, key,
};
use orchestra::{PlanOptions, RenderStyle};
use orchestra_testkit::records::items;

/// `kind = "invert"`: 1 - x for each number of a tensor.
struct Invert;

const KEYS: [Key; 1] = [key("below", "number", "1", "what the numbers are taken from")];

impl StageKind for Invert {
    fn name(&self) -> &'static str {
        "invert"
    }

    fn about(&self) -> &'static str {
        "Takes every number of a tensor from another one."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, fields: &mut Fields<'_, '_>, _: &orchestra::kind::Limits) -> Option<Draft> {
        let below = match fields.numbers("below") {
            Some(numbers) if numbers.value.len() == 1 => numbers.value[0] as f32,
            Some(numbers) => {
                fields.bad("below", numbers.span, "must be one number");
                return None;
            }
            None => 1.0,
        };
        Some(Draft::Stage(Box::new(InvertDraft { below })))
    }
}

#[derive(Debug)]
struct InvertDraft {
    below: f32,
}

impl Connect for InvertDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let is_f32 = |ty: &ColumnType| matches!(ty, ColumnType::Tensor(tensor) if tensor.dtype == DType::F32);
        let column = stage.column(0, "a tensor of f32", |column| is_f32(&column.ty))?;
        let tensor = stage.inputs[0].gives.0[column].ty.tensor()?.clone();
        Some(StageConnected {
            gives: Schema::of(&tensor.name, ColumnType::Tensor(tensor.clone())),
            reads: vec![(0, column)],
            runs: Runs::Map(Arc::new(InvertMap { below: self.below, elements: tensor.row_len() })),
            settings: serde_json::json!({ "below": self.below }),
            details: vec![format!("{} - x", self.below)],
            about: format!("{} - x", self.below),
        })
    }
}

#[derive(Debug, Clone)]
struct InvertMap {
    below: f32,
    elements: Option<usize>,
}

impl Map for InvertMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(InvertRun { below: self.below, inverted: Vec::new() })
    }

    fn cost(&self) -> usize {
        self.elements.unwrap_or(usize::MAX)
    }
}

struct InvertRun {
    below: f32,
    inverted: Vec<u8>,
}

impl MapRun for InvertRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        inputs[0].with_tensor(|tensor| {
            let numbers =
                tensor.data.as_chunks().0.iter().map(|bytes| self.below - f32::from_ne_bytes(*bytes));
            self.inverted.clear();
            self.inverted.extend(numbers.flat_map(f32::to_ne_bytes));
            emit.row(&[Value::Tensor(TensorView { data: &self.inverted, ..*tensor })])
        })
    }
}

fn workflow(place: &mut Workplace, more: &str) {
    place
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add(&format!("[stages.inverted]\nkind = \"invert\"\nfrom = \"pixels\"\n{more}"))
        .sink("results", "inverted", "")
        .devices(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_of_the_host_program_works_on_rows_without_a_model() {
    let mut place = Workplace::with_pictures(40);
    workflow(&mut place, "below = 255");
    let plan = place.plan_with(orchestra::kinds().with_stage(Invert));
    let outcome = place.run_plan(plan).await;
    Workplace::must_end_with(&outcome, 0);
    let records = place.records(&["results.jsonl"]);
    records.must_be(1, &items("scans", 0..40), &std::collections::BTreeSet::new()).unwrap();
    for (key, of_item) in &records.done {
        let expected: Vec<f32> = pixels(key.index).iter().map(|pixel| 255.0 - pixel).collect();
        assert_eq!(numbers(&of_item["results.jsonl"], "pixels"), expected, "{key}");
    }
}

#[test]
fn keys_of_a_kind_of_the_host_program_are_checked_like_any_others() {
    let mut place = Workplace::with_pictures(1);
    workflow(&mut place, "belw = 3");
    place.write_workflow();
    let plan = |kinds| {
        let file = place.path("workflow.toml");
        let options = PlanOptions::default();
        let (plan, diagnostics) =
            orchestra::plan_file_with(&file, &options, &orchestra::machine(), kinds).unwrap();
        assert!(plan.is_none());
        diagnostics.render(RenderStyle::Plain)
    };
    let text = plan(orchestra::kinds().with_stage(Invert));
    assert!(text.contains("stage `inverted` has no key `belw`") && text.contains("`below`"), "{text}");
    let text = plan(orchestra::kinds());
    assert!(text.contains("unknown kind `invert`") && text.contains("`classify`"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_without_a_model_needs_no_onnx_runtime() {
    let mut place = Workplace::with_pictures(5);
    workflow(&mut place, "");
    let plan = place.plan_with(orchestra::kinds().with_stage(Invert));
    let library =
        orchestra::runtime_library(&plan, Some("/no/such/library.so".into()), true, &mut orchestra::Silent);
    assert!(library.unwrap().is_none(), "nothing is looked for");
}
