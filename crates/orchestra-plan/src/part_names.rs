//! How the part files of a sink are called: a name, a number and an ending. Looks at no file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Files of many records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartFilesPlan {
    /// What their names begin with, relative to the output folder.
    pub stem: PathBuf,
    /// What their names end with, without the dot.
    pub extension: &'static str,
}

impl PartFilesPlan {
    /// The part of this number, relative to the output folder: `STEM-00017.EXTENSION`.
    pub fn file(&self, number: u64) -> PathBuf {
        self.named(&format!("{number:05}"))
    }

    pub fn glob(&self) -> PathBuf {
        self.named("*")
    }

    /// The number of a file of that name in the folder of the parts, if it could be one of them.
    pub fn number_of(&self, name: &OsStr) -> Option<u64> {
        part_number(name.to_str()?, self.stem.file_name()?.to_str()?, self.extension)
    }

    fn named(&self, number: &str) -> PathBuf {
        let mut name = self.stem.clone().into_os_string();
        name.push(format!("-{number}.{}", self.extension));
        name.into()
    }
}

/// The number of a part file of that name, if its name could be `STEM-00017.EXTENSION`.
pub fn part_number(name: &str, stem: &str, extension: &str) -> Option<u64> {
    let number = name.strip_prefix(stem)?.strip_prefix('-')?.strip_suffix(extension)?.strip_suffix('.')?;
    let is_number = number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse().ok()).flatten()
}

/// The part files that end so; `path` is the glob of [`PartFilesPlan::glob`].
pub(crate) fn parts_of(extension: &'static str, path: &Path) -> Option<PartFilesPlan> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(extension)?.strip_suffix("-*.")?;
    Some(PartFilesPlan { stem: path.with_file_name(stem), extension })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_known_by_its_name_and_nothing_else_is() {
        let parts = PartFilesPlan { stem: "sub/a-b.c".into(), extension: "parquet" };
        assert_eq!(parts.glob(), Path::new("sub/a-b.c-*.parquet"));
        for number in [0, 17, 99_999, 100_000, 12_345_678] {
            let file = parts.file(number);
            assert_eq!(file.parent(), Some(Path::new("sub")));
            assert_eq!(parts.number_of(file.file_name().unwrap()), Some(number));
        }
        let others = [
            "a-b.c-0001.parquet",
            "a-b.c-00001",
            "a-b.c-00001.csv",
            "a-b.c00001.parquet",
            "x-00001.parquet",
            "a-b.c-+0001.parquet",
            "a-b.c-00001-00002.parquet",
            "a-b.c-99999999999999999999999.parquet",
            "a-b.c-.parquet",
        ];
        assert!(others.iter().all(|name| parts.number_of(OsStr::new(name)).is_none()));
    }
}
