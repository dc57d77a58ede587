//! Models and graphs answered by a test engine: each fault ends as it does with real workers, and nothing is left behind.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{join, join_all};
use orchestra::testing::{Hold, TestAnswer, TestBatch, TestEngine};
use orchestra::{DType, Item, Model, Orchestra, RequestError, Tensor, Tensors, Workflow};
use orchestra_core::{Dim, TextInput};
use orchestra_testkit::images::picture;
use orchestra_testkit::models;
use orchestra_testkit::onnx::ModelBuilder;

/// Beyond it, something hangs.
const BOUND: Duration = Duration::from_secs(60);

async fn bounded<F: IntoFuture>(asked: F) -> F::Output {
    tokio::time::timeout(BOUND, asked.into_future()).await.expect("it ends in time")
}

async fn orchestra(answer: impl Fn(&TestBatch<'_>) -> TestAnswer + Send + Sync + 'static) -> Orchestra {
    bounded(Orchestra::builder().test_engine(TestEngine::new(answer)).build()).await.unwrap()
}

/// A model of f32 `x` [batch, 2] to `y` of the same shape, which gives ten times as much, but for what `fault` says of a batch that has the value `of`.
async fn tenfold(
    folder: &Path,
    of: f32,
    fault: impl Fn(&TestBatch<'_>) -> Option<TestAnswer> + Send + Sync + 'static,
) -> Model {
    let orchestra = orchestra(move |batch| {
        let x = batch.inputs["x"].as_slice::<f32>().unwrap();
        let fault = x.contains(&of).then(|| fault(batch)).flatten();
        fault.unwrap_or_else(|| {
            let y = x.iter().map(|x| x * 10.0).collect();
            Tensor::new([batch.rows, 2], y).unwrap().into()
        })
    });
    let file = models::affine(folder, &[2]).unwrap();
    bounded(orchestra.await.model(file).workers(2).max_batch(4).queue(64).start()).await.unwrap()
}

fn row(value: f32) -> Tensor {
    Tensor::new([1, 2], vec![value; 2]).unwrap()
}

/// Asks for 0 to 7 at once: all are answered but one, whose error this is.
async fn one_of_eight(model: &Model, bad: usize) -> Option<RequestError> {
    let asked = (0..8).map(|value| async move { model.infer(row(value as f32)).await });
    let mut error = None;
    for (value, answer) in bounded(join_all(asked)).await.into_iter().enumerate() {
        match answer {
            Ok(answer) => assert_eq!(answer["y"], row(value as f32 * 10.0)),
            Err(failed) if value == bad => error = Some(failed),
            Err(failed) => panic!("{value}: {failed}"),
        }
    }
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_fails_or_kills_workers_fails_alone_and_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let faults = [
        (TestAnswer::Fails("no such number".into()), "model", "no such number"),
        (TestAnswer::Crashes, "crash", "SIGSEGV"),
    ];
    for (fault, kind, words) in faults {
        let model = tenfold(folder.path(), 5.0, move |_| Some(fault.clone())).await;
        for _ in 0..3 {
            let failed = one_of_eight(&model, 5).await;
            let Some(RequestError::Failed(failure)) = &failed else { panic!("{words}: {failed:?}") };
            assert!(failure.kind == kind && failure.error.contains(words), "{failure:?}");
        }
        bounded(model.drain()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_that_the_model_file_does_not_promise_end_the_model_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = |shape: [usize; 2]| Tensor::new(shape, vec![0_f32; shape[0] * shape[1]]).unwrap();
    let wrong = [
        (
            tensor([1, 3]).into(),
            "`y` is f32 [1, 3]; the model file says f32[batch, 2], and the batch has 1 rows",
        ),
        (tensor([2, 2]).into(), "`y` is f32 [2, 2]"),
        (Tensor::new([1, 2], vec![0_i64; 2]).unwrap().into(), "`y` is i64 [1, 2]"),
        (TestAnswer::from([("z", tensor([1, 2]))]), "gives no output `y`, only `z`"),
    ];
    for (outputs, words) in wrong {
        let model = tenfold(folder.path(), 5.0, move |_| Some(outputs.clone())).await;
        assert!(bounded(model.infer(row(1.0))).await.is_ok());
        let Err(RequestError::Closed(why)) = bounded(model.infer(row(5.0))).await else { panic!("{words}") };
        assert!(why.contains(words), "{why}");
        bounded(model.drain()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_once_costs_no_request() {
    let folder = tempfile::tempdir().unwrap();
    for panics in [false, true] {
        let workers = Arc::new(AtomicUsize::new(0));
        let started = Arc::clone(&workers);
        let model = tenfold(folder.path(), 5.0, move |batch| {
            started.fetch_max(batch.worker, Ordering::Relaxed);
            assert!(!panics || batch.attempt > 1, "a bug of the function, as asked");
            (batch.attempt == 1).then_some(TestAnswer::Crashes)
        });
        let model = model.await;
        assert_eq!(one_of_eight(&model, 8).await, None);
        assert!(workers.load(Ordering::Relaxed) > 0, "the batch with a 5 has been run");
        bounded(model.drain()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_held_until_it_is_released_and_meanwhile_requests_meet_their_terms() {
    let folder = tempfile::tempdir().unwrap();
    let hold = Hold::new();
    let at = hold.clone();
    let orchestra = orchestra(move |batch| TestAnswer::held(&at, batch.zeros())).await;
    let file = models::affine(folder.path(), &[2]).unwrap();
    let model = bounded(orchestra.model(file).workers(1).max_batch(1).queue(2).start()).await.unwrap();
    let answered = bounded(join(async { model.infer(row(1.0)).await }, async {
        hold.reached().await;
        let late = model.infer(row(2.0)).deadline(Duration::from_millis(1)).await;
        assert_eq!(late, Err(RequestError::Deadline));
        // It is with its worker, and keeps its place in the queue.
        assert_eq!(model.infer(row(3.0)).await, Err(RequestError::Overloaded { most: 2 }));
        hold.release();
    }));
    assert_eq!(answered.await.0.unwrap()["y"], row(0.0));
    bounded(model.infer(row(4.0)).wait()).await.unwrap();
    bounded(model.drain()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_model_that_is_drained_or_dropped_even_while_a_batch_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let file = models::affine(folder.path(), &[2]).unwrap();
    for drains in [true, false] {
        let alive = Arc::new(());
        let (kept, hold) = (Arc::clone(&alive), Hold::new());
        let at = hold.clone();
        let orchestra = orchestra(move |batch| {
            let _kept = &kept;
            TestAnswer::held(&at, batch.zeros())
        });
        let model = bounded(orchestra.await.model(&file).workers(2).start()).await.unwrap();
        let asked = tokio::spawn({
            let model = model.clone();
            async move { model.infer(row(1.0)).await }
        });
        bounded(hold.reached()).await;
        if drains {
            let (answer, ()) = bounded(join(
                async {
                    hold.release();
                    asked.await
                },
                model.drain(),
            ))
            .await;
            assert!(answer.unwrap().is_ok());
        } else {
            asked.abort();
            drop(asked.await);
        }
        drop(model);
        let gone = async {
            while Arc::strong_count(&alive) > 1 {
                tokio::task::yield_now().await;
            }
        };
        bounded(gone).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_several_inputs_and_open_shapes_go_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let two = models::two_in_two_out(folder.path(), &[1]).unwrap();
    let of_two = orchestra(|batch| {
        let [a, b] = ["a", "b"].map(|name| batch.inputs[name].as_slice::<f32>().unwrap().to_vec());
        assert_eq!(batch.inputs.len(), 2);
        TestAnswer::from([
            ("difference", Tensor::new([batch.rows, 1], a).unwrap()),
            ("sum", Tensor::new([batch.rows, 1], b).unwrap()),
        ])
    });
    let model = bounded(of_two.await.model(two).start()).await.unwrap();
    let tensor = |values: [f32; 2]| Tensor::new([2, 1], values.to_vec()).unwrap();
    let answer = bounded(model.infer([("a", tensor([1.0, 2.0])), ("b", tensor([3.0, 4.0]))])).await.unwrap();
    assert_eq!((&answer["difference"], &answer["sum"]), (&tensor([1.0, 2.0]), &tensor([3.0, 4.0])));

    let open = models::positive_columns(folder.path(), 3).unwrap();
    let of_open =
        orchestra(|batch| Tensor::new([batch.rows, 2], vec![7_f32; 2 * batch.rows]).unwrap().into());
    let model = bounded(of_open.await.model(open).start()).await.unwrap();
    let answer = bounded(model.infer(Tensor::new([2, 3], vec![0_f32; 6]).unwrap())).await.unwrap();
    assert_eq!(answer["y"], Tensor::new([2, 2], vec![7_f32; 4]).unwrap());

    let text = |name: &str| TextInput { name: name.into(), row: Vec::new(), batch: Dim::Dynamic };
    let file = folder.path().join("texts.onnx");
    let echo = ModelBuilder::new("texts").text_input(&text("x")).text_output(&text("y"));
    std::fs::write(&file, echo.node("Identity", &["x"], &["y"], &[]).encode()).unwrap();
    let of_texts = orchestra(|batch| {
        assert_eq!(batch.zeros()["y"].as_texts().unwrap().len(), batch.rows);
        Tensors::from([("y", batch.inputs["x"].clone())]).into()
    });
    let model = bounded(of_texts.await.model(file).start()).await.unwrap();
    let texts = Tensor::texts([2], vec!["a".into(), "ü\0".into()]).unwrap();
    assert_eq!(bounded(model.infer(texts.clone())).await.unwrap()["y"], texts);
}

/// The labels of two pictures: both models of a graph are test engines, and the pictures are decoded in this program.
#[tokio::test(flavor = "multi_thread")]
async fn a_graph_and_a_run_of_files_work_without_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let model = models::identity(folder.path(), DType::F32, &[1, 4, 8]).unwrap();
    std::fs::create_dir(path("images")).unwrap();
    for index in 0..2 {
        picture(index, 32, 32).save(path("images").join(format!("{index}.png"))).unwrap();
    }
    let text = |source: &str, sink: &str| {
        format!(
            "version = 1\n[sources.scans]\n{source}\n[models.m]\npath = {model:?}\n\
             [stages.pixels]\nkind = \"image\"\nfrom = \"scans\"\nsize = [4, 8]\ncolor = \"gray\"\n\
             [stages.read]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"m\"\n\
             [sinks.out]\n{sink}\nfrom = \"read\""
        )
    };
    let orchestra = orchestra(|batch| {
        assert_eq!(
            (batch.stage, batch.inputs.iter().next().unwrap().1.shape()),
            ("read", &[batch.rows, 1, 4, 8][..])
        );
        batch.zeros().into()
    })
    .await;
    let flow = Workflow::parse(text("kind = \"request\"", "kind = \"reply\""), folder.path()).unwrap();
    let flow = bounded(orchestra.flow(flow).start()).await.unwrap_or_else(|error| panic!("{error}"));
    let picture = std::fs::read(path("images/1.png")).unwrap();
    let records = bounded(flow.process(Item::bytes(picture))).await.unwrap();
    assert_eq!((records.len(), records[0].sink()), (1, "out"));
    let bad = bounded(flow.process(Item::bytes(&b"no picture"[..]))).await.unwrap_err();
    assert!(bad.is_client_fault(), "{bad}");
    bounded(flow.drain()).await;

    let files = text("kind = \"images\"\npaths = [\"images\"]", "kind = \"jsonl\"");
    let run = Workflow::parse(files, folder.path()).unwrap().output(path("out"));
    let report = bounded(orchestra.run(run)).await.unwrap();
    assert_eq!((report.items().done, report.exit_code()), (2, 0));
}
