//! Output folders of runs that never were: a history of commits, and then damage to the files, both chosen by bytes. Judges nothing.

use arbitrary::{Result, Unstructured};
use orchestra_core::SourceId;
use orchestra_store::RunIdentity;

use crate::journal_file::{
    Appended, FINISHED, FORMAT, GROUP, Group, HEADER, Header, RESUMED, SYNCED, Span, Writer,
};

/// The files of each run.
pub(crate) const FILES: [&str; 3] = ["results.jsonl", "more/copies.jsonl", "failures.jsonl"];

const MAX_EVENTS: usize = 24;
const MAX_DAMAGES: usize = 8;

/// What lies in the output folder. `None`: there is no such file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnDisk {
    pub(crate) journal: Option<Vec<u8>>,
    pub(crate) files: [Option<Vec<u8>>; 3],
}

/// Who each run is.
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
    let mut history = History { journal: Writer::new(), files: [const { Vec::new() }; 3] };
    history.header(&mut input)?;
    for _ in 0..input.int_in_range(0..=MAX_EVENTS)? {
        history.event(&mut input)?;
    }
    let mut disk = OnDisk { journal: Some(history.journal.bytes), files: history.files.map(Some) };
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
    files: [Vec<u8>; 3],
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
                self.raw_frame(kind, input)?;
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
    // Most of the time the journal.
    let victim = disk.files.get_mut(which).unwrap_or(&mut disk.journal);
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
