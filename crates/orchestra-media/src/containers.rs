//! Walks over the chunks of PNG and WebP, and the header of BMP, for what their decoders do not say. It decodes no pixels.

use crate::error::MediaError;
use crate::format::Format;
use crate::orientation::Orientation;
use crate::picture::check_size;

/// Checks that a PNG has its end and returns its turn. EXIF may stand before or behind the pixels.
pub(crate) fn walk_png(bytes: &[u8]) -> Result<Orientation, MediaError> {
    let cut = MediaError::Truncated { format: Format::Png, what: "its end chunk is missing" };
    let mut orientation = Orientation::UPRIGHT;
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
            b"IEND" => return Ok(orientation),
            b"eXIf" => orientation = Orientation::from_exif_block(payload),
            _ => {}
        }
        rest = behind;
    }
}

/// Checks that a WebP has all the bytes that its header claims and that no frame in it is larger than `max_pixels`, and
/// returns its turn. A frame's own header may claim more than the file's.
pub(crate) fn walk_webp(bytes: &[u8], max_pixels: u64) -> Result<Orientation, MediaError> {
    let cut = MediaError::Truncated { format: Format::WebP, what: "it is shorter than its header says" };
    let Some(&size) = bytes[4..].first_chunk() else { return Err(cut) };
    let claimed = 8 + u64::from(u32::from_le_bytes(size));
    // The pad byte of an odd last chunk is often left out.
    if claimed > bytes.len() as u64 + 1 {
        return Err(cut);
    }
    let mut orientation = Orientation::UPRIGHT;
    walk_riff(&bytes[12..], &mut |name, payload| {
        match name {
            b"EXIF" => orientation = Orientation::from_exif_block(payload),
            // An animation's frame: position, size, duration, flags, and then chunks of its own.
            b"ANMF" if payload.len() > 16 => {
                walk_riff(&payload[16..], &mut |name, payload| check_frame(name, payload, max_pixels))?;
            }
            _ => check_frame(name, payload, max_pixels)?,
        }
        Ok(())
    })?;
    Ok(orientation)
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

/// Checks that no entry of a TIFF's first directory claims more values than the file has bytes: the decoder takes memory for what is claimed
/// before it reads it.
pub(crate) fn check_tiff(bytes: &[u8]) -> Result<(), MediaError> {
    let number = |at: usize, length: usize| -> Option<u64> {
        let digits = bytes.get(at..at.checked_add(length)?)?;
        let one = |n: u64, byte: &u8| n << 8 | u64::from(*byte);
        Some(if bytes[0] == b'M' { digits.iter().fold(0, one) } else { digits.iter().rev().fold(0, one) })
    };
    let cut = MediaError::Truncated { format: Format::Tiff, what: "it ends inside its directory" };
    // BigTIFF has the magic number 43, and all counts and offsets in 8 bytes.
    let (first, n_bytes, entry, wide) = if number(2, 2) == Some(43) { (8, 8, 20, 8) } else { (4, 2, 12, 4) };
    let directory = number(first, wide).and_then(|at| usize::try_from(at).ok());
    let Some((directory, n)) = directory.and_then(|at| Some((at, number(at, n_bytes)?))) else {
        return Err(cut);
    };
    for index in 0..n {
        let at =
            usize::try_from(index).ok().and_then(|i| i.checked_mul(entry)?.checked_add(directory + n_bytes));
        let Some((tag, kind, count)) =
            at.and_then(|at| Some((number(at, 2)?, number(at + 2, 2)?, number(at + 4, wide)?)))
        else {
            return Err(cut);
        };
        let size = match kind {
            3 | 8 => 2,
            4 | 9 | 11 | 13 => 4,
            5 | 10 | 12 | 16..=18 => 8,
            _ => 1,
        };
        if count.saturating_mul(size) > bytes.len() as u64 {
            let reason = format!("its entry {tag} claims {count} values, more than the file can hold");
            return Err(MediaError::Broken { format: Format::Tiff, reason });
        }
    }
    Ok(())
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
