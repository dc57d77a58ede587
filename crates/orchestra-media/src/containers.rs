//! Walks over the chunks of PNG and WebP, the blocks of GIF, and the header of BMP, for what their decoders do not say, and over the files that stand
//! behind a picture in its file. It decodes no pixels.

use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg;
use crate::orientation::Orientation;
use crate::picture::check_size;

/// What a file says of its pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) orientation: Orientation,
    /// Frames of an animation; 1 for a picture.
    pub(crate) n_frames: u32,
    /// Where the picture ends, if it says so.
    end: Option<usize>,
}

impl Told {
    pub(crate) const ONE_UPRIGHT: Told = Told { orientation: Orientation::UPRIGHT, n_frames: 1, end: None };

    /// With the pictures that stand behind this one in its file.
    pub(crate) fn and_behind(self, bytes: &[u8]) -> Told {
        Told { n_frames: self.n_frames.saturating_add(n_behind(bytes, self.end)), ..self }
    }
}

/// How many pictures begin where the first one ends, or where one of them does. A gain map of HDR is none.
pub(crate) fn n_behind(bytes: &[u8], end: Option<usize>) -> u32 {
    let (mut end, mut n) = (end, 0_u32);
    while let Some(rest) = end.and_then(|end| bytes.get(end..)) {
        let told = match Format::of(rest) {
            Ok(Format::Jpeg) => {
                let end = jpeg::end_of(rest);
                let is_picture = !jpeg::is_gain_map(&rest[..end.unwrap_or(rest.len())]);
                Ok(Told { n_frames: is_picture.into(), end, ..Told::ONE_UPRIGHT })
            }
            Ok(Format::Png) => walk_png(rest),
            Ok(Format::WebP) => walk_webp(rest, u64::MAX),
            Ok(Format::Gif) => Ok(walk_gif(rest)),
            // Two bytes alone are no sign of a BMP, and a TIFF may have its pages anywhere.
            Ok(Format::Bmp | Format::Tiff) | Err(_) => return n,
        };
        // One that is cut is there.
        let told = told.unwrap_or(Told::ONE_UPRIGHT);
        n = n.saturating_add(told.n_frames);
        end = told.end.and_then(|length| end?.checked_add(length));
    }
    n
}

/// Checks that a PNG has its end and returns what it tells. EXIF may stand before or behind the pixels. The frames of an animation are those that it has,
/// whatever its header says; the picture that is read is one of them if its control stands in front of the pixels.
pub(crate) fn walk_png(bytes: &[u8]) -> Result<Told, MediaError> {
    let cut = MediaError::Truncated { format: Format::Png, what: "its end chunk is missing" };
    let (mut told, mut n_frames, mut is_frame) = (Told::ONE_UPRIGHT, 0_u32, false);
    let mut rest = &bytes[8..];
    // A chunk: length, name, payload, checksum.
    loop {
        let Some((&[l3, l2, l1, l0, n0, n1, n2, n3], behind)) = rest.split_first_chunk() else {
            return Err(cut);
        };
        let length = u32::from_be_bytes([l3, l2, l1, l0]) as usize;
        let Some((payload, behind)) = behind.split_at_checked(length) else { return Err(cut) };
        let Some((_checksum, behind)) = behind.split_at_checked(4) else { return Err(cut) };
        match &[n0, n1, n2, n3] {
            b"IEND" => {
                let others = n_frames - u32::from(is_frame);
                return Ok(Told {
                    n_frames: others.saturating_add(1),
                    end: Some(bytes.len() - behind.len()),
                    ..told
                });
            }
            b"eXIf" => told.orientation = Orientation::from_exif_block(payload),
            b"fcTL" => n_frames = n_frames.saturating_add(1),
            b"IDAT" => is_frame |= n_frames > 0,
            _ => {}
        }
        rest = behind;
    }
}

/// Checks that a WebP has all the bytes that its header claims and that no frame in it is larger than `max_pixels`, and
/// returns what it tells. A frame's own header may claim more than the file's.
pub(crate) fn walk_webp(bytes: &[u8], max_pixels: u64) -> Result<Told, MediaError> {
    let cut = MediaError::Truncated { format: Format::WebP, what: "it is shorter than its header says" };
    let Some(&size) = bytes[4..].first_chunk() else { return Err(cut) };
    let claimed = 8 + u64::from(u32::from_le_bytes(size));
    // The pad byte of an odd last chunk is often left out.
    if claimed > bytes.len() as u64 + 1 {
        return Err(cut);
    }
    let (mut orientation, mut n_frames) = (Orientation::UPRIGHT, 0_u32);
    // The decoder takes chunks that begin up to 10 bytes behind that end. What follows is another file.
    let own = usize::try_from(claimed + 32).map_or(bytes.len(), |end| end.min(bytes.len()));
    walk_riff(&bytes[12..own], &mut |name, payload| {
        match name {
            b"EXIF" => orientation = Orientation::from_exif_block(payload),
            // An animation's frame: position, size, duration, flags, and then chunks of its own.
            b"ANMF" if payload.len() > 16 => {
                n_frames = n_frames.saturating_add(1);
                walk_riff(&payload[16..], &mut |name, payload| check_frame(name, payload, max_pixels))?;
            }
            _ => check_frame(name, payload, max_pixels)?,
        }
        Ok(())
    })?;
    // So the byte that pads an odd size is there or not.
    let ends = [claimed, claimed + claimed % 2].map(|end| usize::try_from(end).ok());
    let is_another = |end: &usize| bytes.get(*end..).is_some_and(|rest| Format::of(rest).is_ok());
    Ok(Told { orientation, n_frames: n_frames.max(1), end: ends.into_iter().flatten().find(is_another) })
}

/// The frames of a GIF, as far as its blocks are whole: its decoder checks the first frame.
pub(crate) fn walk_gif(bytes: &[u8]) -> Told {
    let mut blocks = GifBlocks { bytes, at: 13 };
    // The table of colours that all frames share.
    blocks.skip_colours(bytes.get(10).copied());
    let mut n_frames = 0_u32;
    loop {
        match blocks.next() {
            Some(0x2c) => {
                n_frames = n_frames.saturating_add(1);
                // Place and size, flags, a table of colours, the width of codes.
                blocks.at += 9;
                blocks.skip_colours(blocks.at.checked_sub(1).and_then(|at| bytes.get(at).copied()));
                blocks.at += 1;
            }
            // The name of an extension.
            Some(0x21) => blocks.at += 1,
            last => {
                let end = (last == Some(0x3b)).then_some(blocks.at);
                return Told { n_frames: n_frames.max(1), end, ..Told::ONE_UPRIGHT };
            }
        }
        while let Some(length @ 1..) = blocks.next() {
            blocks.at += usize::from(length);
        }
    }
}

struct GifBlocks<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl GifBlocks<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }

    fn skip_colours(&mut self, flags: Option<u8>) {
        if let Some(flags) = flags.filter(|flags| flags & 0x80 != 0) {
            self.at += 3 << ((flags & 7) + 1);
        }
    }
}

/// What is done with a chunk's name and payload.
type Visit<'a> = dyn FnMut(&[u8; 4], &[u8]) -> Result<(), MediaError> + 'a;

/// Calls `visit` with name and payload of each whole RIFF chunk in `rest`.
fn walk_riff(mut rest: &[u8], visit: &mut Visit<'_>) -> Result<(), MediaError> {
    while let Some((&[n0, n1, n2, n3, s0, s1, s2, s3], behind)) = rest.split_first_chunk() {
        let size = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
        // A frame that is cut must be seen as well: its header is what is checked.
        let payload = &behind[..size.min(behind.len())];
        visit(&[n0, n1, n2, n3], payload)?;
        let padded = size.saturating_add(size % 2);
        rest = behind.get(padded..).unwrap_or_default();
    }
    Ok(())
}

/// The size that a bitstream's own header claims, against the limits.
fn check_frame(name: &[u8; 4], payload: &[u8], max_pixels: u64) -> Result<(), MediaError> {
    let (width, height) = match (name, payload) {
        // Frame tag, start code, 14 bits each of width and height.
        (b"VP8 ", &[_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1, ..]) => {
            let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
            (side(w0, w1), side(h0, h1))
        }
        // Signature, then width - 1 and height - 1 in 14 bits each.
        (b"VP8L", &[0x2f, b0, b1, b2, b3, ..]) => {
            let bits = u32::from_le_bytes([b0, b1, b2, b3]);
            ((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1)
        }
        _ => return Ok(()),
    };
    check_size(Format::WebP, width, height, max_pixels)
}

/// The size that a BMP header claims, against the limits: the decoder has a limit of its own and would not say which.
pub(crate) fn check_bmp(bytes: &[u8], max_pixels: u64) -> Result<(), MediaError> {
    let Some(&[s0, s1, s2, s3, w0, w1, w2, w3, h0, h1, h2, h3]) =
        bytes.get(14..).and_then(|b| b.first_chunk())
    else {
        return Err(MediaError::Truncated { format: Format::Bmp, what: "it ends inside its header" });
    };
    let (width, height) = if u32::from_le_bytes([s0, s1, s2, s3]) == 12 {
        (u32::from(u16::from_le_bytes([w0, w1])), u32::from(u16::from_le_bytes([w2, w3])))
    } else {
        let side = |b| i32::from_le_bytes(b).unsigned_abs();
        // A negative height means rows from top to bottom.
        (side([w0, w1, w2, w3]), side([h0, h1, h2, h3]))
    };
    check_size(Format::Bmp, width, height, max_pixels)
}
