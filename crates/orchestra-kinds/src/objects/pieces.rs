//! Reads pieces of an object, as of a file: few requests where they lie close together, and few bytes where they lie far apart. It never looks at
//! what they hold.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt as _};

use super::Protocol;
use super::client::{Client, Patience, Url, runtime};
use super::trouble::Trouble;
use crate::sources::reading::file_version::Seen;

/// Bytes of the first request: some headers.
const LEAST: u64 = 4 << 10;
/// Bytes of a request at most, which bounds what is in memory.
const MOST: u64 = 4 << 20;

type Answer = Result<Vec<u8>, Trouble>;

/// An object that is open. Its connection belongs to a thread, since the caller may be in a runtime, where none may wait; it ends with this.
pub struct Pieces {
    requests: SyncSender<Range<u64>>,
    answers: Receiver<Answer>,
    /// Bytes of the object.
    len: u64,
    tag: u32,
    /// Where the next byte is read.
    at: u64,
    /// Bytes of the object from `from` on.
    piece: Vec<u8>,
    from: u64,
    /// Bytes of the next request.
    ahead: u64,
    trouble: Option<Trouble>,
}

impl Pieces {
    /// Asks for the length of the object; no byte is read.
    ///
    /// # Errors
    /// There is no such object, or its store cannot be asked.
    pub fn open(url: &str) -> Result<Self, Trouble> {
        let url = Url::parse(url)?;
        let (protocol, path) = (url.protocol, url.path()?);
        let client = Client::open(&url, Patience::Long)?;
        let (requests, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let (opened, length) = sync_channel(1);
        let serve = move || match runtime() {
            Ok(runtime) => {
                let head = runtime.block_on(client.objects.head(&path));
                // An error means that the reader is gone; the next request then ends this thread.
                drop(
                    opened.send(
                        head.map(|meta| (meta.size, tag_of(&meta)))
                            .map_err(|error| Trouble::of(protocol, &error)),
                    ),
                );
                while let Ok(range) = asked.recv() {
                    if answer.send(runtime.block_on(read(&client, protocol, &path, range))).is_err() {
                        return;
                    }
                }
            }
            Err(error) => drop(opened.send(Err(Trouble::of_machine(&error)))),
        };
        let started = thread::Builder::new().name("store".into()).spawn(serve);
        started.map_err(|error| Trouble::of_machine(&error))?;
        let (len, tag) = length.recv().map_err(|_| gone())??;
        let (piece, trouble) = (Vec::new(), None);
        Ok(Self { requests, answers, len, tag, at: 0, piece, from: 0, ahead: LEAST, trouble })
    }

    /// What the store said of the object when it was opened.
    pub fn seen(&self) -> Seen {
        Seen::Object { len: self.len, tag: self.tag }
    }

    /// What went wrong with the store, if something did.
    pub fn trouble(&mut self) -> Option<Trouble> {
        self.trouble.take()
    }

    /// Reads the piece that begins at `at`. Each is twice as long as the one before it, if that was near: then most of what lies between is read
    /// anyway, and requests cost more than bytes.
    fn fetch(&mut self) -> Result<(), Trouble> {
        let end = self.from + self.piece.len() as u64;
        let is_near = self.at >= self.from && self.at <= end.saturating_add(self.ahead);
        self.ahead = if is_near { (self.ahead * 2).min(MOST) } else { LEAST };
        let range = self.at..self.len.min(self.at.saturating_add(self.ahead));
        self.requests.send(range.clone()).map_err(|_| gone())?;
        self.piece = self.answers.recv().map_err(|_| gone())??;
        self.from = range.start;
        match self.piece.is_empty() {
            true => Err(Trouble::of_url("it is shorter by now".to_owned())),
            false => Ok(()),
        }
    }
}

/// What tells the object from another one of its size under its name.
fn tag_of(meta: &ObjectMeta) -> u32 {
    let changed_at = || meta.last_modified.timestamp_micros().to_string();
    crc32fast::hash(meta.e_tag.clone().unwrap_or_else(changed_at).as_bytes())
}

fn gone() -> Trouble {
    Trouble::of_machine(&io::Error::other("a thread ended; this is a bug"))
}

async fn read(client: &Client, protocol: Protocol, path: &Path, range: Range<u64>) -> Answer {
    let most = range.end - range.start;
    let read = client.objects.get_range(path, range).await.map_err(|error| Trouble::of(protocol, &error))?;
    match read.len() as u64 <= most {
        true => Ok(read.into()),
        false => Err(Trouble::of_url("the store gave more than it was asked for".to_owned())),
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.at >= self.len {
            return Ok(0);
        }
        let has = self.from..self.from + self.piece.len() as u64;
        if !has.contains(&self.at)
            && let Err(trouble) = self.fetch()
        {
            let error = io::Error::other(trouble.reason.clone());
            self.trouble = Some(trouble);
            return Err(error);
        }
        let piece = &self.piece[(self.at - self.from) as usize..];
        let n = piece.len().min(buffer.len());
        buffer[..n].copy_from_slice(&piece[..n]);
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Pieces {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
