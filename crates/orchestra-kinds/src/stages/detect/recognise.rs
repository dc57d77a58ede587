//! Which layout a model has, by the names of its outputs and by the metadata in its file; never by shapes alone. Decodes nothing.

use std::collections::BTreeMap;

use orchestra_plan::Choice as _;

use super::layout::{DetectorLayout, OutputColumn, OutputHints, fixed};

/// What is known of the layout of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecognisedLayout {
    /// It has this one, for this reason.
    Is(DetectorLayout, String),
    /// It can have any of these, or none.
    Open(Vec<DetectorLayout>),
    /// It is no detector of boxes, for this reason.
    Not(String),
}

/// What the metadata of a model says of its outputs.
pub fn told(metadata: &BTreeMap<String, String>) -> OutputHints {
    let has_more = matches!(metadata.get("task").map(String::as_str), Some("segment" | "pose"));
    OutputHints { classes: names(metadata).map(|names| names.len()), has_more }
}

/// What Ultralytics' exporters of all generations write; `None`: none of them has made the file.
fn exported(metadata: &BTreeMap<String, String>) -> Option<(Option<&str>, &'static [DetectorLayout])> {
    if !metadata.contains_key("names") || !metadata.contains_key("stride") {
        return None;
    }
    let task = metadata.get("task").map(String::as_str);
    // `end2end` is of the model, and `nms` of the export: a dict as Python prints it, in `args`.
    let is_true = |said: &str| said.trim().eq_ignore_ascii_case("true");
    let suppresses = |args: &String| {
        let entries = args.trim_matches(['{', '}']).split(',').filter_map(|entry| entry.split_once(':'));
        entries.into_iter().any(|(key, said)| key.trim().trim_matches(['\'', '"']) == "nms" && is_true(said))
    };
    let is_end_to_end = metadata.get("end2end").is_some_and(|said| is_true(said))
        || metadata.get("args").is_some_and(suppresses);
    Some((
        task,
        match (task, is_end_to_end) {
            (Some("obb"), true) => &[DetectorLayout::YoloEnd2endObb],
            // Earlier exporters do not say whether boxes are suppressed.
            (Some("obb"), false) => &[DetectorLayout::Yolov8Obb, DetectorLayout::YoloEnd2endObb],
            (Some("detect"), false) => &[DetectorLayout::Yolov8, DetectorLayout::YoloEnd2end],
            (Some("segment" | "pose"), false) => &[DetectorLayout::Yolov8],
            // YOLOv5 says no task.
            (None, false) => &[DetectorLayout::Yolov5, DetectorLayout::Yolov8],
            (Some("detect" | "segment" | "pose") | None, true) => &[DetectorLayout::YoloEnd2end],
            (Some(_), _) => &[],
        },
    ))
}

/// Tells the layout of a model by the names of its outputs and by what those who exported it wrote into its file. Shapes alone decide nothing:
/// they are the same for outputs that mean different things.
pub fn recognise(outputs: &[OutputColumn<'_>], metadata: &BTreeMap<String, String>) -> RecognisedLayout {
    let told = told(metadata);
    let fits = |layout: &DetectorLayout| layout.of(outputs, told).is_some();
    let by_name = |layout: DetectorLayout| {
        let names: Vec<_> = outputs.iter().map(|(_, tensor)| format!("`{}`", tensor.name)).collect();
        RecognisedLayout::Is(layout, format!("its outputs are called {}", names.join(", ")))
    };
    if fits(&DetectorLayout::Tf) {
        return by_name(DetectorLayout::Tf);
    }
    if fits(&DetectorLayout::Detr) {
        return by_name(DetectorLayout::Detr);
    }
    let Some((task, layouts)) = exported(metadata) else {
        return RecognisedLayout::Open(DetectorLayout::ALL.iter().copied().filter(fits).collect());
    };
    let said = match task {
        Some(task) if layouts.is_empty() => {
            return RecognisedLayout::Not(format!("its metadata says `task = {task}`"));
        }
        Some(task) => format!("its metadata names classes and says `task = {task}`"),
        None => "its metadata names classes and a stride, and no task".to_owned(),
    };
    let fitting: Vec<DetectorLayout> = layouts.iter().copied().filter(fits).collect();
    // A side of any length fits everything: the layout whose number of values per box is there as such is meant.
    let is_there = |layout: &DetectorLayout| {
        let side = usize::from(!matches!(layout, DetectorLayout::Yolov8 | DetectorLayout::Yolov8Obb));
        let found = layout.of(outputs, told).into_iter().flat_map(|found| found.columns);
        let mut tensors = found.filter_map(|at| outputs.iter().find(|(column, _)| *column == at));
        tensors.any(|(_, tensor)| fixed(tensor, side).is_some())
    };
    let there: Vec<DetectorLayout> = fitting.iter().copied().filter(is_there).collect();
    match (&fitting[..], &there[..]) {
        ([one], _) | (_, [one]) => {
            RecognisedLayout::Is(*one, format!("{said}, and its output is {}", one.outputs()))
        }
        _ => RecognisedLayout::Open(fitting),
    }
}

/// What speaks against a layout that a user names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    pub why: String,
    /// What it is instead.
    pub candidates: Vec<DetectorLayout>,
    /// The metadata says so, and the outputs are as it says. Otherwise the file may have been changed after its export.
    pub is_sure: bool,
}

/// What the metadata of a model and the names of its outputs say against a layout.
pub fn contradiction(
    layout: DetectorLayout,
    outputs: &[OutputColumn<'_>],
    metadata: &BTreeMap<String, String>,
) -> Option<Contradiction> {
    let is_exported = exported(metadata).is_some();
    match recognise(outputs, metadata) {
        RecognisedLayout::Is(is, why) if is != layout => {
            Some(Contradiction { why, candidates: vec![is], is_sure: is_exported })
        }
        RecognisedLayout::Open(candidates) if is_exported && !candidates.contains(&layout) => {
            let task = metadata.get("task").map_or("no task".to_owned(), |task| format!("`task = {task}`"));
            let is_sure = !candidates.is_empty();
            Some(Contradiction { why: format!("its metadata says {task}"), candidates, is_sure })
        }
        RecognisedLayout::Not(why) => Some(Contradiction { why, candidates: Vec::new(), is_sure: false }),
        RecognisedLayout::Is(..) | RecognisedLayout::Open(_) => None,
    }
}

/// The class names in the metadata of a model: `{0: 'person', 1: "driver's door"}`, as Python prints them, or a JSON list or object.
pub fn names(metadata: &BTreeMap<String, String>) -> Option<Vec<String>> {
    /// More classes than any detector has.
    const MOST: usize = 1 << 16;
    let text = metadata.get("names")?.trim();
    let (open, rest) = (text.chars().next()?, text.get(1..)?);
    let close = match open {
        '{' => '}',
        '[' => ']',
        _ => return None,
    };
    let mut rest = rest.strip_suffix(close)?.trim();
    let mut names = Vec::new();
    while !rest.is_empty() && names.len() < MOST {
        if open == '{' {
            let (number, after) = rest.split_once(':')?;
            let number: usize = number.trim().trim_matches(['"', '\'']).parse().ok()?;
            if number != names.len() {
                return None;
            }
            rest = after.trim_start();
        }
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut name = String::new();
        let mut escaped = false;
        let mut chars = rest[1..].char_indices();
        let end = loop {
            let (at, c) = chars.next()?;
            match c {
                _ if escaped => {
                    name.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                c if c == quote => break at,
                c => name.push(c),
            }
        };
        names.push(name);
        rest = rest[1 + end + 1..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    (!names.is_empty() && rest.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::fixed_tensor;
    use orchestra_core::{DType, Dim, TensorSpec};

    use super::*;

    type Said<'a> = &'a [(&'a str, &'a str)];

    const TWO: [(&str, &str); 2] = [("names", "{0: 'a', 1: 'b'}"), ("stride", "32")];

    /// 0 stands for a side of any length.
    fn with<T>(
        outputs: &[(&str, &[usize])],
        metadata: Said<'_>,
        then: impl FnOnce(&[OutputColumn<'_>], &BTreeMap<String, String>) -> T,
    ) -> T {
        let dim = |n: &usize| if *n == 0 { Dim::Dynamic } else { Dim::Fixed(*n) };
        let tensor = |(name, row): &(&str, &[usize])| TensorSpec {
            row: row.iter().map(dim).collect(),
            ..fixed_tensor(name, DType::F32, &[])
        };
        let tensors: Vec<_> = outputs.iter().map(tensor).collect();
        let outputs: Vec<OutputColumn<'_>> = tensors.iter().enumerate().collect();
        let metadata: BTreeMap<_, _> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        then(&outputs, &metadata)
    }

    fn recognised(outputs: &[(&str, &[usize])], metadata: Said<'_>) -> RecognisedLayout {
        with(outputs, metadata, recognise)
    }

    /// Of a model with two classes and one output, beside what else its file says.
    fn is(row: &[usize], more: Said<'_>) -> Option<&'static str> {
        match recognised(&[("output0", row)], &[&TWO, more].concat()) {
            RecognisedLayout::Is(layout, _) => Some(layout.name()),
            _ => None,
        }
    }

    #[test]
    fn a_layout_is_told_by_names_and_metadata_and_never_by_a_shape_alone() {
        let detect = ("task", "detect");
        assert_eq!(is(&[6, 8400], &[detect]), Some("yolov8"));
        assert_eq!(is(&[6, 0], &[detect]), Some("yolov8"), "any number of boxes");
        assert_eq!(is(&[300, 6], &[detect]), Some("yolo_end2end"));
        assert_eq!(is(&[0, 6], &[detect]), Some("yolo_end2end"));
        assert_eq!(is(&[300, 6], &[detect, ("end2end", "True")]), Some("yolo_end2end"));
        assert_eq!(is(&[25200, 7], &[]), Some("yolov5"));
        assert_eq!(is(&[6, 7], &[]), None, "either");
        assert_eq!(is(&[0, 0], &[detect]), None, "either");
        let named = |outputs: &[(&str, &[usize])]| match recognised(outputs, &[]) {
            RecognisedLayout::Is(layout, _) => Some(layout.name()),
            _ => None,
        };
        assert_eq!(named(&[("dets", &[300, 4]), ("labels", &[300, 91])]), Some("detr"));
        assert_eq!(named(&[("pred_boxes", &[300, 4]), ("logits", &[300, 80])]), Some("detr"));
        let of_tf: [(&str, &[usize]); 4] = [
            ("detection_boxes:0", &[100, 4]),
            ("detection_classes:0", &[100]),
            ("detection_scores:0", &[100]),
            ("num_detections:0", &[]),
        ];
        assert_eq!(named(&of_tf), Some("tf"));
        assert_eq!(named(&of_tf.map(|(name, row)| (name.trim_end_matches(":0"), row))), Some("tf"));
        let open = recognised(&[("scores", &[4420, 2]), ("boxes", &[4420, 4])], &[]);
        assert_eq!(
            open,
            RecognisedLayout::Open(vec![DetectorLayout::Ssd, DetectorLayout::Ultraface]),
            "two classes, or one and the background"
        );
        let RecognisedLayout::Open(open) = recognised(&[("output0", &[84, 8400])], &[]) else { panic!() };
        assert!(open.contains(&DetectorLayout::Yolov8) && open.contains(&DetectorLayout::Yolov5));
        let classify = [("names", "{0: 'a'}"), ("stride", "1"), ("task", "classify")];
        assert!(matches!(recognised(&[("output0", &[1000])], &classify), RecognisedLayout::Not(_)));
    }

    #[test]
    fn turned_boxes_masks_and_key_points_are_told_with_and_without_suppression_in_the_model() {
        let (obb, end) = (("task", "obb"), ("end2end", "True"));
        let nms = ("args", "{'batch': 1, 'agnostic_nms': False, 'nms': True}");
        let no_nms = ("args", "{'batch': 1, 'agnostic_nms': True, 'nms': False}");
        assert_eq!(is(&[7, 8400], &[obb]), Some("yolov8_obb"));
        assert_eq!(is(&[7, 0], &[obb, no_nms]), Some("yolov8_obb"));
        assert_eq!(is(&[6, 8400], &[obb]), None, "no angle");
        assert_eq!(is(&[7, 7], &[obb]), None, "either");
        for said in [end, nms, ("args", r#"{"nms": true}"#)] {
            assert_eq!(is(&[300, 7], &[obb, said]), Some("yolo_end2end_obb"), "{said:?}");
            assert_eq!(is(&[7, 7], &[obb, said]), Some("yolo_end2end_obb"), "{said:?}");
            assert_eq!(is(&[7, 8400], &[obb, said]), None, "{said:?}");
        }
        assert_eq!(is(&[300, 7], &[obb]), Some("yolo_end2end_obb"), "an export that does not say it");
        let segment = [TWO[0], TWO[1], ("task", "segment"), end];
        let of = |row: &[usize], said: Said<'_>| recognised(&[("o", row), ("protos", &[32, 160, 160])], said);
        assert!(matches!(of(&[38, 8400], &segment[..3]), RecognisedLayout::Is(DetectorLayout::Yolov8, _)));
        assert!(matches!(of(&[300, 38], &segment), RecognisedLayout::Is(DetectorLayout::YoloEnd2end, _)));
    }

    #[test]
    fn a_layout_that_is_named_must_be_what_the_metadata_says() {
        let against = |layout, outputs: &[(&str, &[usize])], said: Said<'_>| {
            let found = with(outputs, said, |outputs, said| contradiction(layout, outputs, said));
            found.map(|found| (found.candidates, found.is_sure))
        };
        let detect = [TWO[0], TWO[1], ("task", "detect")];
        let one = |row: &'static [usize]| [("output0", row)];
        assert_eq!(against(DetectorLayout::Yolov8, &one(&[6, 8400]), &detect), None);
        let sure = |layout| Some((vec![layout], true));
        assert_eq!(against(DetectorLayout::Yolov5, &one(&[6, 8400]), &detect), sure(DetectorLayout::Yolov8));
        assert_eq!(against(DetectorLayout::Yolox, &one(&[3549, 7]), &TWO), sure(DetectorLayout::Yolov5));
        // Both are possible, and what is named is neither.
        let both = Some((vec![DetectorLayout::Yolov8, DetectorLayout::YoloEnd2end], true));
        assert_eq!(against(DetectorLayout::Yolov5, &one(&[0, 0]), &detect), both);
        assert_eq!(against(DetectorLayout::YoloEnd2end, &one(&[0, 0]), &detect), None);
        // The outputs are not what the metadata says: the model was changed after its export.
        assert_eq!(against(DetectorLayout::Yolov5, &one(&[8400, 7]), &detect), Some((vec![], false)));
        let classify = [TWO[0], TWO[1], ("task", "classify")];
        assert_eq!(against(DetectorLayout::Yolov8, &one(&[6, 8400]), &classify), Some((vec![], false)));
        // Names are a habit, and no proof.
        let named = [("dets", &[300, 4][..]), ("labels", &[300, 91])];
        assert_eq!(against(DetectorLayout::Yolov5, &named, &[]), Some((vec![DetectorLayout::Detr], false)));
        let faces = [("scores", &[4420, 2][..]), ("boxes", &[4420, 4])];
        assert_eq!(against(DetectorLayout::Ssd, &faces, &[]), None);
        assert_eq!(against(DetectorLayout::Yolov5, &one(&[25200, 85]), &[]), None);
    }

    #[test]
    fn class_names_are_read_as_python_prints_them_and_rubbish_gives_none() {
        let read = |text: &str| names(&BTreeMap::from([("names".to_owned(), text.to_owned())]));
        assert_eq!(read(r#"{0: 'a, b', 1: "d's", 2: 'it\'s'}"#).unwrap(), ["a, b", "d's", "it's"]);
        assert_eq!(read(r#"["x", "ü"]"#).unwrap(), ["x", "ü"]);
        for rubbish in ["", "{", "{}", "{1: 'a'}", "{0: a}", "{0: 'a", "['a' 'b'", "é", "[é]", "{0: 'a\\"] {
            assert_eq!(read(rubbish), None, "{rubbish}");
        }
    }
}
