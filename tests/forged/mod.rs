//! Journals that no run wrote: frames of a real one are changed, or come to it, and all checksums are right.

use std::fs;
use std::path::Path;

/// Before the first frame.
const FIRST_CHECKSUM: u32 = 0x4f52_4348;
/// Of a length and a checksum, with which each frame begins.
const HEAD: usize = 8;

/// What the frames of a journal hold: a kind and a body each. The first is the header.
pub fn frames(journal: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(journal).unwrap();
    let (mut rest, mut frames) = (&bytes[..], Vec::new());
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD>() {
        let length = u32::from_le_bytes(*head.first_chunk().unwrap()) as usize;
        let (frame, next) = behind.split_at(length);
        frames.push(frame.to_vec());
        rest = next;
    }
    frames
}

/// Makes it the journal of these frames.
pub fn write_frames(journal: &Path, frames: &[Vec<u8>]) {
    let (mut bytes, mut before) = (Vec::new(), FIRST_CHECKSUM);
    for frame in frames {
        let length = (frame.len() as u32).to_le_bytes();
        let mut checksum = flate2::Crc::new();
        for part in [&before.to_le_bytes(), &length, &frame[..]] {
            checksum.update(part);
        }
        before = checksum.sum();
        bytes.extend([&length, &before.to_le_bytes(), &frame[..]].concat());
    }
    fs::write(journal, bytes).unwrap();
}

/// Replaces a text wherever it stands in the frames by one that is as long. Gives how often.
pub fn replace(frames: &mut [Vec<u8>], from: &str, to: &str) -> usize {
    assert_eq!(from.len(), to.len());
    let mut n = 0;
    for frame in frames {
        while let Some(at) = frame.windows(from.len()).position(|bytes| bytes == from.as_bytes()) {
            frame[at..at + to.len()].copy_from_slice(to.as_bytes());
            n += 1;
        }
    }
    n
}
