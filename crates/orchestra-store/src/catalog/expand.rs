//! Files that hold many items each.

use std::fmt;
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
}
