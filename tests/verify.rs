//! `orchestra verify` finds whatever was lost, doubled, damaged or put beside the files of a run, by its name, and nothing in a run that is whole.

use std::fs;

use crate::common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::images::write_bad_pictures;
use rustix::fs::{FileType, Mode};

/// A text and a table of the same items, an array of each, and a sum of all.
const MORE: &str = r#"
[sinks.table]
kind = "csv"
from = "read"

[sinks.arrays]
kind = "npy"
from = "read"

[sinks.failed]
kind = "csv"
from = "failures"

[stages.total]
kind = "reduce"
from = "read"
op = "mean"

[sinks.total]
kind = "jsonl"
from = "total"

[sinks.totals]
kind = "tar"
from = "total"
"#;

#[test]
fn whatever_became_of_the_files_of_a_run_is_told_by_name() {
    let place = Workplace::with_blocks(&Blocks { more: MORE, ..Blocks::default() });
    write_pictures(&place.images(), 100);
    write_bad_pictures(&place.images()).unwrap();
    let out = place.out();
    let verify = || place.command(&["verify", out.to_str().unwrap()]);
    verify().must_exit(2).must_say(&["no account of a run"]);
    place.run(&[]).must_exit(65);
    let whole = verify().exited(0);
    let account = "105 items: 100 done, 5 failed, 300 records; 0 lost, 0 doubled, 0 stray, 0 damaged";
    assert!(whole.stdout.ends_with(&format!("{account}\n")), "{}", whole.stdout);
    assert!(whole.stdout.contains("`total`"), "a sum is no record of an item: {}", whole.stdout);

    let (results, kept) = (out.join("results.jsonl"), out.join("kept"));
    fs::rename(&results, &kept).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &results, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    verify().must_exit(70).must_print(&["`results.jsonl`: it is no regular file"]);
    fs::rename(&kept, &results).unwrap();

    // Each fault is made, told, and mended again.
    let told = |file: &str, change: &dyn Fn(String) -> String, expected: &[&str]| {
        let path = out.join(file);
        let before = fs::read(&path).unwrap();
        fs::write(&path, change(String::from_utf8(before.clone()).unwrap())).unwrap();
        let found = verify().exited(70);
        for words in expected {
            assert!(found.stdout.contains(words), "{file}: {words}: {}", found.stdout);
        }
        fs::write(&path, before).unwrap();
        verify().must_exit(0);
    };
    let without_line = |n: usize| {
        move |text: String| {
            text.split_inclusive('\n')
                .enumerate()
                .filter(|(at, _)| *at != n)
                .map(|(_, line)| line)
                .collect::<String>()
        }
    };
    let twice = |text: String| text.clone() + text.lines().next_back().unwrap() + "\n";
    told("results.jsonl", &without_line(7), &["neither a record in `results.jsonl` nor a failure", "1 lost"]);
    told("table.csv", &without_line(9), &["neither a record in `table.csv`", "1 lost"]);
    told("failures.jsonl", &without_line(0), &["3 lost", "nor a failure"]);
    told("failed.csv", &without_line(2), &["has failed and is not in `failed.csv`", "1 lost"]);
    told("failed.csv", &twice, &["is twice in `failed.csv`", "1 doubled"]);
    told("failures.jsonl", &without_line(1), &["is in `failed.csv` and has not failed"]);
    told("results.jsonl", &twice, &["is twice in `results.jsonl`", "1 doubled"]);
    told("failures.jsonl", &twice, &["is twice in `failures.jsonl`"]);
    let torn = |text: String| text[..text.len() - 3].to_owned();
    told("results.jsonl", &torn, &["line 100 is cut off", "1 damaged", "1 lost"]);
    let foreign = |text: String| text.replacen("\"index\":3,", "\"index\":3000,", 1);
    told("results.jsonl", &foreign, &["[3000], which no source names", "1 stray", "1 lost"]);
    let renamed = |text: String| text.replacen("00000003.png", "00000004.png", 1);
    told(
        "results.jsonl",
        &renamed,
        &["under the number scans[3], which is that of `00000003.png`", "1 stray", "1 lost"],
    );
    told("table.csv", &renamed, &["has a record of `00000004.png`", "1 stray", "1 lost"]);
    let done = fs::read_to_string(&results).unwrap();
    let both = |text: String| text + done.lines().next().unwrap() + "\n";
    told("failures.jsonl", &both, &["and in `failures.jsonl`", "doubled"]);

    for file in
        ["results.jsonl", "table.csv", "failures.jsonl", "failed.csv", "total.jsonl", "totals-00000.tar"]
    {
        let (path, aside) = (out.join(file), place.path("aside"));
        fs::rename(&path, &aside).unwrap();
        let found = verify().exited(70);
        assert!(found.stdout.contains(&format!("`{file}`")), "{file}: {}", found.stdout);
        assert!(found.stdout.contains("1 damaged"), "{file}: {}", found.stdout);
        fs::rename(&aside, &path).unwrap();
    }
    verify().must_exit(0);

    // An account may claim any number of items.
    let claims = |n: u64| move |text: String| text.replacen("\"scans\": 105", &format!("\"scans\": {n}"), 1);
    told("run.json", &claims(60_000_000_000), &["60,000,000,000 items", "`results.jsonl` nor a failure"]);
    let (account, before) = (out.join("run.json"), fs::read_to_string(out.join("run.json")).unwrap());
    fs::write(&account, claims(u64::MAX)(before.clone())).unwrap();
    verify().must_exit(2).must_say(&["18446744073709551615 items, and no run has so many"]);
    fs::write(&account, before).unwrap();

    let arrays = out.join("arrays");
    let array = fs::read_dir(&arrays).unwrap().map(|e| e.unwrap().path());
    let array = array.filter(|path| path.extension().is_some_and(|e| e == "npy")).min().unwrap();
    let name = array.file_name().unwrap().to_str().unwrap().to_owned();
    let moved = arrays.join("other.npy");
    fs::rename(&array, &moved).unwrap();
    let found = verify();
    found.must_print(&["`arrays/other.npy` was not written by the run"]);
    assert!(found.stdout.contains(&name) && found.stdout.contains("1 lost"), "{}", found.stdout);
    fs::rename(&moved, &array).unwrap();
    fs::write(out.join("notes.txt"), "mine").unwrap();
    let found = place.command(&["verify", out.to_str().unwrap(), "--json"]);
    let found: serde_json::Value = serde_json::from_str(&found.must_exit(70).stdout).unwrap();
    assert_eq!(found["counts"], serde_json::json!({ "stray": 1 }));
}

/// Parts are numbered, so that one that is missing, torn, or there twice shows.
#[test]
fn a_file_that_was_written_over_with_the_result_of_more_items_is_whole() {
    let place = Workplace::of(
        "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"*.jsonl\"]\ncolumns = { v = \"f64[2]\" }\n[stages.all]\nkind = \"reduce\"\nfrom = \"s.v\"\n\
         op = \"concat\"\njoin = true\n[sinks.o]\nkind = \"npy\"\nfrom = \"all\"\n",
    );
    for n in 1..=3 {
        fs::write(place.path(&format!("{n}.jsonl")), "{\"v\": [1, 2]}\n".repeat(40)).unwrap();
        place.run(&[]).must_exit(0);
        let array = fs::read(place.out().join("o/all.npy")).unwrap();
        assert_eq!(array.len(), 128 + n * 40 * 16, "of all items");
        place.on_out("verify", &[]).must_exit(0);
    }
}

#[test]
fn whatever_became_of_part_files_is_told_by_name() {
    const ITEMS: u64 = 50;
    let kinds = ["tar", "parquet"];
    let sink = |kind: &&str| format!("[sinks.{kind}]\nkind = \"{kind}\"\nfrom = \"read\"\n");
    let more: String = kinds.iter().map(sink).collect();
    let place = Workplace::with_blocks(&Blocks { more: more.leak(), ..Blocks::default() });
    write_pictures(&place.images(), ITEMS);
    place.run(&[]).must_exit(0);
    let out = place.out();
    let verify = || place.command(&["verify", out.to_str().unwrap()]);
    verify().must_exit(0);
    let told = |words: &[&str]| {
        let found = verify().exited(70);
        for words in words {
            found.must_print(&[words]);
        }
    };
    for kind in kinds {
        let (name, next) = (format!("{kind}-00000.{kind}"), format!("{kind}-00001.{kind}"));
        let (part, aside) = (out.join(&name), place.path("aside"));
        assert!(!out.join(&next).exists(), "all items fit into a part");
        fs::rename(&part, &aside).unwrap();
        told(&[&format!("{ITEMS} lost")]);
        let whole = fs::read(&aside).unwrap();
        fs::write(&part, &whole[..whole.len() / 2]).unwrap();
        told(&[&name, "1 damaged"]);
        fs::rename(&aside, &part).unwrap();
        verify().must_exit(0);
        fs::copy(&part, out.join(&next)).unwrap();
        told(&[&next]);
        fs::remove_file(out.join(&next)).unwrap();
        verify().must_exit(0);
    }
}
