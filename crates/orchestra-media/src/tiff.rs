//! Decodes TIFF a row of strips or tiles at a time: whole into a buffer, or into a picture of fewer lines. What pixels mean is in `layout`, what becomes
//! of them in `samples`. Only the `tiff` crate unpacks samples, of one strip or tile after the other.

use std::borrow::Cow;
use std::io::ErrorKind;

use orchestra_core::ImageSpec;
use tiff::TiffError;
use tiff::decoder::{Decoder, Limits};

use crate::directory::Directories;
use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg;
use crate::lowering::Lowered;
use crate::orientation::Orientation;
use crate::pages::Pages;
use crate::picture::{PictureInfo, PixelKind, check_size, most_memory, room_for};
use crate::samples::drop_opaque_alpha;

mod layout;
mod samples;
mod strip_file;

use layout::{ChunkCoding, Coding, PageLayout, TIFFCP, unsupported};
use strip_file::StripFile;

const FORMAT: Format = Format::Tiff;
const XMP: u16 = 700;

/// Decodes a page of `bytes`, the first or another, into `pixels`; or, for rows of `specs`, into a picture of fewer lines, if all of it would take more than
/// `whole_bytes`.
pub(crate) fn decode(
    bytes: &[u8],
    (pages, page): (&Pages, usize),
    max_pixels: u64,
    (specs, whole_bytes): (&[&ImageSpec], usize),
    pixels: &mut Vec<u8>,
) -> Result<(PictureInfo, Option<Lowered>), MediaError> {
    let Some(directories) = Directories::of(bytes) else {
        return Err(MediaError::Broken { format: FORMAT, reason: "its header is none".to_owned() });
    };
    let directory = pages.at.get(page).and_then(|at| directories.directory(*at));
    let directory = &directory.ok_or_else(|| MediaError::Broken {
        format: FORMAT,
        reason: format!("it has {} pages, page {} is wanted", pages.count(), page + 1),
    })?;
    directory.check_claims()?;
    let layout = PageLayout::of(directory)?;
    let (width, height) = (layout.width, layout.height);
    check_size(FORMAT, width, height, max_pixels)?;
    layout.check_stack(directory, bytes.len(), pages.count() - page)?;
    let turn = Orientation::of(directory).or_else(|| Orientation::in_xmp(directory.bytes(XMP)?));
    let info =
        PictureInfo::full(width, height, layout.kind(), turn.unwrap_or_default()).one_of(pages.n_pictures);
    let mut bands = Bands::new((bytes, directories), &layout, max_pixels)?;
    let line = layout.packed_bytes(width as usize, layout.samples);
    let length = line.saturating_mul(height as usize);
    // A row of strips and one strip are in memory.
    let is_in_parts = length > whole_bytes && line.saturating_mul(bands.height() as usize) <= length / 4;
    if is_in_parts && let Some(mut lowered) = Lowered::for_rows(specs, &info, length / 2) {
        let mut line = Vec::new();
        bands.each_line(&mut |samples| {
            line.clear();
            layout.append_pixels(samples, &mut line);
            lowered.take(&line);
        })?;
        let kind = lowered.kind();
        return Ok((PictureInfo { kind, ..info }, Some(lowered)));
    }
    let length = width as usize * height as usize * info.kind.channels();
    pixels.clear();
    room_for(FORMAT, (width, height), pixels, length)?;
    pixels.clear();
    bands.each_line(&mut |samples| layout.append_pixels(samples, pixels))?;
    let kind = match info.kind {
        PixelKind::Rgba if drop_opaque_alpha(pixels, 4) == 3 => PixelKind::Rgb,
        kind => kind,
    };
    Ok((PictureInfo { kind, ..info }, None))
}

/// Reads rows of strips or tiles.
struct Bands<'a> {
    file: (&'a [u8], Directories<'a>),
    layout: &'a PageLayout,
    max_pixels: u64,
    /// Strips or tiles from left to right, and of a plane.
    across: u32,
    per_plane: u32,
    /// The samples of a row of strips or tiles, one byte each.
    band: Vec<u8>,
    /// Of one of them, as it was unpacked.
    chunk: Vec<u8>,
}

impl<'a> Bands<'a> {
    fn new(
        file: (&'a [u8], Directories<'a>),
        layout: &'a PageLayout,
        max_pixels: u64,
    ) -> Result<Bands<'a>, MediaError> {
        let across = layout.width.div_ceil(layout.chunk.0);
        let per_plane = u64::from(across) * u64::from(layout.height.div_ceil(layout.chunk.1));
        let n_planes = if layout.is_planar { layout.samples as u64 } else { 1 };
        if layout.chunks.len() as u64 != per_plane * n_planes {
            let what =
                format!("it has {} strips or tiles, expected {}", layout.chunks.len(), per_plane * n_planes);
            return Err(unsupported(what, TIFFCP));
        }
        // There are as many as the file has bytes, at most.
        let per_plane = per_plane as u32;
        Ok(Bands { file, layout, max_pixels, across, per_plane, band: Vec::new(), chunk: Vec::new() })
    }

    /// Lines of a row of strips or tiles.
    fn height(&self) -> u32 {
        self.layout.chunk.1.min(self.layout.height)
    }

    /// Gives line after line, from the top on: one byte for each sample of each pixel.
    fn each_line(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<(), MediaError> {
        let PageLayout { width, height, samples, is_planar, .. } = *self.layout;
        let line = width as usize * samples;
        let in_memory = line.saturating_mul(self.height() as usize);
        let packed = self.layout.packed_bytes(width as usize, samples).saturating_mul(self.height() as usize);
        if in_memory.saturating_add(packed) as u64 > most_memory(self.max_pixels) {
            let reason = format!("{} lines of it take {} MiB", self.height(), (in_memory + packed) >> 20);
            return Err(MediaError::TooMuchMemory { format: FORMAT, max_pixels: self.max_pixels, reason });
        }
        room_for(FORMAT, (width, self.height()), &mut self.band, in_memory)?;
        for (down, first) in (0..height).step_by(self.height() as usize).enumerate() {
            let n_lines = self.height().min(height - first) as usize;
            for column in 0..self.across {
                let index = down as u32 * self.across + column;
                for plane in 0..if is_planar { samples as u32 } else { 1 } {
                    self.place(index + plane * self.per_plane, column, plane as usize, n_lines)?;
                }
            }
            self.band.chunks_exact(line).take(n_lines).for_each(&mut *take);
        }
        Ok(())
    }

    /// Unpacks a strip or tile, and lays its samples where they belong in the row of them.
    fn place(&mut self, index: u32, column: u32, plane: usize, n_lines: usize) -> Result<(), MediaError> {
        let layout = self.layout;
        let (in_chunk, step) = if layout.is_planar { (1, layout.samples) } else { (layout.samples, 1) };
        let left = column * layout.chunk.0;
        let part = layout.chunk.0.min(layout.width - left) as usize;
        let stride = self.unpack(index, in_chunk, n_lines)?;
        let used = layout.packed_bytes(part, in_chunk);
        let line = layout.width as usize * layout.samples;
        let begin = left as usize * layout.samples + plane;
        let end = (left as usize + part) * layout.samples;
        for (packed, line) in
            self.chunk.chunks_exact(stride).zip(self.band.chunks_exact_mut(line)).take(n_lines)
        {
            layout.widen(&packed[..used], &mut line[begin..end], step)?;
        }
        Ok(())
    }

    /// Unpacks `n_lines` lines at least, of pixels with `in_chunk` samples. Gives the bytes from one line to the next.
    fn unpack(&mut self, index: u32, in_chunk: usize, n_lines: usize) -> Result<usize, MediaError> {
        let (at, length) = self.layout.chunks[index as usize];
        let (bytes, _) = self.file;
        let begin = usize::try_from(at).ok().filter(|at| *at < bytes.len());
        let begin = begin
            .ok_or(MediaError::Truncated { format: FORMAT, what: "a strip or tile lies behind its end" })?;
        let end = usize::try_from(length).map_or(usize::MAX, |length| begin.saturating_add(length));
        let packed = &bytes[begin..end.min(bytes.len())];
        let stride = self.layout.packed_bytes(self.layout.chunk.0 as usize, in_chunk);
        match &self.layout.packing {
            ChunkCoding::Samples(coding) => {
                let length = stride.saturating_mul(n_lines);
                // The file goes on: its end is not what is missing.
                if coding.compression == Coding::NONE && packed.len() < length && end <= bytes.len() {
                    let what = format!("a strip or tile has {} bytes, expected {length}", packed.len());
                    return Err(unsupported(what, TIFFCP));
                }
                // A tile may be larger than its picture.
                if length as u64 > most_memory(self.max_pixels) {
                    let reason = format!("{n_lines} lines of a tile take {} MiB", length >> 20);
                    return Err(MediaError::TooMuchMemory {
                        format: FORMAT,
                        max_pixels: self.max_pixels,
                        reason,
                    });
                }
                room_for(FORMAT, (self.layout.chunk.0, n_lines as u32), &mut self.chunk, length)?;
                let (layout, directories) = (self.layout, self.file.1);
                let strip = StripFile::new(packed, directories, (layout, *coding), (in_chunk, n_lines));
                unpack_samples(strip, self.max_pixels, &mut self.chunk).map_err(|error| match error {
                    MediaError::Broken { .. } if coding.compression == Coding::GROUP_4 => {
                        let what = "its CCITT Group 4 (fax) is damaged, or has codes that are not read";
                        unsupported(what.to_owned(), TIFFCP)
                    }
                    error => error,
                })?;
                Ok(stride)
            }
            ChunkCoding::Jpeg { tables, is_luma } => {
                let samples =
                    if *is_luma { jpeg::ColorTransform::FromLuma } else { jpeg::ColorTransform::Stored };
                let (tables, in_chunk) = ((&tables[..], samples), (in_chunk, n_lines));
                unpack_jpeg(packed, tables, self.layout.chunk, in_chunk, self.max_pixels, &mut self.chunk)
            }
        }
    }
}

fn unpack_samples(strip: StripFile<'_>, max_pixels: u64, samples: &mut [u8]) -> Result<(), MediaError> {
    let mut limits = Limits::default();
    limits.intermediate_buffer_size = usize::try_from(most_memory(max_pixels)).unwrap_or(usize::MAX);
    limits.decoding_buffer_size = limits.intermediate_buffer_size;
    let sorted = |error| sort(error, max_pixels);
    let mut decoder = Decoder::new(strip).map_err(sorted)?.with_limits(limits);
    decoder.read_chunk_bytes(0, samples).map_err(sorted)
}

/// Gives the bytes from one line to the next.
fn unpack_jpeg(
    packed: &[u8],
    (tables, samples): (&[u8], jpeg::ColorTransform),
    (width, height): (u32, u32),
    (in_chunk, n_lines): (usize, usize),
    max_pixels: u64,
    chunk: &mut Vec<u8>,
) -> Result<usize, MediaError> {
    // Many strips may be the same bytes: all of them together take no more than the picture.
    let most = max_pixels.min(u64::from(width) * u64::from(height));
    let decoded = jpeg::decode_chunk(&with_tables(packed, tables), most, samples, chunk);
    let (size, found) = decoded.map_err(|error| match error.within(FORMAT) {
        MediaError::TooLarge { width: found, height: lines, .. } if most < max_pixels => {
            let reason = format!("a strip or tile of {width}x{height} pixels is a JPEG of {found}x{lines}");
            MediaError::Broken { format: FORMAT, reason }
        }
        error => error,
    })?;
    if found != in_chunk || size.width < width {
        let reason = format!(
            "a strip or tile is a JPEG of {} pixels a line with {found} samples, expected {width} with {in_chunk}",
            size.width
        );
        return Err(MediaError::Broken { format: FORMAT, reason });
    }
    if (size.height as usize) < n_lines {
        return Err(MediaError::Truncated { format: FORMAT, what: "a strip or tile lacks lines" });
    }
    Ok(size.width as usize * found)
}

/// A strip or tile with the tables that all share: a file with its end behind its begin, of which those in the middle are left out.
fn with_tables<'a>(chunk: &'a [u8], tables: &[u8]) -> Cow<'a, [u8]> {
    match (tables.strip_suffix(b"\xff\xd9"), chunk.strip_prefix(b"\xff\xd8")) {
        (Some(tables), Some(rest)) => [tables, rest].concat().into(),
        _ => chunk.into(),
    }
}

/// The decoder's error as one of ours.
fn sort(error: TiffError, max_pixels: u64) -> MediaError {
    match error {
        TiffError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            MediaError::Truncated { format: FORMAT, what: "it ends inside the picture" }
        }
        TiffError::LimitsExceeded => {
            MediaError::TooMuchMemory { format: FORMAT, max_pixels, reason: error.to_string() }
        }
        TiffError::UnsupportedError(_) | TiffError::IntSizeError => {
            unsupported(format!("its pixels are packed in a way that is not read: {error}"), TIFFCP)
        }
        other => MediaError::Broken { format: FORMAT, reason: other.to_string() },
    }
}
