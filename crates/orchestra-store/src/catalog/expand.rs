//! Files that hold many items each.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::ListError;

/// Takes the items of a file: what comes behind the name of the file, and the locator.
pub type PushItem<'a> = &'a mut dyn FnMut(&str, &[u8]) -> Result<(), ListError>;

/// Makes items of the files that a source names, where a file is not one item.
pub trait Expand: fmt::Debug + Send + Sync {
    /// Names the items of `file`, always in the same order. `file` is empty for [`super::ListingSpec::Generated`]. A locator holds no
    /// NUL, and is shorter than a mebibyte.
    ///
    /// # Errors
    /// The file cannot be read, or is none of this kind; and those of `push`.
    fn expand(&self, file: &Path, push: PushItem<'_>) -> Result<(), ListError>;

    /// The file of a locator that it gave: what comes before the last `#`.
    fn file_of<'a>(&self, locator: &'a Path) -> &'a Path {
        let bytes = locator.as_os_str().as_bytes();
        let end = bytes.iter().rposition(|byte| *byte == b'#').unwrap_or(bytes.len());
        Path::new(OsStr::from_bytes(&bytes[..end]))
    }
}
