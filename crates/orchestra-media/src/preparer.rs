//! The public face: decodes one picture and writes rows of it, with memory that is reused. The work is done in other modules.

use std::panic::{AssertUnwindSafe, catch_unwind};

use orchestra_core::ImageSpec;

use crate::error::MediaError;
use crate::flatten::Flattened;
use crate::format::Format;
use crate::geometry::fitted_part;
use crate::lowering::Lowered;
use crate::pages::Pages;
use crate::picture::{PictureInfo, PictureSize};
use crate::raster;
use crate::resample::Resampler;
use crate::row_spec::RowSpec;
use crate::row_writer::{self, AlignedRow};

/// Memory of a buffer that is kept from picture to picture. More, taken for one huge picture, is given back with the next:
/// a run over a million items may not grow by its largest picture times its threads for good.
const KEEP_BYTES: usize = 128 << 20;

/// Turns files into rows. One per thread: its buffers are reused. What a decoder needs inside, such as the planes of a JPEG, it takes for each file.
#[derive(Debug)]
pub struct Preparer {
    whole_bytes: usize,
    pub(crate) pixels: Vec<u8>,
    pub(crate) picture: Option<PictureInfo>,
    /// In the place of `pixels`.
    pub(crate) lowered: Option<Lowered>,
    flattened: Flattened,
    resampler: Resampler,
    aligned: AlignedRow,
}

impl Default for Preparer {
    fn default() -> Preparer {
        Preparer::with_whole_bytes(KEEP_BYTES)
    }
}

impl Preparer {
    pub fn new() -> Preparer {
        Preparer::default()
    }

    /// Of what takes more than `whole_bytes` decoded, [`Preparer::decode_for`] keeps no more than its rows need, if the format is read line by
    /// line. The rows are the same.
    pub fn with_whole_bytes(whole_bytes: usize) -> Preparer {
        Preparer {
            whole_bytes,
            pixels: Vec::new(),
            picture: None,
            lowered: None,
            flattened: Flattened::default(),
            resampler: Resampler::default(),
            aligned: AlignedRow::default(),
        }
    }

    /// Decodes the file `bytes`, whose format is told by its content, and keeps the picture for `write_row`. Returns its
    /// size in pixels with EXIF orientation applied. Of an animation it is the first frame.
    ///
    /// # Errors
    /// Of kind `TooLarge` when the header claims more than `max_pixels` pixels (nothing is allocated then), of kind `Decode`
    /// for an empty, unknown, damaged or truncated file. After an error there is no picture.
    pub fn decode(&mut self, bytes: &[u8], max_pixels: u64) -> Result<PictureSize, MediaError> {
        self.decode_for(bytes, max_pixels, &[])
    }

    /// As `decode`, for rows of `specs` and no others: if all of them say `fast`, a JPEG that is much larger than they are is decoded to a
    /// half, a quarter or an eighth of its sides. A PNG that is not interlaced, or a TIFF in strips or tiles, that takes more than 128 MiB is brought to the height of
    /// its rows while it is decoded, if they are made of the same pixels. The size returned is that of the file nevertheless.
    pub fn decode_for(
        &mut self,
        bytes: &[u8],
        max_pixels: u64,
        specs: &[&ImageSpec],
    ) -> Result<PictureSize, MediaError> {
        self.picture = None;
        self.decode_page(bytes, (&Pages::of(bytes)?, 0), max_pixels, specs)
    }

    /// As `decode_for`, of a page of the file, from 0.
    pub fn decode_page(
        &mut self,
        bytes: &[u8],
        page: (&Pages, usize),
        max_pixels: u64,
        specs: &[&ImageSpec],
    ) -> Result<PictureSize, MediaError> {
        self.picture = None;
        self.release_excess();
        let format = Format::of(bytes).ok_or_else(|| MediaError::no_picture(bytes))?;
        let pixels = &mut self.pixels;
        let purpose = (specs, self.whole_bytes);
        // Decoders are other people's code and files may be made to break them. Their panic is the end of this item only.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            raster::decode(format, (bytes, page), max_pixels, purpose, pixels)
        }));
        match outcome {
            Ok(decoded) => {
                let (info, lowered) = decoded?;
                (self.picture, self.lowered) = (Some(info), lowered);
                Ok(info.shown_size())
            }
            Err(_) => {
                self.pixels = Vec::new();
                Err(MediaError::from_panic(format))
            }
        }
    }

    /// Writes the decoded picture as one row of `spec`; `row` is `spec.tensor().row_bytes()` bytes long and of any alignment,
    /// though the natural one of the element type is faster. Each value is written once and none is read, so the row may
    /// hold anything before. May be called any number of times after a `decode`, with the same spec or others.
    ///
    /// `spec.max_pixels` is not looked at: the picture is decoded.
    ///
    /// # Errors
    /// When nothing is decoded, or only for rows of other specs, when `row` has another length, or when `spec` is none that a plan would let pass. The row
    /// holds nothing of use then.
    pub fn write_row(&mut self, spec: &ImageSpec, row: &mut [u8]) -> Result<(), MediaError> {
        let info = self.picture.ok_or(MediaError::NothingDecoded)?;
        let row_spec = RowSpec::new(spec, row.len())?;
        let fitted = fitted_part(spec.fit, spec.shorter, spec.size, info.shown_size());
        let part = match &self.lowered {
            Some(lowered) if lowered.is_for(spec) => {
                let source = lowered.view().ok_or(MediaError::NothingDecoded)?;
                self.resampler.fit_width(source, &info, &fitted, spec.filter)
            }
            Some(_) => return Err(MediaError::NothingDecoded),
            None => {
                let source = self.flattened.view(&info, &self.pixels, &row_spec);
                self.resampler.fit(source, &info, &fitted, spec.filter)
            }
        };
        row_writer::write(&row_spec, part, fitted.dest, row, &mut self.aligned);
        Ok(())
    }

    /// Gives back what the last picture took beyond what is kept, and forgets what was made of it.
    pub(crate) fn release_excess(&mut self) {
        self.lowered = None;
        if self.pixels.capacity() > KEEP_BYTES {
            self.pixels = Vec::new();
        }
        self.flattened.forget(KEEP_BYTES);
        self.resampler.shrink(KEEP_BYTES);
    }
}
