//! A run in which everything fails stops early and says why, wherever it is that all fail; one in which something passes goes on. And the summary says what
//! items failed for, each cause once.

use std::fmt::Write as _;
use std::fs;

use crate::common::{Blocks, Ended, Workplace, python, write_pictures};

/// Far more than are on their way at any moment.
const MANY: u64 = 10_000;

/// Rows whose numbers are texts, but for the first `good` ones.
fn rows(place: &Workplace, name: &str, good: u64, n: u64) {
    let row =
        |x| if x < good { format!("{{\"x\": {x}}}\n") } else { format!("{{\"x\": \"no number {x}\"}}\n") };
    fs::write(place.path(name), (0..n).map(row).collect::<String>()).unwrap();
}

/// A pipeline over these rows, or over several files of rows one each.
fn pipeline(name: &str, file: &str) -> String {
    format!(
        "[sources.{name}]\nkind = \"jsonl\"\npaths = [\"{file}\"]\ncolumns = {{ x = \"i64\" }}\n\
         [stages.{name}_x]\nkind = \"select\"\nfrom = \"{name}\"\ncolumns = {{ x = \"x\" }}\n\
         [sinks.{name}_out]\nkind = \"jsonl\"\nfrom = \"{name}_x\"\n"
    )
}

fn place(tables: &str) -> Workplace {
    Workplace::of(format!("version = 1\n{tables}"))
}

/// It was stopped long before its last item, and says where and what to do.
#[track_caller]
fn was_stopped(place: &Workplace, ended: &Ended, where_: &str) {
    ended.must_exit(65).must_say(&[
        " stopped: ",
        where_,
        "all failed there",
        "start over with `--fresh`",
        "limits.first_failed = 0",
    ]);
    let report = place.report();
    assert_eq!((&report["complete"], &report["exit_code"]), (&false.into(), &65.into()), "{report}");
    let read = report["items"]["read"].as_u64().unwrap();
    assert!(report["items"]["done"] == 0 && (100..MANY).contains(&read), "{report}");
    let causes = report["failures"].as_array().unwrap();
    assert!(causes.len() == 1 && causes[0]["items"] == read, "{causes:?}");
    place.on_out("verify", &[]).must_exit(2).must_say(&["has not ended"]);
}

/// The arguments of the command that stands in the line behind these words.
fn told(ended: &Ended, words: &str) -> Vec<String> {
    let line = ended.stderr.lines().skip_while(|line| !line.contains(words)).nth(1);
    let line = line.unwrap_or_else(|| panic!("nothing is told: {}", ended.stderr));
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn a_command_that_is_told_when_a_limit_of_failures_stops_a_run_goes_on_to_its_end() {
    const ROWS: u64 = 3_000;
    let limits = ["limits.first_failed=100", "limits.first_failed=0 --set limits.max_failed=200"];
    let of_pipeline =
        ["pipelines.n.first_failed=100", "limits.first_failed=0 --set pipelines.n.max_failed=10%"];
    for set in limits.iter().chain(&of_pipeline) {
        for is_mended in [false, true] {
            let place = place(&pipeline("n", "rows.jsonl"));
            // The good one comes first.
            let good = u64::from(set.contains("max_failed"));
            rows(&place, "rows.jsonl", good, ROWS);
            let set: Vec<&str> = std::iter::once("--set").chain(set.split(' ')).collect();
            let ended = place.run(&set);
            ended.must_exit(65).must_say(&[" stopped: "]);
            if is_mended {
                rows(&place, "rows.jsonl", ROWS, ROWS);
            }
            let words = match (is_mended, good) {
                (true, 0) => "start over:",
                (true, _) => "try again what has failed:",
                (false, _) => "To go on regardless:",
            };
            let told = told(&ended, words);
            let ended = place.command(&told.iter().map(String::as_str).collect::<Vec<_>>());
            let (code, done) = if is_mended { (0, ROWS) } else { (65, good) };
            ended.must_exit(code).must_say(&["workflow finished"]);
            let items = &place.report()["items"];
            assert_eq!((&items["read"], &items["done"]), (&ROWS.into(), &done.into()), "{set:?} {told:?}");
        }
    }
}

#[test]
fn a_source_of_which_the_first_items_all_fail_is_stopped_and_goes_on_regardless() {
    let place = place(&pipeline("n", "rows.jsonl"));
    rows(&place, "rows.jsonl", 0, MANY);
    let ended = place.run(&[]);
    was_stopped(&place, &ended, "the first 100 items that came to source `n`");
    assert_eq!(ended.stderr.matches("item failed").count(), 1, "a cause is said once: {}", ended.stderr);
    assert!(ended.stderr.contains("at `n_x` (decode), for example `rows.jsonl"), "{}", ended.stderr);
    let ended = place.run(&["--set", "limits.first_failed=0"]);
    ended.must_exit(65).must_say(&["10,000 items read, 0 done, 10,000 failed", "10,000 at `n_x`"]);
    assert_eq!(place.report()["complete"], true);
    assert_eq!(place.failures().len() as u64, MANY);
}

#[test]
fn a_stage_at_which_the_first_items_all_fail_stops_the_run() {
    // One that runs in the loaders, and one that runs in workers.
    let pictures = Workplace::with_blocks(&Blocks::default());
    fs::write(pictures.path("bad.png"), b"no picture").unwrap();
    let mut manifest = "file\n".to_owned();
    (0..MANY).for_each(|n| writeln!(manifest, "images/{n}.png").unwrap());
    for n in 0..MANY {
        fs::hard_link(pictures.path("bad.png"), pictures.images().join(format!("{n}.png"))).unwrap();
    }
    was_stopped(&pictures, &pictures.run(&[]), "the first 100 items that came to stage `pixels`");

    let Some(python) = python() else { return };
    let script = "import numpy as np\nimport orchestra\n\n\
                  @orchestra.stage(batch=8, inputs={\"n\": (\"int64\", [])}, outputs={\"y\": (\"float32\", [])})\n\
                  def f(n):\n    return {\"y\": n.sum(axis=1)}\n";
    let place = place(&format!(
        "[sources.s]\nkind = \"range\"\nstop = {MANY}\n[stages.f]\nkind = \"python\"\nfrom = \"s\"\nscript = \"f.py\"\npython = {python:?}\n\
         [sinks.o]\nkind = \"jsonl\"\nfrom = \"f\"\n"
    ));
    fs::write(place.path("f.py"), script).unwrap();
    let ended = place.run(&[]);
    was_stopped(&place, &ended, "the first 100 items that came to stage `f`");
    assert!(ended.stderr.contains("axis 1 is out of bounds"), "{}", ended.stderr);
}

#[test]
fn fewer_items_than_that_and_items_of_which_one_was_done_come_to_their_end() {
    for (good, n) in [(0, 99), (0, 100), (1, 3_000)] {
        let place = place(&pipeline("n", "rows.jsonl"));
        rows(&place, "rows.jsonl", good, n);
        // In their order: the good one comes first.
        place.run(&["--set", "limits.loaders=1"]).must_exit(65).must_say(&["workflow finished"]);
        let out = fs::read_to_string(place.out().join("n_out.jsonl")).unwrap();
        assert_eq!((out.lines().count() as u64, place.failures().len() as u64), (good, n - good));
        let report = place.report();
        assert!(report["complete"] == true && report["failures"][0]["items"] == n - good, "{report}");
        place
            .run(&[])
            .must_exit(65)
            .must_say(&["nothing is left to do", " at `n_x` (decode), for example `"]);
    }
}

#[test]
fn what_has_failed_may_all_fail_again_in_a_retry() {
    let place = place(&pipeline("n", "rows.jsonl"));
    rows(&place, "rows.jsonl", 0, 3_000);
    place.run(&["--set", "limits.first_failed=0"]).must_exit(65);
    let retried = place.on_file("run", &["--retry-failed"]);
    retried
        .must_exit(65)
        .must_say(&["3,000 failed ones are tried again", "workflow finished: 3,000 items read"]);
    assert_eq!(place.failures().len(), 3_000);
}

#[test]
fn a_limit_of_one_pipeline_stops_that_one_alone() {
    let tables = pipeline("bad", "bad.jsonl") + &pipeline("good", "good.jsonl");
    for (limit, good, why) in [
        ("first_failed=10", 0, "the first 10 items that came to source `bad` all failed there"),
        ("max_failed=10", 1, "more of its items failed than `pipelines.bad.max_failed` allows"),
    ] {
        let place = place(&tables);
        rows(&place, "bad.jsonl", good, MANY);
        rows(&place, "good.jsonl", MANY, MANY);
        let set = format!("pipelines.bad.{limit}");
        let why = format!("pipeline `bad` was stopped: {why}");
        place.run(&["--set", &set]).must_exit(65).must_say(&[&why]);
        if good > 0 {
            // What failed before counts, too.
            place.run(&["--set", &set]).must_exit(65).must_say(&[&why]);
        }
        let (report, good) = (place.report(), MANY + good);
        assert_eq!(report["pipelines"]["good"]["end"], "complete");
        assert!(report["items"]["done"] == good && report["complete"] == false, "{report}");
        assert!((10..MANY).contains(&report["items"]["failed"].as_u64().unwrap()), "{report}");
    }
}

#[test]
fn pictures_that_come_behind_bad_ones_are_not_given_up() {
    let place =
        Workplace::with_blocks(&Blocks { more: "[limits]\nfirst_failed = 40\n", ..Blocks::default() });
    write_pictures(&place.images(), 200);
    // Fewer than the limit, and then some.
    for index in 0..39 {
        fs::write(place.images().join(format!("{index:08}.png")), b"no picture").unwrap();
    }
    place.run(&[]).must_exit(65).must_say(&["200 items read, 161 done, 39 failed"]);
}
