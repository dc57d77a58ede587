//! Which decoder JPEG files go through: libjpeg-turbo where its library is on the machine, else the pure Rust one. It decodes nothing.
//!
//! The choice is made once per process. Both decoders accept the same intact files; their pixels differ a little (chroma
//! interpolation), so a run that must give the same pixels on unlike machines names one in `ORCHESTRA_JPEG`.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use thiserror::Error;

use crate::turbojpeg::{self, TurboApi};

/// The environment variable that names a decoder.
pub const JPEG_VARIABLE: &str = "ORCHESTRA_JPEG";

/// A decoder of JPEG files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JpegDecoder {
    /// The C library with hand-written SIMD, loaded at run time.
    LibjpegTurbo,
    /// zune-jpeg: always there.
    Rust,
}

impl JpegDecoder {
    /// The word for it in `ORCHESTRA_JPEG`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JpegDecoder::LibjpegTurbo => "libjpeg-turbo",
            JpegDecoder::Rust => "rust",
        }
    }
}

/// The decoder of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JpegBackend {
    /// Which.
    pub decoder: JpegDecoder,
    /// `TurboJPEG 2`, `TurboJPEG 3` (generations of the library's interface) or `zune-jpeg`.
    pub version: &'static str,
    /// Where the library was found, links followed; none for the Rust decoder.
    pub library: Option<PathBuf>,
    /// Why libjpeg-turbo is not used although it was not ruled out; none where it is used or was ruled out.
    pub missing: Option<String>,
}

impl fmt::Display for JpegBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.decoder.name(), self.version)?;
        if let Some(library) = &self.library {
            write!(f, ", {}", library.display())?;
        }
        f.write_str(")")
    }
}

/// Why no decoder can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JpegBackendError {
    /// The variable holds a word that is none of the two.
    #[error(
        "{JPEG_VARIABLE} is `{value}`, expected `libjpeg-turbo` or `rust`, or nothing for the best there is"
    )]
    Unknown {
        /// What it holds.
        value: String,
    },
    /// libjpeg-turbo is asked for and is not there.
    #[error(
        "{JPEG_VARIABLE} asks for `libjpeg-turbo`, which cannot be used: {why}; install it (Debian and Ubuntu: \
         `apt install libturbojpeg0`, Fedora: `dnf install turbojpeg`) or set `rust`"
    )]
    Missing {
        /// What the loader says.
        why: String,
    },
}

/// The decoder of this process: the one that `ORCHESTRA_JPEG` names, else libjpeg-turbo where it can be loaded, else the
/// Rust one. The first call decides; a program calls it when it starts, so that a wrong variable is no surprise later.
///
/// # Errors
/// The variable holds an unknown word, or names libjpeg-turbo and it is not there. A `Preparer` made nonetheless uses the
/// Rust decoder.
pub fn jpeg_backend() -> Result<&'static JpegBackend, JpegBackendError> {
    static CHOICE: OnceLock<Result<JpegBackend, JpegBackendError>> = OnceLock::new();
    let choice = CHOICE.get_or_init(|| {
        let asked = std::env::var_os(JPEG_VARIABLE).unwrap_or_default();
        choose(&asked.to_string_lossy(), turbojpeg::api().as_ref())
    });
    choice.as_ref().map_err(JpegBackendError::clone)
}

/// Decides, given what the variable holds and what loading the library came to.
fn choose(asked: &str, library: Result<&TurboApi, &String>) -> Result<JpegBackend, JpegBackendError> {
    let rust =
        |missing| JpegBackend { decoder: JpegDecoder::Rust, version: "zune-jpeg", library: None, missing };
    match (asked, library) {
        ("rust", _) => Ok(rust(None)),
        ("" | "libjpeg-turbo", Ok(api)) => Ok(JpegBackend {
            decoder: JpegDecoder::LibjpegTurbo,
            version: api.version(),
            library: api.path(),
            missing: None,
        }),
        ("", Err(why)) => Ok(rust(Some(why.clone()))),
        ("libjpeg-turbo", Err(why)) => Err(JpegBackendError::Missing { why: why.clone() }),
        (other, _) => Err(JpegBackendError::Unknown { value: other.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_rust_decodes_and_says_why() {
        let why = "no such file".to_owned();
        let chosen = choose("", Err(&why)).unwrap();
        assert_eq!((chosen.decoder, chosen.missing.as_deref()), (JpegDecoder::Rust, Some("no such file")));
        assert_eq!(chosen.to_string(), "rust (zune-jpeg)");
        let error = choose("libjpeg-turbo", Err(&why)).unwrap_err().to_string();
        assert!(error.contains("no such file") && error.contains("libturbojpeg0"), "{error}");
    }

    #[test]
    fn an_unknown_word_is_an_error_with_or_without_the_library() {
        for library in [Err(&String::new()), turbojpeg::api().as_ref()] {
            let error = choose("mozjpeg", library).unwrap_err().to_string();
            assert!(error.contains("`mozjpeg`") && error.contains("`libjpeg-turbo` or `rust`"), "{error}");
            assert_eq!(choose("rust", library).unwrap().decoder, JpegDecoder::Rust);
        }
    }
}
