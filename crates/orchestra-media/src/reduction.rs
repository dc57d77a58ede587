//! By how much a picture may be reduced while it is decoded, for the rows that will be made of it. It decodes and resizes nothing.

use orchestra_core::{ImageSpec, ResizeFilter};

use crate::geometry::fitted_part;
use crate::picture::{Downscale, PictureSize};

impl Downscale {
    /// The largest reduction that leaves the part which is seen at least as large as the row of each of `specs`, on both sides: nothing is ever
    /// enlarged that would not be without it. A spec that does not say `fast`, or that takes the nearest pixel, wants all pixels.
    pub(crate) fn for_rows(specs: &[&ImageSpec], shown: PictureSize) -> Downscale {
        specs.iter().map(|spec| Self::for_row(spec, shown)).min().unwrap_or(Self::NONE)
    }

    fn for_row(spec: &ImageSpec, shown: PictureSize) -> Downscale {
        // What else is wrong with a spec is said when its row is written.
        let is_empty =
            spec.size.contains(&0) || (spec.fit == orchestra_core::Fit::Shorter && spec.shorter == 0);
        if !spec.fast || spec.filter == ResizeFilter::Nearest || is_empty {
            return Self::NONE;
        }
        let fitted = fitted_part(spec.fit, spec.shorter, spec.size, shown);
        let leaves_enough = |factor: &u32| {
            let factor = f64::from(*factor);
            fitted.x.length >= fitted.dest.width as f64 * factor
                && fitted.y.length >= fitted.dest.height as f64 * factor
        };
        [8, 4, 2].into_iter().find(leaves_enough).map_or(Self::NONE, Downscale)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::{Channels, DType, Fit, Layout};

    use super::*;

    fn spec(size: [u32; 2], fit: Fit, shorter: u32) -> ImageSpec {
        ImageSpec {
            size,
            fit,
            shorter,
            filter: ResizeFilter::Bilinear,
            color: Channels::Rgb,
            layout: Layout::Nchw,
            dtype: DType::F32,
            scale: 1.0,
            mean: vec![0.0; 3],
            std: vec![1.0; 3],
            pad: vec![0; 3],
            max_pixels: 1,
            fast: true,
            in_graph: None,
            trim: None,
        }
    }

    fn factor(spec: &ImageSpec, width: u32, height: u32) -> u32 {
        Downscale::for_rows(&[spec], PictureSize { width, height }).factor()
    }

    #[test]
    fn the_shorter_side_of_the_seen_part_decides() {
        let square = spec([224, 224], Fit::Cover, 0);
        assert_eq!(factor(&square, 1920, 1080), 4);
        assert_eq!(factor(&square, 500, 375), 1);
        assert_eq!(factor(&square, 448, 448), 2);
        assert_eq!(factor(&square, 447, 2000), 1);
        assert_eq!(factor(&square, 20_000, 1792), 8);
        // The whole picture in 224 x 126: nothing of the padding counts.
        assert_eq!(factor(&spec([224, 224], Fit::Contain, 0), 1920, 1080), 8);
        // 256 pixels of the shorter side before the cut.
        assert_eq!(factor(&spec([224, 224], Fit::Shorter, 256), 1920, 1080), 4);
        assert_eq!(factor(&spec([224, 224], Fit::Shorter, 256), 1023, 1500), 2);
        assert_eq!(factor(&spec([224, 896], Fit::Stretch, 0), 1920, 1080), 2);
    }

    #[test]
    fn one_row_that_wants_all_pixels_keeps_them_for_all() {
        let fast = spec([10, 10], Fit::Stretch, 0);
        let exact = ImageSpec { fast: false, ..fast.clone() };
        let nearest = ImageSpec { filter: ResizeFilter::Nearest, ..fast.clone() };
        let shown = PictureSize { width: 100, height: 100 };
        assert_eq!(Downscale::for_rows(&[&fast, &fast], shown).factor(), 8);
        assert_eq!(Downscale::for_rows(&[&fast, &exact], shown), Downscale::NONE);
        assert_eq!(Downscale::for_rows(&[&nearest], shown), Downscale::NONE);
        assert_eq!(Downscale::for_rows(&[&spec([0, 1], Fit::Cover, 0)], shown), Downscale::NONE);
        assert_eq!(Downscale::for_rows(&[], shown), Downscale::NONE);
    }
}
