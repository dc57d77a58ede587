//! How often memory is taken for a picture once the buffers of a preparer have grown: a number that does not grow with the picture.

#![allow(clippy::unwrap_used, reason = "test support code")]

#[path = "it/common/mod.rs"]
mod common;

#[path = "../../orchestra-fuzz-checks/src/memory.rs"]
#[allow(dead_code, reason = "each test asks for one number")]
mod memory;

use common::*;
use image::{DynamicImage, ImageFormat};
use orchestra_core::{Channels, DType, Fit, ImageSpec, ResizeFilter};
use orchestra_media::Preparer;

/// Rows of every kind of work: each filter and fit, with and without colour, and one that may be reduced.
fn specs() -> Vec<ImageSpec> {
    let mut specs = Vec::new();
    for filter in FILTERS {
        for fit in FITS {
            for color in [Channels::Bgr, Channels::Gray] {
                for dtype in [DType::F32, DType::F16] {
                    specs.push(ImageSpec { dtype, ..byte_spec([40, 31], fit, filter, color) });
                }
            }
        }
    }
    specs.push(ImageSpec {
        fast: true,
        ..byte_spec([20, 20], Fit::Cover, ResizeFilter::Bilinear, Channels::Rgb)
    });
    specs
}

/// The most allocations that decoding any of `files` costs once each has been through, in full and reduced together.
fn most_allocations(preparer: &mut Preparer, files: &[Vec<u8>]) -> usize {
    let specs = specs();
    let fast = specs.last().unwrap();
    let mut row = vec![0; 40 * 31 * 3 * 4];
    let mut most = 0;
    for round in 0..3 {
        for file in files {
            let (_, taken) = memory::measured(|| {
                preparer.decode_for(file, MAX_PIXELS, &[fast]).unwrap();
                preparer.decode(file, MAX_PIXELS).unwrap()
            });
            for spec in &specs {
                let bytes = spec.tensor().row_bytes().unwrap();
                let (written, taken) = memory::measured(|| preparer.write_row(spec, &mut row[..bytes]));
                written.unwrap();
                // The weights of each column and row of the target, and lists of them.
                assert!(round == 0 || taken.calls <= 40 + 31 + 10, "{spec:?}");
            }
            if round > 0 {
                most = most.max(taken.calls);
            }
        }
    }
    most
}

fn files(format: ImageFormat, sizes: &[(u32, u32)]) -> Vec<Vec<u8>> {
    let gray = sizes.iter().map(|(w, h)| DynamicImage::ImageLuma8(gray_picture(*w, *h)));
    let rgb = sizes.iter().map(|(w, h)| DynamicImage::ImageRgb8(picture(*w, *h)));
    gray.chain(rgb).map(|picture| encoded(&picture, format)).collect()
}

/// Of other kinds than the encoder at hand writes: subsampled, progressive, with restarts, of four components.
fn goldens() -> Vec<Vec<u8>> {
    ["photo.jpg", "photo-440.jpg", "progressive.jpg", "restart.jpg", "cmyk.jpg", "ycck.jpg"]
        .map(golden)
        .into()
}

const SIZES: [(u32, u32); 3] = [(130, 87), (32, 32), (61, 140)];

#[test]
fn a_jpeg_takes_what_its_decoder_takes() {
    let mut jpegs = files(ImageFormat::Jpeg, &SIZES);
    for turn in 2..=8 {
        jpegs.push(with_jpeg_exif(&jpegs[3], turn));
    }
    let mut preparer = Preparer::new();
    // Two decodings. The decoder's tables and planes of each component: the count grows with the components, and not with the picture.
    let small = most_allocations(&mut preparer, &jpegs);
    let large = most_allocations(&mut preparer, &files(ImageFormat::Jpeg, &[(900, 700)]));
    assert!(small <= 2 * 32 && large <= small, "{small} for small pictures, {large} for large ones");
    let subsampled = most_allocations(&mut preparer, &goldens());
    assert!(subsampled <= 2 * 100, "{subsampled}");
}

#[test]
fn a_png_takes_what_the_png_crate_takes() {
    let mut preparer = Preparer::new();
    let most = most_allocations(&mut preparer, &files(ImageFormat::Png, &[(32, 32), (600, 400)]));
    assert!(most <= 2 * 16, "{most}");
}
