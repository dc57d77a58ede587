//! From a file's bytes to a row, next to the bare parts it is made of: decoding, resizing and normalising with nothing around them.
//!
//! It first prints ratios that are measured in turns, so that a machine that is busy or throttled changes both sides alike, and then lets
//! Criterion measure each part. `photo.jpg` is a part of NASA's portrait of Eileen Collins (public domain), 500 by 375 pixels, 4:2:0; the
//! picture of 1920 by 1080 pixels is a mosaic of it. Run with `cargo bench -p orchestra-media --bench prepare`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may stop where it stands")]

use std::ffi::{c_int, c_ulong, c_void};
use std::hint::black_box;
use std::io::Cursor;
use std::time::{Duration, Instant};

use criterion::Criterion;
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{ImageFormat, RgbImage};
use libloading::Library;
use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::{JpegDecoder, Preparer};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

const PHOTO: &[u8] = include_bytes!("photo.jpg");
const DIGIT: &[u8] = include_bytes!("../examples/digits/images/digit-0001.png");
const SIDE: usize = 224;
const SCALE: [f32; 3] = [0.017_124_75, 0.017_507, 0.017_429_2];
const BIAS: [f32; 3] = [-2.1179, -2.0357, -1.8044];
const MAX_PIXELS: u64 = 1 << 28;
/// Turns of a ratio.
const TURNS: usize = 60;

fn main() {
    let turbo = Turbo::load();
    if turbo.is_none() {
        println!(
            "no libturbojpeg on this machine: only the Rust decoder is measured, and the large picture is 4:4:4"
        );
    }
    let large = large_photo(turbo.as_ref());
    println!("photo {} bytes, large photo {} bytes, digit {} bytes", PHOTO.len(), large.len(), DIGIT.len());
    let cases = [
        Case { name: "500x375", file: PHOTO, reduce: 1, fast: false },
        Case { name: "1920x1080", file: &large, reduce: 1, fast: false },
        Case { name: "1920x1080 fast", file: &large, reduce: 4, fast: true },
    ];
    for case in &cases {
        case.print_ratios(turbo.as_ref());
    }
    print_digit(DIGIT);
    let mut criterion = Criterion::default().configure_from_args();
    for case in &cases {
        case.measure(&mut criterion, turbo.as_ref());
    }
    let mut group = criterion.benchmark_group("32x32 gray PNG");
    let spec = digit_spec();
    let mut row = vec![0; 32 * 32 * 4];
    let mut preparer = Preparer::new();
    group.bench_function("row", |b| b.iter(|| prepare(&mut preparer, DIGIT, &spec, &mut row)));
    group.finish();
    criterion.final_summary();
}

/// One file, and what is made of it.
struct Case<'a> {
    name: &'static str,
    file: &'a [u8],
    /// By how much the bare decoder divides the sides.
    reduce: usize,
    fast: bool,
}

impl Case<'_> {
    fn spec(&self) -> ImageSpec {
        ImageSpec { fast: self.fast, ..spec([SIDE as u32; 2], Channels::Rgb) }
    }

    /// Row against the bare parts of the same decoder, in turns.
    fn print_ratios(&self, turbo: Option<&Turbo>) {
        let spec = self.spec();
        for decoder in [JpegDecoder::LibjpegTurbo, JpegDecoder::Rust] {
            let (Some(mut preparer), true) =
                (Preparer::with_jpeg_decoder(decoder), decoder == JpegDecoder::Rust || turbo.is_some())
            else {
                continue;
            };
            let bare_turbo = if decoder == JpegDecoder::LibjpegTurbo { turbo } else { None };
            let mut row = vec![0; 3 * SIDE * SIDE * 4];
            let mut bare = Bare::default();
            let mut times: [Vec<Duration>; 5] = Default::default();
            for _ in 0..TURNS {
                times[0].push(timed(|| prepare(&mut preparer, self.file, &spec, &mut row)));
                times[1].push(timed(|| bare.whole(self.file, bare_turbo, self.reduce)));
                times[2].push(timed(|| bare.decode(self.file, bare_turbo, self.reduce)));
                times[3].push(timed(|| bare.resize()));
                times[4].push(timed(|| bare.normalise()));
            }
            let [row, whole, decode, resize, normalise] = times.map(quartile);
            println!(
                "{:<15} {:<14} row {row:>8.1} us = {:.3} x bare path {whole:>8.1} us (decode {decode:.1}, resize {resize:.1}, normalise {normalise:.1})",
                self.name,
                decoder.name(),
                row / whole,
            );
        }
    }

    fn measure(&self, criterion: &mut Criterion, turbo: Option<&Turbo>) {
        let spec = self.spec();
        let mut row = vec![0; 3 * SIDE * SIDE * 4];
        let mut group = criterion.benchmark_group(self.name);
        for decoder in [JpegDecoder::LibjpegTurbo, JpegDecoder::Rust] {
            if let Some(mut preparer) = Preparer::with_jpeg_decoder(decoder) {
                let name = format!("row, {}", decoder.name());
                group.bench_function(name, |b| b.iter(|| prepare(&mut preparer, self.file, &spec, &mut row)));
            }
        }
        let mut bare = Bare::default();
        group.bench_function("bare zune-jpeg", |b| b.iter(|| bare.decode(self.file, None, 1)));
        if turbo.is_some() {
            group.bench_function("bare libjpeg-turbo", |b| {
                b.iter(|| bare.decode(self.file, turbo, self.reduce));
            });
        }
        group.bench_function("bare fast_image_resize", |b| b.iter(|| bare.resize()));
        group.bench_function("bare normalise", |b| b.iter(|| bare.normalise()));
        group.finish();
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
    }
}

fn digit_spec() -> ImageSpec {
    spec([32, 32], Channels::Gray)
}

fn prepare(preparer: &mut Preparer, file: &[u8], spec: &ImageSpec, row: &mut [u8]) {
    preparer.decode_for(black_box(file), MAX_PIXELS, [spec]).unwrap();
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
    fn whole(&mut self, file: &[u8], turbo: Option<&Turbo>, reduce: usize) {
        self.decode(file, turbo, reduce);
        self.resize();
        self.normalise();
    }

    fn decode(&mut self, file: &[u8], turbo: Option<&Turbo>, reduce: usize) {
        let file = black_box(file);
        match turbo {
            Some(turbo) => (self.width, self.height) = turbo.decode(file, reduce, &mut self.pixels),
            None => {
                let options = DecoderOptions::new_fast().jpeg_set_out_colorspace(ColorSpace::RGB);
                let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(file), options);
                decoder.decode_headers().unwrap();
                let info = decoder.info().unwrap();
                self.pixels.resize(decoder.output_buffer_size().unwrap(), 0);
                decoder.decode_into(&mut self.pixels).unwrap();
                (self.width, self.height) = (info.width.into(), info.height.into());
            }
        }
    }

    fn resize(&mut self) {
        self.small.resize(SIDE * SIDE * 3, 0);
        let from =
            ImageRef::new(self.width as u32, self.height as u32, &self.pixels, PixelType::U8x3).unwrap();
        let mut to =
            Image::from_slice_u8(SIDE as u32, SIDE as u32, &mut self.small, PixelType::U8x3).unwrap();
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .fit_into_destination(Some((0.5, 0.5)));
        self.resizer.resize(&from, &mut to, &options).unwrap();
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

type Decompress = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    c_ulong,
    *mut u8,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;
type Header = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    c_ulong,
    *mut c_int,
    *mut c_int,
    *mut c_int,
    *mut c_int,
) -> c_int;
type Compress = unsafe extern "C" fn(
    *mut c_void,
    *const u8,
    c_int,
    c_int,
    c_int,
    c_int,
    *mut *mut u8,
    *mut c_ulong,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// libjpeg-turbo without anything around it.
struct Turbo {
    library: Library,
    decoder: *mut c_void,
}

impl Turbo {
    fn load() -> Option<Turbo> {
        // SAFETY: the types are those of `turbojpeg.h`.
        unsafe {
            let library = Library::new("libturbojpeg.so.0").ok()?;
            let decoder = library.get::<unsafe extern "C" fn() -> *mut c_void>(b"tjInitDecompress").ok()?();
            Some(Turbo { library, decoder })
        }
    }

    fn decode(&self, file: &[u8], reduce: usize, pixels: &mut Vec<u8>) -> (usize, usize) {
        let (mut w, mut h, mut sampling, mut space) = (0, 0, 0, 0);
        // SAFETY: the buffer has room for the picture whose size the library told.
        unsafe {
            let header = self.library.get::<Header>(b"tjDecompressHeader3").unwrap();
            let length = file.len() as c_ulong;
            assert_eq!(
                header(self.decoder, file.as_ptr(), length, &mut w, &mut h, &mut sampling, &mut space),
                0
            );
            let (w, h) = ((w as usize).div_ceil(reduce), (h as usize).div_ceil(reduce));
            pixels.resize(w * h * 3, 0);
            let decompress = self.library.get::<Decompress>(b"tjDecompress2").unwrap();
            let (file, out) = (file.as_ptr(), pixels.as_mut_ptr());
            let code = decompress(self.decoder, file, length, out, w as c_int, 0, h as c_int, 0, 0);
            assert_eq!(code, 0);
            (w, h)
        }
    }

    /// Quality 84, 4:2:0.
    fn encode(&self, picture: &RgbImage) -> Vec<u8> {
        let (mut out, mut length) = (std::ptr::null_mut(), 0);
        let (w, h) = (picture.width() as c_int, picture.height() as c_int);
        // SAFETY: the library takes the memory for its result, which is copied and left to the end of the process.
        unsafe {
            let init = self.library.get::<unsafe extern "C" fn() -> *mut c_void>(b"tjInitCompress").unwrap();
            let compress = self.library.get::<Compress>(b"tjCompress2").unwrap();
            let code = compress(init(), picture.as_ptr(), w, 0, h, 0, &mut out, &mut length, 2, 84, 0);
            assert_eq!(code, 0);
            std::slice::from_raw_parts(out, length as usize).to_vec()
        }
    }
}

/// The photo beside and below itself, mirrored each time so that no edges come up.
fn large_photo(turbo: Option<&Turbo>) -> Vec<u8> {
    let small = image::load_from_memory(PHOTO).unwrap().to_rgb8();
    let (w, h) = small.dimensions();
    let fold =
        |at: u32, side: u32| if (at / side).is_multiple_of(2) { at % side } else { side - 1 - at % side };
    let large = RgbImage::from_fn(1920, 1080, |x, y| *small.get_pixel(fold(x, w), fold(y, h)));
    match turbo {
        Some(turbo) => turbo.encode(&large),
        None => {
            let mut file = Cursor::new(Vec::new());
            large.write_to(&mut file, ImageFormat::Jpeg).unwrap();
            file.into_inner()
        }
    }
}
