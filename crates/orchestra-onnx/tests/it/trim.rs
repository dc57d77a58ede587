//! Models that compute no more of an input than pictures fill: real sessions, compared with what they give of rows of exactly that size.

use crate::common::{Setup, f32s, run, spec, to_f32s};
use orchestra_core::{DType, Dim, Placement, TensorSpec, Trim};
use orchestra_testkit::onnx::{Attribute, ModelBuilder};

const CHANNELS: usize = 2;
const HEIGHT: usize = 4;
const WIDTH: usize = 6;
const ROWS: usize = 3;

/// `y` is all that the model sees of `x`, and `mean` what is their mean; both are open in height and width.
fn setup(inputs: &[TensorSpec], trim: Trim) -> Setup {
    let open = spec("x", DType::F32, &[Dim::Fixed(CHANNELS), Dim::Dynamic, Dim::Dynamic]);
    let model = ModelBuilder::new("echo")
        .input(&open)
        .output(&TensorSpec { name: "y".into(), ..open.clone() })
        .output(&spec("mean", DType::F32, &[Dim::Fixed(CHANNELS), Dim::Fixed(1), Dim::Fixed(1)]))
        .node("Neg", &["x"], &["y"], &[])
        .node("ReduceMean", &["x"], &["mean"], &[("axes", Attribute::Ints(vec![2, 3]))]);
    let outputs = [
        spec("y", DType::F32, &[Dim::Fixed(CHANNELS), Dim::Dynamic, Dim::Dynamic]),
        spec("mean", DType::F32, &[Dim::Fixed(CHANNELS), Dim::Fixed(1), Dim::Fixed(1)]),
    ];
    let mut setup = Setup::new(|folder| model.write(folder), inputs, &outputs, ROWS, 2);
    setup.spec.trim = Some(trim);
    setup
}

fn whole() -> TensorSpec {
    spec("x", DType::F32, &[CHANNELS, HEIGHT, WIDTH].map(Dim::Fixed))
}

fn placed(width: u32, height: u32) -> Vec<u8> {
    let to_picture = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    Placement { row: [width, height], picture: [9, 9], to_picture }.bytes().to_vec()
}

fn number(row: usize, channel: usize, y: usize, x: usize) -> f32 {
    (row * 1000 + channel * 100 + y * 10 + x) as f32
}

fn numbers(row: usize, width: usize, height: usize) -> Vec<f32> {
    let channel = |c| (0..height).flat_map(move |y| (0..width).map(move |x| number(row, c, y, x)));
    (0..CHANNELS).flat_map(channel).collect()
}

#[test]
fn a_run_computes_no_more_than_its_rows_are_trimmed_to() {
    let setup = setup(&[whole(), Placement::tensor()], Trim { input: 0, axes: [1, 2] });
    let (mut engine, _) = setup.engine().unwrap();
    let rows: Vec<Vec<u8>> = (0..ROWS).map(|row| f32s(&numbers(row, WIDTH, HEIGHT))).collect();
    let sizes = [(3, 2), (WIDTH, HEIGHT), (1, 1), (5, HEIGHT), (3, 2)];
    for (slot, first, count, (width, height)) in
        sizes.into_iter().flat_map(|size| [(0, 0, 1, size), (1, 1, 2, size), (0, 0, ROWS, size)])
    {
        setup.fill_input(slot, 0, 0, &rows);
        setup.fill_input(slot, 1, 0, &vec![placed(width as u32, height as u32); ROWS]);
        let dynamic = run(&mut engine, slot, first, count).unwrap();
        let of_rows = first..first + count;
        let expected: Vec<f32> =
            of_rows.clone().flat_map(|r| numbers(r, width, height)).map(|n| -n).collect();
        assert_eq!(dynamic[0].shape, [count, CHANNELS, height, width]);
        assert_eq!(to_f32s(&dynamic[0].data), expected, "{count} rows of {width} x {height}");
        let means = to_f32s(&setup.output(slot, 1));
        for (row, mean) in
            of_rows.flat_map(|row| (0..CHANNELS).map(move |c| (row, c))).zip(&means[first * CHANNELS..])
        {
            let (row, channel) = row;
            let of_channel = (0..height).flat_map(|y| (0..width).map(move |x| number(row, channel, y, x)));
            let expected = of_channel.sum::<f32>() / (width * height) as f32;
            assert!((mean - expected).abs() < 1e-2, "{mean} and {expected}");
        }
    }
}

/// A parent never says so; the memory is mapped, and what is read of it must not decide what is touched.
#[test]
fn a_size_that_cannot_be_counts_as_the_whole_row() {
    let setup = setup(&[whole(), Placement::tensor()], Trim { input: 0, axes: [1, 2] });
    let (mut engine, _) = setup.engine().unwrap();
    for wrong in [placed(WIDTH as u32 + 1, HEIGHT as u32), placed(2, u32::MAX), vec![0; 80], vec![0xff; 80]] {
        setup.fill_input(0, 0, 0, &[f32s(&numbers(0, WIDTH, HEIGHT))]);
        setup.fill_input(0, 1, 0, &[wrong]);
        let dynamic = run(&mut engine, 0, 0, 1).unwrap();
        assert_eq!(dynamic[0].shape, [1, CHANNELS, HEIGHT, WIDTH]);
    }
}

#[test]
fn rows_with_the_channels_behind_are_trimmed_along_their_own_axes() {
    let row = [Dim::Dynamic, Dim::Dynamic, Dim::Fixed(CHANNELS)];
    let model =
        ModelBuilder::new("echo").input(&spec("x", DType::F32, &row)).output(&spec("y", DType::F32, &row));
    let model = model.node("Identity", &["x"], &["y"], &[]);
    let whole = spec("x", DType::F32, &[HEIGHT, WIDTH, CHANNELS].map(Dim::Fixed));
    let inputs = [whole, Placement::tensor()];
    let mut setup = Setup::new(|folder| model.write(folder), &inputs, &[spec("y", DType::F32, &row)], 1, 1);
    setup.spec.trim = Some(Trim { input: 0, axes: [0, 1] });
    let (mut engine, _) = setup.engine().unwrap();
    let all: Vec<f32> = (0..HEIGHT * WIDTH * CHANNELS).map(|n| n as f32).collect();
    setup.fill_input(0, 0, 0, &[f32s(&all)]);
    setup.fill_input(0, 1, 0, &[placed(2, 3)]);
    let dynamic = run(&mut engine, 0, 0, 1).unwrap();
    assert_eq!(dynamic[0].shape, [1, 3, 2, CHANNELS]);
    let line = |y: usize| all[y * WIDTH * CHANNELS..][..2 * CHANNELS].to_vec();
    assert_eq!(to_f32s(&dynamic[0].data), (0..3).flat_map(line).collect::<Vec<f32>>());
}

#[test]
fn what_cannot_be_trimmed_is_refused_when_it_is_loaded() {
    for (trim, why) in [
        (Trim { input: 1, axes: [1, 2] }, "height and width"),
        (Trim { input: 7, axes: [1, 2] }, "no input 7 to trim"),
        (Trim { input: 0, axes: [1, 9] }, "no height and width"),
    ] {
        let Err(refused) = setup(&[whole(), Placement::tensor()], trim).engine() else { panic!("{trim:?}") };
        assert!(refused.error.contains(why) || refused.error.contains("no input `placed`"), "{refused:?}");
    }
}
