//! Runs of a program: both parts by one call, stopped in order and dropped, and going on where they were.

use crate::common::{Workplace, audited, bounded, until};
use crate::orchestra;
use ::orchestra::{Orchestra, StartError, Workflow};
use orchestra_testkit::models;

async fn program(place: &Workplace) -> Orchestra {
    place.write_workflow();
    orchestra(place.options()).build().await.unwrap()
}

#[test]
fn a_run_is_stopped_dropped_and_goes_on_where_it_was() {
    const ITEMS: u64 = 200;
    audited(async {
        let mut place = Workplace::with_pictures(ITEMS);
        place
            .gated("slow", 2)
            .image("pixels", "scans", crate::common::AS_IT_IS)
            .infer("read", "pixels", "slow", 4)
            .sink("all", "read", "")
            .devices(1);
        let orchestra = program(&place).await;
        let workflow = || Workflow::open(place.path("workflow.toml")).unwrap().output(place.out());
        place.gate().close_after(24).unwrap();
        let run = orchestra.start(workflow()).await.unwrap();
        until("there are results", || place.n_lines("all.jsonl") >= 24).await;
        let busy = orchestra.start(workflow()).await.err().unwrap();
        assert!(busy.is_in_use(), "{busy}");
        drop(run);
        until("its workers are gone", || place.workers().is_empty()).await;
        let mut run = bounded("it starts", async {
            loop {
                match orchestra.start(workflow()).await {
                    Err(error) if error.is_in_use() => tokio::task::yield_now().await,
                    started => break started.unwrap(),
                }
            }
        })
        .await;
        run.stopper().stop();
        place.gate().open().unwrap();
        let stopped = bounded("it stops", run.wait()).await.unwrap();
        assert!(!stopped.is_complete() && stopped.exit_code() == 130, "{:?}", stopped.problems());
        let again = bounded("its end is there still", run.wait()).await.unwrap();
        assert_eq!((again.exit_code(), again.items()), (130, stopped.items()));
        let report = bounded("it ends", orchestra.run(workflow())).await.unwrap();
        assert!(report.is_complete() && report.exit_code() == 0, "{:?}", report.problems());
        assert_eq!((report.items().done, report.items().failed), (ITEMS, 0));
        assert!(report.items().resumed > 0);
        crate::common::all_are_read(&place, ITEMS);
    });
}

#[test]
fn what_commands_make_is_used_by_the_same_call() {
    audited(async {
        let mut place = Workplace::with_pictures(3);
        let model = models::affine(&place.models(), &[1, 32, 32]).unwrap();
        place
            .add(&format!(
                "[tasks.make]\ncommand = [\"cp\", {model:?}, \"{{output}}/made.onnx\"]\ndevice = \"none\"\n\
                 [models.made]\npath = \"{{tasks.make.output}}/made.onnx\"\nthreads = 1"
            ))
            .image("pixels", "scans", crate::common::AS_IT_IS)
            .infer("read", "pixels", "made", 4)
            .sink("all", "read", "")
            .devices(1);
        let orchestra = program(&place).await;
        let workflow = Workflow::open(place.path("workflow.toml")).unwrap().output(place.out());
        let mut run = bounded("it starts", orchestra.start(workflow)).await.unwrap();
        let report = bounded("it ends", run.wait()).await.unwrap();
        assert!(report.is_complete(), "{:?}", report.problems());
        assert_eq!((report.items().done, run.status().items().done), (3, 3));
    });
}

#[test]
fn a_file_that_is_wrong_is_told_with_its_places() {
    audited(async {
        let place = Workplace::new();
        let orchestra = program(&place).await;
        let text = "version = 1\n[sources.a]\nkind = \"imagse\"\n";
        let wrong = Workflow::parse(text, place.path("")).unwrap().set("limits.loaders", "two");
        let error = orchestra.start(wrong).await.err().unwrap();
        assert!(matches!(error, StartError::Workflow(_)), "{error}");
        let said = error.to_string();
        assert!(said.contains("workflow.toml:3") && said.contains("images"), "{said}");
    });
}
