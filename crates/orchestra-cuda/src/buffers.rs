//! Rows of a batch in the memory of the device, and their way there and back. Allocated once; it decides nothing about batches.

use orchestra_core::batch_layout::{BatchLayout, TensorSpan};
use orchestra_worker::arena::{RangeError, WorkerArena};
use orchestra_worker::engine::EngineRunError;
use orchestra_worker::frames::BatchRun;
use orchestra_worker::page_lock;

use crate::errors::{self, CudaError};
use crate::ffi::driver::{DevicePointer, Driver};

/// Every tensor starts at a multiple of this many bytes, as if it had been allocated by itself.
const ALIGN: usize = 256;
/// Output slots that are page-locked: one is written to, two wait at the worker, and two are being processed.
const OUTPUT_SLOTS: usize = 5;

/// Room for the inputs and outputs of some rows.
pub struct DeviceBuffers {
    /// Rows that there is room for.
    pub rows: usize,
    pub inputs: Vec<DevicePointer>,
    pub outputs: Vec<DevicePointer>,
    /// First byte, and how many.
    all: (DevicePointer, usize),
}

impl DeviceBuffers {
    /// Room for `rows` rows, or for half as many, and so on, where the device has no more memory.
    pub fn new(driver: &Driver, layout: &BatchLayout, rows: usize) -> Result<Self, CudaError> {
        let mut rows = rows.max(1);
        loop {
            let (places, bytes) = places(layout, rows);
            match driver.alloc(bytes) {
                Ok(start) => {
                    let mut inputs: Vec<DevicePointer> =
                        places.into_iter().map(|at| start + at as u64).collect();
                    let outputs = inputs.split_off(layout.inputs.len());
                    return Ok(Self { rows, inputs, outputs, all: (start, bytes) });
                }
                Err(error) if rows > 1 && error.code == errors::OUT_OF_MEMORY => {
                    eprintln!("worker: `{rows}` rows do not fit into the device's memory: {}", error.text);
                    rows = rows.div_ceil(2);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Zeros everywhere.
    pub fn zero(&self, driver: &Driver) -> Result<(), CudaError> {
        // SAFETY: all of it was allocated.
        unsafe { driver.zero(self.all.0, self.all.1) }
    }

    /// Copies the inputs of the run's rows to the device.
    pub fn copy_in(
        &self,
        driver: &Driver,
        arena: &WorkerArena,
        run: &BatchRun,
    ) -> Result<(), EngineRunError> {
        self.fits(run)?;
        for (input, to) in self.inputs.iter().enumerate() {
            let rows = arena.input_rows(run.slot, input, run.first_row, run.rows).map_err(no_place)?;
            // SAFETY: there is room for as many rows; the parent has leased those of the slot to this run, and `wait` ends this.
            unsafe { driver.copy_in(*to, rows.ptr, rows.len) }.map_err(errors::run)?;
        }
        driver.wait().map_err(errors::run)
    }

    /// Copies the outputs of the run's rows from the device.
    pub fn copy_out(
        &self,
        driver: &Driver,
        arena: &WorkerArena,
        run: &BatchRun,
    ) -> Result<(), EngineRunError> {
        self.fits(run)?;
        for (output, from) in self.outputs.iter().enumerate() {
            let rows =
                arena.output_rows(run.output_slot, output, run.first_row, run.rows).map_err(no_place)?;
            // SAFETY: as for inputs.
            unsafe { driver.copy_out(rows.ptr, *from, rows.len) }.map_err(errors::run)?;
        }
        driver.wait().map_err(errors::run)
    }

    fn fits(&self, run: &BatchRun) -> Result<(), EngineRunError> {
        if run.rows <= self.rows {
            return Ok(());
        }
        let error = format!(
            "the device's memory holds {} rows of this kernel, and the batch has {}",
            self.rows, run.rows
        );
        Err(EngineRunError::out_of_memory(error))
    }
}

pub fn page_lock(driver: &Driver, arena: &WorkerArena) {
    let said = page_lock::page_lock(arena, OUTPUT_SLOTS, |start, bytes, flags| {
        // SAFETY: the slots are mapped as long as the arena, which lives as long as the process: an engine is never dropped.
        unsafe { driver.page_lock(start, bytes, flags) }.map_err(|error| error.text)
    });
    said.iter().for_each(|said| eprintln!("worker: {said}"));
}

fn no_place(error: RangeError) -> EngineRunError {
    EngineRunError::of_model(error.to_string())
}

/// Where each tensor begins, inputs first, and how many bytes there are.
fn places(layout: &BatchLayout, rows: usize) -> (Vec<usize>, usize) {
    let spans = layout.inputs.iter().chain(layout.outputs.iter().flatten());
    let mut end = 0;
    let place = |span: &TensorSpan| {
        let at = end;
        // What the driver is asked for then is more than any device has.
        end = span
            .row_bytes
            .saturating_mul(rows)
            .saturating_add(at)
            .checked_next_multiple_of(ALIGN)
            .unwrap_or(usize::MAX);
        at
    };
    let places = spans.map(place).collect();
    (places, end)
}

#[cfg(test)]
mod tests {
    use orchestra_core::{DType, Dim, TensorSpec};

    use super::*;

    #[test]
    fn tensors_lie_behind_each_other_and_apart() {
        let tensor = |name: &str, n| TensorSpec {
            name: name.into(),
            dtype: DType::F32,
            row: vec![Dim::Fixed(n)],
            batch: Dim::Dynamic,
        };
        let layout = BatchLayout::new(&[tensor("a", 3), tensor("b", 64)], &[tensor("y", 1)], 8, 1)
            .expect("it is small");
        assert_eq!(places(&layout, 8), (vec![0, 256, 256 + 8 * 256], 256 + 8 * 256 + 256));
        assert_eq!(places(&layout, usize::MAX).1, usize::MAX);
    }
}
