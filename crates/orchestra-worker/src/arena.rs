//! The arena of batch slots: one sealed memfd per batch stage. It never decides who may use which row; leases are the caller's.
//!
//! The parent owns the memory, so it outlives every worker: what a loader decoded is still there when a worker died over it.
//! Workers map the inputs read-only, and their side checks every range, because ranges come to them in frames.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use orchestra_core::SlotId;
use orchestra_core::batch_layout::{BatchLayout, REGION_ALIGN, Region};
use rustix::fs::{MemfdFlags, SealFlags};
use thiserror::Error;

/// Arenas up to this many bytes have all their pages when they are made; first touch then costs nothing later. Larger ones
/// (1 GiB populates in half a second) get theirs as they are used.
const POPULATE_UP_TO: usize = 1 << 30;

/// The parent's side of an arena: everything writable.
///
/// Rows are plain memory that several threads use at once. The methods that hand it out are `unsafe`: who calls them holds a lease
/// on those rows, and nobody else, no worker included, touches them meanwhile.
#[derive(Debug)]
pub struct Arena {
    layout: BatchLayout,
    memfd: OwnedFd,
    map: Map,
}

impl Arena {
    /// Makes the memory for `layout`, all zeros. `name` shows up in `/proc/<pid>/maps`.
    pub fn create(name: &str, layout: BatchLayout) -> io::Result<Arena> {
        check_layout(&layout)?;
        let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&memfd, layout.total_bytes() as u64)?;
        // A file that can shrink under a mapping means SIGBUS.
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let file = File::from(memfd);
        let populate = layout.total_bytes() <= POPULATE_UP_TO;
        let map = Map::writable(&file, 0, layout.total_bytes(), populate)?;
        Ok(Arena { layout, memfd: file.into(), map })
    }

    /// Where rows lie.
    #[must_use]
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// The memory as a file descriptor, for a worker to inherit.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// One row of input `input`, to be filled by a loader: `row_bytes` of the layout's region, native byte order.
    ///
    /// # Safety
    /// The caller is the only one who uses that row for as long as the slice lives.
    ///
    /// # Panics
    /// If the layout has no such slot, input or row.
    #[must_use]
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller's lease makes the row exclusive, which the type system cannot see"
    )]
    pub unsafe fn input_row_mut(&self, slot: SlotId, input: usize, row: usize) -> &mut [u8] {
        let (at, len) = self.input_span(slot, input, row, 1);
        // SAFETY: the span lies within the map, and the caller vouches that nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.map.at(at), len) }
    }

    /// `rows` rows of input `input`, to be read.
    ///
    /// # Safety
    /// Nobody writes to those rows for as long as the slice lives.
    ///
    /// # Panics
    /// If the layout has no such slot, input or rows.
    #[must_use]
    pub unsafe fn input_rows(&self, slot: SlotId, input: usize, first: usize, rows: usize) -> &[u8] {
        let (at, len) = self.input_span(slot, input, first, rows);
        // SAFETY: the span lies within the map, and the caller vouches that nobody writes to it.
        unsafe { std::slice::from_raw_parts(self.map.at(at), len) }
    }

    /// `rows` rows of output `output`, as a worker left them; `None` if that output has no place in the slot (its shape is dynamic).
    ///
    /// # Safety
    /// The run that wrote them is done, and no other run over them is on its way for as long as the slice lives.
    ///
    /// # Panics
    /// If the layout has no such slot, output or rows.
    #[must_use]
    pub unsafe fn output_rows(
        &self,
        slot: SlotId,
        output: usize,
        first: usize,
        rows: usize,
    ) -> Option<&[u8]> {
        let (at, len) = self.output_span(slot, output, first, rows)?;
        // SAFETY: the span lies within the map, and the caller vouches that nobody writes to it.
        Some(unsafe { std::slice::from_raw_parts(self.map.at(at), len) })
    }

    /// `rows` rows of output `output`, to be written: for workers that live in the parent (tests).
    ///
    /// # Safety
    /// The caller is the only one who uses those rows for as long as the slice lives.
    ///
    /// # Panics
    /// If the layout has no such slot, output or rows.
    #[must_use]
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller's lease makes the rows exclusive, which the type system cannot see"
    )]
    pub unsafe fn output_rows_mut(
        &self,
        slot: SlotId,
        output: usize,
        first: usize,
        rows: usize,
    ) -> Option<&mut [u8]> {
        let (at, len) = self.output_span(slot, output, first, rows)?;
        // SAFETY: the span lies within the map, and the caller vouches that nobody else uses it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.map.at(at), len) })
    }

    /// Copies all inputs of `rows` rows from one place to another, in the same slot or between slots. The places may overlap.
    ///
    /// # Safety
    /// Nobody writes to the rows at `from`, and the caller is the only one who uses those at `to`, during the call.
    ///
    /// # Panics
    /// If the layout has no such slots or rows.
    pub unsafe fn copy_input_rows(&self, from: (SlotId, usize), to: (SlotId, usize), rows: usize) {
        for input in 0..self.layout.inputs.len() {
            let (source, len) = self.input_span(from.0, input, from.1, rows);
            let (target, _) = self.input_span(to.0, input, to.1, rows);
            // SAFETY: both spans lie within the map and have the same length; the caller vouches for exclusive use.
            unsafe { std::ptr::copy(self.map.at(source), self.map.at(target), len) };
        }
    }

    fn input_span(&self, slot: SlotId, input: usize, first: usize, rows: usize) -> (usize, usize) {
        self.assert_rows(slot, first, rows);
        (self.layout.input_offset(slot, input, first), self.layout.inputs[input].row_bytes * rows)
    }

    fn output_span(&self, slot: SlotId, output: usize, first: usize, rows: usize) -> Option<(usize, usize)> {
        self.assert_rows(slot, first, rows);
        let at = self.layout.output_offset(slot, output, first)?;
        Some((at, self.layout.outputs[output].as_ref()?.row_bytes * rows))
    }

    fn assert_rows(&self, slot: SlotId, first: usize, rows: usize) {
        assert!(has_rows(&self.layout, slot, first, rows), "no rows {first}+{rows} in {slot} of this arena");
    }
}

/// A range that does not lie in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The slot or rows do not exist.
    #[error(
        "`{slot}` rows `{first}` + `{rows}` lie outside of the arena, which has `{slots}` slots of `{max_rows}` rows"
    )]
    Rows {
        /// Asked for.
        slot: SlotId,
        /// First row asked for.
        first: usize,
        /// How many rows were asked for.
        rows: usize,
        /// Slots that there are.
        slots: usize,
        /// Rows of each slot.
        max_rows: usize,
    },
    /// There is no such tensor, or it is an output of dynamic shape, which has no place in the arena.
    #[error("tensor `{0}` has no place in the arena")]
    Tensor(usize),
}

/// Whether an arena of this layout has these rows, and there is at least one.
pub fn check_rows(layout: &BatchLayout, slot: SlotId, first: usize, rows: usize) -> Result<(), RangeError> {
    if rows > 0 && has_rows(layout, slot, first, rows) {
        return Ok(());
    }
    let BatchLayout { slots, max_rows, .. } = *layout;
    Err(RangeError::Rows { slot, first, rows, slots, max_rows })
}

/// Memory of consecutive rows. Never null; valid for as long as the arena that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows<P> {
    /// The first byte.
    pub ptr: P,
    /// Bytes.
    pub len: usize,
}

/// A worker's side of an arena: inputs read-only, outputs writable, every range checked.
#[derive(Debug)]
pub struct WorkerArena {
    layout: BatchLayout,
    inputs: Map,
    outputs: Map,
}

impl WorkerArena {
    /// Maps the arena behind `fd`. Refuses a layout that is inconsistent, and a file that is not exactly as large as the layout
    /// says or that could still shrink.
    pub fn map(fd: OwnedFd, layout: BatchLayout) -> io::Result<WorkerArena> {
        check_layout(&layout)?;
        let size = rustix::fs::fstat(&fd)?.st_size;
        if usize::try_from(size) != Ok(layout.total_bytes()) {
            let expected = layout.total_bytes();
            return Err(invalid(format!("the arena has `{size}` bytes, its layout needs `{expected}`")));
        }
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(invalid("the arena is not sealed against shrinking".to_owned()));
        }
        let file = File::from(fd);
        // The pages are there already, unless the arena is huge; this spares a fault for each at its first use.
        let populate = layout.total_bytes() <= POPULATE_UP_TO;
        let inputs = Map::read_only(&file, 0, layout.inputs_bytes(), populate)?;
        let outputs = Map::writable(&file, layout.inputs_bytes(), layout.outputs_bytes(), populate)?;
        Ok(WorkerArena { layout, inputs, outputs })
    }

    /// Where rows lie.
    #[must_use]
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// All of the inputs' memory, read-only, from its first page to its last.
    #[must_use]
    pub fn all_inputs(&self) -> Rows<*const u8> {
        Rows { ptr: self.inputs.at(0), len: self.layout.inputs_bytes() }
    }

    /// All of the outputs' memory, from its first page to its last; nothing where all outputs are dynamic.
    #[must_use]
    pub fn all_outputs(&self) -> Rows<*mut u8> {
        Rows { ptr: self.outputs.at(0), len: self.layout.outputs_bytes() }
    }

    /// Rows of input `input`, in read-only memory: writing to it is a segmentation fault.
    pub fn input_rows(
        &self,
        slot: SlotId,
        input: usize,
        first: usize,
        rows: usize,
    ) -> Result<Rows<*const u8>, RangeError> {
        check_rows(&self.layout, slot, first, rows)?;
        let region = self.layout.inputs.get(input).ok_or(RangeError::Tensor(input))?;
        let at = self.layout.input_offset(slot, input, first);
        Ok(Rows { ptr: self.inputs.at(at), len: region.row_bytes * rows })
    }

    /// Rows of output `output`.
    pub fn output_rows(
        &self,
        slot: SlotId,
        output: usize,
        first: usize,
        rows: usize,
    ) -> Result<Rows<*mut u8>, RangeError> {
        check_rows(&self.layout, slot, first, rows)?;
        let region = self.layout.outputs.get(output).and_then(Option::as_ref);
        let region = region.ok_or(RangeError::Tensor(output))?;
        let at = self.layout.output_slot_bytes * slot.index() + region.offset + region.row_bytes * first;
        Ok(Rows { ptr: self.outputs.at(at), len: region.row_bytes * rows })
    }
}

/// A mapping, or nothing where there are no bytes to map (an arena whose outputs are all dynamic).
#[derive(Debug)]
struct Map {
    raw: Option<MmapRaw>,
}

impl Map {
    fn writable(file: &File, offset: usize, len: usize, populate: bool) -> io::Result<Map> {
        let options = options(offset, len, populate);
        Ok(Map { raw: (len > 0).then(|| options.map_raw(file)).transpose()? })
    }

    fn read_only(file: &File, offset: usize, len: usize, populate: bool) -> io::Result<Map> {
        let options = options(offset, len, populate);
        Ok(Map { raw: (len > 0).then(|| options.map_raw_read_only(file)).transpose()? })
    }

    /// The byte at `offset`. The caller has checked that what it does there lies within the mapping.
    fn at(&self, offset: usize) -> *mut u8 {
        match &self.raw {
            Some(raw) => raw.as_mut_ptr().wrapping_add(offset),
            // Without bytes there is nothing to reach; the pointer only has to be aligned and not null.
            None => NonNull::<Aligned>::dangling().as_ptr().cast(),
        }
    }
}

fn options(offset: usize, len: usize, populate: bool) -> MmapOptions {
    let mut options = MmapOptions::new();
    options.offset(offset as u64).len(len);
    if populate {
        options.populate();
    }
    options
}

/// As aligned as every region is.
#[repr(align(64))]
struct Aligned;
const _: () = assert!(align_of::<Aligned>() == REGION_ALIGN);

fn has_rows(layout: &BatchLayout, slot: SlotId, first: usize, rows: usize) -> bool {
    slot.index() < layout.slots && first.checked_add(rows).is_some_and(|end| end <= layout.max_rows)
}

/// A layout may come from a frame, and all its fields are public: what the pointers above rely on is checked here, once.
fn check_layout(layout: &BatchLayout) -> io::Result<()> {
    let inputs = layout.inputs.iter().all(|r| fits(r, layout.max_rows, layout.input_slot_bytes));
    let outputs = layout.outputs.iter().flatten().all(|r| fits(r, layout.max_rows, layout.output_slot_bytes));
    let total = layout
        .input_slot_bytes
        .checked_add(layout.output_slot_bytes)
        .and_then(|n| n.checked_mul(layout.slots))
        .and_then(|n| n.checked_add(2 * orchestra_core::batch_layout::PAGE));
    let addressable = total.is_some_and(|n| isize::try_from(n).is_ok());
    if inputs && outputs && addressable {
        return Ok(());
    }
    Err(invalid("the layout of the arena is inconsistent: its regions do not fit into its slots".to_owned()))
}

fn fits(region: &Region, max_rows: usize, slot_bytes: usize) -> bool {
    let end = region.row_bytes.checked_mul(max_rows).and_then(|n| n.checked_add(region.offset));
    region.tensor.row_bytes() == Some(region.row_bytes)
        && region.offset.is_multiple_of(REGION_ALIGN)
        && slot_bytes.is_multiple_of(REGION_ALIGN)
        && end.is_some_and(|end| end <= slot_bytes)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
