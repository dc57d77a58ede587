//! Decodes TIFF a row of strips or tiles at a time: whole into a buffer, or into a picture of fewer lines. What pixels mean is in `layout`, what becomes
//! of them in `samples`. Only the `tiff` crate unpacks samples; it is told that all of them are gray, whatever they mean.

use std::borrow::Cow;
use std::io::{self, Cursor, ErrorKind, Read, Seek, SeekFrom};

use orchestra_core::ImageSpec;
use tiff::TiffError;
use tiff::decoder::{Decoder, Limits};

use crate::directory::{Directories, Directory};
use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg;
use crate::lowering::Lowered;
use crate::orientation::Orientation;
use crate::picture::{PictureInfo, PixelKind, check_size, most_memory, room_for};
use crate::raster::drop_opaque_alpha;

mod layout;
mod samples;

use layout::{PHOTOMETRIC, Packing, PageLayout, ROWS_PER_STRIP};

const FORMAT: Format = Format::Tiff;
/// The number of gray in `PHOTOMETRIC`.
const GRAY: u64 = 1;

/// Decodes a page of `bytes`, the first or another, into `pixels`; or, for rows of `specs`, into a picture of fewer lines, if all of it would take more than
/// `whole_bytes`.
pub(crate) fn decode(
    bytes: &[u8],
    page: usize,
    max_pixels: u64,
    (specs, whole_bytes): (&[&ImageSpec], usize),
    pixels: &mut Vec<u8>,
) -> Result<(PictureInfo, Option<Lowered>), MediaError> {
    let Some(directories) = Directories::of(bytes) else {
        return Err(MediaError::Broken { format: FORMAT, reason: "its header is none".to_owned() });
    };
    let pages = directories.pages()?;
    let directory = pages.get(page).ok_or_else(|| MediaError::Broken {
        format: FORMAT,
        reason: format!("it has {} pages, page {} is wanted", pages.len(), page + 1),
    })?;
    directory.check_claims()?;
    let layout = PageLayout::of(directory)?;
    let (width, height) = (layout.width, layout.height);
    check_size(FORMAT, width, height, max_pixels)?;
    let info = PictureInfo::full(width, height, layout.kind(), Orientation::of(directory))
        .one_of(u32::try_from(pages.len()).unwrap_or(u32::MAX));
    let mut bands = Bands::new(bytes, directories, directory, &layout, max_pixels)?;
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
    layout: &'a PageLayout,
    max_pixels: u64,
    /// Strips or tiles from left to right, and of a plane.
    across: u32,
    per_plane: u32,
    chunks: Chunks<'a>,
    /// The samples of a row of strips or tiles, one byte each.
    band: Vec<u8>,
    /// Of one of them, as it was unpacked.
    chunk: Vec<u8>,
}

/// What unpacks a strip or tile.
enum Chunks<'a> {
    Samples(Box<Decoder<Source<'a>>>),
    Jpeg { bytes: &'a [u8], tables: &'a [u8], samples: jpeg::Samples },
}

impl<'a> Bands<'a> {
    fn new(
        bytes: &'a [u8],
        directories: Directories<'a>,
        directory: &Directory<'_>,
        layout: &'a PageLayout,
        max_pixels: u64,
    ) -> Result<Bands<'a>, MediaError> {
        let across = layout.width.div_ceil(layout.chunk.0);
        let per_plane = u64::from(across) * u64::from(layout.height.div_ceil(layout.chunk.1));
        let n_planes = if layout.is_planar { layout.samples as u64 } else { 1 };
        if layout.chunks.len() as u64 != per_plane * n_planes {
            let reason =
                format!("it has {} strips or tiles, expected {}", layout.chunks.len(), per_plane * n_planes);
            return Err(MediaError::Broken { format: FORMAT, reason });
        }
        let chunks = match &layout.packing {
            Packing::Samples => {
                let mut limits = Limits::default();
                limits.intermediate_buffer_size =
                    usize::try_from(most_memory(max_pixels)).unwrap_or(usize::MAX);
                limits.decoding_buffer_size = limits.intermediate_buffer_size;
                limits.ifd_value_size = limits.intermediate_buffer_size;
                let source = Source::of_page(bytes, directories, directory, layout);
                let decoder = Decoder::new(source).map_err(|error| sort(error, max_pixels))?;
                let mut decoder = decoder.with_limits(limits);
                decoder.inner().is_reversed = layout.is_reversed;
                Chunks::Samples(Box::new(decoder))
            }
            Packing::Jpeg { tables, is_luma } => {
                let samples = if *is_luma { jpeg::Samples::FromLuma } else { jpeg::Samples::Stored };
                Chunks::Jpeg { bytes, tables, samples }
            }
        };
        // There are as many as the file has bytes, at most.
        let per_plane = per_plane as u32;
        Ok(Bands { layout, max_pixels, across, per_plane, chunks, band: Vec::new(), chunk: Vec::new() })
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
        let too_few = || MediaError::Truncated { format: FORMAT, what: "a strip or tile lacks lines" };
        match &mut self.chunks {
            Chunks::Samples(decoder) => {
                let sorted = |error| sort(error, self.max_pixels);
                let length = decoder.image_chunk_buffer_layout(index).map_err(sorted)?.len;
                self.chunk.resize(length, 0);
                decoder.read_chunk_bytes(index, &mut self.chunk).map_err(sorted)?;
                let (width, height) = decoder.chunk_data_dimensions(index);
                let stride = self.layout.packed_bytes(width as usize, in_chunk);
                if (height as usize) < n_lines || length < stride * n_lines {
                    return Err(too_few());
                }
                Ok(stride)
            }
            Chunks::Jpeg { bytes, tables, samples } => {
                let (at, length) = self.layout.chunks[index as usize];
                let whole = whole_jpeg(bytes, (at, length), tables).ok_or(MediaError::Truncated {
                    format: FORMAT,
                    what: "a strip or tile lies behind its end",
                })?;
                let (width, height) = self.layout.chunk;
                // Many strips may be the same bytes: all of them together take no more than the picture.
                let most = self.max_pixels.min(u64::from(width) * u64::from(height));
                let decoded = jpeg::decode_chunk(&whole, most, *samples, &mut self.chunk);
                let (size, found) = decoded.map_err(|error| match error.within(FORMAT) {
                    MediaError::TooLarge { width: found, height: lines, .. } if most < self.max_pixels => {
                        let reason = format!(
                            "a strip or tile of {width}x{height} pixels is a JPEG of {found}x{lines}"
                        );
                        MediaError::Broken { format: FORMAT, reason }
                    }
                    error => error,
                })?;
                if found != in_chunk || size.width < self.layout.chunk.0 {
                    let reason = format!(
                        "a strip or tile is a JPEG of {} pixels a line with {found} samples, expected {} with {in_chunk}",
                        size.width, self.layout.chunk.0
                    );
                    return Err(MediaError::Broken { format: FORMAT, reason });
                }
                if (size.height as usize) < n_lines {
                    return Err(too_few());
                }
                Ok(size.width as usize * found)
            }
        }
    }
}

/// A strip or tile with the tables that all share: a file with its end behind its begin, of which those in the middle are left out.
fn whole_jpeg<'a>(bytes: &'a [u8], (at, length): (u64, u64), tables: &[u8]) -> Option<Cow<'a, [u8]>> {
    let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
    let chunk = bytes.get(at..at.checked_add(length)?)?;
    match (tables.strip_suffix(b"\xff\xd9"), chunk.strip_prefix(b"\xff\xd8")) {
        (Some(tables), Some(rest)) => Some([tables, rest].concat().into()),
        _ => Some(chunk.into()),
    }
}

/// The file as the `tiff` crate shall see it: with one page, whose samples are gray.
struct Source<'a> {
    bytes: Cursor<&'a [u8]>,
    /// Places, and what is read there.
    patches: Vec<(u64, Vec<u8>)>,
    /// The lowest bit of a byte is its first: from then on that directories have been read.
    is_reversed: bool,
}

impl<'a> Source<'a> {
    fn of_page(
        bytes: &'a [u8],
        directories: Directories<'a>,
        directory: &Directory<'_>,
        layout: &PageLayout,
    ) -> Source<'a> {
        let (first, wide) = directories.first_offset();
        let mut patches = vec![
            (first as u64, directories.bytes_of(directory.at, wide)),
            (directory.next_at as u64, vec![0; wide]),
        ];
        for (tag, value) in [(PHOTOMETRIC, GRAY), (ROWS_PER_STRIP, layout.chunk.1.into())] {
            if let Some(entry) = directory.entry(tag) {
                patches.push((entry.at as u64, directories.bytes_of(value, entry.size())));
            }
        }
        Source { bytes: Cursor::new(bytes), patches, is_reversed: false }
    }
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let begin = self.bytes.position();
        let n = self.bytes.read(out)?;
        let out = &mut out[..n];
        if self.is_reversed {
            out.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
            return Ok(n);
        }
        for (at, patch) in &self.patches {
            for (at, byte) in (*at..).zip(patch) {
                let place = at.checked_sub(begin).and_then(|at| usize::try_from(at).ok());
                if let Some(place) = place.and_then(|at| out.get_mut(at)) {
                    *place = *byte;
                }
            }
        }
        Ok(n)
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.bytes.seek(to)
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
        other => MediaError::Broken { format: FORMAT, reason: other.to_string() },
    }
}
