//! A model that runs on its own outputs: a worker that is lost in the middle of a row costs no more rounds than it must, and what cannot loop
//! is refused with the reason. That each row has the bits of the same loop, `check.py` of the example says (`examples_checked.rs`).

use std::fmt::Write as _;
use std::fs;

use crate::common::{Workplace, npy};
use orchestra_core::DType;
use orchestra_testkit::gate::Gate;
use orchestra_testkit::striker::workers_of;
use orchestra_testkit::{models, trap_library};
use rustix::process::{Pid, Signal, kill_process};

/// A workflow that loops over `models/newton.onnx`.
fn workflow(more: &str) -> String {
    format!(
        r#"version = 1
name = "scans"
[sources.numbers]
kind = "tensors"
paths = ["numbers.npy"]
[models.newton]
path = "models/newton.onnx"
devices = ["cpu"]
workers = 3
threads = 1
[stages.root]
kind = "iterate"
inputs = {{ x = "numbers", a = "numbers" }}
model = "newton"
{more}
[sinks.results]
kind = "csv"
from = "root"
path = "results.csv"
"#
    )
}

#[test]
fn a_worker_that_is_lost_in_the_middle_costs_the_rounds_since_the_last_checkpoint_and_no_others() {
    // Rounds of one row: the worker is killed in the 26th, and another one goes on behind the last checkpoint.
    for (checkpoint, goes_on_behind) in [(10, 20), (0, 0)] {
        let place = Workplace::new();
        models::one_more(&place.path("models")).unwrap();
        fs::create_dir(place.path("gate")).unwrap();
        fs::write(place.path("numbers.npy"), npy("(1, 1)", [100.0])).unwrap();
        let more = format!("rounds = 40\ncheckpoint = {checkpoint}");
        let custom = format!("custom_ops = [{:?}]\nsandbox_write = [\"gate\"]", trap_library().unwrap());
        let text = workflow(&more)
            .replace("newton.onnx\"", &format!("one_more.onnx\"\n{custom}"))
            .replace("workers = 3", "workers = 1")
            .replace("inputs = { x = \"numbers\", a = \"numbers\" }", "from = \"numbers\"");
        fs::write(place.workflow(), text).unwrap();
        let gate = Gate::in_folder(&place.path("gate"));
        gate.close_after(25).unwrap();
        let mut run = place.start(&[]);
        assert!(run.until("the 26th round waits", || gate.n_waiting() == 1), "{}", run.said());
        assert_eq!(gate.n_rows(), 26);
        gate.raise_to(1_000).unwrap();
        let workers = workers_of(run.pid());
        assert_eq!(workers.len(), 1);
        kill_process(Pid::from_raw(workers[0].pid as i32).unwrap(), Signal::KILL).unwrap();
        run.wait().must_exit(0);
        let results = fs::read_to_string(place.out().join("results.csv")).unwrap();
        let found: Vec<f32> =
            results.lines().last().unwrap().split(',').skip(3).map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(found, [140.0, 40.0], "the result, and its rounds");
        assert_eq!(gate.n_rows(), 26 + 40 - goes_on_behind, "checkpoint = {checkpoint}");
        assert!(place.failures().is_empty());
    }
}

#[test]
fn what_cannot_loop_is_refused_with_the_reason() {
    let place = Workplace::new();
    models::newton(&place.path("models"), 0).unwrap();
    models::affine(&place.path("models"), &[1]).unwrap();
    models::identity(&place.path("models"), DType::F32, &[3]).unwrap();
    models::positive_columns(&place.path("models"), 1).unwrap();
    fs::write(place.path("numbers.npy"), npy("(1, 1)", [2.0])).unwrap();
    let good = "feed = { x = \"next\" }\nrounds = 9";
    let affine = |text: String| {
        text.replace("newton.onnx", "affine.onnx")
            .replace("inputs = { x = \"numbers\", a = \"numbers\" }", "from = \"numbers\"")
    };
    let cases: [(String, &[&str]); 15] = [
        (
            workflow("feed = { x = \"y\" }\nrounds = 9"),
            &["model `newton` has no output `y`", "`next`, `residual`"],
        ),
        (workflow("feed = { z = \"next\" }\nrounds = 9"), &["model `newton` has no input `z`", "`x`, `a`"]),
        (
            workflow("feed = { x = \"next\", a = \"next\" }\nrounds = 9"),
            &["output `next` becomes two inputs of stage `root`"],
        ),
        (
            workflow("rounds = 9"),
            &[
                "must say what a round takes of the one before",
                "`feed` is missing",
                "outputs: `next`, `residual`",
            ],
        ),
        (workflow("feed = {}\nrounds = 9"), &["`feed` of stage `root` feeds nothing"]),
        (
            workflow("feed = { x = 3 }\nrounds = 9"),
            &["`feed.x` of stage `root` must be the name of an output, in quotes"],
        ),
        (
            workflow("feed = \"x\"\nrounds = 9"),
            &["`feed` of stage `root` must be a table of inputs and outputs"],
        ),
        (workflow("feed = { x = \"next\" }"), &["stage `root` needs the key `rounds`"]),
        (workflow("feed = { x = \"next\" }\nrounds = 0"), &["`rounds` of stage `root` must be from 1 to"]),
        (
            workflow(&format!("{good}\nuntil = \"residual > 1\"")),
            &["`until` of stage `root` cannot be `residual > 1`", "residual < 0.001"],
        ),
        (
            workflow(&format!("{good}\nuntil = \"residual < nan\"")),
            &["`until` of stage `root` cannot be `residual < nan`"],
        ),
        (workflow(&format!("{good}\nuntil = \"error < 1\"")), &["model `newton` has no output `error`"]),
        (
            affine(workflow("rounds = 9\nuntil = \"y < 1\"")).replace("affine.onnx", "identity_f32.onnx"),
            &["gives another shape than input `x`"],
        ),
        (
            affine(workflow("rounds = 9")).replace("affine.onnx", "positive_columns.onnx"),
            &["cannot loop over model `newton`: its output `y` has no fixed shape", "f32[batch, ?]"],
        ),
        (workflow(&format!("{good}\ncheckpoint = -1")), &["`checkpoint` of stage `root` must be from 0 to"]),
    ];
    let mut all = String::new();
    for (text, says) in cases {
        fs::write(place.workflow(), &text).unwrap();
        let ended = place.start_command(&["check", place.workflow().to_str().unwrap()]).wait();
        writeln!(all, "{}", ended.stderr).unwrap();
        assert!(!ended.status.success(), "{text}");
        for words in says {
            assert!(ended.stderr.contains(words), "`{words}` is not in: {}", ended.stderr);
        }
    }
    // Where there is one input and one output, nothing has to be said.
    fs::write(place.workflow(), affine(workflow("rounds = 9\nuntil = \"y < 1\"\ncheckpoint = 9"))).unwrap();
    let ended = place.start_command(&["check", place.workflow().to_str().unwrap()]).wait();
    ended.must_exit(0);
    assert!(ended.stderr.contains("`checkpoint` of stage `root` has no effect"), "{}", ended.stderr);
    println!("{all}");
}

#[test]
fn outputs_of_another_shape_or_type_are_not_fed_and_many_numbers_are_no_bound() {
    let place = Workplace::new();
    models::two_shapes(&place.path("models")).unwrap();
    fs::write(place.path("numbers.npy"), npy("(1, 1)", [2.0])).unwrap();
    let text = |more: &str| {
        workflow(more)
            .replace("newton.onnx", "two_shapes.onnx")
            .replace("inputs = { x = \"numbers\", a = \"numbers\" }", "from = \"numbers\"")
    };
    for (more, says) in [
        (
            "rounds = 3\nfeed = { x = \"wide\" }",
            &[
                "output `wide` of model `newton` cannot become its input `x`",
                "f32[batch, 4]",
                "f32[batch, 1]",
            ][..],
        ),
        (
            "rounds = 3\nfeed = { x = \"whole\" }",
            &["output `whole` of model `newton` cannot become", "i64[batch, 1]", "f32[batch, 1]"],
        ),
        (
            "rounds = 3\nfeed = { x = \"same\" }\nuntil = \"wide < 1\"",
            &["compares one number per row, and output `wide` has 4", "f32[batch, 4]"],
        ),
    ] {
        fs::write(place.workflow(), text(more)).unwrap();
        let ended = place.start_command(&["check", place.workflow().to_str().unwrap()]).wait();
        assert!(
            !ended.status.success() && says.iter().all(|words| ended.stderr.contains(words)),
            "{}",
            ended.stderr
        );
    }
}
