//! Damaged and made-up files: an error of that item, never a panic, never half a picture, never memory on a header's word.

use crate::common::*;
use image::{DynamicImage, ImageFormat};
use orchestra_core::{Channels, FailureKind, Fit, ImageSpec, ResizeFilter};
use orchestra_media::{MediaError, Preparer};

const FORMATS: [ImageFormat; 6] = [
    ImageFormat::Jpeg,
    ImageFormat::Png,
    ImageFormat::WebP,
    ImageFormat::Bmp,
    ImageFormat::Tiff,
    ImageFormat::Gif,
];

#[test]
fn every_prefix_of_a_file_is_an_error_or_the_whole_picture() {
    let spec = byte_spec([19, 26], Fit::Stretch, ResizeFilter::Nearest, Channels::Rgb);
    let gray = DynamicImage::ImageLuma8(gray_picture(26, 19));
    let colour = DynamicImage::ImageRgb8(picture(26, 19));
    for format in FORMATS {
        for picture in [&gray, &colour] {
            // GIF is never written in gray.
            if format == ImageFormat::Gif && picture.color() == image::ColorType::L8 {
                continue;
            }
            let file = encoded(picture, format);
            let preparer = &mut Preparer::new();
            let accepted = accepted_prefixes(preparer, &file, &spec);
            // Only trailers that hold no pixels may be missing: the end of a GIF, the pad byte of a WebP.
            let spare = if matches!(format, ImageFormat::Jpeg | ImageFormat::Png) { 0 } else { 64 };
            assert!(accepted <= spare, "{format:?}: {accepted} prefixes of {} bytes", file.len());
        }
    }
}

/// How many prefixes of `file` give a picture; each must give the whole one.
fn accepted_prefixes(preparer: &mut Preparer, file: &[u8], spec: &ImageSpec) -> usize {
    let whole = row_with(preparer, file, spec);
    let mut row = vec![0; whole.len()];
    let mut accepted = 0;
    for cut in 0..file.len() {
        match preparer.decode(&file[..cut], MAX_PIXELS) {
            Ok(_) => {
                preparer.write_row(spec, &mut row).unwrap();
                assert_eq!(row, whole, "{cut} of {} bytes", file.len());
                accepted += 1;
            }
            Err(error) => assert_eq!(error.kind(), FailureKind::Decode, "{cut}: {error}"),
        }
    }
    accepted
}

#[test]
fn a_header_that_claims_gigapixels_is_refused() {
    let colour = DynamicImage::ImageRgb8(picture(26, 19));
    let mut jpeg = encoded(&colour, ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|m| m == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xff);
    let mut png = encoded(&colour, ImageFormat::Png);
    png[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let crc = crc32fast::hash(&png[12..29]).to_be_bytes();
    png[29..33].copy_from_slice(&crc);
    let mut gif = encoded(&colour, ImageFormat::Gif);
    gif[6..10].fill(0xff);
    let mut bmp = encoded(&colour, ImageFormat::Bmp);
    bmp[18..26].copy_from_slice(&[0, 0, 1, 0, 0, 0, 1, 0]);
    let mut webp = encoded(&colour, ImageFormat::WebP);
    assert_eq!(&webp[12..16], b"VP8L");
    webp[21..25].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]);
    for (name, file) in [("jpeg", jpeg), ("png", png), ("gif", gif), ("bmp", bmp), ("webp", webp)] {
        let preparer = &mut Preparer::new();
        let error = preparer.decode(&file, 100_000_000).unwrap_err();
        assert_eq!(error.kind(), FailureKind::TooLarge, "{name}: {error}");
        assert!(error.to_string().contains("max_pixels = 100000000"), "{name}: {error}");
    }
}

#[test]
fn a_tiff_entry_that_claims_more_values_than_the_file_has_bytes_is_refused() {
    // Found by a fuzzer: the decoder took 56 MB for these bytes.
    let file = b"II*\0\x08\0\0\0\x09\0\0\x01\x03\0\x01\0\0\0\x04\0\0\0\x01\x01\x03\0\x01\0\x1b\0\0\x04\0\0\
        \0\x02\x01\x03\0\x01\0\0\0\x08\0\0\0\x03\x01\x03\0\x01\0\0\0\x01\0\0\0\x06\x01\x03\0\x01\0\
        \0\0\x01\0\0\0\x11\x01\x04\0\x01\0\0\0z\0\0\0\x15\x01\x03\0\x01\0\0\0\x01\0\0\0\x16\x01\
        \x03\0\x01\0\0\0\x04\0\0\x03\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0k{\x99GT\x7f\xb1\xfd\x09\xf8\
        \x16\x9b,\x95\xd8\xab";
    let error = Preparer::new().decode(file, MAX_PIXELS).unwrap_err();
    assert!(error.to_string().contains("values, more than the file can hold"), "{error}");
    // The same entry, with the widest type and the largest count.
    let mut tiff = encoded(&DynamicImage::ImageRgb8(picture(26, 19)), ImageFormat::Tiff);
    let directory = u32::from_le_bytes(*tiff[4..].first_chunk().unwrap()) as usize;
    assert!(Preparer::new().decode(&tiff, MAX_PIXELS).is_ok());
    tiff[directory + 2 + 2..][..6].copy_from_slice(&[12, 0, 0xff, 0xff, 0xff, 0xff]);
    let error = Preparer::new().decode(&tiff, MAX_PIXELS).unwrap_err();
    assert!(error.to_string().contains("claims 4294967295 values"), "{error}");
}

#[test]
fn a_png_header_of_the_largest_sides_is_an_error_and_no_overflow() {
    // Found by a fuzzer: bytes per row times rows is more than 64 bits hold. The checksum is right.
    let file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\xff\xff\xff\xff\xff\xff\xff\x05\x08\x02\0\0\0";
    let crc = crc32fast::hash(&file[12..]).to_be_bytes();
    let error = Preparer::new().decode(&[&file[..], &crc].concat(), MAX_PIXELS).unwrap_err();
    assert!(matches!(error, MediaError::Truncated { .. }), "{error}");
}

#[test]
fn a_picture_of_one_pixel_by_millions_is_refused() {
    let mut bmp = encoded(&DynamicImage::ImageRgb8(picture(26, 19)), ImageFormat::Bmp);
    bmp[18..26].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0x80, 0]);
    let error = Preparer::new().decode(&bmp, 100_000_000).unwrap_err();
    assert!(matches!(error, MediaError::TooLong { .. }), "{error}");
    assert_eq!(error.kind(), FailureKind::TooLarge);
}

#[test]
fn the_limit_itself_is_allowed() {
    for format in FORMATS {
        let file = encoded(&DynamicImage::ImageRgb8(picture(26, 19)), format);
        assert!(Preparer::new().decode(&file, 26 * 19).is_ok(), "{format:?}");
        let error = Preparer::new().decode(&file, 26 * 19 - 1).unwrap_err();
        assert_eq!(error.kind(), FailureKind::TooLarge, "{format:?}");
    }
}

#[test]
fn extreme_shapes_are_resized_both_ways() {
    for (width, height) in [(60_000, 1), (1, 60_000), (3, 20_000)] {
        let file = encoded(&DynamicImage::ImageRgb8(picture(width, height)), ImageFormat::Png);
        for fit in FITS {
            for filter in FILTERS {
                let spec = byte_spec([300, 310], fit, filter, Channels::Rgb);
                assert_eq!(row_of(&file, &spec).len(), 300 * 310 * 3);
            }
        }
    }
}

#[test]
fn after_an_error_there_is_no_picture() {
    let file = encoded(&DynamicImage::ImageRgb8(picture(26, 19)), ImageFormat::Png);
    let spec = byte_spec([2, 2], Fit::Stretch, ResizeFilter::Nearest, Channels::Gray);
    let mut preparer = Preparer::new();
    preparer.decode(&file, MAX_PIXELS).unwrap();
    preparer.decode(&file[..30], MAX_PIXELS).unwrap_err();
    assert_eq!(preparer.write_row(&spec, &mut [0; 4]), Err(MediaError::NothingDecoded));
}
