//! The markers of a JPEG file: where it ends, and what it says of itself. It decodes nothing.

use std::iter;

use memchr::{memchr, memmem};

pub(crate) const END: u8 = 0xd9;

/// Whether a picture says in its head that it is the gain map of another: by Adobe's names, Apple's or the ISO's.
pub(crate) fn is_gain_map(picture: &[u8]) -> bool {
    const HEAD: usize = 64 << 10;
    let head = &picture[..picture.len().min(HEAD)];
    let names: [&[u8]; 3] = [b"hdrgm:", b"hdrgainmap", b"urn:iso:std:iso:ts:21496"];
    names.iter().any(|name| memmem::find(head, name).is_some())
}

/// The end of the marker that closes the picture. The decoder can do without it once it has all pixels, but a file that lacks it was cut.
/// Cameras write more pictures or padding behind it.
pub(crate) fn end_of(bytes: &[u8]) -> Option<usize> {
    markers(bytes).find(|(marker, ..)| *marker == END).map(|(.., end)| end)
}

/// The markers of a file behind its first, each with its payload and the byte behind it. Those without a payload are left out, but for the end.
pub(crate) fn markers(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8], usize)> {
    let mut at = 2;
    iter::from_fn(move || {
        loop {
            at += memchr(0xff, bytes.get(at..)?)?;
            match *bytes.get(at + 1)? {
                END => {
                    at += 2;
                    return Some((END, &[][..], at));
                }
                0xff => at += 1,
                // A stuffed byte, or a marker without a payload.
                0x00 | 0x01 | 0xd0..=0xd8 => at += 2,
                // The payload of a segment may hold anything.
                marker => {
                    let length = bytes.get(at + 2..)?.first_chunk().copied()?;
                    let begin = at + 4;
                    at += 2 + usize::from(u16::from_be_bytes(length));
                    return Some((marker, bytes.get(begin..at).unwrap_or_default(), at));
                }
            }
        }
    })
}
