//! Names of items: paths as text, without loss. Touches no file.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The path as text, injectively: valid UTF-8 stands as it is but for backslashes, which are doubled; any other byte is `\xNN`.
pub fn escape(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                text.push('\\');
            }
            text.push(c);
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02X}"));
        }
    }
    text
}

/// The name of `path` in a source whose root is `root`: relative to it where it lies below it, else the whole path.
pub(crate) fn name_under(root: &Path, path: &Path) -> String {
    match path.strip_prefix(root) {
        Ok(relative) if !relative.as_os_str().is_empty() => escape(relative),
        _ => escape(path),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use proptest::prelude::*;

    use super::*;

    fn escaped(bytes: &[u8]) -> String {
        escape(Path::new(OsStr::from_bytes(bytes)))
    }

    /// Undoes `escape`.
    fn unescape(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            if first != b'\\' {
                bytes.push(first);
                rest = tail;
            } else if tail[0] == b'\\' {
                bytes.push(b'\\');
                rest = &tail[1..];
            } else {
                bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[1..3]).unwrap(), 16).unwrap());
                rest = &tail[3..];
            }
        }
        bytes
    }

    #[test]
    fn bytes_that_are_no_text_stay_visible() {
        assert_eq!(escaped(b"a\xffb.png"), r"a\xFFb.png");
        assert_eq!(escaped(br"a\xFFb.png"), r"a\\xFFb.png");
        assert_eq!(escaped("ä/ö.png".as_bytes()), "ä/ö.png");
    }

    proptest! {
        #[test]
        fn a_name_can_be_turned_back_into_its_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(unescape(&escaped(&bytes)), bytes);
        }
    }
}
