//! What Python gives besides numbers, texts and lists: pictures, bytes and labels, which stages read on and sinks write.

use std::fs;

use crate::common::Workplace;
use orchestra_testkit::images::picture;
use orchestra_testkit::records::items;
use serde_json::{Value, json};

const ITEMS: u64 = 48;

fn size(index: u64) -> (u32, u32) {
    (20 + index as u32, 31 + 3 * (index as u32 % 7))
}

fn write_pictures(place: &Workplace) {
    fs::create_dir(place.path("in")).unwrap();
    for index in 0..ITEMS {
        let (width, height) = size(index);
        picture(index, width, height).save(place.path(&format!("in/{index:02}.png"))).unwrap();
    }
}

/// Half of the workers die once, with what they have in hand.
const SCRIPT: &str = r#"
import os
import numpy as np
import orchestra

@orchestra.stage(batch=4, outputs={"same": "picture", "colours": "picture", "raw": ("bytes", "pgm"), "sides": "labels"})
def back(picture):
    for p in picture:
        mark = f"marks/{p.shape[1]}"
        if p.shape[1] % 12 == 3 and not os.path.exists(mark):
            open(mark, "x").close()
            os.kill(os.getpid(), 9)
    colours = [np.concatenate([p, 255 - p, p // 2], axis=2) for p in picture]
    raw = [b"P5 %d %d 255\n" % (p.shape[1], p.shape[0]) + p.tobytes() for p in picture]
    sides = [sorted(({"label": n, "class": s, "score": s / 100} for n, s in zip("hw", p.shape)), key=lambda l: -l["score"]) for p in picture]
    return {"same": picture, "colours": colours, "raw": raw, "sides": sides}

@orchestra.stage(each=True, outputs={"cuts": {"cut": "picture", "at": ("int64", []), "note": "bytes", "of": "labels"}})
def cuts(picture):
    for at in range(picture.shape[1] % 5):
        label = {"label": f"Nr. {at}", "class": at, "score": at / 4}
        yield {"cut": picture[at:, 2 * at :], "at": at, "note": bytes([at, 0, 255]), "of": [label]}

@orchestra.stage(outputs={"sum": ("int64", []), "notes": "text"})
def sums(parts):
    return {
        "sum": [sum(int(p["small"].sum()) for p in of) for of in parts],
        "notes": ["|".join(f"{p['parts.at']}{p['parts.note'].hex()}{p['parts.of'][0]['label']}" for p in of) for of in parts],
    }
"#;

const TABLES: &str = r#"
[sources.pictures]
kind = "images"
paths = ["in"]
[stages.back]
kind = "python"
function = "back"
from = "pictures"
workers = 2
sandbox_write = "marks"
[stages.small]
kind = "image"
from = "back.same"
size = [12, 10]
fit = "contain"
dtype = "u8"
[stages.direct]
kind = "image"
from = "pictures"
size = [12, 10]
fit = "contain"
dtype = "u8"
[stages.cuts]
kind = "python"
function = "cuts"
inputs = { picture = "back.same" }
[stages.parts]
kind = "split"
from = "cuts"
[stages.cut]
kind = "image"
from = "parts.cut"
size = [8, 8]
filter = "nearest"
color = "gray"
dtype = "u8"
[stages.shown]
kind = "select"
from = ["cut", "parts"]
columns = { small = "cut", "parts.at" = "parts.at", "parts.note" = "parts.note", "parts.of" = "parts.of" }
[stages.all]
kind = "gather"
from = "shown"
[stages.sums]
kind = "python"
function = "sums"
from = "all"
[sinks.same]
kind = "images"
from = "back.same"
[sinks.colours]
kind = "images"
from = "back.colours"
[sinks.raw]
kind = "images"
from = "back.raw"
[sinks.sides]
kind = "jsonl"
from = "back.sides"
[sinks.small]
kind = "jsonl"
from = ["small", "direct"]
[sinks.cuts]
kind = "images"
from = "parts.cut"
[sinks.sums]
kind = "jsonl"
from = "sums"
"#;

/// What a sink has written of these items: the file of each, or its record.
fn file_of(place: &Workplace, sink: &str, name: &str) -> Vec<u8> {
    fs::read(place.out().join(sink).join(name)).unwrap_or_else(|error| panic!("{sink}/{name}: {error}"))
}

fn results(place: &Workplace, file: &str) -> Vec<Value> {
    let mut lines = place.lines(file);
    lines.sort_by_key(|line| line["index"].as_u64());
    assert_eq!(lines.len() as u64, ITEMS, "one record for each item");
    lines.into_iter().map(|line| line["result"].clone()).collect()
}

#[test]
fn pictures_bytes_and_labels_are_read_on_and_written_as_they_were_given_while_workers_die() {
    let Some(place) = Workplace::with_script(SCRIPT, TABLES) else { return };
    write_pictures(&place);
    fs::create_dir(place.path("marks")).unwrap();
    place.run(&[]).must_exit(0).must_say(&["48 done, 0 failed"]);
    assert_eq!(fs::read_dir(place.path("marks")).unwrap().count(), 4, "the workers of four pictures died");
    let [sides, small, sums] = ["sides.jsonl", "small.jsonl", "sums.jsonl"].map(|file| results(&place, file));
    for index in 0..ITEMS {
        let ((width, height), at) = (size(index), index as usize);
        let own = picture(index, width, height);
        let (png, pgm) = (format!("{index:02}.png.png"), format!("{index:02}.png.pgm"));
        let same = image::load_from_memory(&file_of(&place, "same", &png)).unwrap();
        assert!(same.color() == image::ColorType::L8 && same.into_luma8() == own, "{index}");
        let colours = image::load_from_memory(&file_of(&place, "colours", &png)).unwrap().into_rgb8();
        let is_own = |(x, y, pixel): (u32, u32, &image::Rgb<u8>)| {
            let [level] = own.get_pixel(x, y).0;
            pixel.0 == [level, 255 - level, level / 2]
        };
        assert!(colours.dimensions() == (width, height) && colours.enumerate_pixels().all(is_own), "{index}");
        let raw = [format!("P5 {width} {height} 255\n").into_bytes(), own.as_raw().clone()].concat();
        assert_eq!(file_of(&place, "raw", &pgm), raw);
        let mut of = [("h", height), ("w", width)]
            .map(|(label, side)| json!({ "label": label, "class": side, "score": (side as f32) / 100.0 }));
        of.sort_by_key(|label| -label["class"].as_i64().unwrap());
        let found = sides[at].as_array().unwrap();
        for (found, of) in found.iter().zip(&of) {
            assert_eq!((&found["label"], &found["class"]), (&of["label"], &of["class"]), "{index}");
            assert!((found["score"].as_f64().unwrap() - of["score"].as_f64().unwrap()).abs() < 1e-6);
        }
        assert_eq!(small[at]["small"], small[at]["direct"], "{index}: it is resized as a decoded file is");
        let (mut sum, mut notes) = (0, Vec::new());
        for n in 0..width % 5 {
            let cut = image::imageops::crop_imm(&own, 2 * n, n, width - 2 * n, height - n).to_image();
            let name = format!("{index:02}.png.{n}.png");
            assert_eq!(image::load_from_memory(&file_of(&place, "cuts", &name)).unwrap().into_luma8(), cut);
            let nearest = |to: u32, of: u32| (f64::from(to) + 0.5) * f64::from(of) / 8.0;
            for (x, y) in (0..8).flat_map(|x| (0..8).map(move |y| (x, y))) {
                let at = (nearest(x, cut.width()) as u32, nearest(y, cut.height()) as u32);
                sum += u64::from(cut.get_pixel(at.0, at.1).0[0]);
            }
            notes.push(format!("{n}{n:02x}00ffNr. {n}"));
        }
        assert_eq!(sums[at], json!({ "sum": sum, "notes": notes.join("|") }), "{index}");
    }
    place.on_out("verify", &[]).must_exit(0);
    place.no_process_is_left();
}

#[test]
fn what_is_no_picture_or_bytes_fails_its_row_and_a_large_one_is_halved_or_too_large() {
    let script = r#"
import numpy as np
import orchestra

@orchestra.stage(batch=8, outputs={"p": "picture", "b": "bytes"})
def f(n):
    sides = [1 if k % 5 else 2000 for k in n]
    sides = [9000 if k == 17 else s for s, k in zip(sides, n)]
    p = [np.zeros([s, s] if k != 3 else [s, s, 2], "uint8") for s, k in zip(sides, n)]
    return {"p": p, "b": [b"x" if k != 4 else "x" for k in n]}
"#;
    let tables = "[sources.rows]\nkind = \"range\"\nstop = 24\n[stages.f]\nkind = \"python\"\nfrom = \"rows\"\nworkers = 2\n\
        [stages.small]\nkind = \"image\"\nfrom = \"f.p\"\nsize = [2, 2]\n\
        [sinks.results]\nkind = \"jsonl\"\nfrom = \"small\"\n[limits]\nmemory = \"256MiB\"";
    let Some(place) = Workplace::with_script(script, tables) else { return };
    place.run(&[]).must_exit(65).must_say(&["21 done, 3 failed"]);
    let is_bad = |n: &u64| [3, 4, 17].contains(n);
    place.must_hold(&items("rows", (0..24).filter(|n| !is_bad(n))), &items("rows", (0..24).filter(is_bad)));
    for failure in place.failures() {
        let (kind, says) = match failure["index"].as_u64().unwrap() {
            3 => ("model", "output `p` is a picture"),
            4 => ("model", "output `b` is declared as bytes, and is str"),
            _ => ("too_large", "raise `limits.memory`"),
        };
        assert!(failure["kind"] == kind && failure["error"].as_str().unwrap().contains(says), "{failure}");
    }
}

#[test]
fn a_list_that_holds_pictures_is_refused_where_no_picture_can_go() {
    let script = "import orchestra\n\n@orchestra.stage(each=True, outputs={\"l\": {\"p\": \"picture\"}})\ndef f(n):\n    yield {\"p\": [[n]]}\n\n\
        @orchestra.stage(outputs={\"n\": \"text\"})\ndef g(x):\n    return {\"n\": x}\n";
    let head = "[sources.rows]\nkind = \"range\"\nstop = 24\n[stages.f]\nkind = \"python\"\nfunction = \"f\"\nfrom = \"rows\"\n\
        [stages.parts]\nkind = \"split\"\nfrom = \"f\"\n";
    let g = "[stages.g]\nkind = \"python\"\nfunction = \"g\"\nfrom = \"f\"\n[sinks.z]\nkind = \"jsonl\"\nfrom = \"g\"";
    let fold = |kind: &str, keys: &str| {
        format!("[stages.g]\nkind = \"{kind}\"\n{keys}\n[sinks.z]\nkind = \"jsonl\"\nfrom = \"g\"")
    };
    let sink = |kind: &str| format!("[sinks.z]\nkind = \"{kind}\"\nfrom = \"f\"");
    for (tables, says) in [
        (g.to_owned(), "cannot take pictures in a list"),
        (fold("reduce", "from = \"f\"\nop = \"concat\""), "cannot keep `l` of `f`"),
        (fold("gather", "from = \"parts\""), "cannot keep `p` of `parts`"),
        (sink("jsonl"), "cannot write"),
        (sink("csv"), "cannot write"),
        (sink("tar"), "cannot write"),
        (sink("parquet"), "cannot write"),
    ] {
        let Some(place) = Workplace::with_script(script, &format!("{head}{tables}")) else { return };
        let ended = place.on_file("check", &[]);
        ended.must_exit(78).must_say(&[says]);
    }
}
