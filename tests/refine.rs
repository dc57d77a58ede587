//! A model that runs on its own outputs: what cannot loop is refused with the reason. That each row has the bits of the same loop, `check.py` of the example
//! says (`examples_checked.rs`), and that none is lost with a worker, `kills.rs`.

use std::fs;

use crate::common::{Workplace, npy};
use orchestra_core::DType;
use orchestra_testkit::models;
use orchestra_testkit::workflow_file::WorkflowFile;

/// A workflow that loops over `models/newton.onnx`.
fn workflow(more: &str) -> String {
    let root = "kind = 'iterate'\ninputs = { x = \"numbers\", a = \"numbers\" }\nmodel = \"newton\"";
    WorkflowFile::new()
        .source("numbers", "tensors", "paths = ['numbers.npy']")
        .table("models.newton", "path = \"models/newton.onnx\"\ndevices = ['cpu']\nworkers = 3\nthreads = 1")
        .table("stages.root", format_args!("{root}\n{more}"))
        .sink("results", "csv", "root")
        .to_string()
}

#[test]
fn what_cannot_loop_is_refused_with_the_reason() {
    let place = Workplace::new();
    let folder = place.path("models");
    models::newton(&folder, 0).unwrap();
    models::affine(&folder, &[1]).unwrap();
    models::identity(&folder, DType::F32, &[3]).unwrap();
    models::positive_columns(&folder, 1).unwrap();
    models::two_shapes(&folder).unwrap();
    fs::write(place.path("numbers.npy"), npy("(1, 1)", [2.0])).unwrap();
    let check = |model: &str, more: &str| {
        let mut text = workflow(more).replace("newton.onnx", &format!("{model}.onnx"));
        if model != "newton" {
            text = text.replace("inputs = { x = \"numbers\", a = \"numbers\" }", "from = \"numbers\"");
        }
        place.write(text);
        place.on_file("check", &[])
    };
    for (feed, says) in [
        ("{ x = \"y\" }", &["model `newton` has no output `y`", "`next`, `residual`"][..]),
        ("{ z = \"next\" }", &["model `newton` has no input `z`", "`x`, `a`"]),
        ("{ x = \"next\", a = \"next\" }", &["output `next` becomes two inputs of stage `root`"]),
        ("{}", &["`feed` of stage `root` feeds nothing"]),
        ("{ x = 3 }", &["`feed.x` of stage `root` must be the name of an output, in quotes"]),
        ("\"x\"", &["`feed` of stage `root` must be a table of inputs and outputs"]),
    ] {
        check("newton", &format!("feed = {feed}\nrounds = 9")).must_exit(78).must_say(says);
    }
    let missing =
        ["must say what a round takes of the one before", "`feed` is missing", "outputs: `next`, `residual`"];
    check("newton", "rounds = 9").must_exit(78).must_say(&missing);
    for (more, says) in [
        ("", &["stage `root` needs the key `rounds`"][..]),
        ("rounds = 0", &["`rounds` of stage `root` must be from 1 to"]),
        (
            "rounds = 9\nuntil = \"residual > 1\"",
            &["`until` of stage `root` cannot be `residual > 1`", "< 0.001"],
        ),
        ("rounds = 9\nuntil = \"residual < nan\"", &["`until` of stage `root` cannot be `residual < nan`"]),
        ("rounds = 9\nuntil = \"error < 1\"", &["model `newton` has no output `error`"]),
    ] {
        check("newton", &format!("feed = {{ x = \"next\" }}\n{more}")).must_exit(78).must_say(says);
    }
    for (model, more, says) in [
        ("identity_f32", "until = \"y < 1\"", &["gives another shape than input `x`"][..]),
        (
            "two_shapes",
            "feed = { x = \"wide\" }",
            &["cannot become its input `x`", "f32[batch, 4]", "f32[batch, 1]"],
        ),
        ("two_shapes", "feed = { x = \"whole\" }", &["cannot become", "i64[batch, 1]", "f32[batch, 1]"]),
        (
            "two_shapes",
            "feed = { x = \"same\" }\nuntil = \"wide < 1\"",
            &["compares one number per row, and output `wide` has 4", "f32[batch, 4]"],
        ),
    ] {
        let ended = check(model, &format!("rounds = 3\n{more}"));
        assert!(!ended.status.success(), "{model} {more}");
        ended.must_say(says);
    }
    // What the values of a row decide is known once the model was tried.
    check("positive_columns", "rounds = 3").must_exit(0).must_say(&["is not known before it is run"]);
    let says = ["its output `y` has no fixed shape", "f32[batch, ?]"];
    place.on_file("plan", &["--devices", "cpu"]).must_exit(78).must_say(&says);
    // Where there is one input and one output, nothing has to be said.
    check("affine", "rounds = 9\nuntil = \"y < 1\"").must_exit(0);
}
