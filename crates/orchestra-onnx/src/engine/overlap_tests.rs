//! Two batches with one session, on a CPU that is taken for a GPU.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use orchestra_core::{OutputSlotId, SandboxMode, SessionTuning};
use orchestra_worker::Sandbox;
use orchestra_worker::arena::{SharedMemory, WorkerArena};
use orchestra_worker::codec::{FrameReader, FrameWriter};
use orchestra_worker::frames::{FromWorker, Load, Run, RunTiming, ToWorker};
use orchestra_worker::serve::{Answer, Engine, LoadError, Loaded, RunError, Stream, serve};

use super::super::OnnxEngine;
use super::super::cuda_runtime::fake;
use super::super::fake_gpu::{MAX_ROWS, Twin, numbers};
use super::super::host_side::HostSide;
use super::*;

const HALF: usize = MAX_ROWS / 2;

fn copy_in() -> Result<Option<CopyIn>, LoadError> {
    Ok(Some(CopyIn::on(AllocationDevice::CPU, fake::RUNTIME).unwrap()))
}

fn rows_of(batch: u64) -> Vec<f32> {
    (0..3 * HALF).map(|n| (batch * 100) as f32 + n as f32).collect()
}

fn answers_of(batch: u64) -> Vec<f32> {
    rows_of(batch).iter().map(|v| 2.0 * v + 1.0).collect()
}

#[test]
fn rows_of_the_next_batch_are_on_the_device_before_this_one_computes_and_both_are_answered_in_order() {
    let mut twin = Twin::load(SessionTuning::default(), &[]);
    let load = twin.of_parent().1.clone();
    twin.engine.overlap(&load, copy_in).unwrap();
    let mut streams = twin.engine.take_streams();
    let (mut second, mut first) = (streams.pop().unwrap(), streams.pop().unwrap());
    twin.fill(0, &rows_of(1));
    twin.fill(HALF, &rows_of(2));
    first.taken();
    second.taken();
    let (copied, is_copied) = channel();
    let (answered, is_answered) = channel();
    thread::scope(|scope| {
        let answered_second = answered.clone();
        scope.spawn(move || {
            fake::when_copied(move || copied.send(()).unwrap());
            let ran = second.run(&Twin::run_of(2, HALF, HALF), &mut RunTiming::default());
            assert_eq!(ran, Ok(Answer::Done(Vec::new())));
            answered_second.send(2).unwrap();
            second.answered();
        });
        // The first batch has not begun.
        is_copied.recv().unwrap();
        // What has been copied is the GPU's: what is written to these rows now is not seen any more.
        twin.fill(HALF, &rows_of(9));
        assert_eq!(twin.found(), [0.0; 3 * MAX_ROWS], "a batch computed before its turn");
        let ran = first.run(&Twin::run_of(1, 0, HALF), &mut RunTiming::default());
        assert_eq!(ran, Ok(Answer::Done(Vec::new())));
        answered.send(1).unwrap();
        first.answered();
    });
    assert_eq!(is_answered.try_iter().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(twin.found(), [answers_of(1), answers_of(2)].concat());
}

/// Where slots cannot be page-locked, rows go through memory that can, of each batch its own: the second one is ready while the first computes.
#[test]
fn batches_whose_rows_are_staged_compute_and_are_answered_in_their_order() {
    let mut twin = Twin::load(SessionTuning::default(), &[]);
    let load = twin.of_parent().1.clone();
    fake::refuse(&["register"]);
    let serving = twin.serving();
    serving.host = HostSide::with(fake::RUNTIME, &serving.shared.arena, &serving.shared.model, 1).0;
    assert!(serving.host.staging.is_some());
    twin.engine.overlap(&load, || Ok(None)).unwrap();
    let mut streams = twin.engine.take_streams();
    let (mut second, mut first) = (streams.pop().unwrap(), streams.pop().unwrap());
    twin.fill(0, &rows_of(1));
    twin.fill(HALF, &rows_of(2));
    first.taken();
    second.taken();
    thread::scope(|scope| {
        let (ends, ended) = channel();
        scope.spawn(move || {
            let ran = second.run(&Twin::run_of(2, HALF, HALF), &mut RunTiming::default());
            second.answered();
            ends.send(ran).unwrap();
        });
        assert!(ended.try_recv().is_err(), "a batch was answered before the one before it");
        assert!(first.run(&Twin::run_of(1, 0, HALF), &mut RunTiming::default()).is_ok());
        first.answered();
        assert_eq!(ended.recv().unwrap(), Ok(Answer::Done(Vec::new())));
    });
    assert_eq!(twin.found(), [answers_of(1), answers_of(2)].concat());
}

#[test]
fn the_next_batch_computes_while_staged_answers_of_this_one_go_to_its_slot() {
    let mut twin = Twin::load(SessionTuning::default(), &[]);
    let load = twin.of_parent().1.clone();
    fake::refuse(&["register"]);
    let serving = twin.serving();
    serving.host = HostSide::with(fake::RUNTIME, &serving.shared.arena, &serving.shared.model, 1).0;
    twin.engine.overlap(&load, || Ok(None)).unwrap();
    let mut streams = twin.engine.take_streams();
    let (mut second, mut first) = (streams.pop().unwrap(), streams.pop().unwrap());
    twin.fill(0, &rows_of(1));
    twin.fill(HALF, &rows_of(2));
    first.taken();
    second.taken();
    let (computes, has_computed) = channel();
    let (tell, told) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            fake::before_copy_out(move || computes.send(()).unwrap());
            second.run(&Twin::run_of(2, HALF, HALF), &mut RunTiming::default()).unwrap();
            second.answered();
        });
        // It does not come where the second batch waits for this copy.
        fake::before_copy_out(move || {
            tell.send(has_computed.recv_timeout(Duration::from_secs(60))).unwrap();
        });
        first.run(&Twin::run_of(1, 0, HALF), &mut RunTiming::default()).unwrap();
        first.answered();
    });
    assert_eq!(told.recv().unwrap(), Ok(()), "the second batch had not computed");
    assert_eq!(twin.found(), [answers_of(1), answers_of(2)].concat());
}

#[test]
fn a_batch_that_fails_before_it_computes_holds_up_nothing() {
    let mut twin = Twin::load(SessionTuning::default(), &[]);
    let load = twin.of_parent().1.clone();
    twin.engine.overlap(&load, copy_in).unwrap();
    let mut streams = twin.engine.take_streams();
    twin.fill(HALF, &rows_of(2));
    streams.iter_mut().for_each(|stream| stream.taken());
    fake::refuse(&["memcpy"]);
    assert!(streams[0].run(&Twin::run_of(1, 0, HALF), &mut RunTiming::default()).is_err());
    streams[0].answered();
    fake::refuse(&[]);
    assert!(streams[1].run(&Twin::run_of(2, HALF, HALF), &mut RunTiming::default()).is_ok());
    assert_eq!(twin.found()[3 * HALF..], answers_of(2));
}

/// A worker whose batches overlap, and to which CUDA may refuse to lock slots.
struct Overlapped {
    engine: OnnxEngine,
    is_refused: bool,
    /// Whether its rows are copied to the device here, and not only to what lies before it.
    copies_in: bool,
}

impl Engine for Overlapped {
    fn sandbox(&self, _: &Load) -> Result<Sandbox, LoadError> {
        Ok(Sandbox { mode: SandboxMode::Off, ..Sandbox::default() })
    }

    fn load(&mut self, load: &Load, arena: WorkerArena) -> Result<Loaded, LoadError> {
        let loaded = self.engine.load(load, arena)?;
        self.engine.overlap(load, || if self.copies_in { copy_in() } else { Ok(None) })?;
        fake::refuse(if self.is_refused { &["register"] } else { &[] });
        for stream in &mut self.engine.streams {
            let shared = Arc::clone(&stream.shared);
            stream.host = HostSide::with(fake::RUNTIME, &shared.arena, &shared.model, 1).0;
            assert_eq!(stream.host.staging.is_some(), self.is_refused);
        }
        Ok(loaded)
    }

    fn run(&mut self, run: &Run, timing: &mut RunTiming) -> Result<Answer, RunError> {
        self.engine.run(run, timing)
    }

    fn take_streams(&mut self) -> Vec<Box<dyn Stream>> {
        self.engine.take_streams()
    }
}

/// Whose rows are whose while two batches are with a worker: an answer means that its outputs are there and its inputs may be written to, also while
/// the other batch runs; and what a worker that is gone had in hand, the next one does again.
#[test]
fn no_row_is_used_again_before_its_batch_is_answered_however_often_the_worker_is_lost() {
    let twin = Twin::load(SessionTuning::default(), &[]);
    let mut batches = 1_u64..=120;
    // Batches with the worker, with their halves of the slot; a worker that is lost leaves them to the next one.
    let mut held: VecDeque<(u64, usize)> = VecDeque::new();
    let mut free = VecDeque::from([0, HALF]);
    let mut done = Vec::new();
    for lost_after in (0..20).cycle() {
        let (arena, load, outputs) = twin.of_parent();
        let memory = SharedMemory { inputs: arena.fd(), outputs: outputs.fd() }.try_clone_to_owned().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let worker = thread::spawn(move || {
            let (is_refused, copies_in) = (lost_after % 3 > 0, lost_after % 3 < 2);
            let mut engine = Overlapped { engine: OnnxEngine::new(), is_refused, copies_in };
            serve(theirs, memory, &mut engine, Arc::new(|_| {}))
        });
        let mut writer = FrameWriter::new(ours.try_clone().unwrap());
        let mut reader = FrameReader::<_, FromWorker>::new(ours.try_clone().unwrap());
        writer.write(&ToWorker::Load(Box::new(load.clone()))).unwrap();
        let send = |writer: &mut FrameWriter<UnixStream, ToWorker>, (batch, first): (u64, usize)| {
            writer.write(&ToWorker::Run(Twin::run_of(batch, first, HALF))).unwrap();
        };
        held.iter().for_each(|again| send(&mut writer, *again));
        let mut answers = 0;
        loop {
            while let Some(first) = free.pop_front() {
                let Some(batch) = batches.next() else { break };
                twin.fill(first, &rows_of(batch));
                held.push_back((batch, first));
                send(&mut writer, (batch, first));
            }
            if answers == lost_after || held.is_empty() {
                break;
            }
            match reader.read().unwrap().expect("the worker lives") {
                FromWorker::Done { batch, .. } => {
                    let (oldest, first) = held.pop_front().expect("an answer to a batch");
                    assert_eq!(batch.0, oldest, "answers come in the order of their batches");
                    // SAFETY: the batch is answered, so no run over these rows is on its way.
                    let found = unsafe { outputs.rows(OutputSlotId(0), 0, first, HALF) }.unwrap();
                    assert_eq!(numbers(found), answers_of(oldest));
                    (answers, free) = (answers + 1, VecDeque::from([first]));
                    done.push(oldest);
                }
                FromWorker::Hello { .. }
                | FromWorker::Loaded { .. }
                | FromWorker::Heartbeat { .. }
                | FromWorker::Waiting => {}
                other => panic!("{other:?}"),
            }
        }
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        worker.join().unwrap();
        if held.is_empty() {
            break;
        }
    }
    assert_eq!(done, (1..=120).collect::<Vec<_>>());
}
