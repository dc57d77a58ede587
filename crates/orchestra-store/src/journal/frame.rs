//! Cuts the journal into frames that prove themselves: length, chained checksum, kind, body. Knows no meaning of a body.
//!
//! ```text
//! | length u32 | crc u32 | kind u8 | body ... |      length = 1 + body; little-endian
//! ```
//! The checksum covers length, kind and body, and starts from the checksum of the frame before, so a frame is only valid in its
//! place. The first frame that is not ends the journal.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use bincode::Encode;
use orchestra_core::wire;

const HEAD: usize = 8;
/// Where a frame ends, and its checksum, from which that of the next one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogEnd {
    pub(crate) len: u64,
    crc: u32,
}

impl LogEnd {
    /// Before the first frame.
    pub(crate) const START: Self = Self { len: 0, crc: 0x4f52_4348 };
}

/// The last valid frame that was read.
#[derive(Debug)]
pub(crate) struct LogFrames {
    input: BufReader<File>,
    bytes_left: u64,
    body: Vec<u8>,
    /// Of the last valid frame.
    pub(crate) end: LogEnd,
}

impl LogFrames {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let bytes_left = file.metadata()?.len();
        let input = BufReader::with_capacity(1 << 18, file);
        Ok(Self { input, bytes_left, body: Vec::new(), end: LogEnd::START })
    }

    /// The next frame's kind and body, or `None` at the end or at the first broken one.
    pub(crate) fn next(&mut self) -> io::Result<Option<(u8, &[u8])>> {
        if self.bytes_left < HEAD as u64 {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        self.input.read_exact(&mut head)?;
        let [l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let expected = u32::from_le_bytes([c0, c1, c2, c3]);
        let after = self.bytes_left - HEAD as u64;
        if length == 0 || u64::from(length) > after {
            self.bytes_left = 0;
            return Ok(None);
        }
        self.body.resize(length as usize, 0);
        self.input.read_exact(&mut self.body)?;
        if checksum(self.end.crc, &head[..4], &self.body) != expected {
            self.bytes_left = 0;
            return Ok(None);
        }
        self.bytes_left = after - u64::from(length);
        self.end = LogEnd { len: self.end.len + HEAD as u64 + u64::from(length), crc: expected };
        Ok(Some((self.body[0], &self.body[1..])))
    }
}

/// The bytes of a frame behind this end, and where it ends itself.
pub(crate) fn encode(kind: u8, body: &impl Encode, after: LogEnd) -> io::Result<(Vec<u8>, LogEnd)> {
    let mut bytes = vec![0; HEAD];
    bytes.push(kind);
    wire::encode_into(body, &mut bytes)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
    seal(bytes, after)
}

/// The same of a body that is encoded.
pub(crate) fn encode_body(kind: u8, body: &[u8], after: LogEnd) -> io::Result<(Vec<u8>, LogEnd)> {
    seal([&[0; HEAD][..], &[kind], body].concat(), after)
}

fn seal(mut bytes: Vec<u8>, after: LogEnd) -> io::Result<(Vec<u8>, LogEnd)> {
    let length = u32::try_from(bytes.len() - HEAD)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a journal entry is larger than 4 GiB"))?;
    let length = length.to_le_bytes();
    let crc = checksum(after.crc, &length, &bytes[HEAD..]);
    bytes[..4].copy_from_slice(&length);
    bytes[4..HEAD].copy_from_slice(&crc.to_le_bytes());
    let end = LogEnd { len: after.len + bytes.len() as u64, crc };
    Ok((bytes, end))
}

/// Checksum of so many bytes of a file from `from` on.
pub(crate) fn crc_of(file: &File, from: u64, bytes: u64) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; usize::try_from(bytes.min(1 << 18)).unwrap_or(1 << 18)];
    let (mut at, end) = (from, from + bytes);
    while at < end {
        let part = (end - at).min(buffer.len() as u64);
        let part = &mut buffer[..usize::try_from(part).unwrap_or(0)];
        file.read_exact_at(part, at)?;
        hasher.update(part);
        at += part.len() as u64;
    }
    Ok(hasher.finalize())
}

fn checksum(previous: u32, length: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&previous.to_le_bytes());
    hasher.update(length);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use proptest::prelude::*;

    use super::*;

    fn read_all(bytes: &[u8]) -> (Vec<(u8, Vec<u8>)>, u64) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        let mut reader = LogFrames::new(file).unwrap();
        let mut frames = Vec::new();
        while let Some((kind, body)) = reader.next().unwrap() {
            frames.push((kind, body.to_vec()));
        }
        (frames, reader.end.len)
    }

    fn three_frames() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut end, mut ends) = (Vec::new(), LogEnd::START, vec![0]);
        for text in ["one", "", "three"] {
            let (frame, next) = encode(7, &text.to_owned(), end).unwrap();
            bytes.extend(frame);
            end = next;
            assert_eq!(end.len, bytes.len() as u64);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn a_tail_of_zeros_is_no_frame() {
        let (mut bytes, ends) = three_frames();
        bytes.extend([0; 100]);
        assert_eq!(read_all(&bytes).1, ends[3] as u64);
        assert_eq!(read_all(&[0; 4096]).0, []);
    }

    #[test]
    fn a_frame_is_only_valid_in_its_place() {
        let (bytes, ends) = three_frames();
        let swapped = [&bytes[..ends[1]], &bytes[ends[2]..], &bytes[ends[1]..ends[2]]].concat();
        assert_eq!(read_all(&swapped).1, ends[1] as u64);
    }

    proptest! {
        #[test]
        fn any_truncation_leaves_the_whole_frames_before_it(cut in 0usize..80) {
            let (bytes, ends) = three_frames();
            let cut = cut.min(bytes.len());
            let (frames, end) = read_all(&bytes[..cut]);
            let whole = ends.iter().filter(|e| **e <= cut).count() - 1;
            prop_assert_eq!(frames.len(), whole);
            prop_assert_eq!(end, ends[whole] as u64);
        }

        #[test]
        fn a_flipped_bit_ends_the_journal_at_its_frame(at in 0usize..80, bit in 0u8..8) {
            let (mut bytes, ends) = three_frames();
            let at = at.min(bytes.len() - 1);
            bytes[at] ^= 1 << bit;
            let whole = ends.iter().filter(|e| **e <= at).count() - 1;
            prop_assert_eq!(read_all(&bytes).1, ends[whole] as u64);
        }
    }
}
