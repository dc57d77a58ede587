//! Each batch stage has an engine of its own: another program, told other things, beside models in one run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{ONE_PIXEL_PER_BLOCK, ROW, Workplace, audited, bounded};
use orchestra_core::DType;
use orchestra_launch::{
    DeviceKind, EngineSpec, Launched, Launcher, ProcessLauncher, RunOptions, Silent, StartRunError,
    WorkerMemory,
};
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::images::{Kind, write_picture};
use orchestra_testkit::models;

const ITEMS: u64 = 30;

/// An engine whose program copies inputs to outputs, and reads nothing of what it is told.
struct Copying {
    program: ProcessLauncher,
    started: AtomicUsize,
}

impl EngineSpec for Copying {
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.program.launch(device, &[], memory)
    }

    fn spec(&self, _: &DeviceKind) -> Result<Vec<u8>, String> {
        Ok(b"no model".to_vec())
    }
}

/// An engine that has nothing to tell its workers.
struct Speechless;

impl EngineSpec for Speechless {
    fn launch(&self, _: &DeviceKind, _: WorkerMemory<'_>) -> io::Result<Launched> {
        unreachable!("what cannot be told is never started")
    }

    fn spec(&self, _: &DeviceKind) -> Result<Vec<u8>, String> {
        Err("its script is not UTF-8".to_owned())
    }
}

/// Pictures that go through two models that give them back; one worker each.
fn workplace() -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    let same = models::identity(&place.models(), DType::F32, &ROW).unwrap();
    place
        .model("same", same, "workers = 1")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .infer("first", "pixels", "same", 4)
        .infer("second", "first", "same", 4)
        .sink("all", "second", "")
        .devices(1);
    place
}

fn run_options(place: &Workplace, plan: &orchestra_launch::Plan) -> RunOptions {
    let library = orchestra_launch::runtime_library(plan, None, false, &mut Silent).unwrap();
    orchestra_launch::run_options(place.options(), plan, library.as_ref()).unwrap()
}

fn stage(plan: &orchestra_launch::Plan, name: &str) -> orchestra_launch::StageId {
    plan.batch_stages().find(|(id, _)| plan.stages[id.index()].name == name).unwrap().0
}

#[test]
fn each_stage_is_run_by_the_program_of_its_engine() {
    audited(async {
        let place = workplace();
        let plan = Arc::new(place.plan());
        let mut options = run_options(&place, &plan);
        let program = place.faulty_workers(&[(FAULT, "none")]);
        let copying = Arc::new(Copying { program, started: AtomicUsize::new(0) });
        options.engines.insert(stage(&plan, "second"), copying.clone());
        let run = place.prepare(plan).unwrap().start(options).await.unwrap();
        place.watch(&run);
        let outcome = Workplace::ended_with(bounded("the run ends", run.wait()), 0).await;
        assert_eq!((copying.started.load(Ordering::Relaxed), outcome.report.items.done), (1, ITEMS));
        assert_eq!(place.n_lines("all.jsonl"), ITEMS as usize);
    });
}

#[test]
fn an_engine_that_is_missing_or_cannot_be_told_ends_the_run_with_its_reason() {
    audited(async {
        let place = workplace();
        let plan = Arc::new(place.plan());
        let second = stage(&plan, "second");
        let mut options = run_options(&place, &plan);
        options.engines.remove(&second);
        let refused = place.prepare(Arc::clone(&plan)).unwrap().start(options).await.err().unwrap();
        assert!(matches!(&refused, StartRunError::NoEngine(name) if name == "second"), "{refused}");

        let mut options = run_options(&place, &plan);
        options.engines.insert(second, Arc::new(Speechless));
        let run = place.prepare(plan).unwrap().start(options).await.unwrap();
        place.watch(&run);
        let outcome = Workplace::ended_with(bounded("the run ends", run.wait()), 69).await;
        assert_eq!(outcome.problems, ["stage `second`: its script is not UTF-8"]);
    });
}

#[test]
fn the_version_of_onnxruntime_counts_once_there_are_results_of_one() {
    audited(async {
        let place = workplace();
        let plan = Arc::new(place.plan());
        let start = |version: Option<&str>| {
            let mut options = run_options(&place, &plan);
            options.engine = version.map(|version| orchestra_launch::onnxruntime(Some(version)));
            place.prepare(Arc::clone(&plan)).unwrap().start(options)
        };
        let ends_well = async |version, n_pictures| {
            let run = start(version).await.unwrap();
            place.watch(&run);
            let outcome = Workplace::ended_with(bounded("the run ends", run.wait()), 0).await;
            assert_eq!(outcome.report.items.done, n_pictures);
        };
        let add = |number| write_picture(&place.path("images"), number, 32, 32, Kind::Png).unwrap();
        // An older version of this program noted none.
        ends_well(None, ITEMS).await;
        add(ITEMS);
        ends_well(Some("1"), ITEMS + 1).await;
        // With nothing to do it does not matter.
        ends_well(Some("2"), ITEMS + 1).await;
        add(ITEMS + 1);
        let refused = start(Some("2")).await.err().unwrap();
        let StartRunError::Changed { changes, done, .. } = &refused else { panic!("{refused}") };
        assert_eq!(changes, &["ONNX Runtime changed from 1 to 2"]);
        assert_eq!(*done, ITEMS + 1);
        ends_well(Some("1"), ITEMS + 2).await;
    });
}
