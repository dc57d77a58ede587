//! Pictures that carry their index in their pixels, so that a result can be matched with its picture, and broken pictures.
//! Only writes files and reads numbers; decodes nothing.
//!
//! A picture is a grid of 8 by 4 blocks. Block 0 is black, block 31 is white, and the 30 blocks between are the bits of the index,
//! lowest first, white for 1. It stays readable through scaling, JPEG and any linear normalisation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use image::{GrayImage, ImageFormat, Luma};

use crate::Trap;

/// Blocks across.
pub const BLOCK_COLUMNS: usize = 8;
/// Blocks down.
pub const BLOCK_ROWS: usize = 4;
/// Blocks in a picture.
pub const BLOCKS: usize = BLOCK_COLUMNS * BLOCK_ROWS;
/// The largest index that fits, plus one.
pub const INDEX_END: u64 = 1 << (BLOCKS - 2);

/// How a picture is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Lossless gray PNG.
    Png,
    /// Gray JPEG.
    Jpeg,
}

/// Pixels of the picture with this index, `width` by `height`, 0 or 255.
pub fn picture(index: u64, width: u32, height: u32) -> GrayImage {
    GrayImage::from_fn(width, height, |x, y| {
        let column = x as usize * BLOCK_COLUMNS / width.max(1) as usize;
        let row = y as usize * BLOCK_ROWS / height.max(1) as usize;
        let is_white = match row * BLOCK_COLUMNS + column {
            0 => false,
            block if block == BLOCKS - 1 => true,
            block => index >> (block - 1) & 1 == 1,
        };
        Luma([if is_white { 255 } else { 0 }])
    })
}

/// The index in a picture, from the mean of each block as the model [`crate::models::blocks`] gives it. `None` if it is not readable.
pub fn index_of_blocks(blocks: &[f32]) -> Option<u64> {
    let (black, white) = (*blocks.first()?, *blocks.get(BLOCKS - 1)?);
    let range = white - black;
    if blocks.len() != BLOCKS || !range.is_finite() || range.abs() < f32::EPSILON {
        return None;
    }
    blocks[1..BLOCKS - 1].iter().enumerate().try_fold(0, |index, (bit, mean)| {
        // From 0 for black to 1 for white; what lies in the middle third is neither.
        let level = (mean - black) / range;
        if level > 0.66 {
            Some(index | 1 << bit)
        } else if level < 0.34 {
            Some(index)
        } else {
            None
        }
    })
}

/// Writes pictures 0 to `n` - 1 into `folder`, 32 by 32 pixels, named `00000000.png` and so on, so that their names sort as their
/// indices do. Gives their paths.
pub fn write_pictures(folder: &Path, n: u64, kind: Kind) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    (0..n).map(|index| write_picture(folder, index, 32, 32, kind)).collect()
}

/// Writes one picture, named for its index.
pub fn write_picture(
    folder: &Path,
    index: u64,
    width: u32,
    height: u32,
    kind: Kind,
) -> anyhow::Result<PathBuf> {
    ensure!(index < INDEX_END, "picture `{index}` does not fit: at most {INDEX_END} can be told apart");
    let (ending, format) = match kind {
        Kind::Png => ("png", ImageFormat::Png),
        Kind::Jpeg => ("jpg", ImageFormat::Jpeg),
    };
    let path = folder.join(format!("{index:08}.{ending}"));
    save(&picture(index, width, height), &path, format)?;
    Ok(path)
}

/// Writes picture `index`, 32 by 32 pixels, as a PNG whose first pixel springs `trap` in the models behind the trap operator. Only pixels
/// that arrive as they are do so: row size 32 by 32, raw values 0 to 255.
pub fn write_trap_picture(folder: &Path, index: u64, trap: Trap) -> anyhow::Result<PathBuf> {
    let mut pixels = picture(index, 32, 32);
    pixels.put_pixel(0, 0, Luma([trap.value()]));
    let path = folder.join(format!("{index:08}.png"));
    save(&pixels, &path, ImageFormat::Png)?;
    Ok(path)
}

/// Writes picture `index` without anything in it, in colour and square, which is a small file however large the picture.
pub fn write_blank_picture(folder: &Path, index: u64, side: u32) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("{index:08}.png"));
    let pixels = image::RgbImage::new(side, side);
    pixels
        .save_with_format(&path, ImageFormat::Png)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path)
}

/// Writes files that look like pictures by name and are none: empty, text, a truncated PNG, a truncated JPEG and a PNG with a damaged
/// chunk. Their names start with `bad-`. None of them decodes.
pub fn write_bad_pictures(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    let good = |kind| -> anyhow::Result<Vec<u8>> {
        let path = write_picture(folder, INDEX_END - 1, 64, 64, kind)?;
        let bytes = fs::read(&path)?;
        fs::remove_file(&path)?;
        Ok(bytes)
    };
    let (png, jpeg) = (good(Kind::Png)?, good(Kind::Jpeg)?);
    let mut damaged = png.clone();
    // In the first chunk's header fields, whose checksum then fails.
    damaged[17] ^= 0xff;
    let files: [(&str, &[u8]); 5] = [
        ("bad-empty.png", b""),
        ("bad-text.jpg", b"this is a text file, whatever its name says\n"),
        ("bad-truncated.png", &png[..png.len() / 2]),
        // Inside the tables, before any pixel: half a JPEG beyond them is a picture with a gray lower half to most decoders.
        ("bad-truncated.jpg", &jpeg[..100]),
        ("bad-damaged.png", &damaged),
    ];
    files
        .iter()
        .map(|(name, bytes)| {
            let path = folder.join(name);
            fs::write(&path, bytes).with_context(|| format!("cannot write `{}`", path.display()))?;
            Ok(path)
        })
        .collect()
}

fn save(pixels: &GrayImage, path: &Path, format: ImageFormat) -> anyhow::Result<()> {
    pixels.save_with_format(path, format).with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_picture_of_ours_has_no_index() {
        assert_eq!(index_of_blocks(&[]), None);
        assert_eq!(index_of_blocks(&[5.0; BLOCKS]), None);
        assert_eq!(index_of_blocks(&[f32::NAN; BLOCKS]), None);
        let mut gray = vec![0.5; BLOCKS];
        (gray[0], gray[BLOCKS - 1]) = (0.0, 1.0);
        assert_eq!(index_of_blocks(&gray), None);
    }
}
