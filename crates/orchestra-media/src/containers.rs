//! Walks over the chunks of PNG and WebP, the blocks of GIF, and the header of BMP, for what their decoders do not say. It decodes no pixels.

use crate::error::MediaError;
use crate::format::Format;
use crate::orientation::Orientation;
use crate::picture::check_size;

/// What a file says of its pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) orientation: Orientation,
    /// Frames of an animation; 1 for a picture.
    pub(crate) n_frames: u32,
}

impl Told {
    pub(crate) const ONE_UPRIGHT: Told = Told { orientation: Orientation::UPRIGHT, n_frames: 1 };
}

/// Checks that a PNG has its end and returns what it tells. EXIF may stand before or behind the pixels.
pub(crate) fn walk_png(bytes: &[u8]) -> Result<Told, MediaError> {
    let cut = MediaError::Truncated { format: Format::Png, what: "its end chunk is missing" };
    let mut told = Told::ONE_UPRIGHT;
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
            b"IEND" => return Ok(told),
            b"eXIf" => told.orientation = Orientation::from_exif_block(payload),
            // The control of an animation begins with the number of its frames.
            b"acTL" => {
                told.n_frames = payload.first_chunk().map_or(1, |n| u32::from_be_bytes(*n)).max(1);
            }
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
    walk_riff(&bytes[12..], &mut |name, payload| {
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
    Ok(Told { orientation, n_frames: n_frames.max(1) })
}

/// The frames of a GIF, as far as its blocks are whole: its decoder checks the first frame.
pub(crate) fn gif_frames(bytes: &[u8]) -> u32 {
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
            _ => return n_frames.max(1),
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
