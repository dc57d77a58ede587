//! Rows against those that Pillow makes of the same files (`golden/make.py`), before normalisation.

#![allow(clippy::unwrap_used, reason = "test support code")]

mod common;

use std::path::Path;

use common::*;
use orchestra_core::{Channels, Fit, ResizeFilter};

/// One line of `cases.txt`.
fn case(line: &str) -> (&str, orchestra_core::ImageSpec, u8) {
    let [file, filter, fit, shorter, color, height, width, max] =
        line.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let filter = match filter {
        "nearest" => ResizeFilter::Nearest,
        "bilinear" => ResizeFilter::Bilinear,
        "bicubic" => ResizeFilter::Bicubic,
        "lanczos3" => ResizeFilter::Lanczos3,
        other => panic!("filter {other}"),
    };
    let fit = match fit {
        "stretch" => Fit::Stretch,
        "cover" => Fit::Cover,
        "contain" => Fit::Contain,
        "shorter" => Fit::Shorter,
        other => panic!("fit {other}"),
    };
    let color = if color == "rgb" { Channels::Rgb } else { Channels::Gray };
    let mut spec = byte_spec([height.parse().unwrap(), width.parse().unwrap()], fit, filter, color);
    spec.shorter = shorter.parse().unwrap();
    (file, spec, max.parse().unwrap())
}

#[test]
fn rows_agree_with_those_of_pillow() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let cases = std::fs::read_to_string(folder.join("cases.txt")).unwrap();
    let expected = std::fs::read(folder.join("expected.bin")).unwrap();
    let mut rest = expected.as_slice();
    let mut wrong = Vec::new();
    for line in cases.lines() {
        let (file, spec, most) = case(line);
        let (row, behind) = rest.split_at(spec.tensor().row_bytes().unwrap());
        rest = behind;
        let (max, mean) = difference(&row_of(&std::fs::read(folder.join(file)).unwrap(), &spec), row);
        if max > most || mean > 1.0 || (spec.filter == ResizeFilter::Nearest && max > 0) {
            wrong.push(format!("{line}: largest difference {max}, mean {mean:.3}"));
        }
    }
    assert!(rest.is_empty());
    assert!(wrong.is_empty(), "{wrong:#?}");
}
