//! JPEG: every kind of file gives the pixels of libjpeg-turbo, and nearly those when it is reduced; no damaged file gives any.

use std::process::Command;

use crate::common::*;
use image::{DynamicImage, ImageFormat};
use orchestra_core::{Channels, FailureKind, Fit, ImageSpec, ResizeFilter};
use orchestra_media::{MediaError, PictureSize, Preparer};

/// Files made by Pillow and by hand, see `golden/make.py` and `golden/make_jpegs.py`.
const FILES: [&str; 16] = [
    "photo.jpg",
    "photo-444.jpg",
    "photo-422.jpg",
    "photo-440.jpg",
    "photo-411.jpg",
    "progressive.jpg",
    "restart.jpg",
    "gray.jpg",
    "turned.jpg",
    "cmyk.jpg",
    "ycck.jpg",
    "cmyk-plain.jpg",
    "rgb-adobe.jpg",
    "rgb-names.jpg",
    "extended.jpg",
    "optimised.jpg",
];

/// All pixels of a 26 by 19 picture.
fn plain_spec() -> ImageSpec {
    byte_spec([19, 26], Fit::Stretch, ResizeFilter::Nearest, Channels::Rgb)
}

fn small_jpeg() -> Vec<u8> {
    encoded(&DynamicImage::ImageRgb8(picture(26, 19)), ImageFormat::Jpeg)
}

/// Where the frame header of a baseline file is.
fn frame_of(jpeg: &[u8]) -> usize {
    jpeg.windows(2).position(|m| m == [0xff, 0xc0]).unwrap()
}

/// Has the decoder take no vector instructions (`libjpeg-turbo-rs/src/simd/mod.rs`).
const NO_VECTORS: &str = "JSIMD_FORCENONE";

#[test]
fn every_kind_of_file_has_the_pixels_of_libjpeg_turbo() {
    let expected = String::from_utf8(golden("libjpeg-turbo.txt")).unwrap();
    let mut decoded = Vec::new();
    for name in FILES {
        let file = golden(name);
        let size = Preparer::new().decode(&file, MAX_PIXELS).unwrap();
        let spec = byte_spec([size.height, size.width], Fit::Stretch, ResizeFilter::Bilinear, Channels::Rgb);
        decoded.push(format!("{name} {:08x}", crc32fast::hash(&row_of(&file, &spec))));
    }
    decoded.sort();
    let expected: Vec<&str> = expected.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(decoded, expected);
}

#[test]
fn pixels_are_the_same_without_vector_instructions() {
    // In a process of its own: the environment of this one is that of the tests beside it, too.
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["--exact", "jpeg::every_kind_of_file_has_the_pixels_of_libjpeg_turbo"]).env(NO_VECTORS, "1");
    let ended = tests.output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn every_turn_is_nearly_the_same_reduced() {
    let jpeg = encoded(&DynamicImage::ImageRgb8(picture(190, 133)), ImageFormat::Jpeg);
    for turn in 1..=8 {
        let file = with_jpeg_exif(&jpeg, turn);
        for fit in FITS {
            let exact = byte_spec([30, 41], fit, ResizeFilter::Bilinear, Channels::Rgb);
            let fast = ImageSpec { fast: true, ..exact.clone() };
            let (_, mean) = difference(&row_of(&file, &fast), &row_of(&file, &exact));
            assert!(mean <= 4.0, "{turn} {fit:?}: {mean}");
        }
    }
}

#[test]
fn a_reduced_picture_is_told_with_the_size_of_the_file_and_serves_any_row() {
    let jpeg = encoded(&DynamicImage::ImageRgb8(picture(333, 251)), ImageFormat::Jpeg);
    let preparer = &mut Preparer::new();
    for filter in FILTERS {
        let mut spec = byte_spec([30, 30], Fit::Shorter, filter, Channels::Gray);
        spec.fast = true;
        let size = preparer.decode_for(&jpeg, MAX_PIXELS, &[&spec]).unwrap();
        assert_eq!(size, PictureSize { width: 333, height: 251 });
        // Not one of those that it was decoded for.
        for other in FILTERS {
            let spec = byte_spec([200, 300], Fit::Cover, other, Channels::Rgb);
            preparer.write_row(&spec, &mut vec![0; 200 * 300 * 3]).unwrap();
        }
    }
}

#[test]
fn without_fast_nothing_is_reduced() {
    let jpeg = encoded(&DynamicImage::ImageRgb8(picture(400, 300)), ImageFormat::Jpeg);
    let small = byte_spec([20, 20], Fit::Cover, ResizeFilter::Lanczos3, Channels::Rgb);
    let fast = ImageSpec { fast: true, ..small.clone() };
    let preparer = &mut Preparer::new();
    preparer.decode(&jpeg, MAX_PIXELS).unwrap();
    let mut whole = vec![0; 1200];
    preparer.write_row(&small, &mut whole).unwrap();
    assert_eq!(row_with(preparer, &jpeg, &small), whole);
    preparer.decode_for(&jpeg, MAX_PIXELS, &[&fast, &small]).unwrap();
    let mut row = vec![0; 1200];
    preparer.write_row(&fast, &mut row).unwrap();
    assert_eq!(row, whole, "another row wants all pixels");
}

#[test]
fn every_truncation_of_every_kind_of_file_is_named_as_one() {
    for name in FILES {
        let file = golden(name);
        let mut preparer = Preparer::new();
        // Every byte of the headers and of the end, and some between.
        for cut in (3..file.len()).filter(|cut| *cut < 700 || cut % 37 == 0 || file.len() - cut < 40) {
            let error = preparer.decode(&file[..cut], MAX_PIXELS).unwrap_err();
            assert_eq!(error.kind(), FailureKind::Decode);
            assert!(matches!(error, MediaError::Truncated { .. }), "{name}, {cut} bytes: {error}");
        }
    }
}

#[test]
fn bytes_between_segments_and_behind_the_end_are_stepped_over() {
    let jpeg = small_jpeg();
    let spec = plain_spec();
    // Behind the first segment, whose length is in bytes 4 and 5.
    let first = 4 + usize::from(u16::from_be_bytes([jpeg[4], jpeg[5]]));
    let stray = [&jpeg[..first], b"a note of some camera", &jpeg[first..]].concat();
    let padded = [&jpeg[..], &[0; 500]].concat();
    // A second picture, as cameras append previews.
    let other = encoded(&DynamicImage::ImageRgb8(picture(60, 50)), ImageFormat::Jpeg);
    let two = [&jpeg[..], &other].concat();
    let cut = [&jpeg[..jpeg.len() - 2], &[0; 500]].concat();
    let preparer = &mut Preparer::new();
    let whole = row_with(preparer, &jpeg, &spec);
    for file in [&stray, &padded, &two] {
        assert_eq!(row_with(preparer, file, &spec), whole);
    }
    let error = preparer.decode(&cut, MAX_PIXELS).unwrap_err();
    assert!(error.to_string().starts_with("the JPEG file is cut off"), "{error}");
}

#[test]
fn less_data_than_the_header_claims_is_an_error_even_with_an_end_marker() {
    let jpeg = small_jpeg();
    let frame = frame_of(&jpeg);
    let mut taller = jpeg.clone();
    taller[frame + 5..frame + 7].copy_from_slice(&[0, 190]);
    let before = encoded(&DynamicImage::ImageRgb8(picture(26, 190)), ImageFormat::Jpeg);
    let preparer = &mut Preparer::new();
    preparer.decode(&before, MAX_PIXELS).unwrap();
    assert!(preparer.decode(&taller, MAX_PIXELS).is_err());
    // A scan that lost its last bytes, closed again, as some programs repair files.
    for lost in 3..200 {
        let closed = [&jpeg[..jpeg.len() - lost], &[0xff, 0xd9]].concat();
        assert!(preparer.decode(&closed, MAX_PIXELS).is_err(), "{lost} bytes lost");
    }
}

#[test]
fn a_progressive_picture_is_cut_off_unless_its_scans_bring_all_bits() {
    let file = golden("progressive.jpg");
    let preparer = &mut Preparer::new();
    assert!(preparer.decode(&file, MAX_PIXELS).is_ok());
    let scans: Vec<usize> = (0..file.len() - 1).filter(|at| file[*at..].starts_with(&[0xff, 0xda])).collect();
    for n in 1..scans.len() {
        // The tables of a scan stand in front of it.
        let closed = [&file[..scans[n]], &[0xff, 0xd9]].concat();
        let error = preparer.decode(&closed, MAX_PIXELS).unwrap_err().to_string();
        assert!(error.contains("cut off: some of its scans are missing"), "{n} scans: {error}");
        let without = [&file[..scans[n - 1]], &file[scans[n]..]].concat();
        let error = preparer.decode(&without, MAX_PIXELS).unwrap_err().to_string();
        assert!(error.contains("cut off: some of its scans are missing"), "without {n}: {error}");
        let mut holes = file.clone();
        let end = holes.len() - 2;
        holes[scans[n] - 20..end].fill(0);
        assert!(preparer.decode(&holes, MAX_PIXELS).is_err(), "{n} scans");
    }
}

#[test]
fn rare_codings_are_refused_by_name() {
    let jpeg = small_jpeg();
    let frame = frame_of(&jpeg);
    let changed = |at: usize, to: u8| {
        let mut file = jpeg.clone();
        file[frame + at] = to;
        file
    };
    for (file, word) in [
        (changed(1, 0xc9), "arithmetic"),
        (changed(1, 0xca), "arithmetic"),
        (changed(1, 0xc3), "lossless"),
        (changed(1, 0xf7), "JPEG-LS"),
        // Hierarchical.
        (changed(1, 0xc5), "unsupported JPEG process: SOF type 0xC5; convert it, such as with `magick "),
        (changed(4, 12), "12 bits"),
        // Its scan has three.
        (changed(9, 2), "Invalid component ID 3 in SOS"),
        (changed(9, 255), "SOF component count must be 1-4, got 255"),
    ] {
        let preparer = &mut Preparer::new();
        let error = preparer.decode(&file, MAX_PIXELS).unwrap_err();
        let is_contradiction = word.contains("omponent");
        assert_eq!(matches!(error, MediaError::Broken { .. }), is_contradiction, "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[test]
fn a_file_of_very_many_scans_is_refused_before_it_keeps_a_processor_busy() {
    let file = golden("progressive.jpg");
    let last_scan = file.windows(2).rposition(|m| m == [0xff, 0xda]).unwrap();
    let (before, end) = file.split_at(file.len() - 2);
    let many = [before, &before[last_scan..].repeat(600), end].concat();
    let preparer = &mut Preparer::new();
    let error = preparer.decode(&many, MAX_PIXELS).unwrap_err();
    assert!(error.to_string().contains("scans, expected at most 500"), "{error}");
}

#[test]
fn a_side_of_zero_is_refused() {
    let jpeg = small_jpeg();
    let frame = frame_of(&jpeg);
    for (at, words) in [(5, "its header claims 26x0 pixels"), (7, "SOF width must not be 0")] {
        let mut file = jpeg.clone();
        file[frame + at..frame + at + 2].fill(0);
        let preparer = &mut Preparer::new();
        let error = preparer.decode(&file, MAX_PIXELS).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
