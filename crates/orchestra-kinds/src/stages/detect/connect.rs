//! What a `detect` stage becomes once its inputs are known: its layout, its settings and its columns. Decodes nothing.

use std::sync::Arc;

use orchestra_core::DType;
use orchestra_core::data::{Column, ColumnType, Schema, fixed_tensor};
use orchestra_plan::{
    Choice as _, Connect, Diagnostics, Input, Reported, Runs, Spanned, StageConnected, StageContext, list,
    read_labels,
};

use super::dbnet::Dbnet;
use super::decode::{BoxDecoding, Decoding};
use super::layout::{DetectorLayout, Form, OutputColumn, OutputHints};
use super::lists::Logits;
use super::recognise::{self, Contradiction, RecognisedLayout};
use super::run::Detecting;
use super::{Detect, DetectUnits};

impl Connect for Detect {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let name = stage.name;
        let help = "name the infer stage alone, from = \"..\": where its pixels lie in the picture is known without naming it";
        let input = stage.only_input("the outputs of an infer stage", help)?;
        let outputs = tensors(input, stage)?;
        let labels: Vec<String> = match &self.labels {
            Some(written) => read_labels(written, stage.folder, stage.host, stage.diags)?.value,
            None => {
                let of_model = input.labels.clone().map(|labels| labels.value);
                of_model.or_else(|| recognise::names(&input.metadata)).unwrap_or_default()
            }
        };
        // What the file of the model says of itself is sure; labels that a user names may lack the background.
        let told = recognise::told(&input.metadata);
        let (layout, why) = self.layout(name, input, &outputs, stage.diags)?;
        let Some(outputs) = layout.of(&outputs, told).or_else(|| layout.of(&outputs, OutputHints::default()))
        else {
            let span = self.layout.as_ref().map_or(input.span, |said| said.span);
            let help =
                format!("the layout is {}; from = \"stage.output\" names one of several", layout.outputs());
            return stage
                .error(span, format!("stage `{name}`: `{}` gives no layout `{}`", input.name, layout.name()))
                .label(format!("it gives {}", input.gives))
                .help(help)
                .fail();
        };
        self.keys_of_others(layout, outputs.form, stage)?;
        let decode = self.decode(name, layout, outputs.form, told.classes, stage)?;
        let placed = input.gives.0.iter().position(|column| column.ty == ColumnType::Placement);
        if placed.is_none() && decode.needs_row() {
            return stage.error(input.span, format!("stage `{name}` does not know how large the input of its model is"))
                .label(format!("boxes of layout `{}` are relative to it", layout.name()))
                .help("the model must read from an image or crop stage, or give boxes in pixels: boxes = \"pixels\"").fail();
        }
        let mut reads: Vec<(usize, usize)> = outputs.columns.iter().map(|column| (0, *column)).collect();
        reads.extend(placed.map(|column| (0, column)));
        let elements =
            |column: &usize| input.gives.0[*column].ty.tensor().and_then(|tensor| tensor.row_len());
        let cost = outputs.columns.iter().map(elements).try_fold(0_usize, |sum, n| sum.checked_add(n?));
        let named = match labels.len() {
            _ if layout == DetectorLayout::Dbnet => "texts".to_owned(),
            0 => "class numbers".to_owned(),
            1 => "1 label".to_owned(),
            n => format!("{n} labels"),
        };
        let pixels = if placed.is_some() { "of the picture" } else { "of the model's input" };
        let settings = serde_json::json!({
            "layout": layout.name(), "columns": outputs.columns, "decode": decode,
            "labels": labels, "placed": placed.is_some(),
        });
        let labels = labels.into_iter().map(Arc::from).collect();
        let detecting = Detecting { decode, is_placed: placed.is_some(), labels };
        Ok(StageConnected {
            gives: Schema::of("detections", ColumnType::List(schema(layout.turns()))),
            reads,
            settings,
            details: vec![format!("{}, {named}", layout.name()), format!("pixels {pixels}")],
            about: format!("layout {} ({why}), {named}, pixels {pixels}", layout.name()),
            // Each number is looked at, and some more than once.
            runs: Runs::map::<Self>(detecting, cost.map(|n| n.saturating_mul(4))),
        })
    }
}

/// The tensors of an input, all of them or the one that is named.
fn tensors<'a>(input: &'a Input, stage: &mut StageContext<'_>) -> Result<Vec<OutputColumn<'a>>, Reported> {
    let is_read = |column: &Column| input.column.as_ref().is_none_or(|name| *name == column.name);
    let read = input.gives.0.iter().enumerate().filter(|(_, column)| is_read(column));
    let tensors: Vec<OutputColumn<'_>> =
        read.filter_map(|(at, column)| Some((at, column.ty.tensor()?))).collect();
    if tensors.is_empty() {
        stage.column(0, "what an object detector gives, of an infer stage", |c| c.ty.tensor().is_some())?;
        return Err(Reported);
    }
    Ok(tensors)
}

fn names(layouts: &[DetectorLayout]) -> String {
    list(layouts.iter().map(|layout| layout.name()))
}

/// Reports what speaks against a layout that the file names: an error where that is sure.
fn report(
    stage: &str,
    said: &Spanned<DetectorLayout>,
    input: &Input,
    against: &Contradiction,
    diags: &mut Diagnostics,
) -> Result<(), Reported> {
    let is = names(&against.candidates);
    let message =
        format!("stage `{stage}` reads layout `{}`, which `{}` does not give", said.value.name(), input.name);
    let (diagnostic, help) = match against.candidates.is_empty() {
        _ if against.is_sure => (diags.error(said.span, message), format!("leave `layout` out, or say {is}")),
        true => (
            diags.warning(said.span, message),
            "leave it, if the model was changed after its export; look at some results first".to_owned(),
        ),
        false => (diags.warning(said.span, message), format!("leave `layout` out, if it is {is}")),
    };
    diagnostic.label(format!("of the model: {}", against.why)).help(help);
    if against.is_sure { Err(Reported) } else { Ok(()) }
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

impl Detect {
    /// The layout, and why it is this one.
    fn layout(
        &self,
        stage: &str,
        input: &Input,
        outputs: &[OutputColumn<'_>],
        diags: &mut Diagnostics,
    ) -> Result<(DetectorLayout, String), Reported> {
        if let Some(said) = &self.layout {
            if let Some(against) = recognise::contradiction(said.value, outputs, &input.metadata) {
                report(stage, said, input, &against, diags)?;
            }
            return Ok((said.value, "said".to_owned()));
        }
        let fitting = match recognise::recognise(outputs, &input.metadata) {
            RecognisedLayout::Is(layout, why) => return Ok((layout, why)),
            RecognisedLayout::Not(why) => {
                let message = format!("stage `{stage}` reads from a model that finds no boxes: {why}");
                let help = "if that is wrong, say what it gives: layout = \"..\"";
                return diags.error(input.span, message).help(help).fail();
            }
            RecognisedLayout::Open(fitting) => fitting,
        };
        let help = match fitting.is_empty() {
            true => "no layout that is known has such outputs".to_owned(),
            false => format!("say it: layout = \"..\"; by their shapes it can be {}", names(&fitting)),
        };
        diags
            .error(input.span, format!("stage `{stage}` cannot tell how `{}` lays out its boxes", input.name))
            .label(format!("it gives {}", input.gives))
            .help(help)
            .fail()
    }

    /// Reports keys that belong to other layouts.
    fn keys_of_others(
        &self,
        layout: DetectorLayout,
        form: Form,
        stage: &mut StageContext<'_>,
    ) -> Result<(), Reported> {
        let is_dbnet = layout == DetectorLayout::Dbnet;
        let suppresses = layout.suppresses();
        let mut found = Ok(());
        for Spanned { value: key, span } in stage.written {
            let has_effect = match &**key {
                "iou" => suppresses,
                "labels" => !is_dbnet,
                "boxes" => layout == DetectorLayout::Ssd || form == Form::Labelled,
                "background" => layout == DetectorLayout::Ssd,
                "scores" => matches!(form, Form::Queries | Form::OpenQueries),
                "box_threshold" | "unclip" | "min_size" | "dilate" => is_dbnet,
                _ => true,
            };
            if !has_effect {
                let message =
                    format!("`{key}` of stage `{}` has no effect on layout `{}`", stage.name, layout.name());
                found = stage.error(*span, message).help("leave it out").fail();
            }
        }
        found
    }

    fn decode(
        &self,
        name: &str,
        layout: DetectorLayout,
        form: Form,
        classes: Option<usize>,
        stage: &mut StageContext<'_>,
    ) -> Result<Decoding, Reported> {
        if layout == DetectorLayout::Dbnet {
            return Ok(Decoding::Texts(Dbnet {
                threshold: self.threshold.unwrap_or(0.3) as f32,
                box_threshold: self.box_threshold as f32,
                unclip: self.unclip,
                max: self.max.unwrap_or(1000) as usize,
                min_size: self.min_size,
                dilate: self.dilate,
            }));
        }
        let logits = match (self.scores, form) {
            (Some(said), _) => said,
            (None, Form::OpenQueries) => {
                let message =
                    format!("stage `{name}` cannot tell what the logits of its model become scores by");
                return stage
                    .error(stage.inputs[0].span, message)
                    .label("models with sigmoids and with softmaxes give `pred_boxes` and `logits`")
                    .help("say it: scores = \"sigmoid\" (RT-DETR, D-FINE) or \"softmax\" (DETR)")
                    .fail();
            }
            (None, _) => Logits::Sigmoid,
        };
        Ok(Decoding::Boxes(BoxDecoding {
            layout,
            classes,
            logits,
            threshold: self.threshold.unwrap_or(0.25) as f32,
            iou: self.iou,
            max: self.max.unwrap_or(300) as usize,
            is_relative: self.boxes.map_or(form != Form::Labelled, |boxes| boxes == DetectUnits::Relative),
            background: self.background,
        }))
    }
}
