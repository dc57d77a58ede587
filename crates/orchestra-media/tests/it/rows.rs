//! Every fit, colour, layout and dtype of rows. What filters make of pixels is in `golden.rs`.

use crate::common::*;
use half::f16;
use image::{DynamicImage, ImageFormat};
use orchestra_core::data::Pixels;
use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::{MediaError, PixelRect, Preparer};

#[test]
fn corner_is_the_picture_as_large_as_it_fits_and_padding_below() {
    let file = encoded(&DynamicImage::ImageRgb8(picture(61, 47)), ImageFormat::Png);
    for filter in FILTERS {
        for color in COLORS {
            let spec = byte_spec([20, 24], Fit::Corner, filter, color);
            let inner = row_of(&file, &byte_spec([18, 24], Fit::Stretch, filter, color));
            assert_eq!(
                row_of(&file, &spec),
                [inner, spec.pad.repeat(2 * 24)].concat(),
                "{filter:?} {color:?}"
            );
        }
    }
}

/// What was made of one rectangle, its gray or its reduced pixels, must not show in the next.
#[test]
fn each_region_of_a_picture_gives_the_row_that_it_gives_alone() {
    let picture = picture(60, 40);
    let pixels = Pixels { width: 60, height: 40, channels: 3, bytes: picture.as_raw() };
    let rects = [(0, 0, 20, 20), (25, 10, 20, 20), (5, 5, 9, 12), (0, 0, 60, 40), (40, 20, 20, 20)];
    let mut kept = Preparer::new();
    for color in [Channels::Gray, Channels::Rgb, Channels::Gray] {
        let spec = byte_spec([16, 16], Fit::Stretch, ResizeFilter::Bilinear, color);
        let row = |preparer: &mut Preparer, (left, top, width, height): (u32, u32, u32, u32)| {
            let rect = PixelRect { left: left.into(), top: top.into(), width, height };
            preparer.load(&pixels, rect, &spec).unwrap();
            let mut row = vec![0; spec.tensor().row_bytes().unwrap()];
            preparer.write_row(&spec, &mut row).unwrap();
            row
        };
        for rect in rects {
            assert_eq!(row(&mut kept, rect), row(&mut Preparer::new(), rect), "{color:?} {rect:?}");
        }
    }
}

/// Bit for bit, so that a loader process may send either.
#[test]
fn what_a_region_lacks_is_padding_of_the_colour_that_the_row_has() {
    let (colour, gray) = (picture(6, 5), gray_picture(6, 5));
    for color in COLORS {
        for (bytes, channels) in [(colour.as_raw(), 3), (gray.as_raw(), 1)] {
            let pixels = Pixels { width: 6, height: 5, channels, bytes };
            let mut spec = byte_spec([9, 10], Fit::Stretch, ResizeFilter::Nearest, color);
            let mut preparer = Preparer::new();
            preparer.load(&pixels, PixelRect { left: -2, top: -1, width: 10, height: 9 }, &spec).unwrap();
            let mut row = vec![0; 90 * color.count()];
            preparer.write_row(&spec, &mut row).unwrap();
            spec.size = [5, 6];
            preparer.load(&pixels, PixelRect { left: 0, top: 0, width: 6, height: 5 }, &spec).unwrap();
            let mut inner = vec![0; 30 * color.count()];
            preparer.write_row(&spec, &mut inner).unwrap();
            for (at, found) in row.chunks_exact(color.count()).enumerate() {
                let (x, y) = (at as i64 % 10 - 2, at as i64 / 10 - 1);
                let is_inside = (0..6).contains(&x) && (0..5).contains(&y);
                let expected = if is_inside {
                    &inner[(y * 6 + x) as usize * color.count()..][..color.count()]
                } else {
                    &spec.pad[..]
                };
                assert_eq!(found, expected, "{color:?}, {channels} channels, {x}, {y}");
            }
        }
    }
    // No memory is taken for a box that is larger than a picture may be.
    let pixels = Pixels { width: 6, height: 5, channels: 3, bytes: colour.as_raw() };
    let spec = byte_spec([1, 1], Fit::Stretch, ResizeFilter::Nearest, Channels::Rgb);
    let rect = PixelRect { left: -1_000_000_000, top: 0, width: 2_000_000_000, height: 5 };
    let error = Preparer::new().load(&pixels, rect, &spec).unwrap_err();
    assert!(matches!(error, MediaError::CutTooLarge { .. }), "{error}");
}

#[test]
fn the_pixels_of_a_row_unpack_to_the_row() {
    for (width, height) in [(61, 47), (9, 40)] {
        let file = encoded(&DynamicImage::ImageRgb8(picture(width, height)), ImageFormat::Png);
        for fit in FITS {
            for color in COLORS {
                for layout in [Layout::Nchw, Layout::Nhwc] {
                    for dtype in [DType::F32, DType::F16] {
                        let n = color.count();
                        let spec = ImageSpec {
                            layout,
                            dtype,
                            scale: 1.0 / 255.0,
                            mean: [0.4, 0.5, 0.3][..n].to_vec(),
                            std: [0.2, 0.3, 0.7][..n].to_vec(),
                            ..byte_spec([20, 24], fit, ResizeFilter::Bilinear, color)
                        };
                        let packed = row_of(&file, &spec.packed().unwrap());
                        let mut row = vec![0x5a; spec.tensor().row_bytes().unwrap()];
                        orchestra_media::unpack(&spec, &packed, &mut row).unwrap();
                        let what = format!("{width}x{height} {fit:?} {color:?} {layout:?} {dtype}");
                        assert!(row == row_of(&file, &spec), "{what}");
                        orchestra_media::unpack(&spec, &packed[1..], &mut row).unwrap_err();
                        orchestra_media::unpack(&spec, &packed, &mut row[1..]).unwrap_err();
                    }
                }
            }
        }
    }
    assert_eq!(byte_spec([2, 2], Fit::Cover, ResizeFilter::Bilinear, Channels::Rgb).packed(), None);
}

#[test]
fn a_picture_of_the_right_size_is_written_unchanged() {
    let picture = picture(29, 23);
    let file = encoded(&DynamicImage::ImageRgb8(picture.clone()), ImageFormat::Png);
    for filter in FILTERS {
        for fit in FITS {
            let mut spec = byte_spec([23, 29], fit, filter, Channels::Rgb);
            spec.shorter = 23;
            assert_eq!(row_of(&file, &spec), *picture.as_raw(), "{filter:?} {fit:?}");
        }
    }
    // A crop without a resize as well.
    let mut spec = byte_spec([11, 13], Fit::Shorter, ResizeFilter::Lanczos3, Channels::Rgb);
    spec.shorter = 23;
    let cropped = image::imageops::crop_imm(&picture, 8, 6, 13, 11).to_image();
    assert_eq!(row_of(&file, &spec), *cropped.as_raw());
}

/// The values that `spec` must give, worked out of the row of bytes that it gives.
fn expected_values(bytes: &[u8], spec: &ImageSpec) -> Vec<f64> {
    let [height, width] = spec.size.map(|n| n as usize);
    let channels = spec.color.count();
    let mut values = vec![0.0; bytes.len()];
    for (at, byte) in bytes.iter().enumerate() {
        let (pixel, rgb) = (at / channels, at % channels);
        let c = if spec.color == Channels::Bgr { 2 - rgb } else { rgb };
        let value = if spec.dtype == DType::U8 {
            f64::from(*byte)
        } else {
            (f64::from(*byte) * f64::from(spec.scale) - f64::from(spec.mean[c])) / f64::from(spec.std[c])
        };
        let to = match spec.layout {
            Layout::Nhwc => pixel * channels + c,
            Layout::Nchw => c * width * height + pixel,
        };
        values[to] = value;
    }
    values
}

fn values_of(row: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => row.as_chunks().0.iter().map(|b| f64::from(f32::from_ne_bytes(*b))).collect(),
        DType::F16 => row.as_chunks().0.iter().map(|b| f16::from_ne_bytes(*b).to_f64()).collect(),
        _ => row.iter().map(|b| f64::from(*b)).collect(),
    }
}

#[test]
fn every_layout_and_dtype_holds_the_same_pixels_normalised_per_channel() {
    let colour = encoded(&DynamicImage::ImageRgb8(picture(50, 41)), ImageFormat::Png);
    let gray = encoded(&DynamicImage::ImageLuma8(gray_picture(50, 41)), ImageFormat::Png);
    for (file, size, fit) in [
        (&colour, [19, 23], Fit::Contain),
        (&colour, [19, 23], Fit::Cover),
        (&gray, [40, 23], Fit::Contain),
        (&colour, [19, 23], Fit::Left),
        (&gray, [20, 90], Fit::Left),
        (&gray, [35, 35], Fit::Stretch),
    ] {
        for color in COLORS {
            let channels = color.count();
            let mut spec = byte_spec(size, fit, ResizeFilter::Bilinear, color);
            spec.scale = 1.0 / 255.0;
            spec.mean = [0.485, 0.456, 0.406][..channels].to_vec();
            spec.std = [0.229, 0.224, 0.225][..channels].to_vec();
            // Bytes in the order red, green, blue, whose pad is that of `spec` in the order of `color`.
            let mut plain = spec.clone();
            if color == Channels::Bgr {
                plain.color = Channels::Rgb;
                plain.pad.reverse();
            }
            let bytes = row_of(file, &plain);
            for layout in [Layout::Nchw, Layout::Nhwc] {
                for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::F16, 2e-3), (DType::U8, 0.0)] {
                    let spec = ImageSpec { layout, dtype, ..spec.clone() };
                    let expected = expected_values(&bytes, &spec);
                    let found = values_of(&row_of(file, &spec), dtype);
                    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        assert!(
                            (found - expected).abs() <= tolerance,
                            "{color:?} {layout:?} {dtype} {fit:?} at {at}: {found}, expected {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn rows_of_any_alignment_are_the_same() {
    let file = encoded(&DynamicImage::ImageRgb8(picture(50, 41)), ImageFormat::Png);
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let mut spec = byte_spec([20, 21], Fit::Contain, ResizeFilter::Bilinear, Channels::Rgb);
        spec.dtype = dtype;
        spec.layout = Layout::Nchw;
        let expected = row_of(&file, &spec);
        let mut preparer = Preparer::new();
        preparer.decode(&file, MAX_PIXELS).unwrap();
        let mut memory = vec![0; expected.len() + 8];
        for offset in 0..8 {
            memory.fill(0xa5);
            preparer.write_row(&spec, &mut memory[offset..offset + expected.len()]).unwrap();
            assert_eq!(memory[offset..offset + expected.len()], expected, "{dtype} at {offset}");
        }
    }
}

#[test]
fn one_decode_serves_many_specs_and_the_order_does_not_matter() {
    let rgba = image::RgbaImage::from_fn(40, 30, |x, y| {
        image::Rgba([x as u8 * 6, y as u8 * 8, 90, (x * y % 256) as u8])
    });
    for picture in [DynamicImage::ImageRgba8(rgba), DynamicImage::ImageRgb8(picture(40, 30))] {
        let file = encoded(&picture, ImageFormat::Png);
        let mut specs = Vec::new();
        for color in COLORS {
            for filter in FILTERS {
                for pad in [0, 255] {
                    let mut spec = byte_spec([13, 17], Fit::Cover, filter, color);
                    spec.pad.fill(pad);
                    specs.push(spec);
                }
            }
        }
        let mut preparer = Preparer::new();
        preparer.decode(&file, MAX_PIXELS).unwrap();
        for spec in specs.iter().chain(specs.iter().rev()) {
            let mut row = vec![0; spec.tensor().row_bytes().unwrap()];
            preparer.write_row(spec, &mut row).unwrap();
            assert_eq!(row, row_of(&file, spec), "{spec:?}");
        }
    }
}

#[test]
fn a_spec_that_cannot_be_used_is_an_error_that_says_why() {
    let file = encoded(&DynamicImage::ImageRgb8(picture(9, 9)), ImageFormat::Png);
    let good = ImageSpec {
        dtype: DType::F32,
        ..byte_spec([4, 4], Fit::Shorter, ResizeFilter::Nearest, Channels::Rgb)
    };
    let mut preparer = Preparer::new();
    assert_eq!(preparer.write_row(&good, &mut [0; 192]), Err(MediaError::NothingDecoded));
    preparer.decode(&file, MAX_PIXELS).unwrap();
    assert_eq!(preparer.write_row(&good, &mut [0; 192]), Ok(()));
    let wrong = MediaError::RowLength { expected: 192, found: 191 };
    assert_eq!(preparer.write_row(&good, &mut [0; 191]), Err(wrong));
    for (spec, part) in [
        (ImageSpec { size: [0, 4], ..good.clone() }, "`size`"),
        (ImageSpec { size: [u32::MAX; 2], ..good.clone() }, "`size`"),
        (ImageSpec { shorter: 0, ..good.clone() }, "`shorter`"),
        (ImageSpec { dtype: DType::I64, ..good.clone() }, "`i64`"),
        (ImageSpec { mean: vec![0.0], ..good.clone() }, "`mean` has 1 values, expected 3"),
        (ImageSpec { std: vec![1.0, 0.0, 1.0], ..good.clone() }, "`std` has 0"),
        (ImageSpec { pad: vec![], ..good.clone() }, "`pad` has 0 values"),
    ] {
        let error = preparer.write_row(&spec, &mut [0; 192]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
