//! Frames between the parent and its workers and loaders: bytes from a peer that ran wild, in both directions. It opens no socket.

use std::fmt::Debug;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::slice;

use orchestra_worker::codec::{CodecError, Frame, FrameDecoder, SLACK, encode};
use orchestra_worker::frames::{DynamicOutput, FromWorker, ToWorker};
use orchestra_worker::loader::events::{FoundBlock, FromLoader};

use crate::memory::measured;

/// What a frame may cost for each of its bytes, as the codec promises, and the copies that the decoder keeps of them.
const PER_BYTE: usize = 8 + 4;
/// Lists that a record of an output may be made of beyond one for each element.
const MOST_EMPTY_LISTS: usize = 1 << 20;

/// A stream of frames is decoded the same however it arrives, in bounded memory, and what was decoded can be sent on; never a panic.
///
/// The bytes are taken as a stream, and as the body of one frame.
pub fn worker_frame(bytes: &[u8]) {
    let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
    framed.extend_from_slice(bytes);
    for stream in [bytes, &framed] {
        check::<ToWorker>(stream);
        for frame in check::<FromWorker>(stream) {
            if let FromWorker::Done { dynamic, .. } = frame {
                dynamic.iter().for_each(check_output);
            }
        }
        for frame in check::<FromLoader>(stream) {
            if let FromLoader::Found(block) = frame {
                check_found(&block);
            }
        }
    }
}

fn check<T: Frame + Debug>(stream: &[u8]) -> Vec<T> {
    let ((), taken) = measured(|| {
        let mut decoder = FrameDecoder::<T>::new();
        decoder.push(stream);
        while let Ok(Some(_)) = decoder.next() {}
    });
    let len = stream.len();
    assert!(taken.largest <= 4 * len + SLACK, "{taken:?} for {len} bytes");
    assert!(taken.peak <= PER_BYTE * len + SLACK, "{taken:?} for {len} bytes");
    let (frames, end) = decode::<T>(stream, len.max(1));
    // A byte at a time, and in pieces that cut lengths and bodies.
    for size in [1, 3, 7] {
        let (pieces, last) = decode::<T>(stream, size);
        let same = last == end && sent(&pieces) == sent(&frames);
        assert!(same, "in pieces of {size} bytes: {pieces:?}, {last}; at once: {frames:?}, {end}");
    }
    frames.iter().for_each(check_again);
    frames
}

/// What a stream gave, and how it ended.
fn decode<T: Frame>(stream: &[u8], size: usize) -> (Vec<T>, String) {
    let mut decoder = FrameDecoder::new();
    let mut frames = Vec::new();
    for piece in stream.chunks(size) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert!(decoder.next().is_err(), "an error is for good");
                    return (frames, error.to_string());
                }
            }
        }
    }
    let end = match decoder.finish() {
        Ok(()) => "whole".to_owned(),
        Err(error @ CodecError::Truncated { .. }) => error.to_string(),
        Err(other) => panic!("the end of a stream can only come too early: {other}"),
    };
    (frames, end)
}

/// What was received can be sent, and arrives as the same.
fn check_again<T: Frame + Debug>(frame: &T) {
    let bytes = sent(slice::from_ref(frame));
    let (again, end) = decode::<T>(&bytes, bytes.len());
    assert_eq!((again.len(), end.as_str()), (1, "whole"));
    assert!(sent(&again) == bytes, "{frame:?} arrives as {again:?}");
}

/// Frames as bytes. They are compared so: a number that is none (NaN) equals itself here.
fn sent<T: Frame>(frames: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        encode(frame, &mut bytes).expect("what came in a frame fits into one");
    }
    bytes
}

/// Whatever a process says that lists a file, its items lie in that file.
fn check_found(block: &FoundBlock) {
    let file = Path::new("/a#b/c");
    let shown = block.each::<()>(file, |name, locator| {
        let place = locator.strip_prefix(file.as_os_str().as_bytes()).expect("it lies in the file");
        assert!(place.starts_with(b"#") && !place[1..].contains(&b'#') && !place.contains(&0));
        assert!(!name.contains('\0'));
        Ok(())
    });
    assert!(shown.is_none_or(|shown| shown.is_ok()));
}

/// An output that counts as sound can be cut into rows and written down.
fn check_output(output: &DynamicOutput) {
    if !output.is_sound() {
        return;
    }
    let elements = output.data.len() / output.dtype.size_bytes();
    assert_eq!(elements * output.dtype.size_bytes(), output.data.len());
    let mut lists = 1_usize;
    for dim in output.shape.iter().take_while(|dim| **dim > 0) {
        lists = lists.checked_mul(*dim).expect("a sound shape can be counted");
    }
    assert!(lists <= elements.max(MOST_EMPTY_LISTS), "{:?} is written as {lists} lists", output.shape);
}
