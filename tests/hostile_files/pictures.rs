//! Pictures that are small as files and huge as pictures, or say so.

use flate2::{Compress, Compression, Crc, FlushCompress};

use super::ends::Ends;

/// A side that `max_pixels` allows.
const SIDE: u32 = 16_384;

const TOO_LARGE: Ends = &["too_large"];
const NO_MEMORY: Ends = &["out_of_memory"];
const DAMAGED: Ends = &["decode"];
/// It is what it says, and is read piece by piece, or small.
const DONE: Ends = &["done"];
/// Its decoder takes memory before it sees that it is damaged, or does not.
const EITHER: Ends = &["decode", "out_of_memory", "too_large"];

/// Names, contents, and how each may end.
pub fn pictures() -> Vec<(&'static str, Vec<u8>, Ends)> {
    let line = vec![7; 3 * SIDE as usize];
    let packed = repeated_zlib(3 * u64::from(SIDE) * u64::from(SIDE));
    let strips = |rows: u32| vec![8; SIDE.div_ceil(rows) as usize];
    let one_strip = |side: u32| Tiff { side, rows: side, ..Tiff::small(&line) }.file();
    let small = Tiff::small(&line);
    vec![
        ("webp-still.webp", webp_still(SIDE - 1), NO_MEMORY),
        ("webp-canvas.webp", webp_extended(SIDE, 1, 1), EITHER),
        ("webp-animated.webp", webp_extended(SIDE - 1, SIDE - 1, 200), NO_MEMORY),
        ("webp-widest.webp", webp_extended(1 << 24, 1, 1), EITHER),
        ("png-interlaced.png", png(true), NO_MEMORY),
        ("png-lines.png", png(false), DONE),
        // All strips are the same bytes.
        (
            "tiff-lines.tiff",
            Tiff { side: SIDE, rows: 1, offsets: strips(1), bytes: 3 * SIDE, ..small.clone() }.file(),
            DONE,
        ),
        (
            "tiff-deflated.tiff",
            Tiff {
                side: SIDE,
                compression: 8,
                rows: SIDE,
                bytes: packed.len() as u32,
                pixels: &packed,
                ..small.clone()
            }
            .file(),
            NO_MEMORY,
        ),
        (
            "tiff-cut.tiff",
            Tiff {
                side: SIDE,
                compression: 8,
                rows: 16,
                offsets: strips(16),
                bytes: 100,
                pixels: &packed[..100],
            }
            .file(),
            DAMAGED,
        ),
        ("tiff-claims.tiff", one_strip(SIDE), EITHER),
        ("tiff-huge.tiff", one_strip(1 << 20), TOO_LARGE),
        ("tiff-tile.tiff", tiled(&small.file()), EITHER),
        ("tiff-looped.tiff", looped(&small.file()), DONE),
        ("tiff-many.tiff", many_directories(&small.file()), DONE),
    ]
}

/// The zlib form of so many zeros: that of a piece, again and again.
pub fn repeated_zlib(len: u64) -> Vec<u8> {
    let zeros = vec![0; 1 << 20];
    let piece = |n: usize, flush| {
        let mut packed = Vec::with_capacity(1 << 16);
        Compress::new(Compression::best(), false).compress_vec(&zeros[..n], &mut packed, flush).unwrap();
        packed
    };
    let whole = piece(zeros.len(), FlushCompress::Full);
    let mut all = vec![0x78, 0xda];
    (0..len >> 20).for_each(|_| all.extend(&whole));
    all.extend(piece((len & 0xf_ffff) as usize, FlushCompress::Finish));
    // Adler-32 of zeros: 1, and as many ones as there are bytes.
    all.extend((((len % 65_521) as u32) << 16 | 1).to_be_bytes());
    all
}

/// One of `SIDE` x `SIDE` pixels of one colour, in less than a megabyte.
pub fn png(interlaced: bool) -> Vec<u8> {
    let chunk = |name: &[u8], payload: &[u8]| {
        let body = [name, payload].concat();
        let mut crc = Crc::new();
        crc.update(&body);
        [&(payload.len() as u32).to_be_bytes()[..], &body, &crc.sum().to_be_bytes()].concat()
    };
    let side = u64::from(SIDE);
    // Adam7: where each pass begins and how far its pixels are apart, across and down.
    let passes =
        [(0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2)];
    let of_pass =
        |(x, dx, y, dy): (u64, u64, u64, u64)| (1 + 3 * (side - x).div_ceil(dx)) * (side - y).div_ceil(dy);
    let len = if interlaced { passes.into_iter().map(of_pass).sum() } else { (1 + 3 * side) * side };
    let header = [&SIDE.to_be_bytes()[..], &SIDE.to_be_bytes(), &[8, 2, 0, 0, interlaced.into()]].concat();
    let (begin, pixels, end) =
        (chunk(b"IHDR", &header), chunk(b"IDAT", &repeated_zlib(len)), chunk(b"IEND", &[]));
    [&b"\x89PNG\r\n\x1a\n"[..], &begin, &pixels, &end].concat()
}

/// The bits of a lossless WebP of one colour, whose pixels take none.
fn lossless(side: u32) -> Vec<u8> {
    let (mut bits, mut n) = (0_u128, 0);
    let mut put = |value: u32, width: u32| {
        bits |= u128::from(value) << n;
        n += width;
    };
    put(0x2f, 8);
    put(side - 1, 14);
    put(side - 1, 14);
    // No alpha, version 0, no transform, no cache, no groups.
    put(0, 1 + 3 + 1 + 1 + 1);
    // Five codes of one symbol.
    (0..5).for_each(|_| put(1, 4));
    bits.to_le_bytes().to_vec()
}

fn riff(chunks: &[u8]) -> Vec<u8> {
    [&b"RIFF"[..], &(chunks.len() as u32 + 4).to_le_bytes(), b"WEBP", chunks].concat()
}

fn chunk(name: &[u8], payload: &[u8]) -> Vec<u8> {
    let pad = vec![0; payload.len() % 2];
    [name, &(payload.len() as u32).to_le_bytes(), payload, &pad].concat()
}

fn webp_still(side: u32) -> Vec<u8> {
    riff(&chunk(b"VP8L", &lossless(side)))
}

/// A canvas of one side with so many frames of another one; 1: no animation.
fn webp_extended(canvas: u32, side: u32, frames: usize) -> Vec<u8> {
    let three = |n: u32| n.to_le_bytes()[..3].to_vec();
    let is_animated = frames > 1;
    let head =
        [&[if is_animated { 2 } else { 0 }, 0, 0, 0][..], &three(canvas - 1), &three(canvas - 1)].concat();
    let picture = chunk(b"VP8L", &lossless(side));
    let frame = [&[0; 6][..], &three(side - 1), &three(side - 1), &three(40), &[0], &picture].concat();
    let rest = match is_animated {
        true => [chunk(b"ANIM", &[0; 6]), chunk(b"ANMF", &frame).repeat(frames)].concat(),
        false => picture,
    };
    riff(&[chunk(b"VP8X", &head), rest].concat())
}

/// A square of colour pixels in strips.
#[derive(Clone)]
struct Tiff<'a> {
    side: u32,
    /// 1: none, 8: deflate.
    compression: u32,
    /// Lines of a strip.
    rows: u32,
    /// Where strips lie, and the bytes of each.
    offsets: Vec<u32>,
    bytes: u32,
    /// From byte 8 on.
    pixels: &'a [u8],
}

/// Entries of its directory.
const ENTRIES: usize = 9;

impl<'a> Tiff<'a> {
    fn small(pixels: &'a [u8]) -> Self {
        Self { side: 16, compression: 1, rows: 16, offsets: vec![8], bytes: 768, pixels }
    }

    fn file(&self) -> Vec<u8> {
        let counts = vec![self.bytes; self.offsets.len()];
        let entries: [(u16, u16, &[u32]); ENTRIES] = [
            (256, 4, &[self.side]),
            (257, 4, &[self.side]),
            (258, 3, &[8]),
            (259, 3, &[self.compression]),
            (262, 3, &[2]),
            (273, 4, &self.offsets),
            (277, 3, &[3]),
            (278, 4, &[self.rows]),
            (279, 4, &counts),
        ];
        let pad = vec![0; self.pixels.len() % 2];
        let directory = (8 + self.pixels.len() + pad.len()) as u32;
        let mut file = [&b"II*\0"[..], &directory.to_le_bytes(), self.pixels, &pad].concat();
        let mut behind = directory + 2 + 12 * ENTRIES as u32 + 4;
        let mut values = Vec::new();
        file.extend((ENTRIES as u16).to_le_bytes());
        for (tag, kind, numbers) in entries {
            file.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
            file.extend((numbers.len() as u32).to_le_bytes());
            if let [one] = numbers {
                file.extend(one.to_le_bytes());
            } else {
                file.extend(behind.to_le_bytes());
                behind += 4 * numbers.len() as u32;
                values.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
            }
        }
        [file, vec![0; 4], values].concat()
    }
}

/// Where the directory of a file lies, and where it says which one is next.
fn directory(file: &[u8]) -> (u32, usize) {
    let first = u32::from_le_bytes(*file[4..].first_chunk().unwrap());
    (first, first as usize + 2 + 12 * ENTRIES)
}

/// Its directory comes after itself: no page more.
fn looped(small: &[u8]) -> Vec<u8> {
    let mut file = small.to_vec();
    let (first, next) = directory(&file);
    file[next..next + 4].copy_from_slice(&first.to_le_bytes());
    file
}

/// A hundred thousand directories come after its own.
fn many_directories(small: &[u8]) -> Vec<u8> {
    let mut file = small.to_vec();
    let (_, next) = directory(&file);
    let end = file.len() as u32;
    file[next..next + 4].copy_from_slice(&end.to_le_bytes());
    const MANY: u32 = 100_000;
    for n in 1..MANY {
        // One entry: a width. None comes behind the last one.
        file.extend([1, 0, 0, 1, 4, 0, 1, 0, 0, 0, 16, 0, 0, 0]);
        let next = if n + 1 < MANY { end + n * 18 } else { 0 };
        file.extend(next.to_le_bytes());
    }
    file
}

/// Gray, in one tile that is 2^31 pixels wide.
fn tiled(small: &[u8]) -> Vec<u8> {
    let mut file = small.to_vec();
    let first = directory(&file).0 as usize + 2;
    let mut entries: Vec<Vec<u8>> =
        file[first..first + 12 * ENTRIES].chunks(12).map(<[u8]>::to_vec).collect();
    let mut set = |entry: usize, tag: u16, value: u32| {
        entries[entry][..4].copy_from_slice(&[tag.to_le_bytes(), 4_u16.to_le_bytes()].concat());
        entries[entry][8..].copy_from_slice(&value.to_le_bytes());
    };
    set(5, 324, 8);
    // In the place of the number of samples.
    set(6, 323, 16);
    set(7, 322, 1 << 31);
    set(8, 325, 768);
    entries[4][8] = 1;
    entries.sort_by_key(|entry| u16::from_le_bytes([entry[0], entry[1]]));
    file[first..first + 12 * ENTRIES].copy_from_slice(&entries.concat());
    file
}
