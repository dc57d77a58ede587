//! What becomes of pictures of any format, colour type, depth, compression and orientation: they look as Pillow shows them, or fail by name; and what a
//! file or an item holds beside what is made of it is counted and said. Which picture looks how is in `scripts/pictures.py`.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Workplace, python_env, repository};
use crate::pages::tiff;
use orchestra_testkit::workflow_file::WorkflowFile;

/// `scripts/pictures.py`, with Pillow and tifffile. It must succeed.
fn script(python: &str, arguments: &[&str]) -> String {
    let script = repository().join("scripts/pictures.py");
    let ended = Command::new(python).arg(script).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    said
}

#[test]
fn pictures_of_every_kind_look_as_pillow_shows_them_or_fail_by_name() {
    let Some(python) = python_env("reference") else { return };
    let place = Workplace::new();
    let (pictures, out) = (place.path("pictures"), place.out());
    let said = script(&python, &["make", pictures.to_str().unwrap()]);
    let workflow = "version = 1\nname = \"pictures\"\n\n[sources.files]\nkind = \"images\"\n\
         paths = [\"pictures/*.png\", \"pictures/*.jpg\", \"pictures/*.webp\", \"pictures/*.bmp\", \"pictures/*.gif\", \"pictures/*.tif\"]\n\n\
         [stages.pixels]\nkind = \"image\"\nfrom = \"files\"\nsize = [24, 32]\nlayout = \"nhwc\"\ndtype = \"u8\"\n\n\
         [sinks.rows]\nkind = \"npy\"\nfrom = \"pixels\"\npath = \"rows\"\n";
    place.write(workflow);
    place.run(&[]).must_exit(65);
    let compared = script(&python, &["check", pictures.to_str().unwrap(), out.to_str().unwrap()]);
    // Some three hundred, of which most are read.
    let n: u64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!(n >= 200 && place.report()["items"]["read"] == n, "{said}{compared}");
    let counts = [("files", "pages", 1, 2), ("files", "frames", 3, 6)];
    assert_eq!(
        left_out(&place.report()),
        counts.map(|(by, what, items, n)| (by.into(), what.into(), items, n))
    );
    place.no_process_is_left();
}

/// The counts of `run.json`, as (by, what, items, count).
fn left_out(report: &Value) -> Vec<(String, String, u64, u64)> {
    let text = |count: &Value, key: &str| count[key].as_str().unwrap().to_owned();
    let number = |count: &Value, key: &str| count[key].as_u64().unwrap();
    let counts = report["left_out"].as_array().unwrap().iter();
    counts.map(|of| (text(of, "by"), text(of, "what"), number(of, "items"), number(of, "count"))).collect()
}

#[test]
fn pages_behind_the_first_are_counted_and_said() {
    let place = Workplace::new();
    for (name, levels) in [("a.tif", &[10, 100, 200][..]), ("b.tif", &[20]), ("c.tif", &[30, 40])] {
        fs::write(place.images().join(name), tiff(levels)).unwrap();
    }
    let workflow = WorkflowFile::of_pictures("scans").gray("pixels", "scans", [1, 1], "dtype = \"u8\"");
    place.write(workflow.results("pixels").to_string() + "ordered = true\n");
    place
        .run(&[])
        .must_exit(0)
        .must_say(&["source `scans`: 2 files have more than one page", "3 pages were passed over"]);
    assert_eq!(left_out(&place.report()), [("scans".into(), "pages".into(), 2, 3)]);
    let verified = place.on_out("verify", &[]);
    let said = "left out by `scans`, as run.json says: pages 3, of 2 items\n";
    verified.must_exit(0).must_print(&[said]);
    let results = place.lines("results.jsonl").into_iter();
    let levels: Vec<Value> = results.map(|line| line["result"]["pixels"]["data"].clone()).collect();
    assert_eq!(levels, [json!([[[10]]]), json!([[[20]]]), json!([[[30]]])]);
    place.no_process_is_left();
}

#[test]
fn a_file_behind_a_tiff_is_counted_whether_a_stage_takes_the_pages_or_not() {
    let place = Workplace::new();
    fs::write(place.images().join("a.tif"), [tiff(&[10, 100]), tiff(&[200])].concat()).unwrap();
    let scans = WorkflowFile::of_pictures("scans");
    let pages = scans.clone().stage("pages", "pages", "scans", "");
    for (file, from, n_left_out) in [(scans, "scans", 2), (pages, "pages", 1)] {
        let keys = "size = [1, 1]\ndtype = \"u8\"";
        place.write(file.stage("pixels", "image", from, keys).results("pixels"));
        place.run(&["--fresh"]).must_exit(0);
        assert_eq!(left_out(&place.report()), [("scans".into(), "pages".into(), 1, n_left_out)]);
    }
}

#[test]
fn pages_behind_the_first_are_counted_once_over_several_starts_and_killed_ones() {
    const ITEMS: u64 = 300;
    let place = Workplace::with_gate(0);
    for n in 0..ITEMS {
        fs::write(place.images().join(format!("{n:03}.tif")), tiff(&[1, 2, 3][..1 + n as usize % 3]))
            .unwrap();
    }
    for signal in [Signal::KILL, Signal::INT] {
        // After the kill an unknown number of results is cut off, and done again.
        place.close_gate_after(60);
        let mut run = place.start(&[]);
        run.must_reach("a batch waits", || place.waiting_at_gate() > 0 && place.n_results() > 0);
        run.signal(signal);
        if signal == Signal::INT {
            run.must_say("stopping: finishing what is in flight");
        }
        place.open_gate();
        run.wait();
        place.no_process_is_left();
    }
    place.run(&[]).must_exit(0);
    assert_eq!(left_out(&place.report()), [("scans".into(), "pages".into(), ITEMS / 3 * 2, ITEMS)]);
    // Items that are added are counted to the others.
    fs::write(place.images().join("more.tif"), tiff(&[1, 2, 3, 4])).unwrap();
    place.run(&[]).must_exit(0);
    let expected = [("scans".into(), "pages".into(), ITEMS / 3 * 2 + 1, ITEMS + 3)];
    assert_eq!(left_out(&place.report()), expected);
    let verified = place.on_out("verify", &[]);
    let said = format!(
        "left out by `scans`, as run.json says: pages {}, of {} items\n",
        ITEMS + 3,
        ITEMS / 3 * 2 + 1
    );
    verified.must_exit(0).must_print(&[&said]);
}

#[test]
fn boxes_that_make_no_part_are_counted_by_their_reason_and_said() {
    let place = Workplace::new();
    fs::write(place.images().join("a.tif"), tiff(&[9])).unwrap();
    // In pixels, and relative is the default; then turned round; then one that is right.
    let lines = [
        json!({"img": "a.tif", "boxes": [[1, 1, 2, 2], [5, 5, 50, 35]]}),
        json!({"img": "a.tif", "boxes": [[0.5, 0.5, 0.2, 0.9], [0.0, 0.0, 1.0, 1.0]]}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(place.images().join("boxes.jsonl"), text).unwrap();
    let workflow = "version = 1\nname = \"boxes\"\n\n[sources.s]\nkind = \"jsonl\"\npaths = [\"images/boxes.jsonl\"]\n\
         columns = { img = \"picture\", boxes = \"f32[2,4]\" }\n\n[stages.cuts]\nkind = \"crop\"\nfrom = [\"s.img\", \"s.boxes\"]\nsize = [2, 2]\n\n\
         [stages.all]\nkind = \"gather\"\nfrom = \"cuts\"\n\n[sinks.results]\nkind = \"jsonl\"\nfrom = \"all\"\nordered = true\n";
    place.write(workflow);
    place.run(&[]).must_exit(0).must_say(&[
        "2 boxes lie outside of the picture",
        "`units`",
        "1 box is turned round",
    ]);
    assert_eq!(
        left_out(&place.report()),
        [("cuts".into(), "boxes_outside".into(), 1, 2), ("cuts".into(), "boxes_without_area".into(), 1, 1)]
    );
    let results = place.lines("results.jsonl").into_iter();
    let n_parts: Vec<usize> = results.map(|line| line["result"].as_array().unwrap().len()).collect();
    assert_eq!(n_parts, [0, 1]);
    place.no_process_is_left();
}
