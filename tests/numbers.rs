//! Numbers keep their value from a source to a sink and back, whatever their type; what is no number, or missing, is never taken for one.

use std::fs;
use std::path::Path;

use crate::common::{Workplace, json_lines, npy_of, write_pictures};
use orchestra_core::{DType, Element};
use orchestra_testkit::models;
use orchestra_testkit::size::scaled;
use serde_json::Value;

/// The hard values of each type.
fn values(dtype: DType) -> Vec<Element> {
    let doubles = |values: &[f64]| {
        let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 0.1, -1.5];
        special.iter().chain(values).map(|v| Element::Double(*v)).collect::<Vec<_>>()
    };
    let ints = |values: &[i64]| values.iter().map(|v| Element::Int(*v)).collect();
    match dtype {
        DType::F64 => {
            doubles(&[5e-324, 1e308, f64::MAX, 9_007_199_254_740_994.0, 1_700_000_123.25, 52.520_006_6])
        }
        DType::F32 => doubles(&[1e-45, f64::from(f32::MAX), 16_777_218.0, f64::from(0.3_f32)]),
        DType::F16 => doubles(&[2_f64.powi(-24), 65504.0, 2050.0]),
        DType::I64 => ints(&[i64::MIN, i64::MAX, (1 << 53) + 1, 0, -1]),
        DType::I32 => ints(&[i32::MIN.into(), i32::MAX.into(), 0]),
        DType::I16 => ints(&[i16::MIN.into(), i16::MAX.into(), 0]),
        DType::U8 => ints(&[0, 255, 7]),
        DType::Bool => vec![Element::Bool(true), Element::Bool(false)],
    }
}

/// Numbers of any bits, those around powers of two, and what floats beside them hold; but for NaN, which has many forms and keeps none.
fn any_values(dtype: DType) -> Vec<Element> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let every = scaled(1, 5);
    let mut bits: Vec<u64> = (0..scaled(400, 60)).map(|_| random()).collect();
    bits.extend(
        (0..64)
            .step_by(every)
            .flat_map(|n| [1_u64 << n, (1 << n) - 1, (1 << n) + 1, (1_u64 << n).wrapping_neg()]),
    );
    let powers = |n: i32| [2_f64.powi(n), -2_f64.powi(n), 2_f64.powi(n) + 1.0, 2_f64.powi(n).next_down()];
    let floats =
        bits.iter().map(|bits| f64::from_bits(*bits)).chain((-60..60).step_by(every).flat_map(powers));
    let all: Vec<Element> = match dtype {
        DType::F32 => floats.map(|float| Element::Double(f64::from(float as f32))).collect(),
        DType::F64 | DType::F16 => floats.map(Element::Double).collect(),
        _ => bits.iter().map(|bits| Element::Int(bits.cast_signed())).collect(),
    };
    let fits =
        |element: &Element| !element.to_f64().is_nan() && element.append(dtype, &mut Vec::new()).is_ok();
    all.into_iter().filter(fits).collect()
}

fn bytes(dtype: DType, elements: &[Element]) -> Vec<u8> {
    let mut data = Vec::new();
    elements.iter().for_each(|element| element.append(dtype, &mut data).unwrap());
    data
}

fn write_npy(path: &Path, dtype: DType, shape: &str, data: &[u8]) {
    let order = if dtype.size_bytes() == 1 { '|' } else { '<' };
    fs::write(path, npy_of(&format!("{order}{}", dtype.npy_code()), shape, data)).unwrap();
}

/// The elements of the arrays of an `npy` sink, in the order of their items.
fn arrays(folder: &Path) -> Vec<u8> {
    let of = |line: Value| (line["index"].as_u64().unwrap(), line["file"].as_str().unwrap().to_owned());
    let mut files: Vec<_> = json_lines(&folder.join("index.jsonl")).into_iter().map(of).collect();
    files.sort();
    let data = |(_, file): &(u64, String)| {
        let file = fs::read(folder.join(file)).unwrap();
        let header = usize::from(u16::from_le_bytes([file[8], file[9]]));
        file[10 + header..].to_vec()
    };
    files.iter().flat_map(data).collect()
}

/// A source that a stage passes on, and sinks that write it.
fn passed(name: &str, source: &str, column: &str, sinks: &[&str]) -> String {
    let sinks = sinks.iter().map(|kind| {
        let path = if *kind == "npy" { format!("{name}-npy") } else { format!("{name}.{kind}") };
        format!("[sinks.{name}_{kind}]\nkind = \"{kind}\"\nfrom = \"to_{name}\"\npath = \"{path}\"\n")
    });
    format!(
        "[sources.{name}]\n{source}\n[stages.to_{name}]\nkind = \"select\"\nfrom = \"{name}\"\ncolumns = {{ x = \"{column}\" }}\n{}",
        sinks.collect::<String>()
    )
}

fn run(place: &Workplace, tables: &str) -> crate::common::Ended {
    place.write(format!("version = 1\n{tables}[devices]\nuse = [\"cpu\"]\n"));
    place.run(&["--fresh"])
}

#[test]
fn every_number_goes_through_each_sink_and_each_source_bit_for_bit() {
    for dtype in DType::ALL {
        let place = Workplace::new();
        let values = [values(dtype), any_values(dtype)].concat();
        let data = bytes(dtype, &values);
        write_npy(&place.path("x.npy"), dtype, &format!("({},)", values.len()), &data);
        let source = "kind = \"tensors\"\npaths = [\"x.npy\"]";
        run(&place, &passed("x", source, "x", &["npy", "jsonl", "csv", "parquet"])).must_exit(0);
        assert_eq!(arrays(&place.out().join("x-npy")), data, "{dtype}");
        let sorted = |data: &[u8]| {
            let mut all: Vec<Vec<u8>> = data.chunks(dtype.size_bytes()).map(<[u8]>::to_vec).collect();
            all.sort();
            all
        };
        fs::rename(place.out(), place.path("first")).unwrap();
        let ty = dtype.name();
        let mut tables = String::new();
        for (kind, column) in [("jsonl", "result.x"), ("csv", "x"), ("parquet", "x")] {
            let source = format!(
                "kind = \"{kind}\"\npaths = [\"first/*.{kind}\"]\ncolumns = {{ \"{column}\" = \"{ty}\" }}"
            );
            tables += &passed(kind, &source, column, &["npy"]);
        }
        run(&place, &tables).must_exit(0);
        for kind in ["jsonl", "csv", "parquet"] {
            // Records stand in the order in which they were done.
            let back = arrays(&place.out().join(format!("{kind}-npy")));
            assert_eq!(sorted(&back), sorted(&data), "{dtype} by {kind}");
        }
    }
}

#[test]
fn what_is_no_number_is_a_word_in_files_and_no_other_value() {
    let place = Workplace::new();
    let special: Vec<Element> = values(DType::F64).drain(..7).collect();
    write_npy(&place.path("x.npy"), DType::F64, "(7,)", &bytes(DType::F64, &special));
    run(&place, &passed("x", "kind = \"tensors\"\npaths = [\"x.npy\"]", "x", &["jsonl", "csv"])).must_exit(0);
    let mut lines = place.lines("x.jsonl");
    lines.sort_by_key(|line| line["index"].as_u64());
    let found: Vec<&Value> = lines.iter().map(|line| &line["result"]["x"]).collect();
    let expected = serde_json::json!(["NaN", "Infinity", "-Infinity", 0.0, -0.0, 0.1, -1.5]);
    assert_eq!(found, expected.as_array().unwrap().iter().collect::<Vec<_>>());
    let mut cells: Vec<(u64, String)> = csv::Reader::from_path(place.out().join("x.csv"))
        .unwrap()
        .records()
        .map(|record| record.map(|record| (record[1].parse().unwrap(), record[3].to_owned())).unwrap())
        .collect();
    cells.sort();
    let cells: Vec<&str> = cells.iter().map(|(_, cell)| cell.as_str()).collect();
    assert_eq!(cells, ["nan", "inf", "-inf", "0", "-0", "0.1", "-1.5"]);
}

#[test]
fn numbers_of_text_files_are_doubles_in_every_row_and_integers_are_never_rounded() {
    let place = Workplace::new();
    fs::write(place.path("d.csv"), "id,x\n1,7\n9007199254740993,1.5\n9007199254740994,inf\n").unwrap();
    fs::write(
        place.path("d.jsonl"),
        "{\"id\": 1, \"x\": 7}\n{\"id\": 9007199254740993, \"x\": 1.5}\n{\"id\": 9007199254740994, \"x\": \"Infinity\"}\n",
    )
    .unwrap();
    for kind in ["csv", "jsonl"] {
        let tables = |columns: &str| {
            format!(
                "[sources.s]\nkind = \"{kind}\"\npaths = [\"d.{kind}\"]\n{columns}[stages.t]\nkind = \"select\"\nfrom = \"s\"\n\
                 columns = {{ id = \"id\", x = \"x\" }}\n[sinks.results]\nkind = \"jsonl\"\nfrom = \"t\"\n"
            )
        };
        run(&place, &tables("")).must_exit(65);
        let [failure] = &place.failures()[..] else { panic!("{:?}", place.failures()) };
        let said = failure["error"].as_str().unwrap();
        assert!(said.contains("would round 9007199254740993"), "{said}");
        let (_, fix) = said.split_once("write ").unwrap();
        let fix = fix.split(" to keep").next().unwrap();
        assert_eq!(fix, "columns = { id = \"text\", x = \"f64\" }");
        run(&place, &tables(&format!("{fix}\n"))).must_exit(0);
        let text = fs::read_to_string(place.out().join("results.jsonl")).unwrap();
        assert!(text.contains(r#""result":{"id":"9007199254740993","x":1.5}"#), "{text}");
        assert!(text.contains(r#""x":7.0"#) && text.contains(r#""x":"Infinity""#), "{text}");
    }
}

#[test]
fn doubles_become_what_a_model_takes_or_fail_by_name() {
    let place = Workplace::new();
    fs::write(place.path("d.jsonl"), "{\"x\": [1.5, 2]}\n{\"x\": [1e39, 0]}\n{\"x\": [0.1, -7]}\n").unwrap();
    let source = "[sources.s]\nkind = \"jsonl\"\npaths = [\"d.jsonl\"]\n";
    let infer = |model: &Path| {
        format!(
            "[models.m]\npath = {model:?}\n[stages.t]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\n[sinks.results]\nkind = \"jsonl\"\nfrom = \"t\"\n"
        )
    };
    let result = |y: &str| {
        fs::read_to_string(place.out().join("results.jsonl")).unwrap().contains(&format!("\"data\":{y}"))
    };
    let folder = |name: &str| {
        let folder = place.path(name);
        fs::create_dir(&folder).unwrap();
        folder
    };
    let (single, double, short) = (folder("f32"), folder("f64"), folder("i16"));
    run(&place, &(source.to_owned() + &infer(&models::affine(&single, &[2]).unwrap()))).must_exit(65);
    assert!(result("[4.0,5.0]") && result("[1.2,-13.0]"));
    let said = place.errors().swap_remove(0);
    assert!(said.contains("`x` goes on as f32, and at place 0 f32 cannot hold"), "{said}");
    run(&place, &(source.to_owned() + &infer(&models::identity(&double, DType::F64, &[2]).unwrap())))
        .must_exit(0);
    assert!(result("[1e+39,0.0]") && result("[0.1,-7.0]"));
    run(&place, &(source.to_owned() + &infer(&models::identity(&short, DType::I16, &[2]).unwrap())))
        .must_exit(65);
    assert_eq!(place.failures().len(), 3, "each has a fraction, or is too large");
}

/// What a kind of stage does with NaN.
enum OnNan {
    /// It fails that item, and no other: the shape of a row, and the stage.
    Fails(&'static str, &'static str),
    /// It goes on as it is.
    Keeps(&'static str, &'static str),
    /// None comes to it in a workflow that this test can make, for this reason.
    NoneComes(&'static str),
}

fn on_nan(kind: &str) -> OnNan {
    use OnNan::{Fails, Keeps, NoneComes};
    match kind {
        "argmax" => Fails("2", ""),
        "threshold" => Fails("2", ""),
        "mask" => Fails("2, 2, 2", ""),
        "classify" => Fails("2", "top_k = 1"),
        "embed" => Fails("4", ""),
        "reduce" => Fails("2", "op = \"mean\""),
        "ctc" => Fails("2, 3", "charset = \"letters.txt\""),
        "filter" => Fails("2", "keep = \"x[1] < 5 or true\""),
        "select" => Fails("2", "columns = { y = \"x[1] + 1\" }"),
        "detect" => Fails("2, 7", "layout = \"yolov5\""),
        "crop" => Fails("1, 4", "size = [2, 2]"),
        "infer" => Keeps("2, 7", "model = \"m\""),
        "iterate" => Keeps("2, 7", "model = \"m\"\nrounds = 2"),
        "image" | "pages" | "size" => NoneComes("it takes pictures"),
        "python" | "cuda" => NoneComes("the user's own code is given the number as it is"),
        "gather" => NoneComes("it puts rows into a list, as they are"),
        "split" => NoneComes("it takes rows out of a list, as they are"),
        "draw" => NoneComes("`detect` has failed; a test beside its code gives it NaN"),
        other => panic!("say here and in docs/guide/numbers.md what `{other}` does with NaN"),
    }
}

#[test]
fn every_kind_of_stage_fails_the_item_with_nan_by_name_or_keeps_it() {
    let place = Workplace::new();
    fs::write(place.path("letters.txt"), "a\nb\n").unwrap();
    write_pictures(&place.images(), 1);
    let model = models::identity(&place.path(""), DType::F32, &[2, 7]).unwrap();
    let infer = format!(
        "[models.m]\npath = {model:?}\n[stages.run]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\n"
    );
    for stage in &orchestra_kinds::builtin().stages {
        let kind = stage.name();
        let (shape, keys, fails) = match on_nan(kind) {
            OnNan::Fails(shape, keys) => (shape, keys, true),
            OnNan::Keeps(shape, keys) => (shape, keys, false),
            OnNan::NoneComes(why) => {
                println!("{kind}: not here, {why}");
                continue;
            }
        };
        let n: usize = shape.split(", ").map(|side| side.parse::<usize>().unwrap()).product();
        // Three rows, of which the second holds NaN at its second place.
        let numbers = (0..3 * n).map(|at| if at == n + 1 { f64::NAN } else { 0.25 });
        let data = bytes(DType::F32, &numbers.map(Element::Double).collect::<Vec<_>>());
        write_npy(&place.path("x.npy"), DType::F32, &format!("(3, {shape})"), &data);
        let lines = (0..3).map(|at| {
            let second = if at == 1 { "\"NaN\"" } else { "0.1" };
            let picture = fs::read_dir(place.images()).unwrap().next().unwrap().unwrap().path();
            format!("{{\"p\": {picture:?}, \"x\": [[0.1, {second}, 0.9, 0.9]]}}\n")
        });
        fs::write(place.path("x.jsonl"), lines.collect::<String>()).unwrap();
        let (source, from) = match kind {
            "crop" => (
                "kind = \"jsonl\"\npaths = [\"x.jsonl\"]\ncolumns = { p = \"picture\", x = \"f32[1,4]\" }",
                "[\"s.p\", \"s.x\"]",
            ),
            "detect" => ("kind = \"tensors\"\npaths = [\"x.npy\"]", "\"run\""),
            _ => ("kind = \"tensors\"\npaths = [\"x.npy\"]", "\"s\""),
        };
        let models = match kind {
            "detect" => &infer,
            "infer" | "iterate" => infer.split_once("[stages").unwrap().0,
            _ => "",
        };
        let sink = if kind == "mask" { "images" } else { "jsonl" };
        let ended = run(
            &place,
            &format!(
                "[sources.s]\n{source}\n{models}[stages.t]\nkind = \"{kind}\"\nfrom = {from}\n{keys}\n[sinks.results]\nkind = \"{sink}\"\nfrom = \"t\"\n"
            ),
        );
        if !fails {
            ended.must_exit(0);
            let records = fs::read_to_string(place.out().join("results.jsonl")).unwrap();
            assert_eq!(records.matches("\"NaN\"").count(), 1, "{kind}: {records}");
            continue;
        }
        ended.must_exit(65);
        let failures = place.failures();
        let [failure] = &failures[..] else { panic!("{kind}: {failures:?}") };
        let said = failure["error"].as_str().unwrap();
        assert!(failure["index"] == 1 && said.contains("NaN"), "{kind}: {said}");
    }
}

#[test]
fn a_missing_value_stays_missing_and_stages_that_need_it_say_so() {
    let place = Workplace::new();
    fs::write(place.path("d.csv"), "x,t\n1.5,a\n,b\nnan,\n").unwrap();
    fs::write(
        place.path("d.jsonl"),
        "{\"x\": 1.5, \"t\": \"a\"}\n{\"x\": null, \"t\": \"b\"}\n{\"x\": \"NaN\"}\n",
    )
    .unwrap();
    let source = |name: &str, kind: &str, path: &str, columns: &str| {
        format!("[sources.{name}]\nkind = \"{kind}\"\npaths = [\"{path}\"]\ncolumns = {{ {columns} }}\n")
    };
    let pass = |name: &str, columns: &str| {
        format!(
            "[stages.of_{name}]\nkind = \"select\"\nfrom = \"{name}\"\ncolumns = {{ {columns} }}\n{}",
            [("jsonl", "ordered = true"), ("csv", "ordered = true"), ("parquet", "")].map(|(kind, key)| {
                format!("[sinks.{name}_{kind}]\nkind = \"{kind}\"\nfrom = \"of_{name}\"\npath = \"{name}.{kind}\"\n{key}\n")
            })
            .concat()
        )
    };
    let results = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(place.out().join(format!("{name}.jsonl"))).unwrap();
        text.lines()
            .map(|line| line.split_once("\"result\":").unwrap().1.trim_end_matches('}').to_owned())
            .collect()
    };
    let expected = [r#"{"x":1.5,"t":"a""#, r#"{"x":null,"t":"b""#, r#"{"x":"NaN","t":null"#];
    let typed = "x = \"f64?\", t = \"text?\"";
    let all = "x = \"x\", t = \"t\"";
    let tables = source("c", "csv", "d.csv", typed)
        + &pass("c", all)
        + &source("j", "jsonl", "d.jsonl", typed)
        + &pass("j", all);
    run(&place, &tables).must_exit(0);
    assert_eq!(
        (&results("c")[..], &results("j")[..]),
        (&expected.map(str::to_owned)[..], &expected.map(str::to_owned)[..])
    );
    fs::rename(place.out(), place.path("first")).unwrap();
    let inner = "\"result.x\" = \"f64?\", \"result.t\" = \"text?\"";
    let tables = source("c", "csv", "first/j.csv", typed)
        + &pass("c", all)
        + &source("j", "jsonl", "first/c.jsonl", inner)
        + &pass("j", "x = \"result.x\", t = \"result.t\"")
        + &source("p", "parquet", "first/j-*.parquet", typed)
        + &pass("p", all);
    run(&place, &tables).must_exit(0);
    for name in ["c", "j", "p"] {
        let mut found = results(name);
        found.sort_by_key(|line| expected.iter().position(|known| known == line));
        assert_eq!(found, expected, "{name}");
    }
    // Stages say that they lack it; expressions can ask.
    let computed = |stage: &str| {
        source("c", "csv", "d.csv", typed)
            + "[stages.t]\nfrom = \"c\"\n"
            + stage
            + "\n[sinks.c]\nkind = \"jsonl\"\nfrom = \"t\"\nordered = true\n"
    };
    run(&place, &computed("kind = \"select\"\ncolumns = { y = \"x + 1\" }")).must_exit(65);
    let said = place.errors();
    assert!(said.iter().any(|said| said.contains("`x` is missing")) && said.len() == 2, "{said:?}");
    run(&place, &computed("kind = \"filter\"\nkeep = \"not is_missing(x) and not is_nan(x)\"")).must_exit(0);
    assert_eq!(results("c"), [expected[0]]);
    run(&place, &computed("kind = \"select\"\ncolumns = { t = \"or_else(t, 'none')\" }")).must_exit(0);
    assert_eq!(results("c"), [r#""a""#, r#""b""#, r#""none""#]);
    // Without the `?` the row fails, and the help says what to write.
    fs::write(place.path("d.csv"), "x\n1.5\n\n \n\"\"\n").unwrap();
    let plain = source("c", "csv", "d.csv", "x = \"f64\"") + &pass("c", "x = \"x\"");
    run(&place, &plain).must_exit(65);
    let said = place.errors().swap_remove(0);
    assert!(said.contains("write columns = { x = \"f64?\" }"), "{said}");
    run(&place, &plain.replace("\"f64\"", "\"f64?\"")).must_exit(0);
}
