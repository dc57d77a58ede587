//! Manifests: bytes to a list of items, in every format that the name of a manifest may say. It opens none of the items.

use orchestra_store::{ListError, ListingReader, ListingSpec, first_item, write_listing};

use crate::memory::measured;
use crate::scratch;

/// What listing may take beyond a multiple of the manifest: its buffers, and rows of the longest length that is believed.
const SLACK: usize = 8 << 20;
/// What a byte of the manifest may cost.
const PER_BYTE: usize = 64;
/// One name for each format.
const NAMES: [&str; 4] = ["list.csv", "list.tsv", "list.jsonl", "list.txt"];

/// A manifest is listed whole or refused with a line that it has, in bounded memory; never a panic, in no format.
pub fn manifest(bytes: &[u8]) {
    for name in NAMES {
        let path = scratch::write(name, bytes);
        let spec = ListingSpec::Manifest { path: Some(path), base: "/pictures".into() };
        check(&spec, bytes);
    }
}

fn check(spec: &ListingSpec, bytes: &[u8]) {
    let list = scratch::path("items");
    let (listed, taken) = measured(|| write_listing(spec, &list));
    assert!(
        taken.peak <= SLACK + PER_BYTE * bytes.len(),
        "{taken:?} for a manifest of {} bytes",
        bytes.len()
    );
    let first = first_item(spec);
    let summary = match listed {
        Ok(summary) => summary,
        Err(error) => {
            check_error(&error, bytes);
            return;
        }
    };
    let first = first.expect("a manifest that can be listed has a first item").expect("it names items");
    let mut reader = ListingReader::open(&list).expect("a list that was just written can be read");
    assert_eq!(reader.summary(), Some(summary));
    let mut count = 0;
    for (at, item) in (&mut reader).enumerate() {
        let item = item.expect("a list that was just written is whole");
        assert!(!item.name.is_empty() && !item.name.contains('\0'), "{:?} is no name", item.name);
        assert!(item.locator.is_absolute());
        assert!(at > 0 || item == first, "{item:?} is not {first:?}");
        count += 1;
    }
    assert_eq!(count, summary.count);
}

fn check_error(error: &ListError, bytes: &[u8]) {
    let lines = bytes.iter().filter(|b| matches!(b, b'\n' | b'\r')).count() as u64 + 1;
    match error {
        ListError::BadRow { line, reason, .. } => {
            assert!((1..=lines).contains(line), "line {line} of {lines}: {error}");
            assert!(!reason.is_empty());
        }
        ListError::EmptyManifest { .. } => {}
        other => panic!("a manifest that is there fails by its rows alone: {other:?}"),
    }
}
