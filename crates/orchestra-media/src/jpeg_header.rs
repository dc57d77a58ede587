//! Reads the marker segments of a JPEG and makes its end safe for the decoder. It decodes no pixels.

use crate::error::MediaError;
use crate::format::Format;
use crate::orientation::Orientation;

const FORMAT: Format = Format::Jpeg;
const CUT_HEADER: MediaError = MediaError::Truncated { format: FORMAT, what: "it ends inside its header" };

/// 64 one bits, each byte stuffed. No Huffman code is all ones, so a decoder that runs out of data meets an error in them, where else it would make
/// up gray pixels. Scans end in one bits anyway, and what no pixel needs is stepped over.
const ONES: [u8; 16] = [0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0, 0xff, 0];

/// Most scans of a picture. A progressive one has about ten; each costs a walk over all of the picture, however few bytes it has, so that a
/// small file of very many would keep a processor busy for hours.
const MOST_SCANS: usize = 500;

/// What the components of a file stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    Gray,
    /// Luma and two colour differences: nearly every file.
    Ycc,
    Rgb,
    /// Stored inverted, as Adobe does and as Pillow assumes of all files.
    Cmyk,
    /// Luma and colour differences of inverted cyan, magenta, yellow; and black.
    Ycck,
}

/// What is known of a file before its pixels are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JpegHeader {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) ink: Ink,
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
        let (mut has_jfif, mut adobe) = (false, None);
        loop {
            let segment = segments.next()?;
            match (segment.marker, segment.payload) {
                (0xda, _) => break,
                // Start of frame; C4, C8 and CC are tables and extensions.
                (0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf, payload) if payload.len() >= 6 => {
                    frame = Some(segment);
                }
                (0xe0, payload) if payload.len() >= 14 && payload.starts_with(b"JFIF\0") => has_jfif = true,
                (0xee, payload) if payload.len() >= 12 && payload.starts_with(b"Adobe") => {
                    adobe = Some(payload[11]);
                }
                // The first EXIF block counts; another APP1 is XMP or a thumbnail's.
                (0xe1, payload) if orientation.is_none() && payload.starts_with(b"Exif\0\0") => {
                    orientation = Some(Orientation::from_exif_block(payload));
                }
                _ => {}
            }
        }
        let Some(Segment { marker, payload: frame, .. }) = frame else {
            let reason = "its first scan comes before any frame header".to_owned();
            return Err(MediaError::Broken { format: FORMAT, reason });
        };
        check_coding(marker, frame[0])?;
        let side = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        let scans = segments.at;
        let missing_end = MediaError::Truncated { format: FORMAT, what: "its end marker is missing" };
        let (end, n_scans) = end_of_scans(bytes, scans).ok_or(missing_end)?;
        if n_scans > MOST_SCANS {
            let reason = format!("it has {n_scans} scans, expected at most {MOST_SCANS}");
            return Err(MediaError::Broken { format: FORMAT, reason });
        }
        Ok(JpegHeader {
            width: side(3),
            height: side(1),
            ink: ink(frame, has_jfif, adobe)?,
            orientation: orientation.unwrap_or(Orientation::UPRIGHT),
            has_stray_bytes: segments.has_stray_bytes,
            scans,
            end,
        })
    }

    /// Whether bytes that belong to no segment stand between the segments. Viewers step over them, decoders need not.
    pub(crate) fn has_stray_bytes(&self) -> bool {
        self.has_stray_bytes
    }

    /// The file to the end of this picture.
    pub(crate) fn picture<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[..self.end + 2]
    }
}

/// Refuses what is rare enough that neither decoder is relied on to read it: both give the same answer this way.
fn check_coding(marker: u8, bits: u8) -> Result<(), MediaError> {
    let coding = match marker {
        0xc0..=0xc2 if bits == 8 => return Ok(()),
        0xc0..=0xc2 => return unsupported(format!("it has {bits} bits per component, expected 8")),
        0xc3 => "lossless",
        0xc9 | 0xca => "arithmetic",
        0xcb => "lossless arithmetic",
        _ => "hierarchical",
    };
    unsupported(format!("its coding is {coding}, expected baseline or progressive with Huffman codes"))
}

fn unsupported<T>(what: String) -> Result<T, MediaError> {
    Err(MediaError::Broken { format: FORMAT, reason: format!("{what}; convert it first") })
}

/// What the components stand for, by the rules of libjpeg: a JFIF marker says it, else Adobe's marker, else the names of the components.
fn ink(frame: &[u8], has_jfif: bool, adobe: Option<u8>) -> Result<Ink, MediaError> {
    let name = |at: usize| frame.get(6 + 3 * at).copied();
    match (frame[5], adobe) {
        (1, _) => Ok(Ink::Gray),
        (3, Some(0)) if !has_jfif => Ok(Ink::Rgb),
        (3, None) if !has_jfif && [name(0), name(1), name(2)] == [Some(b'R'), Some(b'G'), Some(b'B')] => {
            Ok(Ink::Rgb)
        }
        (3, _) => Ok(Ink::Ycc),
        (4, None | Some(0)) => Ok(Ink::Cmyk),
        (4, Some(_)) => Ok(Ink::Ycck),
        (count, _) => unsupported(format!("it has {count} components, expected 1, 3 or 4")),
    }
}

/// Position of the end marker that closes the scans from `at` on, and how many scans there are.
fn end_of_scans(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut n_scans = 1;
    loop {
        at = next_ff(bytes, at)?;
        let marker = *bytes.get(at + 1)?;
        n_scans += usize::from(marker == 0xda);
        match marker {
            0xd9 => return Some((at, n_scans)),
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

/// Copies the file to `out` as zune-jpeg should see it: without stray bytes, without what stands behind the end, with ones before the end, and with one
/// marker of Adobe's that says what `header` found out, since that decoder goes by other rules.
pub(crate) fn prepare(bytes: &[u8], header: &JpegHeader, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(header.end + 18 + 16);
    out.extend_from_slice(&bytes[..2]);
    let transform = match header.ink {
        Ink::Gray | Ink::Ycc => None,
        Ink::Rgb | Ink::Cmyk => Some(0),
        Ink::Ycck => Some(2),
    };
    if let Some(transform) = transform {
        out.extend_from_slice(b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00");
        out.push(transform);
    }
    copy_segments(bytes, header, out, |segment| {
        !segment.payload.starts_with(b"Adobe") || segment.marker != 0xee
    });
    out.extend_from_slice(&ONES);
    out.extend_from_slice(&[0xff, 0xd9]);
}

/// Copies the file to `out` without stray bytes and without what stands behind the end.
pub(crate) fn tidy(bytes: &[u8], header: &JpegHeader, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(header.end + 2);
    out.extend_from_slice(&bytes[..2]);
    copy_segments(bytes, header, out, |_| true);
    out.extend_from_slice(&[0xff, 0xd9]);
}

/// Adds the segments that `keep` wants, and the scans up to the end marker.
fn copy_segments(bytes: &[u8], header: &JpegHeader, out: &mut Vec<u8>, keep: impl Fn(&Segment<'_>) -> bool) {
    let mut segments = Segments::new(bytes);
    while segments.at < header.scans {
        // The header was read to here before, so that there is a segment.
        let Ok(segment) = segments.next() else { break };
        if keep(&segment) {
            out.extend_from_slice(segment.whole);
        }
    }
    out.extend_from_slice(&bytes[header.scans..header.end]);
}
