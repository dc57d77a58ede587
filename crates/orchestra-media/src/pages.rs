//! Where the pictures of a file are, found once for all of them. Decodes none.

use crate::containers::n_behind;
use crate::directory::Directories;
use crate::error::MediaError;
use crate::format::Format;

/// The pages of a file, each a picture: of a TIFF those that are no smaller copies or masks of others, of any other format one.
#[derive(Debug, Clone)]
pub struct Pages {
    /// The place of each directory of a TIFF.
    pub(crate) at: Vec<u64>,
    /// With those that lie behind all that the directories name.
    pub(crate) n_pictures: u32,
}

impl Pages {
    /// Those of the file `bytes`.
    ///
    /// # Errors
    /// It is no picture, or its directories are not whole.
    pub fn of(bytes: &[u8]) -> Result<Pages, MediaError> {
        let format = Format::of(bytes).ok_or_else(|| MediaError::no_picture(bytes))?;
        let (Format::Tiff, Some(directories)) = (format, Directories::of(bytes)) else {
            return Ok(Pages { at: vec![0], n_pictures: 1 });
        };
        let at: Vec<u64> = directories.pages()?.iter().map(|page| page.at).collect();
        let n = u32::try_from(at.len()).unwrap_or(u32::MAX);
        Ok(Pages { at, n_pictures: n.saturating_add(n_behind(bytes, directories.end())) })
    }

    pub fn count(&self) -> usize {
        self.at.len()
    }
}
