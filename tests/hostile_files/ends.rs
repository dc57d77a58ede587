//! What may become of files that are made to harm, and whether it has.

use std::collections::BTreeSet;
use std::path::PathBuf;

use orchestra_testkit::records::{ItemKey, Records};

/// A kind of failure, or `done`.
pub type Ends = &'static [&'static str];

/// How each of `write_hostile_pictures` ends under `limits.memory = "512MiB"`, with its name.
pub fn of_hostile(files: &[PathBuf]) -> Vec<(String, Ends)> {
    let end = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        (name.to_owned(), end_of(name.strip_prefix("hostile-").unwrap()))
    };
    files.iter().map(end).collect()
}

fn end_of(name: &str) -> Ends {
    match name {
        // What these bits say is a picture, too; and what lies behind one is no matter.
        "turned-1.bmp" | "turned-2.bmp" | "turned-1.webp" | "turned-2.tiff" | "trailer.png" | "whole.png" => {
            &["done"]
        }
        // Decoded whole, where 256 MiB hold it: PNG and TIFF are read by lines and strips, and end early.
        "claims-08000.gif" | "claims-08000.jpg" | "claims-08000.webp" => &["out_of_memory"],
        _ if name.starts_with("claims-12000") || name.starts_with("claims-16000") => {
            if name.ends_with(".png") || name.ends_with(".tiff") { &["decode"] } else { &["out_of_memory"] }
        }
        _ => &["decode"],
    }
}

/// Items of `source`, those that are done and those that failed, as it must be: they are `files` in the order of their names, from number `first` on.
#[track_caller]
pub fn must_end(
    records: &Records,
    source: &str,
    first: u64,
    mut files: Vec<(String, Ends)>,
) -> (BTreeSet<ItemKey>, BTreeSet<ItemKey>) {
    files.sort_unstable();
    let (mut done, mut failed) = (BTreeSet::new(), BTreeSet::new());
    for (index, (name, ends)) in (first..).zip(files) {
        let key = ItemKey { source: source.into(), index };
        let kind = records.failure_kind(&key).unwrap_or("done");
        let error = records.failed.get(&key).map_or("", |record| record["error"].as_str().unwrap());
        println!("{name}: {kind} {error}");
        assert!(ends.contains(&kind), "{name}: {kind}, expected {ends:?}: {error}");
        if kind == "done" {
            done.insert(key)
        } else {
            failed.insert(key)
        };
    }
    (done, failed)
}
