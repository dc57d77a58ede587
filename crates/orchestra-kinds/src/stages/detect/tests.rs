//! Every layout against another implementation, `scripts/detect_reference.py`, and outputs that are rubbish.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use orchestra_core::data::{ItemError, OwnedRow, OwnedValue, TensorView, Value};
use orchestra_core::shapes::{Emit, RowWork as _};
use orchestra_core::{DType, LeftOut, Placement};
use orchestra_plan::Choice as _;
use serde_json::{Value as Json, json};

use super::super::shared::testing::apply;
use super::dbnet::Dbnet;
use super::decode::{BoxDecoding, Decoding};
use super::layout::{DetectorLayout, OutputTensor};
use super::lists::Logits;
use super::run::{DetectBuffers, Detecting};

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

fn settings(layout: DetectorLayout) -> BoxDecoding {
    BoxDecoding {
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

fn run(decode: Decoding, tensors: &[OutputTensor]) -> Result<Vec<OwnedRow>, ItemError> {
    let work = Detecting { decode, is_placed: true, labels: vec![Arc::from("zero")] };
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
    let mut found: Vec<OwnedRow> = Vec::new();
    apply(&work, &inputs, |row| {
        let [Value::List(rows)] = row else { panic!("no list: {row:?}") };
        found.extend_from_slice(rows);
    })?;
    Ok(found)
}

fn numbers(value: &OwnedValue) -> Vec<f64> {
    let OwnedValue::Tensor { dtype, data, .. } = value else { panic!("{value:?}") };
    let all = data.chunks_exact(dtype.size_bytes());
    all.map(|bytes| orchestra_core::Element::read(*dtype, bytes).to_f64()).collect()
}

fn tensor(name: &str, shape: &[usize], values: Vec<f32>) -> OutputTensor {
    OutputTensor { name: name.to_owned(), shape: shape.to_vec(), values }
}

/// One case for each layout and form: its settings, its outputs, and what the reference has to be told beside them.
fn cases(seed: u64) -> Vec<(BoxDecoding, Vec<OutputTensor>, Json)> {
    let mut random = Random(seed);
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
    cases.push((settings(DetectorLayout::Yolov5), vec![tensor("output", &[200, 8], objects)], json!({})));
    let masks = BoxDecoding { classes: Some(2), ..settings(DetectorLayout::Yolov8) };
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
    cases.push((
        settings(DetectorLayout::Yolov8Obb),
        vec![tensor("output", &[7, 200], numbers.clone())],
        json!({}),
    ));
    let mut ended = Vec::new();
    for n in 0..50 {
        ended.extend(corners(box_of(&mut random, pixels)));
        ended.extend([random.share(), (n % 3) as f32]);
    }
    // The same boxes and scores as those of `yolov8_obb`, none of them suppressed.
    let ended_turned = (0..200).flat_map(|n| [0, 1, 2, 3, 4, 5, 6].map(|at| numbers[at * 200 + n]));
    let ended_turned =
        ended_turned.enumerate().map(|(at, v)| if at % 7 == 5 { (v * 3.0).floor() } else { v });
    let ended_turned = vec![tensor("output", &[200, 7], ended_turned.collect())];
    cases.push((settings(DetectorLayout::YoloEnd2endObb), ended_turned, json!({})));
    cases.push((settings(DetectorLayout::YoloEnd2end), vec![tensor("output", &[50, 6], ended)], json!({})));
    let cells = 12 * 8 + 6 * 4 + 3 * 2;
    let grid = (0..cells * 7).map(|_| random.between(-0.5, 1.0)).collect();
    cases.push((settings(DetectorLayout::Yolox), vec![tensor("output", &[cells, 7], grid)], json!({})));
    let relative: Vec<f32> = (0..60).flat_map(|_| corners(box_of(&mut random, [1.0; 2]))).collect();
    let centres: Vec<f32> = (0..60).flat_map(|_| box_of(&mut random, [1.0; 2])).collect();
    let mut shares = |n: usize| -> Vec<f32> { (0..n).map(|_| random.share()).collect() };
    let boxes = || tensor("boxes", &[60, 4], relative.clone());
    cases.push((
        settings(DetectorLayout::Ssd),
        vec![boxes(), tensor("scores", &[60, 4], shares(240))],
        json!({}),
    ));
    let in_pixels: Vec<f32> = relative.iter().enumerate().map(|(at, share)| share * pixels[at % 2]).collect();
    let plain = BoxDecoding { is_relative: false, background: false, ..settings(DetectorLayout::Ssd) };
    cases.push((
        plain,
        vec![tensor("boxes", &[60, 4], in_pixels.clone()), tensor("scores", &[60, 3], shares(180))],
        json!({ "relative": false, "background": false }),
    ));
    cases.push((
        settings(DetectorLayout::Ultraface),
        vec![boxes(), tensor("scores", &[60, 2], shares(120))],
        json!({}),
    ));
    let classes = || (0..60).map(|n| (n % 5) as f32).collect::<Vec<_>>();
    let labelled = vec![boxes(), tensor("scores", &[60], shares(60)), tensor("labels", &[60], classes())];
    cases.push((settings(DetectorLayout::Detr), labelled, json!({})));
    // With `orig_target_sizes`, the size of the row: corners in pixels of it.
    let sized = vec![
        tensor("boxes", &[60, 4], in_pixels),
        tensor("scores", &[60], shares(60)),
        tensor("labels", &[60], classes()),
    ];
    cases.push((
        BoxDecoding { is_relative: false, ..settings(DetectorLayout::Detr) },
        sized,
        json!({ "relative": false }),
    ));
    let logits: Vec<f32> = shares(180).iter().map(|v| v * 4.0 - 3.0).collect();
    let queries = |boxes: &str, scores: &str| {
        vec![tensor(boxes, &[60, 4], centres.clone()), tensor(scores, &[60, 3], logits.clone())]
    };
    cases.push((settings(DetectorLayout::Detr), queries("dets", "labels"), json!({})));
    let softmax = BoxDecoding { logits: Logits::Softmax, ..settings(DetectorLayout::Detr) };
    cases.push((softmax, queries("pred_boxes", "logits"), json!({ "scores": "softmax" })));
    let tf = vec![
        tensor("detection_boxes", &[60, 4], relative.clone()),
        tensor("detection_scores", &[60], shares(60)),
        tensor("detection_classes", &[60], classes()),
        tensor("num_detections", &[], vec![41.0]),
    ];
    cases.push((settings(DetectorLayout::Tf), tf, json!({})));
    cases
}

fn json_of(layout: DetectorLayout, tensors: &[OutputTensor], more: &Json) -> Json {
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
    let cases: Vec<_> = (0..20).flat_map(cases).collect();
    for layout in DetectorLayout::ALL.iter().copied() {
        // Texts have a test of their own.
        let is_here = cases.iter().any(|(settings, ..)| settings.layout == layout);
        assert!(is_here || layout == DetectorLayout::Dbnet, "`{}` is compared with nothing", layout.name());
    }
    let expected =
        reference(&cases.iter().map(|(s, t, more)| json_of(s.layout, t, more)).collect::<Vec<_>>());
    for ((settings, tensors, _), expected) in cases.into_iter().zip(expected) {
        let layout = settings.layout;
        let found = run(Decoding::Boxes(settings), &tensors).unwrap();
        assert!(found.len() > 5, "{layout:?} finds {}", found.len());
        assert_eq!(found.len(), expected.len(), "{layout:?}");
        for (row, wanted) in found.iter().zip(&expected) {
            let of = |key: &str| serde_json::from_value::<Vec<f64>>(wanted[key].clone());
            assert_eq!(numbers(&row[1]), [wanted["class"].as_f64().unwrap()], "{layout:?}: {wanted}");
            assert!(are_close(&numbers(&row[2]), &[wanted["score"].as_f64().unwrap()], 1e-5));
            assert!(are_close(&numbers(&row[3]), &of("box").unwrap(), 1e-3), "{layout:?}: {wanted} {row:?}");
            if layout.turns() {
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
    // Two regions that grow touch each other, and have pixels between them, so that the mean is lower.
    for (dilate, box_threshold, n) in [(false, 0.5, 4), (true, 0.25, 3)] {
        let dbnet = Dbnet { threshold: 0.3, box_threshold, unclip: 1.6, max: 100, min_size: 3.0, dilate };
        let more = json!({
            "threshold": 0.3, "box_threshold": box_threshold, "unclip": 1.6, "min_size": 3, "dilate": dilate,
        });
        let case = json_of(DetectorLayout::Dbnet, std::slice::from_ref(&map), &more);
        let [expected] = &reference(&[case])[..] else { panic!() };
        let found = run(Decoding::Texts(dbnet), std::slice::from_ref(&map)).unwrap();
        assert_eq!((found.len(), expected.len()), (n, n), "{dilate}");
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
            let score = wanted["score"].as_f64().unwrap();
            assert!(are_close(&numbers(&row[2]), &[score], 0.08), "{wanted} {row:?}");
        }
        let first = numbers(&found[0][4]);
        assert!(first[0] < first[2] && first[1] < first[5], "from the top left corner: {first:?}");
    }
}

#[test]
fn outputs_of_another_shape_than_the_plan_says_fail_the_item_by_name() {
    for (settings, tensors, _) in cases(7) {
        let layout = settings.layout;
        for at in 0..tensors.len() {
            for shape in [&[3][..], &[2, 3], &[1, 2, 3], &[0, 0], &[0, 4], &[0, 9]] {
                let mut broken: Vec<OutputTensor> =
                    tensors.iter().map(|t| tensor(&t.name, &t.shape, t.values.clone())).collect();
                let n = shape.iter().product();
                broken[at] = tensor("broken", shape, vec![0.9; n]);
                // Anything but a panic.
                if let Err(item_error) = run(Decoding::Boxes(settings.clone()), &broken) {
                    assert!(!item_error.error.contains("bug"), "{layout:?}: {item_error:?}");
                }
            }
        }
        let rubbish: Vec<OutputTensor> = tensors
            .iter()
            .map(|t| {
                let values = [f32::NAN, f32::INFINITY, -1e30, 0.9, f32::NEG_INFINITY];
                let values = (0..t.values.len()).map(|n| values[n % 5]).collect();
                tensor(&t.name, &t.shape, values)
            })
            .collect();
        drop(run(Decoding::Boxes(settings), &rubbish));
    }
}

/// What was left out.
#[derive(Default)]
struct Told(Vec<(LeftOut, u64)>);

impl Emit for Told {
    fn parts(&mut self, _: usize) -> Result<(), ItemError> {
        Ok(())
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), ItemError> {
        assert!(matches!(row, [Value::List(rows)] if rows.len() == 1));
        Ok(())
    }

    fn left_out(&mut self, what: LeftOut, n: u64) {
        self.0.push((what, n));
    }
}

#[test]
fn a_class_that_is_none_fails_the_item_and_boxes_that_show_nothing_are_counted() {
    let end_to_end = |rows: &[[f32; 6]]| {
        let of = tensor("output", &[rows.len(), 6], rows.concat());
        let work = Detecting {
            decode: Decoding::Boxes(settings(DetectorLayout::YoloEnd2end)),
            is_placed: true,
            labels: Vec::new(),
        };
        let data: Vec<u8> = of.values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let placed = placed().bytes();
        let view = TensorView { name: "output", dtype: DType::F32, shape: &of.shape, data: &data };
        let mut told = Told::default();
        let buffers = &mut DetectBuffers::default();
        work.apply(buffers, &[Value::Tensor(view), Placement::value(&placed)], &mut told).map(|()| told.0)
    };
    let ok = [30.0, 30.0, 50.0, 50.0, 0.9, 2.0];
    for class in [-1.0, 1.5, f32::INFINITY, 1e30] {
        let refused = end_to_end(&[ok, [30.0, 30.0, 40.0, 40.0, 0.7, class]]).unwrap_err();
        assert!(refused.error.contains("`output` gives a box the class"), "{}", refused.error);
        // Padding.
        assert!(end_to_end(&[ok, [-1.0, -1.0, -1.0, -1.0, -1.0, class]]).unwrap().is_empty());
    }
    let turned_round = [50.0, 50.0, 30.0, 60.0, 0.9, 0.0];
    let flat = [30.0, 30.0, 30.0, 50.0, 0.9, 0.0];
    let outside = [-90.0, 30.0, -80.0, 50.0, 0.9, 0.0];
    let left_out = end_to_end(&[turned_round, ok, flat, outside]).unwrap();
    assert_eq!(left_out, [(LeftOut::BoxesOutside, 1), (LeftOut::BoxesWithoutArea, 2)]);
}
