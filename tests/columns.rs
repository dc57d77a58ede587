//! Columns of a table become the vectors that models take, and the vectors of all items one array. Each number is that of plain arithmetic.

use std::fs;

use crate::common::Workplace;
use orchestra_testkit::models;
use orchestra_testkit::workflow_file::WorkflowFile;

/// Columns whose order in the vector is another one than in the file.
const HEADER: &str = "age,id,\"income, EUR\",height m";

fn cells(row: u32) -> [f64; 3] {
    let x = f64::from(row);
    [x * 0.37 - 3.0, 1e6 / (x + 1.0), x.sqrt()]
}

/// What the model gives for the vector [height m, age, 1.5, income, EUR].
fn expected(row: u32) -> Vec<f32> {
    let [age, income, height] = cells(row);
    [height, age, 1.5, income].iter().map(|x| 2.0 * *x as f32 + 1.0).collect()
}

#[test]
fn columns_of_a_table_feed_a_model_as_one_vector_and_all_vectors_are_stacked_in_order() {
    const ROWS: u32 = 11;
    let place = Workplace::new();
    let lines: String = (0..ROWS)
        .map(|row| {
            let [age, income, height] = cells(row);
            // One without an age, and one with a word in its place.
            let age = match row {
                3 => String::new(),
                6 => "old".to_owned(),
                _ => age.to_string(),
            };
            format!("{age},row {row},{income},{height}\n")
        })
        .collect();
    fs::write(place.path("d.csv"), format!("{HEADER}\n{lines}")).unwrap();
    let (vector, pair) = (place.path("vector"), place.path("pair"));
    fs::create_dir(&vector).and_then(|()| fs::create_dir(&pair)).unwrap();
    let (vector, pair) =
        (models::affine(&vector, &[4]).unwrap(), models::two_in_two_out(&pair, &[1]).unwrap());
    let columns = "columns = { age = 'f64?', id = 'text', 'income, EUR' = 'f64', 'height m' = 'f64' }";
    let made = "columns = { X = '[height m, age, 1.5, income, EUR]', a = '[age]', b = 'f32([or_else(age, 0) * 2])', one = 'i32(1)' }";
    let add = "kind = 'infer'\ninputs = { a = 'made.a', b = 'made.b' }\nmodel = 'pair'";
    let flow = WorkflowFile::new()
        .source("people", "csv", format_args!("paths = ['d.csv']\n{columns}"))
        .stage("made", "select", "people", made)
        .model("vector", vector)
        .model("pair", pair)
        .stage("run", "infer", "made.X", "model = 'vector'\nbatch = { max = 4 }")
        .table("stages.add", add)
        .stage("constant", "select", "people", "columns = { k = '[0, 7]' }")
        .stage("all", "reduce", "run", "op = 'concat'\nstack = true")
        .sink("sums", "jsonl", ["add", "made.one"])
        .sink("constants", "jsonl", "constant")
        .sink("array", "npy", "all.y")
        .sink("names", "jsonl", "all.names")
        .on_cpu();
    place.write(flow);
    place.run(&[]).must_exit(65);
    let mut errors = place.errors();
    errors.sort();
    assert!(errors[0].contains("`age` is missing") && errors[1].contains("old"), "{errors:?}");
    assert_eq!(errors.len(), 2);
    let good: Vec<u32> = (0..ROWS).filter(|row| ![3, 6].contains(row)).collect();
    let file = fs::read(place.out().join("array/all.npy")).unwrap();
    let numbers: Vec<f32> = good.iter().flat_map(|row| expected(*row)).collect();
    let numbers: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert!(String::from_utf8_lossy(&file).contains("'shape': (9, 4, ), "));
    assert!(file.ends_with(&numbers), "not the numbers of plain arithmetic");
    let names: Vec<String> = good.iter().map(|row| format!("d.csv:{}", row + 2)).collect();
    assert_eq!(place.lines("names.jsonl")[0]["result"], serde_json::json!(names));
    assert_eq!(place.lines("constants.jsonl").len(), good.len());
    for line in place.lines("constants.jsonl") {
        assert_eq!(line["result"]["k"]["data"], serde_json::json!([0, 7]), "{line}");
    }
    let sums = place.lines("sums.jsonl");
    assert_eq!(sums.len(), good.len());
    for line in sums {
        let age = cells(line["index"].as_u64().unwrap() as u32)[0];
        let sum = age as f32 + (age * 2.0) as f32;
        let result = &line["result"];
        assert_eq!(result["add.sum"]["data"][0].as_f64().unwrap() as f32, sum, "{line}");
        assert_eq!(result["made.one"], serde_json::json!(1), "{line}");
    }
}
