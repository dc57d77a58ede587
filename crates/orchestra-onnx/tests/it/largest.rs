//! Models that give the largest numbers of an output alone: real sessions, compared with the whole output.

use crate::common::{Setup, f32s, run, spec, to_f32s};
use orchestra_core::{DType, Dim};
use orchestra_testkit::onnx::{Attribute, ModelBuilder};

const STEPS: usize = 5;
const CLASSES: usize = 100;
const ROWS: usize = 3;

/// The first of equal numbers counts, wherever the largest stands, and a model that gives f16 gives f32 of it.
#[test]
fn the_largest_number_of_each_step_and_its_place_are_those_of_the_whole_output() {
    for (dtype, element) in [(DType::F32, 1), (DType::F16, 10)] {
        let row = [Dim::Fixed(STEPS), Dim::Fixed(CLASSES)];
        let model = ModelBuilder::new("echo")
            .input(&spec("x", DType::F32, &row))
            .output(&spec("y", dtype, &row))
            .node("Cast", &["x"], &["y"], &[("to", Attribute::Int(element))]);
        let given = spec("y", DType::F32, &[Dim::Fixed(STEPS), Dim::Fixed(2)]);
        let taken = spec("x", DType::F32, &row);
        let mut setup = Setup::new(|folder| model.write(folder), &[taken], &[given], ROWS, 1);
        setup.spec.largest_outputs = vec!["y".to_owned()];
        let (mut engine, _) = setup.engine().unwrap();
        // Small whole numbers, which f16 has exactly, many of them twice.
        let numbers =
            |row: usize| (0..STEPS * CLASSES).map(move |at| ((at * 7919 + row * 104_729) % 61) as f32 - 30.0);
        let rows: Vec<Vec<u8>> = (0..ROWS).map(|row| f32s(&numbers(row).collect::<Vec<_>>())).collect();
        setup.fill_input(0, 0, 0, &rows);
        run(&mut engine, 0, 0, ROWS).unwrap();
        let mut expected = Vec::new();
        for row in 0..ROWS {
            for step in numbers(row).collect::<Vec<f32>>().chunks(CLASSES) {
                let largest = step.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                expected.push(step.iter().position(|n| *n == largest).unwrap() as f32);
                expected.push(largest);
            }
        }
        assert_eq!(to_f32s(&setup.output(0, 0)), expected, "{dtype}");
    }
}

#[test]
fn a_model_without_that_output_is_refused_by_its_name() {
    let row = [Dim::Fixed(CLASSES)];
    let model =
        ModelBuilder::new("echo").input(&spec("x", DType::F32, &row)).output(&spec("y", DType::F32, &row));
    let model = model.node("Relu", &["x"], &["y"], &[]);
    let given = spec("y", DType::F32, &[Dim::Fixed(2)]);
    let mut setup =
        Setup::new(|folder| model.write(folder), &[spec("x", DType::F32, &row)], &[given], ROWS, 1);
    setup.spec.largest_outputs = vec!["z".to_owned()];
    let Err(refused) = setup.engine() else { panic!("it was loaded") };
    assert!(refused.error.contains("the model has no output `z`"), "{refused:?}");
}
