//! `kind = "crop"`: cuts boxes out of a picture, each a tensor row and a part of the item of its own.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{DType, Dim, ImageSpec, TensorSpec};
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Runs, Span, StageConnected, StageContext, StageKind, Words, key,
    list,
};

use self::run::CropMap;
use super::shared::box_order::Order;
use super::shared::image_settings as settings;

mod run;

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

/// `corners`
const CORNERS: Words<Corners, 3> = Words::new([
    ("xyxy", Corners::Xyxy, "left, top, right, bottom"),
    ("xywh", Corners::Xywh, "left, top, width, height"),
    ("cxcywh", Corners::Cxcywh, "centre, width, height"),
]);

/// `units`: whether they are relative.
const UNITS: Words<bool, 2> = Words::new([
    ("relative", true, "from 0 to 1 of the sides of the picture"),
    ("pixels", false, "of the picture as it was decoded, upright"),
]);

/// What becomes of a box that sticks out of its picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    Pad,
    Clip,
}

/// `outside`
const OUTSIDE: Words<Outside, 2> = Words::new([
    (
        "pad",
        Outside::Pad,
        "the whole box is cut out, with `pad` for what the picture lacks, as models expect and `crop` of Pillow does",
    ),
    (
        "clip",
        Outside::Clip,
        "the box ends at the edge of the picture; what is left of it is brought to `size`",
    ),
]);

const OWN_KEYS: [Key; 8] = [
    key("corners", "text", "\"xyxy\"", "what the first four numbers of a box are").one_of(&CORNERS.words),
    key("units", "text", "\"relative\"", "what these numbers are; lists are in pixels").one_of(&UNITS.words),
    key(
        "threshold",
        "number",
        "none",
        "boxes with a lower score, the fifth number of a box or `score` of a list, are left out",
    ),
    key("order", "text", "\"given\"", "the order of the parts").one_of(&Order::WORDS.words),
    key(
        "margin",
        "number",
        "0",
        "how much larger the cut is on each side, as a share of the side of the box",
    ),
    key(
        "outside",
        "text",
        "\"pad\"",
        "what becomes of a box that sticks out of the picture; not with `rotate`",
    )
    .one_of(&OUTSIDE.words),
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
const KEYS: [Key; 21] = {
    let mut keys = [OWN_KEYS[0]; 21];
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
         own, `pixels`; parts of many items share batches. A box that lies outside of the picture, is turned round or has no area makes no part: such boxes are \
         counted in `run.json` and said at the end of the run. Boxes are a tensor `[boxes, 4]`, or `[boxes, 5]` with a score; or a list that has `box`, as `detect` \
         gives it: then each part has the other columns of its row, too, such as `label` and `score`."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, limits: &Limits) -> Option<Draft> {
        let spec = settings::read(f, limits.max_pixels);
        let margin = f.number_or_default("margin");
        let boxes = Boxes {
            corners: f.word_or_default("corners", &CORNERS).value,
            is_relative: f.word_or_default("units", &UNITS).value,
            threshold: f.number("threshold").map(|n| n.value as f32),
            order: f.word_or_default("order", &Order::WORDS).value,
            margin: margin.value as f32,
            outside: f.word_or_default("outside", &OUTSIDE).value,
        };
        if !boxes.margin.is_finite() {
            f.bad("margin", margin.span, "is too large for f32, in which boxes are computed");
        }
        if boxes.margin < 0.0 {
            f.bad("margin", margin.span, "must not be below 0");
        }
        let rotate = f.entry("rotate").map(|entry| entry.node.span);
        let rotate = f.boolean("rotate").and_then(|is| is.then_some(rotate).flatten());
        if let Some(span) = f.entry("outside").map(|entry| entry.key_span).filter(|_| rotate.is_some()) {
            f.bad("outside", span, "has no effect")
                .help("leave it out: with `rotate = true` the pixels at the edge of the picture go on outside of it");
        }
        let turn = f.string("turn");
        if let Some(turn) = turn.as_ref().filter(|_| rotate.is_none()) {
            f.bad("turn", turn.span, "has no effect").help("it belongs to `rotate = true`");
        }
        let of_tensors = ["corners", "units"].map(|key| Some((key, f.entry(key)?.key_span)));
        let of_tensors = of_tensors.into_iter().flatten().collect();
        Some(Draft::Stage(Box::new(CropDraft { spec: spec?, boxes, rotate, turn, of_tensors })))
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
    outside: Outside,
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
                "margin": self.boxes.margin, "boxes": boxes, "outside": OUTSIDE.text(self.boxes.outside),
            }),
            details,
            about: format!("a part per box, {}", settings::about(spec)),
        })
    }

    fn trims(&self) -> Option<&ImageSpec> {
        self.spec.trim.map(|_| &self.spec)
    }

    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        Some(settings::advice(name, &self.spec.for_model(), want))
    }
}

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
                "margin": self.boxes.margin, "boxes": boxes, "outside": OUTSIDE.text(self.boxes.outside), "rotate": self.rotate.is_some(), "turn": turn,
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
