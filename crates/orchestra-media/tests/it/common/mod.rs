//! Shared by the tests: specs, encoded pictures, and a slow plain reference of everything an `image` stage does to pixels.
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

/// `picture` as a file.
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

// ## The reference: whole pictures in f64, one step after the other, each as its description says.

/// `[height, width, channels]` bytes of `picture` under `spec`, without normalisation, in the order red, green, blue.
pub fn reference(picture: &RgbImage, spec: &ImageSpec) -> Vec<u8> {
    let gray = spec.color == Channels::Gray;
    let (width, height) = picture.dimensions();
    let [target_height, target_width] = spec.size;
    let (tw, th) = (f64::from(target_width), f64::from(target_height));
    let (w, h) = (f64::from(width), f64::from(height));
    let source = Plane::of(picture, gray);
    let whole = [0.0, 0.0, w, h];
    let mut pad = spec.pad.clone();
    if spec.color == Channels::Bgr {
        pad.reverse();
    }
    let canvas = Plane::filled(target_width as usize, target_height as usize, &pad);
    let placed = match spec.fit {
        Fit::Stretch => source.resized(target_width, target_height, whole, spec.filter),
        Fit::Cover => {
            let wanted = tw / th;
            let (pw, ph) = if w / h > wanted { (h * wanted, h) } else { (w, w / wanted) };
            let (left, top) = ((w - pw) / 2.0, (h - ph) / 2.0);
            source.resized(target_width, target_height, [left, top, left + pw, top + ph], spec.filter)
        }
        Fit::Contain => {
            let shrink = (tw / w).min(th / h);
            let side = |length: f64, most: u32| ((length * shrink).round_ties_even() as u32).clamp(1, most);
            source.resized(side(w, target_width), side(h, target_height), whole, spec.filter)
        }
        Fit::Corner => {
            let shrink = (tw / w).min(th / h);
            let side = |length: f64, most: u32| ((length * shrink).round_ties_even() as u32).clamp(1, most);
            let fitted = source.resized(side(w, target_width), side(h, target_height), whole, spec.filter);
            return canvas.with(&fitted, 0, 0).bytes;
        }
        Fit::Left => {
            let wide = ((w * th / h).ceil() as u32).min(target_width);
            let line = source.resized(wide, target_height, whole, spec.filter);
            return canvas.with(&line, 0, 0).bytes;
        }
        Fit::Shorter => {
            let side = |length: u32| spec.shorter * length / width.min(height);
            source.resized(side(width), side(height), whole, spec.filter)
        }
    };
    canvas.with_centre(&placed, spec.fit == Fit::Shorter).bytes
}

struct Plane {
    width: usize,
    height: usize,
    channels: usize,
    bytes: Vec<u8>,
}

impl Plane {
    fn of(picture: &RgbImage, gray: bool) -> Plane {
        let luma = |p: &Rgb<u8>| {
            let [r, g, b] = p.0.map(u32::from);
            ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16) as u8
        };
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        if gray {
            Plane { width, height, channels: 1, bytes: picture.pixels().map(luma).collect() }
        } else {
            Plane { width, height, channels: 3, bytes: picture.as_raw().clone() }
        }
    }

    fn filled(width: usize, height: usize, colour: &[u8]) -> Plane {
        Plane { width, height, channels: colour.len(), bytes: colour.repeat(width * height) }
    }

    /// The box `[left, top, right, bottom]`, resized.
    fn resized(&self, width: u32, height: u32, part: [f64; 4], filter: ResizeFilter) -> Plane {
        let xs = weights(self.width, part[0], part[2], width as usize, filter);
        let ys = weights(self.height, part[1], part[3], height as usize, filter);
        let mut bytes = Vec::new();
        for y in &ys {
            for x in &xs {
                for c in 0..self.channels {
                    let mut sum = 0.0;
                    for (row, wy) in y {
                        for (column, wx) in x {
                            let at = (row * self.width + column) * self.channels + c;
                            sum += wx * wy * f64::from(self.bytes[at]);
                        }
                    }
                    bytes.push(sum.round().clamp(0.0, 255.0) as u8);
                }
            }
        }
        Plane { width: width as usize, height: height as usize, channels: self.channels, bytes }
    }

    /// `inner` in the middle: what stands over is cut, what is missing stays as it is.
    fn with_centre(self, inner: &Plane, floor: bool) -> Plane {
        let offset = |outer: usize, inner: usize, is_cut: bool| {
            let gap = outer as f64 - inner as f64;
            // torchvision pads with the smaller half first, all others round halves to even.
            if floor && !is_cut { (gap / 2.0).floor() as i64 } else { (gap / 2.0).round_ties_even() as i64 }
        };
        let x0 = offset(self.width, inner.width, inner.width > self.width);
        let y0 = offset(self.height, inner.height, inner.height > self.height);
        self.with(inner, x0, y0)
    }

    fn with(mut self, inner: &Plane, x0: i64, y0: i64) -> Plane {
        for y in 0..inner.height as i64 {
            for x in 0..inner.width as i64 {
                let (to_x, to_y) = (x + x0, y + y0);
                if (0..self.width as i64).contains(&to_x) && (0..self.height as i64).contains(&to_y) {
                    let to = (to_y as usize * self.width + to_x as usize) * self.channels;
                    let from = (y as usize * inner.width + x as usize) * self.channels;
                    self.bytes[to..to + self.channels]
                        .copy_from_slice(&inner.bytes[from..from + self.channels]);
                }
            }
        }
        self
    }
}

/// Source positions and weights of each target position, as Pillow's `Resample.c` describes them.
fn weights(side: usize, start: f64, end: f64, count: usize, filter: ResizeFilter) -> Vec<Vec<(usize, f64)>> {
    let scale = (end - start) / count as f64;
    if filter == ResizeFilter::Nearest {
        // Pillow takes the box in single precision and adds step to step, and where a centre falls between two pixels its rounding decides.
        let scale = f64::from(end as f32 - start as f32) / count as f64;
        let start = f64::from(start as f32);
        let centres = std::iter::successors(Some(start + scale * 0.5), |centre| Some(centre + scale));
        return centres.take(count).map(|centre| vec![((centre as usize).min(side - 1), 1.0)]).collect();
    }
    let sinc =
        |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
    let curve = |x: f64| -> f64 {
        let x = x.abs();
        match filter {
            ResizeFilter::Bilinear => (1.0 - x).max(0.0),
            ResizeFilter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            ResizeFilter::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            ResizeFilter::Lanczos3 if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    };
    let spread = scale.max(1.0);
    (0..count)
        .map(|at| {
            let centre = start + (at as f64 + 0.5) * scale;
            let raw: Vec<(usize, f64)> = (0..side)
                .map(|p| (p, curve((p as f64 + 0.5 - centre) / spread)))
                .filter(|w| w.1 != 0.0)
                .collect();
            let sum: f64 = raw.iter().map(|w| w.1).sum();
            raw.into_iter().map(|(p, w)| (p, w / sum)).collect()
        })
        .collect()
}

/// The gray version of a picture.
pub fn gray_picture(width: u32, height: u32) -> GrayImage {
    let picture = picture(width, height);
    GrayImage::from_fn(width, height, |x, y| image::Luma([picture.get_pixel(x, y)[1]]))
}

/// The entries of a directory of a TIFF file that begins with `pixels` at byte 8: tag, type (3: 16 bits, 4: 32 bits), values.
pub fn tiff(pixels: &[u8], entries: &[(u16, u16, Vec<u32>)]) -> Vec<u8> {
    let mut file = [b"II*\0", &(8 + pixels.len() as u32).to_le_bytes()[..], pixels].concat();
    let mut behind = (file.len() + 6 + 12 * entries.len()) as u32;
    let mut values = Vec::new();
    file.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, numbers) in entries {
        let bytes: Vec<u8> = match kind {
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
