//! From a file's bytes to a row, next to the bare parts it is made of: decoding, resizing and normalising with nothing around them.
//!
//! It prints ratios that are measured in turns, so that a machine that is busy or throttled changes both sides alike. `photo.jpg` is a part of NASA's portrait of Eileen Collins (public domain), 500 by 375 pixels, 4:2:0; the
//! picture of 2000 by 1500 pixels is a mosaic of it. Run with `cargo bench -p orchestra-media --bench prepare`.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it stands")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::{ImageFormat, RgbImage};
use libjpeg_turbo_rs::{Decoder, PixelFormat, ScalingFactor, Subsampling};
use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::Preparer;

const PHOTO: &[u8] = include_bytes!("photo.jpg");
const DIGIT: &[u8] = include_bytes!("../examples/digits/images/digit-0001.png");
const SIDE: usize = 224;
const SCALE: [f32; 3] = [0.017_124_75, 0.017_507, 0.017_429_2];
const BIAS: [f32; 3] = [-2.1179, -2.0357, -1.8044];
const MAX_PIXELS: u64 = 1 << 28;
/// Turns of a ratio.
const TURNS: usize = 60;

fn main() {
    let large = large_photo();
    println!("photo {} bytes, large photo {} bytes, digit {} bytes", PHOTO.len(), large.len(), DIGIT.len());
    let cases = [
        Case { name: "500x375", file: PHOTO, reduce: 1, fast: false },
        Case { name: "2000x1500", file: &large, reduce: 1, fast: false },
        Case { name: "2000x1500 fast", file: &large, reduce: 4, fast: true },
    ];
    for case in &cases {
        case.print_ratio();
    }
    print_digit(DIGIT);
}

/// One file, and what is made of it.
struct Case<'a> {
    name: &'static str,
    file: &'a [u8],
    /// By how much the bare decoder divides the sides.
    reduce: u32,
    fast: bool,
}

impl Case<'_> {
    fn spec(&self) -> ImageSpec {
        ImageSpec { fast: self.fast, ..spec([SIDE as u32; 2], Channels::Rgb) }
    }

    /// Row against the bare parts, in turns.
    fn print_ratio(&self) {
        let spec = self.spec();
        let mut preparer = Preparer::new();
        let mut row = vec![0; 3 * SIDE * SIDE * 4];
        let mut bare = Bare::default();
        let mut times: [Vec<Duration>; 5] = Default::default();
        for _ in 0..TURNS {
            times[0].push(timed(|| prepare(&mut preparer, self.file, &spec, &mut row)));
            times[1].push(timed(|| bare.whole(self.file, self.reduce)));
            times[2].push(timed(|| bare.decode(self.file, self.reduce)));
            times[3].push(timed(|| bare.resize()));
            times[4].push(timed(|| bare.normalise()));
        }
        let [row, whole, decode, resize, normalise] = times.map(quartile);
        println!(
            "{:<15} row {row:>8.1} us = {:.3} x bare path {whole:>8.1} us (decode {decode:.1}, resize {resize:.1}, normalise {normalise:.1})",
            self.name,
            row / whole,
        );
    }
}

fn spec(size: [u32; 2], color: Channels) -> ImageSpec {
    let n = color.count();
    ImageSpec {
        size,
        fit: Fit::Cover,
        shorter: 0,
        filter: ResizeFilter::Bilinear,
        color,
        layout: Layout::Nchw,
        dtype: DType::F32,
        scale: 1.0 / 255.0,
        mean: [0.485, 0.456, 0.406][..n].to_vec(),
        std: [0.229, 0.224, 0.225][..n].to_vec(),
        pad: vec![0; n],
        max_pixels: MAX_PIXELS,
        fast: false,
        in_graph: None,
        trim: None,
    }
}

fn digit_spec() -> ImageSpec {
    spec([32, 32], Channels::Gray)
}

fn prepare(preparer: &mut Preparer, file: &[u8], spec: &ImageSpec, row: &mut [u8]) {
    preparer.decode_for(black_box(file), MAX_PIXELS, &[spec]).unwrap();
    preparer.write_row(spec, row).unwrap();
}

fn print_digit(digit: &[u8]) {
    let spec = digit_spec();
    let mut preparer = Preparer::new();
    let mut row = vec![0; 32 * 32 * 4];
    let hundred = |mut work: Box<dyn FnMut() + '_>| {
        quartile((0..TURNS).map(|_| timed(|| (0..100).for_each(|_| work()))).collect()) / 100.0
    };
    let ours = hundred(Box::new(|| prepare(&mut preparer, digit, &spec, &mut row)));
    let theirs = hundred(Box::new(|| {
        black_box(image::load_from_memory_with_format(digit, ImageFormat::Png).unwrap());
    }));
    println!("32x32 gray PNG: row {ours:.2} us, decoding alone with the image crate {theirs:.2} us");
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The time that a quarter of the turns stayed below, in microseconds: what others do on the machine makes turns longer, never shorter.
fn quartile(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 4].as_secs_f64() * 1e6
}

// ## The bare parts: the shortest code that does the work, with reused memory.

#[derive(Default)]
struct Bare {
    pixels: Vec<u8>,
    width: usize,
    height: usize,
    resizer: Resizer,
    small: Vec<u8>,
    planes: Vec<f32>,
}

impl Bare {
    fn whole(&mut self, file: &[u8], reduce: u32) {
        self.decode(file, reduce);
        self.resize();
        self.normalise();
    }

    fn decode(&mut self, file: &[u8], reduce: u32) {
        let mut decoder = Decoder::new(black_box(file)).unwrap();
        decoder.set_output_format(PixelFormat::Rgb);
        decoder.set_scale(ScalingFactor::try_new(1, reduce).unwrap());
        self.pixels.resize(decoder.output_buffer_size().unwrap(), 0);
        let info = decoder.decode_image_into(&mut self.pixels).unwrap();
        (self.width, self.height) = (info.width, info.height);
    }

    fn resize(&mut self) {
        self.small.resize(SIDE * SIDE * 3, 0);
        let from = TypedImageRef::<U8x3>::from_buffer(self.width as u32, self.height as u32, &self.pixels);
        let mut to = TypedImage::<U8x3>::from_buffer(SIDE as u32, SIDE as u32, &mut self.small).unwrap();
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .fit_into_destination(Some((0.5, 0.5)));
        self.resizer.resize_typed(&from.unwrap(), &mut to, &options).unwrap();
    }

    fn normalise(&mut self) {
        self.planes.resize(SIDE * SIDE * 3, 0.0);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { normalise_wide(&self.small, &mut self.planes) };
        }
        normalise(&self.small, &mut self.planes);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn normalise_wide(from: &[u8], to: &mut [f32]) {
    normalise(from, to);
}

#[inline(always)]
fn normalise(from: &[u8], to: &mut [f32]) {
    let (r, rest) = to.split_at_mut(SIDE * SIDE);
    let (g, b) = rest.split_at_mut(SIDE * SIDE);
    for (i, p) in from.as_chunks::<3>().0.iter().enumerate().take(SIDE * SIDE) {
        r[i] = f32::from(p[0]) * SCALE[0] + BIAS[0];
        g[i] = f32::from(p[1]) * SCALE[1] + BIAS[1];
        b[i] = f32::from(p[2]) * SCALE[2] + BIAS[2];
    }
}

/// The photo beside and below itself, mirrored each time so that no edges come up.
fn large_photo() -> Vec<u8> {
    let small = image::load_from_memory(PHOTO).unwrap().to_rgb8();
    let (w, h) = small.dimensions();
    let fold =
        |at: u32, side: u32| if (at / side).is_multiple_of(2) { at % side } else { side - 1 - at % side };
    let large = RgbImage::from_fn(2000, 1500, |x, y| *small.get_pixel(fold(x, w), fold(y, h)));
    libjpeg_turbo_rs::compress(&large, 2000, 1500, PixelFormat::Rgb, 87, Subsampling::S420).unwrap()
}
