//! Pages of a TIFF: each is a picture of its own for what stands behind a stage `pages`, and without one the first is read and the others are counted.

use std::fs;
use std::io::Cursor;

use crate::common::Workplace;
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value;
use tiff::encoder::TiffEncoder;
use tiff::encoder::colortype::Gray8;

/// A TIFF with a gray page of this value each, neighbours of another size.
pub fn tiff(pages: &[u8]) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let mut encoder = TiffEncoder::new(&mut file).unwrap();
    for (side, gray) in (2_u32..40).cycle().zip(pages) {
        let pixels = vec![*gray; (side * side) as usize];
        encoder.write_image::<Gray8>(side, side, &pixels).unwrap();
    }
    file.into_inner()
}

fn each() -> WorkflowFile {
    WorkflowFile::new()
        .source("scans", "images", "paths = ['*.tif']")
        .stage("each", "pages", "scans", "")
        .gray("pixels", "each", [1, 1], "dtype = 'u8'")
        .stage("number", "select", "each", "columns = { n = 'page' }")
        .stage("numbers", "gather", "number", "")
        .sink("pixels", "jsonl", "pixels")
        .sink("numbers", "jsonl", "numbers")
}

fn lines(place: &Workplace, file: &str) -> Vec<Value> {
    let mut lines = place.lines(file);
    lines.sort_by_key(|line| line["item"].to_string());
    lines
}

#[test]
fn each_page_is_a_part_with_its_number_and_its_own_pixels() {
    let place = Workplace::new();
    fs::write(place.path("a.tif"), tiff(&[10, 100, 200])).unwrap();
    fs::write(place.path("b.tif"), tiff(&[7])).unwrap();
    place.write(each());
    let ended = place.run(&[]).exited(0);
    assert!(!ended.stderr.contains("more than one page"), "{}", ended.stderr);
    let of = |line: &Value| {
        (line["item"].as_str().unwrap().to_owned(), line["result"]["pixels"]["data"][0][0][0].as_u64())
    };
    let mut seen: Vec<_> = lines(&place, "pixels.jsonl").iter().map(of).collect();
    seen.sort();
    let expected = [("a.tif", 10), ("a.tif", 100), ("a.tif", 200), ("b.tif", 7)];
    assert_eq!(seen, expected.map(|(name, gray)| (name.to_owned(), Some(gray))));
    let numbers = lines(&place, "numbers.jsonl");
    let of = |line: &Value| line["result"].as_array().unwrap().iter().map(|row| row["n"].as_u64()).collect();
    let found: Vec<Vec<_>> = numbers.iter().map(of).collect();
    assert_eq!(found, [vec![Some(1), Some(2), Some(3)], vec![Some(1)]]);
}

/// The directories are read once: once for each page they took longer than an item may.
#[test]
fn a_file_of_ten_thousand_pages_is_read_within_the_time_of_an_item() {
    let place = Workplace::new();
    fs::write(place.path("a.tif"), tiff(&vec![9; 10_000])).unwrap();
    place.write(each());
    place.run(&[]).must_exit(0);
    assert_eq!(lines(&place, "numbers.jsonl")[0]["result"].as_array().unwrap().len(), 10_000);
}

#[test]
fn frames_of_an_animation_are_no_pages_and_are_said_behind_a_stage_of_pages_too() {
    let place = Workplace::new();
    let mut file = Vec::new();
    let mut encoder = image::codecs::gif::GifEncoder::new(&mut file);
    for gray in [10, 100, 200] {
        let frame = image::RgbaImage::from_pixel(4, 4, image::Rgba([gray, gray, gray, 255]));
        encoder.encode_frame(image::Frame::new(frame)).unwrap();
    }
    drop(encoder);
    fs::write(place.path("a.gif"), file).unwrap();
    fs::write(place.path("b.tif"), tiff(&[7, 8])).unwrap();
    place.write(each().replace("*.tif", "*.*if"));
    let ended = place.run(&[]);
    ended.must_exit(0).must_say(&["1 file has more than one frame", "2 frames were passed over"]);
    assert!(!ended.stderr.contains("more than one page"), "{}", ended.stderr);
    assert_eq!(lines(&place, "pixels.jsonl").len(), 3);
}

#[test]
fn a_damaged_page_fails_its_file_with_the_number_of_the_page() {
    let place = Workplace::new();
    let mut bytes = tiff(&[10, 100, 200]);
    let photometric = [262_u16.to_le_bytes(), 3_u16.to_le_bytes()].concat();
    let last = bytes.windows(4).rposition(|at| at == photometric).unwrap();
    bytes[last + 8] = 99;
    fs::write(place.path("a.tif"), bytes).unwrap();
    fs::write(place.path("b.tif"), tiff(&[7])).unwrap();
    place.write(each());
    place.run(&[]).must_exit(65);
    let failures = place.failures();
    assert_eq!((failures.len(), failures[0]["item"].as_str()), (1, Some("a.tif")), "{failures:?}");
    assert!(failures[0]["error"].as_str().unwrap().contains("page 3"), "{failures:?}");
}

#[test]
fn what_gives_no_files_cannot_be_taken_apart() {
    let place = Workplace::new();
    fs::write(place.path("a.tif"), tiff(&[10])).unwrap();
    let cut = "[stages.each]\nkind = \"pages\"\nfrom = \"twice\"\n[stages.twice]\nkind = \"pages\"\nfrom = \"scans\"\n";
    let text = each().replace("[stages.each]\nkind = \"pages\"\nfrom = \"scans\"\n", cut);
    place.write(text);
    let says = ["stage `each` takes files apart", "name the source of the pictures"];
    place.run(&[]).must_exit(78).must_say(&says);
}
