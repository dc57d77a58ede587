//! Inputs of models: constants in the place of rows, items along another axis, and rows whose shape a model before them left open. What each item then has,
//! `model_outputs.rs` compares with ONNX Runtime for Python.

use std::fs;

use crate::common::{Ended, Workplace, npy};
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_testkit::models::spec;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};

/// A workflow of a model with an input `x` [batch, 3] and others, and what feeds them.
fn scaled(inputs: &str) -> Workplace {
    let place = Workplace::new();
    let model = ModelBuilder::new("m")
        .input(&spec("x", DType::F32, &[3]))
        .input(&spec("w", DType::F32, &[3]))
        .scalar_input("rate", DType::I64)
        .input_along(1, &spec("state", DType::F32, &[2, 3]))
        .output(&spec("y", DType::F32, &[3]))
        .node("Constant", &[], &["zero"], &[("value_ints", Attribute::Ints(vec![0]))])
        .node("Cast", &["rate"], &["r"], &[("to", Attribute::Int(1))])
        .node("ReduceSum", &["state", "zero"], &["s"], &[("keepdims", Attribute::Int(0))])
        .node("Mul", &["x", "r"], &["xr"], &[])
        .node("Sum", &["xr", "w", "s"], &["y"], &[]);
    fs::write(place.path("m.onnx"), model.encode()).unwrap();
    fs::write(place.path("x.npy"), npy("(2, 3)", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
    place.write(format!(
        "version = 1\n[sources.s]\nkind = \"tensors\"\npaths = [\"x.npy\"]\n[models.m]\npath = \"m.onnx\"\n[stages.run]\nkind = \"infer\"\n\
         {inputs}\nmodel = \"m\"\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"run\"\nordered = true\n[devices]\nuse = [\"cpu\"]\n"
    ));
    place
}

#[test]
fn constants_are_added_to_every_item_and_another_value_is_another_run() {
    let inputs = "inputs = { x = \"s\", w = [1, 2.5, -3], rate = 10, state = 0.5 }";
    let place = scaled(inputs);
    place.run(&[]).must_exit(0);
    let data: Vec<_> =
        place.lines("o.jsonl").iter().map(|line| line["result"]["y"]["data"].clone()).collect();
    assert_eq!(data, [serde_json::json!([12.0, 23.5, 28.0]), serde_json::json!([42.0, 53.5, 58.0])]);
    place.run(&["--set", "stages.run.inputs.rate=11"]).must_exit(78).must_say(&["stage `run`", "--fresh"]);
    place.run(&["--set", "stages.run.inputs.rate=11", "--fresh"]).must_exit(0);
    assert_eq!(place.lines("o.jsonl")[0]["result"]["y"]["data"], serde_json::json!([13.0, 25.5, 31.0]));
}

#[test]
fn a_constant_that_does_not_fit_is_refused_with_what_would() {
    for (inputs, says) in [
        (
            "from = \"s\"",
            &[
                "input `rate` that is a single value",
                "inputs = { x = \"s\", w = \"s\", state = \"s\", rate = 0 }",
            ][..],
        ),
        (
            "inputs = { x = \"s\", w = 0, state = 0 }",
            &[
                "does not feed input `rate` of model `m`",
                "it is a single value; add it to `inputs`: rate = 0",
            ],
        ),
        (
            "inputs = { x = \"s\", w = 0, state = 0, rate = \"s\" }",
            &["input `rate` of model `m` is a single value", "no rows can feed it", "rate = 0"],
        ),
        (
            "inputs = { x = \"s\", w = 0, state = 0, rate = [16000] }",
            &["has the shape [1]", "`rate` is a single value, i64", "write a single value: rate = 0"],
        ),
        (
            "inputs = { x = \"s\", w = 0, state = 0, rate = 1.5 }",
            &["the constant for input `rate` of model `m` cannot be the number 1.5", "i64"],
        ),
        ("inputs = { x = \"s\", w = [1, 2], state = 0, rate = 1 }", &["has the shape [2]", "f32[batch, 3]"]),
        (
            "inputs = { x = \"s\", w = [[1, 2], [3]], state = 0, rate = 1 }",
            &["has lists of 2 and of 1 beside each other"],
        ),
        (
            "inputs = { x = \"s\", w = [1, [2], 3], state = 0, rate = 1 }",
            &["whose entries have several depths"],
        ),
        ("inputs = { x = \"s\", w = [], state = 0, rate = 1 }", &["is an empty list"]),
        ("inputs = { x = \"s\", w = { of = 1 }, state = 0, rate = 1 }", &["is no table with `value` alone"]),
        (
            "inputs = { x = \"s\", w = { value = \"a\" }, state = 0, rate = 1 }",
            &["takes f32, and the string \"a\" is none"],
        ),
        (
            "inputs = { x = \"s\", v = 0, w = 0, state = 0, rate = 1 }",
            &["model `m` has no input `v`", "`rate`"],
        ),
        (
            "inputs = { x = 1, w = 0, state = 0, rate = 1 }",
            &["has constants alone", "input_name = \"stage\""],
        ),
        (
            "inputs = { x = \"s\", w = 0, state = [1, 2], rate = 1 }",
            &["has the shape [2]", "f32[2, batch, 3]", "what each item has, state = [[0, ..], ..]"],
        ),
    ] {
        scaled(inputs).on_file("check", &[]).must_exit(78).must_say(says);
    }
    let long = format!("inputs = {{ x = \"s\", w = {:?}, state = 0, rate = 1 }}", vec![vec![1, 2, 3]; 2000]);
    scaled(&long).on_file("check", &[]).must_exit(78).must_say(&["have 24012 bytes", "may have 16384"]);
}

#[test]
fn a_batch_axis_that_the_model_does_not_have_is_refused() {
    let inputs = "inputs = { x = \"s\", w = 0, rate = 1, state = 0 }";
    for (axes, says) in [
        (
            "{ state = 3 }",
            &["input `state` has no axis 3", "it has 3 dimensions: the last one is axis 2"][..],
        ),
        ("{ stat = 1 }", &["it has no input `stat` with dimensions", "did you mean `state`?"]),
        ("{ rate = 0 }", &["it has no input `rate` with dimensions"]),
        ("{ x = -1 }", &["`batch_axis.x` of model `m` must be an axis, from 0"]),
        ("3", &["must be a table of inputs and axes: batch_axis = { input = 1 }"]),
    ] {
        let place = scaled(inputs);
        place.edit("path = \"m.onnx\"", &format!("path = \"m.onnx\"\nbatch_axis = {axes}"));
        place.on_file("check", &[]).must_exit(78).must_say(says);
    }
}

/// Two models one behind the other, each of which halves the sides of its maps and leaves them open. The first gives a number of values, too, that depends
/// on them.
fn halved_twice(from: &str) -> (Workplace, Ended) {
    let place = Workplace::new();
    let open = |name: &str| TensorSpec {
        row: vec![Dim::Fixed(1), Dim::Dynamic, Dim::Dynamic],
        ..spec(name, DType::F32, &[])
    };
    let twos = || Attribute::Ints(vec![2, 2]);
    let pool = |model: ModelBuilder| {
        let model = model.input(&open("x")).output(&open("y"));
        model.node("MaxPool", &["x"], &["y"], &[("kernel_shape", twos()), ("strides", twos())])
    };
    let found = TensorSpec { row: vec![Dim::Fixed(4), Dim::Dynamic], ..spec("found", DType::I64, &[]) };
    let first = pool(ModelBuilder::new("first")).output(&found);
    let first = first.node("Constant", &[], &["zero"], &[("value_ints", Attribute::Ints(vec![0]))]);
    let first = first.node("NonZero", &["x"], &["places"], &[]);
    let first = first.node("Unsqueeze", &["places", "zero"], &["found"], &[]);
    fs::write(place.path("first.onnx"), first.encode()).unwrap();
    fs::write(place.path("second.onnx"), pool(ModelBuilder::new("second")).encode()).unwrap();
    fs::write(place.path("x.npy"), npy("(3, 1, 8, 12)", (0..3 * 96).map(|n| n as f32))).unwrap();
    place.write(format!(
        "version = 1\n[sources.s]\nkind = \"tensors\"\npaths = [\"x.npy\"]\n[models.first]\npath = \"first.onnx\"\n[models.second]\npath = \"second.onnx\"\n\
         [stages.a]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"first\"\nbatch = {{ max = 1 }}\n[stages.b]\nkind = \"infer\"\nfrom = \"{from}\"\nmodel = \"second\"\n\
         [sinks.o]\nkind = \"jsonl\"\nfrom = \"b\"\nordered = true\n[devices]\nuse = [\"cpu\"]\n"
    ));
    let ended = place.run(&[]);
    (place, ended)
}

#[test]
fn maps_of_open_sides_feed_the_next_model_and_check_says_what_it_cannot_know() {
    let (place, ended) = halved_twice("a.y");
    ended.must_exit(0);
    for (item, record) in place.lines("o.jsonl").iter().enumerate() {
        let last = |row: usize, column: usize| (item * 96 + (4 * row + 3) * 12 + 4 * column + 3) as f32;
        let wanted: Vec<Vec<f32>> =
            (0..2).map(|row| (0..3).map(|column| last(row, column)).collect()).collect();
        let y = &record["result"]["y"];
        assert_eq!((&y["shape"], &y["data"]), (&serde_json::json!([1, 2, 3]), &serde_json::json!([wanted])));
    }
    let checked = place.on_file("check", &[]);
    checked
        .must_exit(0)
        .must_say(&["the shape of output `y` of stage `a` is not known before its model is run"]);
    checked.must_print(&["no errors so far"]);
}

#[test]
fn what_depends_on_the_values_of_a_row_feeds_no_model() {
    let says = ["has no fixed shape, so it cannot be fed on", "its shape differs from row to row"];
    halved_twice("a.found").1.must_exit(78).must_say(&says);
    halved_twice("a").1.must_exit(78).must_say(&["must say which of the outputs", "\"a.y\""]);
}
