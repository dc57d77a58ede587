//! Files that are made to harm a decoder: headers that claim far more than the file holds, ends that are missing, bits that are turned, each in
//! every format. Always the same ones. It says nothing about which of them are pictures after all.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use image::{ImageFormat, RgbImage};

use crate::images::write_blank_picture;

/// How many [`write_hostile_pictures`] writes.
pub const HOSTILE: usize = 78;

const FORMATS: [(&str, ImageFormat); 6] = [
    ("jpg", ImageFormat::Jpeg),
    ("png", ImageFormat::Png),
    ("webp", ImageFormat::WebP),
    ("bmp", ImageFormat::Bmp),
    ("tiff", ImageFormat::Tiff),
    ("gif", ImageFormat::Gif),
];

/// Sides that headers claim, of pictures that `max_pixels` allows unless it is lowered. The largest takes three quarters of a gigabyte in colour.
const CLAIMED: [u16; 5] = [1_000, 4_000, 8_000, 12_000, 16_000];
/// What is left of truncated files, in percent.
const LEFT: [usize; 4] = [5, 40, 75, 98];
/// Files of each format with some bits turned.
const TURNED: u32 = 3;

/// Writes them into `folder`, with names that begin with `hostile-`. Gives their paths.
pub fn write_hostile_pictures(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for (ending, format) in FORMATS {
        let good = encoded(format)?;
        for side in CLAIMED {
            files.push((format!("claims-{side:05}.{ending}"), with_side(&good, format, side)?));
        }
        for percent in LEFT {
            files.push((format!("cut-{percent:02}.{ending}"), good[..good.len() * percent / 100].to_vec()));
        }
        files.extend((0..TURNED).map(|seed| (format!("turned-{seed}.{ending}"), turned(&good, seed))));
    }
    files.extend([
        ("empty.png".to_owned(), Vec::new()),
        ("magic.png".to_owned(), b"\x89PNG\r\n\x1a\n".to_vec()),
        ("zeros.tiff".to_owned(), vec![0; 1 << 16]),
        ("no-size.png".to_owned(), with_side(&encoded(ImageFormat::Png)?, ImageFormat::Png, 0)?),
        ("trailer.png".to_owned(), [encoded(ImageFormat::Png)?, vec![0xff; 1 << 16]].concat()),
    ]);
    let mut paths = Vec::new();
    for (name, bytes) in files {
        let path = folder.join(format!("hostile-{name}"));
        fs::write(&path, bytes).with_context(|| format!("cannot write `{}`", path.display()))?;
        paths.push(path);
    }
    // One that is what it claims to be.
    let blank = write_blank_picture(folder, u64::from(u32::MAX), 16_384)?;
    let path = folder.join("hostile-whole.png");
    fs::rename(blank, &path)?;
    paths.push(path);
    ensure!(paths.len() == HOSTILE, "{} files", paths.len());
    Ok(paths)
}

/// Few pixels, with something in them.
fn encoded(format: ImageFormat) -> anyhow::Result<Vec<u8>> {
    let picture = RgbImage::from_fn(96, 64, |x, y| image::Rgb([x as u8, y as u8, (x * y) as u8]));
    let mut file = Cursor::new(Vec::new());
    picture.write_to(&mut file, format)?;
    Ok(file.into_inner())
}

/// The same file, whose header claims a square.
fn with_side(good: &[u8], format: ImageFormat, side: u16) -> anyhow::Result<Vec<u8>> {
    let mut file = good.to_vec();
    let wide = u32::from(side);
    match format {
        ImageFormat::Jpeg => {
            let frame = position(&file, &[0xff, 0xc0])?;
            file[frame + 5..frame + 7].copy_from_slice(&side.to_be_bytes());
            file[frame + 7..frame + 9].copy_from_slice(&side.to_be_bytes());
        }
        ImageFormat::Png => {
            file[16..20].copy_from_slice(&wide.to_be_bytes());
            file[20..24].copy_from_slice(&wide.to_be_bytes());
            let sum = crc32fast::hash(&file[12..29]);
            file[29..33].copy_from_slice(&sum.to_be_bytes());
        }
        ImageFormat::WebP => {
            ensure!(&file[12..16] == b"VP8L", "it is not lossless");
            let flags = u32::from_le_bytes([file[21], file[22], file[23], file[24]]) & 0xf000_0000;
            let last = wide.saturating_sub(1);
            file[21..25].copy_from_slice(&(flags | last << 14 | last).to_le_bytes());
        }
        ImageFormat::Bmp => {
            file[18..22].copy_from_slice(&wide.to_le_bytes());
            file[22..26].copy_from_slice(&wide.to_le_bytes());
        }
        ImageFormat::Tiff => {
            ensure!(file.starts_with(b"II"), "it is of the other byte order");
            let directory = u32::from_le_bytes([file[4], file[5], file[6], file[7]]) as usize;
            // Entries of 12 bytes: the tags of width and height, a type, a number of values, the value.
            for tag in [256_u16, 257] {
                let entry = directory + position(&file[directory..], &tag.to_le_bytes())?;
                let is_short = file[entry + 2] == 3;
                let bytes = if is_short { 2 } else { 4 };
                file[entry + 8..entry + 8 + bytes].copy_from_slice(&wide.to_le_bytes()[..bytes]);
            }
        }
        _ => {
            file[6..8].copy_from_slice(&side.to_le_bytes());
            file[8..10].copy_from_slice(&side.to_le_bytes());
            // Of the picture in it, too.
            let frame = position(&file, &[0x2c, 0, 0, 0, 0])?;
            file[frame + 5..frame + 7].copy_from_slice(&side.to_le_bytes());
            file[frame + 7..frame + 9].copy_from_slice(&side.to_le_bytes());
        }
    }
    Ok(file)
}

fn position(file: &[u8], of: &[u8]) -> anyhow::Result<usize> {
    file.windows(of.len()).position(|bytes| bytes == of).context("it has another form")
}

/// One bit in about forty bytes, behind what says of which format it is.
fn turned(good: &[u8], seed: u32) -> Vec<u8> {
    let mut random = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut file = good.to_vec();
    for byte in file.iter_mut().skip(12) {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if (random >> 16).is_multiple_of(40) {
            *byte ^= 1 << (random >> 29);
        }
    }
    file
}
