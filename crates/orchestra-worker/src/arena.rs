//! The inputs of a batch stage: one memfd, sealed so that the parent alone can ever write to it. It never decides which thread may use which row;
//! leases are the caller's.
//!
//! The parent owns the memory, so it outlives every worker: what a loader decoded is still there when a worker died over it. A worker maps
//! it read-only beside the outputs that are its own (`OutputRegion`), and checks every range, because
//! ranges come to it in frames.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use orchestra_core::batch_layout::{BatchLayout, PAGE, SPAN_ALIGN, TensorSpan};
use orchestra_core::{OutputSlotId, SlotId};
use thiserror::Error;

use crate::mapping::{Mapping, Prefault, checked, invalid, seal_against_writing, shared_memory};

/// The parent's side of the inputs: the only mapping that can be written to.
///
/// Rows are plain memory that several threads use at once. The methods that hand it out are `unsafe`: their caller holds a lease
/// on those rows, and no other code, in whatever process, touches them meanwhile.
#[derive(Debug)]
pub struct Arena {
    layout: BatchLayout,
    file: File,
    map: Mapping,
}

impl Arena {
    /// Makes the memory for the inputs of `layout`, all zeros. `name` shows up in `/proc/<pid>/maps`.
    pub fn create(name: &str, layout: BatchLayout) -> io::Result<Arena> {
        check_layout(&layout)?;
        let file = shared_memory(name, layout.inputs_bytes())?;
        let map = Mapping::writable(&file, layout.inputs_bytes(), Prefault::Now)?;
        seal_against_writing(&file)?;
        Ok(Arena { layout, file, map })
    }

    /// Where rows lie.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// The memory as a file descriptor, for workers to inherit. No process can write by means of it, this one included.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// `rows` rows of input `input`, to be filled: each has `row_bytes` of the layout's span, native byte order.
    ///
    /// # Safety
    /// The caller is the only one who uses those rows for as long as the slice lives.
    ///
    /// # Panics
    /// If the layout has no such slot, input or rows.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller's lease makes the rows exclusive, which the type system cannot see"
    )]
    pub unsafe fn input_rows_mut(&self, slot: SlotId, input: usize, first: usize, rows: usize) -> &mut [u8] {
        let (at, len) = self.input_span(slot, input, first, rows);
        // SAFETY: the span lies within the map, and the caller vouches that it has no other user.
        unsafe { std::slice::from_raw_parts_mut(self.map.at(at), len) }
    }

    /// `rows` rows of input `input`, to be read.
    ///
    /// # Safety
    /// Those rows have no writer for as long as the slice lives.
    ///
    /// # Panics
    /// If the layout has no such slot, input or rows.
    pub unsafe fn input_rows(&self, slot: SlotId, input: usize, first: usize, rows: usize) -> &[u8] {
        let (at, len) = self.input_span(slot, input, first, rows);
        // SAFETY: the span lies within the map, and the caller vouches that it has no writer.
        unsafe { std::slice::from_raw_parts(self.map.at(at), len) }
    }

    fn input_span(&self, slot: SlotId, input: usize, first: usize, rows: usize) -> (usize, usize) {
        self.assert_rows(slot, first, rows);
        (self.layout.input_offset(slot, input, first), self.layout.inputs[input].row_bytes * rows)
    }

    fn assert_rows(&self, slot: SlotId, first: usize, rows: usize) {
        assert!(
            has_rows(&self.layout, slot.index(), first, rows),
            "no rows {first}+{rows} in {slot} of this arena"
        );
    }
}

/// A range that does not lie in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The slot or rows do not exist.
    #[error(
        "`{slot}` rows `{first}` + `{rows}` lie outside of the arena, which has `{slots}` slots of `{slot_rows}` rows"
    )]
    Rows {
        slot: SlotId,
        /// First row asked for.
        first: usize,
        /// How many rows were asked for.
        rows: usize,
        slots: usize,
        slot_rows: usize,
    },
    /// The output slot does not exist.
    #[error("`{slot}` does not exist, the worker has `{slots}` output slots")]
    OutputSlot {
        slot: OutputSlotId,
        /// Output slots that there are.
        slots: usize,
    },
    /// There is no such tensor, or it is an output of dynamic shape, which has no place in shared memory.
    #[error("tensor `{0}` has no place in the arena")]
    Tensor(usize),
}

/// Whether an arena of this layout has these rows, and there is at least one.
pub fn check_rows(layout: &BatchLayout, slot: SlotId, first: usize, rows: usize) -> Result<(), RangeError> {
    if rows > 0 && has_rows(layout, slot.index(), first, rows) {
        return Ok(());
    }
    let BatchLayout { slots, slot_rows, .. } = *layout;
    Err(RangeError::Rows { slot, first, rows, slots, slot_rows })
}

/// Whether each worker has this output slot.
pub fn check_output_slot(layout: &BatchLayout, slot: OutputSlotId) -> Result<(), RangeError> {
    let slots = layout.slots;
    if slot.index() < slots { Ok(()) } else { Err(RangeError::OutputSlot { slot, slots }) }
}

/// The shared memory of one worker, by file descriptor.
#[derive(Debug, Clone, Copy)]
pub struct SharedMemory<F> {
    /// The arena of its stage, which it can only read.
    pub inputs: F,
    /// Its own outputs.
    pub outputs: F,
}

impl SharedMemory<BorrowedFd<'_>> {
    /// Descriptors that live as long as they are needed.
    pub fn try_clone_to_owned(&self) -> io::Result<SharedMemory<OwnedFd>> {
        Ok(SharedMemory {
            inputs: self.inputs.try_clone_to_owned()?,
            outputs: self.outputs.try_clone_to_owned()?,
        })
    }
}

/// Memory of consecutive rows. Never null; valid for as long as the arena that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMemory<P> {
    /// The first byte.
    pub ptr: P,
    /// Bytes.
    pub len: usize,
}

/// A worker's side: inputs read-only, its own outputs writable, every range checked.
#[derive(Debug)]
pub struct WorkerArena {
    layout: BatchLayout,
    inputs: Mapping,
    outputs: Mapping,
}

impl WorkerArena {
    /// Maps `memory`. Refuses a layout that is inconsistent, and a file that is not exactly as large as the layout says or that could
    /// still shrink.
    pub fn map(memory: SharedMemory<OwnedFd>, layout: BatchLayout) -> io::Result<WorkerArena> {
        check_layout(&layout)?;
        let inputs = checked(memory.inputs, layout.inputs_bytes(), "arena")?;
        let outputs = checked(memory.outputs, layout.outputs_bytes(), "output region")?;
        // The pages of inputs are there already, unless there are very many; this spares a fault for each at its first use. Of the outputs
        // only those are taken that are written to.
        let inputs = Mapping::read_only(&inputs, layout.inputs_bytes(), Prefault::Now)?;
        let outputs = Mapping::writable(&outputs, layout.outputs_bytes(), Prefault::WhenTouched)?;
        Ok(WorkerArena { layout, inputs, outputs })
    }

    /// Where rows lie.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// All of the inputs' memory, read-only, from its first page to its last.
    pub fn all_inputs(&self) -> RowMemory<*const u8> {
        RowMemory { ptr: self.inputs.at(0), len: self.layout.inputs_bytes() }
    }

    /// The memory of the first `slots` output slots, whole pages that hold no part of another slot; all of it where these cannot be had
    /// apart. Nothing where all outputs are dynamic.
    pub fn first_outputs(&self, slots: usize) -> RowMemory<*mut u8> {
        let all = self.layout.outputs_bytes();
        let some = self.layout.output_slot_bytes.saturating_mul(slots).min(all);
        RowMemory { ptr: self.outputs.at(0), len: if some.is_multiple_of(PAGE) { some } else { all } }
    }

    /// Rows of input `input`, in read-only memory: writing to it is a segmentation fault.
    pub fn input_rows(
        &self,
        slot: SlotId,
        input: usize,
        first: usize,
        rows: usize,
    ) -> Result<RowMemory<*const u8>, RangeError> {
        check_rows(&self.layout, slot, first, rows)?;
        let span = self.layout.inputs.get(input).ok_or(RangeError::Tensor(input))?;
        let at = self.layout.input_offset(slot, input, first);
        Ok(RowMemory { ptr: self.inputs.at(at), len: span.row_bytes * rows })
    }

    pub fn output_rows(
        &self,
        slot: OutputSlotId,
        output: usize,
        first: usize,
        rows: usize,
    ) -> Result<RowMemory<*mut u8>, RangeError> {
        check_output_slot(&self.layout, slot)?;
        check_rows(&self.layout, SlotId(slot.0), first, rows)?;
        let span = self.layout.outputs.get(output).and_then(Option::as_ref);
        let at = self.layout.output_offset(slot, output, first);
        let (span, at) = span.zip(at).ok_or(RangeError::Tensor(output))?;
        Ok(RowMemory { ptr: self.outputs.at(at), len: span.row_bytes * rows })
    }
}

/// Whether there is such a slot of the arena, or output slot, with these rows.
pub(crate) fn has_rows(layout: &BatchLayout, slot: usize, first: usize, rows: usize) -> bool {
    slot < layout.slots && first.checked_add(rows).is_some_and(|end| end <= layout.slot_rows)
}

/// A layout may come from a frame, and all its fields are public: what the pointers above rely on is checked here, once.
pub(crate) fn check_layout(layout: &BatchLayout) -> io::Result<()> {
    let inputs = layout.inputs.iter().all(|r| fits(r, layout.slot_rows, layout.input_slot_bytes));
    let outputs =
        layout.outputs.iter().flatten().all(|r| fits(r, layout.slot_rows, layout.output_slot_bytes));
    let total = layout
        .input_slot_bytes
        .checked_add(layout.output_slot_bytes)
        .and_then(|n| n.checked_mul(layout.slots))
        .and_then(|n| n.checked_add(2 * orchestra_core::batch_layout::PAGE));
    let addressable = total.is_some_and(|n| isize::try_from(n).is_ok());
    if inputs && outputs && addressable {
        return Ok(());
    }
    Err(invalid("the layout of the arena is inconsistent: its tensors do not fit into its slots".to_owned()))
}

fn fits(span: &TensorSpan, slot_rows: usize, slot_bytes: usize) -> bool {
    let end = span.row_bytes.checked_mul(slot_rows).and_then(|n| n.checked_add(span.offset));
    span.tensor.row_bytes() == Some(span.row_bytes)
        && span.offset.is_multiple_of(SPAN_ALIGN)
        && slot_bytes.is_multiple_of(SPAN_ALIGN)
        && end.is_some_and(|end| end <= slot_bytes)
}
