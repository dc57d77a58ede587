//! What tells a file from one that was edited or replaced meanwhile. Reads nothing of it.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crc32fast::Hasher;
use orchestra_store::{Found, ListError, PushFound};

use super::input::FileLike;
use super::locator::stamp_of;

/// What is known of a file or an object before anything of it is read.
#[derive(Debug, Clone)]
pub enum FileStat {
    File(Metadata),
    Object {
        len: u64,
        /// Of its ETag; or of the time at which it changed, where its store gives none.
        tag: u32,
    },
}

/// Of files together: 24 bits of their sizes and of the times at which their content changed, 16 of their inodes, and 24 of the times at which
/// anything of them changed, which no program sets. Of an object, its tag stands for all times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileVersion(pub u64);

/// Within a tick of the clock of a file system a second change leaves all times as they are. Clocks that say no parts of a second tick every other second.
const TICK: Duration = Duration::from_millis(20);
const COARSE_TICK: Duration = Duration::from_secs(2);

impl FileStat {
    /// Whether any later change gives another version.
    fn is_settled(&self) -> bool {
        let FileStat::File(file) = self else { return true };
        let tick = if file.ctime_nsec() == 0 { COARSE_TICK } else { TICK };
        let since = Duration::new(file.ctime().unsigned_abs(), file.ctime_nsec().unsigned_abs() as u32);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.is_ok_and(|now| since.checked_add(tick).is_some_and(|settled| settled <= now))
    }
}

impl FileVersion {
    /// Says of which version of their files the items are that follow, before any file is read.
    ///
    /// # Errors
    /// Those of `push`.
    pub fn say(seen: &[FileStat], push: PushFound<'_>) -> Result<Self, ListError> {
        let version = Self::of(seen);
        if seen.iter().all(FileStat::is_settled) {
            push(Found::Version(version.0))?;
        }
        Ok(version)
    }

    pub fn of<'a>(files: impl IntoIterator<Item = &'a FileStat>) -> Self {
        let (mut content, mut inode, mut change) = (Hasher::new(), Hasher::new(), Hasher::new());
        for seen in files {
            let file = match seen {
                FileStat::File(file) => file,
                FileStat::Object { len, tag } => {
                    content.update(&len.to_le_bytes());
                    content.update(&tag.to_le_bytes());
                    change.update(&tag.to_le_bytes());
                    continue;
                }
            };
            let [size, seconds, nanoseconds] = [file.size().cast_signed(), file.mtime(), file.mtime_nsec()];
            [size, seconds, nanoseconds].iter().for_each(|number| content.update(&number.to_le_bytes()));
            inode.update(&file.ino().to_le_bytes());
            [file.ctime(), file.ctime_nsec()].iter().for_each(|number| change.update(&number.to_le_bytes()));
        }
        let [content, inode, change] = [content, inode, change].map(|hasher| u64::from(hasher.finalize()));
        Self((content & 0xff_ffff) << 40 | (inode & 0xffff) << 24 | change & 0xff_ffff)
    }

    /// Whether open files are those that were listed. Objects are compared between two starts alone: a store may give another tag with each answer.
    pub fn are_as_listed<'a>(files: impl IntoIterator<Item = &'a FileLike>, listed: u64) -> bool {
        let seen = files.into_iter().map(|file| Ok(file.metadata()?.map(FileStat::File)));
        let seen: io::Result<Option<Vec<FileStat>>> = seen.collect();
        seen.is_ok_and(|seen| seen.is_none_or(|seen| Self::of(&seen).is_as_listed(listed)))
    }

    /// Whether they are those that were listed as `listed`. Who changes names or rights of them changes no item.
    pub fn is_as_listed(self, listed: u64) -> bool {
        self.0 >> 24 == listed >> 24
    }

    /// Whether files of one start have changed by the next. A copy that has kept its times is what it is a copy of.
    pub fn has_changed(before: u64, now: u64) -> bool {
        let is_copy = before >> 24 & 0xffff != now >> 24 & 0xffff;
        before >> 40 != now >> 40 || (!is_copy && before != now)
    }
}

/// The same of the last of `n` numbers in two locators.
pub fn has_changed(before: &Path, now: &Path, n: usize) -> bool {
    let [before, now] = [before, now].map(|locator| stamp_of(locator, n));
    before.zip(now).is_some_and(|(before, now)| FileVersion::has_changed(before, now))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_was_edited_is_another_one_also_with_its_size_and_time_and_a_copy_with_them_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let [path, copy] = ["a", "b"].map(|name| folder.path().join(name));
        let version = |path: &Path| FileVersion::of([&FileStat::File(path.metadata().unwrap())]);
        let set_time =
            |path: &Path, time| File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        fs::write(&path, "one").unwrap();
        let (listed, time) = (version(&path), path.metadata().unwrap().modified().unwrap());
        assert!(!FileVersion::has_changed(listed.0, version(&path).0));
        fs::copy(&path, &copy).unwrap();
        set_time(&copy, time);
        assert!(!FileVersion::has_changed(listed.0, version(&copy).0));
        // Clocks of file systems tick some hundred times a second.
        let changed = || path.metadata().map(|file| (file.ctime(), file.ctime_nsec())).unwrap();
        let before = changed();
        while changed() == before {
            fs::write(&path, "two").unwrap();
            set_time(&path, time);
        }
        assert!(FileVersion::has_changed(listed.0, version(&path).0), "of the same size and time");
        assert!(version(&path).is_as_listed(listed.0), "what its content is, its time says to a run");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(version(&path).is_as_listed(listed.0));
        fs::write(&path, "three").unwrap();
        assert!(!version(&path).is_as_listed(listed.0));
    }

    #[test]
    fn an_object_is_another_one_with_another_size_or_tag() {
        let of = |len, tag| FileVersion::of([&FileStat::Object { len, tag }]).0;
        assert!(!FileVersion::has_changed(of(7, 1), of(7, 1)));
        for other in [of(7, 2), of(8, 1)] {
            assert!(FileVersion::has_changed(of(7, 1), other));
        }
        let two = |tag| FileVersion::of(&[1, tag].map(|tag| FileStat::Object { len: 7, tag })).0;
        assert!(FileVersion::has_changed(two(1), two(2)), "beside another one");
    }
}
