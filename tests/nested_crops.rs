//! Crops of crops: lines are found on pages, digits on each line, and what is read comes back as lines of digits, also where a page has no
//! line or a line no digit. Boxes are in pixels of the page at every depth.

use std::fs;

use crate::common::Workplace;
use orchestra_core::DType;
use orchestra_testkit::models;
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;

const WIDTH: u32 = 320;
const HEIGHT: u32 = 200;
/// How bright a line is, and its least bright digit.
const LINE: u8 = 120;
const DIGIT: u8 = 230;
/// Pixels by which an edge may be off: regions are found on whole pixels.
const OFF: f64 = 2.0;

/// Left, top, width and height.
type Box4 = [u32; 4];

/// A line, and its digits from left to right, each with its number.
struct Line {
    place: Box4,
    digits: Vec<(Box4, u8)>,
}

/// The lines of page `n`, from top to bottom: up to four of them with up to five digits.
fn lines(n: u32) -> Vec<Line> {
    let n_lines = n % 5;
    let line = |at: u32| {
        let place = [10 + 7 * (n % 3), 8 + 48 * at, 240 + 10 * at, 36];
        let n_digits = (n + 2 * at) % 6;
        let digit =
            |d: u32| ([place[0] + 12 + 44 * d, place[1] + 8, 14 + 2 * d, 20], ((n + at + d) % 10) as u8);
        Line { place, digits: (0..n_digits).map(digit).collect() }
    };
    (0..n_lines).map(line).collect()
}

fn page(n: u32) -> image::GrayImage {
    let mut pixels = image::GrayImage::new(WIDTH, HEIGHT);
    let mut fill = |[left, top, width, height]: Box4, level: u8| {
        for (x, y) in (top..top + height).flat_map(|y| (left..left + width).map(move |x| (x, y))) {
            pixels.put_pixel(x, y, image::Luma([level]));
        }
    };
    for line in lines(n) {
        fill(line.place, LINE);
        line.digits.iter().for_each(|(place, digit)| fill(*place, DIGIT + 2 * digit));
    }
    pixels
}

fn workflow(place: &Workplace) {
    let folder = place.path("models");
    let identity = |name: &str, row: [usize; 3]| {
        let path = models::identity(&folder, DType::F32, &row).unwrap();
        let named = path.with_file_name(name);
        fs::rename(path, &named).unwrap();
        named
    };
    let page = identity("page.onnx", [1, HEIGHT as usize, WIDTH as usize]);
    let line = identity("line.onnx", [1, 36, 256]);
    let digit = identity("digit.onnx", [1, 3, 3]);
    let map = "layout = 'dbnet'\nbox_threshold = 0.3\nunclip = 0";
    let dark = "layout = 'dbnet'\nthreshold = 0.7\nunclip = 0";
    let down = "order = 'top-to-bottom'\nsize = [36, 256]\ncolor = 'gray'";
    let right = "order = 'left-to-right'\nsize = [3, 3]\ncolor = 'gray'";
    let flow = WorkflowFile::of_pictures("pages")
        .model("page", page)
        .model("line", line)
        .model("digit", digit)
        .gray("whole", "pages", [HEIGHT, WIDTH], "")
        .infer("page-map", "whole", "page")
        .stage("found-lines", "detect", "page-map", map)
        .stage("lines", "crop", ["pages", "found-lines"], down)
        .infer("line-map", "lines", "line")
        .stage("found-digits", "detect", "line-map", dark)
        .stage("digits", "crop", ["pages", "found-digits"], right)
        .infer("read", "digits", "digit")
        .stage("line", "gather", ["digits.box", "read"], "")
        .stage("record", "gather", ["lines.box", "line"], "")
        .results("record")
        .on_cpu();
    place.write(flow);
}

#[track_caller]
fn lies_at(found: &Value, [left, top, width, height]: Box4, what: &str) {
    let found: Vec<f64> = found.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    let expected = [left, top, left + width, top + height].map(f64::from);
    let is_near = found.len() == 4 && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= OFF);
    assert!(is_near, "{what} was found at {found:?}, and is at {expected:?}");
}

#[test]
fn lines_of_pages_and_digits_of_lines_come_back_as_they_are_also_where_there_are_none() {
    const PAGES: u32 = 30;
    let place = Workplace::new();
    for n in 0..PAGES {
        page(n).save(place.images().join(format!("{n:02}.png"))).unwrap();
    }
    workflow(&place);
    place.run(&[]).must_exit(0);
    let mut seen = (0, 0, 0, 0);
    let mut records = place.lines("results.jsonl");
    records.sort_by_key(|record| record["index"].as_u64());
    assert_eq!(records.len(), PAGES as usize);
    for (n, record) in (0..PAGES).zip(&records) {
        let (found, expected) = (record["result"].as_array().unwrap(), lines(n));
        assert_eq!(found.len(), expected.len(), "page {n}: {record}");
        seen.0 += usize::from(expected.is_empty());
        for (at, (found, line)) in found.iter().zip(&expected).enumerate() {
            let what = format!("line {at} of page {n}");
            lies_at(&found["lines.box"], line.place, &what);
            let digits = found["line"].as_array().unwrap();
            assert_eq!(digits.len(), line.digits.len(), "{what}: {found}");
            seen.1 += usize::from(digits.is_empty());
            for (found, (place, digit)) in digits.iter().zip(&line.digits) {
                lies_at(&found["digits.box"], *place, &format!("a digit of {what}"));
                let level = found["read"][0][1][1].as_f64().unwrap() * 255.0;
                let read = ((level - f64::from(DIGIT)) / 2.0).round();
                assert!((read - f64::from(*digit)).abs() < 0.5, "{what}: {level} is no {digit}");
                seen.2 += 1;
            }
            seen.3 += 1;
        }
    }
    println!(
        "{} pages without a line, {} lines without a digit, {} digits, {} lines",
        seen.0, seen.1, seen.2, seen.3
    );
    assert!(seen.0 > 3 && seen.1 > 3 && seen.2 > 100, "{seen:?}");
}
