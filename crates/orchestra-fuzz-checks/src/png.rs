//! Puts right checksums into a PNG, so that what a mutation did to a chunk reaches the code behind the check of its checksum.
//! It decodes nothing.

/// The file with the checksum of every whole chunk made right, if any was wrong.
pub(crate) fn with_right_checksums(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut fixed = bytes.to_vec();
    let mut at = 8;
    while let Some(length) = fixed.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        let length = u32::from_be_bytes(*length) as usize;
        let Some(end) = at.checked_add(8).and_then(|n| n.checked_add(length)) else { break };
        let Some(chunk) = fixed.get(at + 4..end) else { break };
        let checksum = crc32fast::hash(chunk).to_be_bytes();
        let Some(place) = fixed.get_mut(end..end + 4) else { break };
        place.copy_from_slice(&checksum);
        at = end + 4;
    }
    (fixed != bytes).then_some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checksums_are_changed_and_a_cut_chunk_is_left() {
        let file = b"\x89PNG\r\n\x1a\n\0\0\0\0IEND\xae\x42\x60\x82";
        assert_eq!(with_right_checksums(file), None);
        let mut broken = file.to_vec();
        broken[18] ^= 1;
        assert_eq!(with_right_checksums(&broken).as_deref(), Some(&file[..]));
        assert_eq!(with_right_checksums(&file[..19]), None);
        assert_eq!(with_right_checksums(b"\x89PNG"), None);
    }
}
