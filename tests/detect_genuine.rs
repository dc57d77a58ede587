//! Detectors as their authors have exported them, on pictures: `inspect` recognises what can be recognised, and the boxes are those that another
//! implementation, `scripts/detect_reference.py`, makes of the same outputs. Says nothing about how good the models are.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Workplace, repository};
use orchestra_testkit::skip::skip;
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::{Value, json};

/// What a script says that fetches models; `None`: they cannot be had, and the test is skipped.
#[track_caller]
fn fetched(script: &str) -> Option<String> {
    let path = repository().join(script);
    let fetched = Command::new("python3").arg(path).stdin(Stdio::null()).output().unwrap();
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stderr);
        let remedy = format!("run `python3 {script}` where pip has a network");
        skip(said.lines().next().unwrap_or("no detectors"), &remedy);
        return None;
    }
    Some(String::from_utf8(fetched.stdout).unwrap().trim_end().to_owned())
}

/// The numbers of a `.npy` file of f32.
fn numbers(file: &Path) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let begin = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert!(String::from_utf8_lossy(&bytes[..begin]).contains("'<f4'"));
    bytes[begin..].as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

struct Case {
    model: &'static str,
    picture: &'static str,
    /// Width and height.
    size: [u32; 2],
    /// Of the model's input, and what the picture takes of it: left, top, width, height.
    side: u32,
    taken: [u32; 4],
    /// Keys of the stages `pixels` and `found`.
    keys: [&'static str; 2],
    layout: &'static str,
    /// What is compared of the model's outputs, as the sink names it.
    output: &'static str,
    shape: [usize; 2],
    threshold: f64,
}

/// What is found in the picture, and what the other implementation finds in the same outputs, for which it is given `more`.
fn found_by_both(models: &Path, case: &Case, more: &Value) -> [Vec<Value>; 2] {
    let place = Workplace::new();
    let Case { side, threshold, output, keys: [pixels, found], .. } = case;
    let pixels = format!("size = [{side}, {side}]\nfit = 'contain'\npad = 114\n{pixels}");
    let flow = WorkflowFile::new()
        .source("pictures", "images", format_args!("paths = [{:?}]", repository().join(case.picture)))
        .model("detector", models.join(case.model))
        .stage("pixels", "image", "pictures", pixels)
        .infer("raw", "pixels", "detector")
        .stage("found", "detect", "raw", format_args!("threshold = {threshold}\n{found}"))
        .results("found")
        .sink("raw", "npy", output)
        .on_cpu();
    place.write(flow);
    place.run(&[]).must_exit(0);
    let record: Value =
        serde_json::from_str(&fs::read_to_string(place.out().join("results.jsonl")).unwrap()).unwrap();
    let found = record["result"].as_array().unwrap().clone();

    let name = Path::new(case.picture).file_name().unwrap().to_str().unwrap();
    let outputs = numbers(&place.out().join("raw").join(format!("{name}.npy")));
    assert_eq!(outputs.len(), case.shape[0] * case.shape[1]);
    let [left, top, width, height] = case.taken.map(f64::from);
    let [across, down] = [f64::from(case.size[0]) / width, f64::from(case.size[1]) / height];
    let output = if case.layout == "dbnet" { "map" } else { "output" };
    let mut given = json!({
        "layout": case.layout, "threshold": threshold, "iou": 0.45, "max": 300, "row": [side, side], "picture": case.size,
        "to_picture": [across, 0, -left * across, 0, down, -top * down],
        "tensors": { output: { "shape": case.shape, "data": outputs } },
    });
    given.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut python = Command::new("python3");
    python.arg(repository().join("scripts/detect_reference.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    python.stdin.take().unwrap().write_all(json!([given]).to_string().as_bytes()).unwrap();
    let answer = python.wait_with_output().unwrap();
    assert!(answer.status.success());
    let [expected]: [Vec<Value>; 1] = serde_json::from_slice(&answer.stdout).unwrap();
    [found, expected]
}

/// Finds in the picture what the other implementation finds, which is given `more`; gives how many boxes and the best score.
fn agrees(models: &Path, case: &Case, more: &Value) -> (usize, f64) {
    let [found, expected] = found_by_both(models, case, more);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let corners = |value: &Value| serde_json::from_value::<[f64; 4]>(value["box"].clone()).unwrap();
        let score = |value: &Value| value["score"].as_f64().unwrap();
        assert_eq!(found["class"], expected["class"], "{found} {expected}");
        assert!((score(found) - score(expected)).abs() < 1e-6, "{found} {expected}");
        let is_near = corners(found).iter().zip(corners(expected)).all(|(a, b)| (a - b).abs() < 1e-2);
        assert!(is_near, "{found} {expected}");
    }
    (found.len(), found[0]["score"].as_f64().unwrap())
}

#[test]
fn boxes_of_genuine_exports_are_those_of_another_implementation() {
    let Some(models) = fetched("scripts/detectors.py").map(PathBuf::from) else { return };
    let place = Workplace::new();
    let inspect = |model: &str| {
        let path = models.join(model);
        place.command(&["inspect", path.to_str().unwrap()]).must_exit(0).stdout.clone()
    };
    // Of a batch, a size and a number of boxes that are free, it has the layout and the classes from its metadata.
    assert!(inspect("320n.onnx").contains("detector of layout yolov8"));
    let yolov8 = Case {
        model: "320n.onnx",
        picture: "tests/photo.jpg",
        size: [500, 375],
        side: 320,
        taken: [0, 40, 320, 240],
        keys: ["", ""],
        layout: "yolov8",
        output: "raw",
        shape: [22, 2100],
        threshold: 0.001,
    };
    let (n, best) = agrees(&models, &yolov8, &json!({}));
    println!("yolov8: {n} boxes, the best has {best}");
    assert!(n > 10 && best > 0.5);

    // Of the 33 numbers of a box behind its sides, one is the score of the only class, and 32 are of masks: the metadata say so.
    assert!(inspect("slider.onnx").contains("detector of layout yolov8"));
    let masks = Case {
        model: "slider.onnx",
        side: 640,
        taken: [0, 80, 640, 480],
        output: "raw.output0",
        shape: [37, 8400],
        threshold: 0.0001,
        ..yolov8
    };
    let (n, best) = agrees(&models, &masks, &json!({ "classes": 1 }));
    println!("yolov8 with masks: {n} boxes, the best has {best}");
    assert!(n > 1 && best > 0.2);

    // It says nothing of itself: the layout has to be said, among others that it can be.
    let said = inspect("common_det.onnx");
    assert!(said.contains("yolox") && !said.contains("detector of layout"), "{said}");
    let yolox = Case {
        model: "common_det.onnx",
        picture: "examples/read-text/pages/page-0001.png",
        size: [611, 728],
        side: 416,
        taken: [34, 0, 349, 416],
        keys: ["color = \"bgr\"\nscale = 1.0", "layout = \"yolox\""],
        layout: "yolox",
        output: "raw",
        shape: [3549, 6],
        threshold: 0.02,
    };
    let (n, best) = agrees(&models, &yolox, &json!({}));
    println!("yolox: {n} boxes, the best has {best}");
    assert!(n > 50 && best > 0.5);
}

#[test]
fn texts_of_a_genuine_export_are_those_of_another_implementation() {
    if fetched("examples/read-text/fetch.py").is_none() {
        return;
    }
    let case = Case {
        model: "PP-OCRv6_det_small.onnx",
        picture: "examples/read-text/pages/page-0001.png",
        size: [611, 728],
        side: 736,
        taken: [59, 0, 618, 736],
        keys: ["color = \"bgr\"\nmean = 0.5\nstd = 0.5", "layout = \"dbnet\"\ndilate = true"],
        layout: "dbnet",
        output: "raw",
        shape: [736, 736],
        threshold: 0.3,
    };
    let more = json!({ "box_threshold": 0.5, "unclip": 1.6, "min_size": 3, "dilate": true });
    let [found, expected] = found_by_both(&repository().join("examples/read-text/models"), &case, &more);
    println!("dbnet: {} texts", found.len());
    assert!(found.len() > 10);
    assert_eq!(found.len(), expected.len());
    // Ours do not reach beyond the picture.
    let inside = |[x, y]: [f64; 2]| [x.clamp(0.0, 611.0), y.clamp(0.0, 728.0)];
    let corners = |text: &Value| -> Vec<[f64; 2]> {
        let corners: Vec<[f64; 2]> = serde_json::from_value(text["polygon"].clone()).unwrap();
        corners.into_iter().map(inside).collect()
    };
    for text in &found {
        let polygon = corners(text);
        // Which corner comes first is a matter of taste, and which pixels of the outline count for the score.
        let is_near = |a: &[f64; 2], b: &[f64; 2]| (a[0] - b[0]).hypot(a[1] - b[1]) < 0.05;
        let is_same = |other: &&Value| polygon.iter().all(|p| corners(other).iter().any(|q| is_near(p, q)));
        let same = expected.iter().find(is_same).unwrap_or_else(|| panic!("{text} of {expected:?}"));
        let score = |text: &Value| text["score"].as_f64().unwrap();
        assert!((score(text) - score(same)).abs() < 0.08, "{text} {same}");
    }
}
