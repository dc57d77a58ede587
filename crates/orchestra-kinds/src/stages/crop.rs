//! `kind = "crop"`: cuts boxes out of a picture, each a tensor row and a part of the item of its own.

use std::cell::RefCell;
use std::sync::Arc;

use orchestra_core::data::{
    Column, ColumnType, OwnedRow, OwnedValue, Pixels, Refusal, Schema, TensorView, Value, WriteTensor,
};
use orchestra_core::shapes::{Emit, Fan, Map, MapRun};
use orchestra_core::{DType, Dim, ImageSpec, Placement, TensorSpec};
use orchestra_media::{MediaError, Preparer, Quadrilateral, Region};
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Runs, Span, StageConnected, StageContext, StageKind, key, list,
};

use super::image_settings as settings;
use crate::box_order::{Order, Place};
use crate::tensor::{Element, element, read_floats};

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

const OWN_KEYS: [Key; 7] = [
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
        "`\"relative\"`: from 0 to 1 of the sides of the picture; `\"pixels\"`: of the picture as it was decoded, upright; lists are in pixels",
    ),
    key(
        "threshold",
        "number",
        "none",
        "boxes with a lower score, the fifth number of a box or `score` of a list, are left out",
    ),
    key(
        "order",
        "text",
        "\"given\"",
        "the order of the parts: `\"given\"`, `\"score\"` (best first), `\"left-to-right\"` or `\"top-to-bottom\"` by the middle of \
         the box, or `\"reading\"`: by lines, each from left to right",
    ),
    key(
        "margin",
        "number",
        "0",
        "how much larger the cut is on each side, as a share of the side of the box",
    ),
    key(
        "rotate",
        "true or false",
        "false",
        "only with a list that has `polygon`: cut the turned rectangle out and set it upright; what is 1.5 times as high as wide is turned to the left",
    ),
    key(
        "turn",
        "text",
        "none",
        "only with `rotate`: a column of the list, true or false or one number; what it is true or not 0 for is turned by 180 degrees",
    ),
];

/// Those of rows of pictures but `fast`, which would have no effect on a picture that is decoded in full; and our own.
const KEYS: [Key; 19] = {
    let mut keys = [OWN_KEYS[0]; 19];
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
         own, `pixels`; parts of many items share batches. Boxes are a tensor `[boxes, 4]`, or `[boxes, 5]` with a score; or a list that has `box`, as `detect` \
         gives it: then each part has the other columns of its row, too, such as `label` and `score`."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, limits: &Limits) -> Option<Draft> {
        let spec = settings::read(f, limits.max_pixels);
        let corners = [("xyxy", Corners::Xyxy), ("xywh", Corners::Xywh), ("cxcywh", Corners::Cxcywh)];
        let boxes = Boxes {
            corners: f.choice("corners", &corners).map_or(Corners::Xyxy, |c| c.value),
            is_relative: f.choice("units", &[("relative", true), ("pixels", false)]).is_none_or(|u| u.value),
            threshold: number(f, "threshold"),
            order: f.choice("order", &Order::ALL).map_or(Order::Given, |o| o.value),
            margin: number(f, "margin").unwrap_or(0.0),
        };
        if boxes.margin < 0.0
            && let Some(entry) = f.entry("margin")
        {
            f.bad("margin", entry.node.span, "must not be below 0");
        }
        let rotate = f.entry("rotate").map(|entry| entry.node.span);
        let rotate = f.boolean("rotate").and_then(|is| is.then_some(rotate).flatten());
        let turn = f.string("turn");
        if let Some(turn) = turn.as_ref().filter(|_| rotate.is_none()) {
            f.bad("turn", turn.span, "has no effect").help("it belongs to `rotate = true`");
        }
        let of_tensors = ["corners", "units"].map(|key| Some((key, f.entry(key)?.key_span)));
        let of_tensors = of_tensors.into_iter().flatten().collect();
        Some(Draft::Stage(Box::new(CropDraft { spec: spec?, boxes, rotate, turn, of_tensors })))
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
    /// Where `rotate = true` stands.
    rotate: Option<Span>,
    turn: Option<At<String>>,
    /// Keys that have no effect on lists, and where they stand.
    of_tensors: Vec<(&'static str, Span)>,
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
        let is_boxes = |ty: &ColumnType| ty.tensor().is_some() || list_of(ty).is_some();
        let boxes =
            stage.column(1, "boxes second, which a detect or infer stage gives", |c| is_boxes(&c.ty))?;
        if let Some(rows) = list_of(&stage.inputs[1].gives.0[boxes].ty).cloned() {
            return self.connect_list(picture, boxes, &rows, stage);
        }
        if let Some(span) = self.rotate {
            let message = format!("`rotate` of stage `{}` has no effect", stage.name);
            stage
                .diags
                .error(span, message)
                .help("it takes a list with `polygon`, which a detect stage of layout `dbnet` or `yolov8_obb` gives");
            return None;
        }
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
            list: None,
        };
        let order = self.boxes.order.name();
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

/// The columns of a list of boxes.
fn list_of(ty: &ColumnType) -> Option<&Schema> {
    match ty {
        ColumnType::List(rows) => Some(rows).filter(|rows| floats(rows, "box", &[4]).is_some()),
        _ => None,
    }
}

/// The place of a column of so many floats.
fn floats(rows: &Schema, name: &str, shape: &[usize]) -> Option<usize> {
    let at = rows.position(name)?;
    let tensor = rows.0[at].ty.tensor()?;
    (tensor.dtype == DType::F32 && tensor.fixed_row().as_deref() == Some(shape)).then_some(at)
}

impl CropDraft {
    /// As `connect`, for a list of boxes with these columns.
    fn connect_list(
        &self,
        picture: usize,
        boxes: usize,
        rows: &Schema,
        stage: &mut StageContext<'_>,
    ) -> Option<StageConnected> {
        let (name, input) = (stage.name, &stage.inputs[1]);
        if let Some((key, span)) = self.of_tensors.first() {
            let message = format!("`{key}` of stage `{name}` has no effect on a list of boxes");
            let help = "leave it out: `box` of a list is left, top, right, bottom in pixels";
            stage.diags.error(*span, message).help(help);
            return None;
        }
        let lacks = |what: &str, stage: &mut StageContext<'_>| {
            let message = format!("stage `{name}` needs `{what}` of each box of stage `{}`", input.name);
            stage.diags.error(input.span, message).label(format!("it gives {}", input.gives));
        };
        let score = floats(rows, "score", &[]);
        if score.is_none() && (self.boxes.threshold.is_some() || self.boxes.order == Order::Score) {
            lacks("score", stage);
            return None;
        }
        let polygon = floats(rows, "polygon", &[4, 2]);
        if polygon.is_none() && self.rotate.is_some() {
            lacks("polygon", stage);
            return None;
        }
        let mut gives = settings::column(&self.spec);
        let n_own = gives.0.len();
        // What cannot be shown beside the cut.
        let is_taken = |column: &Column| gives.0.iter().any(|own| own.name == column.name);
        let passed: Vec<usize> = (0..rows.0.len()).filter(|at| !is_taken(&rows.0[*at])).collect();
        let columns: Vec<Column> = passed.iter().map(|at| rows.0[*at].clone()).collect();
        gives.0.splice(n_own - 1..n_own - 1, columns);
        let turn = match &self.turn {
            None => None,
            Some(written) => Some(turn_column(rows, written, name, stage)?),
        };
        let list = ListColumns {
            corners: floats(rows, "box", &[4])?,
            score,
            polygon: polygon.filter(|_| self.rotate.is_some()),
            turn,
            passed,
        };
        let spec = &self.spec;
        let mut details = settings::details(spec);
        details.push("one part per box".to_owned());
        details.extend(self.rotate.map(|_| "set upright".to_owned()));
        Some(StageConnected {
            gives,
            reads: vec![(0, picture), (1, boxes)],
            settings: serde_json::json!({
                "spec": spec, "threshold": self.boxes.threshold, "order": self.boxes.order.name(),
                "margin": self.boxes.margin, "boxes": boxes, "rotate": self.rotate.is_some(), "turn": turn,
            }),
            runs: Runs::Map(Arc::new(CropMap {
                spec: spec.clone(),
                tensor: spec.tensor(),
                boxes: Boxes { corners: Corners::Xyxy, is_relative: false, ..self.boxes.clone() },
                many: None,
                list: Some(list),
            })),
            details,
            about: match self.rotate {
                Some(_) => format!("a part per box, set upright, {}", settings::about(spec)),
                None => format!("a part per box, {}", settings::about(spec)),
            },
        })
    }
}

/// The column of a list that `turn` names.
fn turn_column(
    rows: &Schema,
    written: &At<String>,
    name: &str,
    stage: &mut StageContext<'_>,
) -> Option<usize> {
    let is_one = |at: &usize| rows.0[*at].ty.tensor().is_some_and(|tensor| tensor.row_len() == Some(1));
    let column = rows.position(&written.value).filter(is_one);
    if column.is_none() {
        let fitting = (0..rows.0.len()).filter(is_one).map(|at| rows.0[at].name.as_str());
        let message = format!("stage `{name}` cannot turn boxes by `{}`", written.value);
        let help = match list(fitting) {
            none if none.is_empty() => "a select stage in front of `gather` makes such a column".to_owned(),
            columns => format!("columns of one number: {columns}"),
        };
        stage
            .diags
            .error(written.span, message)
            .label("no column of the list that is true, false or one number")
            .help(help);
    }
    column
}

/// The columns of a list of boxes.
#[derive(Debug, Clone)]
struct ListColumns {
    corners: usize,
    score: Option<usize>,
    /// Where turned rectangles are cut out.
    polygon: Option<usize>,
    /// Says what is turned by 180 degrees.
    turn: Option<usize>,
    /// Those that parts have, too.
    passed: Vec<usize>,
}

#[derive(Debug)]
struct CropMap {
    spec: ImageSpec,
    tensor: TensorSpec,
    boxes: Boxes,
    /// How many boxes an item has at most, where that is known.
    many: Option<usize>,
    /// Boxes are a list and no tensor.
    list: Option<ListColumns>,
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
            list: self.list.clone(),
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
    list: Option<ListColumns>,
    values: Vec<f32>,
    preparer: RefCell<Preparer>,
}

impl MapRun for CropRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [Value::Picture(picture), boxes] = inputs else {
            return Err(Refusal::result("internal error: a crop stage was given no picture; this is a bug"));
        };
        let rows: &[OwnedRow] = match (boxes, &self.list) {
            (Value::List(rows), Some(_)) => rows,
            _ => &[],
        };
        let mut numbers = 0;
        if let Some(list) = &self.list {
            numbers = NUMBERS;
            self.values.clear();
            for row in rows {
                list.read(row, &mut self.values)?;
            }
        } else {
            boxes.with_tensor(|view: &TensorView<'_>| {
                numbers = view.shape.last().copied().unwrap_or(0);
                read_floats(view, &mut self.values);
                Ok(())
            })?;
        }
        picture.with_pixels(&mut |pixels| {
            let picture = [pixels.width, pixels.height];
            let turns = self.list.as_ref().is_some_and(|list| list.polygon.is_some());
            let cuts = match turns {
                true => self.boxes.quadrilaterals(&self.values, picture),
                false => self.boxes.regions(&self.values, numbers, pixels.width, pixels.height)?,
            };
            emit.parts(cuts.len())?;
            for (n, mut area) in cuts {
                if let Area::Turned(quad) = &mut area {
                    quad.is_upside_down = self.list.as_ref().is_some_and(|list| list.turns(&rows[n]));
                }
                let cut = Cut { run: &*self, pixels, area };
                let placed = area.placement(&self.spec, picture).bytes();
                let passed = self.list.as_ref().map_or(&[][..], |list| &list.passed);
                let values: Vec<&OwnedValue> =
                    passed.iter().filter_map(|column| rows.get(n)?.get(*column)).collect();
                let labels: Vec<_> = values.iter().map(|value| value.labels()).collect();
                let mut row = Vec::with_capacity(2 + values.len());
                row.push(Value::Unwritten(&cut));
                row.extend(values.iter().zip(&labels).map(|(value, labels)| value.borrowed(labels)));
                row.push(Placement::value(&placed));
                emit.row(&row)?;
            }
            Ok(())
        })
    }
}

/// Numbers that are kept of each row of a list: box, score, and the corners of the polygon.
const NUMBERS: usize = 13;

impl ListColumns {
    /// Appends the numbers of a row; those that it lacks are 0.
    fn read(&self, row: &OwnedRow, values: &mut Vec<f32>) -> Result<(), Refusal> {
        let columns = [(Some(self.corners), 4), (self.score, 1), (self.polygon, 8)];
        for (column, n) in columns {
            let before = values.len();
            if let Some(column) = column {
                let data = match row.get(column) {
                    Some(OwnedValue::Tensor { dtype: DType::F32, data, .. }) if data.len() == n * 4 => data,
                    _ => return Err(Refusal::result("internal error: a box is none; this is a bug")),
                };
                values.extend(data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
            }
            values.resize(before + n, 0.0);
        }
        Ok(())
    }
}

impl ListColumns {
    /// Whether what a row stands for is upside down.
    fn turns(&self, row: &OwnedRow) -> bool {
        match self.turn.and_then(|column| row.get(column)) {
            Some(OwnedValue::Tensor { dtype, data, .. }) => {
                data.get(..dtype.size_bytes()).is_some_and(|bytes| match element(*dtype, bytes) {
                    Element::Float(v) => v != 0.0 && !v.is_nan(),
                    Element::Int(v) => v != 0,
                    Element::Bool(v) => v,
                })
            }
            _ => false,
        }
    }
}

/// What is cut out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Area {
    Upright(Region),
    Turned(Quadrilateral),
}

impl Area {
    /// Where the row that is made of it lies in the picture.
    fn placement(&self, spec: &ImageSpec, picture: [u32; 2]) -> Placement {
        let (size, [a, b, c, d, e, f]) = match self {
            Area::Upright(region) => {
                let at = [1.0, 0.0, f64::from(region.left), 0.0, 1.0, f64::from(region.top)];
                ([region.width, region.height], at)
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

struct Cut<'a> {
    run: &'a CropRun,
    pixels: Pixels<'a>,
    area: Area,
}

impl WriteTensor for Cut<'_> {
    fn spec(&self) -> &TensorSpec {
        &self.run.tensor
    }

    fn write(&self, row: &mut [u8]) -> Result<(), Refusal> {
        let refusal = |error: MediaError| Refusal { kind: error.kind(), error: error.to_string() };
        let mut preparer = self.run.preparer.borrow_mut();
        match self.area {
            Area::Upright(region) => preparer.load(&self.pixels, region),
            Area::Turned(quad) => preparer.load_quadrilateral(&self.pixels, &quad),
        }
        .map_err(refusal)?;
        preparer.write_row(&self.run.spec, row).map_err(refusal)
    }
}

impl Boxes {
    /// The turned rectangles to cut, in order, of the numbers of rows of a list, and the row of each. One without a pixel is left out.
    fn quadrilaterals(&self, values: &[f32], picture: [u32; 2]) -> Vec<(usize, Area)> {
        let mut found: Vec<(Place, (usize, Area))> = Vec::new();
        for (n, numbers) in values.as_chunks::<NUMBERS>().0.iter().enumerate() {
            let score = numbers[4];
            if self.threshold.is_some_and(|threshold| score.is_nan() || score < threshold) {
                continue;
            }
            let corners = [5, 7, 9, 11].map(|at| [f64::from(numbers[at]), f64::from(numbers[at + 1])]);
            let centre = [0, 1].map(|axis| corners.iter().map(|p| p[axis]).sum::<f64>() / 4.0);
            let grow = 1.0 + 2.0 * f64::from(self.margin);
            let corners = corners.map(|p| [0, 1].map(|axis| centre[axis] + (p[axis] - centre[axis]) * grow));
            let Some(quad) = Quadrilateral::new(corners, true) else { continue };
            let quad = quad.no_larger_than(picture);
            let [x, y] = centre;
            let height = f64::from(quad.width.min(quad.height));
            found.push((Place { score, x, y, height }, (n, Area::Turned(quad))));
        }
        self.order.sort(found)
    }

    /// The rectangles to cut, in order, and the number of the box of each. Every box is rounded to whole pixels, at least one, and cut at the edges of the picture; one that lies
    /// outside is left out.
    fn regions(
        &self,
        values: &[f32],
        numbers: usize,
        width: u32,
        height: u32,
    ) -> Result<Vec<(usize, Area)>, Refusal> {
        let scale = |side: u32| if self.is_relative { f64::from(side) } else { 1.0 };
        let (wide, high) = (scale(width), scale(height));
        let mut found: Vec<(Place, (usize, Area))> = Vec::new();
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
            let region = Region { left: left_px, top: top_px, width: width_px, height: height_px };
            let [x, y] = [(left + right) / 2.0, (top + bottom) / 2.0];
            let height = (bottom - top).abs() * high;
            found.push((Place { score, x: x * wide, y: y * high, height }, (n, Area::Upright(region))));
        }
        Ok(self.order.sort(found))
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

    impl Boxes {
        fn cut(&self, values: &[f32], numbers: usize) -> Vec<Region> {
            let upright = |(_, area): (usize, Area)| match area {
                Area::Upright(region) => region,
                Area::Turned(quad) => panic!("{quad:?}"),
            };
            self.regions(values, numbers, 10, 8).unwrap().into_iter().map(upright).collect()
        }
    }

    #[test]
    fn boxes_are_whole_pixels_within_the_picture_whatever_the_numbers_mean() {
        let xyxy = boxes().cut(&[1.2, 2.0, 3.0, 4.5], 4);
        assert_eq!(xyxy, [region(1, 2, 2, 3)]);
        let xywh = Boxes { corners: Corners::Xywh, ..boxes() }.cut(&[1.0, 2.0, 2.0, 3.0], 4);
        assert_eq!(xywh, xyxy);
        let centre = Boxes { corners: Corners::Cxcywh, ..boxes() };
        assert_eq!(centre.cut(&[2.0, 3.5, 2.0, 3.0], 4), xyxy);
        let relative = Boxes { is_relative: true, ..boxes() };
        assert_eq!(relative.cut(&[0.1, 0.25, 0.3, 0.625], 4), xyxy);
        assert_eq!(boxes().cut(&[-5.0, -5.0, 99.0, 99.0], 4), [region(0, 0, 10, 8)]);
        let outside = [11.0, 0.0, 12.0, 4.0, 3.0, 3.0, 3.0, 3.0, 5.0, 5.0, 2.0, 2.0];
        assert!(boxes().cut(&outside, 4).is_empty());
        let wide = Boxes { margin: 0.5, ..boxes() };
        assert_eq!(wide.cut(&[2.0, 2.0, 4.0, 4.0], 4), [region(1, 1, 4, 4)]);
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
        let found = boxes.cut(&values, 5);
        assert_eq!(found, [region(0, 0, 3, 3), region(0, 0, 1, 1)]);
        let error = boxes.regions(&[f32::NAN, 0.0, 1.0, 1.0, 0.9], 5, 10, 8).unwrap_err();
        assert!(error.error.contains("box 0"), "{error:?}");
    }
}
