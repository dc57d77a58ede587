//! Cutting boxes out of the picture at hand. It reads no file, and decides nothing about columns.

use std::cell::RefCell;

use bincode::{Decode, Encode};
use orchestra_core::data::{ItemError, OwnedRow, OwnedValue, Pixels, TensorView, Value, WriteTensor};
use orchestra_core::shapes::{Emit, FanOut, RowWork};
use orchestra_core::{Element, ImageSpec, LeftOut, Placement, TensorSpec};
use orchestra_media::{MediaError, PixelRect, Preparer, Quadrilateral};

use super::{Corners, CropBoxes, ListColumns, Outside};
use crate::elements::read_numbers;
use crate::stages::shared::box_order::BoxPosition;
use crate::stages::shared::detections::finite;

/// What cuts boxes out of pictures.
#[derive(Debug, Encode, Decode)]
pub struct Cutting {
    pub(super) spec: ImageSpec,
    pub(super) tensor: TensorSpec,
    pub(super) boxes: CropBoxes,
    /// Boxes are a list and no tensor.
    pub(super) list: Option<ListColumns>,
}

#[derive(Default)]
pub struct CropBuffers {
    values: Vec<f32>,
    preparer: RefCell<Preparer>,
}

impl RowWork for Cutting {
    type Scratch = CropBuffers;
    const FAN: FanOut = FanOut::Parts;
    const IN_LOADER: bool = false;

    fn apply(
        &self,
        CropBuffers { values, preparer }: &mut CropBuffers,
        inputs: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError> {
        let [Value::Picture(picture), boxes] = inputs else {
            return Err(ItemError::result(
                "internal error: a crop stage was given no picture; this is a bug",
            ));
        };
        let rows: &[OwnedRow] = match (boxes, &self.list) {
            (Value::List(rows), Some(_)) => rows,
            _ => &[],
        };
        let mut numbers = 0;
        if let Some(list) = &self.list {
            numbers = NUMBERS;
            values.clear();
            for (n, row) in rows.iter().enumerate() {
                let of_row = list.of_boxes.read(n, row)?;
                values.extend(of_row.corners);
                values.push(of_row.score.unwrap_or_default());
                values.extend(of_row.polygon.unwrap_or_default());
            }
            if let Some(place) = values.iter().position(|v| v.is_nan()) {
                return Err(ItemError::result(format!("box {} holds no number: it is NaN", place / NUMBERS)));
            }
        } else {
            boxes.with_tensor(|view: &TensorView<'_>| {
                numbers = view.shape.last().copied().unwrap_or(0);
                read_numbers(view, values)
            })?;
        }
        picture.with_pixels(&mut |pixels| {
            let picture = [pixels.width, pixels.height];
            let turns = self.list.as_ref().is_some_and(|list| list.of_boxes.polygon.is_some());
            let cuts = match turns {
                true => self.boxes.quadrilaterals(values, picture),
                false => self.boxes.rects(values, numbers, picture)?,
            };
            cuts.tell(emit);
            emit.parts(cuts.areas.len())?;
            for (n, mut area) in cuts.areas {
                if let Area::Turned(quad) = &mut area {
                    quad.is_upside_down = self.list.as_ref().is_some_and(|list| list.turns(&rows[n]));
                }
                let cut = CroppedTensor { work: self, preparer, pixels, area };
                let placed = area.placement(&self.spec, picture).bytes();
                let passed = self.list.as_ref().map_or(&[][..], |list| &list.passed);
                let passed: Vec<&OwnedValue> =
                    passed.iter().filter_map(|column| rows.get(n)?.get(*column)).collect();
                let labels: Vec<_> = passed.iter().map(|value| value.labels()).collect();
                let mut row = Vec::with_capacity(2 + passed.len());
                row.push(Value::Unwritten(&cut));
                row.extend(passed.iter().zip(&labels).map(|(value, labels)| value.borrowed(labels)));
                row.push(Placement::value(&placed));
                emit.row(&row)?;
            }
            Ok(())
        })
    }
}

/// Numbers that are kept of each row of a list: box, score, and the corners of the polygon; those that it lacks are 0.
const NUMBERS: usize = 13;

impl ListColumns {
    /// Whether what a row stands for is upside down.
    fn turns(&self, row: &OwnedRow) -> bool {
        match self.turn.and_then(|column| row.get(column)) {
            Some(OwnedValue::Tensor { dtype, data, .. }) => data
                .get(..dtype.size_bytes())
                .is_some_and(|bytes| Element::read(*dtype, bytes).to_f64() != 0.0),
            _ => false,
        }
    }
}

/// What is cut out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Area {
    Upright(PixelRect),
    Turned(Quadrilateral),
}

impl Area {
    /// Where the row that is made of it lies in the picture.
    fn placement(&self, spec: &ImageSpec, picture: [u32; 2]) -> Placement {
        let (size, [a, b, c, d, e, f]) = match self {
            Area::Upright(rect) => {
                let at = [1.0, 0.0, rect.left as f64, 0.0, 1.0, rect.top as f64];
                ([rect.width, rect.height], at)
            }
            Area::Turned(quad) => (quad.size(), quad.to_picture()),
        };
        let within = orchestra_media::placement(spec, size);
        let [g, h, i, j, k, l] = within.to_picture;
        let to_picture = [
            a * g + b * j,
            a * h + b * k,
            a * i + b * l + c,
            d * g + e * j,
            d * h + e * k,
            d * i + e * l + f,
        ];
        Placement { row: within.row, picture, to_picture }
    }
}

/// What is cut out of a picture, in order, each with the number of its box; and how many boxes nothing is cut out for.
#[derive(Debug, Default, PartialEq)]
struct Cuts {
    areas: Vec<(usize, Area)>,
    n_outside: u64,
    n_without_area: u64,
}

impl Cuts {
    fn tell(&self, emit: &mut dyn Emit) {
        let counts =
            [(LeftOut::BoxesOutside, self.n_outside), (LeftOut::BoxesWithoutArea, self.n_without_area)];
        for (what, n) in counts.into_iter().filter(|(_, n)| *n > 0) {
            emit.left_out(what, n);
        }
    }
}

struct CroppedTensor<'a> {
    work: &'a Cutting,
    preparer: &'a RefCell<Preparer>,
    pixels: Pixels<'a>,
    area: Area,
}

impl WriteTensor for CroppedTensor<'_> {
    fn spec(&self) -> &TensorSpec {
        &self.work.tensor
    }

    fn write(&self, row: &mut [u8]) -> Result<(), ItemError> {
        let item_error = |error: MediaError| ItemError { kind: error.kind(), error: error.to_string() };
        let mut preparer = self.preparer.borrow_mut();
        match self.area {
            Area::Upright(rect) => preparer.load(&self.pixels, rect, &self.work.spec),
            Area::Turned(quad) => preparer.load_quadrilateral(&self.pixels, &quad),
        }
        .map_err(item_error)?;
        preparer.write_row(&self.work.spec, row).map_err(item_error)
    }
}

impl CropBoxes {
    /// The turned rectangles to cut, of the numbers of rows of a list.
    fn quadrilaterals(&self, values: &[f32], picture: [u32; 2]) -> Cuts {
        let mut cuts = Cuts::default();
        let mut found: Vec<(BoxPosition, (usize, Area))> = Vec::new();
        for (n, numbers) in values.as_chunks::<NUMBERS>().0.iter().enumerate() {
            let score = numbers[4];
            if self.threshold.is_some_and(|threshold| score < threshold) {
                continue;
            }
            let corners = [5, 7, 9, 11].map(|at| [f64::from(numbers[at]), f64::from(numbers[at + 1])]);
            let centre = [0, 1].map(|axis| corners.iter().map(|p| p[axis]).sum::<f64>() / 4.0);
            let grow = 1.0 + 2.0 * f64::from(self.margin);
            let corners = corners.map(|p| [0, 1].map(|axis| centre[axis] + (p[axis] - centre[axis]) * grow));
            let Some(quad) = Quadrilateral::new(corners, true) else {
                cuts.n_without_area += 1;
                continue;
            };
            let quad = quad.no_larger_than(picture);
            let [x, y] = centre;
            let height = f64::from(quad.width.min(quad.height));
            found.push((BoxPosition { score, x, y, height }, (n, Area::Turned(quad))));
        }
        Cuts { areas: self.order.sort(found), ..cuts }
    }

    /// The rectangles to cut, of boxes of so many numbers each. Every box is rounded to whole pixels, of which one at least is of the picture; one that lies
    /// outside is left out.
    fn rects(&self, values: &[f32], numbers: usize, [width, height]: [u32; 2]) -> Result<Cuts, ItemError> {
        let mut cuts = Cuts::default();
        let scale = |side: u32| if self.is_relative { f64::from(side) } else { 1.0 };
        let (wide, high) = (scale(width), scale(height));
        let mut found: Vec<(BoxPosition, (usize, Area))> = Vec::new();
        for (n, numbers) in values.chunks_exact(numbers.max(4)).enumerate() {
            let score = numbers.get(4).copied().unwrap_or(0.0);
            if self.threshold.is_some_and(|threshold| score < threshold) {
                continue;
            }
            let [a, b, c, d] = finite(n, [0, 1, 2, 3].map(|at| numbers[at]))?;
            let (left, top, right, bottom) = match self.corners {
                Corners::Xyxy => (a, b, c, d),
                Corners::Xywh => (a, b, a + c, b + d),
                Corners::Cxcywh => (a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0),
            };
            let margin = f64::from(self.margin);
            let (mx, my) = ((right - left) * margin, (bottom - top) * margin);
            if right <= left || bottom <= top {
                cuts.n_without_area += 1;
                continue;
            }
            let across = span((left - mx) * wide, (right + mx) * wide, width, self.outside);
            let down = span((top - my) * high, (bottom + my) * high, height, self.outside);
            let (Some((left_px, width_px)), Some((top_px, height_px))) = (across, down) else {
                cuts.n_outside += 1;
                continue;
            };
            let rect = PixelRect { left: left_px, top: top_px, width: width_px, height: height_px };
            let [x, y] = [(left + right) / 2.0, (top + bottom) / 2.0];
            let height = (bottom - top).abs() * high;
            found.push((BoxPosition { score, x: x * wide, y: y * high, height }, (n, Area::Upright(rect))));
        }
        Ok(Cuts { areas: self.order.sort(found), ..cuts })
    }
}

/// The whole pixels that a span covers: where they begin, and how many. `None` where none of a side is among them.
fn span(from: f64, to: f64, side: u32, outside: Outside) -> Option<(i64, u32)> {
    let side = f64::from(side);
    if to <= 0.0 || from >= side {
        return None;
    }
    let (from, to) = match outside {
        Outside::Pad => (from, to),
        Outside::Clip => (from.max(0.0), to.min(side)),
    };
    // A box that is narrower than a pixel is one pixel wide.
    let first = from.round().min(side - 1.0);
    let end = to.round().max(first + 1.0).max(1.0);
    // Of boxes without end so much is left that they are too large.
    Some((first.max(-MOST_OUTSIDE) as i64, (end.min(side + MOST_OUTSIDE) - first.max(-MOST_OUTSIDE)) as u32))
}

/// Pixels in front of a side, and behind it.
const MOST_OUTSIDE: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::shared::box_order::BoxOrder;

    fn boxes() -> CropBoxes {
        CropBoxes {
            corners: Corners::Xyxy,
            is_relative: false,
            threshold: None,
            order: BoxOrder::Given,
            margin: 0.0,
            outside: Outside::Pad,
        }
    }

    fn rect(left: i64, top: i64, width: u32, height: u32) -> PixelRect {
        PixelRect { left, top, width, height }
    }

    impl CropBoxes {
        fn cut(&self, values: &[f32], numbers: usize) -> Vec<PixelRect> {
            let upright = |(_, area): (usize, Area)| match area {
                Area::Upright(rect) => rect,
                Area::Turned(quad) => panic!("{quad:?}"),
            };
            self.rects(values, numbers, [10, 8]).unwrap().areas.into_iter().map(upright).collect()
        }
    }

    #[test]
    fn boxes_are_whole_pixels_within_the_picture_whatever_the_numbers_mean() {
        let xyxy = boxes().cut(&[1.2, 2.0, 3.0, 4.5], 4);
        assert_eq!(xyxy, [rect(1, 2, 2, 3)]);
        let xywh = CropBoxes { corners: Corners::Xywh, ..boxes() }.cut(&[1.0, 2.0, 2.0, 3.0], 4);
        assert_eq!(xywh, xyxy);
        let centre = CropBoxes { corners: Corners::Cxcywh, ..boxes() };
        assert_eq!(centre.cut(&[2.0, 3.5, 2.0, 3.0], 4), xyxy);
        let relative = CropBoxes { is_relative: true, ..boxes() };
        assert_eq!(relative.cut(&[0.1, 0.25, 0.3, 0.625], 4), xyxy);
        let clip = CropBoxes { outside: Outside::Clip, ..boxes() };
        assert_eq!(clip.cut(&[-5.0, -5.0, 99.0, 99.0], 4), [rect(0, 0, 10, 8)]);
        assert_eq!(boxes().cut(&[-5.0, -5.0, 99.0, 99.0], 4), [rect(-5, -5, 104, 104)]);
        assert_eq!(boxes().cut(&[7.4, -2.5, 12.0, 3.0], 4), [rect(7, -3, 5, 6)]);
        let wide = CropBoxes { margin: 0.5, ..boxes() };
        assert_eq!(wide.cut(&[2.0, 2.0, 4.0, 4.0], 4), [rect(1, 1, 4, 4)]);
    }

    #[test]
    fn boxes_that_nothing_is_cut_out_for_are_counted_by_their_reason() {
        let cuts =
            |outside, values: &[f32]| CropBoxes { outside, ..boxes() }.rects(values, 4, [10, 8]).unwrap();
        let outside = [11.0, 0.0, 12.0, 4.0, -4.0, 1.0, -1.0, 4.0, 1.0, 8.0, 2.0, 9.0, 1.0, -3.0, 2.0, 0.0];
        let without_area = [3.0, 3.0, 3.0, 5.0, 3.0, 3.0, 5.0, 3.0, 5.0, 5.0, 2.0, 7.0, 1.0, 7.0, 2.0, 2.0];
        for how in [Outside::Pad, Outside::Clip] {
            let expected = Cuts { n_outside: 4, ..Cuts::default() };
            assert_eq!(cuts(how, &outside), expected);
            assert_eq!(cuts(how, &without_area), Cuts { n_without_area: 4, ..Cuts::default() });
        }
        // Whatever is cut out has a pixel of the picture.
        for values in [[-9.0, 1.0, 0.2, 3.0], [9.9, 1.0, 30.0, 3.0], [1.0, -1e30, 3.0, 1e30]] {
            for how in [Outside::Pad, Outside::Clip] {
                let Cuts { areas, .. } = cuts(how, &values);
                let [(0, Area::Upright(rect))] = areas[..] else { panic!("{values:?}: {areas:?}") };
                assert!(rect.left < 10 && rect.left + i64::from(rect.width) > 0, "{rect:?}");
                assert!(rect.top < 8 && rect.top + i64::from(rect.height) > 0, "{rect:?}");
            }
        }
    }

    /// By a share of each side, along the sides of the rectangle however it is turned, from its middle.
    #[test]
    fn a_margin_makes_turned_rectangles_larger_on_all_sides() {
        let wide = CropBoxes { margin: 0.25, ..boxes() };
        // Upright, and turned by 45 degrees: 8.4 x 4.4 each.
        let root = 2f32.sqrt();
        for (at, along, across) in [
            ([40.0, 30.0], [8.4, 0.0], [0.0, 4.4]),
            ([60.0, 50.0], [4.2 * root, 4.2 * root], [-2.2 * root, 2.2 * root]),
        ] {
            let corner = |a: f32, b: f32| [0, 1].map(|axis| at[axis] + a * along[axis] + b * across[axis]);
            let polygon = [corner(0.0, 0.0), corner(1.0, 0.0), corner(1.0, 1.0), corner(0.0, 1.0)];
            let values: Vec<f32> = [0.0; 5].into_iter().chain(polygon.into_iter().flatten()).collect();
            let [(0, Area::Turned(found))] = wide.quadrilaterals(&values, [100, 100]).areas[..] else {
                panic!()
            };
            let expected =
                [corner(-0.25, -0.25), corner(1.25, -0.25), corner(1.25, 1.25), corner(-0.25, 1.25)];
            let expected = Quadrilateral::new(expected.map(|p| p.map(f64::from)), true).unwrap();
            let is_near = |a: f64, b: f64| (a - b).abs() < 1e-4;
            let (a, b) = (found.to_picture(), expected.to_picture());
            assert!(a.iter().zip(b).all(|(a, b)| is_near(*a, b)), "{found:?} {expected:?}");
            assert_eq!(found.size(), expected.size());
        }
    }

    #[test]
    fn low_scores_are_left_out_and_what_is_no_number_fails_by_its_number() {
        let boxes = CropBoxes { threshold: Some(0.5), order: BoxOrder::Score, ..boxes() };
        let values = [
            [0.0, 0.0, 1.0, 1.0, 0.6],
            [0.0, 0.0, 2.0, 2.0, 0.4],
            [0.0, 0.0, 3.0, 3.0, 0.9],
            [f32::NAN, 0.0, 1.0, 1.0, 0.1],
        ];
        let found = boxes.cut(values.as_flattened(), 5);
        assert_eq!(found, [rect(0, 0, 3, 3), rect(0, 0, 1, 1)]);
        let error = boxes.rects(&[f32::NAN, 0.0, 1.0, 1.0, 0.9], 5, [10, 8]).unwrap_err();
        assert!(error.error.contains("box 0"), "{error:?}");
    }
}
