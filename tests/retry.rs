//! What has failed is done again when that is asked for, and nothing else: each item ends in one place, before, in between and after.

use std::fs;

use crate::common::{Blocks, Workplace, drawn, write_pictures};
use crate::moto::Moto;
use crate::part_kills::{parts, rows};
use orchestra_testkit::images::write_bad_pictures;
use orchestra_testkit::records::items;

const GOOD: u64 = 120;
const BAD: u64 = 5;

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

/// The numbers of the items whose failures lie in parts, which are called by the first numbers.
fn in_parts(place: &Workplace) -> Vec<u64> {
    let parts = parts(&place.out());
    let expected = (0..parts.len()).map(|number| place.out().join(format!("parts-{number:05}.tar")));
    assert_eq!(parts, expected.collect::<Vec<_>>());
    rows("python3", &parts).into_iter().collect()
}

#[test]
fn failed_items_are_done_again_with_the_command_that_started_the_run() {
    let more = "[sinks.failed]\nkind = \"csv\"\nfrom = \"failures\"\n[sinks.parts]\nkind = \"tar\"\nfrom = \"failures\"\nrows_per_file = 2";
    let place = Workplace::with_blocks(&Blocks { more, ..Blocks::default() });
    write_pictures(&place.images(), GOOD);
    let bad = write_bad_pictures(&place.images()).unwrap();
    let out = place.out();
    let out = out.to_str().unwrap();
    let retry = || place.command(&["retry", out]);
    place.command(&["retry", out]).must_exit(2).must_say(&["no output folder of a run"]);

    place.run(&[]).must_exit(65);
    assert_eq!(in_parts(&place), Vec::from_iter(GOOD..GOOD + BAD));
    let lines = || fs::read_to_string(place.path("out/results.jsonl")).unwrap();
    let before = lines();
    place.command(&["-q", "retry", out]).must_exit(65);
    // Nothing is better than it was: the same items fail again, and stand there once.
    retry().must_exit(65).must_say(&["5 failed ones are tried again", "120 done, 5 failed"]);
    place.must_hold(&items("scans", 0..GOOD), &items("scans", GOOD..GOOD + BAD));
    assert_eq!(lines(), before, "what is done is not touched");
    assert_eq!(in_parts(&place), Vec::from_iter(GOOD..GOOD + BAD));

    // Two of them are mended, and their names stay.
    for path in &bad[..2] {
        let good = fs::read_dir(place.images()).unwrap().map(|entry| entry.unwrap().path());
        let good = good.filter(|path| !bad.contains(path)).min().unwrap();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        }
        fs::copy(good, path).unwrap();
    }
    place.run(&[]).must_exit(65).must_say(&["nothing is left to do", "--retry-failed"]);
    retry().must_exit(65).must_say(&["122 done, 3 failed"]);
    let failed: Vec<u64> = place.failures().iter().map(|f| f["index"].as_u64().unwrap()).collect();
    let records = place.records();
    assert_eq!((records.done.len(), failed.len()), (122, 3));
    for key in records.done.keys() {
        assert!(!failed.contains(&key.index));
        assert_eq!(drawn(&records, key), if key.index < GOOD { key.index } else { 0 });
    }
    assert_eq!(in_parts(&place), sorted(failed.clone()));
    let verified = place.command(&["verify", out]);
    assert!(verified.stdout.contains("0 lost, 0 doubled"), "{}{}", verified.stdout, verified.stderr);
    // Without a retry, failed items stay failed.
    place.run(&[]).must_exit(65).must_say(&["122 done, 3 failed"]);
    assert!(lines().starts_with(&before));
    // A sink that writes failures has those that still are.
    let table = fs::read_to_string(place.path("out/failed.csv")).unwrap();
    let mut rows = csv::Reader::from_reader(table.as_bytes());
    let names = ["item", "index", "source", "stage", "kind", "error", "attempts"];
    assert_eq!(rows.headers().unwrap().iter().collect::<Vec<_>>(), names);
    let rows: Vec<csv::StringRecord> = rows.records().map(Result::unwrap).collect();
    assert_eq!(rows.iter().map(|row| row[1].parse().unwrap()).collect::<Vec<u64>>(), failed);
    assert!(rows.iter().all(|row| (&row[3], &row[4], &row[6]) == ("pixels", "decode", "1")), "{rows:?}");
    place.no_process_is_left();
}

#[test]
fn a_retry_is_refused_where_failures_lie_in_a_bucket_and_changes_nothing() {
    let Some(moto) = Moto::start() else { return };
    let more = "[sinks.failed]\nkind = \"jsonl\"\nfrom = \"failures\"\npath = \"s3://digits/failed/\"";
    let place = Workplace::with_blocks(&Blocks { more, ..Blocks::default() });
    write_pictures(&place.images(), GOOD);
    write_bad_pictures(&place.images()).unwrap();
    let (out, file) = (place.out(), place.workflow());
    let out = out.to_str().unwrap();
    let start = |arguments: &[&str]| place.start_command_with(arguments, &moto.variables()).wait();
    let objects = || {
        moto.python(
            "for o in s3.list_objects_v2(Bucket='digits', Prefix='failed/')['Contents']: print(o['Key'], o['ETag'], o['LastModified'])",
        )
    };
    start(&["run", file.to_str().unwrap()]).must_exit(65);
    let before = objects();
    assert!(
        before.contains("failed/failed-00000.jsonl") && before.contains("failed/_manifest.json"),
        "{before}"
    );
    let refused = start(&["retry", out]);
    refused.must_exit(78).must_say(&[
        "the failed items cannot be done again: sink `failed` has written their failures to a bucket",
        "whose objects stay as they are",
        "start over with `--fresh`, and give that sink a `path` in the output folder",
    ]);
    assert!(start(&["verify", out]).must_exit(0).stdout.contains("0 lost, 0 doubled"));
    // No failure was taken back.
    place.must_hold(&items("scans", 0..GOOD), &items("scans", GOOD..GOOD + BAD));
    assert_eq!(objects(), before);
    start(&["run", file.to_str().unwrap()])
        .must_exit(65)
        .must_say(&["125 items are finished, 0 left", "120 done, 5 failed"]);
    assert_eq!(objects(), before);
    assert!(start(&["verify", out]).must_exit(0).stdout.contains("0 lost, 0 doubled"));
    place.no_process_is_left();
}

#[test]
fn a_retry_of_a_run_without_failures_is_not_refused_for_a_sink_that_could_have_had_some() {
    let Some(moto) = Moto::start() else { return };
    let more = "[sinks.failed]\nkind = \"jsonl\"\nfrom = \"failures\"\npath = \"s3://digits/none/\"";
    let place = Workplace::with_blocks(&Blocks { more, ..Blocks::default() });
    write_pictures(&place.images(), GOOD);
    place.run_with(&moto.variables()).must_exit(0);
    let out = place.out();
    let retry = ["retry", out.to_str().unwrap()];
    place
        .start_command_with(&retry, &moto.variables())
        .wait()
        .must_exit(0)
        .must_say(&["nothing is left to do"]);
    place.holds_exactly(GOOD);
    place.no_process_is_left();
}
