//! Reads the marker segments of a JPEG and makes its end safe for the decoder. It decodes no pixels.

use crate::error::MediaError;
use crate::format::Format;
use crate::orientation::Orientation;

const FORMAT: Format = Format::Jpeg;
const CUT_HEADER: MediaError = MediaError::Truncated { format: FORMAT, what: "it ends inside its header" };

/// 64 one bits, each byte stuffed.
const ONES: [u8; 16] = [0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0];

/// What is known of a file before its pixels are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JpegHeader {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// 1 gray, 3 colour, 4 CMYK or YCCK.
    pub(crate) components: u8,
    pub(crate) orientation: Orientation,
    /// Whether bytes that belong to no segment stand between the segments. Viewers step over them.
    has_stray_bytes: bool,
    /// Where the data of the first scan begins.
    scans: usize,
    /// Where the end marker stands that closes this picture. Cameras write more pictures or padding behind it.
    end: usize,
}

/// One marker segment.
struct Segment<'a> {
    marker: u8,
    /// From its `0xff` to its end.
    whole: &'a [u8],
    /// Behind the length.
    payload: &'a [u8],
}

/// Walks over the segments of a header; ends behind the first scan header.
struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
    has_stray_bytes: bool,
}

impl<'a> Segments<'a> {
    fn new(bytes: &'a [u8]) -> Segments<'a> {
        Segments { bytes, at: 2, has_stray_bytes: false }
    }

    fn byte(&self, at: usize) -> Result<u8, MediaError> {
        self.bytes.get(at).copied().ok_or(CUT_HEADER)
    }

    /// The next segment.
    fn next(&mut self) -> Result<Segment<'a>, MediaError> {
        loop {
            while self.byte(self.at)? != 0xff {
                self.has_stray_bytes = true;
                self.at += 1;
            }
            // Any number of 0xff may stand before a marker.
            while self.byte(self.at)? == 0xff {
                self.at += 1;
            }
            let marker = self.byte(self.at)?;
            self.at += 1;
            match marker {
                // A stuffed byte, or a marker without a payload: neither belongs here, neither hurts.
                0x00 | 0x01 | 0xd0..=0xd8 => self.has_stray_bytes = true,
                0xd9 => {
                    let reason = "it ends before its first scan".to_owned();
                    return Err(MediaError::Broken { format: FORMAT, reason });
                }
                _ => return self.segment(marker),
            }
        }
    }

    /// The segment whose length field is at `self.at`.
    fn segment(&mut self, marker: u8) -> Result<Segment<'a>, MediaError> {
        let length = usize::from(u16::from_be_bytes([self.byte(self.at)?, self.byte(self.at + 1)?]));
        if length < 2 {
            let reason = format!("marker 0x{marker:02x} has length {length}, expected at least 2");
            return Err(MediaError::Broken { format: FORMAT, reason });
        }
        let whole = self.bytes.get(self.at - 2..self.at + length).ok_or(CUT_HEADER)?;
        self.at += length;
        Ok(Segment { marker, whole, payload: &whole[4..] })
    }
}

impl JpegHeader {
    /// Reads up to the first scan and makes sure that the file has an end.
    pub(crate) fn read(bytes: &[u8]) -> Result<JpegHeader, MediaError> {
        let mut segments = Segments::new(bytes);
        let mut frame = None;
        let mut orientation = None;
        loop {
            let segment = segments.next()?;
            match (segment.marker, segment.payload) {
                (0xda, _) => break,
                // Start of frame; C4, C8 and CC are tables and extensions.
                (
                    0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf,
                    &[_, h1, h0, w1, w0, components, ..],
                ) => {
                    frame = Some((u16::from_be_bytes([w1, w0]), u16::from_be_bytes([h1, h0]), components));
                }
                // The first EXIF block counts; another APP1 is XMP or a thumbnail's.
                (0xe1, payload) if orientation.is_none() && payload.starts_with(b"Exif\0\0") => {
                    orientation = Some(Orientation::from_exif_block(payload));
                }
                _ => {}
            }
        }
        let Some((width, height, components)) = frame else {
            let reason = "its first scan comes before any frame header".to_owned();
            return Err(MediaError::Broken { format: FORMAT, reason });
        };
        let scans = segments.at;
        let missing_end = MediaError::Truncated { format: FORMAT, what: "its end marker is missing" };
        let end = end_of_scans(bytes, scans).ok_or(missing_end)?;
        Ok(JpegHeader {
            width: u32::from(width),
            height: u32::from(height),
            components,
            orientation: orientation.unwrap_or(Orientation::UPRIGHT),
            has_stray_bytes: segments.has_stray_bytes,
            scans,
            end,
        })
    }
}

/// Position of the end marker that closes the scans from `at` on.
fn end_of_scans(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at = next_ff(bytes, at)?;
        match *bytes.get(at + 1)? {
            0xd9 => return Some(at),
            // A stuffed byte or a marker without a payload: the scan goes on.
            0x00 | 0x01 | 0xd0..=0xd8 => at += 2,
            0xff => at += 1,
            // Tables and headers between scans; their payload may hold anything.
            _ => at += 2 + usize::from(u16::from_be_bytes([*bytes.get(at + 2)?, *bytes.get(at + 3)?])),
        }
    }
}

/// Position of the next `0xff` from `at` on. Looks at whole blocks first: most of a file is read here once more.
fn next_ff(bytes: &[u8], at: usize) -> Option<usize> {
    let (blocks, _) = bytes.get(at..)?.as_chunks::<32>();
    let clear =
        blocks.iter().take_while(|block| !block.iter().fold(false, |any, b| any | (*b == 0xff))).count();
    let from = at + clear * 32;
    bytes[from..].iter().position(|b| *b == 0xff).map(|found| from + found)
}

/// Copies the file to `out` as the decoder should see it: without stray bytes, without what stands behind the end, and with
/// 64 one bits before the end. No Huffman code is all ones, so a decoder that runs out of data meets an error there, where
/// else it would make up gray pixels. Scans end in one bits anyway, and what no pixel needs is stepped over.
pub(crate) fn prepare(bytes: &[u8], header: &JpegHeader, out: &mut Vec<u8>) -> Result<(), MediaError> {
    out.clear();
    out.reserve(header.end + 18);
    if header.has_stray_bytes {
        out.extend_from_slice(&bytes[..2]);
        let mut segments = Segments::new(bytes);
        while segments.at < header.scans {
            out.extend_from_slice(segments.next()?.whole);
        }
        out.extend_from_slice(&bytes[header.scans..header.end]);
    } else {
        out.extend_from_slice(&bytes[..header.end]);
    }
    out.extend_from_slice(&ONES);
    out.extend_from_slice(&[0xff, 0xd9]);
    Ok(())
}
