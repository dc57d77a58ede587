//! Where a picture goes in the row: which part of it, onto which pixels. It moves no pixels.
//!
//! Formulas: Pillow's `ImageOps.fit` and `ImageOps.pad`, torchvision's `Resize` and `CenterCrop`.

use orchestra_core::{Fit, ImageSpec};

use crate::picture::{PictureInfo, PictureSize};

/// Whole pixels of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: usize,
    pub(crate) y: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// A stretch of one axis of the picture, in pixels and parts of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AxisSpan {
    pub(crate) start: f64,
    pub(crate) length: f64,
}

impl AxisSpan {
    fn whole(length: u32) -> AxisSpan {
        AxisSpan { start: 0.0, length: f64::from(length) }
    }

    /// The same stretch, counted from the other end of an axis of `side` pixels.
    fn flipped(self, side: u32) -> AxisSpan {
        AxisSpan { start: (f64::from(side) - self.start - self.length).max(0.0), length: self.length }
    }

    /// The same stretch of a picture whose pixels stand for `factor` of this one's each.
    fn reduced(self, factor: f64) -> AxisSpan {
        AxisSpan { start: self.start / factor, length: self.length / factor }
    }

    /// The same stretch, with rounding kept from letting it reach beyond `side` pixels.
    fn inside(self, side: u32) -> AxisSpan {
        let side = f64::from(side);
        let start = self.start.clamp(0.0, side);
        let mut length = self.length.min(side - start);
        while start + length > side {
            length = length.next_down();
        }
        AxisSpan { start, length }
    }

    /// Start and length, if the stretch is whole pixels.
    pub(crate) fn pixels(self) -> Option<(usize, usize)> {
        let is_whole = self.start.fract() == 0.0 && self.length.fract() == 0.0;
        is_whole.then_some((self.start as usize, self.length as usize))
    }
}

/// The part of the picture, as shown, that lands on `dest`; the rest of the row is padding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FittedPart {
    pub(crate) dest: Rect,
    pub(crate) x: AxisSpan,
    pub(crate) y: AxisSpan,
    /// The whole resized picture that `dest` is cut from, with `Fit::Shorter`, for each axis.
    cuts: Option<[AxisCrop; 2]>,
}

/// An axis of `side` pixels resized to `resized`, of which the first `skipped` are left out.
#[derive(Debug, Clone, Copy, PartialEq)]
struct AxisCrop {
    side: u32,
    resized: u64,
    skipped: u64,
}

impl FittedPart {
    /// The columns and rows of the picture in memory that this part of the shown one uses.
    pub(crate) fn stored_spans(&self, picture: &PictureInfo) -> (AxisSpan, AxisSpan) {
        let turn = picture.orientation;
        let (width, height) = picture.full;
        let factor = f64::from(picture.reduction.factor());
        let (x, y) = if turn.transpose { (self.y, self.x) } else { (self.x, self.y) };
        let x = if turn.flip_x { x.flipped(width) } else { x };
        let y = if turn.flip_y { y.flipped(height) } else { y };
        (x.reduced(factor).inside(picture.width), y.reduced(factor).inside(picture.height))
    }

    /// For each column of `dest` the column of the shown picture whose area holds its centre, as Pillow finds it.
    pub(crate) fn nearest_columns(&self) -> impl Iterator<Item = usize> {
        nearest(self.x, self.dest.width, self.cuts.map(|cuts| cuts[0]))
    }

    pub(crate) fn nearest_rows(&self) -> impl Iterator<Item = usize> {
        nearest(self.y, self.dest.height, self.cuts.map(|cuts| cuts[1]))
    }
}

/// Pillow adds step to step. Where a centre falls between two pixels the rounding of that sum decides, so it is done here in
/// the same way, and from the start of the resized picture even if only a part of it is wanted.
fn nearest(span: AxisSpan, count: usize, cut: Option<AxisCrop>) -> impl Iterator<Item = usize> {
    let (start, step, skipped) = match cut {
        Some(cut) => (0.0, f64::from(cut.side) / cut.resized as f64, cut.skipped),
        None => {
            // Pillow hands the box over in single precision.
            let (start, end) = (span.start as f32, (span.start + span.length) as f32);
            (f64::from(start), f64::from(end - start) / count as f64, 0)
        }
    };
    let mut centre = start + step * 0.5;
    for _ in 0..skipped {
        centre += step;
    }
    (0..count).map(move |_| {
        let at = centre as usize;
        centre += step;
        at
    })
}

/// Places a picture in a target of `[height, width]`. `shorter` is read with `Fit::Shorter` only. No side is 0.
pub(crate) fn fitted_part(fit: Fit, shorter: u32, target: [u32; 2], picture: PictureSize) -> FittedPart {
    let [target_height, target_width] = target;
    let PictureSize { width, height } = picture;
    let full = Rect { x: 0, y: 0, width: target_width as usize, height: target_height as usize };
    match fit {
        Fit::Stretch => {
            FittedPart { dest: full, x: AxisSpan::whole(width), y: AxisSpan::whole(height), cuts: None }
        }
        Fit::Cover => cover(full, target, picture),
        Fit::Contain => {
            let (dest_width, dest_height) = contained_size(target, picture);
            let dest = Rect {
                x: half_to_even(target_width - dest_width) as usize,
                y: half_to_even(target_height - dest_height) as usize,
                width: dest_width as usize,
                height: dest_height as usize,
            };
            FittedPart { dest, x: AxisSpan::whole(width), y: AxisSpan::whole(height), cuts: None }
        }
        Fit::Corner => {
            let (dest_width, dest_height) = contained_size(target, picture);
            let dest = Rect { x: 0, y: 0, width: dest_width as usize, height: dest_height as usize };
            FittedPart { dest, x: AxisSpan::whole(width), y: AxisSpan::whole(height), cuts: None }
        }
        Fit::Left => {
            let wide = u64::from(target_height) * u64::from(width);
            let dest_width = wide.div_ceil(u64::from(height)).clamp(1, u64::from(target_width)) as usize;
            let dest = Rect { x: 0, y: 0, width: dest_width, height: target_height as usize };
            FittedPart { dest, x: AxisSpan::whole(width), y: AxisSpan::whole(height), cuts: None }
        }
        Fit::Shorter => {
            let longer = |long: u32, short: u32| u64::from(shorter) * u64::from(long) / u64::from(short);
            let (resized_width, resized_height) = if width <= height {
                (u64::from(shorter), longer(height, width))
            } else {
                (longer(width, height), u64::from(shorter))
            };
            let (x, dest_width, span_x, cut_x) = cut_or_pad(resized_width, target_width, width);
            let (y, dest_height, span_y, cut_y) = cut_or_pad(resized_height, target_height, height);
            let dest = Rect { x, y, width: dest_width, height: dest_height };
            FittedPart { dest, x: span_x, y: span_y, cuts: Some([cut_x, cut_y]) }
        }
    }
}

/// Where the row that `spec` makes of a picture of this size (width, height) lies in it, for mapping results back. Exact: it is the same
/// arithmetic that places the pixels, so half-pixel offsets and whole-pixel padding are undone as they were done. With
/// `trim`, `row` of the result is what the picture fills, rounded up.
pub fn placement(spec: &ImageSpec, picture: [u32; 2]) -> orchestra_core::Placement {
    let [width, height] = picture.map(|side| side.max(1));
    let [row_height, row_width] = spec.size.map(|side| side.max(1));
    let size = PictureSize { width, height };
    let placed = fitted_part(spec.fit, spec.shorter.max(1), [row_height, row_width], size);
    let axis = |from: usize, pixels: usize, span: AxisSpan| {
        let scale = span.length / pixels as f64;
        (scale, span.start - from as f64 * scale)
    };
    let (scale_x, left) = axis(placed.dest.x, placed.dest.width, placed.x);
    let (scale_y, top) = axis(placed.dest.y, placed.dest.height, placed.y);
    let used = |pixels: usize, side: u32| match spec.trim {
        Some(step) => u32::try_from(pixels).map_or(side, |pixels| pixels.next_multiple_of(step).min(side)),
        None => side,
    };
    orchestra_core::Placement {
        row: [used(placed.dest.width, row_width), used(placed.dest.height, row_height)],
        picture: [width, height],
        to_picture: [scale_x, 0.0, left, 0.0, scale_y, top],
    }
}

/// The centred part of the picture that has the aspect ratio of the target.
fn cover(dest: Rect, [target_height, target_width]: [u32; 2], picture: PictureSize) -> FittedPart {
    let (width, height) = (f64::from(picture.width), f64::from(picture.height));
    let wanted = f64::from(target_width) / f64::from(target_height);
    let have = width / height;
    let (part_width, part_height) = if have == wanted {
        (width, height)
    } else if have > wanted {
        (wanted * height, height)
    } else {
        (width, width / wanted)
    };
    FittedPart {
        dest,
        x: AxisSpan { start: (width - part_width) * 0.5, length: part_width },
        y: AxisSpan { start: (height - part_height) * 0.5, length: part_height },
        cuts: None,
    }
}

/// Width and height of the whole picture when it just fits into the target: at least one pixel each.
fn contained_size([target_height, target_width]: [u32; 2], picture: PictureSize) -> (u32, u32) {
    let (width, height) = (f64::from(picture.width), f64::from(picture.height));
    let have = width / height;
    let wanted = f64::from(target_width) / f64::from(target_height);
    if have > wanted {
        let fitted = (height / width * f64::from(target_width)).round_ties_even();
        (target_width, (fitted as u32).clamp(1, target_height))
    } else if have < wanted {
        let fitted = (have * f64::from(target_height)).round_ties_even();
        ((fitted as u32).clamp(1, target_width), target_height)
    } else {
        (target_width, target_height)
    }
}

/// One axis of resize and centre crop: offset and length in the target, and the part of the picture's axis. The crop is
/// taken from the picture before the resize, which gives the same samples: pixel `i` of the resized axis has its centre at
/// `(i + 0.5) * side / resized` either way.
fn cut_or_pad(resized: u64, target: u32, side: u32) -> (usize, usize, AxisSpan, AxisCrop) {
    let wanted = u64::from(target);
    if resized < wanted {
        let all = AxisCrop { side, resized, skipped: 0 };
        return ((wanted - resized) as usize / 2, resized as usize, AxisSpan::whole(side), all);
    }
    let over = resized - wanted;
    let skipped = over / 2 + u64::from(over % 4 == 3);
    let scale = |pixels: u64| (pixels as f64) * f64::from(side) / (resized as f64);
    let part = AxisSpan { start: scale(skipped), length: scale(wanted) };
    (0, target as usize, part, AxisCrop { side, resized, skipped })
}

/// Half of `n`, a half pixel to the even side, as Python's `round` has it.
fn half_to_even(n: u32) -> u32 {
    n / 2 + u32::from(n % 4 == 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orientation::Orientation;
    use crate::picture::PixelKind;

    const fn size(width: u32, height: u32) -> PictureSize {
        PictureSize { width, height }
    }

    #[test]
    fn halves_go_to_the_even_side_as_in_python() {
        let halves: Vec<u32> = (0..9).map(half_to_even).collect();
        assert_eq!(halves, [0, 0, 1, 2, 2, 2, 3, 4, 4]);
    }

    #[test]
    fn shorter_takes_the_centre_of_the_resized_picture() {
        // torchvision: 500x375 -> 341x256, crop 224 at left round(58.5) = 58, top 16.
        let fitted = fitted_part(Fit::Shorter, 256, [224, 224], size(500, 375));
        assert_eq!(fitted.dest, Rect { x: 0, y: 0, width: 224, height: 224 });
        assert!((fitted.x.start - 58.0 * 500.0 / 341.0).abs() < 1e-9);
        assert!((fitted.x.length - 224.0 * 500.0 / 341.0).abs() < 1e-9);
        assert!((fitted.y.start - 16.0 * 375.0 / 256.0).abs() < 1e-9);
    }

    #[test]
    fn shorter_pads_what_the_resized_picture_lacks() {
        let fitted = fitted_part(Fit::Shorter, 10, [15, 12], size(40, 20));
        assert_eq!(fitted.dest, Rect { x: 0, y: 2, width: 12, height: 10 });
        assert_eq!(fitted.y, AxisSpan::whole(20));
    }

    #[test]
    fn a_crop_that_needs_no_resize_is_whole_pixels() {
        let fitted = fitted_part(Fit::Shorter, 37, [30, 31], size(37, 50));
        assert_eq!(fitted.x.pixels(), Some((3, 31)));
        assert_eq!(fitted.y.pixels(), Some((10, 30)));
    }

    #[test]
    fn contain_keeps_at_least_one_pixel() {
        let fitted = fitted_part(Fit::Contain, 0, [8, 8], size(1000, 1));
        assert_eq!(fitted.dest, Rect { x: 0, y: 4, width: 8, height: 1 });
        let fitted = fitted_part(Fit::Contain, 0, [8, 8], size(1, 1000));
        assert_eq!(fitted.dest, Rect { x: 4, y: 0, width: 1, height: 8 });
    }

    #[test]
    fn lines_of_text_fill_the_height_and_are_squeezed_where_they_are_too_wide() {
        let fitted = fitted_part(Fit::Left, 0, [48, 320], size(100, 31));
        assert_eq!(fitted.dest, Rect { x: 0, y: 0, width: 155, height: 48 });
        assert_eq!(fitted_part(Fit::Left, 0, [48, 320], size(1000, 31)).dest.width, 320);
    }

    fn spec(fit: Fit) -> ImageSpec {
        ImageSpec {
            size: [100, 150],
            fit,
            shorter: 160,
            filter: orchestra_core::ResizeFilter::Bilinear,
            color: orchestra_core::Channels::Rgb,
            layout: orchestra_core::Layout::Nchw,
            dtype: orchestra_core::DType::U8,
            scale: 1.0,
            mean: vec![0.0; 3],
            std: vec![1.0; 3],
            pad: vec![0; 3],
            max_pixels: 1 << 30,
            fast: false,
            in_graph: None,
            trim: None,
        }
    }

    #[test]
    fn a_placement_undoes_every_fit() {
        // The picture is 333 x 100; each point of the row, and of the picture.
        let close = |fit, row: [f64; 2], picture: [f64; 2]| {
            let point = placement(&spec(fit), [333, 100]).point(row);
            assert!((point[0] - picture[0]).hypot(point[1] - picture[1]) < 1e-9, "{fit:?}: {point:?}");
        };
        close(Fit::Stretch, [75.0, 50.0], [166.5, 50.0]);
        // 45 lines from line 28 on: 55 lines of padding, half of which is an even number.
        close(Fit::Contain, [150.0, 28.0], [333.0, 0.0]);
        close(Fit::Contain, [0.0, 73.0], [0.0, 100.0]);
        close(Fit::Cover, [0.0, 0.0], [91.5, 0.0]);
        // 532 x 160, of which columns 191 to 341 and lines 30 to 130 are shown.
        close(Fit::Shorter, [0.0, 0.0], [191.0 * 333.0 / 532.0, 30.0 * 100.0 / 160.0]);
        close(Fit::Corner, [150.0, 45.0], [333.0, 100.0]);
        close(Fit::Corner, [0.0, 0.0], [0.0, 0.0]);
        close(Fit::Left, [150.0, 100.0], [333.0, 100.0]);
    }

    #[test]
    fn a_row_that_is_trimmed_ends_at_the_next_multiple_behind_its_picture_and_no_further_than_the_row() {
        let row = |fit, trim, picture| placement(&ImageSpec { trim, ..spec(fit) }, picture).row;
        // 150 x 45 of 150 x 100.
        assert_eq!(row(Fit::Corner, None, [333, 100]), [150, 100]);
        assert_eq!(row(Fit::Corner, Some(32), [333, 100]), [150, 64]);
        assert_eq!(row(Fit::Corner, Some(45), [333, 100]), [150, 45]);
        // 50 x 100: the height is filled.
        assert_eq!(row(Fit::Left, Some(32), [100, 200]), [64, 100]);
        assert_eq!(row(Fit::Left, Some(32), [100, 1]), [150, 100]);
        assert_eq!(row(Fit::Left, Some(32), [1, 100_000]), [32, 100]);
    }

    #[test]
    fn every_span_lies_inside_the_picture_however_it_is_turned() {
        for fit in [Fit::Stretch, Fit::Cover, Fit::Contain, Fit::Corner, Fit::Left, Fit::Shorter] {
            for width in (1..400).step_by(7) {
                for height in (1..400).step_by(13) {
                    for value in 1..=8 {
                        let turn = Orientation::from_exif(value).unwrap();
                        let shown = turn.shown_size(width, height);
                        let fitted = fitted_part(fit, 97, [61, 83], size(shown.0, shown.1));
                        let info = PictureInfo::full(width, height, PixelKind::Rgb, turn);
                        let (x, y) = fitted.stored_spans(&info);
                        for (span, side) in [(x, width), (y, height)] {
                            let side = f64::from(side);
                            assert!(span.start >= 0.0 && span.start < side && span.length > 0.0);
                            assert!(span.start + span.length <= side, "{fit:?} {width}x{height} {span:?}");
                        }
                    }
                }
            }
        }
    }
}
