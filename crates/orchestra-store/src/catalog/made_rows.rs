//! Rows that a run has made of its items, one behind the other in a private file: each is an item of a source. It decides neither what they hold nor
//! when they are written.
//!
//! A row begins with the length of its name, u32, and that of its values, u64, both little-endian. The locator of an item is the path of the file, `#`,
//! and where its row begins there.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::FailureKind;
use orchestra_core::data::{ItemError, Label, OwnedRow, OwnedValue, Value};
use orchestra_core::row_bytes::{self, StoredValue};
use orchestra_core::shapes::{Fetch, FetchRun};

use super::listing_file::ListingWriter;
use super::{Catalog, Growth, ListError};

const HEAD: usize = size_of::<u32>() + size_of::<u64>();

/// Reads the rows of [`append_row`], in the process of the run, which has written them.
#[derive(Debug)]
pub struct MadeRows;

/// Appends a row: what records call it, and its values.
///
/// # Errors
/// A value that cannot be kept. `out` may hold a part of the row then.
pub fn append_row(name: &str, values: &OwnedRow, out: &mut Vec<u8>) -> Result<(), ItemError> {
    let begin = out.len();
    let values: Vec<StoredValue<'_>> = values.iter().map(StoredValue::of_owned).collect::<Result<_, _>>()?;
    let name_len =
        u32::try_from(name.len()).map_err(|_| ItemError::result("its name has more than 4 GiB"))?;
    out.extend(name_len.to_le_bytes());
    out.extend([0; size_of::<u64>()]);
    out.extend(name.as_bytes());
    let values_begin = out.len();
    row_bytes::write(&values, out)?;
    let len = (out.len() - values_begin) as u64;
    out[begin + size_of::<u32>()..begin + HEAD].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

impl Catalog {
    /// A list that [`Catalog::list_rows`] writes later. Readers come after that; until then its extent is `Growing(at_least)`.
    pub fn unlisted(path: &Path, at_least: u64) -> Self {
        Self { path: path.into(), growth: Arc::new(Growth::of_at_least(at_least)) }
    }

    /// Lists all rows of a file. It grows at its end alone, so that a row keeps its number.
    ///
    /// # Errors
    /// The list or the file of rows cannot be written or read.
    pub fn list_rows(&self, rows: &Path) -> Result<(), ListError> {
        let failed = |error| ListError::ListFile { path: rows.into(), doing: "read", error };
        let mut writer = ListingWriter::create(&self.path, Some(Arc::clone(&self.growth)))?;
        let file = File::open(rows).map_err(failed)?;
        let end = file.metadata().map_err(failed)?.len();
        let (mut input, mut at, mut name) = (BufReader::new(file), 0, Vec::new());
        while at < end {
            let mut head = [0; HEAD];
            input.read_exact(&mut head).map_err(failed)?;
            let (name_len, values_len) = lengths(head);
            let next = (at + HEAD as u64 + u64::from(name_len)).checked_add(values_len);
            let next = next.filter(|next| *next <= end).ok_or_else(|| ListError::Damaged {
                path: rows.into(),
                reason: "a row of it is cut short",
            })?;
            name.resize(name_len as usize, 0);
            input.read_exact(&mut name).map_err(failed)?;
            input.seek_relative(i64::try_from(values_len).unwrap_or(i64::MAX)).map_err(failed)?;
            writer.push(&listed_name(&name), &locator(rows, at))?;
            at = next;
        }
        writer.finish().map(drop)
    }
}

/// A list has no empty names, and no NUL in any; a key may be such a text.
fn listed_name(name: &[u8]) -> String {
    match String::from_utf8_lossy(name).replace('\0', "\\0") {
        name if name.is_empty() => "(empty)".to_owned(),
        name => name,
    }
}

/// Of the name and of the values.
fn lengths(head: [u8; HEAD]) -> (u32, u64) {
    let [a, b, c, d, values @ ..] = head;
    (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(values))
}

fn locator(rows: &Path, at: u64) -> PathBuf {
    let mut locator = rows.as_os_str().to_owned();
    locator.push(format!("#{at}"));
    locator.into()
}

impl Fetch for MadeRows {
    fn start(&self) -> Box<dyn FetchRun> {
        Box::new(MadeRow(Vec::new()))
    }
}

/// The row that was read last.
struct MadeRow(OwnedRow);

impl FetchRun for MadeRow {
    fn fetch(&mut self, at: &[u8]) -> Result<u64, ItemError> {
        let failed = |why: String| ItemError { kind: FailureKind::Read, error: format!("its row {why}") };
        let hash = at.iter().rposition(|byte| *byte == b'#').unwrap_or(0);
        let offset =
            std::str::from_utf8(&at[hash..]).ok().and_then(|text| text.strip_prefix('#')?.parse().ok());
        let offset: u64 = offset.ok_or_else(|| failed("has no place: this is a bug".to_owned()))?;
        let values = read_values(Path::new(OsStr::from_bytes(&at[..hash])), offset)
            .map_err(|error| failed(format!("cannot be read again: {error}")))?;
        let (row, _): (Vec<StoredValue<'_>>, usize) = row_bytes::read(&values)?;
        self.0 = row.into_iter().map(StoredValue::into_value).collect();
        Ok(values.len() as u64)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        let labels: Vec<Vec<Label<'_>>> = self.0.iter().map(OwnedValue::labels).collect();
        let row: Vec<Value<'_>> =
            self.0.iter().zip(&labels).map(|(value, labels)| value.borrowed(labels)).collect();
        show(&row);
    }
}

fn read_values(rows: &Path, at: u64) -> io::Result<Vec<u8>> {
    let file = File::open(rows)?;
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, at)?;
    let (name_len, values_len) = lengths(head);
    let begin = at + HEAD as u64 + u64::from(name_len);
    if file.metadata()?.len().saturating_sub(begin) < values_len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut values = vec![0; usize::try_from(values_len).map_err(io::Error::other)?];
    file.read_exact_at(&mut values, begin)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Extent;

    #[test]
    fn rows_are_items_with_the_numbers_in_which_they_were_appended_and_keep_them_when_more_come() {
        let folder = tempfile::tempdir().unwrap();
        let (rows, list) = (folder.path().join("made#1"), folder.path().join("items"));
        let row = |text: &str| vec![OwnedValue::Text(text.into()), OwnedValue::Missing("x".into())];
        let names = ["total", "", "a\0b", "total"];
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        for n in 0..=names.len() {
            std::fs::write(&rows, &bytes).unwrap();
            let catalog = Catalog::unlisted(&list, 3);
            assert_eq!(catalog.growth().extent(), Extent::Growing(3));
            catalog.list_rows(&rows).unwrap();
            assert_eq!(catalog.growth().extent(), Extent::Known(n as u64));
            let mut reader = catalog.reader().unwrap();
            for (at, name) in ["total", "(empty)", "a\\0b", "total"].iter().enumerate().take(n) {
                let (listed, locator) = reader.read().unwrap().unwrap();
                assert_eq!(listed, *name);
                let mut run = MadeRows.start();
                run.fetch(locator).unwrap();
                let mut seen = String::new();
                run.with_row(&mut |row| seen = format!("{row:?}"));
                assert_eq!(seen, format!("[\"{at}\", Missing \"x\"]"));
            }
            if let Some(name) = names.get(n) {
                append_row(name, &row(&n.to_string()), &mut bytes).unwrap();
                ends.push(bytes.len());
            }
        }
        for len in 0..bytes.len() {
            std::fs::write(&rows, &bytes[..len]).unwrap();
            let mut run = MadeRows.start();
            assert!(
                run.fetch(locator(&rows, ends[names.len() - 1] as u64).as_os_str().as_bytes()).is_err(),
                "{len}"
            );
            let listed = Catalog::unlisted(&list, 0).list_rows(&rows);
            assert_eq!(listed.is_ok(), ends.contains(&len), "{len}");
        }
        assert!(MadeRows.start().fetch(b"nowhere").is_err());
    }
}
