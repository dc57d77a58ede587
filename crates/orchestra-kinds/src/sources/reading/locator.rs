//! Locators of items that are a part of a file: the path, `#`, and numbers. They are text without a NUL, as lists of items need them.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;

/// The locator of the part of `path` that the numbers name.
pub fn locator(path: &Path, numbers: &[u64]) -> Vec<u8> {
    let mut text = String::with_capacity(1 + numbers.len() * 8);
    for number in numbers {
        let separator = if text.is_empty() { '#' } else { ',' };
        // A text takes all that is written to it.
        let _ = write!(text, "{separator}{number}");
    }
    [path.as_os_str().as_bytes(), text.as_bytes()].concat()
}

pub fn parts(locator: &[u8], n: usize) -> Result<(&Path, Vec<u64>), ItemError> {
    let parse = || {
        let at = locator.iter().rposition(|byte| *byte == b'#')?;
        let numbers = std::str::from_utf8(&locator[at + 1..]).ok()?;
        let numbers: Vec<u64> = numbers.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        (numbers.len() == n).then(|| (Path::new(OsStr::from_bytes(&locator[..at])), numbers))
    };
    parse().ok_or_else(|| {
        let error = "the list of items does not say where it lies; this is a bug".to_owned();
        ItemError { kind: FailureKind::Read, error }
    })
}

/// The last number of a locator: what its file or record was when it was listed. `None`: an older program has written it without one.
pub fn stamp_of(locator: &Path, n: usize) -> Option<u64> {
    parts(locator.as_os_str().as_bytes(), n).ok()?.1.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locator_gives_back_what_it_was_made_of_and_rubbish_gives_nothing() {
        let path = Path::new(OsStr::from_bytes(b"/a#1/\xff.tar"));
        assert_eq!(parts(&locator(path, &[0, u64::MAX]), 2).unwrap(), (path, vec![0, u64::MAX]));
        for rubbish in
            [&b""[..], b"/a", b"/a#", b"/a#1", b"/a#1,2,3", b"/a#1,-2", b"/a#1,99999999999999999999"]
        {
            assert!(parts(rubbish, 2).is_err());
        }
    }
}
