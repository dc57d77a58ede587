//! `kind = "detect"`: boxes with classes and scores out of what an object detector gives, in pixels of the picture. Layouts are in `detect/`.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, OwnedRow, OwnedValue, Refusal, Schema, Value, fixed_tensor};
use orchestra_core::shapes::{Emit, Map, MapRun};
use orchestra_core::{DType, Placement};
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind, key, list,
    read_labels,
};

use serde::Serialize;

pub mod dbnet;
mod found;
pub mod layout;
mod lists;
mod rectangle;
mod yolo;

use crate::tensor::read_floats;
use dbnet::{Dbnet, Regions};
use found::Found;
use layout::{Form, Layout, Output, Recognised, Tensor};
use lists::Logits;
use rectangle::Quad;

/// The kind `detect`.
pub struct Detect;

const KEYS: [Key; 12] = [
    key(
        "layout",
        "text",
        "told by the model's metadata and the names of its outputs",
        "`\"yolov5\"` (also v7), `\"yolov8\"` (v8 to v12), `\"yolov8_obb\"` (turned boxes, v8 to v12; gives the column `polygon`, too, which may reach \
         beyond the picture), `\"yolo_end2end\"` (v10, v26), `\"yolox\"`, `\"ssd\"`, `\"ultraface\"`, `\"detr\"` (RT-DETR, D-FINE, RF-DETR; an input \
         `orig_target_sizes` reads a `size` stage), `\"tf\"` (`detection_boxes`, ..), or `\"dbnet\"` (texts; gives the column `polygon`, too)",
    ),
    key(
        "threshold",
        "number",
        "0.25; 0.3 with `dbnet`",
        "boxes with a lower score are left out; with `dbnet`, pixels that are no more likely belong to no text",
    ),
    key(
        "iou",
        "number",
        "0.45",
        "of boxes of one class that overlap by more than this (intersection over union; with `yolov8_obb` the probabilistic one of Ultralytics, ProbIoU) the \
         best remains",
    ),
    key(
        "max",
        "integer",
        "300; 1000 with `dbnet`",
        "how many boxes remain, the best ones; with `dbnet`, how many regions are looked at",
    ),
    key(
        "labels",
        "text",
        "those of the model, else of its metadata",
        "class names: a text file with one per line, in the order of the classes",
    ),
    key(
        "boxes",
        "text",
        "\"relative\"; \"pixels\" with `labels`, `boxes` and `scores`",
        "only with `ssd` and `detr`: whether boxes are from 0 to 1 of the sides of the model's input, or in its pixels",
    ),
    key("background", "true or false", "true", "only with `ssd`: whether the first class stands for nothing"),
    key(
        "scores",
        "text",
        "required for outputs `pred_boxes` and `logits`",
        "only there: `\"sigmoid\"` (RT-DETR, D-FINE), or `\"softmax\"` with a last class that stands for nothing (DETR)",
    ),
    key(
        "box_threshold",
        "number",
        "0.5",
        "only with `dbnet`: texts whose pixels are less likely than this on average are left out",
    ),
    key(
        "unclip",
        "number",
        "1.6",
        "only with `dbnet`: boxes grow on each side by their area times this, divided by their perimeter",
    ),
    key(
        "min_size",
        "number",
        "3",
        "only with `dbnet`: the shortest side of a text before it grows, in pixels of the map",
    ),
    key("dilate", "true or false", "false", "only with `dbnet`: whether regions grow by a pixel first"),
];

impl StageKind for Detect {
    fn name(&self) -> &'static str {
        "detect"
    }

    fn about(&self) -> &'static str {
        "Turns what an object detector gives into `detections`, a list of `label`, `class`, `score` and `box` (left, top, right, bottom), best first. Boxes \
         are in pixels of the picture that the item or part was made of, whatever the `image` or `crop` stage in front of the model did to it. It reads all \
         outputs of an infer stage."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let before = f.diags.errors().count();
        let draft = DetectDraft {
            layout: f.choice("layout", &Layout::ALL),
            threshold: share(f, "threshold"),
            iou: share(f, "iou"),
            max: f.integer("max", 1..=100_000),
            labels: f.string("labels"),
            relative: f.choice("boxes", &[("relative", true), ("pixels", false)]),
            background: boolean(f, "background"),
            scores: f.choice("scores", &[("sigmoid", Logits::Sigmoid), ("softmax", Logits::Softmax)]),
            box_threshold: share(f, "box_threshold"),
            unclip: number(f, "unclip", 0.0..=100.0),
            min_size: number(f, "min_size", 0.0..=10_000.0),
            dilate: boolean(f, "dilate"),
        };
        (f.diags.errors().count() == before).then(|| Draft::Stage(Box::new(draft)))
    }
}

fn boolean(f: &mut Fields<'_, '_>, key: &str) -> Option<At<bool>> {
    let span = f.entry(key)?.node.span;
    f.boolean(key).map(|value| At::new(value, span))
}

fn share(f: &mut Fields<'_, '_>, key: &str) -> Option<At<f64>> {
    number(f, key, 0.0..=1.0)
}

fn number(f: &mut Fields<'_, '_>, key: &str, range: std::ops::RangeInclusive<f64>) -> Option<At<f64>> {
    let numbers = f.numbers(key)?;
    match numbers.value[..] {
        [one] if range.contains(&one) => Some(At::new(one, numbers.span)),
        _ => {
            let reason = format!("must be one number from {} to {}", range.start(), range.end());
            f.bad(key, numbers.span, &reason);
            None
        }
    }
}

#[derive(Debug)]
struct DetectDraft {
    layout: Option<At<Layout>>,
    threshold: Option<At<f64>>,
    iou: Option<At<f64>>,
    max: Option<At<u64>>,
    labels: Option<At<String>>,
    relative: Option<At<bool>>,
    background: Option<At<bool>>,
    scores: Option<At<Logits>>,
    box_threshold: Option<At<f64>>,
    unclip: Option<At<f64>>,
    min_size: Option<At<f64>>,
    dilate: Option<At<bool>>,
}

impl Connect for DetectDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let name = stage.name;
        let input = match stage.inputs {
            [one] => one,
            [_, other, ..] => {
                stage
                    .diags
                    .error(other.span, format!("stage `{name}` reads from one stage"))
                    .label("where its pixels lie in the picture is known without naming it")
                    .help("name the infer stage alone: from = \"..\"");
                return None;
            }
            [] => return None,
        };
        if let Some(column) = &input.column
            && input.gives.position(column).is_none()
        {
            stage.column(0, "the outputs of an infer stage", |_| true)?; // It reports that there is none.
        }
        let is_read = |column: &Column| input.column.as_ref().is_none_or(|name| *name == column.name);
        let outputs: Vec<Output<'_>> = input
            .gives
            .0
            .iter()
            .enumerate()
            .filter_map(|(at, column)| Some((at, column.ty.tensor()?)).filter(|_| is_read(column)))
            .collect();
        if outputs.is_empty() {
            stage
                .column(0, "what an object detector gives, of an infer stage", |c| c.ty.tensor().is_some())?;
            return None;
        }
        let labels = match &self.labels {
            Some(written) => Some(read_labels(written, stage.folder, stage.host, stage.diags)?.value),
            None => {
                input.labels.clone().map(|labels| labels.value).or_else(|| layout::names(&input.metadata))
            }
        };
        // What the file of the model says of itself is sure; labels that a user names may lack the background.
        let classes = layout::names(&input.metadata).map(|names| names.len());
        let (layout, why) = match &self.layout {
            Some(said) => (said.value, "said".to_owned()),
            None => match layout::recognise(&outputs, &input.metadata, classes) {
                Recognised::Is(layout, why) => (layout, why),
                Recognised::Not(why) => {
                    stage
                        .diags
                        .error(
                            input.span,
                            format!("stage `{name}` reads from a model that finds no boxes: {why}"),
                        )
                        .help("if that is wrong, say what it gives: layout = \"..\"");
                    return None;
                }
                Recognised::Open(fitting) => {
                    let names = list(fitting.iter().map(|layout| layout.name()));
                    let help = match fitting.is_empty() {
                        true => "no layout that is known has such outputs".to_owned(),
                        false => format!("say it: layout = \"..\"; by their shapes it can be {names}"),
                    };
                    stage
                        .diags
                        .error(
                            input.span,
                            format!("stage `{name}` cannot tell how `{}` lays out its boxes", input.name),
                        )
                        .label(format!("it gives {}", input.gives))
                        .help(help);
                    return None;
                }
            },
        };
        let Some(outputs) = layout.of(&outputs, classes).or_else(|| layout.of(&outputs, None)) else {
            let span = self.layout.as_ref().map_or(input.span, |said| said.span);
            stage
                .diags
                .error(span, format!("stage `{name}`: `{}` gives no layout `{}`", input.name, layout.name()))
                .label(format!("it gives {}", input.gives))
                .help(format!(
                    "the layout is {}; from = \"stage.output\" names one of several",
                    layout.outputs()
                ));
            return None;
        };
        self.keys_of_others(name, layout, outputs.form, stage.diags)?;
        let decode = self.decode(name, layout, outputs.form, classes, stage)?;
        let placed = input.gives.0.iter().position(|column| column.ty == ColumnType::Placement);
        if placed.is_none() && decode.needs_row() {
            stage
                .diags
                .error(input.span, format!("stage `{name}` does not know how large the input of its model is"))
                .label(format!("boxes of layout `{}` are relative to it", layout.name()))
                .help("the model must read from an image or crop stage, or give boxes in pixels: boxes = \"pixels\"");
            return None;
        }
        let mut reads: Vec<(usize, usize)> = outputs.columns.iter().map(|column| (0, *column)).collect();
        reads.extend(placed.map(|column| (0, column)));
        let elements =
            |column: &usize| input.gives.0[*column].ty.tensor().and_then(|tensor| tensor.row_len());
        let cost = outputs.columns.iter().map(elements).try_fold(0_usize, |sum, n| sum.checked_add(n?));
        let labels: Vec<String> = labels.unwrap_or_default();
        let named = match labels.len() {
            _ if layout == Layout::Dbnet => "texts".to_owned(),
            0 => "class numbers".to_owned(),
            1 => "1 label".to_owned(),
            n => format!("{n} labels"),
        };
        let pixels = if placed.is_some() { "of the picture" } else { "of the model's input" };
        let schema = schema(matches!(layout, Layout::Dbnet | Layout::Yolov8Obb));
        Some(StageConnected {
            gives: Schema::of("detections", ColumnType::List(schema)),
            reads,
            settings: serde_json::json!({
                "layout": layout.name(), "columns": outputs.columns, "decode": decode,
                "labels": labels, "placed": placed.is_some(),
            }),
            details: vec![format!("{}, {named}", layout.name()), format!("pixels {pixels}")],
            about: format!("layout {} ({why}), {named}, pixels {pixels}", layout.name()),
            runs: Runs::Map(Arc::new(DetectMap {
                decode,
                is_placed: placed.is_some(),
                labels: labels.into_iter().map(Arc::from).collect(),
                // Each number is looked at, and some more than once.
                cost: cost.map_or(usize::MAX, |n| n.saturating_mul(4)),
            })),
        })
    }
}

/// The columns of a row of the list.
fn schema(has_polygon: bool) -> Schema {
    let tensor = |name: &str, dtype, row: &[usize]| Column {
        name: name.to_owned(),
        ty: ColumnType::Tensor(fixed_tensor(name, dtype, row)),
    };
    let mut columns = vec![
        Column { name: "label".to_owned(), ty: ColumnType::Text },
        tensor("class", DType::I64, &[]),
        tensor("score", DType::F32, &[]),
        tensor("box", DType::F32, &[4]),
    ];
    columns.extend(has_polygon.then(|| tensor("polygon", DType::F32, &[4, 2])));
    Schema(columns)
}

impl DetectDraft {
    /// Reports keys that belong to other layouts.
    fn keys_of_others(
        &self,
        stage: &str,
        layout: Layout,
        form: Form,
        diags: &mut orchestra_plan::Diagnostics,
    ) -> Option<()> {
        let is_dbnet = layout == Layout::Dbnet;
        let suppresses = layout.suppresses();
        fn place<T>(at: Option<&At<T>>) -> Option<orchestra_plan::Span> {
            at.map(|at| at.span)
        }
        let keys = [
            ("iou", place(self.iou.as_ref()), suppresses),
            ("labels", place(self.labels.as_ref()), !is_dbnet),
            ("boxes", place(self.relative.as_ref()), layout == Layout::Ssd || form == Form::Labelled),
            ("background", place(self.background.as_ref()), layout == Layout::Ssd),
            ("scores", place(self.scores.as_ref()), matches!(form, Form::Queries | Form::OpenQueries)),
            ("box_threshold", place(self.box_threshold.as_ref()), is_dbnet),
            ("unclip", place(self.unclip.as_ref()), is_dbnet),
            ("min_size", place(self.min_size.as_ref()), is_dbnet),
            ("dilate", place(self.dilate.as_ref()), is_dbnet),
        ];
        let mut is_fine = true;
        for (key, span, has_effect) in keys {
            if let Some(span) = span.filter(|_| !has_effect) {
                let message =
                    format!("`{key}` of stage `{stage}` has no effect on layout `{}`", layout.name());
                diags.error(span, message).help("leave it out");
                is_fine = false;
            }
        }
        is_fine.then_some(())
    }

    fn decode(
        &self,
        name: &str,
        layout: Layout,
        form: Form,
        classes: Option<usize>,
        stage: &mut StageContext<'_>,
    ) -> Option<Decode> {
        let value = |at: &Option<At<f64>>, default: f64| at.as_ref().map_or(default, |at| at.value);
        let is = |at: &Option<At<bool>>, default: bool| at.as_ref().map_or(default, |at| at.value);
        let max = |default: usize| self.max.as_ref().map_or(default, |at| at.value as usize);
        if layout == Layout::Dbnet {
            return Some(Decode::Texts(Dbnet {
                threshold: value(&self.threshold, 0.3) as f32,
                box_threshold: value(&self.box_threshold, 0.5) as f32,
                unclip: value(&self.unclip, 1.6),
                max: max(1000),
                min_size: value(&self.min_size, 3.0),
                dilate: is(&self.dilate, false),
            }));
        }
        let logits = match (&self.scores, form) {
            (Some(said), _) => said.value,
            (None, Form::OpenQueries) => {
                let message =
                    format!("stage `{name}` cannot tell what the logits of its model become scores by");
                stage
                    .diags
                    .error(stage.inputs[0].span, message)
                    .label("models with sigmoids and with softmaxes give `pred_boxes` and `logits`")
                    .help("say it: scores = \"sigmoid\" (RT-DETR, D-FINE) or \"softmax\" (DETR)");
                return None;
            }
            (None, _) => Logits::Sigmoid,
        };
        Some(Decode::Boxes(Boxes {
            layout,
            classes,
            logits,
            threshold: value(&self.threshold, 0.25) as f32,
            iou: value(&self.iou, 0.45),
            max: max(300),
            is_relative: is(&self.relative, form != Form::Labelled),
            background: is(&self.background, true),
        }))
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "lowercase")]
enum Decode {
    Boxes(Boxes),
    Texts(Dbnet),
}

/// The settings of all layouts but `dbnet`.
#[derive(Debug, Clone, Serialize)]
struct Boxes {
    layout: Layout,
    classes: Option<usize>,
    logits: Logits,
    threshold: f32,
    iou: f64,
    max: usize,
    is_relative: bool,
    background: bool,
}

impl Decode {
    /// Whether boxes mean nothing without the size of the model's input.
    fn needs_row(&self) -> bool {
        match self {
            Decode::Texts(_) => false,
            Decode::Boxes(boxes) => match boxes.layout {
                Layout::Yolov5 | Layout::Yolov8 | Layout::Yolov8Obb | Layout::YoloEnd2end | Layout::Dbnet => {
                    false
                }
                Layout::Yolox | Layout::Tf | Layout::Ultraface => true,
                Layout::Ssd | Layout::Detr => boxes.is_relative,
            },
        }
    }
}

impl Boxes {
    /// What remains, best first, in pixels of a row of `row` (width, height).
    fn found(&self, tensors: &[Tensor], row: [u32; 2], found: &mut Vec<Found>) -> Result<(), Refusal> {
        let (threshold, classes) = (self.threshold, self.classes);
        let scale = if self.is_relative { row.map(f64::from) } else { [1.0; 2] };
        match (self.layout, tensors) {
            (Layout::Yolov5, [tensor]) => yolo::objects(tensor, classes, threshold, found)?,
            (Layout::Yolov8, [tensor]) => yolo::transposed(tensor, classes, threshold, found)?,
            (Layout::Yolov8Obb, [tensor]) => yolo::turned(tensor, threshold, found)?,
            (Layout::YoloEnd2end, [tensor]) => yolo::end_to_end(tensor, threshold, found)?,
            (Layout::Yolox, [tensor]) => yolo::grids(tensor, row, classes, threshold, found)?,
            (Layout::Ssd | Layout::Ultraface, [boxes, scores]) => {
                lists::scored(boxes, scores, self.background, scale, threshold, found)?;
            }
            (Layout::Detr, [boxes, scores, labels]) => {
                lists::labelled(boxes, scores, labels, scale, threshold, found)?;
            }
            (Layout::Detr, [boxes, logits]) => {
                lists::queries(boxes, logits, self.logits, scale, threshold, found)?;
            }
            (Layout::Tf, tensors) => lists::tensorflow(tensors, scale, threshold, found)?,
            _ => return Err(Refusal::result("internal error: an output is missing; this is a bug")),
        }
        match self.layout.suppresses() {
            true => found::suppress(found, self.iou, self.max),
            false => found::best(found, self.max),
        }
        Ok(())
    }
}

#[derive(Debug)]
struct DetectMap {
    decode: Decode,
    /// The last column read is a placement.
    is_placed: bool,
    labels: Arc<[Arc<str>]>,
    cost: usize,
}

impl Map for DetectMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(DetectRun {
            decode: self.decode.clone(),
            is_placed: self.is_placed,
            labels: Arc::clone(&self.labels),
            tensors: Vec::new(),
            found: Vec::new(),
            regions: Regions::default(),
        })
    }

    fn cost(&self) -> usize {
        self.cost
    }
}

struct DetectRun {
    decode: Decode,
    is_placed: bool,
    labels: Arc<[Arc<str>]>,
    tensors: Vec<Tensor>,
    found: Vec<Found>,
    regions: Regions,
}

impl MapRun for DetectRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let (outputs, placed) = match inputs {
            [outputs @ .., placed] if self.is_placed => (outputs, Some(Placement::of(placed)?)),
            outputs => (outputs, None),
        };
        self.tensors.resize_with(outputs.len(), Tensor::default);
        for (tensor, output) in self.tensors.iter_mut().zip(outputs) {
            output.with_tensor(|view| {
                view.name.clone_into(&mut tensor.name);
                view.shape.clone_into(&mut tensor.shape);
                read_floats(view, &mut tensor.values);
                Ok(())
            })?;
        }
        let rows = match &self.decode {
            Decode::Boxes(boxes) => {
                self.found.clear();
                let row = placed.map_or([0; 2], |placed| placed.row);
                boxes.found(&self.tensors, row, &mut self.found)?;
                self.boxes(placed.as_ref())?
            }
            Decode::Texts(settings) => {
                let [map] = &self.tensors[..] else {
                    return Err(Refusal::result("internal error: an output is missing; this is a bug"));
                };
                texts(settings, map, placed.as_ref(), &mut self.regions)?
            }
        };
        emit.row(&[Value::List(&rows)])
    }
}

impl DetectRun {
    fn boxes(&self, placed: Option<&Placement>) -> Result<Vec<OwnedRow>, Refusal> {
        let mut rows = Vec::with_capacity(self.found.len());
        for (n, found) in self.found.iter().enumerate() {
            let [a, b, c, d] = found.corners;
            let place = |point| placed.map_or(point, |placed| placed.point(point));
            let polygon = found.rectangle.map(|rectangle| rectangle.ordered().map(place));
            let mut numbers = found.corners.iter().chain(polygon.iter().flatten().flatten());
            if !numbers.all(|v| (*v as f32).is_finite()) {
                let error = format!("box {n} is ({a}, {b}, {c}, {d}), which is no place in a picture");
                return Err(Refusal::result(error));
            }
            if found.rectangle.is_some_and(|rectangle| !rectangle.has_area()) {
                continue;
            }
            let corners = match (placed, &polygon) {
                (Some(placed), Some(polygon)) => within(bounds(polygon), placed.picture),
                (Some(placed), None) => within(placed.rectangle(found.corners), placed.picture),
                (None, _) => found.corners,
            };
            // What lies outside of the picture shows nothing of it.
            if corners[2] <= corners[0] || corners[3] <= corners[1] {
                continue;
            }
            let label = self.labels.get(found.class as usize);
            let label = label.map_or_else(|| found.class.to_string().into(), Arc::clone);
            let mut row = row(label, found.class, found.score, corners);
            row.extend(polygon.as_ref().map(owned_polygon));
            rows.push(row);
        }
        Ok(rows)
    }
}

/// The smallest upright rectangle around a polygon.
fn bounds(polygon: &Quad) -> [f64; 4] {
    let axis = |at: usize| polygon.iter().map(move |p| p[at]);
    let least = |at: usize| axis(at).fold(f64::INFINITY, f64::min);
    let most = |at: usize| axis(at).fold(f64::NEG_INFINITY, f64::max);
    [least(0), least(1), most(0), most(1)]
}

fn owned_polygon(polygon: &Quad) -> OwnedValue {
    owned("polygon", DType::F32, &[4, 2], &floats(polygon.iter().copied().flatten()))
}

/// The part of a rectangle that lies in a picture.
fn within([left, top, right, bottom]: [f64; 4], [width, height]: [u32; 2]) -> [f64; 4] {
    let (width, height) = (f64::from(width), f64::from(height));
    [left.clamp(0.0, width), top.clamp(0.0, height), right.clamp(0.0, width), bottom.clamp(0.0, height)]
}

fn row(label: Arc<str>, class: u32, score: f32, corners: [f64; 4]) -> OwnedRow {
    vec![
        OwnedValue::Text(label),
        owned("class", DType::I64, &[], &i64::from(class).to_ne_bytes()),
        owned("score", DType::F32, &[], &score.to_ne_bytes()),
        owned("box", DType::F32, &[4], &floats(corners)),
    ]
}

fn owned(name: &str, dtype: DType, shape: &[usize], data: &[u8]) -> OwnedValue {
    OwnedValue::Tensor { name: name.into(), dtype, shape: shape.into(), data: data.into() }
}

fn floats(numbers: impl IntoIterator<Item = f64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| (number as f32).to_ne_bytes()).collect()
}

/// Texts from top to bottom, those in a line from left to right, as PaddleOCR orders them.
fn texts(
    settings: &Dbnet,
    map: &Tensor,
    placed: Option<&Placement>,
    regions: &mut Regions,
) -> Result<Vec<OwnedRow>, Refusal> {
    /// Tops that are nearer than so many pixels belong to one line.
    const LINE: f64 = 10.0;
    /// Sides of texts that nobody can read, in pixels of the picture.
    const UNREADABLE: f64 = 3.0;
    let (texts, [width, height]) = settings.texts(map, regions)?;
    let [row_width, row_height] = placed.map_or([width as f64, height as f64], |p| p.row.map(f64::from));
    let (scale_x, scale_y) = (row_width / width as f64, row_height / height as f64);
    let mut found = Vec::new();
    for text in texts {
        let corners = text.corners.map(|[x, y]| {
            let at = [x * scale_x, y * scale_y];
            let Some(placed) = placed else { return at };
            let ([x, y], [width, height]) = (placed.point(at), placed.picture.map(f64::from));
            [x.clamp(0.0, width), y.clamp(0.0, height)]
        });
        let side = |a: usize, b: usize| (corners[a][0] - corners[b][0]).hypot(corners[a][1] - corners[b][1]);
        if side(0, 1) > UNREADABLE && side(0, 3) > UNREADABLE {
            found.push((text.score, corners));
        }
    }
    found.sort_by(|(_, a), (_, b)| a[0][1].total_cmp(&b[0][1]).then(a[0][0].total_cmp(&b[0][0])));
    for at in 1..found.len() {
        let mut n = at;
        while n > 0 {
            let (a, b) = (found[n - 1].1[0], found[n].1[0]);
            if (b[1] - a[1]).abs() >= LINE || b[0] >= a[0] {
                break;
            }
            found.swap(n - 1, n);
            n -= 1;
        }
    }
    let rows = found.into_iter().map(|(score, corners)| {
        let mut row = row("text".into(), 0, score, bounds(&corners));
        row.push(owned_polygon(&corners));
        row
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use orchestra_core::data::TensorView;
    use serde_json::{Value as Json, json};

    use super::*;

    struct Kept(Vec<OwnedRow>);

    impl Emit for Kept {
        fn parts(&mut self, _: usize) -> Result<(), Refusal> {
            Ok(())
        }

        fn row(&mut self, row: &[Value<'_>]) -> Result<(), Refusal> {
            let [Value::List(rows)] = row else { panic!("no list: {row:?}") };
            self.0.extend_from_slice(rows);
            Ok(())
        }
    }

    /// Numbers that look random, the same ones always.
    struct Random(u64);

    impl Random {
        fn share(&mut self) -> f32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1_u64 << 24) as f32
        }

        fn between(&mut self, least: f32, most: f32) -> f32 {
            least + (most - least) * self.share()
        }
    }

    const ROW: [u32; 2] = [96, 64];

    fn placed() -> Placement {
        Placement { row: ROW, picture: [300, 200], to_picture: [3.5, 0.0, -18.0, 0.0, 3.5, -12.25] }
    }

    fn settings(layout: Layout) -> Boxes {
        Boxes {
            layout,
            classes: None,
            logits: Logits::Sigmoid,
            threshold: 0.5,
            iou: 0.3,
            max: 40,
            is_relative: true,
            background: true,
        }
    }

    fn run(decode: Decode, tensors: &[Tensor]) -> Result<Vec<OwnedRow>, Refusal> {
        let map = DetectMap { decode, is_placed: true, labels: Arc::new([Arc::from("zero")]), cost: 0 };
        let data: Vec<Vec<u8>> =
            tensors.iter().map(|t| t.values.iter().flat_map(|v| v.to_ne_bytes()).collect()).collect();
        let mut inputs: Vec<Value<'_>> = tensors
            .iter()
            .zip(&data)
            .map(|(t, data)| {
                Value::Tensor(TensorView { name: &t.name, dtype: DType::F32, shape: &t.shape, data })
            })
            .collect();
        let placed = placed().bytes();
        inputs.push(Placement::value(&placed));
        let mut kept = Kept(Vec::new());
        map.start().apply(&inputs, &mut kept)?;
        Ok(kept.0)
    }

    fn numbers(value: &OwnedValue) -> Vec<f64> {
        let OwnedValue::Tensor { dtype, data, .. } = value else { panic!("{value:?}") };
        let all = data.chunks_exact(dtype.size_bytes());
        all.map(|bytes| f64::from(crate::tensor::element(*dtype, bytes).to_f32())).collect()
    }

    fn tensor(name: &str, shape: &[usize], values: Vec<f32>) -> Tensor {
        Tensor { name: name.to_owned(), shape: shape.to_vec(), values }
    }

    /// One case for each layout and form: what it is called, its settings, its outputs.
    fn cases() -> Vec<(Boxes, Vec<Tensor>, Json)> {
        let mut random = Random(7);
        let mut cases = Vec::new();
        let box_of = |random: &mut Random, scale: [f32; 2]| {
            let [x, y] = scale.map(|side| random.between(-0.1, 1.1) * side);
            let [w, h] = scale.map(|side| random.between(0.05, 0.5) * side);
            [x, y, w, h]
        };
        let pixels = ROW.map(|side| side as f32);
        let corners = |[x, y, w, h]: [f32; 4]| [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0];
        let mut objects = Vec::new();
        for _ in 0..200 {
            objects.extend(box_of(&mut random, pixels));
            objects.extend((0..4).map(|_| random.share()));
        }
        let turned =
            (0..7).flat_map(|at| objects.chunks(8).map(move |row| row[at + usize::from(at > 3)])).collect();
        cases.push((settings(Layout::Yolov5), vec![tensor("output", &[200, 8], objects)], json!({})));
        let masks = Boxes { classes: Some(2), ..settings(Layout::Yolov8) };
        cases.push((masks, vec![tensor("output", &[7, 200], turned)], json!({ "classes": 2 })));
        // Many of a class in few places, so that some hide others.
        let mut turned_boxes = Vec::new();
        for _ in 0..200 {
            let [x, y] = pixels.map(|side| random.between(-0.1, 1.1) * side);
            turned_boxes.push([x, y, random.between(4.0, 40.0), random.between(4.0, 20.0)]);
        }
        let mut numbers: Vec<f32> =
            (0..4).flat_map(|at| turned_boxes.iter().map(move |numbers| numbers[at])).collect();
        numbers.extend((0..400).map(|_| random.share()));
        numbers.extend((0..200).map(|_| random.between(-0.8, 2.4)));
        cases.push((settings(Layout::Yolov8Obb), vec![tensor("output", &[7, 200], numbers)], json!({})));
        let mut ended = Vec::new();
        for n in 0..50 {
            ended.extend(corners(box_of(&mut random, pixels)));
            ended.extend([random.share(), (n % 3) as f32]);
        }
        cases.push((settings(Layout::YoloEnd2end), vec![tensor("output", &[50, 6], ended)], json!({})));
        let cells = 12 * 8 + 6 * 4 + 3 * 2;
        let grid = (0..cells * 7).map(|_| random.between(-0.5, 1.0)).collect();
        cases.push((settings(Layout::Yolox), vec![tensor("output", &[cells, 7], grid)], json!({})));
        let relative: Vec<f32> = (0..60).flat_map(|_| corners(box_of(&mut random, [1.0; 2]))).collect();
        let centres: Vec<f32> = (0..60).flat_map(|_| box_of(&mut random, [1.0; 2])).collect();
        let mut shares = |n: usize| -> Vec<f32> { (0..n).map(|_| random.share()).collect() };
        let boxes = || tensor("boxes", &[60, 4], relative.clone());
        cases.push((
            settings(Layout::Ssd),
            vec![boxes(), tensor("scores", &[60, 4], shares(240))],
            json!({}),
        ));
        cases.push((
            settings(Layout::Ultraface),
            vec![boxes(), tensor("scores", &[60, 2], shares(120))],
            json!({}),
        ));
        let classes = || (0..60).map(|n| (n % 5) as f32).collect::<Vec<_>>();
        let labelled = vec![boxes(), tensor("scores", &[60], shares(60)), tensor("labels", &[60], classes())];
        cases.push((settings(Layout::Detr), labelled, json!({})));
        // With `orig_target_sizes`, the size of the row: corners in pixels of it.
        let sized = relative.iter().enumerate().map(|(at, share)| share * pixels[at % 2]).collect();
        let sized = vec![
            tensor("boxes", &[60, 4], sized),
            tensor("scores", &[60], shares(60)),
            tensor("labels", &[60], classes()),
        ];
        cases.push((
            Boxes { is_relative: false, ..settings(Layout::Detr) },
            sized,
            json!({ "relative": false }),
        ));
        let logits: Vec<f32> = shares(180).iter().map(|v| v * 4.0 - 3.0).collect();
        let queries = |boxes: &str, scores: &str| {
            vec![tensor(boxes, &[60, 4], centres.clone()), tensor(scores, &[60, 3], logits.clone())]
        };
        cases.push((settings(Layout::Detr), queries("dets", "labels"), json!({})));
        let softmax = Boxes { logits: Logits::Softmax, ..settings(Layout::Detr) };
        cases.push((softmax, queries("pred_boxes", "logits"), json!({ "scores": "softmax" })));
        let tf = vec![
            tensor("detection_boxes", &[60, 4], relative.clone()),
            tensor("detection_scores", &[60], shares(60)),
            tensor("detection_classes", &[60], classes()),
            tensor("num_detections", &[], vec![41.0]),
        ];
        cases.push((settings(Layout::Tf), tf, json!({})));
        cases
    }

    fn json_of(layout: Layout, tensors: &[Tensor], more: &Json) -> Json {
        let outputs: serde_json::Map<String, Json> =
            tensors.iter().map(|t| (t.name.clone(), json!({ "shape": t.shape, "data": t.values }))).collect();
        let mut case = json!({
            "layout": layout.name(), "threshold": 0.5, "iou": 0.3, "max": 40, "tensors": outputs,
            "row": ROW, "picture": placed().picture, "to_picture": placed().to_picture,
        });
        case.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        case
    }

    fn reference(cases: &[Json]) -> Vec<Vec<Json>> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/detect_reference.py");
        let mut python = Command::new("python3")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test needs python3");
        python.stdin.take().unwrap().write_all(json!(cases).to_string().as_bytes()).unwrap();
        let output = python.wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn are_close(a: &[f64], b: &[f64], by: f64) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= by)
    }

    #[test]
    fn every_layout_finds_what_another_implementation_finds() {
        let cases = cases();
        let expected =
            reference(&cases.iter().map(|(s, t, more)| json_of(s.layout, t, more)).collect::<Vec<_>>());
        for ((settings, tensors, _), expected) in cases.into_iter().zip(expected) {
            let layout = settings.layout;
            let found = run(Decode::Boxes(settings), &tensors).unwrap();
            assert!(found.len() > 5, "{layout:?} finds {}", found.len());
            assert_eq!(found.len(), expected.len(), "{layout:?}");
            for (row, wanted) in found.iter().zip(&expected) {
                let of = |key: &str| serde_json::from_value::<Vec<f64>>(wanted[key].clone());
                assert_eq!(numbers(&row[1]), [wanted["class"].as_f64().unwrap()], "{layout:?}: {wanted}");
                assert!(are_close(&numbers(&row[2]), &[wanted["score"].as_f64().unwrap()], 1e-5));
                assert!(
                    are_close(&numbers(&row[3]), &of("box").unwrap(), 1e-3),
                    "{layout:?}: {wanted} {row:?}"
                );
                if layout == Layout::Yolov8Obb {
                    let corners: Vec<Vec<f64>> = serde_json::from_value(wanted["polygon"].clone()).unwrap();
                    let polygon = numbers(&row[4]);
                    let is_one = |p: &[f64]| corners.iter().any(|c| are_close(c, p, 1e-3));
                    assert!(polygon.chunks(2).all(is_one), "{wanted} {row:?}");
                }
            }
        }
    }

    #[test]
    fn texts_are_where_another_implementation_finds_them() {
        // Turned rectangles with soft edges.
        let (width, height) = (120_usize, 80_usize);
        let texts = [
            (30.0, 20.0, 22.0, 6.0, 0.0),
            (80.0, 25.0, 25.0, 7.0, 0.4),
            (35.0, 58.0, 24.0, 5.0, -0.3),
            (90.0, 62.0, 12.0, 4.0, 1.4),
        ];
        let value = |at: usize| {
            let (x, y) = ((at % width) as f64, (at / width) as f64);
            let of = |(cx, cy, w, h, angle): &(f64, f64, f64, f64, f64)| {
                let (x, y) = (x - cx, y - cy);
                let (u, v) = (x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin());
                (w - u.abs()).min(h - v.abs()).mul_add(0.5, 0.5).clamp(0.0, 0.95)
            };
            texts.iter().map(of).fold(0.0, f64::max) as f32
        };
        let map = tensor("map", &[1, height, width], (0..height * width).map(value).collect());
        let dbnet =
            Dbnet { threshold: 0.3, box_threshold: 0.5, unclip: 1.6, max: 100, min_size: 3.0, dilate: false };
        let more = json!({ "threshold": 0.3, "box_threshold": 0.5, "unclip": 1.6, "min_size": 3 });
        let case = json_of(Layout::Dbnet, std::slice::from_ref(&map), &more);
        let [expected] = &reference(&[case])[..] else { panic!() };
        let found = run(Decode::Texts(dbnet), &[map]).unwrap();
        assert_eq!((found.len(), expected.len()), (4, 4));
        for row in &found {
            let polygon = numbers(&row[4]);
            let inside = |p: &[f64]| [p[0].clamp(0.0, 300.0), p[1].clamp(0.0, 200.0)];
            // Corners in any order: which one comes first is a matter of taste.
            let is_same = |wanted: &&Json| {
                let corners: Vec<Vec<f64>> = serde_json::from_value(wanted["polygon"].clone()).unwrap();
                let near = |p: &[f64]| corners.iter().any(|c| are_close(&inside(c), p, 1e-2));
                polygon.chunks(2).all(near)
            };
            let wanted =
                expected.iter().find(is_same).unwrap_or_else(|| panic!("{polygon:?} of {expected:?}"));
            // Which pixels of the outline count is a matter of taste, too.
            assert!(
                are_close(&numbers(&row[2]), &[wanted["score"].as_f64().unwrap()], 0.08),
                "{wanted} {row:?}"
            );
        }
        let first = numbers(&found[0][4]);
        assert!(first[0] < first[2] && first[1] < first[5], "from the top left corner: {first:?}");
    }

    #[test]
    fn outputs_of_another_shape_than_the_plan_says_fail_the_item_by_name() {
        for (settings, tensors, _) in cases() {
            let layout = settings.layout;
            for at in 0..tensors.len() {
                for shape in [&[3][..], &[2, 3], &[1, 2, 3], &[0, 0], &[0, 4], &[0, 9]] {
                    let mut broken: Vec<Tensor> =
                        tensors.iter().map(|t| tensor(&t.name, &t.shape, t.values.clone())).collect();
                    let n = shape.iter().product();
                    broken[at] = tensor("broken", shape, vec![0.9; n]);
                    // Anything but a panic.
                    if let Err(refusal) = run(Decode::Boxes(settings.clone()), &broken) {
                        assert!(!refusal.error.contains("bug"), "{layout:?}: {refusal:?}");
                    }
                }
            }
            let rubbish: Vec<Tensor> = tensors
                .iter()
                .map(|t| {
                    let values = [f32::NAN, f32::INFINITY, -1e30, 0.9, f32::NEG_INFINITY];
                    let values = (0..t.values.len()).map(|n| values[n % 5]).collect();
                    tensor(&t.name, &t.shape, values)
                })
                .collect();
            drop(run(Decode::Boxes(settings), &rubbish));
        }
    }
}
