//! The worker protocol as its page says it: `tests/worker.c` speaks it, as the stage of a kind of its own, and serves exactly while it is killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{ONE_PIXEL_PER_BLOCK, ROW, Workplace, audited, bounded};
use orchestra_launch::kind::{
    BatchDraft, Code, Column, ColumnType, DType, Dim, Draft, Fields, Program, ProgramContext, ProgramDraft,
    Reported, ResolvedProgram, Spanned, StageKind, TensorSpec,
};
use orchestra_testkit::striker::{Fault, strike_workers};
use serde_json::Value;

const ITEMS: u64 = 2000;

/// `kind = "double"` gives every number of a tensor twice, and `kind = "repeat"` a text, by a program.
struct Double {
    program: PathBuf,
    /// What it gives for `x`.
    y: ColumnType,
}

impl StageKind for Double {
    fn name(&self) -> &'static str {
        if self.y == ColumnType::Text { "repeat" } else { "double" }
    }

    fn about(&self) -> &'static str {
        "Gives every number or text twice."
    }

    fn read(&self, fields: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Batch(BatchDraft {
            model: Spanned::new("worker.c".to_owned(), fields.span),
            program: Some(Arc::new(Doubling { program: self.program.clone(), y: self.y.clone() })),
            max_batch: None,
            wait: Duration::from_millis(5),
            constants: Vec::new(),
            iteration: None,
        }))
    }
}

#[derive(Debug)]
struct Doubling {
    program: PathBuf,
    y: ColumnType,
}

impl ProgramDraft for Doubling {
    fn resolve(&self, _: &mut ProgramContext<'_>) -> Result<ResolvedProgram, Reported> {
        let path = self.program.clone();
        Ok(ResolvedProgram {
            identity: "doubles".to_owned(),
            inputs: vec![("x".to_owned(), None)],
            outputs: vec![Column { name: "y".to_owned(), ty: self.y.clone() }],
            max_batch: Some(4),
            gpu: false,
            drops: false,
            code: Code::Program(Program {
                command: vec![path.to_str().ok_or(Reported)?.to_owned(), "worker".to_owned()],
                folder: path.parent().ok_or(Reported)?.to_owned(),
                read: vec![path.clone()],
                ..Program::default()
            }),
            path,
        })
    }
}

fn note(n: u64) -> String {
    format!("Nr. {n} {}", "é".repeat(n as usize % 300))
}

fn records(place: &Workplace, name: &str) -> impl Iterator<Item = Value> {
    let text = std::fs::read_to_string(place.out().join(format!("{name}.jsonl"))).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.into_iter()
}

fn numbers(place: &Workplace, name: &str) -> Vec<(u64, Vec<f64>)> {
    let record = |record: Value| {
        let pixels = record["result"]["y"]["data"][0]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|row| row.as_array().unwrap());
        (record["index"].as_u64().unwrap(), pixels.map(|x| x.as_f64().unwrap()).collect())
    };
    let mut records: Vec<(u64, Vec<f64>)> = records(place, name).map(record).collect();
    records.sort_by_key(|(index, _)| *index);
    records
}

#[test]
fn a_worker_that_follows_the_page_of_the_protocol_serves_exactly_while_it_is_killed() {
    audited(async {
        let mut place = Workplace::with_pictures(ITEMS);
        let program = place.path("double");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/worker.c");
        let built = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(source)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        place
            .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
            .add("[stages.once]\nkind = \"double\"\nfrom = \"pixels\"\n[stages.twice]\nkind = \"double\"\nfrom = \"once\"")
            .sink("once", "once", "")
            .sink("twice", "twice", "")
            .add(
                "[sources.notes]\nkind = \"jsonl\"\npaths = [\"notes.jsonl\"]\ncolumns = { x = \"text\" }\n\
                 [stages.said]\nkind = \"repeat\"\nfrom = \"notes\"",
            )
            .sink("said", "said", "");
        let notes: String = (0..ITEMS).map(|n| format!("{{\"x\": \"{}\"}}\n", note(n))).collect();
        std::fs::write(place.path("notes.jsonl"), notes).unwrap();
        let row = ROW.map(Dim::Fixed).to_vec();
        let y = TensorSpec { name: "y".to_owned(), dtype: DType::F32, row, batch: Dim::Dynamic };
        let doubles = Double { program: program.clone(), y: ColumnType::Tensor(y) };
        let repeats = Double { program, y: ColumnType::Text };
        let plan = place.plan_with(orchestra_launch::kinds().with_stage(doubles).with_stage(repeats));
        let striker = strike_workers(std::process::id(), Duration::from_millis(50), Fault::Kill);
        let run = place.start_plan(plan).await;
        let outcome = bounded("the run ends", run.wait()).await;
        let killed = striker.stop().len();
        Workplace::must_end_with(&outcome, 0);
        let (once, twice) = (numbers(&place, "once"), numbers(&place, "twice"));
        println!("{killed} workers were killed");
        assert_eq!(once.len() as u64, ITEMS);
        let doubled: Vec<_> =
            once.iter().map(|(i, x)| (*i, x.iter().map(|x| 2.0 * x).collect::<Vec<_>>())).collect();
        assert_eq!(twice, doubled);
        assert!(once.iter().flat_map(|(_, x)| x).all(|x| *x == 0.0 || *x == 510.0));
        let said = records(&place, "said").map(|record| (record["index"].as_u64(), record["result"].clone()));
        let mut said: Vec<_> = said.collect();
        said.sort_by_key(|(index, _)| *index);
        assert!(said.into_iter().eq((0..ITEMS).map(|n| (Some(n), note(n).repeat(2).into()))));
    });
}
