//! What is no picture fails alone, by name and once; everything beside it is done, and the run ends with 65. Says nothing about which
//! bytes are pictures: the decoder's own tests do.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use crate::common::{Blocks, Workplace, drawn, shows_its_own};
use orchestra_testkit::images::{write_bad_pictures, write_picture};
use orchestra_testkit::records::{ItemKey, items};
use rustix::fs::{CWD, FileType, Mode, mknodat};

#[test]
fn each_bad_picture_of_a_folder_fails_alone_and_by_name() {
    let place = Workplace::with_pictures(300);
    let bad = write_bad_pictures(&place.images()).unwrap();
    place.run(&[]).must_exit(65).must_say(&["300 done, 5 failed", "failures.jsonl"]);
    // Names that start with `bad-` come behind those that start with digits.
    let records = place.must_hold(&items("scans", 0..300), &items("scans", 300..305));
    shows_its_own(&records);
    for failure in place.failures() {
        let keys: Vec<&str> = failure.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            sorted(keys),
            ["attempts", "error", "index", "item", "kind", "source", "stage"],
            "{failure}"
        );
        let name = failure["item"].as_str().unwrap();
        assert!(bad.iter().any(|b| b.file_name() == Some(OsStr::new(name))), "{failure}");
        assert_eq!((&failure["stage"], &failure["kind"]), (&"pixels".into(), &"decode".into()), "{failure}");
        assert_eq!(failure["attempts"], 1);
        assert!(!failure["error"].as_str().unwrap().is_empty());
    }
    let report = place.report();
    assert_eq!(report["stages"]["pixels"]["failed"], 5);
    assert_eq!(report["exit_code"], 65);
    place.nothing_is_left();
}

/// What a row of the manifest stands for.
enum Row {
    Picture(u64),
    Failure(&'static str),
}

#[test]
fn whatever_a_manifest_names_ends_under_its_own_name() {
    let place = Workplace::new();
    place.write_blocks(&Blocks::default(), "manifest = \"images/list.csv\"");
    place.edit("path = \"results.jsonl\"", "path = \"results.jsonl\"\nordered = true");
    let images = place.images();
    let picture = |name: &[u8], index| {
        let path = write_picture(&place.path("tmp"), index, 32, 32, orchestra_testkit::images::Kind::Png);
        fs::rename(path.unwrap(), images.join(OsStr::from_bytes(name))).unwrap();
    };
    let bad = write_bad_pictures(&images).unwrap();
    fs::create_dir(images.join("folder.png")).unwrap();
    mknodat(CWD, images.join("pipe.png"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::os::unix::fs::symlink("nowhere", images.join("dangling.png")).unwrap();
    let mut rows: Vec<(Vec<u8>, Row)> = vec![
        (b"plain.png".to_vec(), Row::Picture(7)),
        (b"missing.png".to_vec(), Row::Failure("read")),
        (b"no text \xff\xfe.png".to_vec(), Row::Picture(8)),
        (b"folder.png".to_vec(), Row::Failure("read")),
        (b"two\nlines and \"quotes\", commas.png".to_vec(), Row::Picture(9)),
        (b"pipe.png".to_vec(), Row::Failure("read")),
        (b"gone \xff\n\"too\".png".to_vec(), Row::Failure("read")),
        (b"dangling.png".to_vec(), Row::Failure("read")),
        ("späße 図.png".as_bytes().to_vec(), Row::Picture(10)),
    ];
    for (name, row) in &rows {
        if let Row::Picture(index) = row {
            picture(name, *index);
        }
    }
    let bad_names = bad.iter().map(|path| path.file_name().unwrap().as_bytes().to_vec());
    rows.extend(bad_names.map(|name| (name, Row::Failure("decode"))));
    // The same picture twice is two items.
    rows.push((b"plain.png".to_vec(), Row::Picture(7)));
    fs::write(images.join("list.csv"), csv(rows.iter().map(|(name, _)| name.as_slice()))).unwrap();

    place.run(&[]).must_exit(65);
    let of = |wanted: bool| {
        let rows = rows.iter().enumerate().filter(move |(_, (_, r))| matches!(r, Row::Picture(_)) == wanted);
        items("scans", rows.map(|(i, _)| i as u64))
    };
    let records = place.must_hold(&of(true), &of(false));
    let text = fs::read_to_string(place.out().join("results.jsonl")).unwrap();
    let results = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for records in [results, place.failures()] {
        assert!(records.is_sorted_by_key(|record| record["index"].as_u64()), "in the order of the list");
    }
    let mut names = BTreeMap::new();
    for (i, (bytes, row)) in rows.iter().enumerate() {
        let key = ItemKey { source: "scans".into(), index: i as u64 };
        let record = match row {
            Row::Picture(index) => {
                assert_eq!(drawn(&records, &key), *index);
                &records.done[&key]["results.jsonl"]
            }
            Row::Failure(kind) => {
                assert_eq!(records.failure_kind(&key), Some(*kind), "{}", records.failed[&key]);
                &records.failed[&key]
            }
        };
        names.insert(bytes.clone(), record["item"].as_str().unwrap().to_owned());
    }
    assert_eq!(names[b"no text \xff\xfe.png".as_slice()], r"no text \xFF\xFE.png");
    assert_eq!(names[b"gone \xff\n\"too\".png".as_slice()], "gone \\xFF\n\"too\".png");
    assert_eq!(
        names[b"two\nlines and \"quotes\", commas.png".as_slice()],
        "two\nlines and \"quotes\", commas.png"
    );
    place.nothing_is_left();
}

fn sorted(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names
}

fn csv<'a>(names: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut text = b"file,label\n".to_vec();
    for name in names {
        text.push(b'"');
        for byte in name {
            text.push(*byte);
            if *byte == b'"' {
                text.push(b'"');
            }
        }
        text.extend(b"\",0\n");
    }
    text
}
