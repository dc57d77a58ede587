//! Shared by the tests: specs, encoded pictures, and rows of them.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Cursor;

use image::{DynamicImage, GrayImage, ImageFormat, Rgb, RgbImage};
use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::Preparer;

pub const MAX_PIXELS: u64 = 1_000_000;
pub const FILTERS: [ResizeFilter; 4] =
    [ResizeFilter::Nearest, ResizeFilter::Bilinear, ResizeFilter::Bicubic, ResizeFilter::Lanczos3];
pub const FITS: [Fit; 5] = [Fit::Stretch, Fit::Cover, Fit::Contain, Fit::Corner, Fit::Shorter];
pub const COLORS: [Channels; 3] = [Channels::Rgb, Channels::Bgr, Channels::Gray];

/// Bytes as they are: `[height, width, channels]`, no normalisation, a coloured pad.
pub fn byte_spec(size: [u32; 2], fit: Fit, filter: ResizeFilter, color: Channels) -> ImageSpec {
    let channels = color.count();
    ImageSpec {
        size,
        fit,
        shorter: size[0].min(size[1]) + 5,
        filter,
        color,
        layout: Layout::Nhwc,
        dtype: DType::U8,
        scale: 1.0,
        mean: vec![0.0; channels],
        std: vec![1.0; channels],
        pad: [200, 100, 50][..channels].to_vec(),
        max_pixels: MAX_PIXELS,
        fast: false,
        in_graph: None,
        trim: None,
    }
}

/// A picture with smooth parts, edges and some texture.
pub fn picture(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let (fx, fy) = (x as f32 / width as f32, y as f32 / height as f32);
        let wave = ((fx * 9.0).sin() * (fy * 7.0).cos() * 60.0) as i32;
        let edge = if (x / 11 + y / 9) % 2 == 0 { 40 } else { 0 };
        let noise = ((x * 31 + y * 17) % 13) as i32;
        // Away from black and white: where a filter overshoots, cutting after each pass is not cutting once.
        let level = |base: f32, sign: i32| {
            let value = (base as i32 + sign * wave + edge + noise).clamp(0, 255);
            (40 + value * 175 / 255) as u8
        };
        Rgb([level(fx * 160.0, 1), level(fy * 150.0 + 20.0, -1), level((1.0 - fx) * 120.0 + 30.0, 1)])
    })
}

pub fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    picture.write_to(&mut file, format).unwrap();
    file.into_inner()
}

/// A row of a file, decoded and written with a new preparer.
pub fn row_of(file: &[u8], spec: &ImageSpec) -> Vec<u8> {
    row_with(&mut Preparer::new(), file, spec)
}

/// A row of a file, decoded for it.
pub fn row_with(preparer: &mut Preparer, file: &[u8], spec: &ImageSpec) -> Vec<u8> {
    preparer.decode_for(file, MAX_PIXELS, &[spec]).unwrap();
    let mut row = vec![0xa5; spec.tensor().row_bytes().unwrap()];
    preparer.write_row(spec, &mut row).unwrap();
    row
}

/// An EXIF block with nothing but an orientation.
pub fn exif_block(orientation: u8) -> Vec<u8> {
    let mut block = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    block.extend([orientation, 0, 0, 0, 0, 0, 0]);
    block
}

/// A JPEG with an EXIF segment put behind its start marker.
pub fn with_jpeg_exif(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let block = exif_block(orientation);
    let mut file = jpeg[..2].to_vec();
    file.extend([0xff, 0xe1]);
    file.extend(((block.len() + 8) as u16).to_be_bytes());
    file.extend(b"Exif\0\0");
    file.extend(block);
    file.extend(&jpeg[2..]);
    file
}

/// The largest and the mean difference of two lists of bytes.
pub fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let sum: f64 = differences.clone().map(f64::from).sum();
    (differences.max().unwrap_or(0), sum / a.len() as f64)
}

/// A file of `tests/golden`.
pub fn golden(name: &str) -> Vec<u8> {
    std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

pub fn png_chunk(name: &[u8; 4], payload: &[u8]) -> Vec<u8> {
    let body = [name.as_slice(), payload].concat();
    [&(payload.len() as u32).to_be_bytes()[..], &body, &crc32fast::hash(&body).to_be_bytes()].concat()
}

pub fn gray_picture(width: u32, height: u32) -> GrayImage {
    let picture = picture(width, height);
    GrayImage::from_fn(width, height, |x, y| image::Luma([picture.get_pixel(x, y)[1]]))
}

/// The entries of a directory of a TIFF file that begins with `pixels` at byte 8: tag, type (1 and 2: 8 bits, 3: 16 bits, 4: 32 bits), values.
pub fn tiff(pixels: &[u8], entries: &[(u16, u16, Vec<u32>)]) -> Vec<u8> {
    let mut file = [b"II*\0", &(8 + pixels.len() as u32).to_le_bytes()[..], pixels].concat();
    let mut behind = (file.len() + 6 + 12 * entries.len()) as u32;
    let mut values = Vec::new();
    file.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, numbers) in entries {
        let bytes: Vec<u8> = match kind {
            1 | 2 => numbers.iter().map(|n| *n as u8).collect(),
            3 => numbers.iter().flat_map(|n| (*n as u16).to_le_bytes()).collect(),
            _ => numbers.iter().flat_map(|n| n.to_le_bytes()).collect(),
        };
        file.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        file.extend((numbers.len() as u32).to_le_bytes());
        if bytes.len() <= 4 {
            file.extend([bytes, vec![0; 4]].concat()[..4].iter());
        } else {
            file.extend(behind.to_le_bytes());
            behind += bytes.len() as u32;
            values.extend(bytes);
        }
    }
    [file, vec![0; 4], values].concat()
}
