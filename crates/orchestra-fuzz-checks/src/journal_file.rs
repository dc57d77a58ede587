//! The journal's format, written and read a second time from its description, to judge the real reader by. Knows no recovery.
//!
//! A journal is frames: `length u32 | crc u32 | kind u8 | body`, little-endian, where the length counts kind and body, and the
//! checksum is that of the frame before, the length, the kind and the body.

use std::collections::BTreeSet;

use bincode::config;
use bincode::{Decode, Encode};
use orchestra_core::{LeftOutCount, SourceId};
use orchestra_store::RunIdentity;

pub(crate) const HEADER: u8 = 1;
pub(crate) const GROUP: u8 = 2;
pub(crate) const SYNCED: u8 = 3;
pub(crate) const FINISHED: u8 = 4;
pub(crate) const RESUMED: u8 = 5;
pub(crate) const PLACED: u8 = 6;
pub(crate) const SEALED: u8 = 7;

pub(crate) const FORMAT: u32 = 4;
/// What the first frame's checksum starts from.
pub(crate) const SEED: u32 = 0x4f52_4348;

#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct Header {
    pub(crate) format: u32,
    pub(crate) identity: RunIdentity,
    pub(crate) files: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, Default, Encode, Decode)]
pub(crate) struct Group {
    pub(crate) appended: Vec<Appended>,
    pub(crate) done: Vec<Span>,
    pub(crate) failed: Vec<Span>,
    pub(crate) left_out: Vec<LeftOutCount>,
}

/// What a commit added to a file.
#[derive(Debug, Clone, Copy, Encode, Decode)]
pub(crate) struct Appended {
    pub(crate) file: u16,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
}

/// Rows that lie in a part file, or in a state, since.
#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct Sealed {
    pub(crate) file: u16,
    pub(crate) bytes: u64,
    pub(crate) part: Placed,
    pub(crate) note: Vec<u8>,
}

#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct Placed {
    pub(crate) path: Vec<u8>,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
}

#[derive(Debug, Clone, Copy, Encode, Decode)]
pub(crate) struct Span {
    pub(crate) source: SourceId,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// An intact frame.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) end: usize,
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

impl Frame {
    /// The commit that it is, if its numbers can be.
    pub(crate) fn group(&self, n_files: usize) -> Option<Group> {
        let group: Group = (self.kind == GROUP).then(|| decode(&self.body)).flatten()?;
        let is_sane = group.appended.iter().all(|a| usize::from(a.file) < n_files)
            && group.spans().all(|s| s.end().is_some());
        is_sane.then_some(group)
    }

    /// The seal that it is.
    pub(crate) fn sealed(&self) -> Option<Sealed> {
        (self.kind == SEALED).then(|| decode(&self.body)).flatten()
    }
}

impl Group {
    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.done.iter().chain(&self.failed)
    }

    /// Adds its items, each as source and number.
    pub(crate) fn add_to(&self, items: &mut BTreeSet<(u16, u64)>) {
        for span in self.spans() {
            items.extend((span.first..span.first + span.count).map(|index| (span.source.0, index)));
        }
    }
}

impl Span {
    pub(crate) fn end(&self) -> Option<u64> {
        self.first.checked_add(self.count)
    }
}

/// A journal that is being written.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    crc: u32,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer { bytes: Vec::new(), crc: SEED }
    }

    pub(crate) fn frame(&mut self, kind: u8, body: &impl Encode) {
        let body = bincode::encode_to_vec(body, config::standard()).expect("a vector takes any bytes");
        self.raw_frame(kind, &body);
    }

    /// An intact frame whose body may be anything.
    pub(crate) fn raw_frame(&mut self, kind: u8, body: &[u8]) {
        let length = (body.len() as u32 + 1).to_le_bytes();
        self.crc = checksum(self.crc, &length, &[&[kind], body].concat());
        self.bytes.extend_from_slice(&length);
        self.bytes.extend_from_slice(&self.crc.to_le_bytes());
        self.bytes.push(kind);
        self.bytes.extend_from_slice(body);
    }
}

/// The intact frames that `bytes` begin with.
pub(crate) fn frames(bytes: &[u8]) -> Vec<Frame> {
    let (mut frames, mut at, mut crc) = (Vec::new(), 0, SEED);
    while let Some((length, rest)) = bytes[at..].split_first_chunk::<4>()
        && let Some((expected, rest)) = rest.split_first_chunk::<4>()
        && let Some(whole) = rest.get(..u32::from_le_bytes(*length) as usize)
        && let Some((kind, body)) = whole.split_first()
    {
        crc = checksum(crc, length, whole);
        if crc != u32::from_le_bytes(*expected) {
            break;
        }
        at += 8 + whole.len();
        frames.push(Frame { end: at, kind: *kind, body: body.to_vec() });
    }
    frames
}

/// A body as what it should be; `None` if it is not that.
pub(crate) fn decode<T: Decode<()>>(body: &[u8]) -> Option<T> {
    // Beyond what any body of these tests needs, and no claim of a length costs more.
    const MOST: usize = 1 << 24;
    let (value, used) = bincode::decode_from_slice(body, config::standard().with_limit::<MOST>()).ok()?;
    (used == body.len()).then_some(value)
}

fn checksum(previous: u32, length: &[u8], rest: &[u8]) -> u32 {
    crc32fast::hash(&[&previous.to_le_bytes(), length, rest].concat())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use orchestra_core::{ItemId, LeftOut};
    use orchestra_store::{Commit, FileIndex, Journal, OutputFolder, PlacedFile};

    use super::*;

    #[test]
    fn the_real_journal_writes_what_the_description_says() {
        let identity = RunIdentity {
            run_id: "r".into(),
            workflow: "w".into(),
            fingerprint: vec![("model m".into(), "d".into())],
            started_unix_ms: 7,
        };
        let dir = tempfile::tempdir().unwrap();
        let folder = OutputFolder::open(dir.path()).unwrap();
        let files = ["a.jsonl", "b.jsonl", ".orchestra/rows-c", ".orchestra/fold-d"];
        let mut journal = Journal::begin(folder, &identity, &files.map(Into::into)).unwrap();
        let item = |index| ItemId { source: SourceId(2), index };
        let appends = vec![(FileIndex(1), b"one\n".to_vec())];
        let passed_over = LeftOutCount { by: "s".into(), what: LeftOut::Pages, items: 1, count: 2 };
        journal
            .commit(&Commit {
                appends,
                done: vec![item(4), item(3)],
                failed: vec![item(9)],
                left_out: vec![passed_over.clone()],
                ..Commit::default()
            })
            .unwrap();
        let appends = vec![(FileIndex(2), b"a row".to_vec())];
        journal.commit(&Commit { appends, done: vec![item(5)], ..Commit::default() }).unwrap();
        journal.sync().unwrap();
        journal
            .seal(
                FileIndex(2),
                &PlacedFile { path: "c-00000.x".into(), bytes: b"part".to_vec() },
                b"note".to_vec(),
            )
            .unwrap();
        let appends = vec![(FileIndex(3), b"more".to_vec())];
        journal.commit(&Commit { appends, done: vec![item(6)], ..Commit::default() }).unwrap();
        journal.keep_state(FileIndex(3), b"state".to_vec()).unwrap();
        journal.finish(65).unwrap();

        let mut expected = Writer::new();
        let files = files.map(|file| file.as_bytes().to_vec()).to_vec();
        expected.frame(HEADER, &Header { format: FORMAT, identity, files });
        let span = |first, count| Span { source: SourceId(2), first, count };
        let appended = vec![Appended { file: 1, bytes: 4, crc: crc32fast::hash(b"one\n") }];
        expected.frame(
            GROUP,
            &Group {
                appended,
                done: vec![span(3, 2)],
                failed: vec![span(9, 1)],
                left_out: vec![passed_over],
            },
        );
        let appended = vec![Appended { file: 2, bytes: 5, crc: crc32fast::hash(b"a row") }];
        expected.frame(GROUP, &Group { appended, done: vec![span(5, 1)], failed: vec![], left_out: vec![] });
        expected.frame(SYNCED, &());
        let part = Placed { path: b"c-00000.x".to_vec(), bytes: 4, crc: crc32fast::hash(b"part") };
        expected.frame(PLACED, &vec![part.clone()]);
        expected.frame(SEALED, &Sealed { file: 2, bytes: 5, part, note: b"note".to_vec() });
        let appended = vec![Appended { file: 3, bytes: 4, crc: crc32fast::hash(b"more") }];
        expected.frame(GROUP, &Group { appended, done: vec![span(6, 1)], failed: vec![], left_out: vec![] });
        let part =
            Placed { path: b".orchestra/state-d.0".to_vec(), bytes: 5, crc: crc32fast::hash(b"state") };
        expected.frame(PLACED, &vec![part.clone()]);
        expected.frame(SEALED, &Sealed { file: 3, bytes: 4, part, note: Vec::new() });
        expected.frame(FINISHED, &65_i32);
        let written = fs::read(dir.path().join(".orchestra/journal")).unwrap();
        assert_eq!(written, expected.bytes);
        let kinds: Vec<u8> = frames(&written).iter().map(|f| f.kind).collect();
        assert_eq!(kinds, [HEADER, GROUP, GROUP, SYNCED, PLACED, SEALED, GROUP, PLACED, SEALED, FINISHED]);
        assert_eq!(frames(&written[..written.len() - 1]).len(), 9);
    }
}
