//! Pictures that are brought to the height of their rows while they are decoded: the rows are those of the whole picture, to the last bit.

use crate::common::*;
use image::{DynamicImage, ImageFormat, Luma, LumaA, Rgba};
use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::{MediaError, Preparer};

/// One of each kind of pixels that a PNG has, with an orientation behind them.
fn files(width: u32, height: u32, orientation: u8) -> Vec<Vec<u8>> {
    let colour = picture(width, height);
    let alpha = |x: u32, y: u32| (x * 7 + y * 3) as u8;
    let translucent = |x, y| {
        let [r, g, b] = colour.get_pixel(x, y).0;
        Rgba([r, g, b, alpha(x, y)])
    };
    let pictures = [
        DynamicImage::ImageRgb8(colour.clone()),
        DynamicImage::ImageLuma8(gray_picture(width, height)),
        DynamicImage::ImageRgba8(image::ImageBuffer::from_fn(width, height, translucent)),
        DynamicImage::ImageRgba8(DynamicImage::ImageRgb8(colour.clone()).into_rgba8()),
        DynamicImage::ImageLumaA8(image::ImageBuffer::from_fn(width, height, |x, y| {
            LumaA([colour.get_pixel(x, y)[0], alpha(x, y)])
        })),
        DynamicImage::ImageLuma16(image::ImageBuffer::from_fn(width, height, |x, y| {
            Luma([(x * 991 + y * 131) as u16])
        })),
        DynamicImage::ImageRgb16(DynamicImage::ImageRgb8(colour).into_rgb16()),
    ];
    pictures.iter().map(|picture| turned(encoded(picture, ImageFormat::Png), orientation)).collect()
}

/// The file with an EXIF chunk before its end.
fn turned(mut file: Vec<u8>, orientation: u8) -> Vec<u8> {
    let end = file.len() - 12;
    file.splice(end..end, png_chunk(b"eXIf", &exif_block(orientation)));
    file
}

/// The picture in tiles or in strips of so many pixels, of 8 bits or of 16, turned.
fn tiff_in_chunks(
    samples: u16,
    (width, height): (u32, u32),
    chunk: (u32, u32),
    is_wide: bool,
    turn: u8,
) -> Vec<u8> {
    let colour = picture(width, height);
    let sample = |x: u32, y: u32, c: u16| match (x < width && y < height, c) {
        (false, _) => 0x55,
        (true, 3) => (x * 7 + y * 3) as u8,
        (true, c) => colour.get_pixel(x, y)[usize::from(c)],
    };
    let (mut pixels, mut offsets, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    let is_tiled = chunk.0 < width;
    for top in (0..height).step_by(chunk.1 as usize) {
        for left in (0..width).step_by(chunk.0 as usize) {
            let begin = pixels.len();
            let rows = if is_tiled { chunk.1 } else { chunk.1.min(height - top) };
            for (y, x) in (top..top + rows).flat_map(|y| (left..left + chunk.0).map(move |x| (y, x))) {
                for value in (0..samples).map(|c| sample(x, y, c)) {
                    if is_wide { pixels.extend([value ^ 0x3c, value]) } else { pixels.push(value) }
                }
            }
            offsets.push(8 + begin as u32);
            lengths.push((pixels.len() - begin) as u32);
        }
    }
    let bits = if is_wide { 16 } else { 8 };
    let mut entries = vec![
        (256, 4, vec![width]),
        (257, 4, vec![height]),
        (258, 3, vec![bits; samples.into()]),
        (259, 3, vec![1]),
        (262, 3, vec![if samples == 1 { 1 } else { 2 }]),
        (274, 3, vec![turn.into()]),
        (277, 3, vec![samples.into()]),
    ];
    match is_tiled {
        true => entries.extend([
            (322, 4, vec![chunk.0]),
            (323, 4, vec![chunk.1]),
            (324, 4, offsets),
            (325, 4, lengths),
        ]),
        false => entries.extend([(273, 4, offsets), (278, 4, vec![chunk.1]), (279, 4, lengths)]),
    }
    if samples == 4 {
        entries.push((338, 3, vec![2]));
    }
    entries.sort_by_key(|entry| entry.0);
    tiff(&pixels, &entries)
}

#[test]
fn rows_of_lowered_tiff_files_are_those_of_whole_ones_in_strips_and_in_tiles() {
    let mut count = 0;
    for chunk in [(97, 1), (97, 7), (97, 40), (16, 16), (80, 32)] {
        for (samples, is_wide) in [(1, false), (3, false), (4, false), (1, true), (3, true), (4, true)] {
            for turn in [1, 6] {
                let file = tiff_in_chunks(samples, (97, 331), chunk, is_wide, turn);
                for color in COLORS {
                    let spec = byte_spec([17, 29], Fit::Cover, ResizeFilter::Bicubic, color);
                    let row = lowered(&file, &spec)
                        .unwrap_or_else(|| panic!("{samples} {chunk:?} is decoded whole"));
                    assert_eq!(
                        row,
                        row_of(&file, &spec),
                        "{samples} samples, {is_wide}, {chunk:?}, {turn}, {color:?}"
                    );
                    count += 1;
                }
            }
        }
    }
    assert!(count >= 120, "{count}");
    // What is packed, and what another program has written.
    let file = encoded(&DynamicImage::ImageRgb8(picture(700, 900)), ImageFormat::Tiff);
    let spec = byte_spec([40, 40], Fit::Stretch, ResizeFilter::Bilinear, Channels::Rgb);
    if let Some(row) = lowered(&file, &spec) {
        assert_eq!(row, row_of(&file, &spec));
    }
    // One strip that is the whole picture is nothing to be saved at.
    assert_eq!(lowered(&tiff_in_chunks(3, (97, 331), (97, 331), false, 1), &spec), None);
}

#[test]
fn a_cut_tiff_is_an_error_however_it_is_decoded() {
    let file = tiff_in_chunks(3, (60, 200), (16, 16), false, 1);
    let spec = byte_spec([8, 8], Fit::Stretch, ResizeFilter::Bilinear, Channels::Rgb);
    // The pixels lie in front of what says where they are.
    for cut in [0, 100, 4000] {
        let damaged = [&file[..8], &file[8 + cut..]].concat();
        let [by_band, whole] = [0, usize::MAX]
            .map(|bytes| Preparer::with_whole_bytes(bytes).decode_for(&damaged, MAX_PIXELS, &[&spec]));
        assert_eq!((by_band.is_ok(), whole.is_ok()), (cut == 0, cut == 0), "{cut}: {by_band:?}, {whole:?}");
    }
}

/// A row of the picture brought to its height while it is decoded; `None` where that is not done.
fn lowered(file: &[u8], spec: &ImageSpec) -> Option<Vec<u8>> {
    let mut preparer = Preparer::with_whole_bytes(0);
    preparer.decode_for(file, MAX_PIXELS, &[spec]).unwrap();
    if preparer.is_enough_for(None) {
        return None;
    }
    let mut row = vec![0xa5; spec.tensor().row_bytes().unwrap()];
    preparer.write_row(spec, &mut row).unwrap();
    Some(row)
}

#[test]
fn rows_of_lowered_pictures_are_those_of_whole_ones() {
    let mut count = 0;
    for (width, height) in [(210, 331), (97, 160), (480, 123)] {
        for orientation in [1, 3, 6, 7] {
            let files = files(width, height, orientation);
            for filter in FILTERS {
                for fit in [Fit::Stretch, Fit::Cover, Fit::Contain, Fit::Corner, Fit::Shorter, Fit::Left] {
                    for color in COLORS {
                        let spec = byte_spec([17, 29], fit, filter, color);
                        for file in &files {
                            let Some(row) = lowered(file, &spec) else { continue };
                            count += 1;
                            assert_eq!(row, row_of(file, &spec), "{width}x{height} {orientation} {spec:?}");
                        }
                    }
                }
            }
        }
    }
    // All but the nearest pixel, and what is low.
    assert!(count > 3000, "{count}");
}

#[test]
fn rows_of_every_height_are_those_of_whole_pictures() {
    // Scales that are whole numbers, and ones that are not: a weight beside its place would show.
    let file = encoded(&DynamicImage::ImageRgb8(picture(9, 1200)), ImageFormat::Png);
    let mut count = 0;
    for side in (1..400).step_by(3).chain([64, 75, 100, 120, 150, 200, 240, 300]) {
        for filter in FILTERS {
            let spec = byte_spec([side, 5], Fit::Stretch, filter, Channels::Rgb);
            let Some(row) = lowered(&file, &spec) else { continue };
            count += 1;
            assert_eq!(row, row_of(&file, &spec), "{side} {filter:?}");
        }
    }
    assert!(count > 350, "{count}");
}

#[test]
fn a_lowered_picture_serves_rows_of_the_same_pixels_and_no_others() {
    let file = encoded(&DynamicImage::ImageRgb8(picture(210, 331)), ImageFormat::Png);
    let spec = byte_spec([17, 29], Fit::Cover, ResizeFilter::Bilinear, Channels::Rgb);
    let floats = ImageSpec { dtype: DType::F32, layout: Layout::Nchw, ..spec.clone() };
    let other = ImageSpec { fit: Fit::Stretch, ..spec.clone() };
    let mut preparer = Preparer::with_whole_bytes(0);
    preparer.decode_for(&file, MAX_PIXELS, &[&spec, &floats]).unwrap();
    assert!(preparer.is_enough_for(Some(&floats)) && !preparer.is_enough_for(Some(&other)));
    let mut row = vec![0; 17 * 29 * 3 * 4];
    preparer.write_row(&floats, &mut row).unwrap();
    assert_eq!(row, row_of(&file, &floats));
    let refused = preparer.write_row(&other, &mut row[..17 * 29 * 3]);
    assert_eq!(refused, Err(MediaError::NothingDecoded));
    // Rows of different pixels need all of it.
    preparer.decode_for(&file, MAX_PIXELS, &[&spec, &other]).unwrap();
    assert!(preparer.is_enough_for(None));
    preparer.write_row(&other, &mut row[..17 * 29 * 3]).unwrap();
    assert_eq!(row[..17 * 29 * 3], row_of(&file, &other));
}

#[test]
fn a_cut_picture_is_an_error_however_it_is_decoded() {
    let file = encoded(&DynamicImage::ImageRgb8(picture(60, 200)), ImageFormat::Png);
    let spec = byte_spec([8, 8], Fit::Stretch, ResizeFilter::Bilinear, Channels::Rgb);
    for cut in (0..file.len()).step_by(7) {
        let mut damaged = file.clone();
        damaged.truncate(cut);
        let refused = Preparer::with_whole_bytes(0).decode_for(&damaged, MAX_PIXELS, &[&spec]);
        assert!(refused.is_err(), "{cut} of {} bytes", file.len());
        // The end is there, and not all before it.
        let kept = cut.min(file.len() - 12);
        let damaged = [&file[..kept], &file[file.len() - 12..]].concat();
        let [by_line, whole] = [0, usize::MAX]
            .map(|bytes| Preparer::with_whole_bytes(bytes).decode_for(&damaged, MAX_PIXELS, &[&spec]));
        assert_eq!(by_line.is_ok(), whole.is_ok(), "{kept}: {by_line:?}, {whole:?}");
    }
}
