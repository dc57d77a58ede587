//! EXIF orientation, from every place where a format keeps it, under every fit.

use crate::common::*;
use image::{DynamicImage, ImageEncoder, ImageFormat};
use orchestra_core::{Channels, ResizeFilter};
use orchestra_media::Preparer;

/// `picture` as it is stored in a file that carries `orientation`, such that it is shown as `picture`.
fn stored_for(picture: &DynamicImage, orientation: u8) -> DynamicImage {
    // 6 and 8 undo each other, all others undo themselves.
    let undo = match orientation {
        6 => 8,
        8 => 6,
        other => other,
    };
    let mut stored = picture.clone();
    stored.apply_orientation(image::metadata::Orientation::from_exif(undo).unwrap());
    stored
}

/// EXIF as ImageMagick writes it.
fn raw_profile(orientation: u8) -> Vec<u8> {
    let block = [b"Exif\0\0".to_vec(), exif_block(orientation)].concat();
    let digits: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, second) = digits.split_at(30);
    format!("Raw profile type exif\0\nexif\n{:8}\n{first}\n{second}\n", block.len()).into_bytes()
}

fn xmp(orientation: u8) -> String {
    format!("<x:xmpmeta><rdf:Description tiff:Orientation=\"{orientation}\"/></x:xmpmeta>")
}

/// A chunk in front of the PNG chunk `before`.
fn with_png_chunk(png: &[u8], name: &[u8; 4], payload: &[u8], before: &[u8; 4]) -> Vec<u8> {
    let at = png.windows(4).position(|name| name == before).unwrap() - 4;
    [&png[..at], &png_chunk(name, payload), &png[at..]].concat()
}

/// The files that show `picture` and store it turned.
fn turned_files(picture: &DynamicImage, orientation: u8) -> Vec<(&'static str, Vec<u8>)> {
    let stored = stored_for(picture, orientation);
    let png = encoded(&stored, ImageFormat::Png);
    let xmp_chunk = format!("XML:com.adobe.xmp\0\0\0\0\0{}", xmp(orientation));
    let mut webp = Vec::new();
    let mut encoder = image::codecs::webp::WebPEncoder::new_lossless(&mut webp);
    encoder.set_exif_metadata(exif_block(orientation)).unwrap();
    encoder.write_image(stored.as_bytes(), stored.width(), stored.height(), stored.color().into()).unwrap();
    vec![
        ("png, before the pixels", with_png_chunk(&png, b"eXIf", &exif_block(orientation), b"IDAT")),
        ("png, behind the pixels", with_png_chunk(&png, b"eXIf", &exif_block(orientation), b"IEND")),
        ("png, raw profile", with_png_chunk(&png, b"tEXt", &raw_profile(orientation), b"IDAT")),
        ("png, xmp", with_png_chunk(&png, b"iTXt", xmp_chunk.as_bytes(), b"IDAT")),
        ("webp", webp),
        ("tiff", with_tiff_orientation(&encoded(&stored, ImageFormat::Tiff), orientation)),
    ]
}

/// A TIFF whose directory is copied to the end of the file with one more entry.
fn with_tiff_orientation(tiff: &[u8], orientation: u8) -> Vec<u8> {
    assert_eq!(&tiff[..4], b"II*\0");
    let directory = u32::from_le_bytes(*tiff[4..].first_chunk().unwrap()) as usize;
    let count = u16::from_le_bytes(*tiff[directory..].first_chunk().unwrap()) as usize;
    let mut entries: Vec<[u8; 12]> = tiff[directory + 2..][..count * 12].as_chunks().0.to_vec();
    entries.push([0x12, 0x01, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0]);
    entries.sort_by_key(|entry| u16::from_le_bytes([entry[0], entry[1]]));
    let mut file = tiff.to_vec();
    let at = file.len() as u32;
    file[4..8].copy_from_slice(&at.to_le_bytes());
    file.extend((entries.len() as u16).to_le_bytes());
    file.extend(entries.concat());
    file.extend([0; 4]);
    file
}

#[test]
fn a_turned_picture_gives_the_row_of_the_upright_one() {
    let shown = DynamicImage::ImageRgb8(picture(45, 32));
    let upright = encoded(&shown, ImageFormat::Png);
    for orientation in 1..=8 {
        for (name, file) in turned_files(&shown, orientation) {
            let size = Preparer::new().decode(&file, MAX_PIXELS).unwrap();
            assert_eq!((size.width, size.height), (45, 32), "{name} {orientation}");
            for fit in FITS {
                for filter in FILTERS {
                    for color in [Channels::Rgb, Channels::Gray] {
                        let spec = byte_spec([19, 26], fit, filter, color);
                        let (max, mean) = difference(&row_of(&file, &spec), &row_of(&upright, &spec));
                        // The passes change places with the axes, and each rounds.
                        let allowed = if filter == ResizeFilter::Nearest { 0 } else { 3 };
                        assert!(
                            max <= allowed && mean < 0.5,
                            "{name} {orientation} {fit:?} {filter:?}: {max}"
                        );
                    }
                }
                // Without a resize the pixels are moved and nothing else; `shorter` is a crop then.
                for size in [[32, 45], [20, 31]] {
                    let mut spec = byte_spec(size, fit, ResizeFilter::Bicubic, Channels::Rgb);
                    spec.shorter = 32;
                    if size == [32, 45] || fit == orchestra_core::Fit::Shorter {
                        assert_eq!(
                            row_of(&file, &spec),
                            row_of(&upright, &spec),
                            "{name} {orientation} {fit:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn jpeg_orientation_is_applied_once_and_only_when_valid() {
    let stored = DynamicImage::ImageRgb8(picture(40, 24));
    let jpeg = encoded(&stored, ImageFormat::Jpeg);
    let plain = row_of(
        &jpeg,
        &byte_spec([24, 40], orchestra_core::Fit::Stretch, ResizeFilter::Bilinear, Channels::Rgb),
    );
    for orientation in 0..=9 {
        let file = with_jpeg_exif(&jpeg, orientation);
        let size = Preparer::new().decode(&file, MAX_PIXELS).unwrap();
        let (width, height) = if (5..=8).contains(&orientation) { (24, 40) } else { (40, 24) };
        assert_eq!((size.width, size.height), (width, height), "{orientation}");
        let spec =
            byte_spec([height, width], orchestra_core::Fit::Stretch, ResizeFilter::Bilinear, Channels::Rgb);
        let mut expected = DynamicImage::ImageRgb8(image::RgbImage::from_raw(40, 24, plain.clone()).unwrap());
        if let Some(turn) = image::metadata::Orientation::from_exif(orientation) {
            expected.apply_orientation(turn);
        }
        assert_eq!(row_of(&file, &spec), expected.as_bytes(), "{orientation}");
    }
}

#[test]
fn xmp_turns_a_jpeg_whose_exif_says_nothing() {
    let jpeg = encoded(&DynamicImage::ImageRgb8(picture(16, 8)), ImageFormat::Jpeg);
    let body = ["http://ns.adobe.com/xap/1.0/\0", &xmp(6)].concat();
    let segment = [&[0xff, 0xe1][..], &(body.len() as u16 + 2).to_be_bytes(), body.as_bytes()].concat();
    let turned = [&jpeg[..2], &segment, &jpeg[2..]].concat();
    for (file, size) in [(&turned, (8, 16)), (&with_jpeg_exif(&turned, 1), (16, 8))] {
        let found = Preparer::new().decode(file, MAX_PIXELS).unwrap();
        assert_eq!((found.width, found.height), size);
    }
}
