//! Sealed shared memory and mappings of it. It knows no layout.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use memmap2::{MmapOptions, MmapRaw};
use orchestra_core::batch_layout::SPAN_ALIGN;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Up to so many bytes, a mapping that asks for it has all its pages when it is made; first touch then costs nothing later. Larger ones
/// (1 GiB populates in half a second) get theirs as they are used.
const POPULATE_UP_TO: usize = 1 << 30;

/// Which pages a mapping has when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefault {
    /// All, unless there are very many.
    Now,
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
        Mapping::writable(&file, bytes, Prefault::WhenTouched)
    }

    pub(crate) fn writable(file: &File, len: usize, pages: Prefault) -> io::Result<Mapping> {
        Ok(Mapping { raw: (len > 0).then(|| options(len, pages).map_raw(file)).transpose()? })
    }

    pub(crate) fn read_only(file: &File, len: usize, pages: Prefault) -> io::Result<Mapping> {
        Ok(Mapping { raw: (len > 0).then(|| options(len, pages).map_raw_read_only(file)).transpose()? })
    }

    /// The byte at `offset`. The caller has checked that what it does there lies within the mapping.
    pub fn at(&self, offset: usize) -> *mut u8 {
        match &self.raw {
            Some(raw) => raw.as_mut_ptr().wrapping_add(offset),
            // Without bytes there is nothing to reach; the pointer only has to be aligned and not null.
            None => NonNull::<RegionAlignment>::dangling().as_ptr().cast(),
        }
    }
}

/// Bytes of a mapping that another process may write to at any time, whatever it has said. There is no slice of them: they can be copied and nothing else,
/// so what was checked is what is used.
#[derive(Debug, Clone, Copy)]
pub struct SharedBytes<'a> {
    at: *const u8,
    len: usize,
    map: PhantomData<&'a Mapping>,
}

// SAFETY: the mapping is neither bound to a thread nor undone while it is borrowed, and its bytes are only copied.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// The span lies within the mapping.
    pub(crate) unsafe fn of(map: &'a Mapping, offset: usize, len: usize) -> Self {
        Self { at: map.at(offset), len, map: PhantomData }
    }

    pub fn len(self) -> usize {
        self.len
    }

    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Some of them.
    ///
    /// # Panics
    /// If they are not all of these bytes.
    pub fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "no bytes {range:?} among {}", self.len);
        Self { at: self.at.wrapping_add(range.start), len: range.len(), ..self }
    }

    /// # Panics
    /// If `to` has another length.
    pub fn copy_to(self, to: &mut [u8]) {
        assert_eq!(self.len, to.len(), "as long as its place");
        // SAFETY: both spans are there, and `to` is memory of this process alone. What another process writes meanwhile is copied or not, byte by byte.
        unsafe { ptr::copy_nonoverlapping(self.at, to.as_mut_ptr(), self.len) };
    }

    /// Replaces what is in `to`.
    pub fn copy_into(self, to: &mut Vec<u8>) {
        to.clear();
        to.reserve(self.len);
        // SAFETY: there is room for so many bytes, and all of them are written. Otherwise as in `copy_to`.
        unsafe {
            ptr::copy_nonoverlapping(self.at, to.as_mut_ptr(), self.len);
            to.set_len(self.len);
        }
    }

    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = Vec::new();
        self.copy_into(&mut copy);
        copy
    }
}

fn options(len: usize, pages: Prefault) -> MmapOptions {
    let mut options = MmapOptions::new();
    options.len(len);
    if pages == Prefault::Now && len <= POPULATE_UP_TO {
        options.populate();
    }
    options
}

/// As aligned as every region is.
#[repr(align(64))]
struct RegionAlignment;
const _: () = assert!(align_of::<RegionAlignment>() == SPAN_ALIGN);
