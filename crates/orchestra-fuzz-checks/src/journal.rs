//! The journal and the files of a run: whatever lies in an output folder, recovery neither panics nor reaches outside of it, and the run can go on. What
//! counts after damage is judged by `crates/orchestra-store/tests/it/crashes.rs`. It never discards a folder: a made-up journal may name any file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use arbitrary::{Result, Unstructured};
use orchestra_core::{ItemId, SourceId};
use orchestra_store::{
    BeginError, Commit, FileIndex, FolderState, Journal, OpenError, OutputFolder, PlacedFile, RunIdentity,
};

use crate::scratch;

/// The files of each run; the last but one gathers rows for parts, and the last one rows for states.
const FILES: [&str; 5] =
    ["results.jsonl", "more/copies.jsonl", "failures.jsonl", ".orchestra/rows-parts", ".orchestra/fold-all"];
const ROWS: FileIndex = FileIndex(3);
const FOLDED: FileIndex = FileIndex(4);
const JOURNAL: &str = ".orchestra/journal";
/// Lies beside the output folder; a journal may name it.
const STRANGER: &str = "stranger-00000.x";
/// Names that a made-up entry has for a part file.
const PART_NAMES: [&str; 4] =
    ["../stranger-00000.x", "sub/../../stranger-00000.x", ".orchestra/lock-00000.x", "results.jsonl"];

const MAX_EVENTS: usize = 24;
const MAX_DAMAGES: usize = 8;
/// What the checksum of the first frame starts from.
const SEED: u32 = 0x4f52_4348;

/// All files of an output folder, by their names in it.
type OnDisk = BTreeMap<PathBuf, Vec<u8>>;

/// Recovery never panics, never lets a file of records grow, and leaves alone what lies outside of the folder; what it found, the next start finds, too;
/// and the run can go on from there.
///
/// The bytes describe a history of commits, entries that are changed and get sound checksums, and then damage to any file.
pub fn journal(bytes: &[u8]) {
    let folder = scratch::empty_folder("out");
    let stranger = scratch::write(STRANGER, b"not of the run");
    let mut input = Unstructured::new(bytes);
    // Where the bytes end, so does what is described.
    let _: Result<()> = play(&folder, &mut input);
    let is_ours = spoil(&folder, &mut input).unwrap_or(false);
    recover(&folder, is_ours);
    assert_eq!(
        fs::read(stranger).ok().as_deref(),
        Some(&b"not of the run"[..]),
        "no name leads out of the folder"
    );
}

fn identity() -> RunIdentity {
    RunIdentity {
        run_id: "run-1".into(),
        workflow: "test".into(),
        fingerprint: vec![("model a".into(), "1234".into())],
        started_unix_ms: 1_700_000_000_000,
    }
}

fn files() -> Vec<PathBuf> {
    FILES.iter().map(PathBuf::from).collect()
}

/// A run that commits, seals, folds and syncs as the bytes say.
fn play(folder: &Path, input: &mut Unstructured<'_>) -> Result<()> {
    let open = OutputFolder::open(folder).expect("it is new");
    let mut journal = Journal::begin(open, &identity(), &files()).expect("it is empty");
    for _ in 0..input.int_in_range(0..=MAX_EVENTS)? {
        let done = match input.int_in_range(0..=9)? {
            0 => journal.sync(),
            1 => {
                let finished = journal.finish(i32::from(input.arbitrary::<i8>()?));
                return finished.map_or_else(|e| panic!("{e}"), Ok);
            }
            2 => seal(&mut journal),
            3 => journal.rows(FOLDED).and_then(|rows| journal.keep_state(FOLDED, rows)),
            4 => journal.retry_failed(&[FileIndex(2)]).map(drop),
            _ => {
                let commit = commit(&journal, input)?;
                journal.commit(&commit)
            }
        };
        done.expect("nothing is wrong yet");
    }
    Ok(())
}

fn commit(journal: &Journal, input: &mut Unstructured<'_>) -> Result<Commit> {
    let mut commit = Commit::default();
    for _ in 0..input.int_in_range(0..=3)? {
        let record = vec![input.arbitrary::<u8>()?; input.int_in_range(0..=40)?];
        commit.appends.push((FileIndex(input.int_in_range(0..=FOLDED.0)?), record));
    }
    for ended in [&mut commit.done, &mut commit.failed] {
        let source = SourceId(input.int_in_range(0..=2)?);
        let item = ItemId { source, index: u64::from(input.arbitrary::<u8>()?) };
        ended.extend(Some(item).filter(|item| !journal.is_finished(*item)));
    }
    commit.failed.retain(|item| !commit.done.contains(item));
    Ok(commit)
}

fn seal(journal: &mut Journal) -> std::result::Result<(), orchestra_store::CommitError> {
    let bytes = journal.rows(ROWS)?;
    let path = format!("parts-{:05}.x", journal.n_part_files(ROWS)).into();
    journal.seal(ROWS, &PlacedFile { path, bytes }, Vec::new())
}

/// Changes entries of the journal, which look sound afterwards, and damages files. Whether the first entry is as it was.
fn spoil(folder: &Path, input: &mut Unstructured<'_>) -> Result<bool> {
    let path = folder.join(JOURNAL);
    let mut frames = frames(&fs::read(&path).expect("the run has begun"));
    let header = frames[0].clone();
    for _ in 0..input.int_in_range(0..=4)? {
        let at = input.int_in_range(0..=frames.len() - 1)?;
        match input.int_in_range(0..=4)? {
            0 => frames.insert(at, frames[at].clone()),
            1 if frames.len() > 1 => drop(frames.remove(at)),
            2 => frames[at][0] = input.int_in_range(0..=8)?,
            3 => rename(&mut frames[at], PART_NAMES[input.int_in_range(0..=PART_NAMES.len() - 1)?]),
            _ => {
                let from = input.int_in_range(1..=frames[at].len())?;
                let length = input.int_in_range(0..=16)?.min(input.len());
                let until = frames[at].len().min(from + input.int_in_range(0..=length)?);
                frames[at].splice(from..until, input.bytes(length)?.to_vec());
            }
        }
    }
    fs::write(&path, chained(&frames)).expect("a small file is taken");
    let names: Vec<PathBuf> = read(folder).into_keys().collect();
    for _ in 0..MAX_DAMAGES {
        if input.is_empty() {
            break;
        }
        // Every other time the journal.
        let path = if input.arbitrary()? { path.clone() } else { folder.join(input.choose(&names)?) };
        damage(&path, input)?;
    }
    let now = fs::read(path).unwrap_or_default();
    Ok(self::frames(&now).first() == Some(&header))
}

/// Gives another name to the part file of an entry.
fn rename(frame: &mut Vec<u8>, name: &str) {
    const OLD: usize = b"parts-00000.x".len();
    // The name follows its length. Bytes of the fuzzer may begin like one.
    if let Some(at) = frame.windows(1 + OLD).position(|bytes| bytes[1..].starts_with(b"parts-")) {
        frame.splice(at..=at + OLD, [&[name.len() as u8], name.as_bytes()].concat());
    }
}

/// Does to one file what a power cut, a disk or a careless hand does.
fn damage(path: &Path, input: &mut Unstructured<'_>) -> Result<()> {
    let Ok(mut bytes) = fs::read(path) else { return Ok(()) };
    let at = usize::from(input.arbitrary::<u16>()?) % (bytes.len() + 1);
    match input.int_in_range(0..=5)? {
        0 => bytes.truncate(at),
        1 => bytes[at..].fill(0),
        2 => {
            let bit = input.int_in_range(0..=7)?;
            bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << bit);
        }
        3 => {
            let length = usize::from(input.arbitrary::<u8>()?).min(input.len());
            bytes.extend_from_slice(input.bytes(length)?);
        }
        4 => drop(bytes.drain(..at)),
        _ => {
            fs::remove_file(path).expect("it was read");
            return Ok(());
        }
    }
    fs::write(path, bytes).expect("a small file is taken");
    Ok(())
}

fn recover(folder: &Path, is_ours: bool) {
    let before = read(folder);
    let opened = OutputFolder::open(folder);
    assert_eq!(read(folder), before, "to look at a folder changes nothing");
    let open = match opened {
        Ok(open) => open,
        // Only a header that was made for it names files that cannot be looked at.
        Err(OpenError::Io { .. }) if !is_ours => return,
        Err(other) => panic!("nothing but this check uses the folder: {other}"),
    };
    let is_over = match open.state() {
        FolderState::Fresh => return assert!(!before.contains_key(Path::new(JOURNAL))),
        FolderState::Unreadable(why) => return assert!(!is_ours && !why.is_empty()),
        FolderState::Unfinished { .. } => false,
        FolderState::Finished { .. } => true,
    };
    let journal = match Journal::resume(open, &identity(), &files()) {
        Ok(journal) => journal,
        Err(BeginError::OtherFiles { .. }) => return assert!(!is_ours),
        Err(BeginError::Grown(_)) => {
            let now = read(folder);
            // A file that was not there is there, and empty.
            let of = |disk: &OnDisk, name: &PathBuf| disk.get(name).cloned().unwrap_or_default();
            let is_same = |name: &PathBuf| of(&now, name) == of(&before, name);
            return assert!(is_over && is_same(&JOURNAL.into()) && files().iter().all(is_same));
        }
        Err(other) => panic!("{other}"),
    };
    let now = read(folder);
    for file in files() {
        let [now, before] =
            [&now, &before].map(|disk| disk.get(&file).map(Vec::as_slice).unwrap_or_default());
        assert!(before.starts_with(now), "a file is only ever cut");
    }
    let counts = journal.counts();
    drop(journal);
    let open = OutputFolder::open(folder).expect("the folder is not in use");
    let journal = Journal::resume(open, &identity(), &files()).expect("it was mended");
    assert_eq!(journal.counts(), counts, "the next start finds the same");
    assert_eq!(journal.recovered(), orchestra_store::Recovered::default(), "and nothing more to cut");
    go_on(journal, folder);
}

/// One more item is committed, and the next start knows it.
fn go_on(mut journal: Journal, folder: &Path) {
    let before = journal.counts();
    let index = journal.finished(SourceId(0)).next_missing(0);
    let item = ItemId { source: SourceId(0), index };
    let appends = vec![(FileIndex(0), b"one more\n".to_vec())];
    let committed = journal.commit(&Commit { appends, done: vec![item], ..Commit::default() });
    assert!(committed.is_ok() && journal.is_finished(item), "{committed:?}");
    let bytes = journal.rows(ROWS).expect("what counts of a file can be read");
    let sealed = journal.seal(ROWS, &PlacedFile { path: "parts-99999.x".into(), bytes }, Vec::new());
    assert!(sealed.is_ok() && journal.rows(ROWS).is_ok_and(|rows| rows.is_empty()), "{sealed:?}");
    let kept = journal.keep_state(FOLDED, b"all rows".to_vec());
    assert!(kept.is_ok(), "{kept:?}");
    drop(journal);
    match OutputFolder::open(folder).expect("the folder is not in use").state() {
        FolderState::Unfinished { counts, .. } => {
            assert_eq!((counts.done, counts.failed), (before.done + 1, before.failed));
        }
        other => panic!("{other:?} after a commit"),
    }
}

/// The intact frames of a journal, each its kind and its body. A frame is `length u32 | crc u32 | kind u8 | body`, little-endian; the length counts kind
/// and body, and the checksum is that of the frame before, the length, the kind and the body.
fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut frames, mut rest, mut crc) = (Vec::new(), bytes, SEED);
    while let Some((length, behind)) = rest.split_first_chunk::<4>()
        && let Some((expected, behind)) = behind.split_first_chunk::<4>()
        && let Some((frame, behind)) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)
    {
        crc = checksum(crc, frame);
        if frame.is_empty() || crc != u32::from_le_bytes(*expected) {
            break;
        }
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}

fn chained(frames: &[Vec<u8>]) -> Vec<u8> {
    let (mut bytes, mut crc) = (Vec::new(), SEED);
    for frame in frames {
        crc = checksum(crc, frame);
        bytes.extend([&(frame.len() as u32).to_le_bytes(), &crc.to_le_bytes(), &frame[..]].concat());
    }
    bytes
}

fn checksum(previous: u32, frame: &[u8]) -> u32 {
    crc32fast::hash(&[&previous.to_le_bytes(), &(frame.len() as u32).to_le_bytes(), frame].concat())
}

/// What lies in a folder, but for the lock.
fn read(folder: &Path) -> OnDisk {
    let (mut found, mut folders) = (OnDisk::new(), vec![folder.to_owned()]);
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).expect("it is a folder") {
            let path = entry.expect("it can be listed").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with("lock") => {}
                false => {
                    let name = path.strip_prefix(folder).expect("it was found there").to_owned();
                    found.insert(name, fs::read(path).expect("it is a file"));
                }
            }
        }
    }
    found
}
