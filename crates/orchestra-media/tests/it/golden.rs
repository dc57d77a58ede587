//! Rows against those that Pillow makes of the same files (`golden/make.py`), before normalisation, and against those of torchvision's usual
//! preparation (`golden/make_torchvision.py`), normalised: within a mean of 1 and a maximum of 3 levels of 255.

use crate::common::*;
use half::f16;
use orchestra_core::{Channels, Choice, DType, ImageSpec, Layout, ResizeFilter};

/// One line of `cases.txt`.
fn case(line: &str) -> (&str, ImageSpec, u8) {
    let [file, kind, fitted, shorter, channels, height, width, max] =
        line.split(' ').collect::<Vec<_>>().try_into().unwrap();
    (file, spec_of([kind, fitted, shorter, channels, height, width]), max.parse().unwrap())
}

fn spec_of([kind, fitted, shorter, channels, height, width]: [&str; 6]) -> ImageSpec {
    let size = [height.parse().unwrap(), width.parse().unwrap()];
    let spec = byte_spec(
        size,
        Choice::named(fitted).unwrap(),
        Choice::named(kind).unwrap(),
        Choice::named(channels).unwrap(),
    );
    ImageSpec { shorter: shorter.parse().unwrap(), ..spec }
}

#[test]
fn rows_agree_with_those_of_pillow() {
    let cases = String::from_utf8(golden("cases.txt")).unwrap();
    let expected = golden("expected.bin");
    let mut rest = expected.as_slice();
    let mut wrong = Vec::new();
    for line in cases.lines() {
        let (file, spec, most) = case(line);
        let (row, behind) = rest.split_at(spec.tensor().row_bytes().unwrap());
        rest = behind;
        let found = row_of(&golden(file), &spec);
        let (max, mean) = difference(&found, row);
        if max > most || mean > 1.0 || (spec.filter == ResizeFilter::Nearest && max > 0) {
            wrong.push(format!("{line}: largest difference {max}, mean {mean:.3}"));
        }
    }
    assert!(rest.is_empty());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// One line of `torchvision.txt`.
fn torchvision_case(line: &str) -> (&str, ImageSpec) {
    let [file, kind, fitted, shorter, channels, layout, height, width, _way] =
        line.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut spec = spec_of([kind, fitted, shorter, channels, height, width]);
    spec.layout = if layout == "nhwc" { Layout::Nhwc } else { Layout::Nchw };
    spec.dtype = DType::F32;
    spec.scale = 1.0 / 255.0;
    (spec.mean, spec.std) = match spec.color {
        Channels::Rgb => (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]),
        Channels::Bgr => (vec![0.406, 0.456, 0.485], vec![0.225, 0.224, 0.229]),
        Channels::Gray => (vec![0.5], vec![0.5]),
    };
    (file, spec)
}

/// Differences of two normalised rows in levels of 255: the largest and the mean. `expected` is 16 bit floats.
fn level_difference(row: &[u8], expected: &[u8], spec: &ImageSpec) -> (f32, f32) {
    let n_channels = spec.color.count();
    let area = row.len() / 4 / n_channels;
    let values = row.as_chunks::<4>().0.iter().zip(expected.as_chunks::<2>().0).enumerate();
    let differences = values.map(|(at, (found, expected))| {
        let channel = if spec.layout == Layout::Nhwc { at % n_channels } else { at / area };
        let difference = f32::from_ne_bytes(*found) - f16::from_le_bytes(*expected).to_f32();
        difference.abs() * spec.std[channel] * 255.0
    });
    differences.clone().fold((0.0, 0.0), |(max, mean), d| (max.max(d), mean + d / (area * n_channels) as f32))
}

#[test]
fn rows_agree_with_those_of_torchvision() {
    let cases = String::from_utf8(golden("torchvision.txt")).unwrap();
    let expected = golden("torchvision.bin");
    let mut rest = expected.as_slice();
    let mut wrong = Vec::new();
    for line in cases.lines() {
        let (file, spec) = torchvision_case(line);
        let (row, behind) = rest.split_at(spec.tensor().row_bytes().unwrap() / 2);
        rest = behind;
        let file = golden(file);
        let (max, mean) = level_difference(&row_of(&file, &spec), row, &spec);
        // The expected values are 16 bit floats: exact to a twentieth of a level.
        if max > 3.05 || mean > 1.0 {
            wrong.push(format!("{line}: largest difference {max}, mean {mean:.3}"));
        }
    }
    assert!(rest.is_empty());
    assert!(wrong.is_empty(), "{wrong:#?}");
}
