//! Whether a Parquet file is one file: its pages and indexes, as the footer places them, begin with the file and go up to the footer. Of files that were
//! put one behind the other the last footer would place its pages among those of the first. Reads no page.

use std::io::{Read, Seek};

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

/// What a file begins and ends with.
const MAGIC: &[u8; 4] = b"PAR1";

/// Old programs put what they say of a column, and filters of unknown length, behind the last page: no more bytes than these.
const LARGEST_GAP: u64 = 64 << 10;

/// # Errors
/// Bytes stand before or behind what the footer describes, or its rows are kept elsewhere.
pub fn check(
    metadata: &ParquetMetaData,
    file: &mut (impl Read + Seek + ?Sized),
    footer_at: u64,
) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let chunks = || metadata.row_groups().iter().flat_map(|group| group.columns());
    if let Some(elsewhere) = chunks().find_map(ColumnChunkMetaData::file_path) {
        return Err(format!("it keeps its rows in other files, such as `{elsewhere}`: name those"));
    }
    let mut begin = [0; 4];
    file.rewind().and_then(|()| file.read_exact(&mut begin)).map_err(text)?;
    if begin != *MAGIC {
        return Err("bytes stand in front of it: a Parquet file begins with `PAR1`".into());
    }
    let end = chunks().map(end).collect::<Option<Vec<_>>>().ok_or("it is damaged: its pages lie nowhere")?;
    let end = end.into_iter().max().unwrap_or(MAGIC.len() as u64);
    let gap = footer_at.checked_sub(end).ok_or("it is damaged: its pages reach beyond its footer")?;
    let may_have_gap = chunks().any(|chunk| {
        chunk.file_offset() > MAGIC.len() as i64
            || chunk.bloom_filter_offset().is_some() && chunk.bloom_filter_length().is_none()
    });
    if gap > 0 && (!may_have_gap || gap > LARGEST_GAP) {
        return Err(format!(
            "{gap} bytes of it belong to no column, so another file stands before it: give each Parquet file a file of its own, since they cannot be put one behind the other"
        ));
    }
    if gap > 0 && has_two_ends(file, gap, footer_at).map_err(text)? {
        return Err("another Parquet file stands before it: give each a file of its own, since they cannot be put one behind the other".into());
    }
    Ok(())
}

/// Where the last byte of a column lies that the footer places.
fn end(chunk: &ColumnChunkMetaData) -> Option<u64> {
    let part = |at: Option<i64>, len: Option<i64>| match (at, len) {
        (Some(at), Some(len)) => u64::try_from(at).ok()?.checked_add(u64::try_from(len).ok()?),
        _ => Some(0),
    };
    let first = [chunk.dictionary_page_offset(), Some(chunk.data_page_offset())];
    let first = first.into_iter().flatten().filter(|at| *at > 0).min();
    let parts = [
        part(first, Some(chunk.compressed_size()))?,
        part(chunk.column_index_offset(), chunk.column_index_length().map(i64::from))?,
        part(chunk.offset_index_offset(), chunk.offset_index_length().map(i64::from))?,
        part(chunk.bloom_filter_offset(), chunk.bloom_filter_length().map(i64::from))?,
    ];
    parts.into_iter().max()
}

/// Whether one file ends and another one begins about so many bytes from the beginning: where it would, if the gap is what the other one shifted.
fn has_two_ends(file: &mut (impl Read + Seek + ?Sized), gap: u64, footer_at: u64) -> std::io::Result<bool> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take((gap + MAGIC.len() as u64).min(footer_at)).read_to_end(&mut bytes)?;
    Ok(bytes.windows(2 * MAGIC.len()).any(|at| at == [*MAGIC, *MAGIC].concat()))
}
