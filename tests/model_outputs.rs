//! Outputs of models, wherever their items lie: each item has what the model gives for it alone, whatever the size of its batch, or the run is refused before
//! its first item and says what to do. The judge is ONNX Runtime for Python (`scripts/model_outputs.py`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use crate::common::{Ended, Workplace, python_env, repository};
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_testkit::models::spec;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use serde_json::Value;

const BATCHES: [usize; 4] = [1, 3, 8, 32];
const INFER: &str = "kind = \"infer\"";

/// A run of the model at these sizes of a batch, each with records of its own in `folder`.
fn run(place: &Workplace, folder: &Path, name: &str, about: &Value, batches: &[usize]) -> Ended {
    let inputs: Vec<&str> = about["inputs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let constants: Vec<(&String, &str)> = about["constants"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(input, value)| (input, value.as_str().unwrap()))
        .collect();
    let feeds = inputs.iter().map(|input| format!("{input} = \"s.{input}\""));
    let feeds: Vec<String> =
        feeds.chain(constants.iter().map(|(input, value)| format!("{input} = {value}"))).collect();
    let feeds = match &inputs[..] {
        [_] if constants.is_empty() => "from = \"s\"".to_owned(),
        _ => format!("inputs = {{ {} }}", feeds.join(", ")),
    };
    let (kind, ending) = match about["columns"].as_str() {
        Some(columns) => (format!("\"jsonl\"\ncolumns = {{ {columns} }}"), "jsonl"),
        None => ("\"tensors\"".to_owned(), "npz"),
    };
    let mut text = format!(
        "version = 1\n[sources.s]\nkind = {kind}\npaths = [{:?}]\n[models.m]\npath = {:?}\nworkers = 1\n{}\n[devices]\nuse = [\"cpu\"]\n",
        folder.join(format!("{name}.{ending}")),
        folder.join(format!("{name}.onnx")),
        about["keys"].as_str().unwrap()
    );
    for batch in batches {
        let from: Vec<String> = match &about["read"] {
            Value::Array(names) => {
                names.iter().map(|name| format!("\"run{batch}.{}\"", name.as_str().unwrap())).collect()
            }
            _ => vec![format!("\"run{batch}\"")],
        };
        write!(
            text,
            "[stages.run{batch}]\nkind = \"infer\"\n{feeds}\nmodel = \"m\"\nbatch = {{ max = {batch}, wait = \"200ms\" }}\n\
             [sinks.of{batch}]\nkind = \"jsonl\"\nfrom = {}\npath = \"{name}-{batch}.jsonl\"\n",
            if from.len() == 1 { from[0].clone() } else { format!("[{}]", from.join(", ")) }
        )
        .unwrap();
    }
    let sizes: Vec<String> = batches.iter().map(usize::to_string).collect();
    let out = format!("out-{name}-{}", sizes.join("-"));
    let ended = place.run_file(text, &out, &[]);
    for batch in batches {
        let records = format!("{name}-{batch}.jsonl");
        if ended.status.success() {
            fs::copy(place.path(&out).join(&records), folder.join(records)).unwrap();
        }
    }
    ended
}

/// Says what is wrong with a run that is to be refused before its first item.
fn not_refused(name: &str, ended: &Ended) -> Option<String> {
    let helps =
        ended.stderr.contains("help:") && (name != "zipmap_read" || ended.stderr.contains("zipmap = False"));
    let is_refused = ended.status.code() == Some(78) && helps && !ended.stderr.contains("items read");
    (!is_refused).then(|| format!("{name} is not refused: {ended:?}"))
}

/// Says what is wrong with a run that is to stop at a batch in which items change each other, or before.
fn not_stopped(name: &str, ended: &Ended) -> Option<String> {
    let is_stopped =
        ended.status.code() == Some(78) && ended.stderr.contains("the items of a batch change each other");
    if is_stopped { None } else { not_refused(name, ended) }
}

/// Says what is wrong with the workflow that `inspect` writes for a model: it can be checked and planned, but for what trying the model alone shows; or
/// `inspect` says why there is none.
fn inspect(place: &Workplace, folder: &Path, name: &str, about: &Value) -> Option<String> {
    let model = folder.join(format!("{name}.onnx"));
    let said = place.command(&["inspect", model.to_str().unwrap(), "--json"]);
    if said.status.code() == Some(69) {
        let is_told = said.stderr.contains("is of type") && said.stderr.contains("are supported");
        return (!is_told).then(|| format!("{name} inspected: {said:?}"));
    }
    let json: Value = serde_json::from_str(&said.must_exit(0).stdout).unwrap();
    let Some(workflow) = json["workflow"].as_str() else {
        let why = json["no_workflow"].as_str().unwrap_or_default();
        return why.is_empty().then(|| format!("{name} inspected: nothing is said"));
    };
    let own = place.path(&format!("inspected-{name}"));
    fs::create_dir_all(own.join("rows")).unwrap();
    let ending = if about["columns"].is_null() { "npy" } else { "jsonl" };
    fs::hard_link(folder.join(format!("{name}.{ending}")), own.join(format!("rows/x.{ending}"))).unwrap();
    let file = own.join("workflow.toml");
    fs::write(&file, workflow).unwrap();
    let of = |command: &str| place.command(&[command, file.to_str().unwrap(), "--devices", "cpu"]);
    let (checked, planned) = (of("check"), of("plan"));
    let is_unconfirmed = about["refused"].is_string() || checked.stderr.contains("it is not confirmed");
    let shows_when_tried = is_unconfirmed && not_refused(name, &planned).is_none();
    let is_right = checked.status.success() && (planned.status.success() || shows_when_tried);
    (!is_right).then(|| format!("{name} inspected: {workflow}\n{checked:?}\n{planned:?}"))
}

/// Runs a model at all sizes; says what is wrong.
fn try_model(place: &Workplace, folder: &Path, name: &str, about: &Value) -> Vec<String> {
    if about["is_run"] == false {
        return Vec::new();
    }
    let all = run(place, folder, name, about, &BATCHES);
    let is_right = all.status.success();
    match about["refused"].as_str() {
        Some("may") if is_right => Vec::new(),
        Some("may" | "always") => not_refused(name, &all).into_iter().collect(),
        Some("batches") => {
            let alone = run(place, folder, name, about, &[1]);
            let failed = (!alone.status.success()).then(|| format!("{name} alone: {alone:?}"));
            not_refused(name, &all).into_iter().chain(failed).collect()
        }
        Some("at run") => {
            let wrong = not_stopped(name, &all);
            if !about["fixed"].is_null() {
                return wrong.into_iter().collect();
            }
            let alone = run(place, folder, name, about, &[1]);
            let failed = (!alone.status.success()).then(|| format!("{name} alone: {alone:?}"));
            // Three may be too few to change each other; then their records are looked at.
            let three = run(place, folder, name, about, &[3]);
            let at_three = (!three.status.success()).then(|| not_stopped(name, &three)).flatten();
            wrong.into_iter().chain(failed).chain(at_three).collect()
        }
        _ => (!is_right).then(|| format!("{name}: {all:?}")).into_iter().collect(),
    }
}

#[test]
fn each_item_has_what_the_model_gives_for_it_alone_and_what_inspect_writes_is_planned() {
    let Some(python) = python_env("reference") else { return };
    let place = Workplace::new();
    let folder = place.path("models");
    let script = |what: &str| {
        let script = repository().join("scripts/model_outputs.py");
        let ended = Command::new(&python).arg(script).arg(what).arg(&folder).output().unwrap();
        (ended.status.success(), String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned())
    };
    let (is_made, said) = script("make");
    assert!(is_made, "{said}");
    let about = fs::read(folder.join("models.json")).unwrap();
    let about: BTreeMap<String, Value> = serde_json::from_slice(&about).unwrap();
    assert!(about.len() >= 40, "{}", about.len());
    let (left, wrong) = (Mutex::new(about.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((name, about)) = left.lock().unwrap().next() else { return };
                    let found = try_model(&place, &folder, name, about);
                    let inspected = inspect(&place, &folder, name, about);
                    wrong.lock().unwrap().extend(found.into_iter().chain(inspected));
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} models: {}", wrong.len(), wrong.join("\n"));
    let (is_right, said) = script("check");
    assert!(is_right, "{said}");
}

/// A run of eight rows of four numbers, in batches of up to four, over a model that says that `y` has a row of `width` numbers for each item. The
/// model looks whole numbers up in a table that ends at 7. So each run of a probe fails, and the outputs are unconfirmed before the run.
fn run_unprobed(stage: &str, width: Dim, node: (&str, &[&str], &[(&str, Attribute)])) -> (Workplace, Ended) {
    let place = Workplace::new();
    let tensor = |name: &str, row| TensorSpec { row: vec![row], ..spec(name, DType::F32, &[]) };
    let (operator, inputs, attributes) = node;
    let model = ModelBuilder::new("m")
        .input(&tensor("x", Dim::Fixed(4)))
        .output(&tensor("y", width))
        .constant("table", &[8], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
        .constant("thousand", &[], &[1000.0])
        .node("Floor", &["x"], &["whole"], &[])
        .node("Sub", &["x", "whole"], &["fraction"], &[])
        .node("Mul", &["fraction", "thousand"], &["far"], &[])
        .node("Add", &["whole", "far"], &["place"], &[])
        .node("Cast", &["place"], &["at"], &[("to", Attribute::Int(7))])
        .node("Gather", &["table", "at"], &["p"], &[])
        .node(operator, inputs, &["y"], attributes);
    fs::write(place.path("m.onnx"), model.encode()).unwrap();
    let items: String = (0..8).map(|n| format!("{{\"x\": [{n}, {n}, {n}, {n}]}}\n")).collect();
    fs::write(place.path("x.jsonl"), items).unwrap();
    place.write(format!(
        "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"x.jsonl\"]\ncolumns = {{ x = \"f32[4]\" }}\n[models.m]\npath = \"m.onnx\"\n\
         workers = 1\n[stages.run]\n{stage}\nfrom = \"s\"\nmodel = \"m\"\n\
         batch = {{ max = 4, wait = \"200ms\" }}\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"run\"\n[devices]\nuse = [\"cpu\"]\n"
    ));
    let ended = place.run(&[]);
    ended.must_say(&["it is not confirmed that output `y`", "the model could not be tried"]);
    (place, ended)
}

#[test]
fn what_has_no_row_in_a_batch_is_run_item_by_item_and_no_item_fails_for_it() {
    let mean = [("axes", Attribute::Ints(vec![0])), ("keepdims", Attribute::Int(1))];
    for width in [Dim::Fixed(4), Dim::Dynamic] {
        let (place, ended) = run_unprobed(INFER, width, ("ReduceMean", &["p"], &mean));
        assert!(ended.status.success(), "{ended:?}");
        let records = place.lines("o.jsonl");
        assert_eq!(records.len(), 8);
        for record in records {
            let index = record["index"].as_f64().unwrap();
            assert_eq!(record["result"]["y"]["data"], serde_json::json!(vec![index; 4]), "{record}");
        }
        assert!(place.failures().is_empty());
    }
}

#[test]
fn what_has_no_row_of_an_item_alone_ends_the_run_and_fails_no_item() {
    let twice = [("axis", Attribute::Int(0))];
    for width in [Dim::Fixed(4), Dim::Dynamic] {
        let (place, ended) = run_unprobed(INFER, width, ("Concat", &["p", "p"], &twice));
        ended.must_exit(78).must_say(&["model `m`", "output `y`", "batch = { max = 1 }"]);
        assert_eq!(place.errors(), [""; 0]);
    }
}

/// A model with an input `x` of rows of this shape, and an output `y` that says that it has such rows, too.
fn model_of(batch: Dim, row: &[usize]) -> ModelBuilder {
    let [x, y] = ["x", "y"].map(|name| TensorSpec { batch, ..spec(name, DType::F32, row) });
    ModelBuilder::new("m").input(&x).output(&y)
}

/// A run of the model in batches of up to `max`, and what it wrote of `y`. Item `n` is an `x` of the numbers from `n` on.
fn run_of(model: &ModelBuilder, row: &[usize], items: usize, max: usize) -> (Ended, Vec<Value>) {
    let place = Workplace::new();
    fs::write(place.path("m.onnx"), model.encode()).unwrap();
    let numbers = |n: usize| {
        let numbers: Vec<usize> = (n..n + row.iter().product::<usize>()).collect();
        match row {
            [_, last] => format!("{:?}", numbers.chunks(*last).collect::<Vec<_>>()),
            _ => format!("{numbers:?}"),
        }
    };
    let lines: String = (0..items).map(|n| format!("{{\"x\": {}}}\n", numbers(n))).collect();
    fs::write(place.path("x.jsonl"), lines).unwrap();
    place.write(format!(
        "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"x.jsonl\"]\ncolumns = {{ x = \"f32{row:?}\" }}\n[models.m]\npath = \"m.onnx\"\n\
         [stages.run]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\nbatch = {{ max = {max} }}\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"run\"\n\
         [devices]\nuse = [\"cpu\"]\n"
    ));
    let ended = place.run(&[]);
    let mut records = place.lines("o.jsonl");
    records.sort_by_key(|record| record["index"].as_u64());
    (ended, records.into_iter().map(|mut record| record["result"]["y"].take()).collect())
}

/// A tensor of whole numbers that a model holds.
fn ints(model: ModelBuilder, name: &str, values: &[i64]) -> ModelBuilder {
    model.node("Constant", &[], &[name], &[("value_ints", Attribute::Ints(values.to_vec()))])
}

fn reshaped(batch: Dim, row: &[usize], shape: &[i64]) -> ModelBuilder {
    ints(model_of(batch, row), "shape", shape).node("Reshape", &["x", "shape"], &["y"], &[])
}

#[test]
fn what_an_item_has_in_its_batch_alone_ends_the_run_before_a_record_is_written() {
    let over_items = [("axis", Attribute::Int(0))];
    let iterate = "kind = \"iterate\"\nrounds = 1\nfeed = { x = \"y\" }";
    for (stage, width) in [(INFER, Dim::Fixed(4)), (INFER, Dim::Dynamic), (iterate, Dim::Fixed(4))] {
        let (place, ended) = run_unprobed(stage, width, ("Softmax", &["p"], &over_items));
        let change = "the items of a batch change each other";
        ended.must_exit(78).must_say(&["model `m`", "output `y`", change, "batch = { max = 1 }"]);
        for file in ["o.jsonl", "failures.jsonl"] {
            assert_eq!(place.lines(file), [Value::Null; 0]);
        }
    }
}

#[test]
fn an_output_that_no_two_runs_give_alike_is_said_and_run() {
    let model = model_of(Dim::Dynamic, &[2]).node("RandomNormalLike", &["x"], &["r"], &[]);
    let model = model.node("Add", &["x", "r"], &["y"], &[]);
    let said = "output `y` of model `m` is another one at each run of the same";
    run_of(&model, &[2], 2, 32).0.must_exit(0).must_say(&[said, "batch = { max = 1 }"]);
    let (alone, _) = run_of(&model, &[2], 2, 1);
    alone.must_exit(0).must_say(&[said, "export the model for inference"]);
    assert!(!alone.stderr.contains("batch = {"), "{alone:?}");
}

/// A run that is refused before its first item, with these words.
fn must_refuse((ended, records): (Ended, Vec<Value>), words: &[&str]) {
    ended.must_exit(78).must_say(words);
    assert!(records.is_empty() && !ended.stderr.contains("items read"), "{ended:?}");
}

#[test]
fn a_model_that_does_not_run_batches_of_every_size_is_refused_with_a_remedy_that_works() {
    // Its batch is a number in one of its nodes, whatever its file says.
    for max in [1, 4] {
        let twos = run_of(&reshaped(Dim::Dynamic, &[3], &[2, 3]), &[3], 5, max);
        must_refuse(twos, &["model `m` runs batches of 2 and fails with batches of 1", "batch fixed at 2"]);
    }
    let (ended, of_twos) = run_of(&reshaped(Dim::Fixed(2), &[3], &[2, 3]), &[3], 5, 4);
    ended.must_exit(0);
    let one = run_of(&reshaped(Dim::Dynamic, &[3], &[1, 3]), &[3], 5, 4);
    must_refuse(one, &["runs batches of 1 and fails with batches of 2", "write `batch = { max = 1 }`"]);
    let (ended, of_one) = run_of(&reshaped(Dim::Dynamic, &[3], &[1, 3]), &[3], 5, 1);
    ended.must_exit(0);
    for of in [of_twos, of_one] {
        let wanted = (0..5).map(|n| serde_json::json!([n as f32, n as f32 + 1.0, n as f32 + 2.0]));
        assert_eq!(of.iter().map(|y| y["data"].clone()).collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    }
}

#[test]
fn a_model_of_clips_is_refused_for_frames_and_runs_clips() {
    let mean = |model: ModelBuilder, of: &str| {
        let axes = [("axes", Attribute::Ints(vec![1])), ("keepdims", Attribute::Int(0))];
        model.node("ReduceMean", &[of], &["y"], &axes)
    };
    let clips = |batch: Dim| {
        let model = ints(model_of(batch, &[3]), "shape", &[-1, 8, 3]);
        mean(model.node("Reshape", &["x", "shape"], &["clips"], &[]), "clips")
    };
    let remedy = "export the model with inputs of `[batch, 8, ..]`, and feed it items of 8 rows";
    for max in [1, 16] {
        let words = ["model `m` runs batches of 8 and fails with batches of 1", remedy];
        must_refuse(run_of(&clips(Dim::Dynamic), &[3], 9, max), &words);
    }
    must_refuse(run_of(&clips(Dim::Fixed(8)), &[3], 9, 16), &["has no row for each item", remedy]);
    // The output says that it has the row of the input, and has less.
    let (ended, means) = run_of(&mean(model_of(Dim::Dynamic, &[8, 3]), "x"), &[8, 3], 5, 4);
    ended.must_exit(0);
    let wanted = (0..5).map(|n| serde_json::json!([n as f32 + 10.5, n as f32 + 11.5, n as f32 + 12.5]));
    assert_eq!(means.iter().map(|y| y["data"].clone()).collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
}

#[test]
fn an_item_alone_in_its_batch_has_all_of_an_output_whatever_the_file_says_of_it() {
    // A constant, a batch that is the last dimension, and one that is gone where it is 1.
    let constant = model_of(Dim::Dynamic, &[2]).constant("c", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let constant = constant.node("Identity", &["c"], &["y"], &[]);
    let turned = model_of(Dim::Dynamic, &[2]);
    let turned = turned.node("Transpose", &["x"], &["y"], &[("perm", Attribute::Ints(vec![1, 0]))]);
    let squeezed = model_of(Dim::Dynamic, &[2]).node("Squeeze", &["x"], &["y"], &[]);
    let of_one = |model: &ModelBuilder| {
        let (ended, records) = run_of(model, &[2], 4, 1);
        ended.must_exit(0);
        records.into_iter().map(|mut y| y["data"].take()).collect::<Vec<_>>()
    };
    let rows = (0..4).map(|n| serde_json::json!([n as f32, n as f32 + 1.0])).collect::<Vec<_>>();
    assert_eq!(of_one(&turned), rows);
    assert_eq!(of_one(&squeezed), rows);
    assert_eq!(of_one(&constant), vec![serde_json::json!([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]); 4]);
    let words =
        ["has the shapes [2], [2, 2], [3, 2] for batches of 1, 2 and 3", "write `batch = { max = 1 }`"];
    must_refuse(run_of(&squeezed, &[2], 4, 3), &words);
    must_refuse(run_of(&constant, &[2], 4, 3), &["has no row for each item", "write `batch = { max = 1 }`"]);
}

#[test]
fn a_model_is_tried_once_by_plan_or_run_and_never_by_check() {
    let place = Workplace::new();
    let tensor = |name: &str, row| TensorSpec { row: vec![row], ..spec(name, DType::F32, &[]) };
    // The batch is the last dimension, whatever its names say.
    let model = ModelBuilder::new("m").input(&tensor("x", Dim::Fixed(4))).output(&tensor("y", Dim::Dynamic));
    let turned = [("perm", Attribute::Ints(vec![1, 0]))];
    fs::write(place.path("m.onnx"), model.node("Transpose", &["x"], &["y"], &turned).encode()).unwrap();
    fs::write(place.path("x.jsonl"), "{\"x\": [1, 2, 3, 4]}\n").unwrap();
    let text = "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"x.jsonl\"]\ncolumns = { x = \"f32[4]\" }\n[models.m]\npath = \"m.onnx\"\n\
                [stages.run]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"run\"\n[devices]\nuse = [\"cpu\"]\n";
    place.write(text);
    let cache = place.path("cache");
    // ONNX Runtime is not to be fetched for this test alone.
    let library = orchestra_launch::library::find(
        &orchestra_launch::library::LibraryRequest {
            flavor: orchestra_launch::library::Flavor::Cpu,
            explicit: None,
            offline: true,
        },
        &orchestra_launch::library::Env::from_process(),
    );
    let Some(library) = library.0 else { return };
    let variables =
        [("ORCHESTRA_CACHE", cache.to_str().unwrap()), ("ORT_DYLIB_PATH", library.path.to_str().unwrap())];
    let kept = || fs::read_dir(cache.join("outputs")).map_or(0, Iterator::count);
    let of = |command: &str| {
        let file = place.workflow();
        place.start_command_with(&[command, file.to_str().unwrap()], &variables).wait().exited(0)
    };
    of("check");
    assert_eq!(kept(), 0);
    let planned = of("plan");
    assert_eq!(kept(), 1);
    assert!(!planned.stderr.contains("not confirmed"), "{planned:?}");
    // Another finding is believed, so nothing is tried again.
    let file = fs::read_dir(cache.join("outputs")).unwrap().next().unwrap().unwrap().path();
    let found = fs::read_to_string(&file).unwrap();
    assert!(found.contains("\"mixing\": \"apart\""), "{found}");
    fs::write(&file, found.replace("\"apart\"", "\"mixed\"")).unwrap();
    let refused = place.start_with(&variables).wait();
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    // One that is damaged is not.
    fs::write(&file, "{}").unwrap();
    of("run");
    let record = fs::read_to_string(place.out().join("o.jsonl")).unwrap();
    assert!(record.contains("[1.0,2.0,3.0,4.0]"), "{record}");
}

/// Eight items more in the file of a run, and the start that does them.
fn more(place: &Workplace, item: impl Fn(usize) -> String, arguments: &[&str]) -> Ended {
    let before = fs::read_to_string(place.path("x.jsonl")).unwrap_or_default();
    let items: String = (0..8).map(|n| format!("{{\"x\": [{}, 1]}}\n", item(n))).collect();
    fs::write(place.path("x.jsonl"), before + &items).unwrap();
    place.run(arguments)
}

#[test]
fn no_number_that_spreads_to_others_ends_a_run_that_no_start_goes_on_with() {
    let place = Workplace::new();
    // 0 times a mean is 0, or no number for all.
    let model = model_of(Dim::Dynamic, &[2])
        .constant("zero", &[1], &[0.0])
        .node("ReduceMean", &["x"], &["mean"], &[("axes", Attribute::Ints(vec![0]))])
        .node("Mul", &["mean", "zero"], &["nothing"], &[])
        .node("Add", &["x", "nothing"], &["y"], &[]);
    fs::write(place.path("m.onnx"), model.encode()).unwrap();
    let text = "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"x.jsonl\"]\ncolumns = { x = \"f32[2]\" }\n[models.m]\npath = \"m.onnx\"\n\
                [stages.run]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\nbatch = { max = 8, wait = \"200ms\" }\n\
                [sinks.o]\nkind = \"jsonl\"\nfrom = \"run\"\nordered = true\n[devices]\nuse = [\"cpu\"]\n";
    place.write(text);
    more(&place, |n| n.to_string(), &[]).must_exit(0);
    let one_is_none = |n: usize| if n == 3 { "\"NaN\"".to_owned() } else { n.to_string() };
    more(&place, one_is_none, &[]).must_exit(78).must_say(&[
        "the items of a batch change each other",
        "batch = { max = 1 }",
        "--fresh",
    ]);
    let refused = ["any of its 8 finished items may be wrong", "batch = { max = 1 }", "`--fresh`"];
    place.run(&[]).must_exit(78).must_say(&refused);
    place.edit("max = 8", "max = 1");
    place.run(&[]).must_exit(78).must_say(&refused);
    place.run(&["--fresh"]).must_exit(0).must_say(&["16 items read, 16 done"]);
    let records = fs::read_to_string(place.out().join("o.jsonl")).unwrap();
    assert_eq!(records.matches("NaN").count(), 1, "{records}");
    place.run(&[]).must_exit(0);
}

#[test]
fn probabilities_are_not_taken_for_logits_in_silence() {
    let place = Workplace::new();
    for (operator, is_probability) in
        [("Softmax", true), ("Sigmoid", true), ("LogSoftmax", false), ("Relu", false)]
    {
        let model = model_of(Dim::Dynamic, &[3]).node(operator, &["x"], &["p"], &[]);
        fs::write(place.path("m.onnx"), model.node("Identity", &["p"], &["y"], &[]).encode()).unwrap();
        fs::write(place.path("x.jsonl"), "{\"x\": [0, 5, 1]}\n").unwrap();
        let text = "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"x.jsonl\"]\ncolumns = { x = \"f32[3]\" }\n[models.m]\npath = \"m.onnx\"\n\
                    [stages.run]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\n[stages.c]\nkind = \"classify\"\nfrom = \"run\"\n\
                    [sinks.o]\nkind = \"jsonl\"\nfrom = \"c\"\n[devices]\nuse = [\"cpu\"]\n";
        place.write(text);
        let check = || place.on_file("check", &[]);
        let right = "write `scores = \"none\"` in stage `c`";
        assert_eq!(check().must_exit(0).stderr.contains(right), is_probability, "{operator}");
        place.edit("kind = \"classify\"", "kind = \"classify\"\nscores = \"none\"");
        assert!(!check().must_exit(0).stderr.contains("scores"), "{operator}");
        let inspected = place.command(&["inspect", place.path("m.onnx").to_str().unwrap()]);
        assert_eq!(inspected.must_exit(0).stdout.contains("scores = \"none\""), is_probability, "{operator}");
    }
}
