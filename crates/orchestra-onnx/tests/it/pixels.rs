//! Models that are given pixels and normalise them in their graph: real sessions, compared with the sums done here.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Setup, f32s, run, spec, to_f32s};
use orchestra_core::{DType, Dim, ErrorClass, Layout, PixelInput, TensorSpec};
use orchestra_testkit::onnx::{Attribute, ModelBuilder};

const HEIGHT: usize = 6;
const WIDTH: usize = 5;
const ROWS: usize = 3;
/// What the way over the graph may differ by, for values of about 1.
const CLOSE: f32 = 1e-5;

fn pixels(layout: Layout, dtype: DType, channels: usize) -> PixelInput {
    // Mean and deviation of ImageNet, as one multiplication and one addition.
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let factor = std.iter().map(|s| 1.0 / 255.0 / s).take(channels).collect();
    let offset = mean.iter().zip(std).map(|(m, s): (&f32, f32)| -m / s).take(channels).collect();
    PixelInput { layout, dtype, factor, offset }
}

fn row_shape(layout: Layout, channels: usize) -> Vec<Dim> {
    match layout {
        Layout::Nchw => [channels, HEIGHT, WIDTH].map(Dim::Fixed).to_vec(),
        Layout::Nhwc => [HEIGHT, WIDTH, channels].map(Dim::Fixed).to_vec(),
    }
}

fn picture(seed: usize, channels: usize) -> Vec<u8> {
    (0..HEIGHT * WIDTH * channels).map(|i| ((i * 37 + seed * 101) % 256) as u8).collect()
}

/// What a loader would have written.
fn normalised(picture: &[u8], pixels: &PixelInput, channels: usize) -> Vec<f32> {
    let value = |at: usize, c: usize| {
        f32::from(picture[at * channels + c]).mul_add(pixels.factor[c], pixels.offset[c])
    };
    let area = HEIGHT * WIDTH;
    match pixels.layout {
        Layout::Nchw => (0..channels).flat_map(|c| (0..area).map(move |at| value(at, c))).collect(),
        Layout::Nhwc => (0..area).flat_map(|at| (0..channels).map(move |c| value(at, c))).collect(),
    }
}

/// A worker for a model whose only input takes pixels.
fn pixel_setup<E: std::fmt::Debug>(
    write: impl FnOnce(&Path) -> Result<PathBuf, E>,
    input: &str,
    row: [usize; 3],
    outputs: &[TensorSpec],
    pixels: &PixelInput,
) -> Setup {
    let taken = spec(input, DType::U8, &row.map(Dim::Fixed));
    let mut setup = Setup::new(write, &[taken], outputs, ROWS, 1);
    setup.spec.pixel_inputs = vec![Some(pixels.clone())];
    setup
}

/// A model that gives back what it is given, as f32.
fn echo(pixels: &PixelInput, channels: usize) -> Setup {
    let row = row_shape(pixels.layout, channels);
    let out = spec("y", DType::F32, &row);
    let model = ModelBuilder::new("echo").input(&spec("x", pixels.dtype, &row)).output(&out).node(
        "Cast",
        &["x"],
        &["y"],
        &[("to", Attribute::Int(1))],
    );
    pixel_setup(|folder| model.write(folder), "x", [HEIGHT, WIDTH, channels], &[out], pixels)
}

#[test]
fn the_model_sees_what_a_loader_would_have_written() {
    for layout in [Layout::Nchw, Layout::Nhwc] {
        for (dtype, close) in [(DType::F32, CLOSE), (DType::F16, 2e-3)] {
            for channels in [1, 3] {
                let pixels = pixels(layout, dtype, channels);
                let setup = echo(&pixels, channels);
                let (mut engine, _) = setup.engine().unwrap();
                let pictures: Vec<Vec<u8>> = (0..ROWS).map(|seed| picture(seed, channels)).collect();
                setup.fill_input(0, 0, 0, &pictures);
                run(&mut engine, 0, 0, ROWS).unwrap();
                let expected = pictures.iter().flat_map(|p| normalised(p, &pixels, channels));
                for (found, expected) in to_f32s(&setup.output(0, 0)).into_iter().zip(expected) {
                    assert!(
                        (found - expected).abs() <= close,
                        "{layout:?} {dtype} {channels}: {found} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_model_with_external_weights_still_finds_them() {
    let pixels = pixels(Layout::Nchw, DType::F32, 3);
    let row = row_shape(Layout::Nchw, 3);
    let out = spec("y", DType::F32, &row);
    let write = |folder: &Path| -> std::io::Result<PathBuf> {
        fs::write(folder.join("weights.bin"), f32s(&[2.0, 3.0, 4.0]))?;
        let path = folder.join("model.onnx");
        fs::write(&path, scaled_by_external_weights(&spec("x", DType::F32, &row), &out))?;
        Ok(path)
    };
    let setup = pixel_setup(write, "x", [HEIGHT, WIDTH, 3], std::slice::from_ref(&out), &pixels);
    let (mut engine, _) = setup.engine().unwrap();
    let picture = picture(5, 3);
    setup.fill_input(0, 0, 0, std::slice::from_ref(&picture));
    run(&mut engine, 0, 0, 1).unwrap();
    let area = HEIGHT * WIDTH;
    let expected = normalised(&picture, &pixels, 3).into_iter().enumerate();
    let expected = expected.map(|(at, v)| v * [2.0, 3.0, 4.0][at / area]);
    for (found, expected) in to_f32s(&setup.output(0, 0)).into_iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-4, "{found} {expected}");
    }
}

#[test]
fn a_model_that_cannot_take_pixels_is_refused_with_what_to_do() {
    let mut setup = echo(&pixels(Layout::Nchw, DType::F32, 3), 3);
    setup.spec.pixel_inputs = vec![Some(pixels(Layout::Nchw, DType::F32, 1))];
    let error = setup.engine().err().unwrap();
    assert_eq!(error.class, ErrorClass::Permanent);
    assert!(error.error.contains("input `x`") && error.error.contains("normalize = \"host\""), "{error}");
}

/// `y = x * w` with one weight per channel, in `weights.bin`.
fn scaled_by_external_weights(x: &TensorSpec, y: &TensorSpec) -> Vec<u8> {
    let model = ModelBuilder::new("m").input(x).output(y).external("w", &[3, 1, 1], "weights.bin");
    model.node("Mul", &["x", "w"], &["y"], &[]).encode()
}
