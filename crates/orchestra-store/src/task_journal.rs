//! What is known of the tasks of a run: an entry when a command is started, one when it has ended. Entries prove themselves as those of the
//! journal of items do, and what is torn is cut off. It decides nothing about tasks.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bincode::{Decode, Encode};
use orchestra_core::tasks::TaskMetrics;

use crate::journal::append_file::AppendFile;
use crate::journal::entry::decode;
use crate::journal::frame::{LogEnd, LogFrames};
use crate::journal::log::Log;
use crate::layout::PRIVATE;

const NAME: &str = "tasks";
const STARTED: u8 = 1;
const ENDED: u8 = 2;

/// How much a power cut may undo; the commands of that time are run again.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// An attempt at a task has begun.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct TaskStarted {
    pub task: String,
    /// Counted from 1, over all starts of the run.
    pub attempt: u32,
    /// What it depends on: a task with another digest is another one.
    pub digest: [u8; 32],
    /// Its devices and its slot, for people.
    pub place: String,
    /// The state of its declared outputs when it began; `None` where some were missing.
    pub before: Option<[u8; 32]>,
}

#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct TaskEnded {
    pub started: TaskStarted,
    /// When it ended: microseconds since 1970 UTC.
    pub at: u64,
    pub class: String,
    /// The same in words, with the last that it wrote; empty where it ended well.
    pub why: String,
    /// From the start of the command to its end.
    pub milliseconds: u64,
    /// Bytes.
    pub peak_memory: u64,
    /// Bytes that it was seen to hold of one GPU.
    pub gpu_memory: u64,
    /// The state of its declared outputs.
    pub outputs: [u8; 32],
    /// What was read from its lines.
    pub metrics: TaskMetrics,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskRecord {
    pub attempts: u32,
    /// The last attempt, if no end of it is noted.
    pub running: Option<TaskStarted>,
    /// The last end that is noted.
    pub ended: Option<TaskEnded>,
}

/// The journal of tasks of an output folder, whose owner writes it. Every call may block on the disk.
#[derive(Debug)]
pub struct TaskJournal {
    log: Log,
    records: BTreeMap<String, TaskRecord>,
    synced: Instant,
    damaged: Option<PathBuf>,
}

impl TaskJournal {
    /// Opens the journal of the output folder, or begins it.
    pub fn open(output: &Path) -> io::Result<Self> {
        let (path, mut damaged) = (path(output), None);
        let file = AppendFile::open(&path)?;
        let (records, end) = read_all(File::open(&path)?)?;
        if file.len() > end.len {
            let whole = path.with_extension("damaged");
            fs::copy(&path, &whole)?;
            damaged = Some(whole);
        }
        let log = Log::go_on(&path, end)?;
        Ok(Self { log, records, synced: Instant::now(), damaged })
    }

    /// Where the journal lies as it was found, if its end could not be read and was cut off: by a power cut in the middle of an entry, or by
    /// another program.
    pub fn damaged(&self) -> Option<&Path> {
        self.damaged.as_deref()
    }

    /// What the journal of an output folder says, without changing it; nothing where there is none.
    pub fn read(output: &Path) -> io::Result<BTreeMap<String, TaskRecord>> {
        match File::open(path(output)) {
            Ok(file) => Ok(read_all(file)?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    /// Visits the end of every attempt that the journal of an output folder has noted, in their order, without changing it.
    pub fn each_end(output: &Path, mut visit: impl FnMut(TaskEnded)) -> io::Result<()> {
        let visit = |entry| match entry {
            TaskEntry::Started(_) => {}
            TaskEntry::Ended(ended) => visit(ended),
        };
        match File::open(path(output)) {
            Ok(file) => each_entry(file, visit).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether tasks were run into this output folder.
    pub fn exists(output: &Path) -> bool {
        path(output).exists()
    }

    /// What is known of each task, by its id.
    pub fn records(&self) -> &BTreeMap<String, TaskRecord> {
        &self.records
    }

    /// Notes that an attempt begins.
    ///
    /// # Errors
    /// It is not noted: the command must not be started.
    pub fn started(&mut self, started: TaskStarted) -> io::Result<()> {
        self.log.append(STARTED, &started)?;
        note_start(&mut self.records, started);
        Ok(())
    }

    /// Notes that an attempt has ended.
    ///
    /// # Errors
    /// It is not noted: the next start runs the task again.
    pub fn ended(&mut self, ended: TaskEnded) -> io::Result<()> {
        self.log.append(ENDED, &ended)?;
        note_end(&mut self.records, ended);
        if self.synced.elapsed() >= SYNC_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    /// Makes all that is noted survive a power cut.
    pub fn sync(&mut self) -> io::Result<()> {
        self.synced = Instant::now();
        self.log.file.sync()
    }
}

fn path(output: &Path) -> PathBuf {
    output.join(PRIVATE).join(NAME)
}

fn note_start(records: &mut BTreeMap<String, TaskRecord>, started: TaskStarted) {
    let record = records.entry(started.task.clone()).or_default();
    record.attempts = record.attempts.max(started.attempt);
    record.running = Some(started);
}

fn note_end(records: &mut BTreeMap<String, TaskRecord>, ended: TaskEnded) {
    let record = records.entry(ended.started.task.clone()).or_default();
    record.running = None;
    record.ended = Some(ended);
}

enum TaskEntry {
    Started(TaskStarted),
    Ended(TaskEnded),
}

/// The records, and where the last whole entry ends.
fn read_all(file: File) -> io::Result<(BTreeMap<String, TaskRecord>, LogEnd)> {
    let mut records = BTreeMap::new();
    let end = each_entry(file, |entry| match entry {
        TaskEntry::Started(started) => note_start(&mut records, started),
        TaskEntry::Ended(ended) => note_end(&mut records, ended),
    })?;
    Ok((records, end))
}

/// Visits the entries in their order; gives where the last whole one ends.
fn each_entry(file: File, mut visit: impl FnMut(TaskEntry)) -> io::Result<LogEnd> {
    let mut reader = LogFrames::new(file)?;
    let mut end = LogEnd::START;
    while let Some((kind, body)) = reader.next()? {
        let entry = match kind {
            STARTED => decode(body).map(TaskEntry::Started),
            ENDED => decode(body).map(TaskEntry::Ended),
            _ => None,
        };
        // Of another build: what follows it cannot be understood either.
        let Some(entry) = entry else { break };
        visit(entry);
        end = reader.end;
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use orchestra_core::tasks::MetricValues;

    use super::*;
    use crate::journal::frame::encode;

    fn started(task: &str, attempt: u32) -> TaskStarted {
        TaskStarted {
            task: task.into(),
            attempt,
            digest: [attempt as u8; 32],
            place: "slot 0".into(),
            before: None,
        }
    }

    /// With a right checksum, so that only the number itself can be doubted.
    #[test]
    fn an_entry_that_claims_a_text_of_a_tebibyte_takes_no_memory_and_ends_the_journal() {
        for kind in [STARTED, ENDED] {
            let mut file = tempfile::tempfile().unwrap();
            let (bytes, _) = encode(kind, &(1_u64 << 40), LogEnd::START).unwrap();
            io::Write::write_all(&mut file, &bytes).and_then(|()| io::Seek::rewind(&mut file)).unwrap();
            let (records, end) = read_all(file).unwrap();
            assert!(records.is_empty() && end == LogEnd::START);
        }
    }

    fn ended(started: TaskStarted) -> TaskEnded {
        let (class, why) = ("done".into(), String::new());
        let metrics = [("loss".into(), MetricValues { count: 3, last: 0.5, min: 0.25, max: 1.0 })].into();
        TaskEnded {
            started,
            at: 7,
            class,
            why,
            milliseconds: 1,
            peak_memory: 2,
            gpu_memory: 3,
            outputs: [0; 32],
            metrics,
        }
    }

    #[test]
    fn a_torn_tail_is_cut_off_and_what_is_whole_stays() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(PRIVATE)).unwrap();
        assert!(TaskJournal::read(folder.path()).unwrap().is_empty());
        let mut journal = TaskJournal::open(folder.path()).unwrap();
        journal.started(started("a", 1)).unwrap();
        journal.ended(ended(started("a", 1))).unwrap();
        journal.started(started("a", 2)).unwrap();
        journal.started(started("b", 1)).unwrap();
        let all = journal.records().clone();
        assert_eq!(
            (all["a"].attempts, all["a"].running.is_some(), all["a"].ended.is_some()),
            (2, true, true)
        );
        drop(journal);
        assert_eq!(TaskJournal::read(folder.path()).unwrap(), all);
        let bytes = std::fs::read(path(folder.path())).unwrap();
        for cut in 0..bytes.len() {
            std::fs::write(path(folder.path()), &bytes[..cut]).unwrap();
            let mut journal = TaskJournal::open(folder.path()).unwrap();
            assert!(!journal.records().contains_key("b"), "{cut}");
            journal.started(started("c", 1)).unwrap();
            let known = journal.records().clone();
            assert_eq!(TaskJournal::read(folder.path()).unwrap(), known);
        }
    }
}
