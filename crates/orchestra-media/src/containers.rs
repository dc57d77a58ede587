//! Walks over the chunks of PNG and WebP and the blocks of GIF, for what their decoders do not say, and over the files that stand
//! behind a picture in its file. It decodes no pixels.

use std::borrow::Cow;
use std::io::Read as _;

use flate2::read::ZlibDecoder;
use memchr::memchr;

use crate::bmp::BmpHeader;
use crate::directory::Directories;
use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg_markers;
use crate::orientation::Orientation;
use crate::picture::check_size;

/// What a file says of its pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContainerHeader {
    pub(crate) orientation: Orientation,
    /// Frames of an animation; 1 for a picture.
    pub(crate) n_frames: u32,
    /// Where the picture ends, if it says so.
    end: Option<usize>,
}

impl ContainerHeader {
    pub(crate) const ONE_UPRIGHT: ContainerHeader =
        ContainerHeader { orientation: Orientation::UPRIGHT, n_frames: 1, end: None };

    /// One picture, upright.
    pub(crate) fn one_that_ends(end: Option<usize>) -> ContainerHeader {
        ContainerHeader { end, ..ContainerHeader::ONE_UPRIGHT }
    }

    /// With the pictures that stand behind this one in its file.
    pub(crate) fn and_behind(self, bytes: &[u8]) -> ContainerHeader {
        ContainerHeader { n_frames: self.n_frames.saturating_add(n_behind(bytes, self.end)), ..self }
    }
}

/// How many pictures begin where the first one ends, or where one of them does, behind zeros that may fill up the space between them. A gain map of HDR is none.
pub(crate) fn n_behind(bytes: &[u8], end: Option<usize>) -> u32 {
    let (mut end, mut n) = (end, 0_u32);
    while let Some(rest) = end.and_then(|end| bytes.get(end..)) {
        let Some(n_zeros) = rest.iter().position(|byte| *byte != 0) else { return n };
        let rest = &rest[n_zeros..];
        end = end.map(|end| end + n_zeros);
        let told = match Format::of(rest) {
            Some(Format::Jpeg) => {
                let end = jpeg_markers::end_of(rest);
                let is_picture = !jpeg_markers::is_gain_map(&rest[..end.unwrap_or(rest.len())]);
                Ok(ContainerHeader { n_frames: is_picture.into(), end, ..ContainerHeader::ONE_UPRIGHT })
            }
            Some(Format::Png) => walk_png(rest),
            Some(Format::WebP) => walk_webp(rest, u64::MAX),
            Some(Format::Gif) => Ok(walk_gif(rest)),
            Some(Format::Tiff) => {
                let directories = Directories::of(rest);
                let n_pages = directories.and_then(|all| all.pages().ok()).map_or(1, |pages| pages.len());
                let end = directories.and_then(Directories::end);
                let n_frames = u32::try_from(n_pages).unwrap_or(u32::MAX);
                Ok(ContainerHeader { n_frames, end, ..ContainerHeader::ONE_UPRIGHT })
            }
            // Two bytes alone are no sign of one.
            Some(Format::Bmp) if BmpHeader::of(rest).is_some_and(|header| header.has_known_size()) => {
                walk_bmp(rest, u64::MAX)
            }
            Some(Format::Bmp) | None => return n,
        };
        // One that is cut is there.
        let told = told.unwrap_or(ContainerHeader::ONE_UPRIGHT);
        n = n.saturating_add(told.n_frames);
        end = told.end.and_then(|length| end?.checked_add(length));
    }
    n
}

/// Refuses what its decoder does not read or what is larger than the limits, of which that decoder has its own, and returns what the header tells.
pub(crate) fn walk_bmp(bytes: &[u8], max_pixels: u64) -> Result<ContainerHeader, MediaError> {
    let format = Format::Bmp;
    let cut = MediaError::Truncated { format, what: "it ends inside its header" };
    let header = BmpHeader::of(bytes).ok_or(cut)?;
    if let Some(what) = header.what_is_not_read() {
        return Err(MediaError::Unsupported { format, what, convert: BmpHeader::MAGICK });
    }
    check_size(format, header.width, header.height, max_pixels)?;
    Ok(ContainerHeader::one_that_ends(header.end()))
}

/// Checks that a PNG has its end and returns what it tells. EXIF may stand before or behind the pixels. The frames of an animation are those that it has,
/// whatever its header says; the picture that is read is one of them if its control stands in front of the pixels.
pub(crate) fn walk_png(bytes: &[u8]) -> Result<ContainerHeader, MediaError> {
    let cut = MediaError::Truncated { format: Format::Png, what: "its end chunk is missing" };
    let (mut exif, mut n_frames, mut is_frame) = (None, 0_u32, false);
    // What the first text of the kind says: many, each packed, would take any time.
    let (mut profile, mut xmp) = (None, None);
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
                return Ok(ContainerHeader {
                    n_frames: others.saturating_add(1),
                    end: Some(bytes.len() - behind.len()),
                    orientation: exif.or(profile.flatten()).or(xmp.flatten()).unwrap_or_default(),
                });
            }
            b"eXIf" => exif = Orientation::in_exif_block(payload).or(exif),
            name @ (b"tEXt" | b"zTXt" | b"iTXt") => {
                let text = |keyword| text_of(name, payload, keyword);
                profile = profile.or_else(|| {
                    Some(Orientation::in_exif_block(&raw_profile(&text(b"Raw profile type exif")?)))
                });
                xmp = xmp.or_else(|| Some(Orientation::in_xmp(&text(b"XML:com.adobe.xmp")?)));
            }
            b"fcTL" => n_frames = n_frames.saturating_add(1),
            b"IDAT" => is_frame |= n_frames > 0,
            _ => {}
        }
        rest = behind;
    }
}

/// EXIF as ImageMagick writes it: the name, the length and then hexadecimal digits, on lines.
fn raw_profile(text: &[u8]) -> Vec<u8> {
    let digits = text.splitn(4, |byte| *byte == b'\n').nth(3).unwrap_or_default();
    let digits: Vec<u8> =
        digits.iter().filter_map(|digit| (*digit as char).to_digit(16)).map(|n| n as u8).collect();
    digits.as_chunks().0.iter().map(|[high, low]| high << 4 | low).collect()
}

/// The text that stands under a keyword in a chunk. Of one that is very long or damaged, the begin.
fn text_of<'a>(chunk: &[u8; 4], payload: &'a [u8], keyword: &[u8]) -> Option<Cow<'a, [u8]>> {
    const MOST: u64 = 1 << 20;
    let rest = payload.strip_prefix(keyword)?.strip_prefix(b"\0")?;
    let (is_packed, text) = match chunk {
        b"tEXt" => (false, rest),
        b"zTXt" => (true, rest.get(1..)?),
        _ => {
            // Whether and how it is packed, its language, and the keyword in that language.
            let [flag, _, rest @ ..] = rest else { return None };
            let language = memchr(0, rest)? + 1;
            (*flag == 1, &rest[language + memchr(0, &rest[language..])? + 1..])
        }
    };
    if !is_packed {
        return Some(text.into());
    }
    let mut unpacked = Vec::new();
    match ZlibDecoder::new(text).take(MOST).read_to_end(&mut unpacked) {
        Ok(_) | Err(_) => Some(unpacked.into()),
    }
}

/// Checks that a WebP has all the bytes that its header claims and that no frame in it is larger than `max_pixels`, and
/// returns what it tells. A frame's own header may claim more than the file's.
pub(crate) fn walk_webp(bytes: &[u8], max_pixels: u64) -> Result<ContainerHeader, MediaError> {
    let cut = MediaError::Truncated { format: Format::WebP, what: "it is shorter than its header says" };
    let Some(&size) = bytes[4..].first_chunk() else { return Err(cut) };
    let claimed = 8 + u64::from(u32::from_le_bytes(size));
    // The pad byte of an odd last chunk is often left out.
    if claimed > bytes.len() as u64 + 1 {
        return Err(cut);
    }
    let (mut exif, mut xmp, mut n_frames) = (None, None, 0_u32);
    // The decoder takes chunks that begin up to 10 bytes behind that end. What follows is another file.
    let own = usize::try_from(claimed + 32).map_or(bytes.len(), |end| end.min(bytes.len()));
    walk_riff(&bytes[12..own], &mut |name, payload| {
        match name {
            b"EXIF" => exif = Orientation::in_exif_block(payload),
            b"XMP " => xmp = Orientation::in_xmp(payload),
            // An animation's frame: position, size, duration, flags, and then chunks of its own.
            b"ANMF" if payload.len() > 16 => {
                n_frames = n_frames.saturating_add(1);
                walk_riff(&payload[16..], &mut |name, payload| check_frame(name, payload, max_pixels))?;
            }
            _ => check_frame(name, payload, max_pixels)?,
        }
        Ok(())
    })?;
    let orientation = exif.or(xmp).unwrap_or_default();
    Ok(ContainerHeader { orientation, n_frames: n_frames.max(1), end: usize::try_from(claimed).ok() })
}

/// A WebP as its decoder reads it rightly: that blends the first frame of an animation into nothing, which is off by one, and wants an alpha channel wherever
/// the header speaks of one.
pub(crate) fn plain_webp(bytes: &[u8]) -> Cow<'_, [u8]> {
    const FLAGS: usize = 20;
    const HAS_ALPHA: u8 = 0x10;
    const IS_NOT_BLENDED: u8 = 0x02;
    let mut plain = Cow::Borrowed(bytes);
    let (mut has_lossy, mut has_alpha, mut first_frame) = (false, false, None);
    let visited = walk_riff(&bytes[12..], &mut |name, payload| {
        has_lossy |= name == b"VP8 ";
        has_alpha |= name == b"ALPH";
        if name == b"ANMF" && payload.len() > 16 {
            first_frame = first_frame.or(Some(payload.as_ptr().addr() - bytes.as_ptr().addr() + 15));
        }
        Ok(())
    });
    if visited.is_err() || bytes.get(12..16) != Some(b"VP8X") {
        return plain;
    }
    if let Some(at) = first_frame {
        plain.to_mut()[at] |= IS_NOT_BLENDED;
    } else if has_lossy && !has_alpha && bytes.get(FLAGS).is_some_and(|flags| flags & HAS_ALPHA != 0) {
        plain.to_mut()[FLAGS] &= !HAS_ALPHA;
    }
    plain
}

/// The frames of a GIF, as far as its blocks are whole: its decoder checks the first frame.
pub(crate) fn walk_gif(bytes: &[u8]) -> ContainerHeader {
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
                return ContainerHeader { n_frames: n_frames.max(1), end, ..ContainerHeader::ONE_UPRIGHT };
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
type VisitChunk<'a> = dyn FnMut(&[u8; 4], &[u8]) -> Result<(), MediaError> + 'a;

/// Calls `visit` with name and payload of each whole RIFF chunk in `rest`.
fn walk_riff(mut rest: &[u8], visit: &mut VisitChunk<'_>) -> Result<(), MediaError> {
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
