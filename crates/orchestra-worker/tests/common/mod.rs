//! What the tests of the worker share: the runtime library, models in a folder of their own, an arena with a worker on it.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{BatchId, DType, DeviceKind, Dim, SessionTuning, SlotId, TensorSpec};
use orchestra_ortlib::{Env, Flavor, Request, Silent, find_or_fetch};
use orchestra_testkit::models;
use orchestra_testkit::onnx::ModelBuilder;
use orchestra_wire::arena::{Arena, WorkerArena};
use orchestra_wire::codec::{FrameReader, FrameWriter};
use orchestra_wire::frames::{DynamicOutput, FromWorker, Load, Run, RunTiming, ToWorker};
use orchestra_worker::digest::model_digest;
use orchestra_worker::{Engine, LoadError, Loaded, OnnxEngine, RunError};

/// ONNX Runtime's library, fetched once per user where the machine has none.
pub fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let request = Request { flavor: Flavor::Cpu, explicit: None, offline: false };
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
        let load = Load {
            library: library(),
            preload: vec![],
            digest: model_digest(&path).unwrap(),
            model: path,
            device: DeviceKind::Cpu,
            threads: 1,
            streams: 1,
            max_batch: max_rows,
            memory_limit: None,
            tf32: true,
            tuning: SessionTuning::default(),
            custom_ops: vec![],
            warm_up: vec![],
            rungs: vec![],
            layout: layout.clone(),
            pixel_inputs: inputs.iter().map(|_| None).collect(),
        };
        Setup { arena: Arena::create("test", layout).unwrap(), load, _folder: folder }
    }

    /// Loads the model into this process.
    pub fn engine(&self) -> Result<(OnnxEngine, Loaded), LoadError> {
        let fd = self.arena.fd().try_clone_to_owned().unwrap();
        let mut engine = OnnxEngine::new();
        let loaded = engine.load(&self.load, WorkerArena::map(fd, self.load.layout.clone()).unwrap())?;
        Ok((engine, loaded))
    }

    pub fn fill_input(&self, slot: u32, input: usize, first: usize, rows: &[Vec<u8>]) {
        for (i, row) in rows.iter().enumerate() {
            // SAFETY: no run is on its way while a test fills rows.
            unsafe { self.arena.input_row_mut(SlotId(slot), input, first + i) }.copy_from_slice(row);
        }
    }

    /// All rows of an output in a slot.
    pub fn output(&self, slot: u32, output: usize) -> Vec<u8> {
        // SAFETY: no run is on its way while a test reads rows.
        unsafe { self.arena.output_rows(SlotId(slot), output, 0, self.load.layout.max_rows) }
            .unwrap()
            .to_vec()
    }

    /// Sets every byte of an output in a slot.
    pub fn stain_output(&self, slot: u32, output: usize, byte: u8) {
        // SAFETY: no run is on its way while a test writes rows.
        unsafe { self.arena.output_rows_mut(SlotId(slot), output, 0, self.load.layout.max_rows) }
            .unwrap()
            .fill(byte);
    }

    /// Starts a real worker process on the arena.
    pub fn spawn(&self) -> Process {
        self.spawn_program(Path::new(env!("CARGO_BIN_EXE_orchestra-bare-worker")))
    }

    /// Starts another worker program on the arena.
    pub fn spawn_program(&self, program: &Path) -> Process {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (socket, memory) = (theirs.as_raw_fd(), self.arena.fd().as_raw_fd());
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        // SAFETY: only calls that are allowed between fork and exec; dup2 clears the flag that would close the copies.
        unsafe {
            command.pre_exec(move || {
                let socket = libc::fcntl(socket, libc::F_DUPFD, 10);
                let memory = libc::fcntl(memory, libc::F_DUPFD, 10);
                if socket < 0 || memory < 0 || libc::dup2(socket, 3) < 0 || libc::dup2(memory, 4) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(socket);
                libc::close(memory);
                Ok(())
            })
        };
        let child = command.spawn().unwrap();
        Process {
            child,
            reader: FrameReader::new(ours.try_clone().unwrap()),
            writer: FrameWriter::new(ours.try_clone().unwrap()),
            socket: ours,
        }
    }
}

/// A worker process and both directions of its socket.
pub struct Process {
    pub child: Child,
    pub reader: FrameReader<UnixStream, FromWorker>,
    pub writer: FrameWriter<UnixStream, ToWorker>,
    pub socket: UnixStream,
}

impl Process {
    /// The next frame that is no heartbeat, or `None` at the end.
    pub fn next(&mut self) -> Option<FromWorker> {
        loop {
            match self.reader.read().unwrap() {
                Some(FromWorker::Heartbeat { .. }) => {}
                other => return other,
            }
        }
    }

    /// Hello, load, loaded.
    pub fn load(&mut self, load: &Load) -> FromWorker {
        assert!(matches!(self.next(), Some(FromWorker::Hello { .. })));
        self.writer.write(&ToWorker::Load(Box::new(load.clone()))).unwrap();
        self.next().unwrap()
    }

    /// Its exit code, and what it wrote to stderr. Waits for the end.
    pub fn exit_code(self) -> (Option<i32>, String) {
        let (status, stderr) = self.end();
        (status.code(), stderr)
    }

    /// How it ended, and what it wrote to stderr. Waits for the end.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut stderr = String::new();
        std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut stderr).unwrap();
        (self.child.wait().unwrap(), stderr)
    }
}

impl Drop for Process {
    /// No test leaves a worker behind: the end of the socket ends it.
    fn drop(&mut self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap_or(());
        self.child.wait().map(drop).unwrap_or(());
    }
}

pub fn run_of(batch: u64, slot: u32, first_row: usize, rows: usize) -> Run {
    Run { batch: BatchId(batch), attempt: 1, slot: SlotId(slot), first_row, rows, trace: None }
}

pub fn run(
    engine: &mut OnnxEngine,
    slot: u32,
    first: usize,
    rows: usize,
) -> Result<Vec<DynamicOutput>, RunError> {
    engine.run(&run_of(1, slot, first, rows), &mut RunTiming::default())
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
