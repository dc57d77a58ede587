//! What a program is told where nothing starts: the class that the documentation names, and words of the library, not of the command or of a file that is not there.

use std::fs;
use std::path::Path;

use futures::future::BoxFuture;
use orchestra::testing::TestEngine;
use orchestra::{FlowBuilder, ModelBuilder, Orchestra, RunError, SettingValue, StartError, Workflow};
use orchestra_testkit::models;

const GRAPH: &str = r#"
version = 1
[sources.rows]
kind = "request"
columns = { x = "f32[2]" }
[models.affine]
path = "affine.onnx"
[stages.read]
kind = "infer"
from = "rows"
model = "affine"
[sinks.answer]
kind = "reply"
from = "read"
"#;

const RUN: &str = r#"
version = 1
[sources.rows]
kind = "random"
items = 4
shape = [2]
[stages.best]
kind = "argmax"
from = "rows"
[sinks.all]
kind = "jsonl"
from = "best"
"#;

async fn orchestra() -> Orchestra {
    let engine = TestEngine::new(|batch| batch.zeros().into());
    Orchestra::builder().test_engine(engine).build().await.unwrap()
}

/// Whether it is of the class, has the words, and none of the command.
fn must_say(case: &str, error: &StartError, class: &str, words: &str) {
    let found = match error {
        StartError::Workflow(error) => {
            let json = error.json().to_string();
            assert!(!json.contains("\"in\":\"--"), "{case}: {json}");
            "workflow"
        }
        StartError::Options(_) => "options",
        StartError::OnnxRuntime(_) => "onnxruntime",
        StartError::Workers(_) => "workers",
        StartError::Run(_) => "run",
        _ => "another",
    };
    let text = error.to_string();
    assert_eq!(found, class, "{case}: {text}");
    assert!(text.contains(words), "{case}: {text}");
    let is_flag =
        |word: &str| word.trim_start_matches(['`', '(', '\'']).starts_with("--") && !word.contains("-->");
    assert!(!text.split_whitespace().any(is_flag), "{case}: {text}");
    for nowhere in ["line 1", "service of"] {
        assert!(!text.contains(nowhere), "{case}: {text}");
    }
}

type Change = fn(&Path, Workflow) -> Workflow;
type BrokenModel = (&'static str, &'static str, &'static str, fn(ModelBuilder) -> ModelBuilder);

#[tokio::test]
async fn a_model_that_does_not_start_says_why_in_words_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let good = models::affine(folder.path(), &[2]).unwrap();
    fs::write(folder.path().join("junk.onnx"), b"no model, for sure").unwrap();
    fs::write(folder.path().join("empty.onnx"), b"").unwrap();
    fs::write(folder.path().join("cut.onnx"), &fs::read(&good).unwrap()[..40]).unwrap();
    let orchestra = orchestra().await;
    for file in ["missing.onnx", "junk.onnx", "empty.onnx", "cut.onnx", "", "affine.onnx/below"] {
        let error = orchestra.model(folder.path().join(file)).start().await.err().unwrap();
        must_say(file, &error, "options", folder.path().join(file).to_str().unwrap().trim_end_matches('/'));
    }
    let cases: [BrokenModel; 13] = [
        ("shape of an input that is not there", "options", "`y`", |model| model.shape("y", [2])),
        ("constant of an input that is not there", "workflow", "`y`", |model| model.constant("y", 1)),
        ("wrong shape", "workflow", "f32[batch, 2]", |model| model.shape("x", [3])),
        ("wrong type of a constant", "workflow", "`x`", |model| model.constant("x", "text")),
        ("no such GPU", "workflow", "cuda:99", |model| model.devices(["cuda:99"])),
        ("no device at all", "workflow", "gpu", |model| model.devices(["gpu"])),
        ("an empty list of devices", "workflow", "devices", |model| model.devices([""; 0])),
        ("no rows in a batch", "workflow", "0", |model| model.max_batch(0)),
        ("no workers", "workflow", "0", |model| model.workers(0)),
        ("a key that is not there", "workflow", "treads", |model| model.set("models.model.treads", 1)),
        ("a model that is not there", "workflow", "other", |model| model.set("models.other.threads", 1)),
        ("a value that is no TOML", "workflow", "TOML", |model| {
            model.set("models.model.threads", SettingValue::toml("[1"))
        }),
        ("no room for a request", "options", "`queue(1)`", |model| model.queue(0)),
    ];
    for (case, class, words, broken) in cases {
        let error =
            broken(orchestra.model(&good)).start().await.err().unwrap_or_else(|| panic!("{case}: it starts"));
        must_say(case, &error, class, words);
    }
}

#[tokio::test]
async fn a_graph_that_does_not_start_says_why_in_words_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    models::affine(folder.path(), &[2]).unwrap();
    fs::write(folder.path().join("junk.onnx"), b"no model, for sure").unwrap();
    let orchestra = orchestra().await;
    let flow = |text: &str, change: fn(Workflow) -> Workflow| -> FlowBuilder {
        orchestra.flow(change(Workflow::parse(text, folder.path()).unwrap()))
    };
    let same: fn(Workflow) -> Workflow = |workflow| workflow;
    let cases = [
        ("no TOML", flow("version = ", same), "workflow", "TOML"),
        ("no text", flow("", same), "workflow", "version"),
        ("a missing model", flow(&GRAPH.replace("affine.onnx", "gone.onnx"), same), "workflow", "gone.onnx"),
        ("junk for a model", flow(&GRAPH.replace("affine.onnx", "junk.onnx"), same), "workflow", "junk.onnx"),
        ("another input", flow(GRAPH, |of| of.set("sources.rows.columns.x", "f32[3]")), "workflow", "affine"),
        (
            "a stage that is not there",
            flow(GRAPH, |of| of.set("stages.raed.model", "affine")),
            "workflow",
            "`read`",
        ),
        ("no key", flow(GRAPH, |of| of.set("stages..model", 1)), "workflow", "no key"),
        ("no such device", flow(GRAPH, |of| of.devices(["cuda:99"])), "workflow", "cuda:99"),
        ("no requests", flow(RUN, same), "options", "request"),
        ("no room for a request", flow(GRAPH, same).queue(0), "options", "`queue(1)`"),
    ];
    for (case, flow, class, words) in cases {
        let error = flow.start().await.err().unwrap_or_else(|| panic!("{case}: it starts"));
        must_say(case, &error, class, words);
    }
    let file = folder.path().join("read.toml");
    fs::write(&file, GRAPH).unwrap();
    let flow = orchestra.flow(Workflow::open(&file).unwrap()).start().await.unwrap();
    fs::remove_file(&file).unwrap();
    must_say("a file that is gone", &flow.reload().await.unwrap_err(), "options", "read.toml");
    flow.drain().await;
}

#[tokio::test]
async fn a_run_that_does_not_start_says_why_in_words_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let orchestra = orchestra().await;
    let run = |change: Change| -> BoxFuture<'_, Result<(), StartError>> {
        let workflow = change(folder.path(), Workflow::parse(RUN, folder.path()).unwrap());
        let orchestra = &orchestra;
        Box::pin(async move {
            match orchestra.run(workflow).await {
                Err(RunError::Start(error)) => Err(error),
                end => end.map(drop).map_err(|error| panic!("{error}")),
            }
        })
    };
    run(|_, of| of).await.unwrap();
    let cases: [(_, Change, _, _); 4] = [
        ("another source", |_, of| of.set("sources.rows.shape", vec![3]), "run", "empty output folder"),
        (
            "a file as the output folder",
            |at, of| {
                fs::write(at.join("file"), b"").unwrap();
                of.output(at.join("file"))
            },
            "run",
            "`Workflow::output`",
        ),
        ("a sink outside", |_, of| of.set("sinks.all.path", "../x.jsonl"), "workflow", "output chooses"),
        ("no items", |_, of| of.set("sources.rows.items", 0), "workflow", "items"),
    ];
    for (case, change, class, words) in cases {
        let error = run(change).await.err().unwrap_or_else(|| panic!("{case}: it starts"));
        must_say(case, &error, class, words);
    }
}
