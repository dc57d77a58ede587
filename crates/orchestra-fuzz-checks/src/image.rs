//! Pictures: bytes of any format to rows of batches. It compares no pixels with how they should look.

use std::cell::RefCell;
use std::sync::LazyLock;

use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::{Format, MediaError, PictureSize, Preparer};

use crate::memory::measured;
use crate::png::with_right_checksums;

/// Pixels that a picture may have here.
const MAX_PIXELS: u64 = 1 << 14;
/// What a decoder may take beyond a multiple of the file: tables, and memory for so few pixels.
const SLACK: usize = 80 << 20;
/// What a decoder may take to find out how large a picture is.
const HEADER_SLACK: usize = 2 << 20;
/// What a byte of the file may cost.
const PER_BYTE: usize = 64;

/// Rows that want all pixels, and then one that does with fewer.
static SPECS: LazyLock<[ImageSpec; 6]> = LazyLock::new(|| {
    use Channels::{Bgr, Gray, Rgb};
    let plain = |size, fit, filter, color: Channels| ImageSpec {
        size,
        fit,
        shorter: 8,
        filter,
        color,
        layout: Layout::Nhwc,
        dtype: DType::U8,
        scale: 1.0 / 255.0,
        mean: vec![0.25; color.count()],
        std: vec![0.5; color.count()],
        pad: [200, 100, 50][..color.count()].to_vec(),
        max_pixels: MAX_PIXELS,
        fast: false,
        in_graph: None,
        trim: None,
    };
    let nchw = |dtype, spec| ImageSpec { dtype, layout: Layout::Nchw, ..spec };
    [
        plain([5, 7], Fit::Stretch, ResizeFilter::Bilinear, Rgb),
        nchw(DType::F32, plain([4, 9], Fit::Cover, ResizeFilter::Lanczos3, Gray)),
        nchw(DType::F16, plain([33, 20], Fit::Contain, ResizeFilter::Bicubic, Bgr)),
        ImageSpec { trim: Some(4), ..plain([21, 13], Fit::Corner, ResizeFilter::Bilinear, Rgb) },
        plain([6, 6], Fit::Shorter, ResizeFilter::Nearest, Rgb),
        ImageSpec { fast: true, ..plain([3, 3], Fit::Stretch, ResizeFilter::Bilinear, Rgb) },
    ]
});

thread_local! {
    /// As a loader has it: what earlier pictures left in its memory must not show.
    static USED: RefCell<Preparer> = RefCell::default();
}

/// A file of any bytes is a picture or an error, in bounded memory, and the same reduced; each row is written to its last byte and depends on the
/// file alone.
pub fn image(bytes: &[u8]) {
    for_both(bytes, check);
}

/// No file makes a decoder take much memory before its size is known to be allowed.
pub fn image_header(bytes: &[u8]) {
    for_both(bytes, |bytes| {
        // No picture is so small, so that none is decoded.
        let (decoded, taken) = measured(|| Preparer::new().decode(bytes, 0));
        assert!(decoded.is_err());
        assert!(taken.peak <= HEADER_SLACK + PER_BYTE * bytes.len(), "{taken:?} for {} bytes", bytes.len());
    });
}

/// The file as it is, and a PNG also with checksums that are right.
fn for_both(bytes: &[u8], check: impl Fn(&[u8])) {
    check(bytes);
    if Format::of(bytes) == Some(Format::Png)
        && let Some(fixed) = with_right_checksums(bytes)
    {
        check(&fixed);
    }
}

fn check(bytes: &[u8]) {
    let (exact, reduced) = SPECS.split_at(4);
    USED.with_borrow_mut(|used| {
        let outcome = decode(used, bytes, exact);
        match Format::of(bytes) {
            Some(Format::Jpeg) => assert_eq!(decode(used, bytes, reduced), outcome),
            Some(Format::Png | Format::Tiff) => {
                exact.iter().for_each(|spec| by_line(used, bytes, spec, &outcome))
            }
            _ => {}
        }
    });
}

/// Decodes the file line by line, or by strips or rows of tiles, where that is possible for a row, which is that of the whole picture.
fn by_line(used: &mut Preparer, bytes: &[u8], spec: &ImageSpec, outcome: &Result<PictureSize, MediaError>) {
    let mut lowered = Preparer::with_whole_bytes(0);
    let (found, taken) = measured(|| lowered.decode_for(bytes, MAX_PIXELS, &[spec]));
    assert!(taken.peak <= SLACK + PER_BYTE * bytes.len(), "{taken:?} for {} bytes", bytes.len());
    // Two decoders read TIFF, which refuse what is damaged in words of their own.
    if Format::of(bytes) == Some(Format::Tiff) && (found.is_err() || outcome.is_err()) {
        return;
    }
    assert_eq!(found, *outcome);
    if found.is_ok() {
        write(used, &mut lowered, spec);
    }
}

/// Decodes the file with a preparer that was used before, and with a fresh one to compare with.
fn decode(used: &mut Preparer, bytes: &[u8], specs: &[ImageSpec]) -> Result<PictureSize, MediaError> {
    let rows: Vec<&ImageSpec> = specs.iter().collect();
    let (outcome, taken) = measured(|| used.decode_for(bytes, MAX_PIXELS, &rows));
    assert!(taken.peak <= SLACK + PER_BYTE * bytes.len(), "{taken:?} for {} bytes", bytes.len());
    let mut fresh = Preparer::new();
    assert_eq!(fresh.decode_for(bytes, MAX_PIXELS, &rows), outcome);
    match &outcome {
        Ok(size) => {
            assert!(size.width > 0 && size.height > 0);
            assert!(u64::from(size.width) * u64::from(size.height) <= MAX_PIXELS);
            specs.iter().for_each(|spec| write(used, &mut fresh, spec));
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(used.write_row(&specs[0], &mut [0; 105]), Err(MediaError::NothingDecoded));
        }
    }
    outcome
}

/// Writes a row over different old contents; nothing of them may show.
fn write(used: &mut Preparer, fresh: &mut Preparer, spec: &ImageSpec) {
    let bytes = spec.tensor().row_bytes().expect("the sizes of these specs are small");
    let mut row = vec![0x00; bytes];
    used.write_row(spec, &mut row).expect("a decoded picture gives a row");
    let mut again = vec![0xff; bytes];
    fresh.write_row(spec, &mut again).expect("a decoded picture gives a row");
    assert_eq!(row, again, "a row depends on the file alone");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Or the comparison would be one of whole pictures with whole ones.
    #[test]
    fn kept_pictures_in_strips_and_in_tiles_are_not_decoded_whole() {
        let kept = crate::kept_inputs::kept_inputs("image");
        for name in
            ["strips-gray", "strips-rgb-deflate", "strips-16-bit-mm", "tiles-gray", "tiles-rgb-deflate"]
        {
            let bytes = &kept[&format!("{name}.tiff")];
            let is_in_parts = |spec: &&ImageSpec| {
                let mut preparer = Preparer::with_whole_bytes(0);
                preparer.decode_for(bytes, MAX_PIXELS, &[*spec]).expect("it is a picture");
                !preparer.is_enough_for(None)
            };
            assert!(SPECS.iter().any(|spec| is_in_parts(&spec)), "{name}");
        }
    }
}
