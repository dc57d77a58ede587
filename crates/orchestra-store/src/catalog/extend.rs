//! Resuming with a longer list: old items keep their index, new ones are appended. Decides nothing about what is missing.
//!
//! Items are the same when their names are. Both lists may be larger than memory, so they are joined by sorting.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::io;
use std::iter::Peekable;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::kept_files::KeptFiles;
use super::lister::{Lister, list};
use super::listing_file::{ListingWriter, folder_of};
use super::{Expand, ItemEntry, ListError, ListingReader, ListingSpec};
use crate::number_set::NumberSet;
use crate::sorter::{MergedRuns, Sorter};

/// Names of missing items that are reported.
const MISSING_SHOWN: usize = 10;
/// Added to the place of an item that is only in the new list, so that it sorts behind all old ones.
const APPENDED: u64 = 1 << 63;

/// What became of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// Items of the old list: all, or where its writer was killed, those that it had numbered for certain.
    pub numbered: u64,
    /// Whether the old list was complete.
    pub was_complete: bool,
    /// Items that only the new list names: now at the end.
    pub appended: u64,
    /// How many items only the old list names. They stay, with their old locator, so that no index moves.
    pub missing_count: u64,
    /// The names of the first few of them.
    pub missing: Vec<String>,
    /// The numbers of items that were another one under their name in the old list.
    pub changed: NumberSet,
}

impl Extension {
    fn of(before: &ListingReader) -> Self {
        Self {
            numbered: before.n_items(),
            was_complete: before.summary().is_some(),
            appended: 0,
            missing_count: 0,
            missing: Vec::new(),
            changed: NumberSet::default(),
        }
    }
}

/// Lists a source anew into `new`, as [`write_items`](super::write_items) does, and has that begin with the items of `old`, as [`extend_listing`] does. Files that are
/// as they were when `old` was written are looked at, and not read.
///
/// # Errors
/// Those of both.
pub fn relist(
    spec: &ListingSpec,
    expand: Option<&dyn Expand>,
    most: u64,
    old: &Path,
    new: &Path,
) -> Result<Extension, ListError> {
    let mut before = ListingReader::open_unfinished(old)?;
    let mut kept = match expand {
        Some(_) => KeptFiles::of(&mut before)?,
        None => KeptFiles::default(),
    };
    let writer = ListingWriter::create(new, None)?;
    let mut lister = Lister::new(writer, expand, most, &|| true);
    lister.kept = Some(&mut kept);
    let listed = list(spec, lister)?;
    let after = ListingReader::open(new)?;
    if listed.count > 0 || !kept.are_all(before.n_items()) {
        return extend(before, after, new, expand, &kept);
    }
    // Nothing is new and nothing is missing. It is written anew: of the old one, the index is not known to be whole.
    let mut writer = ListingWriter::create(new, None)?;
    writer.passed_over = after.growth().passed_over();
    while let Some((name, locator)) = before.read()? {
        writer.push(name, path(locator))?;
    }
    copy_files(&mut before, &mut writer, |_| true)?;
    writer.finish()?;
    Ok(Extension::of(&before))
}

/// Rewrites the list `new` to begin with the items of `old` in their order, with the locators that `new` gave them, and behind them the items that
/// only `new` names, in its order. `new` is complete and changes at once or not at all; `old` may be unfinished and is left alone. `expand` has made
/// the items of files, and says which of them have changed.
pub fn extend_listing(old: &Path, new: &Path, expand: Option<&dyn Expand>) -> Result<Extension, ListError> {
    let (before, after) = (ListingReader::open_unfinished(old)?, ListingReader::open(new)?);
    extend(before, after, new, expand, &KeptFiles::default())
}

/// `after` is `new`, and has no items of files that are kept.
fn extend(
    mut before: ListingReader,
    mut after: ListingReader,
    new: &Path,
    expand: Option<&dyn Expand>,
    kept: &KeptFiles,
) -> Result<Extension, ListError> {
    let mut result = Extension::of(&before);
    if kept.n_items() == 0 && before.summary() == after.summary() {
        return Ok(result);
    }
    let wrap = |error: io::Error| ListError::ListFile { path: new.into(), doing: "write", error };
    let folder = folder_of(new);
    let old_sorted = by_name(&mut before, &folder, wrap)?;
    let new_sorted = by_name(&mut after, &folder, wrap)?;
    let mut places = Sorter::new(&folder);
    // Of the file of the last item that was asked for: most lie beside each other.
    let mut last = (Vec::new(), false);
    let mut is_kept = |locator: &[u8]| {
        let file =
            expand.map_or(path(locator), |expand| expand.file_of(path(locator))).as_os_str().as_bytes();
        if last.0 != file {
            last = (file.to_owned(), kept.is_kept(file));
        }
        last.1
    };
    join(old_sorted, new_sorted, &mut |joined| {
        let (place, row) = match joined {
            // A file that is named twice now: the list has its items once.
            JoinedRow::Both { place, before, row } if is_kept(&before) => {
                let kept = ListRow { name: row.name.clone(), place, locator: before };
                places.push(&kept.at(place))?;
                result.appended += 1;
                (APPENDED | row.place, row)
            }
            JoinedRow::Both { place, before, row } => {
                if expand.is_some_and(|expand| expand.has_changed(path(&before), path(&row.locator))) {
                    result.changed.insert(place);
                }
                (place, row)
            }
            JoinedRow::New(row) => {
                result.appended += 1;
                (APPENDED | row.place, row)
            }
            JoinedRow::Old(row) if is_kept(&row.locator) => (row.place, row),
            JoinedRow::Old(row) => {
                result.missing_count += 1;
                result.missing.extend((result.missing.len() < MISSING_SHOWN).then(|| row.name.clone()));
                (row.place, row)
            }
        };
        places.push(&row.at(place))
    })
    .map_err(wrap)?;
    let mut writer = ListingWriter::create(new, None)?;
    writer.passed_over = after.growth().passed_over();
    for record in places.finish().map_err(wrap)? {
        let record = record.map_err(wrap)?;
        let (name, locator) = split(&record[8..]).ok_or_else(|| wrap(spill_damaged()))?;
        writer.push(name, path(locator))?;
    }
    copy_files(&mut before, &mut writer, |path| kept.is_kept(path))?;
    copy_files(&mut after, &mut writer, |_| true)?;
    writer.finish()?;
    Ok(result)
}

/// Writes the files of a list of which `is_wanted` says so.
fn copy_files(
    list: &mut ListingReader,
    writer: &mut ListingWriter,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Result<(), ListError> {
    list.rewind()?;
    while let Some(record) = list.read_record()? {
        if let Some((name, path, file)) = list.file(&record)?
            && is_wanted(path.as_os_str().as_bytes())
        {
            writer.push_file(name, path, file)?;
        }
    }
    Ok(())
}

fn path(locator: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(locator))
}

struct ListRow {
    name: String,
    place: u64,
    locator: Vec<u8>,
}

impl ListRow {
    /// Name, NUL, place, locator: sorts by name, then by place. A name holds no NUL; nor does a locator.
    fn encode(item: &ItemEntry, place: u64) -> Vec<u8> {
        [item.name.as_bytes(), &[0], &place.to_be_bytes()[..], item.locator.as_os_str().as_bytes()].concat()
    }

    fn decode(record: &[u8]) -> Option<Self> {
        let (name, rest) = split(record)?;
        let (place, locator) = rest.split_first_chunk::<8>()?;
        Some(Self { name: name.into(), place: u64::from_be_bytes(*place), locator: locator.into() })
    }

    /// Place, name, NUL, locator: sorts by this place.
    fn at(&self, place: u64) -> Vec<u8> {
        [&place.to_be_bytes(), self.name.as_bytes(), &[0], &self.locator].concat()
    }
}

fn split(record: &[u8]) -> Option<(&str, &[u8])> {
    let end = record.iter().position(|b| *b == 0)?;
    Some((std::str::from_utf8(&record[..end]).ok()?, &record[end + 1..]))
}

fn by_name(
    list: &mut ListingReader,
    folder: &Path,
    wrap: impl Fn(io::Error) -> ListError,
) -> Result<MergedRuns, ListError> {
    let mut sorter = Sorter::new(folder);
    for (place, item) in (0..).zip(list) {
        sorter.push(&ListRow::encode(&item?, place)).map_err(&wrap)?;
    }
    sorter.finish().map_err(wrap)
}

enum JoinedRow {
    /// In both lists: the old place and locator, and the new row.
    Both {
        place: u64,
        before: Vec<u8>,
        row: ListRow,
    },
    Old(ListRow),
    New(ListRow),
}

/// Pairs equal names; a name that stands several times (in a manifest) is paired as often as both lists have it.
fn join(
    old: MergedRuns,
    new: MergedRuns,
    emit: &mut dyn FnMut(JoinedRow) -> io::Result<()>,
) -> io::Result<()> {
    let mut old = rows(old).peekable();
    let mut new = rows(new).peekable();
    loop {
        let order = match (peek(&mut old)?, peek(&mut new)?) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.name.cmp(&b.name),
        };
        let left = if order.is_le() { old.next().transpose()? } else { None };
        let right = if order.is_ge() { new.next().transpose()? } else { None };
        match (left, right) {
            (Some(a), Some(b)) => emit(JoinedRow::Both { place: a.place, before: a.locator, row: b })?,
            (Some(a), None) => emit(JoinedRow::Old(a))?,
            (None, Some(b)) => emit(JoinedRow::New(b))?,
            (None, None) => return Ok(()),
        }
    }
}

fn rows(merge: MergedRuns) -> impl Iterator<Item = io::Result<ListRow>> {
    merge.map(|record| ListRow::decode(&record?).ok_or_else(spill_damaged))
}

fn peek(rows: &mut Peekable<impl Iterator<Item = io::Result<ListRow>>>) -> io::Result<Option<&ListRow>> {
    match rows.peek() {
        Some(Err(e)) => Err(io::Error::new(e.kind(), e.to_string())),
        Some(Ok(row)) => Ok(Some(row)),
        None => Ok(None),
    }
}

fn spill_damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a spilled record is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(list: &Path, root: &str, names: &[&str]) {
        let mut writer = ListingWriter::create(list, None).unwrap();
        for name in names {
            writer.push(name, &Path::new(root).join(name)).unwrap();
        }
        writer.finish().unwrap();
    }

    fn read(list: &Path) -> Vec<String> {
        ListingReader::open(list).unwrap().map(|i| i.unwrap().locator.display().to_string()).collect()
    }

    fn extend(old: &[&str], new: &[&str]) -> (Extension, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        write(&a, "/old", old);
        write(&b, "/new", new);
        let extension = extend_listing(&a, &b, None).unwrap();
        assert_eq!(extension.numbered, old.len() as u64);
        (extension, read(&b))
    }

    #[test]
    fn of_a_list_whose_writer_was_killed_anywhere_each_whole_item_keeps_its_index() {
        let names: Vec<String> = (0..1100).map(|n| format!("{n}.png")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        write(&a, "/data", &names);
        let bytes = std::fs::read(&a).unwrap();
        let at_end = bytes.len() - 200..bytes.len();
        let mut most = 0;
        for len in (8..bytes.len()).step_by(997).chain(8..64).chain(at_end) {
            std::fs::write(&a, &bytes[..len]).unwrap();
            // What comes before in the order now must not take a number that was given.
            let next: Vec<&str> = ["0-new.png"].into_iter().chain(names.iter().copied()).collect();
            write(&b, "/data", &next);
            let e = extend_listing(&a, &b, None).unwrap();
            let items = read(&b);
            assert_eq!((items.len(), e.missing_count), (1101, 0), "{len} of {} bytes", bytes.len());
            let given: Vec<String> = names.iter().map(|n| format!("/data/{n}")).collect();
            let numbered = e.numbered as usize;
            assert_eq!(items[..numbered], given[..numbered], "{len} of {} bytes", bytes.len());
            assert!(numbered >= most || len < 64, "a longer piece holds no fewer items");
            most = numbered;
        }
        assert_eq!(most, 1100, "nothing but the end of the list was missing");
    }

    #[test]
    fn old_items_keep_their_index_and_new_ones_follow() {
        let (e, items) = extend(&["b", "d"], &["a", "b", "c", "d"]);
        assert_eq!(items, ["/new/b", "/new/d", "/new/a", "/new/c"]);
        assert_eq!((e.appended, e.missing_count), (2, 0));
    }

    #[test]
    fn an_item_that_is_gone_keeps_its_place_and_is_reported() {
        let (e, items) = extend(&["b", "d"], &["d", "a"]);
        assert_eq!(items, ["/old/b", "/new/d", "/new/a"]);
        assert_eq!((e.appended, e.missing_count, e.missing), (1, 1, vec!["b".to_owned()]));
    }

    #[test]
    fn a_row_that_stands_twice_stays_twice() {
        let (e, items) = extend(&["a", "a"], &["a", "a", "a"]);
        assert_eq!(items.len(), 3);
        assert_eq!((e.appended, e.missing_count), (1, 0));
    }

    #[test]
    fn the_same_list_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        write(&a, "/data", &["x", "y"]);
        write(&b, "/data", &["x", "y"]);
        let e = extend_listing(&a, &b, None).unwrap();
        assert_eq!((e.appended, e.missing_count, e.numbered), (0, 0, 2));
    }
}
