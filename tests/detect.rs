//! From a map of texts to records: boxes come back in pixels of the picture, each crop shows its text upright, and both stand in one record.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::Workplace;
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_testkit::models::{self, spec};
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;

const WIDTH: usize = 300;
const HEIGHT: usize = 180;

/// A text: the middle, half of its length and half of its height, and the angle by which it is turned.
type Text = (f64, f64, f64, f64, f64);

const TEXTS: [Text; 3] =
    [(80.0, 40.0, 60.0, 12.0, 0.0), (200.0, 110.0, 60.0, 14.0, -0.35), (50.0, 125.0, 10.0, 35.0, 0.0)];

/// How bright a pixel is: texts are white, and their first third is gray.
fn brightness(texts: &[Text], x: usize, y: usize) -> u8 {
    let of = |(cx, cy, w, h, angle): &Text| {
        let (x, y) = (x as f64 - cx, y as f64 - cy);
        let (u, v) = (x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin());
        let is_within = u.abs() <= *w && v.abs() <= *h;
        // What is higher than wide begins at its top.
        let begin = if w > h { u < -w / 3.0 } else { v < -h / 3.0 };
        is_within.then_some(if begin { 180 } else { 250 })
    };
    texts.iter().find_map(of).unwrap_or(0)
}

/// A BMP of 24 bits.
fn write_picture(path: &Path, texts: &[Text]) {
    let size = 54 + WIDTH * HEIGHT * 3;
    let mut bytes = b"BM".to_vec();
    for number in [size, 0, 54, 40, WIDTH, HEIGHT, 1 | 24 << 16, 0, 0, 2835, 2835, 0, 0] {
        bytes.extend(u32::try_from(number).unwrap().to_le_bytes());
    }
    for y in (0..HEIGHT).rev() {
        bytes.extend((0..WIDTH).flat_map(|x| [brightness(texts, x, y); 3]));
    }
    fs::write(path, bytes).unwrap();
}

fn workflow(place: &Workplace) {
    let folder = place.path("models");
    let map = models::identity(&folder, DType::F32, &[1, 80, 120]).unwrap();
    let map = map.with_file_name("map.onnx");
    fs::rename(folder.join("identity_f32.onnx"), &map).unwrap();
    let read = models::identity(&folder, DType::F32, &[1, 12, 48]).unwrap();
    let parts = "rotate = true\nsize = [12, 48]\nfit = 'left'\ncolor = 'gray'";
    let flow = WorkflowFile::of_pictures("pages")
        .model("find", map)
        .model("read", read)
        .gray("small", "pages", [80, 120], "fit = 'contain'")
        .infer("map", "small", "find")
        .stage("texts", "detect", "map", "layout = 'dbnet'")
        .stage("parts", "crop", ["pages", "texts"], parts)
        .infer("read", "parts", "read")
        .stage("record", "gather", ["parts.label", "parts.polygon", "read"], "")
        .results("record")
        .on_cpu();
    place.write(flow);
}

#[test]
fn texts_are_found_where_they_are_and_read_upright() {
    let place = Workplace::new();
    write_picture(&place.images().join("texts.bmp"), &TEXTS);
    write_picture(&place.images().join("nothing.bmp"), &[]);
    fs::write(place.images().join("rubbish.bmp"), "BM, they said").unwrap();
    workflow(&place);
    place.run(&[]).must_exit(65);
    let failures = place.failures();
    assert_eq!((failures.len(), failures[0]["item"].as_str()), (1, Some("rubbish.bmp")));
    let records = place.lines("results.jsonl");
    let of = |name: &str| records.iter().find(|r| r["item"].as_str().unwrap().ends_with(name)).unwrap();
    assert_eq!(of("nothing.bmp")["result"], Value::Array(Vec::new()));
    let parts = of("texts.bmp")["result"].as_array().unwrap();
    assert_eq!(parts.len(), TEXTS.len());
    for (cx, cy, w, h, angle) in TEXTS {
        let corners = |part: &Value| -> Vec<[f64; 2]> {
            serde_json::from_value(part["parts.polygon"].clone()).unwrap()
        };
        let middle = |part: &Value| {
            let sum = corners(part).iter().fold([0.0; 2], |sum, p| [sum[0] + p[0], sum[1] + p[1]]);
            (sum[0] / 4.0 - cx).hypot(sum[1] / 4.0 - cy)
        };
        // A pixel of the map is 2.5 of the picture.
        let part = parts.iter().find(|part| middle(part) < 3.0).unwrap();
        assert_eq!(part["parts.label"], "text");
        let polygon = corners(part);
        let side = |a: usize, b: usize| (polygon[a][0] - polygon[b][0]).hypot(polygon[a][1] - polygon[b][1]);
        // Grown on each side by 1.6 times the area, divided by the perimeter.
        let grow = 1.6 * (4.0 * w * h) / (2.0 * (w + h) * 2.0) * 2.0;
        assert!((side(0, 1) - (2.0 * w + grow)).abs() < 8.0, "{part}");
        assert!((side(0, 3) - (2.0 * h + grow)).abs() < 8.0, "{part}");
        let turned = (polygon[1][1] - polygon[0][1]).atan2(polygon[1][0] - polygon[0][0]);
        assert!((turned - angle).abs() < 0.06, "{turned} for {angle}");
        // The crop begins with the gray third, also where the text ran downwards.
        let pixels: Vec<Vec<f64>> = serde_json::from_value(part["read"][0].clone()).unwrap();
        let line = &pixels[6];
        let inked = line.iter().filter(|v| **v > 0.6).count();
        let gray = line.iter().filter(|v| (**v * 255.0 - 180.0).abs() < 12.0).count();
        let first = line.iter().position(|v| *v > 0.6).unwrap();
        assert!((line[first + 2] * 255.0 - 180.0).abs() < 12.0, "{line:?}");
        assert!(inked > 12 && (gray as f64 / inked as f64 - 1.0 / 3.0).abs() < 0.15, "{line:?}");
    }
    place.nothing_is_left();
}

#[test]
fn what_inspect_prints_is_a_workflow_and_rubbish_is_no_model() {
    let place = Workplace::new();
    let model = models::identity(&place.path("models"), DType::F32, &[3, 32, 48]).unwrap();
    write_picture(&place.images().join("one.bmp"), &TEXTS);
    let said = place.command(&["inspect", model.to_str().unwrap()]);
    let text = &said.must_exit(0).stdout;
    assert!(
        text.contains("# operators  1 node: Identity 1\n") && text.contains("size = [32, 48]\n"),
        "{text}"
    );
    place.write(text);
    place.on_file("check", &["--offline"]).must_exit(0);
    let said = place.command(&["inspect", model.to_str().unwrap(), "--json"]);
    let json: Value = serde_json::from_str(&said.must_exit(0).stdout).unwrap();
    assert_eq!(json["inputs"][0]["shape"], serde_json::json!([null, 3, 32, 48]));
    assert_eq!(json["recognised"]["purpose"], "unknown");
    for (rubbish, why) in [("images/one.bmp", "is no ONNX model"), ("images/two.bmp", "does not exist")] {
        let path = place.path(rubbish);
        place.command(&["inspect", path.to_str().unwrap()]).must_exit(69).must_say(&[why]);
    }
}

#[test]
fn what_inspect_tells_a_program_of_a_detector_is_all_that_its_file_says_and_sizes_it_by_the_metadata() {
    let place = Workplace::new();
    write_picture(&place.images().join("one.bmp"), &TEXTS);
    let open = |row: &[usize]| {
        let row = row.iter().map(|side| if *side == 0 { Dim::Dynamic } else { Dim::Fixed(*side) });
        TensorSpec { row: row.collect(), ..spec("images", DType::F32, &[]) }
    };
    let metadata = [("names", "{0: 'cat', 1: 'dog'}"), ("stride", "32"), ("task", "detect")];
    let inspect = |name: &str, more: &[(&str, &str)]| {
        // Boxes of four sides and two classes.
        let model = ModelBuilder::new(name)
            .input(&open(&[3, 0, 0]))
            .output(&TensorSpec { name: "output0".to_owned(), ..open(&[6, 0]) })
            .node("Identity", &["images"], &["output0"], &[]);
        let entries = metadata.iter().chain(more);
        let model = entries.fold(model, |model, (key, value)| model.metadata(key, value));
        let path = model.write(&place.path("models")).unwrap();
        let said = place.command(&["inspect", path.to_str().unwrap(), "--json"]);
        serde_json::from_str::<Value>(&said.must_exit(0).stdout).unwrap()
    };
    let json = inspect("sized", &[("imgsz", "[96, 64]")]);
    assert_eq!(
        json["inputs"],
        serde_json::json!([{ "name": "images", "dtype": "f32", "shape": [null, 3, null, null] }])
    );
    assert_eq!(
        json["outputs"],
        serde_json::json!([{ "name": "output0", "dtype": "f32", "shape": [null, 6, null] }])
    );
    let expected: serde_json::Map<String, Value> = metadata
        .iter()
        .chain(&[("imgsz", "[96, 64]")])
        .map(|(key, value)| ((*key).to_owned(), (*value).into()))
        .collect();
    assert_eq!(json["metadata"], Value::Object(expected));
    let recognised = &json["recognised"];
    assert_eq!((&recognised["purpose"], &recognised["layout"]), (&"detector".into(), &"yolov8".into()));
    assert_eq!(recognised["possible_layouts"], serde_json::json!([]));
    let why = recognised["why"].as_str().unwrap();
    assert!(why.starts_with("its metadata names classes and says `task = detect`"), "{why}");
    let workflow = json["workflow"].as_str().unwrap();
    assert!(
        workflow.contains("size = [96, 64]\n") && workflow.contains("layout = \"yolov8\"\n"),
        "{workflow}"
    );
    place.write(workflow);
    place.on_file("check", &["--offline"]).must_exit(0);
    // Nothing else tells the size.
    let json = inspect("unsized", &[]);
    let workflow = json["workflow"].as_str().unwrap();
    assert!(workflow.contains("size = [640, 640]  # the model takes any size"), "{workflow}");
}

#[test]
fn what_inspect_prints_for_a_detector_with_open_logits_is_a_workflow_with_either_choice() {
    let place = Workplace::new();
    let model = ModelBuilder::new("queries")
        .input(&spec("pixel_values", DType::F32, &[3, 32, 32]))
        .output(&spec("logits", DType::F32, &[100, 8]))
        .output(&spec("pred_boxes", DType::F32, &[100, 4]))
        .node("Identity", &["pixel_values"], &["logits"], &[])
        .node("Identity", &["pixel_values"], &["pred_boxes"], &[])
        .write(&place.path("models"))
        .unwrap();
    write_picture(&place.images().join("one.bmp"), &TEXTS);
    let said = place.command(&["inspect", model.to_str().unwrap()]);
    let printed = said.must_exit(0).stdout.clone();
    let check = |text: &str| {
        place.write(text);
        place.on_file("check", &["--offline"])
    };
    check(&printed).must_exit(0);
    let other = printed.replace("\nscores = \"sigmoid\"", "\n#").replace("\n# scores = ", "\nscores = ");
    assert!(other.contains("\nscores = \"softmax\"") && !other.contains("\"sigmoid\""), "{printed}");
    check(&other).must_exit(0);
    check(&other.replace("\nscores = ", "\n# ")).must_exit(78).must_say(&["say it: scores = "]);
}

#[test]
fn a_model_that_says_nothing_of_itself_is_an_error_that_lists_what_it_can_be() {
    let place = Workplace::new();
    let quiet = ModelBuilder::new("quiet")
        .input(&spec("images", DType::F32, &[1, 32, 32]))
        .output(&spec("output", DType::F32, &[100, 8]))
        .node("Identity", &["images"], &["output"], &[])
        .write(&place.path("models"))
        .unwrap();
    let text = format!(
        "version = 1\n[sources.pages]\nkind = \"images\"\npaths = [\"images\"]\n[models.find]\npath = {quiet:?}\n\
         [stages.small]\nkind = \"image\"\nfrom = \"pages\"\nsize = [32, 32]\ncolor = \"gray\"\n\
         [stages.raw]\nkind = \"infer\"\nfrom = \"small\"\nmodel = \"find\"\n[stages.found]\nkind = \"detect\"\nfrom = \"raw\"\n\
         [sinks.results]\nkind = \"jsonl\"\nfrom = \"found\"\n"
    );
    write_picture(&place.images().join("one.bmp"), &[]);
    let check = |text: &str| {
        place.write(text);
        place.on_file("check", &["--offline"])
    };
    check(&text).must_exit(78).must_say(&[
        "stage `found` cannot tell how `raw` lays out its boxes",
        "workflow.toml:18:8",
        "say it: layout = \"..\"; by their shapes it can be `yolov5`, `yolov8`, `yolov8_obb`, `yolox`",
    ]);
    let said = |layout: &str| {
        text.replace("kind = \"detect\"", &format!("kind = \"detect\"\nlayout = \"{layout}\""))
    };
    check(&said("yolov5")).must_exit(0);
    check(&said("tf")).must_exit(78);
}

/// A detector as RT-DETR exports are: it finds the smallest box around all that is as white as the whitest pixel, from 0 to 1 of the row, and
/// multiplies it by `orig_target_sizes`.
fn write_sized_detector(folder: &Path, [height, width]: [usize; 2]) -> PathBuf {
    let axes = |axes: &[i64]| ("axes", Attribute::Ints(axes.to_vec()));
    let axis = |axis| ("axis", Attribute::Int(axis));
    let keep = |is| ("keepdims", Attribute::Int(is));
    let to_f32 = [("to", Attribute::Int(1))];
    let sides = [width, height, width, height].map(|side| 1.0 / side as f32);
    let first_and_last = |model: ModelBuilder, over: i64, [first, last]: [&str; 2]| {
        let lines = format!("lines_of_{first}");
        let from_behind = ("select_last_index", Attribute::Int(1));
        model
            .node("ReduceMax", &["images"], &[&lines], &[axes(&[over]), keep(0)])
            .node("ArgMax", &[&lines], &[first], &[axis(2), keep(1)])
            .node("ArgMax", &[&lines], &[last], &[axis(2), keep(1), from_behind])
    };
    let model = ModelBuilder::new("sized")
        .input(&spec("images", DType::F32, &[1, height, width]))
        .input(&spec("orig_target_sizes", DType::I64, &[2]))
        .output(&spec("labels", DType::I64, &[1]))
        .output(&spec("boxes", DType::F32, &[1, 4]))
        .output(&spec("scores", DType::F32, &[1]))
        .constant("sides", &[4], &sides)
        .constant("end", &[4], &[0.0, 0.0, 1.0, 1.0]);
    let model = first_and_last(model, 2, ["left", "right"]);
    first_and_last(model, 3, ["top", "bottom"])
        .node("Sub", &["left", "left"], &["zero"], &[])
        .node("ReduceMax", &["zero"], &["labels"], &[axes(&[2]), keep(0)])
        .node("ReduceMax", &["images"], &["scores"], &[axes(&[2, 3]), keep(0)])
        .node("Concat", &["left", "top", "right", "bottom"], &["cells"], &[axis(2)])
        .node("Cast", &["cells"], &["first"], &to_f32)
        .node("Add", &["first", "end"], &["edges"], &[])
        .node("Mul", &["edges", "sides"], &["shares"], &[])
        .node("Concat", &["orig_target_sizes", "orig_target_sizes"], &["twice"], &[axis(1)])
        .node("Cast", &["twice"], &["sizes"], &to_f32)
        .node("Constant", &[], &["second"], &[("value_ints", Attribute::Ints(vec![1]))])
        .node("Unsqueeze", &["sizes", "second"], &["factors"], &[])
        .node("Mul", &["shares", "factors"], &["boxes"], &[])
        .write(folder)
        .unwrap()
}

#[test]
fn a_model_that_asks_for_the_size_finds_boxes_of_the_picture_behind_a_letterbox() {
    let place = Workplace::new();
    // Upright, and no shares of the sides are equal: an order of height and width that is wrong would show.
    write_picture(&place.images().join("one.bmp"), &[(210.0, 60.0, 50.0, 20.0, 0.0)]);
    write_picture(&place.images().join("nothing.bmp"), &[]);
    fs::write(place.images().join("rubbish.bmp"), "BM, they said").unwrap();
    let model = write_sized_detector(&place.path("models"), [200, 100]);
    let raw =
        "kind = \"infer\"\ninputs = { images = \"small\", orig_target_sizes = \"size\" }\nmodel = \"find\"";
    let text = WorkflowFile::of_pictures("pages")
        .model("find", &model)
        .gray("small", "pages", [200, 100], "fit = 'contain'\nfilter = 'nearest'")
        .stage("size", "size", "small", "")
        .table("stages.raw", raw)
        .stage("found", "detect", "raw", "threshold = 0.5")
        .results("found")
        .on_cpu()
        .to_string();
    place.write(&text);
    place.run(&[]).must_exit(65);
    assert_eq!(place.failures().len(), 1);
    let records = place.lines("results.jsonl");
    let found =
        |name: &str| records.iter().find(|r| r["item"] == name).unwrap()["result"].as_array().unwrap();
    assert!(found("nothing.bmp").is_empty());
    let [one] = &found("one.bmp")[..] else { panic!("{records:?}") };
    let corners: [f64; 4] = serde_json::from_value(one["box"].clone()).unwrap();
    // The first third is gray; a pixel of the row is 3 of the picture.
    let white = [160.0 + 100.0 / 3.0, 40.0, 260.0, 80.0];
    assert!(corners.iter().zip(white).all(|(a, b)| (a - b).abs() <= 3.0), "{one} for {white:?}");

    // What `inspect` prints is right, and what feeds pixels to the second input is told of the stage.
    let said = place.command(&["inspect", model.to_str().unwrap()]);
    place.write(&said.must_exit(0).stdout);
    place.on_file("check", &["--offline"]).must_exit(0);
    place.write(text.replace("orig_target_sizes = \"size\"", "orig_target_sizes = \"small\""));
    place.on_file("check", &["--offline"]).must_exit(78).must_say(&["kind = \"size\", from = \"small\""]);
    place.nothing_is_left();
}
