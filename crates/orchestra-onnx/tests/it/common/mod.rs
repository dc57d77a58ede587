//! What the tests of the worker share: the runtime library, models in a folder of their own, an arena with a worker on it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{
    BatchId, DType, DeviceKind, Dim, OutputSlotId, ReadOutput, SlotId, TensorSpec, WorkerExit,
};
use orchestra_onnx::digest::model_digest;
use orchestra_onnx::library::{Env, Flavor, LibraryRequest, Silent, find_or_fetch};
use orchestra_onnx::{ENVIRONMENT, OnnxEngine, OnnxSpec};
use orchestra_runtime::{Launcher, ProcessLauncher};
use orchestra_testkit::models;
use orchestra_testkit::onnx::ModelBuilder;
use orchestra_testkit::worker_client::WorkerClient;
use orchestra_worker::arena::{Arena, SharedMemory, WorkerArena};
use orchestra_worker::frames::{BatchRun, DynamicOutput, FromWorker, Load, RunTiming, ToWorker};
use orchestra_worker::output_region::OutputRegion;
use orchestra_worker::{Engine, EngineRunError, LoadError, Loaded};

/// ONNX Runtime's library, fetched once per user where the machine has none.
pub fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let request = LibraryRequest { flavor: Flavor::Cpu, explicit: None, offline: false };
            find_or_fetch(&request, &Env::from_process(), &mut Silent).unwrap().path
        })
        .clone()
}

pub fn spec(name: &str, dtype: DType, row: &[Dim]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, row: row.to_vec(), batch: Dim::Dynamic }
}

/// A tensor with one fixed row dimension.
pub fn flat(name: &str, dtype: DType, n: usize) -> TensorSpec {
    spec(name, dtype, &[Dim::Fixed(n)])
}

/// A model file and what its worker is told.
pub struct Setup {
    pub arena: Arena,
    pub outputs: OutputRegion,
    pub spec: OnnxSpec,
    /// Without the spec, which may still be changed: see [`Setup::load_frame`].
    pub load: Load,
    _folder: tempfile::TempDir,
}

impl Setup {
    /// A worker for the model that `write` writes into a folder.
    pub fn new<E: std::fmt::Debug>(
        write: impl FnOnce(&Path) -> Result<PathBuf, E>,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
        max_rows: usize,
        slots: usize,
    ) -> Setup {
        let layout = BatchLayout::new(inputs, outputs, max_rows, slots).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = write(folder.path()).unwrap();
        let spec = OnnxSpec {
            library: library(),
            digest: model_digest(&path).unwrap(),
            model: path,
            tf32: true,
            pixel_inputs: inputs.iter().map(|_| None).collect(),
            outputs: outputs.iter().cloned().map(ReadOutput::rows).collect(),
            ..OnnxSpec::default()
        };
        let load = Load {
            spec: vec![],
            device: DeviceKind::Cpu,
            threads: 1,
            streams: 1,
            padded_to: None,
            layout: layout.clone(),
            answer_bytes: 1 << 20,
        };
        let arena = Arena::create("test", layout.clone()).unwrap();
        let outputs = OutputRegion::create("test outputs", layout).unwrap();
        Setup { arena, outputs, spec, load, _folder: folder }
    }

    pub fn load_frame(&self) -> Load {
        Load { spec: self.spec.encode().unwrap(), ..self.load.clone() }
    }

    /// Loads the model into this process.
    pub fn engine(&self) -> Result<(OnnxEngine, Loaded), LoadError> {
        let mut engine = OnnxEngine::new();
        let loaded = engine.load(&self.load_frame(), self.mapped())?;
        Ok((engine, loaded))
    }

    /// As a worker sees the memory.
    fn mapped(&self) -> WorkerArena {
        let memory = SharedMemory { inputs: self.arena.fd(), outputs: self.outputs.fd() };
        WorkerArena::map(memory.try_clone_to_owned().unwrap(), self.load.layout.clone()).unwrap()
    }

    pub fn fill_input(&self, slot: u32, input: usize, first: usize, rows: &[Vec<u8>]) {
        for (i, row) in rows.iter().enumerate() {
            // SAFETY: no run is on its way while a test fills rows.
            unsafe { self.arena.input_rows_mut(SlotId(slot), input, first + i, 1) }.copy_from_slice(row);
        }
    }

    pub fn output(&self, slot: u32, output: usize) -> Vec<u8> {
        let rows = self.load.layout.slot_rows;
        self.outputs.rows(OutputSlotId(slot), output, 0, rows).unwrap().to_vec()
    }

    /// Sets every byte of an output in an output slot.
    pub fn stain_output(&self, slot: u32, output: usize, byte: u8) {
        let mapped = self.mapped();
        let rows = mapped.output_rows(OutputSlotId(slot), output, 0, self.load.layout.slot_rows).unwrap();
        // SAFETY: no run is on its way while a test writes rows.
        unsafe { rows.ptr.write_bytes(byte, rows.len) };
    }

    /// Starts a real worker process on the arena.
    pub fn spawn(&self) -> Process {
        self.spawn_program(Path::new(env!("CARGO_BIN_EXE_orchestra-bare-worker")))
    }

    /// Starts another worker program on the arena.
    pub fn spawn_program(&self, program: &Path) -> Process {
        let launcher = ProcessLauncher { program: program.to_owned(), args: Vec::new(), env: Vec::new() };
        let memory = SharedMemory { inputs: self.arena.fd(), outputs: self.outputs.fd() };
        Process(WorkerClient::start(|| launcher.launch(&DeviceKind::Cpu, &ENVIRONMENT, memory)).unwrap())
    }
}

pub struct Process(pub WorkerClient);

impl Process {
    pub fn pid(&self) -> u32 {
        self.0.pid().unwrap()
    }

    pub fn send(&mut self, frame: ToWorker) {
        self.0.send(&frame).unwrap();
    }

    /// The next frame that is no heartbeat, or `None` at the end.
    pub fn next(&mut self) -> Option<FromWorker> {
        self.0.answer().unwrap()
    }

    /// Hello, load, loaded.
    pub fn load(&mut self, load: &Load) -> FromWorker {
        assert!(matches!(self.next(), Some(FromWorker::Hello { .. })));
        self.send(ToWorker::Load(Box::new(load.clone())));
        self.next().unwrap()
    }

    /// How it ended, and what it wrote to stderr. Waits for the end.
    pub fn end(mut self) -> (WorkerExit, String) {
        (self.0.wait(), self.0.last_words())
    }
}

pub fn run_of(batch: u64, slot: u32, first_row: usize, rows: usize) -> BatchRun {
    let (slot, output_slot) = (SlotId(slot), OutputSlotId(slot));
    BatchRun { batch: BatchId(batch), attempt: 1, slot, output_slot, first_row, rows }
}

pub fn run(
    engine: &mut OnnxEngine,
    slot: u32,
    first: usize,
    rows: usize,
) -> Result<Vec<DynamicOutput>, EngineRunError> {
    engine.run(&run_of(1, slot, first, rows), &[], &mut RunTiming::default())
}

/// What this process has mapped, touched or not.
pub fn address_space_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub fn to_f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_ne_bytes(c.try_into().unwrap())).collect()
}

/// A worker for a model whose tensors have fixed shapes, so that its file and the plan say the same.
pub fn setup_of(
    model: ModelBuilder,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    max_rows: usize,
) -> Setup {
    let model = inputs.iter().fold(model, |m, spec| m.input(spec));
    let model = outputs.iter().fold(model, |m, spec| m.output(spec));
    Setup::new(|folder| model.write(folder), inputs, outputs, max_rows, 2)
}

/// A worker for `y = 2 x + 1` over three numbers; the model takes any batch, or only that size.
pub fn affine_setup(batch: Option<usize>, max_rows: usize) -> Setup {
    let write = |folder: &Path| match batch {
        Some(batch) => models::affine_fixed(folder, &[3], batch),
        None => models::affine(folder, &[3]),
    };
    Setup::new(write, &[flat("x", DType::F32, 3)], &[flat("y", DType::F32, 3)], max_rows, 3)
}
