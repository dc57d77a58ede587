//! An engine on the CPU whose parts can be exchanged for those of a GPU with a fake runtime: what a GPU does differently, without one.

use std::path::PathBuf;

use crate::library::{Env, Flavor, Request, Silent, find_or_fetch};
use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{
    BatchId, DType, DeviceKind, Dim, OutputSlotId, ReadOutput, SessionTuning, SlotId, TensorSpec,
};
use orchestra_testkit::models;
use orchestra_worker::arena::{Arena, SharedMemory};
use orchestra_worker::output_region::OutputRegion;

use super::*;

pub const MAX_ROWS: usize = 8;
/// What outputs are before a run.
const STAIN: f32 = -7.0;

/// A loaded engine for `y = 2 x + 1` over three numbers, with the parent's side of its arena.
pub struct Twin {
    pub engine: OnnxEngine,
    arena: Arena,
    load: Load,
    outputs: OutputRegion,
    /// Holds the model, for engines that load it again.
    _folder: tempfile::TempDir,
}

impl Twin {
    pub fn load(tuning: SessionTuning, batch_sizes: &[usize]) -> Twin {
        let folder = tempfile::tempdir().unwrap();
        let model = models::affine(folder.path(), &[3]).unwrap();
        let row = |name: &str| TensorSpec {
            name: name.into(),
            dtype: DType::F32,
            row: vec![Dim::Fixed(3)],
            batch: Dim::Dynamic,
        };
        let layout = BatchLayout::new(&[row("x")], &[row("y")], MAX_ROWS, 1).unwrap();
        let spec = OnnxSpec {
            library: library(),
            digest: model_digest(&model).unwrap(),
            model,
            tf32: true,
            tuning,
            pixel_inputs: vec![None],
            outputs: vec![ReadOutput::rows(row("y"))],
            ..OnnxSpec::default()
        };
        let load = Load {
            spec: spec.encode().unwrap(),
            device: DeviceKind::Cpu,
            threads: 1,
            streams: 1,
            max_batch: MAX_ROWS,
            batch_sizes: batch_sizes.to_vec(),
            pad: true,
            layout: layout.clone(),
        };
        let arena = Arena::create("twin", layout.clone()).unwrap();
        let outputs = OutputRegion::create("twin", layout.clone()).unwrap();
        let memory = SharedMemory { inputs: arena.fd(), outputs: outputs.fd() };
        let mut engine = OnnxEngine::new();
        let memory = WorkerArena::map(memory.try_clone_to_owned().unwrap(), layout).unwrap();
        engine.load(&load, memory).unwrap();
        Twin { engine, arena, load, outputs, _folder: folder }
    }

    pub fn serving(&mut self) -> &mut Serving {
        self.engine.streams.first_mut().unwrap()
    }

    /// The parent's side of the inputs, what a worker of it is told to load, and a worker's memory with new outputs.
    pub fn of_parent(&self) -> (&Arena, &Load, OutputRegion) {
        let outputs = OutputRegion::create("twin", self.load.layout.clone()).unwrap();
        (&self.arena, &self.load, outputs)
    }

    /// Puts these rows of three numbers into the slot, from row `first` on.
    pub fn fill(&self, first: usize, values: &[f32]) {
        let inputs: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        for (n, row) in inputs.chunks(12).enumerate() {
            // SAFETY: no run over these rows is on its way.
            unsafe { self.arena.input_row_mut(SlotId(0), 0, first + n) }.copy_from_slice(row);
        }
    }

    /// A run over rows of the slot.
    pub fn run_of(batch: u64, first_row: usize, rows: usize) -> Run {
        Run {
            batch: BatchId(batch),
            attempt: 1,
            slot: SlotId(0),
            output_slot: OutputSlotId(0),
            first_row,
            rows,
            trace: None,
        }
    }

    pub fn found(&self) -> Vec<f32> {
        // SAFETY: no run is on its way over the rows that are looked at.
        numbers(unsafe { self.outputs.rows(OutputSlotId(0), 0, 0, MAX_ROWS) }.unwrap())
    }

    /// Runs `rows` rows from `first` on over new numbers, and checks that they and only they are written.
    pub fn check(&mut self, first: usize, rows: usize, seed: u16) {
        let values: Vec<f32> = (0..3 * rows).map(|n| f32::from(seed) + n as f32).collect();
        self.fill(first, &values);
        // SAFETY: no run is on its way.
        unsafe {
            let stain = STAIN.to_ne_bytes().repeat(3 * MAX_ROWS);
            let outputs = &self.serving().shared.arena;
            let outputs = outputs.output_rows(OutputSlotId(0), 0, 0, MAX_ROWS).unwrap();
            outputs.ptr.copy_from_nonoverlapping(stain.as_ptr(), outputs.len);
        }
        let run = Twin::run_of(1, first, rows);
        assert_eq!(self.engine.run(&run, &mut RunTiming::default()), Ok(Answer::Done(Vec::new())));
        let found = self.found();
        let mut expected = vec![STAIN; 3 * MAX_ROWS];
        for (place, value) in expected[3 * first..].iter_mut().zip(&values) {
            *place = 2.0 * value + 1.0;
        }
        assert_eq!(found, expected, "rows {first} to {}", first + rows);
    }
}

/// ONNX Runtime.
pub fn library() -> PathBuf {
    let request = Request { flavor: Flavor::Cpu, explicit: None, offline: false };
    find_or_fetch(&request, &Env::from_process(), &mut Silent).unwrap().path
}

/// Numbers of outputs as they lie there.
pub fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_ne_bytes(c.try_into().unwrap())).collect()
}
