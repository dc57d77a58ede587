//! The kept frames with names are today's: fuzzing starts from every kind of frame, and not from one that is refused in its first bytes.
//!
//! Run with `UPDATE_FRAMES=1` to write them into the archive after the protocol has changed.

use std::fs;
use std::path::Path;
use std::process::Command;

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::{BatchId, DType, DeviceKind, Dim, ErrorClass, OutputSlotId, SlotId, TensorSpec};
use orchestra_worker::codec::{Frame, encode};
use orchestra_worker::frames::{
    BatchRun, DynamicOutput, FromWorker, Load, RowError, RowsWithoutOutputs, RunErrorKind, RunTiming,
    ToWorker,
};

use crate::kept_inputs::kept_inputs;

/// Bytes before each frame of a stream.
const LENGTH: usize = 4;

fn tensor(name: &str, dtype: DType, row: &[usize]) -> TensorSpec {
    let row = row.iter().map(|d| Dim::Fixed(*d)).collect();
    TensorSpec { name: name.to_owned(), dtype, row, batch: Dim::Dynamic }
}

/// A load on the CPU, of rows as they are.
fn load() -> Load {
    let (pixels, scores) = (tensor("x", DType::F32, &[1, 2, 2]), tensor("y", DType::F32, &[3]));
    Load {
        spec: vec![7; 40],
        device: DeviceKind::Cpu,
        threads: 2,
        streams: 1,
        padded_to: None,
        layout: BatchLayout::new(&[pixels], &[scores], 8, 3).unwrap(),
        answer_bytes: 1 << 20,
    }
}

/// A load on a GPU, of an engine that has nothing to be told.
fn load_on_a_gpu() -> Load {
    Load {
        spec: Vec::new(),
        device: DeviceKind::Cuda { uuid: "GPU-1".to_owned() },
        padded_to: Some(8),
        ..load()
    }
}

fn run() -> BatchRun {
    let (slot, output_slot) = (SlotId(0), OutputSlotId(1));
    BatchRun { batch: BatchId(7), attempt: 1, slot, output_slot, first_row: 2, rows: 4 }
}

fn done(shape: Vec<usize>, data: Vec<u8>) -> FromWorker {
    let output = DynamicOutput { output: 0, dtype: DType::I64, shape, data };
    let timing = RunTiming { bind_ns: 1, run_ns: 2, copy_out_ns: 3 };
    let failed = RowError { row: 2, kind: RunErrorKind::TooLarge, error: "too long".to_owned() };
    let without = RowsWithoutOutputs { dropped: vec![1, 3], failed: vec![failed] };
    FromWorker::Done { batch: BatchId(7), dynamic: vec![output], without, timing, rss_bytes: 300 }
}

fn hello() -> FromWorker {
    let visible_devices = Some("GPU-1".to_owned());
    FromWorker::Hello { protocol: 2, build: "0.1.0".to_owned(), pid: 4711, visible_devices }
}

fn stream<T: Frame>(frames: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| encode(frame, &mut bytes).unwrap());
    bytes
}

/// A frame's body; the check puts a length before it.
fn body<T: Frame>(frame: T) -> Vec<u8> {
    stream(&[frame]).split_off(LENGTH)
}

/// Every kind of frame, by the name that it is kept under.
fn named() -> Vec<(&'static str, Vec<u8>)> {
    let loaded = FromWorker::Loaded {
        providers: vec![("CPU".to_owned(), 141)],
        runtime_version: "1.23.2".to_owned(),
        warmed: 8,
        load_ns: 300,
        rss_bytes: 300,
    };
    let load_failed =
        FromWorker::LoadFailed { class: ErrorClass::Permanent, error: "no such file".to_owned() };
    let timing = RunTiming { bind_ns: 1, run_ns: 2, copy_out_ns: 3 };
    let error = "out of memory".to_owned();
    let failed = FromWorker::Failed { batch: BatchId(7), kind: RunErrorKind::OutOfMemory, error, timing };
    let heartbeat = FromWorker::Heartbeat;
    vec![
        ("load", body(ToWorker::Load(Box::new(load())))),
        ("load-gpu", body(ToWorker::Load(Box::new(load_on_a_gpu())))),
        ("run", body(ToWorker::Run(run()))),
        ("run-with-values", body(ToWorker::RunWithValues(run(), vec![2, 1, b'a', 5, 0]))),
        ("stream-to", stream(&[ToWorker::Load(Box::new(load())), ToWorker::Run(run())])),
        ("hello", body(hello())),
        ("loaded", body(loaded.clone())),
        ("load-failed", body(load_failed)),
        ("done", body(done(vec![1], vec![0; 8]))),
        ("zero-rows", body(done(vec![3, 0, 1 << 40], Vec::new()))),
        ("failed", body(failed)),
        ("heartbeat", body(heartbeat.clone())),
        ("waiting", body(FromWorker::Waiting)),
        ("stream-from", stream(&[hello(), loaded, heartbeat, done(vec![1], vec![0; 8])])),
    ]
}

#[test]
fn the_named_frames_are_todays() {
    if std::env::var_os("UPDATE_FRAMES").is_some() {
        update();
    }
    let kept = kept_inputs("worker_frame");
    for (name, bytes) in named() {
        assert!(
            kept.get(name) == Some(&bytes),
            "`{name}` is missing or of an older protocol: UPDATE_FRAMES=1 writes it"
        );
    }
}

/// Writes the frames of today into the archive. The other inputs stay.
fn update() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fuzz = |option| {
        let ended =
            Command::new(repository.join("scripts/fuzz.sh")).args([option, "worker_frame"]).status().unwrap();
        assert!(ended.success(), "`scripts/fuzz.sh {option} worker_frame`");
    };
    fuzz("--unpack");
    for (name, bytes) in named() {
        fs::write(repository.join("fuzz/target/corpus/worker_frame").join(name), bytes).unwrap();
    }
    fuzz("--pack");
}
