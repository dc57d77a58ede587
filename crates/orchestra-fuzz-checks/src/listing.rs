//! Lists of items, as an earlier run left them in its output folder: bytes to items, and a longer list in its place. It looks for no item.

use std::path::Path;

use orchestra_store::{ItemEntry, ListError, ListingReader, ListingSpec, extend_listing, write_listing};

use crate::memory::measured;
use crate::scratch;

/// What reading may take beyond a multiple of the list: a path and a name of the longest length that is believed, and buffers.
const SLACK: usize = 40 << 20;
/// What a byte of a list may cost: names, paths and places are sorted in memory.
const PER_BYTE: usize = 64;
/// Rows of the list that is always whole.
const ROWS: &[u8] = b"a.png\nb.png\nb.png\nsub/c.png\n";

/// A list is read to its end or found to be damaged, from any place on, in bounded memory; and no damage makes another list lose an item.
pub fn listing(bytes: &[u8]) {
    let list = scratch::write("found", bytes);
    let (read, taken) = measured(|| read_all(&list));
    assert!(taken.peak <= SLACK + PER_BYTE * bytes.len(), "{taken:?} for a list of {} bytes", bytes.len());
    if let Ok(items) = &read {
        skip_around(&list, items);
    }
    let whole = whole_list();
    let known = read_all(&whole).expect("a list that was just written can be read");
    check_extension(&list, &whole, read.as_deref().ok(), Some(&known));
    // The other way round; the first call may have changed the whole list.
    let whole = whole_list();
    check_extension(&whole, &list, Some(&known), read.as_deref().ok());
}

fn read_all(list: &Path) -> Result<Vec<ItemEntry>, ListError> {
    let reader = ListingReader::open(list)?;
    let count = reader.n_items();
    let items = reader.collect::<Result<Vec<_>, _>>()?;
    assert_eq!(items.len() as u64, count);
    Ok(items)
}

/// A list that can be read from front to back says the same from any place on, unless its index is damaged.
fn skip_around(list: &Path, items: &[ItemEntry]) {
    let count = items.len() as u64;
    for at in [0, 1, count / 2, count.saturating_sub(1), count, u64::MAX] {
        let mut reader = ListingReader::open(list).expect("it was opened before");
        if reader.skip_to(at).is_err() {
            continue;
        }
        assert_eq!(reader.next_index(), at.min(count));
        let item = reader.next();
        // Within the first stride the index plays no part.
        if at < 1024 {
            let expected = usize::try_from(at).ok().and_then(|at| items.get(at));
            assert_eq!(item.and_then(Result::ok).as_ref(), expected);
        }
    }
}

fn whole_list() -> std::path::PathBuf {
    let rows = scratch::write("rows.txt", ROWS);
    let list = scratch::path("whole");
    let spec = ListingSpec::Manifest { path: Some(rows), base: "/pictures".into() };
    write_listing(&spec, &list).expect("rows of ours can be listed");
    list
}

/// `old_items` and `new_items` are what can be read of the lists before. Of an old one that is damaged, whole items at its beginning count.
fn check_extension(old: &Path, new: &Path, old_items: Option<&[ItemEntry]>, new_items: Option<&[ItemEntry]>) {
    let claim = |list| ListingReader::open(list).ok().and_then(|l| l.summary());
    let is_unchanged = claim(old).is_some_and(|old| Some(old) == claim(new));
    match extend_listing(old, new, None) {
        Err(_) => {
            let both_whole = old_items.is_some() && new_items.is_some();
            assert!(!both_whole, "two lists that can be read can be joined");
            assert_eq!(
                read_all(new).ok().as_deref(),
                new_items,
                "a list is replaced as a whole or not at all"
            );
        }
        // Lists that claim to be equal are not read, whatever they hold.
        Ok(extension) if is_unchanged => assert_eq!((extension.appended, extension.missing_count), (0, 0)),
        Ok(extension) => {
            let (Some(old_items), Some(new_items)) = (old_items, new_items) else { return };
            let joined = read_all(new).expect("a list that was just written can be read");
            assert_eq!(joined.len(), old_items.len() + extension.appended as usize);
            let names = |items: &[ItemEntry]| items.iter().map(|i| i.name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&joined)[..old_items.len()], names(old_items), "no item changes its place");
            let (mut expected, mut found) = (names(new_items), names(&joined));
            expected.sort_unstable();
            found.sort_unstable();
            expected.dedup();
            assert!(expected.iter().all(|name| found.binary_search(name).is_ok()), "every new item is there");
        }
    }
}
