//! The outputs of one worker process: a sealed memfd that this process alone may write to. The parent reads it, at offsets of its own
//! layout; which of its slots holds what is the caller's knowledge.
//!
//! The parent owns the memory, so what a worker left there can be read after its death. Pages are taken when the worker first writes to
//! them: a worker for which low output slots are enough never has those of the others.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use orchestra_core::OutputSlotId;
use orchestra_core::batch_layout::BatchLayout;

use crate::arena::{check_layout, has_rows};
use crate::mapping::{Mapping, Prefault, SharedBytes, seal, shared_memory};

/// The parent's side: everything read-only.
#[derive(Debug)]
pub struct OutputRegion {
    layout: BatchLayout,
    file: File,
    map: Mapping,
}

impl OutputRegion {
    /// Makes the memory for the outputs of one worker, all zeros. `name` shows up in `/proc/<pid>/maps`.
    pub fn create(name: &str, layout: BatchLayout) -> io::Result<OutputRegion> {
        check_layout(&layout)?;
        let file = shared_memory(name, layout.outputs_bytes())?;
        seal(&file)?;
        let map = Mapping::read_only(&file, layout.outputs_bytes(), Prefault::WhenTouched)?;
        Ok(OutputRegion { layout, file, map })
    }

    /// Where rows lie.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// The memory as a file descriptor, for its worker to inherit, and no other process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// `rows` rows of output `output`, as the worker left them once the run that wrote them is done; `None` if that output has no place here (its shape
    /// is dynamic).
    ///
    /// # Panics
    /// If the layout has no such output slot or rows.
    pub fn rows(
        &self,
        slot: OutputSlotId,
        output: usize,
        first: usize,
        rows: usize,
    ) -> Option<SharedBytes<'_>> {
        assert!(
            has_rows(&self.layout, slot.index(), first, rows),
            "no rows {first}+{rows} in {slot} of these outputs"
        );
        let at = self.layout.output_offset(slot, output, first)?;
        let len = self.layout.outputs.get(output)?.as_ref()?.row_bytes * rows;
        // SAFETY: the rows lie within the map.
        Some(unsafe { SharedBytes::of(&self.map, at, len) })
    }
}
