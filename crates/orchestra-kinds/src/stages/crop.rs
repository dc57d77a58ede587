//! `kind = "crop"`: cuts boxes out of a picture, each a tensor row and a part of the item of its own.

use bincode::{Decode, Encode};
use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{DType, Dim, ImageSpec, TensorSpec};
use orchestra_plan::{
    Connect, Fields, Json, Key, Reported, Runs, Settings, Spanned, StageConnected, StageContext, TypedStage,
    choices, joined, list, settings,
};

use self::run::Cutting;
use super::shared::box_order::BoxOrder;
use super::shared::detections::DetectionColumns;
use super::shared::image_settings;

mod run;

#[derive(Debug)]
pub struct Crop {
    spec: ImageSpec,
    boxes: BoxSettings,
}

settings! {
    #[derive(Debug)]
    pub struct BoxSettings {
        /// what the first four numbers of a box are
        corners: Corners = "xyxy",
        /// what these numbers are; lists are in pixels
        units: CropUnits = "relative",
        /// boxes with a lower score, the fifth number of a box or `score` of a list, are left out
        threshold: Option<f64>,
        /// the order of the parts
        order: BoxOrder = "given",
        /// how much larger the cut is on each side, as a share of the side of the box
        margin: Spanned<f64> = 0,
        /// what becomes of a box that sticks out of the picture; not with `rotate`
        outside: Outside = "pad",
        /// only with a list that has `polygon`: cut the turned rectangle out and set it upright; what is 1.5 times as high as wide is turned to the left
        rotate: Spanned<bool> = false,
        /// only with `rotate`: a column of the list, true or false or one number; what it is true or not 0 for is turned by 180 degrees
        turn: Option<Spanned<String>>,
    }
}

choices! {
    #[derive(Encode, Decode)]
    pub enum Corners {
        /// left, top, right, bottom
        Xyxy = "xyxy",
        /// left, top, width, height
        Xywh = "xywh",
        /// centre, width, height
        Cxcywh = "cxcywh",
    }
}

choices! {
    pub enum CropUnits {
        /// from 0 to 1 of the sides of the picture
        Relative = "relative",
        /// of the picture as it was decoded, upright
        Pixels = "pixels",
    }
}

choices! {
    #[derive(Encode, Decode)]
    pub enum Outside {
        /// the whole box is cut out, with `pad` for what the picture lacks, as models expect and `crop` of Pillow does
        Pad = "pad",
        /// the box ends at the edge of the picture; what is left of it is brought to `size`
        Clip = "clip",
    }
}

impl Settings for Crop {
    /// Without `fast`, which would have no effect on a picture that is decoded in full.
    const KEYS: &'static [Key] =
        &joined::<{ KEYS_OF_ROWS.len() + BoxSettings::KEYS.len() }>([KEYS_OF_ROWS, BoxSettings::KEYS]);

    fn read(f: &mut Fields<'_, '_>) -> Option<Self> {
        let (spec, boxes) = (image_settings::read(f), BoxSettings::read(f));
        Some(Self { spec: spec?, boxes: boxes? })
    }

    fn json(&self) -> Json {
        self.boxes.json()
    }
}

/// Those of [`image_settings`] but the last, `fast`.
const KEYS_OF_ROWS: &[Key] = image_settings::KEYS.split_at(image_settings::KEYS.len() - 1).0;

impl TypedStage for Crop {
    const NAME: &'static str = "crop";
    const ABOUT: &'static str = "Cuts boxes out of the picture of an item: `from = [\"pictures\", \"boxes\"]`. Each box becomes a part of the item with a tensor row of its \
         own, `pixels`; parts of many items share batches. A box that lies outside of the picture, is turned round or has no area makes no part: such boxes are \
         counted in `run.json` and said at the end of the run. Boxes are a tensor `[boxes, 4]`, or `[boxes, 5]` with a score; or a list that has `box`, as `detect` \
         gives it: then each part has the other columns of its row, too, such as `label` and `score`.";
    type Work = Cutting;

    fn check(&self, f: &mut Fields<'_, '_>) {
        let BoxSettings { margin, rotate: Spanned { value: rotates, .. }, turn, .. } = &self.boxes;
        if !(margin.value as f32).is_finite() {
            f.bad("margin", margin.span, "is too large for f32, in which boxes are computed");
        }
        if margin.value < 0.0 {
            f.bad("margin", margin.span, "must not be below 0");
        }
        if let Some(entry) = f.entry("outside").filter(|_| *rotates) {
            f.bad("outside", entry.key_span, "has no effect")
                .help("leave it out: with `rotate = true` the pixels at the edge of the picture go on outside of it");
        }
        if let Some(turn) = turn.as_ref().filter(|_| !rotates) {
            f.bad("turn", turn.span, "has no effect").help("it belongs to `rotate = true`");
        }
    }
}

/// What is done with boxes, whatever they are read from.
#[derive(Debug, Clone, Encode, Decode)]
struct CropBoxes {
    corners: Corners,
    is_relative: bool,
    threshold: Option<f32>,
    order: BoxOrder,
    margin: f32,
    outside: Outside,
}

impl BoxSettings {
    fn boxes(&self) -> CropBoxes {
        CropBoxes {
            corners: self.corners,
            is_relative: self.units == CropUnits::Relative,
            threshold: self.threshold.map(|score| score as f32),
            order: self.order,
            margin: self.margin.value as f32,
            outside: self.outside,
        }
    }

    fn needs_score(&self) -> bool {
        self.threshold.is_some() || self.order == BoxOrder::Score
    }
}

impl Connect for Crop {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let picture =
            stage.column(0, "pictures first, which a source gives", |c| c.ty == ColumnType::Picture)?;
        let is_boxes = |ty: &ColumnType| ty.tensor().is_some() || list_of(ty).is_some();
        let boxes =
            stage.column(1, "boxes second, which a detect or infer stage gives", |c| is_boxes(&c.ty))?;
        if let Some(rows) = list_of(&stage.inputs[1].gives.0[boxes].ty).cloned() {
            return self.connect_list((picture, boxes), &rows, stage);
        }
        if self.boxes.rotate.value {
            let message = format!("`rotate` of stage `{}` has no effect", stage.name);
            return stage.error(self.boxes.rotate.span, message)
                .help("it takes a list with `polygon`, which a detect stage of layout `dbnet` or `yolov8_obb` gives").fail();
        }
        let input = &stage.inputs[1];
        let tensor = input.gives.0[boxes].ty.tensor().ok_or(Reported)?;
        let numbers = tensor.row.last().and_then(|dim| dim.fixed());
        let floats = matches!(tensor.dtype, DType::F32 | DType::F16 | DType::F64);
        let needed = if self.boxes.needs_score() { 5 } else { 4 };
        if !floats || tensor.row.len() > 2 || numbers.is_none_or(|n| n < needed) {
            let name = stage.name;
            let message =
                format!("stage `{name}` cannot cut out `{}` of stage `{}`", tensor.name, input.name);
            let score = if needed == 5 { ", the fifth being the score" } else { "" };
            return stage
                .error(input.span, message)
                .label(format!("it is {tensor}"))
                .help(format!("boxes are f32[batch, boxes, {needed}] or more numbers each{score}"))
                .fail();
        }
        let many = tensor.row.first().and_then(|d| Dim::fixed(*d)).filter(|_| tensor.row.len() == 2);
        let gives = image_settings::column(&self.spec);
        Ok(self.connected(stage, gives, (picture, boxes), (self.boxes.boxes(), many, None)))
    }

    fn pixels(&self) -> Option<&ImageSpec> {
        Some(&self.spec)
    }

    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        Some(image_settings::advice(name, &self.spec.for_model(), want))
    }
}

fn list_of(ty: &ColumnType) -> Option<&Schema> {
    match ty {
        ColumnType::List(rows) => Some(rows).filter(|rows| DetectionColumns::of(rows).is_some()),
        _ => None,
    }
}

impl Crop {
    /// As `connect`, for a list of boxes with these columns.
    fn connect_list(
        &self,
        boxes: (usize, usize),
        rows: &Schema,
        stage: &mut StageContext<'_>,
    ) -> Result<StageConnected, Reported> {
        let (name, input) = (stage.name, &stage.inputs[1]);
        for key in ["corners", "units"] {
            let Some(span) = stage.place_of(key) else { continue };
            let message = format!("`{key}` of stage `{name}` has no effect on a list of boxes");
            let help = "leave it out: `box` of a list is left, top, right, bottom in pixels";
            return stage.error(span, message).help(help).fail();
        }
        let rotates = self.boxes.rotate.value;
        let columns = DetectionColumns::of(rows).ok_or(Reported)?;
        for (what, column, is_needed) in
            [("score", columns.score, self.boxes.needs_score()), ("polygon", columns.polygon, rotates)]
        {
            if column.is_none() && is_needed {
                let message = format!("stage `{name}` needs `{what}` of each box of stage `{}`", input.name);
                return stage.error(input.span, message).label(format!("it gives {}", input.gives)).fail();
            }
        }
        let mut gives = image_settings::column(&self.spec);
        let n_own = gives.0.len();
        // What cannot be shown beside the cut.
        let is_taken = |column: &Column| gives.0.iter().any(|own| own.name == column.name);
        let passed: Vec<usize> = (0..rows.0.len()).filter(|at| !is_taken(&rows.0[*at])).collect();
        gives.0.splice(n_own - 1..n_own - 1, passed.iter().map(|at| rows.0[*at].clone()));
        let turn = match &self.boxes.turn {
            None => None,
            Some(written) => Some(turn_column(rows, written, name, stage)?),
        };
        let list = ListColumns {
            of_boxes: DetectionColumns { polygon: columns.polygon.filter(|_| rotates), ..columns },
            turn,
            passed,
        };
        let is = CropBoxes { corners: Corners::Xyxy, is_relative: false, ..self.boxes.boxes() };
        Ok(self.connected(stage, gives, boxes, (is, None, Some(list))))
    }

    /// The stage, which reads a picture and boxes; an item has no more than `many` of them, where that is known.
    fn connected(
        &self,
        stage: &StageContext<'_>,
        gives: Schema,
        reads: (usize, usize),
        (boxes, many, list): (CropBoxes, Option<usize>, Option<ListColumns>),
    ) -> StageConnected {
        let spec = ImageSpec { max_pixels: stage.limits.max_pixels, ..self.spec.clone() };
        let mut details = image_settings::details(&spec);
        details.push("one part per box".to_owned());
        let rotates = self.boxes.rotate.value;
        details.extend(rotates.then(|| "set upright".to_owned()));
        let upright = if rotates { ", set upright" } else { "" };
        let mut settings = self.json();
        settings["spec"] = serde_json::json!(spec);
        let tensor = spec.tensor();
        let cost = many.zip(tensor.row_len()).map(|(many, pixels)| many.saturating_mul(pixels));
        StageConnected {
            gives,
            reads: vec![(0, reads.0), (1, reads.1)],
            settings,
            details,
            about: format!("a part per box{upright}, {}", image_settings::about(&spec)),
            runs: Runs::map::<Self>(Cutting { spec, tensor, boxes, list }, cost),
        }
    }
}

/// The column of a list that `turn` names.
fn turn_column(
    rows: &Schema,
    written: &Spanned<String>,
    name: &str,
    stage: &mut StageContext<'_>,
) -> Result<usize, Reported> {
    let is_one = |at: &usize| rows.0[*at].ty.tensor().is_some_and(|tensor| tensor.row_len() == Some(1));
    rows.position(&written.value).filter(is_one).ok_or(Reported).or_else(|Reported| {
        let fitting = (0..rows.0.len()).filter(is_one).map(|at| rows.0[at].name.as_str());
        let message = format!("stage `{name}` cannot turn boxes by `{}`", written.value);
        let help = match list(fitting) {
            none if none.is_empty() => "a select stage in front of `gather` makes such a column".to_owned(),
            columns => format!("columns of one number: {columns}"),
        };
        stage
            .error(written.span, message)
            .label("no column of the list that is true, false or one number")
            .help(help)
            .fail()
    })
}

#[derive(Debug, Clone, Encode, Decode)]
struct ListColumns {
    /// With a polygon where turned rectangles are cut out.
    of_boxes: DetectionColumns,
    /// Says what is turned by 180 degrees.
    turn: Option<usize>,
    /// Those that parts have, too.
    passed: Vec<usize>,
}
