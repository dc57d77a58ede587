//! `kind = "crop"`: cuts boxes out of a picture, each a tensor row and a part of the item of its own.

use std::cell::RefCell;
use std::sync::Arc;

use orchestra_core::data::{ColumnType, Pixels, Refusal, TensorView, Value, WriteTensor};
use orchestra_core::shapes::{Emit, Fan, Map, MapRun};
use orchestra_core::{DType, Dim, ImageSpec, TensorSpec};
use orchestra_media::{MediaError, Preparer, Region};
use orchestra_plan::{
    Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind, key,
};

use super::image_settings as settings;
use crate::tensor::read_floats;

/// The kind `crop`.
pub struct Crop;

/// The corners that the numbers of a box mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Corners {
    /// Left, top, right, bottom.
    Xyxy,
    /// Left, top, width, height.
    Xywh,
    /// Centre, width, height.
    Cxcywh,
}

/// The order of the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Given,
    Score,
    LeftToRight,
    TopToBottom,
}

const OWN_KEYS: [Key; 5] = [
    key(
        "corners",
        "text",
        "\"xyxy\"",
        "what the first four numbers of a box are: `\"xyxy\"` (left, top, right, bottom), `\"xywh\"` (left, top, width, height) or `\"cxcywh\"` \
         (centre, width, height)",
    ),
    key(
        "units",
        "text",
        "\"relative\"",
        "`\"relative\"`: from 0 to 1 of the sides of the picture; `\"pixels\"`: of the picture as it was decoded, upright",
    ),
    key("threshold", "number", "none", "boxes with a lower score, the fifth number of a box, are left out"),
    key(
        "order",
        "text",
        "\"given\"",
        "the order of the parts: `\"given\"`, `\"score\"` (best first), `\"left-to-right\"` or `\"top-to-bottom\"` by the middle of the box",
    ),
    key(
        "margin",
        "number",
        "0",
        "how much larger the cut is on each side, as a share of the side of the box",
    ),
];

/// Those of rows of pictures but `fast`, which would have no effect on a picture that is decoded in full; and our own.
const KEYS: [Key; 17] = {
    let mut keys = [OWN_KEYS[0]; 17];
    let mut at = 0;
    let mut from = 0;
    while from < settings::KEYS.len() {
        if from != settings::FAST {
            keys[at] = settings::KEYS[from];
            at += 1;
        }
        from += 1;
    }
    let mut own = 0;
    while own < OWN_KEYS.len() {
        keys[at + own] = OWN_KEYS[own];
        own += 1;
    }
    keys
};

impl StageKind for Crop {
    fn name(&self) -> &'static str {
        "crop"
    }

    fn about(&self) -> &'static str {
        "Cuts boxes out of the picture of an item: `from = [\"pictures\", \"boxes\"]`. Each box becomes a part of the item with a tensor row of its \
         own, `pixels`; parts of many items share batches. Boxes are a tensor `[boxes, 4]`, or `[boxes, 5]` with a score."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, limits: &Limits) -> Option<Draft> {
        let spec = settings::read(f, limits.max_pixels);
        let corners = [("xyxy", Corners::Xyxy), ("xywh", Corners::Xywh), ("cxcywh", Corners::Cxcywh)];
        let orders = [
            ("given", Order::Given),
            ("score", Order::Score),
            ("left-to-right", Order::LeftToRight),
            ("top-to-bottom", Order::TopToBottom),
        ];
        let boxes = Boxes {
            corners: f.choice("corners", &corners).map_or(Corners::Xyxy, |c| c.value),
            is_relative: f.choice("units", &[("relative", true), ("pixels", false)]).is_none_or(|u| u.value),
            threshold: number(f, "threshold"),
            order: f.choice("order", &orders).map_or(Order::Given, |o| o.value),
            margin: number(f, "margin").unwrap_or(0.0),
        };
        if boxes.margin < 0.0
            && let Some(entry) = f.entry("margin")
        {
            f.bad("margin", entry.node.span, "must not be below 0");
        }
        Some(Draft::Stage(Box::new(CropDraft { spec: spec?, boxes })))
    }
}

/// One number of a key.
pub(super) fn number(f: &mut Fields<'_, '_>, key: &str) -> Option<f32> {
    let numbers = f.numbers(key)?;
    match numbers.value[..] {
        [one] => Some(one as f32),
        _ => {
            f.bad(key, numbers.span, "must be one number");
            None
        }
    }
}

#[derive(Debug)]
struct CropDraft {
    spec: ImageSpec,
    boxes: Boxes,
}

#[derive(Debug, Clone)]
struct Boxes {
    corners: Corners,
    is_relative: bool,
    threshold: Option<f32>,
    order: Order,
    margin: f32,
}

impl Connect for CropDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let picture =
            stage.column(0, "pictures first, which a source gives", |c| c.ty == ColumnType::Picture)?;
        let boxes =
            stage.column(1, "boxes second, which an infer stage gives", |c| c.ty.tensor().is_some())?;
        let input = &stage.inputs[1];
        let tensor = input.gives.0[boxes].ty.tensor()?;
        let numbers = tensor.row.last().and_then(|dim| dim.fixed());
        let floats = matches!(tensor.dtype, DType::F32 | DType::F16);
        let needed = if self.boxes.threshold.is_some() || self.boxes.order == Order::Score { 5 } else { 4 };
        if !floats || tensor.row.len() > 2 || numbers.is_none_or(|n| n < needed) {
            let name = stage.name;
            let message =
                format!("stage `{name}` cannot cut out `{}` of stage `{}`", tensor.name, input.name);
            let score = if needed == 5 { ", the fifth being the score" } else { "" };
            stage
                .diags
                .error(input.span, message)
                .label(format!("it is {tensor}"))
                .help(format!("boxes are f32[batch, boxes, {needed}] or more numbers each{score}"));
            return None;
        }
        let spec = &self.spec;
        let map = CropMap {
            spec: spec.clone(),
            tensor: spec.tensor(),
            boxes: self.boxes.clone(),
            many: tensor.row.first().and_then(|d| Dim::fixed(*d)).filter(|_| tensor.row.len() == 2),
        };
        let order = match self.boxes.order {
            Order::Given => "given",
            Order::Score => "score",
            Order::LeftToRight => "left-to-right",
            Order::TopToBottom => "top-to-bottom",
        };
        let mut details = settings::details(spec);
        details.push("one part per box".to_owned());
        Some(StageConnected {
            gives: settings::column(spec),
            reads: vec![(0, picture), (1, boxes)],
            runs: Runs::Map(Arc::new(map)),
            settings: serde_json::json!({
                "spec": spec, "corners": format!("{:?}", self.boxes.corners).to_lowercase(),
                "relative": self.boxes.is_relative, "threshold": self.boxes.threshold, "order": order,
                "margin": self.boxes.margin, "boxes": boxes,
            }),
            details,
            about: format!("a part per box, {}", settings::about(spec)),
        })
    }

    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        Some(settings::advice(name, &self.spec.for_model(), want))
    }
}

#[derive(Debug)]
struct CropMap {
    spec: ImageSpec,
    tensor: TensorSpec,
    boxes: Boxes,
    /// How many boxes an item has at most, where that is known.
    many: Option<usize>,
}

impl Map for CropMap {
    fn fan(&self) -> Fan {
        Fan::Parts
    }

    fn start(&self) -> Box<dyn MapRun> {
        Box::new(CropRun {
            spec: self.spec.clone(),
            tensor: self.tensor.clone(),
            boxes: self.boxes.clone(),
            values: Vec::new(),
            preparer: RefCell::new(Preparer::new()),
        })
    }

    fn cost(&self) -> usize {
        let pixels = self.tensor.row_len().unwrap_or(usize::MAX);
        self.many.map_or(usize::MAX, |n| n.saturating_mul(pixels))
    }
}

struct CropRun {
    spec: ImageSpec,
    tensor: TensorSpec,
    boxes: Boxes,
    values: Vec<f32>,
    preparer: RefCell<Preparer>,
}

impl MapRun for CropRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [Value::Picture(picture), boxes] = inputs else {
            return Err(Refusal::result("internal error: a crop stage was given no picture; this is a bug"));
        };
        let mut numbers = 0;
        boxes.with_tensor(|view: &TensorView<'_>| {
            numbers = view.shape.last().copied().unwrap_or(0);
            read_floats(view, &mut self.values);
            Ok(())
        })?;
        picture.with_pixels(&mut |pixels| {
            let regions = self.boxes.regions(&self.values, numbers, pixels.width, pixels.height)?;
            emit.parts(regions.len())?;
            for region in regions {
                let cut = Cut { run: &*self, pixels, region };
                emit.row(&[Value::Unwritten(&cut)])?;
            }
            Ok(())
        })
    }
}

struct Cut<'a> {
    run: &'a CropRun,
    pixels: Pixels<'a>,
    region: Region,
}

impl WriteTensor for Cut<'_> {
    fn spec(&self) -> &TensorSpec {
        &self.run.tensor
    }

    fn write(&self, row: &mut [u8]) -> Result<(), Refusal> {
        let refusal = |error: MediaError| Refusal { kind: error.kind(), error: error.to_string() };
        let mut preparer = self.run.preparer.borrow_mut();
        preparer.load(&self.pixels, self.region).map_err(refusal)?;
        preparer.write_row(&self.run.spec, row).map_err(refusal)
    }
}

impl Boxes {
    /// The rectangles to cut, in order. Every box is rounded to whole pixels, at least one, and cut at the edges of the picture; one that lies
    /// outside is left out.
    fn regions(
        &self,
        values: &[f32],
        numbers: usize,
        width: u32,
        height: u32,
    ) -> Result<Vec<Region>, Refusal> {
        let scale = |side: u32| if self.is_relative { f64::from(side) } else { 1.0 };
        let (wide, high) = (scale(width), scale(height));
        let mut found: Vec<(f64, Region)> = Vec::new();
        for (n, numbers) in values.chunks_exact(numbers.max(4)).enumerate() {
            let score = numbers.get(4).copied().unwrap_or(0.0);
            // A score that is no number is below any threshold.
            if self.threshold.is_some_and(|threshold| score.is_nan() || score < threshold) {
                continue;
            }
            let [a, b, c, d] = [0, 1, 2, 3].map(|at| f64::from(numbers[at]));
            if ![a, b, c, d].iter().all(|v| v.is_finite()) {
                return Err(Refusal::result(format!(
                    "box {n} is ({a}, {b}, {c}, {d}), which is no place in a picture"
                )));
            }
            let (left, top, right, bottom) = match self.corners {
                Corners::Xyxy => (a, b, c, d),
                Corners::Xywh => (a, b, a + c, b + d),
                Corners::Cxcywh => (a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0),
            };
            let margin = f64::from(self.margin);
            let (mx, my) = ((right - left) * margin, (bottom - top) * margin);
            let across = span((left - mx) * wide, (right + mx) * wide, width);
            let down = span((top - my) * high, (bottom + my) * high, height);
            let (Some((left_px, width_px)), Some((top_px, height_px))) = (across, down) else { continue };
            let order = match self.order {
                Order::Given => 0.0,
                Order::Score => -f64::from(score),
                Order::LeftToRight => left + right,
                Order::TopToBottom => top + bottom,
            };
            let region = Region { left: left_px, top: top_px, width: width_px, height: height_px };
            found.push((order, region));
        }
        // Stable: equal ones stay in the order of the model.
        found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Ok(found.into_iter().map(|(_, region)| region).collect())
    }
}

/// The whole pixels that a span covers, within a side: where they begin, and how many. `None` where there are none.
fn span(from: f64, to: f64, side: u32) -> Option<(u32, u32)> {
    let side = f64::from(side);
    if to <= from || to <= 0.0 || from >= side {
        return None;
    }
    // A box that is narrower than a pixel is one pixel wide.
    let first = from.clamp(0.0, side - 1.0).round().min(side - 1.0);
    let end = to.clamp(0.0, side).round().max(first + 1.0);
    Some((first as u32, (end - first) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxes() -> Boxes {
        Boxes {
            corners: Corners::Xyxy,
            is_relative: false,
            threshold: None,
            order: Order::Given,
            margin: 0.0,
        }
    }

    fn region(left: u32, top: u32, width: u32, height: u32) -> Region {
        Region { left, top, width, height }
    }

    #[test]
    fn boxes_are_whole_pixels_within_the_picture_whatever_the_numbers_mean() {
        let xyxy = boxes().regions(&[1.2, 2.0, 3.0, 4.5], 4, 10, 8).unwrap();
        assert_eq!(xyxy, [region(1, 2, 2, 3)]);
        let xywh =
            Boxes { corners: Corners::Xywh, ..boxes() }.regions(&[1.0, 2.0, 2.0, 3.0], 4, 10, 8).unwrap();
        assert_eq!(xywh, xyxy);
        let centre = Boxes { corners: Corners::Cxcywh, ..boxes() };
        assert_eq!(centre.regions(&[2.0, 3.5, 2.0, 3.0], 4, 10, 8).unwrap(), xyxy);
        let relative = Boxes { is_relative: true, ..boxes() };
        assert_eq!(relative.regions(&[0.1, 0.25, 0.3, 0.625], 4, 10, 8).unwrap(), xyxy);
        assert_eq!(boxes().regions(&[-5.0, -5.0, 99.0, 99.0], 4, 10, 8).unwrap(), [region(0, 0, 10, 8)]);
        let outside = [11.0, 0.0, 12.0, 4.0, 3.0, 3.0, 3.0, 3.0, 5.0, 5.0, 2.0, 2.0];
        assert!(boxes().regions(&outside, 4, 10, 8).unwrap().is_empty());
        let wide = Boxes { margin: 0.5, ..boxes() };
        assert_eq!(wide.regions(&[2.0, 2.0, 4.0, 4.0], 4, 10, 8).unwrap(), [region(1, 1, 4, 4)]);
    }

    #[test]
    fn low_scores_are_left_out_and_what_is_no_number_fails_by_its_number() {
        let boxes = Boxes { threshold: Some(0.5), order: Order::Score, ..boxes() };
        let values = [
            0.0,
            0.0,
            1.0,
            1.0,
            0.6,
            0.0,
            0.0,
            2.0,
            2.0,
            0.4,
            0.0,
            0.0,
            3.0,
            3.0,
            0.9,
            f32::NAN,
            0.0,
            1.0,
            1.0,
            0.1,
        ];
        let found = boxes.regions(&values, 5, 10, 8).unwrap();
        assert_eq!(found, [region(0, 0, 3, 3), region(0, 0, 1, 1)]);
        let error = boxes.regions(&[f32::NAN, 0.0, 1.0, 1.0, 0.9], 5, 10, 8).unwrap_err();
        assert!(error.error.contains("box 0"), "{error:?}");
    }
}
