//! Records that are files, as rows that wait for their way to a store: what the index of their sink says of a file, then its bytes. It writes
//! no file.

use orchestra_core::data::ItemError;

use super::file_name::IndexLine;
use super::row_lengths::{HEAD, end_row};

#[derive(Debug, PartialEq, Eq)]
pub struct FileRow<'a> {
    /// Of the index, with its newline.
    pub line: &'a [u8],
    /// Its name in the store, behind the prefix.
    pub name: String,
    pub bytes: &'a [u8],
}

/// Puts the line of the index in front of the file that begins at `begin`, and says how long the row is.
///
/// # Errors
/// The row is longer than a part file takes.
pub fn end_file_row(out: &mut Vec<u8>, begin: usize, line: &[u8]) -> Result<(), ItemError> {
    let too_long = |_| ItemError::result("the name of the item has more than 4 GiB");
    let length = u32::try_from(line.len()).map_err(too_long)?.to_le_bytes();
    out.splice(begin..begin, length.into_iter().chain(line.iter().copied()));
    end_row(out, begin)
}

/// The files of rows that lie one behind the other, without their lengths; `None` where they are not whole.
pub fn files_in(mut rows: &[u8]) -> Option<Vec<FileRow<'_>>> {
    let mut files = Vec::new();
    while let Some((length, rest)) = rows.split_first_chunk::<HEAD>() {
        let (line, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let IndexLine { file, bytes } = serde_json::from_slice(line).ok()?;
        let (bytes, rest) = rest.split_at_checked(usize::try_from(bytes).ok()?)?;
        files.push(FileRow { line, name: file, bytes });
        rows = rest;
    }
    rows.is_empty().then_some(files)
}

#[cfg(test)]
mod tests {
    use super::super::file_name::index_line;
    use super::super::row_lengths::begin_row;
    use super::*;

    #[test]
    fn files_come_out_as_they_went_in_and_torn_ones_do_not() {
        let (mut rows, mut ends) = (Vec::new(), vec![0]);
        for (name, bytes) in [("a/b.npy", &b"one"[..]), ("c\n.npy", b""), ("d.npy", b"{}\n")] {
            let mut row = Vec::new();
            let begin = begin_row(&mut row);
            row.extend_from_slice(bytes);
            let line = index_line(name, 1, "s", name, bytes.len());
            end_file_row(&mut row, begin, &line).unwrap();
            assert_eq!(row[..HEAD], u32::try_from(row.len() - HEAD).unwrap().to_le_bytes());
            rows.extend_from_slice(&row[HEAD..]);
            ends.push(rows.len());
        }
        let files = files_in(&rows).unwrap();
        let found: Vec<_> = files.iter().map(|file| (&*file.name, file.bytes)).collect();
        assert_eq!(found, [("a/b.npy", &b"one"[..]), ("c\n.npy", b""), ("d.npy", b"{}\n")]);
        let whole = (0..=rows.len()).filter(|cut| files_in(&rows[..*cut]).is_some());
        assert_eq!(whole.collect::<Vec<_>>(), ends);
    }
}
