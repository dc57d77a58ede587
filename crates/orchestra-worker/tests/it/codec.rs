//! The codec under arbitrary frames, cuts and garbage.

use std::io::{self, Cursor, Read, Write};

use orchestra_core::failure::LONGEST_WORDS;
use orchestra_core::{BatchId, DType, ErrorClass, OutputSlotId, SlotId};
use orchestra_worker::codec::{
    CodecError, FrameDecoder, FrameReader, FrameWriter, MAX_CONTROL_FRAME, MAX_FRAME, MAX_FRAME_OF_WORDS,
    encode,
};
use orchestra_worker::frames::{BatchRun, DynamicOutput, FromWorker, RunErrorKind, RunTiming, ToWorker};
use proptest::collection::vec;
use proptest::prelude::*;

/// Gives its bytes in pieces of the given sizes, then ends as told.
struct Pieces {
    bytes: Cursor<Vec<u8>>,
    sizes: Vec<usize>,
    at: usize,
    end: Option<io::ErrorKind>,
}

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let size = self.sizes[self.at % self.sizes.len()].clamp(1, buf.len());
        self.at += 1;
        match (self.bytes.read(&mut buf[..size])?, self.end) {
            (0, Some(kind)) => Err(kind.into()),
            (n, _) => Ok(n),
        }
    }
}

/// Counts calls.
#[derive(Default)]
struct Calls(usize, Vec<u8>);

impl Write for Calls {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0 += 1;
        self.1.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A peer that is gone.
struct Broken(io::ErrorKind);

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

proptest! {
    #[test]
    fn frames_survive_the_wire_however_it_cuts_them(
        to in vec(crate::common::to_worker(), 0..5),
        from in vec(crate::common::from_worker(), 0..5),
        sizes in vec(1usize..900, 1..8),
    ) {
        let mut bytes = Vec::new();
        to.iter().for_each(|f| encode(f, &mut bytes).unwrap());
        let stream = Pieces { bytes: Cursor::new(bytes), sizes: sizes.clone(), at: 0, end: None };
        let mut reader = FrameReader::<_, ToWorker>::new(stream);
        for frame in &to {
            prop_assert_eq!(reader.read().unwrap(), Some(frame.clone()));
        }
        prop_assert!(reader.read().unwrap().is_none());

        let mut bytes = Vec::new();
        from.iter().for_each(|f| encode(f, &mut bytes).unwrap());
        let mut decoder = FrameDecoder::<FromWorker>::new();
        let mut seen = Vec::new();
        let mut rest = &bytes[..];
        for size in sizes.iter().cycle() {
            if rest.is_empty() { break; }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            decoder.push(piece);
            rest = after;
            while let Some(frame) = decoder.next().unwrap() { seen.push(frame); }
        }
        prop_assert_eq!(seen, from);
        prop_assert!(decoder.finish().is_ok());
    }

    #[test]
    fn every_truncation_waits_for_more_and_is_an_error_at_the_end(frame in crate::common::from_worker()) {
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes).unwrap();
        for cut in 1..bytes.len() {
            let mut decoder = FrameDecoder::<FromWorker>::new();
            decoder.push(&bytes[..cut]);
            prop_assert!(decoder.next().unwrap().is_none());
            let ended = matches!(decoder.finish(), Err(CodecError::Truncated { have }) if have == cut);
            prop_assert!(ended);
        }
    }

    #[test]
    fn a_body_that_lost_its_tail_or_gained_one_is_refused(
        frame in crate::common::from_worker(), extra in vec(any::<u8>(), 1..9),
    ) {
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes).unwrap();
        let body = bytes[4..].to_vec();
        let mut wrong: Vec<Vec<u8>> = (0..body.len()).map(|cut| body[..cut].to_vec()).collect();
        wrong.push([body, extra].concat());
        for body in wrong {
            let mut decoder = FrameDecoder::<FromWorker>::new();
            decoder.push(&(body.len() as u32).to_le_bytes());
            decoder.push(&body);
            prop_assert!(decoder.next().is_err());
            prop_assert!(decoder.next().is_err(), "an error is for good");
        }
    }

    #[test]
    fn lengths_beyond_the_limit_are_refused_before_anything_is_read(over in 1u32..1000) {
        let mut decoder = FrameDecoder::<ToWorker>::new();
        // What a `Load` begins with.
        decoder.push(&[&(MAX_CONTROL_FRAME as u32 + over).to_le_bytes()[..], &[0]].concat());
        let refused = matches!(decoder.next(), Err(CodecError::TooLarge { max: MAX_CONTROL_FRAME, .. }));
        prop_assert!(refused);
        let mut decoder = FrameDecoder::<FromWorker>::new();
        decoder.push(&(MAX_FRAME as u32 + over).to_le_bytes());
        let refused = matches!(decoder.next(), Err(CodecError::TooLarge { max: MAX_FRAME, .. }));
        prop_assert!(refused);
    }

    #[test]
    fn outputs_without_room_are_passed_over_and_their_batch_found_no_memory(
        batch in any::<u64>(), over in 1usize..70_000, size in 1usize..9_000,
    ) {
        const ROOM: usize = 20_000;
        let done = |len: usize| FromWorker::Done {
            batch: BatchId(batch),
            dynamic: vec![DynamicOutput { output: 0, dtype: DType::U8, shape: vec![len], data: vec![7; len] }],
            without: Default::default(),
            timing: RunTiming::default(),
            rss_bytes: 1,
        };
        let words = |n: usize| FromWorker::LoadFailed { class: ErrorClass::Permanent, error: "x".repeat(n) };
        let (mut bytes, fits) = (Vec::new(), done(ROOM));
        for frame in [&done(ROOM + (64 << 10) + over), &fits, &words(10 * ROOM)] {
            encode(frame, &mut bytes).unwrap();
        }
        let mut decoder = FrameDecoder::<FromWorker>::new();
        decoder.limit_room(ROOM);
        let mut seen = Vec::new();
        for piece in bytes.chunks(size) {
            decoder.push(piece);
            while let Some(frame) = decoder.next().unwrap() { seen.push(frame); }
        }
        let is_failed = matches!(&seen[0], FromWorker::Failed { batch: of, kind: RunErrorKind::TooLarge, error, .. }
            if *of == BatchId(batch) && error.contains("limits.memory"));
        prop_assert!(is_failed, "{:?}", seen[0]);
        let are_there = seen[1] == fits && matches!(&seen[2..], [FromWorker::LoadFailed { .. }]);
        prop_assert!(are_there);
        prop_assert!(decoder.finish().is_ok());
    }

    #[test]
    fn each_frame_is_one_write(frames in vec(crate::common::from_worker(), 1..5)) {
        let mut calls = Calls::default();
        let mut writer = FrameWriter::new(&mut calls);
        frames.iter().for_each(|f| writer.write(f).unwrap());
        prop_assert_eq!(calls.0, frames.len());
    }
}

#[test]
fn a_large_frame_arrives_whole_and_the_ones_behind_it_too() {
    for megabytes in [3, 20, 70] {
        let data = vec![7; megabytes << 20];
        let output =
            DynamicOutput { output: 0, dtype: orchestra_core::DType::U8, shape: vec![data.len()], data };
        let done = FromWorker::Done {
            batch: orchestra_core::BatchId(1),
            dynamic: vec![output],
            without: Default::default(),
            timing: Default::default(),
            rss_bytes: 0,
        };
        let beat = FromWorker::Heartbeat;
        let mut bytes = Vec::new();
        encode(&done, &mut bytes).unwrap();
        encode(&beat, &mut bytes).unwrap();
        let mut reader = FrameReader::<_, FromWorker>::new(Cursor::new(bytes));
        assert_eq!(reader.read().unwrap(), Some(done));
        assert_eq!(reader.read().unwrap(), Some(beat));
        assert_eq!(reader.read().unwrap(), None);
    }
}

#[test]
fn a_reset_between_frames_means_gone_and_within_one_truncated() {
    let beat = FromWorker::Heartbeat;
    let mut bytes = Vec::new();
    encode(&beat, &mut bytes).unwrap();
    let stream = |bytes: Vec<u8>| Pieces {
        bytes: Cursor::new(bytes),
        sizes: vec![3],
        at: 0,
        end: Some(io::ErrorKind::ConnectionReset),
    };
    let mut reader = FrameReader::<_, FromWorker>::new(stream(bytes.clone()));
    assert_eq!(reader.read().unwrap(), Some(beat));
    assert_eq!(reader.read().unwrap(), None);
    bytes.pop();
    let mut reader = FrameReader::<_, FromWorker>::new(stream(bytes));
    assert!(matches!(reader.read(), Err(CodecError::Truncated { .. })));
}

#[test]
fn writing_to_a_peer_that_is_gone_says_so() {
    let run = ToWorker::Run(BatchRun {
        batch: BatchId(1),
        attempt: 1,
        slot: SlotId(0),
        output_slot: OutputSlotId(0),
        first_row: 0,
        rows: 1,
    });
    for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset] {
        let mut writer = FrameWriter::new(Broken(kind));
        assert!(matches!(writer.write(&run), Err(CodecError::Gone)));
    }
    let mut writer = FrameWriter::new(Broken(io::ErrorKind::PermissionDenied));
    assert!(matches!(writer.write(&run), Err(CodecError::Io(_))));
}

#[test]
fn a_frame_that_is_too_large_is_never_made() {
    let error = "x".repeat(MAX_CONTROL_FRAME + 1);
    let mut bytes = vec![1, 2, 3];
    let layout = orchestra_core::batch_layout::BatchLayout::new(&[], &[], 1, 1).unwrap();
    let load = ToWorker::Load(Box::new(orchestra_worker::frames::Load {
        spec: error.clone().into(),
        device: orchestra_core::DeviceKind::Cpu,
        threads: 1,
        streams: 1,
        padded_to: None,
        layout,
        answer_bytes: 0,
    }));
    let refused = encode(&load, &mut bytes);
    assert!(matches!(refused, Err(CodecError::TooLarge { max: MAX_CONTROL_FRAME, .. })), "{refused:?}");
    assert_eq!((bytes.len(), bytes.capacity() < MAX_CONTROL_FRAME), (3, true));
    let class = orchestra_core::ErrorClass::Permanent;
    let fits = FromWorker::LoadFailed { class, error };
    assert!(encode(&fits, &mut bytes).is_ok(), "frames from a worker may be larger");
}

#[test]
fn words_of_a_worker_are_cut_and_a_frame_of_them_has_a_bound_of_its_own() {
    let class = orchestra_core::ErrorClass::Transient;
    let decoded = |frame: &FromWorker| {
        let (mut bytes, mut decoder) = (Vec::new(), FrameDecoder::<FromWorker>::new());
        encode(frame, &mut bytes).unwrap();
        decoder.push(&bytes);
        decoder.next()
    };
    let batch = BatchId(7);
    let failed = |error: String| FromWorker::Failed {
        batch,
        kind: orchestra_worker::frames::RunErrorKind::Model,
        error,
        timing: Default::default(),
    };
    let words = "x".repeat(5 << 20);
    for frame in [failed(words.clone()), FromWorker::LoadFailed { class, error: words.clone() }] {
        match decoded(&frame).unwrap().unwrap() {
            FromWorker::Failed { error, .. } | FromWorker::LoadFailed { error, .. } => {
                assert!(error.len() <= LONGEST_WORDS && error.ends_with("x .. (cut)"));
            }
            other => panic!("{other:?}"),
        }
    }
    let mut decoder = FrameDecoder::<FromWorker>::new();
    let (mut bytes, length) = (Vec::new(), MAX_FRAME_OF_WORDS as u32 + 1);
    encode(&failed(String::new()), &mut bytes).unwrap();
    decoder.push(&[&length.to_le_bytes(), &bytes[4..]].concat());
    let refused = decoder.next();
    assert!(matches!(refused, Err(CodecError::TooLarge { max: MAX_FRAME_OF_WORDS, .. })), "{refused:?}");
    let data = vec![1; MAX_FRAME_OF_WORDS + 1];
    let output =
        DynamicOutput { output: 0, dtype: orchestra_core::DType::U8, shape: vec![1, data.len()], data };
    let done = FromWorker::Done {
        batch,
        dynamic: vec![output],
        without: Default::default(),
        timing: Default::default(),
        rss_bytes: 0,
    };
    assert_eq!(decoded(&done).unwrap(), Some(done.clone()), "outputs may be larger");
}
