//! Files that hold many items each.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::shapes::KindSettings;

use super::{ListError, PassedOver};

#[derive(Debug, Clone, Copy)]
pub enum Found<'a> {
    /// An item: what its name has behind that of the file, and its locator.
    Item(&'a str, &'a [u8]),
    /// So much that is no item.
    PassedOver(PassedOver, u64),
    /// No item yet. The reader says so while it reads on, and the taker may end the list.
    Nothing,
    /// Before all else: what tells the file from itself when it was edited or replaced. Not said of one that may change without another version.
    Version(u64),
}

/// Takes what a file holds, as it is found.
pub type PushFound<'a> = &'a mut dyn FnMut(Found<'_>) -> Result<(), ListError>;

/// Makes items of the files that a source names, where a file is not one item.
pub trait Expand: fmt::Debug + Send + Sync {
    /// Names the items of `file`, always in the same order, and counts all else that it holds. `file` is empty for [`super::ListingSpec::Generated`]. A locator holds no
    /// NUL, and is shorter than a mebibyte.
    fn expand(&self, file: &Path, push: PushFound<'_>) -> Result<(), ListError>;

    /// As [`Self::expand`], where the items of this version of the file are `known`: of a file that has it, the version is pushed and nothing else.
    ///
    /// # Errors
    /// As [`Self::expand`].
    fn expand_unless(&self, known: Option<u64>, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let mut is_known = false;
        let listed = self.expand(file, &mut |found| {
            push(found)?;
            is_known = matches!(found, Found::Version(version) if known == Some(version));
            if is_known { Err(ListError::Stopped) } else { Ok(()) }
        });
        if is_known { Ok(()) } else { listed }
    }

    /// The file of a locator that it gave: what comes before the last `#`.
    fn file_of<'a>(&self, locator: &'a Path) -> &'a Path {
        let bytes = locator.as_os_str().as_bytes();
        let end = bytes.iter().rposition(|byte| *byte == b'#').unwrap_or(bytes.len());
        Path::new(OsStr::from_bytes(&bytes[..end]))
    }

    /// Whether the item of this name, which two locators of two lists name, is another one now. Names say where an item stands: behind a row that was
    /// inserted above, each is that of the one before.
    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        let _ = (before, now);
        false
    }

    /// The settings from which a loader process makes it again, to list files there. Without them it lists in this process, where it must open nothing
    /// that others made; with them, its locators are the path of the file, a `#` and text without a `#`.
    fn to_wire(&self) -> Option<KindSettings> {
        None
    }
}

/// Kinds of files, as a loader process needs them to look into one.
pub trait FileKinds {
    /// Makes again what lists files; `None`: no kind of that name, or not its settings.
    fn expand(&self, settings: &KindSettings) -> Option<Arc<dyn Expand>>;

    /// Answers what a kind asks of a file while its source is planned. Question and answer are in a form of its own.
    fn describe(&self, question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError>;
}
