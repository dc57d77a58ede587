//! `orchestra report` writes a real run as a page: its account agrees with `run.json`, and no file but a page is replaced.

use std::fs;

use crate::common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::images::write_bad_pictures;

#[test]
fn a_run_with_failures_is_one_page_that_says_what_failed_and_why() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), 100);
    write_bad_pictures(&place.images()).unwrap();
    let out = place.out();
    let report = |more: &[&str]| place.command(&[&["report", out.to_str().unwrap()], more].concat());
    report(&[]).must_exit(2).must_say(&["holds no run"]);
    place.run(&[]).must_exit(65);
    report(&[]).must_exit(0).must_say(&["wrote"]);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for said in [
        "Of 105 items, 100 are done, 5 failed.",
        "none is lost, doubled or stray",
        "id=\"graph\"",
        "data:image/png;base64,",
    ] {
        assert!(page.contains(said), "{said}");
    }
    for cause in place.report()["failures"].as_array().unwrap() {
        let text =
            cause["error"].as_str().unwrap().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(page.contains(&text.replace('"', "&quot;")), "{text}");
    }
    // A page is written anew, and nothing else is replaced.
    report(&[]).must_exit(0);
    let results = out.join("results.jsonl");
    report(&["-o", results.to_str().unwrap()]).must_exit(2).must_say(&["is no page"]);
    assert!(fs::read_to_string(&results).unwrap().starts_with('{'));
}
