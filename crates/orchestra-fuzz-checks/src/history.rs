//! Output folders of runs that never were: a history of commits, and then damage to the files, both chosen by bytes. Judges nothing.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use orchestra_core::SourceId;
use orchestra_store::RunIdentity;

use crate::journal_file::{
    Appended, FINISHED, FORMAT, GROUP, Group, HEADER, Header, PLACED, Placed, RESUMED, SEALED, SYNCED,
    Sealed, Span, Writer,
};

/// The files of each run; the last but one gathers rows for parts, and the last one rows for states.
pub(crate) const FILES: [&str; 5] =
    ["results.jsonl", "more/copies.jsonl", "failures.jsonl", ".orchestra/rows-parts", ".orchestra/fold-all"];
/// The last but one of [`FILES`].
pub(crate) const ROWS: u16 = 3;
/// The last of [`FILES`].
pub(crate) const FOLDED: u16 = 4;
/// What its states are called.
const STATE_NAMES: [&str; 2] = [".orchestra/state-all.0", ".orchestra/state-all.1"];
/// What parts are called, and what no part must ever be called.
const PART_NAMES: [&str; 8] = [
    "parts-00000.x",
    "parts-00001.x",
    "sub/parts-00002.x",
    "../stranger-00000.x",
    "sub/../../stranger-00000.x",
    ".orchestra/lock-00000.x",
    "results.jsonl",
    "",
];

const MAX_EVENTS: usize = 24;
const MAX_DAMAGES: usize = 8;

/// What lies in the output folder. `None`: there is no such file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnDisk {
    pub(crate) journal: Option<Vec<u8>>,
    pub(crate) files: [Option<Vec<u8>>; 5],
    /// Part files and states, by name.
    pub(crate) parts: BTreeMap<String, Vec<u8>>,
}

pub(crate) fn identity() -> RunIdentity {
    RunIdentity {
        run_id: "run-1".into(),
        workflow: "test".into(),
        fingerprint: vec![("model a".into(), "1234".into())],
        started_unix_ms: 1_700_000_000_000,
    }
}

/// A folder as the bytes describe it. Where they end, so does the history.
pub(crate) fn build(bytes: &[u8]) -> Result<OnDisk> {
    let mut input = Unstructured::new(bytes);
    let (journal, files) = (Writer::new(), [const { Vec::new() }; 5]);
    let mut history = History { journal, files, parts: BTreeMap::new(), state: (Vec::new(), 0) };
    history.header(&mut input)?;
    for _ in 0..input.int_in_range(0..=MAX_EVENTS)? {
        history.event(&mut input)?;
    }
    let History { journal, files, parts, .. } = history;
    let mut disk = OnDisk { journal: Some(journal.bytes), files: files.map(Some), parts };
    for _ in 0..MAX_DAMAGES {
        if input.is_empty() {
            break;
        }
        damage(&mut disk, &mut input)?;
    }
    Ok(disk)
}

struct History {
    journal: Writer,
    files: [Vec<u8>; 5],
    parts: BTreeMap<String, Vec<u8>>,
    /// All rows that were folded, and how often.
    state: (Vec<u8>, usize),
}

impl History {
    fn header(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let files = FILES.map(|f| f.as_bytes().to_vec()).to_vec();
        let header = Header { format: FORMAT, identity: identity(), files };
        match input.arbitrary::<u8>()? {
            0 => self.journal.frame(HEADER, &Header { format: FORMAT + 1, ..header }),
            1 => self.journal.frame(HEADER, &Header { files: header.files[..2].to_vec(), ..header }),
            2 => self.raw_frame(HEADER, input)?,
            3 => {}
            _ => self.journal.frame(HEADER, &header),
        }
        Ok(())
    }

    fn event(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=11)? {
            0..=6 => {
                let group = self.group(input)?;
                self.journal.frame(GROUP, &group);
            }
            7 => self.journal.frame(SYNCED, &()),
            8 => self.journal.frame(FINISHED, &i32::from(input.arbitrary::<i8>()?)),
            9 => {
                let run_id = format!("run-{}", input.arbitrary::<u8>()?);
                self.journal.frame(RESUMED, &RunIdentity { run_id, ..identity() });
            }
            10 => {
                let kind = input.int_in_range(0..=7)?;
                match input.arbitrary::<bool>()? {
                    true if kind == SEALED => self.seal(input)?,
                    true if kind == 0 => self.fold(input)?,
                    _ => self.raw_frame(kind, input)?,
                }
            }
            // A commit whose records are not what it says.
            _ => {
                let mut group = self.group(input)?;
                let file = input.int_in_range(0..=3)?;
                let bytes = u64::from(input.arbitrary::<u8>()?);
                group.appended.push(Appended { file, bytes, crc: input.arbitrary()? });
                self.journal.frame(GROUP, &group);
            }
        }
        Ok(())
    }

    /// An intact frame with any body.
    fn raw_frame(&mut self, kind: u8, input: &mut Unstructured<'_>) -> Result<()> {
        let length = usize::from(input.arbitrary::<u8>()?).min(input.len());
        self.journal.raw_frame(kind, input.bytes(length)?);
        Ok(())
    }

    /// Rows are committed, and all that wait become a part; or a seal that cannot be.
    fn seal(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let rows = vec![input.arbitrary::<u8>()?; input.int_in_range(0..=40)?];
        let mut group = self.group(input)?;
        let (bytes, crc) = (rows.len() as u64, crc32fast::hash(&rows));
        group.appended.push(Appended { file: ROWS, bytes, crc });
        self.journal.frame(GROUP, &group);
        let waiting = &mut self.files[usize::from(ROWS)];
        waiting.extend(rows);
        let what = input.int_in_range(0..=7)?;
        if what == 0 {
            return Ok(()); // They wait on.
        }
        let name = PART_NAMES[input.int_in_range(0..=PART_NAMES.len() - 1)?];
        let (bytes, crc) = (waiting.len() as u64, crc32fast::hash(waiting));
        let part = Placed { path: name.as_bytes().to_vec(), bytes, crc };
        let file = if what == 1 { input.arbitrary()? } else { ROWS };
        let bytes = if what == 2 { input.arbitrary()? } else { bytes };
        if what != 3 {
            self.journal.frame(PLACED, &vec![part.clone()]);
        }
        self.journal.frame(SEALED, &Sealed { file, bytes, part, note: Vec::new() });
        if what != 4 && PART_NAMES[..3].contains(&name) {
            self.parts.insert(name.to_owned(), waiting.clone());
        }
        if what != 5 {
            waiting.clear(); // Else the run was killed before that.
        }
        Ok(())
    }

    /// Rows are committed, and all that wait become a state with those of the state before; or a state that cannot be.
    fn fold(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let rows = vec![input.arbitrary::<u8>()?; input.int_in_range(1..=40)?];
        let mut group = self.group(input)?;
        let (bytes, crc) = (rows.len() as u64, crc32fast::hash(&rows));
        group.appended.push(Appended { file: FOLDED, bytes, crc });
        self.journal.frame(GROUP, &group);
        let waiting = &mut self.files[usize::from(FOLDED)];
        waiting.extend(rows);
        let what = input.int_in_range(0..=5)?;
        if what == 0 {
            return Ok(()); // They wait on.
        }
        let (state, number) = &mut self.state;
        let (name, bytes) = (STATE_NAMES[*number % 2], waiting.len() as u64);
        *number += 1;
        state.append(waiting);
        let part = Placed { path: name.into(), bytes: state.len() as u64, crc: crc32fast::hash(state) };
        self.journal.frame(PLACED, &vec![part.clone()]);
        if what != 1 {
            self.journal.frame(SEALED, &Sealed { file: FOLDED, bytes, part, note: Vec::new() });
        }
        if what != 2 {
            self.parts.insert(name.to_owned(), state.clone());
        }
        Ok(())
    }

    /// A commit with records that lie in the files.
    fn group(&mut self, input: &mut Unstructured<'_>) -> Result<Group> {
        let mut group = Group::default();
        for _ in 0..input.int_in_range(0..=3)? {
            let file = input.int_in_range(0..=2_u16)?;
            let record = vec![input.arbitrary::<u8>()?; input.int_in_range(0..=40)?];
            let crc = crc32fast::hash(&record);
            group.appended.push(Appended { file, bytes: record.len() as u64, crc });
            self.files[usize::from(file)].extend(record);
        }
        for spans in [&mut group.done, &mut group.failed] {
            for _ in 0..input.int_in_range(0..=2)? {
                let source = SourceId(input.int_in_range(0..=2)?);
                let first = u64::from(input.arbitrary::<u8>()?);
                spans.push(Span { source, first, count: input.int_in_range(0..=9)? });
            }
        }
        Ok(group)
    }
}

/// Does to one file what a power cut, a disk or a careless hand does.
fn damage(disk: &mut OnDisk, input: &mut Unstructured<'_>) -> Result<()> {
    let which = input.int_in_range(0..=5_usize)?;
    // Often the journal.
    let victim =
        if which == 4 { &mut disk.journal } else { disk.files.get_mut(which).unwrap_or(&mut disk.journal) };
    let what = input.int_in_range(0..=6)?;
    let Some(bytes) = victim else { return Ok(()) };
    let at = usize::from(input.arbitrary::<u16>()?) % (bytes.len() + 1);
    match what {
        0 => bytes.truncate(at),
        1 => bytes[at..].fill(0),
        2 => {
            let bit = input.int_in_range(0..=7)?;
            bytes[at..].iter_mut().take(1).for_each(|b| *b ^= 1 << bit);
        }
        3 => {
            let length = input.int_in_range(0..=16)?.min(input.len());
            let new = input.bytes(length)?.to_vec();
            bytes[at..].iter_mut().zip(new).for_each(|(old, new)| *old = new);
        }
        4 => {
            let length = usize::from(input.arbitrary::<u8>()?).min(input.len());
            bytes.extend_from_slice(input.bytes(length)?);
        }
        5 => drop(bytes.drain(..at)),
        _ => *victim = None,
    }
    Ok(())
}
