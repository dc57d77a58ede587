//! Models that take texts: each item has what the model makes of its own text, whatever that holds, or fails by name; and what cannot feed one is refused with
//! what to write. `model_outputs` compares such models with ONNX Runtime for Python.

use std::fs;

use crate::common::Workplace;
use orchestra_core::{Dim, TextInput};
use orchestra_testkit::onnx::ModelBuilder;
use serde_json::{Value, json};

/// A workplace with a model that gives back the text `x` as `y`, and items whose `columns` feed it.
fn place(row: &[Dim], columns: &str, items: &[Value], more: &str) -> Workplace {
    let place = Workplace::new();
    let of = |name: &str| TextInput { name: name.to_owned(), row: row.to_vec(), batch: Dim::Dynamic };
    let model = ModelBuilder::new("m").text_input(&of("x")).text_output(&of("y"));
    fs::write(place.path("m.onnx"), model.node("Identity", &["x"], &["y"], &[]).encode()).unwrap();
    let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
    fs::write(place.path("x.jsonl"), lines).unwrap();
    place.write(format!(
        "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"x.jsonl\"]\ncolumns = {{ {columns} }}\n[models.m]\npath = \"m.onnx\"\nworkers = 1\n\
         [stages.run]\nkind = \"infer\"\nfrom = \"s\"\nmodel = \"m\"\nbatch = {{ max = 8 }}\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"run\"\n[devices]\nuse = [\"cpu\"]\n{more}"
    ));
    place
}

/// The results by the indices of their items.
fn results(place: &Workplace) -> Vec<(u64, Value)> {
    let record = |mut line: Value| (line["index"].as_u64().unwrap(), line["result"].take());
    let mut found: Vec<_> = place.lines("o.jsonl").into_iter().map(record).collect();
    found.sort_by_key(|(index, _)| *index);
    found
}

#[test]
fn texts_come_back_as_they_are_and_an_item_that_lacks_its_text_fails() {
    let long = "ü".repeat(1 << 19);
    let texts = ["", "a\0b\0", "日本語 🦀", "\u{feff}e\u{301}", &long];
    let mut items: Vec<Value> = (0..200).map(|at| json!({ "id": at, "x": texts[at % 5] })).collect();
    items[7] = json!({ "id": 7, "x": null });
    let columns = "id = \"i64\", x = \"text?\"";
    let place = place(&[Dim::Fixed(1)], columns, &items, "[limits]\nmemory = \"192MB\"\n");
    place.run(&[]).must_exit(65);
    let expected = (0..200).filter(|at| *at != 7).map(|at| (at as u64, Value::from(texts[at % 5])));
    assert!(results(&place).into_iter().eq(expected));
    let errors = place.errors();
    assert!(errors.len() == 1 && errors[0].starts_with("`x` is missing: drop such rows"), "{errors:?}");
}

#[test]
fn a_text_for_which_there_is_no_room_fails_and_the_others_go_on() {
    let items = [json!({ "x": "a" }), json!({ "x": "b".repeat(6 << 20) }), json!({ "x": "c" })];
    let place = place(&[], "x = \"text\"", &items, "[limits]\nmemory = \"64MB\"\n");
    place.run(&[]).must_exit(65);
    assert_eq!(results(&place), [(0, "a".into()), (2, "c".into())]);
    assert!(
        place.errors()[0].contains("2 MiB are there for a batch; raise `limits.memory`"),
        "{:?}",
        place.errors()
    );
}

#[test]
fn an_input_of_texts_is_shown_and_columns_that_are_none_are_refused_with_what_to_write() {
    let items = [json!({ "id": 7, "x": "a" })];
    let place_of = |row: &[Dim], columns: &str| place(row, columns, &items, "");
    let good = place_of(&[], "id = \"i64\", x = \"text\"");
    good.on_file("plan", &[]).must_exit(0).must_print(&["beside its slots: `x` text"]);
    good.on_file("check", &[]).must_exit(0);
    let model = good.path("m.onnx");
    let shown = ["input      x text[batch]", "columns = { x = \"text\" }"];
    good.command(&["inspect", model.to_str().unwrap()]).must_exit(0).must_print(&shown);
    let number = place_of(&[], "id = \"i64\"");
    number
        .on_file("check", &[])
        .must_exit(78)
        .must_say(&["takes a text for `x`, text[batch]", "columns = { x = \"text\" }"]);
    number.edit("from = \"s\"", "from = \"s.id\"");
    number
        .on_file("check", &[])
        .must_exit(78)
        .must_say(&["cannot take `s.id`", "columns = { id = \"text\" }"]);
    number.edit("id = \"i64\"", "id = \"text\"");
    number.run(&[]).must_exit(0);
    assert_eq!(results(&number), [(0, "7".into())]);
    let texts = "id = \"text\", x = \"text\"";
    let several = place_of(&[Dim::Fixed(3)], texts);
    several.on_file("check", &[]).must_exit(78).must_say(&[
        "a list of 3 texts for `x`, text[batch, 3]",
        "a select stage makes one, columns = { x = \"[FIRST, SECOND, ..]\" }",
    ]);
    let select = "[stages.three]\nkind = \"select\"\nfrom = \"s\"\ncolumns = { x = \"[id, upper(x), 'ü, ]']\" }\n[stages.run]";
    several.edit("[stages.run]", select);
    several.edit("kind = \"infer\"\nfrom = \"s\"", "kind = \"infer\"\nfrom = \"three\"");
    several.edit("from = \"run\"", "from = \"three\"");
    several.on_file("check", &[]).must_exit(0);
    several.run(&[]).must_exit(0);
    let list = ["7", "A", "ü, ]"];
    assert_eq!(results(&several), [(0, json!(list))]);
}
