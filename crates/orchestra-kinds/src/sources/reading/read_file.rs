//! Opens files of items, only regular ones; and reads files whole, none that is larger than a picture can be. It never looks at what
//! they hold.

use std::alloc::Layout;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};

use super::limits::LARGEST_FILE_BYTES;

/// Opens a file to read it, and gives its length in bytes. Only regular files: a FIFO would hang, a device would never end. What is looked at is
/// what is read, whatever takes its name meanwhile.
pub fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let (file, stat) = open(path)?;
    Ok((file, len(&stat)))
}

fn open(path: &Path) -> io::Result<(File, Stat)> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    regular(OpenOptions::new().read(true).custom_flags(flags).open(path)?)
}

fn regular(file: File) -> io::Result<(File, Stat)> {
    // Not `metadata`, which asks for more and takes longer.
    let stat = fstat(&file)?;
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok((file, stat)),
        FileType::Directory => "a folder",
        FileType::Fifo => "a pipe",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is {what}, expected a regular file")))
}

fn len(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// The error of a reader that takes memory as it reads, up to `len` bytes. Where there was none, the process ends as with any allocation: the fault is not the file's,
/// and its item may have more memory in another process.
pub fn or_no_memory(error: io::Error, len: u64) -> io::Error {
    if error.kind() == io::ErrorKind::OutOfMemory
        && let Some(layout) = usize::try_from(len).ok().and_then(|len| Layout::array::<u8>(len).ok())
    {
        std::alloc::handle_alloc_error(layout);
    }
    error
}

/// The folder of the file that was read last. It stays open: the next file most often lies there, too, and then the kernel looks up one name and not a
/// whole path, which takes 1 % of a run with small pictures. Where a folder is replaced in the middle of a run, files may still be those of the old one.
#[derive(Default)]
pub struct LastFolder(Option<(Vec<u8>, OwnedFd)>);

impl LastFolder {
    /// As [`read_file`].
    pub fn read_file(&mut self, path: &Path, buffer: &mut Vec<u8>) -> Result<(), ItemError> {
        let opened = match self.open(path.as_os_str().as_bytes()) {
            Some(file) => regular(file),
            None => {
                // It may be gone, and another one have its name.
                self.0 = None;
                open(path)
            }
        };
        read_opened(opened, path, buffer)
    }

    /// `None`: opening the whole path says why.
    fn open(&mut self, path: &[u8]) -> Option<File> {
        let slash = path.iter().rposition(|byte| *byte == b'/').filter(|at| *at > 0)?;
        let (folder, name) = (&path[..slash], &path[slash + 1..]);
        if self.0.as_ref().is_none_or(|(last, _)| last != folder) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = openat(CWD, folder, flags, Mode::empty()).ok()?;
            self.0 = Some((folder.to_owned(), opened));
        }
        let (_, folder) = self.0.as_ref()?;
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(folder, name, flags, Mode::empty()).ok().map(File::from)
    }
}

pub fn read_file(path: &Path, buffer: &mut Vec<u8>) -> Result<(), ItemError> {
    read_opened(open(path), path, buffer)
}

fn read_opened(opened: io::Result<(File, Stat)>, path: &Path, buffer: &mut Vec<u8>) -> Result<(), ItemError> {
    let read = |error: io::Error| ItemError {
        kind: FailureKind::Read,
        error: format!("cannot read `{}`: {error}", path.display()),
    };
    let (file, opened) = opened.map_err(read)?;
    let len = len(&opened);
    if len > LARGEST_FILE_BYTES {
        let error = format!("`{}` has {len} bytes, more than is read of one (1 GiB)", path.display());
        return Err(ItemError { kind: FailureKind::TooLarge, error });
    }
    read_whole(&file, len, buffer).map_err(read)?;
    // What a system makes up as it is read has no length, and any time.
    let of = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    match fstat(&file) {
        Ok(now) if len > 0 && of(&now) != of(&opened) => {
            let why = "it was written while it was read; start the run again when it is whole";
            Err(read(io::Error::other(why)))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(read(error.into())),
    }
}

/// Reads to the end of a file that has `len` bytes, with a single call for most files: a read that leaves room in the buffer once all
/// bytes are there was the last one. A file that grows meanwhile is read on, up to a bound.
fn read_whole(file: &File, len: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    // One more than expected, so that the expected end leaves room.
    buffer.reserve(usize::try_from(len).unwrap_or(usize::MAX).saturating_add(1));
    loop {
        match rustix::io::read(file, rustix::buffer::spare_capacity(buffer)) {
            Ok(0) => return Ok(()),
            // Less than asked for: a network drive may do that in the middle, too, so it means the end only at the expected length.
            // A length of 0 means nothing: files that a system makes up as they are read have it, too.
            Ok(_) if len > 0 && buffer.len() < buffer.capacity() && buffer.len() as u64 >= len => {
                return Ok(());
            }
            Ok(_) if buffer.len() as u64 > LARGEST_FILE_BYTES => return Ok(()),
            Ok(_) => buffer.reserve(1),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_nothing_else_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let mut buffer = Vec::new();
        let fifo = dir.path().join("pipe.jpg");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        let cases = [
            (fifo.as_path(), "is a pipe"),
            (dir.path(), "is a folder"),
            (Path::new("/dev/null"), "is a device"),
        ];
        for (path, what) in cases {
            for refused in [read_file(path, &mut buffer), LastFolder::default().read_file(path, &mut buffer)]
            {
                let ItemError { kind, error } = refused.unwrap_err();
                assert_eq!(kind, FailureKind::Read);
                assert!(error.contains(what), "{error}");
            }
        }
        let ItemError { error, .. } = read_file(&dir.path().join("gone"), &mut buffer).unwrap_err();
        assert!(error.contains("gone") && error.contains("No such file"), "{error}");
        let file = dir.path().join("a");
        std::fs::write(&file, b"abc").unwrap();
        read_file(&file, &mut buffer).unwrap();
        assert_eq!(buffer, b"abc");
    }

    #[test]
    fn a_file_that_is_written_while_it_is_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"half").unwrap();
        let (file, seen) = open(&path).unwrap();
        let mut buffer = Vec::new();
        read_opened(Ok((file.try_clone().unwrap(), seen)), &path, &mut buffer).unwrap();
        std::fs::write(&path, b"half and half").unwrap();
        let ItemError { kind, error } = read_opened(Ok((file, seen)), &path, &mut buffer).unwrap_err();
        assert_eq!(kind, FailureKind::Read);
        assert!(error.contains("was written while it was read"), "{error}");
    }

    #[test]
    fn files_are_read_by_their_paths_whichever_folder_was_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let write = |path: &Path, text| {
            std::fs::create_dir_all(path.parent().unwrap()).and_then(|()| std::fs::write(path, text)).unwrap()
        };
        let (mut last, mut buffer) = (LastFolder::default(), Vec::new());
        let mut read = |path: &Path| {
            last.read_file(path, &mut buffer).map(|()| String::from_utf8_lossy(&buffer).into_owned())
        };
        for folder in [&a, &b] {
            write(&folder.join("1"), folder.to_str().unwrap());
        }
        for folder in [&a, &b, &b, &a] {
            assert_eq!(read(&folder.join("1")).unwrap(), folder.to_str().unwrap());
        }
        write(&a.join("1"), "another");
        assert_eq!(read(&a.join("1")).unwrap(), "another");
        assert!(read(&a.join("2")).unwrap_err().error.contains("No such file"));
        assert!(read(&a.join("1/")).unwrap_err().error.contains("Not a directory"));
        // A folder that was taken away, and is there again.
        std::fs::remove_dir_all(&a).unwrap();
        write(&a.join("1"), "new");
        assert_eq!(read(&a.join("1")).unwrap(), "new");
        assert!(read(Path::new("/")).unwrap_err().error.contains("is a folder"));
    }

    #[test]
    fn a_file_that_claims_to_be_empty_is_read_to_its_end_whatever_was_read_before() {
        // A file without a length that has content: the kernel makes it up.
        let made_up = Path::new("/proc/self/mountinfo");
        let mut buffer = Vec::new();
        read_file(made_up, &mut buffer).unwrap();
        let whole = buffer.len();
        assert!(whole > 0 && std::fs::metadata(made_up).unwrap().len() == 0);
        buffer.reserve(1 << 20);
        read_file(made_up, &mut buffer).unwrap();
        assert_eq!(buffer.len(), whole);
    }
}
