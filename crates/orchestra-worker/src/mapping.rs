//! Sealed shared memory and mappings of it. It knows no layout.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use orchestra_core::batch_layout::SPAN_ALIGN;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Up to so many bytes, a mapping that asks for it has all its pages when it is made; first touch then costs nothing later. Larger ones
/// (1 GiB populates in half a second) get theirs as they are used.
const POPULATE_UP_TO: usize = 1 << 30;

/// Which pages a mapping has when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// All, unless there are very many.
    Now,
    /// None.
    WhenTouched,
}

/// A file of `bytes` zeros that can neither shrink (under a mapping that would mean SIGBUS) nor grow. `name` shows up in
/// `/proc/<pid>/maps`.
pub(crate) fn shared_memory(name: &str, bytes: usize) -> io::Result<File> {
    let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memfd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(File::from(memfd))
}

/// No seal is added after this.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::SEAL)?)
}

/// Mappings that exist keep what they may do; from now on no process can write to the file by any other way, whatever descriptor of it it has.
pub(crate) fn seal_against_writing(file: &File) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL).map_err(
        |error| match error {
            Errno::INVAL => {
                io::Error::other("this kernel cannot seal memory against writing; Linux 5.1 and later can")
            }
            other => other.into(),
        },
    )
}

/// The file behind `fd`, if it has exactly `bytes` bytes and can never have fewer. `what` names it in errors.
pub(crate) fn checked(fd: OwnedFd, bytes: usize, what: &str) -> io::Result<File> {
    let size = rustix::fs::fstat(&fd)?.st_size;
    if usize::try_from(size) != Ok(bytes) {
        return Err(invalid(format!("the {what} has `{size}` bytes, its layout needs `{bytes}`")));
    }
    if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
        return Err(invalid(format!("the {what} is not sealed against shrinking")));
    }
    Ok(File::from(fd))
}

pub(crate) fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// A mapping, or nothing where there are no bytes to map (outputs that are all dynamic).
#[derive(Debug)]
pub struct Mapping {
    raw: Option<MmapRaw>,
}

impl Mapping {
    /// Memory of `bytes` zeros for this process alone, taken when it is first written to.
    pub fn of_new_memory(name: &str, bytes: usize) -> io::Result<Mapping> {
        let file = shared_memory(name, bytes)?;
        seal(&file)?;
        Mapping::writable(&file, bytes, Pages::WhenTouched)
    }

    pub(crate) fn writable(file: &File, len: usize, pages: Pages) -> io::Result<Mapping> {
        Ok(Mapping { raw: (len > 0).then(|| options(len, pages).map_raw(file)).transpose()? })
    }

    pub(crate) fn read_only(file: &File, len: usize, pages: Pages) -> io::Result<Mapping> {
        Ok(Mapping { raw: (len > 0).then(|| options(len, pages).map_raw_read_only(file)).transpose()? })
    }

    /// The byte at `offset`. The caller has checked that what it does there lies within the mapping.
    pub fn at(&self, offset: usize) -> *mut u8 {
        match &self.raw {
            Some(raw) => raw.as_mut_ptr().wrapping_add(offset),
            // Without bytes there is nothing to reach; the pointer only has to be aligned and not null.
            None => NonNull::<Aligned>::dangling().as_ptr().cast(),
        }
    }
}

fn options(len: usize, pages: Pages) -> MmapOptions {
    let mut options = MmapOptions::new();
    options.len(len);
    if pages == Pages::Now && len <= POPULATE_UP_TO {
        options.populate();
    }
    options
}

/// As aligned as every region is.
#[repr(align(64))]
struct Aligned;
const _: () = assert!(align_of::<Aligned>() == SPAN_ALIGN);
