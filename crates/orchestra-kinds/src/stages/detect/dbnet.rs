//! `dbnet`: a map of how likely each pixel belongs to a text, to rotated rectangles around the texts, as PaddleOCR and RapidOCR make them.

use bincode::{Decode, Encode};
use orchestra_core::data::ItemError;
use serde::Serialize;

use super::layout::OutputTensor;
use super::rectangle::{Quad, min_area_rectangle, score_within, unclip};

/// The settings of the layout.
#[derive(Debug, Clone, PartialEq, Serialize, Encode, Decode)]
pub struct Dbnet {
    /// Pixels that are more likely than this belong to a text.
    pub threshold: f32,
    /// Texts whose pixels are less likely than this on average are left out.
    pub box_threshold: f32,
    /// How far boxes grow: the distance is the area times this, divided by the perimeter.
    pub unclip: f64,
    /// Regions that are looked at.
    pub max: usize,
    /// Shortest side of a text in pixels of the map, before it grows.
    pub min_size: f64,
    /// Whether regions grow by a pixel to the right and down first.
    pub dilate: bool,
}

/// A text: its rectangle, clockwise from the top left corner, in pixels of the map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Text {
    pub score: f32,
    pub corners: Quad,
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub struct Regions {
    /// Per pixel whether it belongs to a text and was not reached yet.
    is_open: Vec<bool>,
    reached: Vec<(u32, u32)>,
    /// Pixels of a region, by line: the first and the last of each. Others lie within its hull.
    ends: Vec<[f64; 2]>,
}

impl Dbnet {
    /// The texts of a map and its sides (width, height), in the order of their first pixels from top to bottom.
    pub fn texts(
        &self,
        tensor: &OutputTensor,
        regions: &mut Regions,
    ) -> Result<(Vec<Text>, [usize; 2]), ItemError> {
        let (height, width) = match tensor.shape[..] {
            [1, height, width] | [height, width] => (height, width),
            _ => return Err(tensor.item_error("[1, height, width]")),
        };
        let map = &tensor.values;
        if map.len() != height * width || u32::try_from(map.len()).is_err() {
            return Err(tensor.item_error("[1, height, width]"));
        }
        regions.begin(map, width, self.threshold, self.dilate);
        let mut texts = Vec::new();
        let mut left = self.max;
        for at in 0..map.len() {
            if !regions.is_open[at] {
                continue;
            }
            regions.reach(at, width, height);
            if left == 0 {
                break;
            }
            left -= 1;
            texts.extend(self.text(map, width, height, &mut regions.ends));
        }
        Ok((texts, [width, height]))
    }

    fn text(&self, map: &[f32], width: usize, height: usize, ends: &mut Vec<[f64; 2]>) -> Option<Text> {
        let region = min_area_rectangle(ends)?;
        if region.short_side() < self.min_size {
            return None;
        }
        let corners = region.ordered();
        let score = score_within(map, width, height, &corners);
        if score < self.box_threshold || score.is_nan() {
            return None;
        }
        let grown = unclip(&region, self.unclip);
        (grown.short_side() >= self.min_size + 2.0).then(|| Text { score, corners: grown.ordered() })
    }
}

impl Regions {
    fn begin(&mut self, map: &[f32], width: usize, threshold: f32, dilate: bool) {
        self.is_open.clear();
        self.is_open.extend(map.iter().map(|p| *p > threshold));
        if dilate && width > 0 {
            // Backwards, so that what a pixel takes over is what stood there before.
            for at in (0..self.is_open.len()).rev() {
                let (has_left, has_above) = (!at.is_multiple_of(width), at >= width);
                let from = [
                    has_left.then(|| at - 1),
                    has_above.then(|| at - width),
                    (has_left && has_above).then(|| at - width - 1),
                ];
                let grows = from.into_iter().flatten().any(|from| self.is_open[from]);
                self.is_open[at] |= grows;
            }
        }
    }

    /// Takes the pixels that hang together with `first` by sides or corners.
    fn reach(&mut self, first: usize, width: usize, height: usize) {
        self.reached.clear();
        self.is_open[first] = false;
        self.reached.push(((first % width) as u32, (first / width) as u32));
        let mut next = 0;
        while let Some(&(x, y)) = self.reached.get(next) {
            next += 1;
            let (x, y) = (x as usize, y as usize);
            for near_y in y.saturating_sub(1)..(y + 2).min(height) {
                for near_x in x.saturating_sub(1)..(x + 2).min(width) {
                    let near = near_y * width + near_x;
                    if std::mem::take(&mut self.is_open[near]) {
                        self.reached.push((near_x as u32, near_y as u32));
                    }
                }
            }
        }
        self.reached.sort_unstable_by_key(|(x, y)| (*y, *x));
        self.ends.clear();
        for line in self.reached.chunk_by(|a, b| a.1 == b.1) {
            for (x, y) in [line[0], line[line.len() - 1]] {
                self.ends.push([f64::from(x), f64::from(y)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Dbnet =
        Dbnet { threshold: 0.3, box_threshold: 0.5, unclip: 1.6, max: 1000, min_size: 3.0, dilate: false };

    fn map(width: usize, height: usize, value: impl Fn(f64, f64) -> f32) -> OutputTensor {
        let values = (0..height * width).map(|at| value((at % width) as f64, (at / width) as f64)).collect();
        OutputTensor { name: "map".to_owned(), shape: vec![1, height, width], values }
    }

    fn texts(settings: &Dbnet, tensor: &OutputTensor) -> Vec<Text> {
        settings.texts(tensor, &mut Regions::default()).unwrap().0
    }

    #[test]
    fn an_upright_text_grows_by_its_area_and_perimeter() {
        let found = texts(
            &SETTINGS,
            &map(80, 40, |x, y| f32::from((10.0..=49.0).contains(&x) && (12.0..=21.0).contains(&y))),
        );
        let [text] = found[..] else { panic!("{found:?}") };
        // 39 x 9: area 351, perimeter 96, so it grows by 5.85 on each side.
        let by = 351.0 * 1.6 / 96.0;
        let expected =
            [[10.0 - by, 12.0 - by], [49.0 + by, 12.0 - by], [49.0 + by, 21.0 + by], [10.0 - by, 21.0 + by]];
        for (corner, wanted) in text.corners.iter().zip(expected) {
            assert!((corner[0] - wanted[0]).abs() < 1e-6 && (corner[1] - wanted[1]).abs() < 1e-6, "{text:?}");
        }
        assert_eq!(text.score, 1.0);
    }

    #[test]
    fn a_turned_text_has_a_turned_rectangle_and_weak_or_tiny_ones_none() {
        let (cos, sin) = (0.5_f64.cos(), 0.5_f64.sin());
        let turned = map(120, 120, |x, y| {
            let (x, y) = (x - 60.0, y - 60.0);
            f32::from((x * cos + y * sin).abs() <= 40.0 && (y * cos - x * sin).abs() <= 8.0)
        });
        let [text] = texts(&SETTINGS, &turned)[..] else { panic!() };
        let [a, b, _, d] = text.corners;
        assert!(((b[1] - a[1]).atan2(b[0] - a[0]) - 0.5).abs() < 0.05, "{text:?}");
        let side = |p: [f64; 2], q: [f64; 2]| (p[0] - q[0]).hypot(p[1] - q[1]);
        assert!(side(a, b) > 99.0 && side(a, d) > 36.0 && side(a, d) < 39.0, "{text:?}");
        let weak = map(40, 40, |x, y| 0.4 * f32::from((5.0..30.0).contains(&x) && (5.0..20.0).contains(&y)));
        assert!(texts(&SETTINGS, &weak).is_empty());
        assert!(texts(&SETTINGS, &map(40, 40, |x, y| f32::from(x == 3.0 && y < 9.0))).is_empty());
        assert!(texts(&SETTINGS, &map(8, 8, |_, _| f32::NAN)).is_empty());
        assert!(texts(&SETTINGS, &map(0, 0, |_, _| 1.0)).is_empty());
    }

    #[test]
    fn regions_beyond_the_number_that_is_looked_at_are_left() {
        let stripes = map(100, 100, |x, y| f32::from(y % 20.0 < 10.0 && x < 90.0));
        assert_eq!(texts(&SETTINGS, &stripes).len(), 5);
        assert_eq!(texts(&Dbnet { max: 2, ..SETTINGS }, &stripes).len(), 2);
    }
}
