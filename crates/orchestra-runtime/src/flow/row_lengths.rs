//! Rows that lie one behind the other in a file of the run, each behind its length. It knows nothing of what they hold.

use orchestra_core::data::ItemError;

/// In front of each row stands its length.
pub const HEAD: usize = size_of::<u32>();

/// Makes room for the length of a row, which follows. Gives what [`end_row`] takes.
pub fn begin_row(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; HEAD]);
    out.len()
}

/// Says how long the row is that began here.
pub fn end_row(out: &mut [u8], begin: usize) -> Result<(), ItemError> {
    let too_long = |_| ItemError::result("the record has more than 4 GiB, which no part file takes");
    let length = u32::try_from(out.len() - begin).map_err(too_long)?;
    out[begin - HEAD..begin].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// The rows in `bytes`; `None` where they are not whole.
pub fn rows_in(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rows = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (row, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rows.push(row);
        bytes = rest;
    }
    bytes.is_empty().then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_as_they_went_in_and_torn_ones_do_not() {
        let mut bytes = Vec::new();
        for row in ["one", "", "three"] {
            let begin = begin_row(&mut bytes);
            bytes.extend_from_slice(row.as_bytes());
            end_row(&mut bytes, begin).unwrap();
        }
        assert_eq!(rows_in(&bytes).unwrap(), [&b"one"[..], b"", b"three"]);
        let whole = (0..=bytes.len()).filter(|cut| rows_in(&bytes[..*cut]).is_some());
        assert_eq!(whole.collect::<Vec<_>>(), [0, 7, 11, bytes.len()]);
    }
}
