//! Patterns of `paths`: text to the files that it names. It never lets one lead out of a folder made for it.

use std::fs;
use std::path::PathBuf;

use orchestra_store::{ItemEntry, ListError, ListingReader, ListingSpec, first_item, write_listing};

use crate::memory::measured;
use crate::scratch;

/// What a pattern may take: a glob becomes an automaton, which has a limit of its own.
const MOST_BYTES: usize = 64 << 20;
/// What there is to be named.
const FILES: [&str; 7] =
    ["a.png", "b.jpg", ".hidden.png", "deep/c.png", "deep/er/d.png", "deep/.hidden/e.png", "[odd]/{f}*?.png"];

/// A pattern names files below its folder, or is refused; never a panic.
pub fn pattern(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // It must not lead out of the folder that is made for it.
    if text.starts_with('/') || text.contains("..") || text.len() > 4096 {
        return;
    }
    let base = folder();
    let list = scratch::path("pattern-items");
    let spec = ListingSpec::Paths { base: base.clone(), patterns: vec![text.to_owned()] };
    let ((first, listed), taken) = measured(|| (first_item(&spec), write_listing(&spec, &list)));
    assert!(taken.peak <= MOST_BYTES, "{taken:?} for the pattern `{}`", text.escape_debug());
    match listed {
        Ok(summary) => {
            let reader = ListingReader::open(&list).expect("a list that was just written can be read");
            let items: Vec<ItemEntry> = reader.map(|i| i.expect("a list just written is whole")).collect();
            assert_eq!(items.len() as u64, summary.count);
            assert!(!items.is_empty() && items.is_sorted_by(|a, b| a.locator < b.locator));
            assert!(items.iter().all(|i| i.locator.starts_with(&base) && i.locator.is_file()), "{items:?}");
            let first = first.expect("a pattern that can be listed has a first item");
            assert!(first.is_some_and(|first| items.iter().any(|i| i.locator == first.locator)));
        }
        Err(ListError::NoMatch { .. }) => assert!(matches!(first, Ok(None))),
        Err(ListError::NoSuchFile { .. } | ListError::BadPattern { .. }) => assert!(first.is_err()),
        Err(other) => panic!("`{}`: {other:?}", text.escape_debug()),
    }
}

/// The folder with the files, made once per thread.
fn folder() -> PathBuf {
    let base = scratch::path("pictures");
    if !base.exists() {
        for file in FILES {
            let path = base.join(file);
            let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, b""));
            made.expect("the folder for temporary files takes an empty file");
        }
    }
    base
}
