//! Inputs of texts: each row has its own, whatever they hold, in batches of any size and padded ones.

use crate::common::{Setup, flat, run_of, spec, to_f32s};
use orchestra_core::model_output::texts;
use orchestra_core::row_bytes::{StoredValue, write};
use orchestra_core::{DType, Dim, ReadOutput, TextInput};
use orchestra_onnx::OnnxEngine;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_worker::frames::{DynamicOutput, RunErrorKind, RunTiming};
use orchestra_worker::{Engine, EngineRunError};

fn input(name: &str, row: &[Dim]) -> TextInput {
    TextInput { name: name.to_owned(), row: row.to_vec(), batch: Dim::Dynamic }
}

/// A worker for this model of `word`, a text, and `numbers`, two texts, with the outputs `said`, a text, and `y`, two numbers.
fn setup(model: ModelBuilder) -> Setup {
    let inputs = [input("word", &[]), input("numbers", &[Dim::Fixed(2)])];
    let y = flat("y", DType::F32, 2);
    let model = inputs.iter().fold(model, |model, input| model.text_input(input)).output(&y);
    let model = model.text_output(&input("said", &[])).node(
        "Cast",
        &["numbers"],
        &["y"],
        &[("to", Attribute::Int(1))],
    );
    let outputs = [y.clone(), spec("said", DType::U8, &[Dim::Dynamic])];
    let mut setup = Setup::new(|folder| model.write(folder), &[], &outputs, 8, 1);
    setup.spec.outputs = vec![ReadOutput::rows(y), ReadOutput::packed("said")];
    setup.spec.text_inputs = inputs.to_vec();
    setup
}

fn identity() -> ModelBuilder {
    ModelBuilder::new("texts").node("Identity", &["word"], &["said"], &[])
}

/// Runs a row for each word, with its numbers.
fn run(engine: &mut OnnxEngine, rows: &[(&str, &[&str])]) -> Result<Vec<DynamicOutput>, EngineRunError> {
    let mut values = Vec::new();
    for (word, numbers) in rows {
        let numbers = numbers.iter().map(|number| vec![StoredValue::Text((*number).into())]);
        for value in [StoredValue::Text((*word).into()), StoredValue::List(numbers.collect())] {
            write(&value, &mut values).unwrap();
        }
    }
    engine.run(&run_of(1, 0, 0, rows.len()), &values, &mut RunTiming::default())
}

#[test]
fn each_row_has_its_texts_in_batches_of_any_size() {
    let long = "ü".repeat(1 << 19);
    let words = ["", "x\0y\0", "日本", &long, "e"];
    let rows: Vec<(&str, &[&str])> = words.iter().map(|word| (*word, &["1.5", "-2"][..])).collect();
    for padded_to in [None, Some(8)] {
        let mut setup = setup(identity());
        setup.load.padded_to = padded_to;
        let (mut engine, _) = setup.engine().unwrap();
        for n in [5, 1, 3] {
            let [said] = &run(&mut engine, &rows[..n]).unwrap()[..] else { panic!("one has no fixed shape") };
            assert_eq!(texts::unpack(&said.data).unwrap(), words[..n]);
            assert_eq!(to_f32s(&setup.output(0, 0))[..2 * n], [1.5, -2.0].repeat(n));
            setup.stain_output(0, 0, 0);
        }
    }
}

#[test]
fn an_item_with_another_number_of_texts_is_named_and_what_the_model_refuses_speaks_against_the_batch() {
    let setup = setup(identity());
    let (mut engine, _) = setup.engine().unwrap();
    let error = run(&mut engine, &[("a", &["1", "2"]), ("b", &["1"])]).unwrap_err();
    assert_eq!(error.kind, RunErrorKind::Row(1));
    assert_eq!(error.error, "input `numbers` takes 2 texts of an item, and this one has 1");
    let error = run(&mut engine, &[("a", &["1", "two"])]).unwrap_err();
    assert_eq!(error.kind, RunErrorKind::Model);
    assert!(engine.run(&run_of(1, 0, 0, 1), &[], &mut RunTiming::default()).is_err(), "no values");
}

#[test]
fn texts_that_go_to_another_item_are_found() {
    let ints = |model: ModelBuilder, name: &str, of: i64| {
        model.node("Constant", &[], &[name], &[("value_ints", Attribute::Ints(vec![of]))])
    };
    let model = [("start", -1), ("end", i64::MIN), ("axis", 0)]
        .into_iter()
        .fold(ModelBuilder::new("turned"), |model, (name, of)| ints(model, name, of));
    let turned = model.node("Slice", &["word", "start", "end", "axis", "start"], &["said"], &[]);
    let (mut engine, _) = setup(turned).engine().unwrap();
    assert!(run(&mut engine, &[("a", &["1", "2"])]).is_ok());
    let error = run(&mut engine, &[("a", &["1", "2"]), ("b", &["1", "2"])]).unwrap_err();
    assert_eq!(error.kind, RunErrorKind::Mixed);
    assert!(error.error.contains("its output `said` has"), "{error}");
}
