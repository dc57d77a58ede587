//! The stages behind a model, over rows of known numbers: texts, vectors, classes, masks and computed columns are what a few lines of plain
//! arithmetic make of the same rows; and what becomes a picture file has the pixels of the picture.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::common::{Workplace, npy};
use orchestra_core::DType;
use orchestra_testkit::models;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_testkit::records::items;
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::{Value, json};

const ROWS: usize = 200;
const STEPS: usize = 5;
const CLASSES: usize = 6;
/// Classes 1 to 4; 0 is the blank and 5 a space.
const CHARACTERS: [&str; CLASSES] = ["", "a", "ß", "漢", "a", " "];

type Row = [[f32; CLASSES]; STEPS];

/// Probabilities of a step that add up to about 1, some of them equal.
fn rows() -> Vec<Row> {
    let mut seed = 7_u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as f32 / 256.0
    };
    let mut step = || {
        let step: [f32; CLASSES] = std::array::from_fn(|_| next().powi(6));
        let sum: f32 = step.iter().sum();
        step.map(|p| p / sum.max(1e-6))
    };
    (0..ROWS).map(|_| std::array::from_fn(|_| step())).collect()
}

fn workflow() -> String {
    let more = "columns = { word = 'lower(text.text)', long = 'len(text.text) * 2 - 1', sure = \"text.score >= 0.6 and not starts_with(text.text, 'a')\", half = 'out[7] / 2', score = 'text.score' }";
    let kept = "keep = \"sure and (word != '' or half > 0.1) and score < 0.9\"";
    WorkflowFile::new()
        .source("rows", "tensors", "paths = ['rows.npy']")
        .model("identity", "models/identity_with_metadata.onnx")
        .infer("out", "rows", "identity")
        .stage("text", "ctc", "out", "")
        .stage("more", "select", ["text", "out"], more)
        .stage("vector", "embed", "out", "pool = 'mean'")
        .stage("best", "argmax", "out", "axis = 1")
        .stage("high", "threshold", "out", "above = 0.25")
        .stage("picture", "mask", "high", "")
        .sink("masks", "images", "picture")
        .results(["text", "more", "vector", "best", "high"])
        .stage("kept", "filter", "more", kept)
        .sink("kept", "csv", "kept")
        .on_cpu()
        .to_string()
}

/// The place of the largest of a step, the first of equal ones.
fn best(step: &[f32; CLASSES]) -> usize {
    (0..CLASSES).rev().max_by(|a, b| step[*a].partial_cmp(&step[*b]).unwrap()).unwrap()
}

/// The text of a row, and the probabilities of the steps that gave it.
fn text(row: &Row) -> (String, Vec<f64>) {
    let all: Vec<usize> = row.iter().map(best).collect();
    let kept = (0..STEPS).filter(|at| all[*at] != 0 && (*at == 0 || all[*at] != all[*at - 1]));
    let probability = |at: usize| f64::from(row[at][all[at]]);
    (kept.clone().map(|at| CHARACTERS[all[at]]).collect(), kept.map(probability).collect())
}

/// A file of these rows.
fn array(rows: &[Row]) -> Vec<u8> {
    npy(&format!("({ROWS}, {STEPS}, {CLASSES})"), rows.as_flattened().as_flattened().iter().copied())
}

#[track_caller]
fn is_near(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
}

#[test]
fn what_stages_make_of_rows_is_what_plain_arithmetic_makes_of_them() {
    let place = Workplace::new();
    models::identity_with_metadata(&place.path("models"), &[STEPS, CLASSES], "character", "a\nß\n漢\na")
        .unwrap();
    let rows = rows();
    fs::write(place.path("rows.npy"), array(&rows)).unwrap();
    place.write(workflow());
    place.run(&[]).must_exit(0);
    let records = place.must_hold(&items("rows", 0..ROWS as u64), &BTreeSet::new());
    let mut kept = "item,index,source,word,long,sure,half,score\n".to_owned();
    let mut n_kept = 0;
    for (key, of_item) in &records.done {
        let (row, result) = (&rows[key.index as usize], &of_item["results.jsonl"]["result"]);
        let (text, probabilities) = text(row);
        let score = match probabilities.len() {
            0 => 0.0,
            n => probabilities.iter().sum::<f64>() / n as f64,
        };
        assert_eq!(result["text.text"], text);
        is_near(&result["text.score"], score);
        assert_eq!(result["more.word"], text.to_lowercase());
        assert_eq!(result["more.long"], text.chars().count() as i64 * 2 - 1);
        let written = result["more.score"].as_f64().unwrap() as f32;
        let sure = written >= 0.6 && !text.starts_with('a');
        assert_eq!(result["more.sure"], sure);
        is_near(&result["more.half"], f64::from(row[1][1]) / 2.0);

        let means: Vec<f64> = (0..CLASSES)
            .map(|class| row.iter().map(|step| f64::from(step[class])).sum::<f64>() / STEPS as f64)
            .collect();
        let length = means.iter().map(|v| v * v).sum::<f64>().sqrt();
        for (found, mean) in result["vector"]["data"].as_array().unwrap().iter().zip(&means) {
            is_near(found, mean / length);
        }
        assert_eq!(result["best"]["data"], json!(row.iter().map(best).collect::<Vec<_>>()));
        assert_eq!(result["high"]["data"], json!(row.map(|step| step.map(|p| p > 0.25).to_vec()).to_vec()));

        let mask =
            image::open(place.out().join(format!("masks/rows.npy[{}].png", key.index))).unwrap().into_luma8();
        assert_eq!(mask.dimensions(), (CLASSES as u32, STEPS as u32));
        assert_eq!(
            mask.into_raw(),
            row.as_flattened().iter().map(|p| u8::from(*p > 0.25)).collect::<Vec<_>>()
        );

        let half = f64::from(row[1][1]) / 2.0;
        if sure && (!text.is_empty() || half > 0.1) && written < 0.9 {
            n_kept += 1;
            let long = text.chars().count() as i64 * 2 - 1;
            writeln!(kept, "rows.npy[{0}],{0},rows,{text},{long},true,{half},{written}", key.index).unwrap();
        }
    }
    assert!((5..ROWS / 2).contains(&n_kept), "{n_kept} rows are kept: the test shows little");
    let found = fs::read_to_string(place.out().join("kept.csv")).unwrap();
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(sorted(&found), sorted(&kept));
    place.on_out("verify", &[]).must_exit(0);
}

#[test]
fn what_does_not_fit_is_said_with_its_place_before_anything_runs() {
    let place = Workplace::new();
    models::identity_with_metadata(&place.path("models"), &[STEPS, CLASSES], "character", "a\nb").unwrap();
    fs::write(place.path("rows.npy"), array(&rows())).unwrap();
    let check = |text: &str| {
        place.write(text);
        place.on_file("check", &[])
    };
    check(&workflow()).must_exit(78).must_say(&["there are 2 characters", "for 6 classes"]);
    models::identity_with_metadata(&place.path("models"), &[STEPS, CLASSES], "other", "a\nb").unwrap();
    check(&workflow())
        .must_exit(78)
        .must_say(&["no model with the metadata `character`", "charset = \"characters.txt\""]);
    models::identity_with_metadata(&place.path("models"), &[STEPS, CLASSES], "character", "a\nb\nc\nd")
        .unwrap();
    let bad = workflow().replace("out[7] / 2", "out[30] / 2").replace("len(text.text)", "len(text.score)");
    let ended = check(&bad.replace("axis = 1", "axis = 2").replace("pool = 'mean'", ""));
    ended.must_exit(78).must_say(&[
        "has no field `out[30]`",
        "`len` takes texts, and `text.score` is a number",
        "`axis` of stage `best` is 2, but `y` has 2 dimensions",
        "of several say what becomes of them",
    ]);
}

/// From two pictures of 40 by 30 pixels, in rows with 5 more above and below: what becomes a file of each.
fn files() -> WorkflowFile {
    let both = ["pictures", "found"];
    WorkflowFile::of_pictures("pictures")
        .model("find", "models/find.onnx")
        .model("identity", "models/identity_f32.onnx")
        .gray("row", "pictures", [40, 40], "fit = 'contain'")
        .infer("raw", "row", "find")
        .stage("found", "detect", "raw", "layout = 'yolo_end2end'")
        .stage("drawn", "draw", both, "format = 'png'")
        .stage("cuts", "crop", both, "size = [8, 8]\ndtype = 'u8'\nlayout = 'nhwc'")
        .stage("planes", "crop", both, "size = [8, 8]\ndtype = 'u8'")
        .infer("map", "row", "identity")
        .stage("mask", "mask", ["pictures", "map"], "")
        .sink("drawn", "images", "drawn")
        .sink("cuts", "images", "cuts.pixels")
        .sink("planes", "images", "planes.pixels")
        .sink("mask", "images", "mask")
        .results("found")
        .on_cpu()
}

/// Left and top of the boxes of the white picture, 8 pixels wide and high.
const BOXES: [[u32; 2]; 2] = [[4, 6], [20, 4]];

/// Dark pixels, no two of a box alike, and a white square.
fn white_square() -> image::RgbImage {
    image::RgbImage::from_fn(40, 30, |x, y| match (30..36).contains(&x) && (20..26).contains(&y) {
        true => image::Rgb([255; 3]),
        false => image::Rgb([x as u8 * 2, y as u8 * 3, (x + y) as u8]),
    })
}

/// Finds [`BOXES`] in rows that have a white pixel, and boxes with a score of 0 in a black one.
fn write_finder(place: &Workplace) {
    let of = |[left, top]: [u32; 2], class: f32| {
        let [left, top] = [left as f32, top as f32 + 5.0];
        [left, top, left + 8.0, top + 8.0, 0.0, class]
    };
    let boxes = [of(BOXES[0], 0.0), of(BOXES[1], 1.0)].concat();
    let scores = [0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8, 0.0];
    let over =
        |axes: &[i64], keep| [("axes", Attribute::Ints(axes.to_vec())), ("keepdims", Attribute::Int(keep))];
    ModelBuilder::new("find")
        .input(&models::spec("images", DType::F32, &[1, 40, 40]))
        .output(&models::spec("output0", DType::F32, &[2, 6]))
        .constant("boxes", &[1, 2, 6], &boxes)
        .constant("all", &[1, 2, 6], &scores)
        .node("ReduceMax", &["images"], &["flat"], &over(&[1], 0))
        .node("ReduceMax", &["flat"], &["most"], &over(&[1, 2], 1))
        .node("Mul", &["most", "all"], &["scores"], &[])
        .node("Add", &["scores", "boxes"], &["output0"], &[])
        .write(&place.path("models"))
        .unwrap();
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn crops_drawings_and_masks_are_picture_files_with_the_pixels_of_the_picture() {
    let place = Workplace::new();
    fs::create_dir_all(place.path("models")).unwrap();
    models::identity(&place.path("models"), DType::F32, &[1, 40, 40]).unwrap();
    write_finder(&place);
    fs::create_dir_all(place.images()).unwrap();
    let white = white_square();
    white.save(place.images().join("white.png")).unwrap();
    let black = image::RgbImage::new(40, 30);
    black.save(place.images().join("black.png")).unwrap();
    place.write(files());
    place.run(&[]).must_exit(0);
    let read = |path: &str| image::open(place.out().join(path)).unwrap();

    // The black picture has no box, and so no cut.
    let cuts = ["index.jsonl", "white.png.0.png", "white.png.1.png"].map(str::to_owned);
    for folder in ["cuts", "planes"] {
        assert_eq!(names(&place.out().join(folder)), cuts.clone().into());
        for (n, [left, top]) in BOXES.into_iter().enumerate() {
            let expected = image::imageops::crop_imm(&white, left, top, 8, 8).to_image();
            assert_eq!(read(&format!("{folder}/white.png.{n}.png")).to_rgb8(), expected, "{folder} {n}");
        }
    }

    assert_eq!(read("drawn/black.png.png").to_rgb8(), black);
    let drawn = read("drawn/white.png.png").to_rgb8();
    // The lower right corners of the frames, in the colours of their classes, and a pixel outside of both.
    for ([left, top], color) in BOXES.into_iter().zip([[31, 119, 180], [255, 127, 14]]) {
        assert_eq!(drawn.get_pixel(left + 7, top + 7).0, color);
    }
    assert_eq!(drawn.get_pixel(39, 29), white.get_pixel(39, 29));

    let bright =
        image::GrayImage::from_fn(40, 30, |x, y| image::Luma([u8::from(white.get_pixel(x, y).0[0] > 127)]));
    assert_eq!(read("mask/white.png.png").to_luma8(), bright);
    assert_eq!(read("mask/black.png.png").to_luma8(), image::GrayImage::new(40, 30));
    place.on_out("verify", &[]).must_exit(0);

    let refused = |planes: &str, says: &[&str]| {
        let of_planes = "size = [8, 8]\ndtype = 'u8'\n[stages.map]";
        place.write(files().to_string().replace(of_planes, &format!("{planes}\n[stages.map]")));
        let check = place.on_file("check", &[]);
        check
            .must_exit(78)
            .must_say(&["sink `planes` cannot write `pixels` of stage `planes`"])
            .must_say(says);
    };
    refused("size = [8, 3]\ndtype = \"u8\"", &["u8[batch, 3, 8, 3]", "can both be the channels"]);
    refused("size = [8, 8]", &["f32[batch, 3, 8, 8]", "with dtype = \"u8\""]);
}
