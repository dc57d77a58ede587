//! Frames to bytes and back: a little-endian `u32` length, then bincode. It knows nothing of sockets, runtimes or what frames mean.
//!
//! The peer may be broken (a worker that ran wild, half a frame of one that died), so nothing here believes a number that it
//! reads: memory grows with the bytes that have arrived, and what a frame claims to hold may cost at most four times its own
//! length plus [`SLACK`].

use std::io::{self, ErrorKind, Read, Write};
use std::marker::PhantomData;

use bincode::de::read::{Reader as _, SliceReader};
use bincode::de::{Decoder as _, DecoderImpl};
use bincode::{Decode, Encode};
use thiserror::Error;

use orchestra_core::BatchId;
use orchestra_core::failure::cut_words;
use orchestra_core::wire::{self, DecodeError, EncodeError};

use crate::frames::{FromWorker, RunErrorKind, RunTiming, ToWorker};

/// Largest frame to a worker, in bytes. They carry no tensors.
pub const MAX_CONTROL_FRAME: usize = 1 << 20;
/// Largest frame from a worker, in bytes: one with outputs of dynamic shape.
pub const MAX_FRAME: usize = 1 << 30;
/// Largest other frame from a worker, in bytes: they carry words.
pub const MAX_FRAME_OF_WORDS: usize = 16 << 20;
/// What decoding a frame may allocate at once beyond four times its length, in bytes: small frames hold structures that are
/// larger in memory than on the wire.
pub const SLACK: usize = 2 << 20;

/// Bytes of the length before each frame.
const HEADER: usize = 4;
/// Bytes asked of the reader at once, so that a claimed length never decides what is allocated.
const CHUNK: usize = 64 << 10;
/// Buffers that grew beyond this for one large frame are given back after it.
const KEEP: usize = 1 << 20;

/// Why bytes and frames do not match.
#[derive(Debug, Error)]
pub enum CodecError {
    /// The length before the frame is beyond what this direction allows.
    #[error("a frame of `{len}` bytes or more is larger than the allowed `{max}`")]
    TooLarge {
        /// Claimed bytes, or those that were needed when encoding stopped.
        len: usize,
        /// Allowed bytes.
        max: usize,
    },
    /// The peer went away in the middle of a frame.
    #[error("the stream ended inside a frame, `{have}` bytes of it had arrived")]
    Truncated {
        /// Bytes of the unfinished frame, its length included.
        have: usize,
    },
    /// The frame's bytes are no frame.
    #[error("a frame of `{len}` bytes cannot be decoded: {source}")]
    Decode {
        /// Bytes of the frame.
        len: usize,
        /// What bincode says.
        source: DecodeError,
    },
    /// The frame is longer than what it holds.
    #[error("a frame of `{len}` bytes holds a message and more bytes behind it")]
    Trailing {
        /// Bytes of the frame.
        len: usize,
    },
    /// The value cannot be put into a frame (a path that is not UTF-8, for example).
    #[error("a frame cannot be encoded: {0}")]
    Encode(#[source] EncodeError),
    /// The peer is gone: what is written has no reader.
    #[error("the peer is gone")]
    Gone,
    /// The stream failed.
    #[error("the stream failed: {0}")]
    Io(#[source] io::Error),
}

/// A message that travels alone in a frame.
pub trait Frame: Encode + Decode<()> {
    /// Largest encoding in bytes that a receiver accepts.
    const MAX_BYTES: usize;

    /// The largest of a frame that begins with this byte.
    fn max_bytes(first: u8) -> usize {
        let _ = first;
        Self::MAX_BYTES
    }

    /// Cuts words of the sender, which go to logs and records.
    fn cut_words(&mut self) {}

    /// What a receiver takes for a frame of `len` bytes that begins with `begin`, where that is more than the `room` that it has for frames that may do
    /// without; `None`: this one may not.
    fn without_room(begin: &[u8], len: usize, room: usize) -> Option<Self> {
        let _ = (begin, len, room);
        None
    }
}

impl Frame for ToWorker {
    const MAX_BYTES: usize = MAX_FRAME;

    fn max_bytes(first: u8) -> usize {
        if first == Self::RUN_WITH_VALUES { MAX_FRAME } else { MAX_CONTROL_FRAME }
    }
}

impl Frame for FromWorker {
    const MAX_BYTES: usize = MAX_FRAME;

    fn max_bytes(first: u8) -> usize {
        if first == Self::DONE { MAX_FRAME } else { MAX_FRAME_OF_WORDS }
    }

    fn cut_words(&mut self) {
        match self {
            Self::LoadFailed { error, .. } | Self::Failed { error, .. } => cut_words(error),
            Self::Hello { build, .. } => cut_words(build),
            Self::Loaded { runtime_version, .. } => cut_words(runtime_version),
            Self::Done { without, .. } => {
                without.failed.iter_mut().for_each(|failed| cut_words(&mut failed.error));
            }
            Self::Heartbeat | Self::Waiting => {}
        }
    }

    /// Half the batch has half the outputs.
    fn without_room(begin: &[u8], len: usize, room: usize) -> Option<Self> {
        let ((first, batch), _): ((u8, BatchId), _) = wire::decode_first(begin).ok()?;
        if first != Self::DONE {
            return None;
        }
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let error = format!(
            "its outputs of open shape take {} MiB, and {} MiB are there for a batch; raise `limits.memory`, or read outputs of fixed shape",
            mib(len),
            mib(room)
        );
        Some(Self::Failed { batch, kind: RunErrorKind::TooLarge, error, timing: RunTiming::default() })
    }
}

/// Appends `frame`, with its length before it, to `out`. On an error `out` is as it was.
pub fn encode<T: Frame>(frame: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    let mut body = FrameBody { out, len: 0, max: T::MAX_BYTES, max_of: T::max_bytes };
    let written = wire::encode_into(frame, &mut body);
    let FrameBody { len, max, .. } = body;
    match written {
        Ok(()) => {
            // MAX_BYTES is at most 1 GiB, so the length fits into 32 bits.
            out[start..start + HEADER].copy_from_slice(&(len as u32).to_le_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            match error {
                _ if len > max => Err(CodecError::TooLarge { len, max }),
                error => Err(CodecError::Encode(error)),
            }
        }
    }
}

/// Takes bytes up to a limit, so that a frame that is too large is never made.
struct FrameBody<'a> {
    out: &'a mut Vec<u8>,
    len: usize,
    max: usize,
    /// By the first of the bytes.
    max_of: fn(u8) -> usize,
}

impl Write for FrameBody<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let (0, Some(&first)) = (self.len, bytes.first()) {
            self.max = (self.max_of)(first);
        }
        self.len = self.len.saturating_add(bytes.len());
        if self.len > self.max {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Cuts a stream of bytes into frames as they arrive, for callers that do their own (asynchronous) reading.
///
/// After an error the stream is lost: every further `next` gives an error again.
#[derive(Debug)]
pub struct FrameDecoder<T> {
    bytes: Vec<u8>,
    /// Where the first frame that was not given out yet starts.
    start: usize,
    /// Larger frames are not kept.
    room: usize,
    /// Bytes to come of a frame that is not kept.
    skip: usize,
    frame: PhantomData<fn() -> T>,
}

/// Bytes of a frame that say what it is, and of what.
const BEGIN: usize = 16;

impl<T: Frame> FrameDecoder<T> {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self { bytes: Vec::new(), start: 0, room: usize::MAX, skip: 0, frame: PhantomData }
    }

    /// From now on, what is larger than this by what else a frame holds is passed over as it arrives where it may, and [`Frame::without_room`] is given out for it.
    pub fn limit_room(&mut self, room: usize) {
        self.room = room.saturating_add(CHUNK);
    }

    /// Takes in bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        let (skipped, bytes) = bytes.split_at(self.skip.min(bytes.len()));
        self.skip -= skipped.len();
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP);
            self.start = 0;
        } else if self.start >= CHUNK {
            // Amortised: at least a chunk has been given out since the last time.
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes have arrived.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` means not yet, an iterator's means never again"
    )]
    pub fn next(&mut self) -> Result<Option<T>, CodecError> {
        let waiting = &self.bytes[self.start..];
        let Some((header, rest)) = waiting.split_first_chunk::<HEADER>() else { return Ok(None) };
        let len = u32::from_le_bytes(*header) as usize;
        if len > T::MAX_BYTES {
            return Err(CodecError::TooLarge { len, max: T::MAX_BYTES });
        }
        let max = rest.first().map_or(T::MAX_BYTES, |first| T::max_bytes(*first));
        if len > max {
            return Err(CodecError::TooLarge { len, max });
        }
        if len > self.room {
            let Some(begin) = rest.get(..BEGIN) else { return Ok(None) };
            if let Some(instead) = T::without_room(begin, len, self.room) {
                let there = rest.len().min(len);
                self.start += HEADER + there;
                self.skip = len - there;
                return Ok(Some(instead));
            }
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let frame = decode(body)?;
        self.start += HEADER + len;
        Ok(Some(frame))
    }

    /// To be called at the end of the stream: `Truncated` if it ended inside a frame.
    pub fn finish(&self) -> Result<(), CodecError> {
        match self.bytes.len() - self.start {
            0 if self.skip == 0 => Ok(()),
            have => Err(CodecError::Truncated { have }),
        }
    }
}

impl<T: Frame> Default for FrameDecoder<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The message of a frame, without the length before it.
pub fn decode<T: Frame>(body: &[u8]) -> Result<T, CodecError> {
    let len = body.len();
    let mut rest = SliceReader::new(body);
    // bincode allocates what a container claims before it reads it, up to a limit that has to be a constant, for which all of this is compiled. What
    // the limit has beyond this frame's share is claimed first.
    let config = wire::FORM.with_limit::<{ memory_of(MAX_FRAME) }>();
    let mut decoder = DecoderImpl::new(&mut rest, config, ());
    let decoded = decoder
        .claim_bytes_read(memory_of(MAX_FRAME).saturating_sub(memory_of(len)))
        .and_then(|()| T::decode(&mut decoder));
    match decoded {
        Ok(_) if rest.peek_read(1).is_some() => Err(CodecError::Trailing { len }),
        Ok(mut frame) => {
            frame.cut_words();
            Ok(frame)
        }
        Err(source) => Err(CodecError::Decode { len, source }),
    }
}

/// What decoding a frame of `len` bytes may allocate at once.
const fn memory_of(len: usize) -> usize {
    4 * len + SLACK
}

/// Reads frames from a blocking stream.
#[derive(Debug)]
pub struct FrameReader<R, T> {
    stream: R,
    decoder: FrameDecoder<T>,
    chunk: Box<[u8]>,
}

impl<R: Read, T: Frame> FrameReader<R, T> {
    pub fn new(stream: R) -> Self {
        Self { stream, decoder: FrameDecoder::new(), chunk: vec![0; CHUNK].into() }
    }

    /// Waits for the next frame. `None` when the peer is gone: end of file, or the reset that a Unix socket reports when its peer
    /// died with unread data. Going away inside a frame is `Truncated`.
    pub fn read(&mut self) -> Result<Option<T>, CodecError> {
        loop {
            if let Some(frame) = self.decoder.next()? {
                return Ok(Some(frame));
            }
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return self.decoder.finish().map(|()| None),
                Ok(n) => self.decoder.push(&self.chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => {
                    return self.decoder.finish().map(|()| None);
                }
                Err(e) => return Err(CodecError::Io(e)),
            }
        }
    }
}

/// Writes frames to a blocking stream, each with one write (more only where the stream takes less at once).
#[derive(Debug)]
pub struct FrameWriter<W, T> {
    stream: W,
    buffer: Vec<u8>,
    frame: PhantomData<fn(T)>,
}

impl<W: Write, T: Frame> FrameWriter<W, T> {
    pub fn new(stream: W) -> Self {
        Self { stream, buffer: Vec::new(), frame: PhantomData }
    }

    /// Writes one frame. `Gone` when the peer does not read any more. After an I/O error half a frame may be on its way: write no more.
    pub fn write(&mut self, frame: &T) -> Result<(), CodecError> {
        self.buffer.clear();
        self.buffer.shrink_to(KEEP);
        encode(frame, &mut self.buffer)?;
        self.stream.write_all(&self.buffer).and_then(|()| self.stream.flush()).map_err(|e| match e.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::WriteZero => CodecError::Gone,
            _ => CodecError::Io(e),
        })
    }
}
