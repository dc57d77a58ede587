//! The journal and the files of a run: whatever lies in an output folder, what counts as finished is what an intact journal and the
//! files beside it say. It never discards a folder: a made-up journal may name any file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use orchestra_core::{ItemId, SourceId};
use orchestra_store::{
    BeginError, Commit, FileIndex, FolderState, Journal, OpenError, OutputFolder, PlacedFile,
};

use crate::history::{FILES, FOLDED, OnDisk, ROWS, build, identity};
use crate::journal_file::{FINISHED, FORMAT, Frame, GROUP, HEADER, Header, SEALED, SYNCED, decode, frames};
use crate::scratch;

/// Numbers beyond this are not tried: a set of items takes a bit for each up to the largest.
const MOST_ITEMS: u64 = 1 << 20;
const JOURNAL: &str = ".orchestra/journal";
/// Lies beside the output folder; a journal may name it.
const STRANGER: &str = "stranger-00000.x";

/// Recovery never panics, never lets a file grow, and calls finished what the longest intact part of the journal that agrees with the
/// files says; and the run can go on from there.
///
/// The bytes describe a history of commits and then damage to the files, see `history`.
pub fn journal(bytes: &[u8]) {
    let Ok(disk) = build(bytes) else { return };
    let found = frames(disk.journal.as_deref().unwrap_or_default());
    if found.iter().filter_map(|f| f.group(usize::MAX)).any(|g| g.spans().any(|s| s.end() > Some(MOST_ITEMS)))
    {
        return;
    }
    let folder = scratch::empty_folder("out");
    lay_out(&folder, &disk);
    let stranger = scratch::write(STRANGER, b"not of the run");
    let opened = OutputFolder::open(&folder);
    assert_eq!(read(&folder, &disk), disk, "to look at a folder changes nothing");
    let header = header(&found);
    let open = match opened {
        Ok(open) => open,
        // Only a header that was made for it names files that cannot be looked at.
        Err(OpenError::Io { .. }) if header.is_some_and(|h| !is_ours(&h)) => return,
        Err(other) => panic!("nothing but this check uses the folder: {other}"),
    };
    let state = open.state();
    match (&state, &disk.journal, &header) {
        (FolderState::Fresh, None, _) => return,
        (FolderState::Unreadable(why), Some(_), header) if header.as_ref().is_none_or(|h| !is_ours(h)) => {
            assert!(!why.is_empty());
            return;
        }
        (FolderState::Unfinished { .. } | FolderState::Finished { .. }, Some(_), Some(_)) => {}
        other => panic!("{other:?} with {} intact frames", found.len()),
    }
    resume(open, &state, &folder, &disk, &found);
    assert_eq!(
        fs::read(stranger).ok().as_deref(),
        Some(&b"not of the run"[..]),
        "no name leads out of the folder"
    );
}

fn resume(open: OutputFolder, state: &FolderState, folder: &Path, disk: &OnDisk, found: &[Frame]) {
    let is_ours = header(found).is_some_and(|h| is_ours(&h));
    let files: Vec<PathBuf> = FILES.iter().map(PathBuf::from).collect();
    match Journal::resume(open, &identity(), &files) {
        Ok(journal) => {
            assert!(is_ours);
            check_resumed(&journal, folder, disk, found);
            go_on(journal, folder);
        }
        Err(BeginError::OtherFiles { .. }) => assert!(!is_ours),
        Err(BeginError::Grown(_)) => {
            assert!(matches!(state, FolderState::Finished { .. }));
            let now = read(folder, disk);
            assert_eq!(now.journal, disk.journal);
            for (now, before) in now.files.iter().zip(&disk.files) {
                assert_eq!(now.as_deref().unwrap_or_default(), before.as_deref().unwrap_or_default());
            }
        }
        Err(other) => panic!("{other}"),
    }
}

/// The journal that is there now is whole, begins with what survived of the old one, and says of items and files what is true.
fn check_resumed(journal: &Journal, folder: &Path, disk: &OnDisk, found: &[Frame]) {
    let now = read(folder, disk);
    let bytes = now.journal.as_deref().unwrap_or_default();
    let before = disk.journal.as_deref().unwrap_or_default();
    let frames = frames(bytes);
    assert_eq!(frames.last().map(|f| f.end), Some(bytes.len()), "all of the journal is intact");
    let kept =
        frames.iter().zip(found).take_while(|(a, b)| a.end == b.end && bytes[..a.end] == before[..a.end]);
    let kept = kept.count();
    assert!(frames[kept..].iter().all(|f| f.kind != GROUP), "recovery adds no commit");

    let mut items = BTreeSet::new();
    let mut lengths = [0; 5];
    let mut parts = [0; 5];
    let mut state = None;
    for frame in &frames {
        if let Some(group) = frame.group(FILES.len()) {
            group.add_to(&mut items);
            group.appended.iter().for_each(|a| lengths[usize::from(a.file)] += a.bytes);
        }
        if let Some(sealed) = frame.sealed() {
            let file = usize::from(sealed.file);
            assert_eq!(lengths[file], sealed.bytes, "a seal takes all rows that wait");
            lengths[file] = 0;
            parts[file] += 1;
            state = Some(sealed.part).filter(|_| sealed.file == FOLDED).or(state);
        }
    }
    for (file, parts) in parts.into_iter().enumerate() {
        assert_eq!(journal.n_part_files(FileIndex(file)), parts);
    }
    let is_state = |bytes: Vec<u8>| {
        state.as_ref().is_some_and(|s| s.bytes == bytes.len() as u64 && s.crc == crc32fast::hash(&bytes))
    };
    let found_state = journal.state(FileIndex(usize::from(FOLDED))).expect("the state that counts is there");
    assert_eq!(found_state.map(is_state), state.as_ref().map(|_| true), "the state is the one that counts");
    let sources: BTreeSet<u16> = items.iter().map(|(source, _)| *source).collect();
    let finished = |source: u16| {
        let set = journal.finished(SourceId(source));
        set.iter().map(|index| (source, index)).collect::<Vec<_>>()
    };
    let known: BTreeSet<(u16, u64)> = sources.into_iter().flat_map(finished).collect();
    assert_eq!(known, items);
    assert_eq!(journal.counts().total(), items.len() as u64);

    for ((now, before), length) in now.files.iter().zip(&disk.files).zip(lengths) {
        let (now, before) = (now.as_deref().unwrap_or_default(), before.as_deref().unwrap_or_default());
        assert_eq!(now.len() as u64, length, "a file holds exactly what was committed");
        assert!(before.starts_with(now), "a file is only ever cut");
    }
    let n_groups = |frames: &[Frame]| frames.iter().filter(|f| f.kind == GROUP).count() as u64;
    assert_eq!(journal.recovered().lost_commits, n_groups(found) - n_groups(&frames[..kept]));
    assert!(kept >= agreeing(disk, found), "what is intact and agrees with the files is kept");
    check_trust(disk, found, kept);
}

/// How many frames from the start are intact and agree with the files to the last byte.
fn agreeing(disk: &OnDisk, found: &[Frame]) -> usize {
    let mut at = [0_usize; 5];
    let holds = |frame: &&Frame| match frame.kind {
        GROUP => frame.group(FILES.len()).is_some_and(|group| {
            group.appended.iter().all(|a| {
                let file = usize::from(a.file);
                let from = at[file];
                let rest = disk.files[file].as_deref().unwrap_or_default().get(from..).unwrap_or_default();
                let record = usize::try_from(a.bytes).ok().and_then(|n| rest.get(..n));
                at[file] += record.map_or(0, <[u8]>::len);
                record.is_some_and(|record| crc32fast::hash(record) == a.crc)
            })
        }),
        // What is placed is not laid out here: neither such a frame nor the group behind it has to be kept.
        crate::journal_file::PLACED | SEALED => false,
        crate::journal_file::RESUMED => decode::<orchestra_store::RunIdentity>(&frame.body).is_some(),
        _ => true,
    };
    let n = found.iter().take_while(holds).count();
    // Rows that a seal behind them may have taken from their file lie nowhere without it.
    let sealed: BTreeSet<u16> =
        found[n..].iter().filter_map(Frame::sealed).map(|sealed| sealed.file).collect();
    let is_taken = |frame: &Frame| {
        frame.group(FILES.len()).is_some_and(|group| group.appended.iter().any(|a| sealed.contains(&a.file)))
    };
    found[..n].iter().position(is_taken).unwrap_or(n)
}

/// Beyond the last entry that says that all before it is durable, every record that is kept has its checksum.
fn check_trust(disk: &OnDisk, found: &[Frame], kept: usize) {
    let durable =
        found.iter().rposition(|f| matches!(f.kind, SYNCED | FINISHED | SEALED)).map_or(0, |at| at + 1);
    let mut at = [0_usize; 5];
    for (index, frame) in found[..kept].iter().enumerate() {
        if let Some(sealed) = frame.sealed() {
            at[usize::from(sealed.file)] = 0;
        }
        for a in frame.group(FILES.len()).iter().flat_map(|g| &g.appended) {
            let file = usize::from(a.file);
            if found[index..kept].iter().filter_map(Frame::sealed).any(|sealed| sealed.file == a.file) {
                continue; // It lies in a part.
            }
            let durable = if a.file >= ROWS { 0 } else { durable };
            let record = &disk.files[file].as_deref().unwrap_or_default()[at[file]..][..a.bytes as usize];
            at[file] += record.len();
            assert!(index < durable || crc32fast::hash(record) == a.crc, "a damaged record is kept");
        }
    }
}

/// One more item is committed, and the next start knows it.
fn go_on(mut journal: Journal, folder: &Path) {
    let before = journal.counts();
    let index = journal.finished(SourceId(0)).next_missing(0);
    let item = ItemId { source: SourceId(0), index };
    let appends = vec![(FileIndex(0), b"one more\n".to_vec())];
    let committed = journal.commit(&Commit { appends, done: vec![item], ..Commit::default() });
    assert!(committed.is_ok() && journal.is_finished(item), "{committed:?}");
    let rows = FileIndex(usize::from(ROWS));
    let bytes = journal.rows(rows).expect("what counts of a file can be read");
    let sealed = journal.seal(rows, &PlacedFile { path: "parts-99999.x".into(), bytes }, Vec::new());
    assert!(sealed.is_ok() && journal.rows(rows).is_ok_and(|rows| rows.is_empty()), "{sealed:?}");
    let kept = journal.keep_state(FileIndex(usize::from(FOLDED)), b"all rows".to_vec());
    assert!(kept.is_ok(), "{kept:?}");
    drop(journal);
    let state = OutputFolder::open(folder).expect("the folder is not in use").state();
    match state {
        FolderState::Unfinished { counts, .. } => {
            assert_eq!((counts.done, counts.failed), (before.done + 1, before.failed));
        }
        other => panic!("{other:?} after a commit"),
    }
}

fn header(found: &[Frame]) -> Option<Header> {
    let first = found.first().filter(|f| f.kind == HEADER)?;
    decode::<Header>(&first.body).filter(|h| h.format == FORMAT)
}

fn is_ours(header: &Header) -> bool {
    header.files.iter().map(Vec::as_slice).eq(FILES.iter().map(|f| f.as_bytes()))
}

fn lay_out(folder: &Path, disk: &OnDisk) {
    for inner in [".orchestra", "more", "sub"] {
        fs::create_dir(folder.join(inner)).expect("the folder is new");
    }
    let files = FILES.iter().zip(&disk.files).chain([(&JOURNAL, &disk.journal)]);
    let files = files.filter_map(|(name, bytes)| Some((*name, bytes.as_ref()?)));
    for (name, bytes) in files.chain(disk.parts.iter().map(|(name, bytes)| (name.as_str(), bytes))) {
        fs::write(folder.join(name), bytes).expect("the folder takes a small file");
    }
}

fn read(folder: &Path, like: &OnDisk) -> OnDisk {
    let read = |name: &str| fs::read(folder.join(name)).ok();
    let parts = like.parts.keys().filter_map(|name| Some((name.clone(), read(name)?))).collect();
    OnDisk { journal: read(JOURNAL), files: FILES.map(read), parts }
}
