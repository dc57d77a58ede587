//! Every way in which an image can fail to become a row. It holds no pixels and decides nothing.

use std::error::Error;
use std::io;

use orchestra_core::FailureKind;
use thiserror::Error;

use crate::format::Format;

/// Bytes quoted when a signature is not known.
const QUOTED_BYTES: usize = 12;

/// Why an image did not become a row. The text is a lowercase fragment to be put behind the item's name. Sizes are in pixels, as the header
/// claims them, before orientation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MediaError {
    #[error("the file is empty, expected a {}", Format::LIST)]
    Empty,
    #[error("starts with `{start}`, expected a {}; convert it, or get it again", Format::LIST)]
    UnknownFormat {
        /// The first bytes, printable ones as they are, others as `\xNN`.
        start: String,
    },
    #[error("the {format} file is cut off: {what}; copy or download it again")]
    Truncated { format: Format, what: &'static str },
    #[error("the {format} file cannot be decoded: {reason}")]
    Broken { format: Format, reason: String },
    /// The file may be whole; this program does not read its kind.
    #[error("the {format} file is not read: {what}; convert it, such as with `{convert}`")]
    Unsupported { format: Format, what: String, convert: &'static str },
    /// The header claims more pixels than allowed. No memory was taken.
    #[error(
        "the {format} header claims {width}x{height} = {pixels} pixels, at most `max_pixels = {max_pixels}` are \
         allowed; raise the limit if the picture is genuine",
        pixels = u64::from(*.width) * u64::from(*.height)
    )]
    TooLarge { format: Format, width: u32, height: u32, max_pixels: u64 },
    /// What is cut out of a picture and around it has more pixels than a picture may have.
    #[error(
        "a box of {width}x{height} pixels is larger than `max_pixels = {max_pixels}` allows; raise the limit, or leave out what is outside of the picture"
    )]
    CutTooLarge { width: u32, height: u32, max_pixels: u64 },
    /// One side is longer than any resampling table here.
    #[error("the {format} header claims {width}x{height} pixels, at most {max_side} are allowed on a side")]
    TooLong { format: Format, width: u32, height: u32, max_side: u32 },
    /// The decoder would have needed more memory than the pixel limit leaves it.
    #[error(
        "the {format} file needs more memory to decode than `max_pixels = {max_pixels}` allows: {reason}"
    )]
    TooMuchMemory { format: Format, max_pixels: u64, reason: String },
    /// There was no memory, whatever the limit says.
    #[error("the {format} file needs more memory to decode than there is: {reason}")]
    NoMemory { format: Format, reason: String },
    #[error("no picture is decoded, expected a successful `decode` before `write_row`")]
    NothingDecoded,
    #[error("the row has {found} bytes, expected {expected} for an image of this spec")]
    RowLength { expected: usize, found: usize },
    /// The spec contradicts itself. The plan checks specs, so a workflow file cannot cause this.
    #[error("the image spec cannot be used: {what}")]
    BadSpec { what: String },
}

impl MediaError {
    /// No format begins like these bytes.
    pub(crate) fn no_picture(bytes: &[u8]) -> MediaError {
        if bytes.is_empty() {
            return MediaError::Empty;
        }
        let start = &bytes[..bytes.len().min(QUOTED_BYTES)];
        MediaError::UnknownFormat { start: start.escape_ascii().to_string() }
    }

    /// What the failure of this item is called in `failures.jsonl`: `TooLarge` for every size limit, `OutOfMemory` where there was none, else `Decode`.
    pub fn kind(&self) -> FailureKind {
        match self {
            MediaError::TooLarge { .. }
            | MediaError::TooLong { .. }
            | MediaError::CutTooLarge { .. }
            | MediaError::TooMuchMemory { .. } => FailureKind::TooLarge,
            MediaError::NoMemory { .. } => FailureKind::OutOfMemory,
            MediaError::Empty
            | MediaError::UnknownFormat { .. }
            | MediaError::Truncated { .. }
            | MediaError::Broken { .. }
            | MediaError::Unsupported { .. }
            | MediaError::NothingDecoded
            | MediaError::RowLength { .. }
            | MediaError::BadSpec { .. } => FailureKind::Decode,
        }
    }

    /// Sorts an error of the `image` crate into ours.
    pub(crate) fn from_image(format: Format, max_pixels: u64, error: &image::ImageError) -> MediaError {
        if let image::ImageError::Limits(limit) = error {
            return MediaError::TooMuchMemory { format, max_pixels, reason: limit.to_string() };
        }
        let mut innermost: &(dyn Error + 'static) = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        let stopped = |e: &io::Error| e.kind() == io::ErrorKind::UnexpectedEof;
        let cut = innermost.downcast_ref().is_some_and(stopped)
            || matches!(error, image::ImageError::IoError(e) if stopped(e));
        let reason = innermost.to_string();
        // The words of the GIF decoder.
        if cut || matches!(&*reason, "Unexpected End of File" | "image truncated") {
            return MediaError::Truncated { format, what: "it ends inside the picture" };
        }
        MediaError::Broken { format, reason }
    }

    /// The same error of a file of `format` in which a picture of another format lies.
    pub(crate) fn within(mut self, outer: Format) -> MediaError {
        match &mut self {
            MediaError::Truncated { format, .. }
            | MediaError::Broken { format, .. }
            | MediaError::Unsupported { format, .. }
            | MediaError::TooLarge { format, .. }
            | MediaError::TooLong { format, .. }
            | MediaError::TooMuchMemory { format, .. }
            | MediaError::NoMemory { format, .. } => *format = outer,
            MediaError::Empty
            | MediaError::UnknownFormat { .. }
            | MediaError::CutTooLarge { .. }
            | MediaError::NothingDecoded
            | MediaError::RowLength { .. }
            | MediaError::BadSpec { .. } => {}
        }
        self
    }

    /// A decoder's panic as an error of the file. What it says is for those who know the decoder, and stands in the log.
    pub(crate) fn from_panic(format: Format) -> MediaError {
        MediaError::Unsupported {
            format,
            what: "its decoder stopped at something that it does not expect".to_owned(),
            convert: "magick IN OUT.png",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_file_is_quoted_by_its_start() {
        let text = MediaError::no_picture(b"hello world, this is no picture").to_string();
        assert_eq!(
            text,
            "starts with `hello world,`, expected a JPEG, PNG, WebP, BMP, TIFF or GIF file; convert it, or get it again"
        );
        let text = MediaError::no_picture(&[0, 1, 0x80]).to_string();
        assert!(text.starts_with(r"starts with `\x00\x01\x80`"), "{text}");
        assert!(MediaError::no_picture(&[]).to_string().contains("empty"));
    }
}
