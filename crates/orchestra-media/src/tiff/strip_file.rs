//! A strip or tile as a file of its own, as the `tiff` crate shall see it: a page of one strip, whose samples are gray, whatever they mean. Nothing of the
//! real page reaches that crate but what `layout` has understood. It decodes nothing.

use std::borrow::Cow;
use std::io::{self, Read, Seek, SeekFrom};

use super::layout::{Coding, PageLayout, SampleFormat};
use crate::directory::Directories;

/// Bytes of the header, of an entry, and of how many bytes a directory has beside its entries. It is a BigTIFF, where each number stands in its entry.
const HEADER: u64 = 16;
const ENTRY: u64 = 20;
const BESIDE_ENTRIES: u64 = 16;
/// The type of numbers of 8 bytes.
const LONG8: u64 = 16;

/// The mark behind the last line of CCITT Group 4, which some programs leave out. The decoder looks ahead, and so wants some bytes there.
const END_OF_FAX: [u8; 3] = [0x00, 0x10, 0x01];

pub(super) struct StripFile<'a> {
    head: Vec<u8>,
    strip: Cow<'a, [u8]>,
    at: usize,
}

impl<'a> StripFile<'a> {
    /// A file of the strip or tile `strip`, of which `n_lines` lines are wanted, with so many samples in a pixel.
    pub fn new(
        strip: &'a [u8],
        file: Directories<'_>,
        (layout, coding): (&PageLayout, Coding),
        (samples, n_lines): (usize, usize),
    ) -> StripFile<'a> {
        let mut strip = Cow::Borrowed(strip);
        if layout.is_reversed {
            strip.to_mut().iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        }
        if coding.compression == Coding::GROUP_4 {
            strip.to_mut().extend(END_OF_FAX);
        }
        let format = if layout.numbers == SampleFormat::Float { 3 } else { 1 };
        let mut tags = [
            (256, layout.chunk.0.into()),
            (257, n_lines as u64),
            (258, layout.numbers.bits() as u64),
            (259, coding.compression),
            (262, 1),
            (273, 0),
            (277, samples as u64),
            (278, n_lines as u64),
            (279, strip.len() as u64),
            (317, coding.predictor),
            (339, format),
        ];
        let n_tags = tags.len() as u64;
        let length = HEADER + BESIDE_ENTRIES + ENTRY * n_tags;
        tags[5].1 = length;
        let mut head = file.start().to_vec();
        let mut write = |numbers: &[(u64, usize)]| {
            numbers.iter().for_each(|(number, length)| head.extend(file.bytes_of(*number, *length)));
        };
        write(&[(43, 2), (8, 2), (0, 2), (HEADER, 8), (n_tags, 8)]);
        for (tag, value) in tags {
            write(&[(tag, 2), (LONG8, 2), (1, 8), (value, 8)]);
        }
        write(&[(0, 8)]);
        StripFile { head, strip, at: 0 }
    }
}

impl Read for StripFile<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut rest = match self.at.checked_sub(self.head.len()) {
            None => &self.head[self.at..],
            Some(at) => self.strip.get(at..).unwrap_or_default(),
        };
        let n = rest.read(out)?;
        self.at += n;
        Ok(n)
    }
}

impl Seek for StripFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => usize::try_from(at).ok(),
            SeekFrom::Current(by) => isize::try_from(by).ok().and_then(|by| self.at.checked_add_signed(by)),
            SeekFrom::End(_) => None,
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at as u64)
    }
}
