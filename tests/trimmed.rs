//! Rows of which models compute no more than their pictures fill: whole pages and crops of them, of many sizes. What is found on them lies where it was drawn, and
//! models see exactly as much as the reference says.

use std::fs;

use crate::common::Workplace;
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_testkit::models::spec;
use orchestra_testkit::onnx::ModelBuilder;
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;

const PAGES: u32 = 24;
/// Height and width of a row of a page, and of one of a crop.
const PAGE: [u32; 2] = [240, 320];
const CROP: [u32; 2] = [8, 128];
/// What rows are trimmed to multiples of.
const PAGE_STEP: u32 = 16;
const CROP_STEP: u32 = 24;
/// Pixels by which an edge may be off: regions are found on whole pixels of rows.
const OFF: f64 = 2.0;

/// Width and height of page `n`. Some have the shape of the row, some are scaled.
fn size(n: u32) -> (u32, u32) {
    match n % 4 {
        0 => (320, 240),
        1 => (320, 60 + 7 * n),
        2 => (100 + 6 * n, 240),
        _ => (160, 50 + 2 * n),
    }
}

/// Left, top, width and height of the boxes on page `n`, from top to bottom. Every sixth page has none.
fn boxes(n: u32) -> Vec<[u32; 4]> {
    let (width, height) = size(n);
    let fits = |at: &[u32; 4]| at[0] + at[2] + 8 <= width && at[1] + at[3] + 8 <= height;
    let drawn = (0..if n.is_multiple_of(6) { 0 } else { 6 })
        .map(|k| [8 + 3 * (n % 5), 8 + 30 * k, 24 + 31 * ((n + 2 * k) % 6), 10 + 2 * (k % 3)]);
    drawn.filter(fits).collect()
}

fn draw(place: &Workplace) {
    let folder = place.path("pages");
    fs::create_dir_all(&folder).unwrap();
    for n in 0..PAGES {
        let (width, height) = size(n);
        let mut page = image::GrayImage::new(width, height);
        for [left, top, wide, high] in boxes(n) {
            for (x, y) in (top..top + high).flat_map(|y| (left..left + wide).map(move |x| (x, y))) {
                page.put_pixel(x, y, image::Luma([240]));
            }
        }
        page.save(folder.join(format!("{n:03}.png"))).unwrap();
    }
}

/// A model that gives what it is given, of any height and width.
fn model(place: &Workplace, name: &str) -> std::path::PathBuf {
    let row = vec![Dim::Fixed(1), Dim::Dynamic, Dim::Dynamic];
    let [x, y] = ["x", "y"].map(|name| TensorSpec { row: row.clone(), ..spec(name, DType::F32, &[]) });
    let model = ModelBuilder::new(name).input(&x).output(&y).node("Identity", &["x"], &["y"], &[]);
    model.write(&place.path("models")).unwrap()
}

fn run() -> Workplace {
    let place = Workplace::new();
    draw(&place);
    let (page, line) = (model(&place, "page"), model(&place, "line"));
    let whole = format!("fit = 'corner'\ntrim = {PAGE_STEP}\npad = 90");
    let map = "layout = 'dbnet'\nthreshold = 0.5\nbox_threshold = 0.5\nunclip = 0";
    let lines =
        format!("order = 'top-to-bottom'\nsize = {CROP:?}\nfit = 'left'\ntrim = {CROP_STEP}\ncolor = 'gray'");
    let flow = WorkflowFile::new()
        .source("pages", "images", "paths = ['pages']")
        .model("page", page)
        .model("line", line)
        .gray("whole", "pages", PAGE, whole)
        .infer("map", "whole", "page")
        .stage("found", "detect", "map", map)
        .stage("lines", "crop", ["pages", "found"], lines)
        .infer("read", "lines", "line")
        .stage("record", "gather", ["lines.box", "read"], "")
        .results("record")
        .on_cpu();
    place.write(flow);
    place.run(&[]).must_exit(0);
    place
}

/// The records by the number of their page.
fn records(place: &Workplace) -> Vec<Vec<Value>> {
    let mut of_pages = vec![None; PAGES as usize];
    for record in place.lines("results.jsonl") {
        let item = record["item"].as_str().unwrap().rsplit('/').next().unwrap();
        let page: usize = item.trim_end_matches(".png").parse().unwrap();
        let rows = record["result"].as_array().unwrap().clone();
        assert!(of_pages[page].replace(rows).is_none(), "{item} is there twice");
    }
    let of =
        |(page, rows): (usize, Option<Vec<Value>>)| rows.unwrap_or_else(|| panic!("page {page} is missing"));
    of_pages.into_iter().enumerate().map(of).collect()
}

/// Left, top, right and bottom.
fn corners(of: &Value) -> [f64; 4] {
    let numbers = of.as_array().unwrap_or_else(|| panic!("{of} is no box"));
    let numbers: Vec<f64> = numbers.iter().map(|n| n.as_f64().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn models_see_what_pictures_fill_and_boxes_lie_where_they_were_drawn() {
    let place = run();
    let found = records(&place);
    let mut sizes = std::collections::BTreeSet::new();
    for n in 0..PAGES {
        let (drawn, found) = (boxes(n), &found[n as usize]);
        assert_eq!(found.len(), drawn.len(), "page {n}: {found:?}");
        for ([left, top, width, height], row) in drawn.iter().zip(found) {
            let at = corners(&row["lines.box"]);
            let expected = [*left, *top, left + width, top + height].map(f64::from);
            let is_near = at.iter().zip(expected).all(|(found, drawn)| (found - drawn).abs() <= OFF);
            assert!(is_near, "page {n}: {at:?} and {expected:?}");
            // `fit = "left"`: to the height of the row, as wide as that makes it.
            let [a, b, c, d] = at.map(f64::round);
            let (cut_wide, cut_high) = ((c - a) as u32, (d - b) as u32);
            let used = (CROP[0] * cut_wide).div_ceil(cut_high).min(CROP[1]);
            let sees = used.next_multiple_of(CROP_STEP).min(CROP[1]);
            let lines = row["read"][0].as_array().unwrap();
            assert_eq!(lines.len(), CROP[0] as usize);
            for line in lines {
                let numbers: Vec<f64> =
                    line.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
                assert_eq!(numbers.len(), sees as usize, "page {n}: {at:?}");
                assert!(numbers[used as usize..].iter().all(|n| *n == 0.0), "page {n}: padding is black");
                assert!(numbers[used as usize / 2] > 0.9, "page {n}: the middle is bright");
            }
            sizes.insert(sees);
        }
    }
    assert!(sizes.len() >= 4, "{sizes:?}: lines of few sizes prove little");
    place.nothing_is_left();
}

#[test]
fn bench_runs_each_of_these_models_alone_with_rows_of_all_sizes() {
    let place = run();
    let ended = place.on_file("bench", &["--runs", "1", "--seconds", "0.05", "--json"]);
    let report: Value = serde_json::from_str(&ended.must_exit(0).stdout).unwrap();
    let rows = |model: &Value| {
        (model["stage"].as_str().unwrap().to_owned(), model["rows_per_item"].as_f64().unwrap())
    };
    let models: Vec<(String, f64)> = report["models"].as_array().unwrap().iter().map(rows).collect();
    let crops: usize = (0..PAGES).map(|n| boxes(n).len()).sum();
    let expected = [("map".to_owned(), 1.0), ("read".to_owned(), crops as f64 / f64::from(PAGES))];
    assert_eq!(models, expected);
}
