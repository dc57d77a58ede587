//! Who may begin, resume, discard and commit what.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::common::{
    FAILURES, FOLDED, RESULTS, ROWS, audit, files, fold, group, identity, item, items_in, no_stray_parts,
    parts, record, scratch, seal, start,
};
use orchestra_core::ItemId;
use orchestra_store::{
    BeginError, Commit, CommitError, FileIndex, FolderState, Journal, ListingReader, OpenError, OutputFolder,
    PlacedFile, RunIdentity, write_atomic,
};

/// A run that has committed these items.
fn begun(items: &[ItemId]) -> (tempfile::TempDir, Journal) {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = start(dir.path());
    journal.commit(&group(items)).unwrap();
    (dir, journal)
}

/// For what it says, before anything was written.
fn is_refused(error: &CommitError) -> bool {
    !matches!(error, CommitError::Write { .. } | CommitError::Disturbed { .. } | CommitError::Closed(_))
}

#[test]
fn a_second_owner_is_refused_and_told_the_first_ones_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = OutputFolder::open(dir.path()).unwrap();
    match OutputFolder::open(dir.path()) {
        Err(error @ OpenError::Busy { pid, since, .. }) => {
            assert_eq!(pid, Some(std::process::id()));
            assert!(since.is_some());
            assert!(error.to_string().contains(&format!("process {}", std::process::id())));
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    OutputFolder::open(dir.path()).unwrap();
}

#[test]
fn a_run_goes_from_fresh_over_unfinished_to_finished_and_can_be_reopened_for_new_items() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(OutputFolder::open(dir.path()).unwrap().state(), FolderState::Fresh);
    let mut journal = start(dir.path());
    journal.commit(&group(&[item(0, 0), item(0, 4)])).unwrap();
    drop(journal);
    match OutputFolder::open(dir.path()).unwrap().state() {
        FolderState::Unfinished { identity: stored, counts } => {
            assert_eq!(stored, identity());
            assert_eq!((counts.done, counts.failed), (1, 1));
        }
        other => panic!("{other:?}"),
    }
    let mut journal = start(dir.path());
    journal.finish(65).unwrap();
    assert!(matches!(journal.commit(&group(&[item(0, 1)])), Err(CommitError::Finished)));
    drop(journal);
    assert!(matches!(
        OutputFolder::open(dir.path()).unwrap().state(),
        FolderState::Finished { code: 65, .. }
    ));

    let folder = OutputFolder::open(dir.path()).unwrap();
    let longer_list = RunIdentity { fingerprint: vec![("items".into(), "5".into())], ..identity() };
    let mut journal = Journal::resume(folder, &longer_list, &files()).unwrap();
    journal.commit(&group(&[item(0, 1)])).unwrap();
    assert_eq!(audit(dir.path(), &journal).len(), 3);
    drop(journal);
    match OutputFolder::open(dir.path()).unwrap().state() {
        FolderState::Unfinished { identity: stored, .. } => assert_eq!(stored, longer_list),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_finished_run_stays_finished_when_its_files_have_been_taken_away() {
    let (dir, mut journal) = begun(&[item(0, 0)]);
    journal.finish(0).unwrap();
    drop(journal);
    fs::remove_file(dir.path().join("results.jsonl")).unwrap();
    match OutputFolder::open(dir.path()).unwrap().state() {
        FolderState::Finished { counts, code: 0, .. } => assert_eq!(counts.done, 1),
        other => panic!("{other:?}"),
    }
    // Reopened all the same, it does again what is no longer there.
    assert_eq!(start(dir.path()).counts().total(), 0);
}

#[test]
fn text_that_was_added_to_a_finished_run_is_not_cut_off() {
    let (dir, mut journal) = begun(&[item(0, 0)]);
    journal.finish(0).unwrap();
    drop(journal);
    let path = dir.path().join("results.jsonl");
    let text = fs::read_to_string(&path).unwrap() + "my own line\n";
    fs::write(&path, &text).unwrap();
    let folder = OutputFolder::open(dir.path()).unwrap();
    assert!(matches!(Journal::resume(folder, &identity(), &files()), Err(BeginError::Grown(p)) if p == path));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_result_file_that_is_edited_to_the_same_size_or_a_folder_that_is_moved_away_ends_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("out");
    let mut journal = start(&folder);
    journal.commit(&group(&[item(0, 0)])).unwrap();
    let results = folder.join("results.jsonl");
    let text = fs::read(&results).unwrap();
    let edited: Vec<u8> = text.iter().map(|byte| byte ^ 1).collect();
    let changed_at = || results.metadata().map(|meta| (meta.mtime(), meta.mtime_nsec())).unwrap();
    let write = |bytes: &[u8]| {
        // The clock of a file system ticks some hundred times a second.
        let before = changed_at();
        while changed_at() == before {
            fs::write(&results, bytes).unwrap();
        }
    };
    write(&edited);
    let refused = journal.commit(&group(&[item(0, 1)])).unwrap_err();
    assert!(refused.to_string().contains("other bytes than the run has written"), "{refused}");
    // What has only another time is as it was.
    write(&text);
    journal.commit(&group(&[item(0, 1)])).unwrap();
    fs::rename(&folder, dir.path().join("moved")).unwrap();
    let files = vec![PlacedFile { path: "arrays/2.npy".into(), bytes: vec![7] }];
    let refused = journal.commit(&Commit { files, ..group(&[item(0, 2)]) }).unwrap_err();
    assert!(refused.to_string().contains("it was moved or replaced"), "{refused}");
    assert!(!folder.exists(), "nothing is written beside the run");
}

#[test]
fn an_item_is_never_finished_twice() {
    let (dir, mut journal) = begun(&[item(0, 0), item(0, 1)]);
    let mut doubled = group(&[item(0, 2)]);
    doubled.failed.push(item(0, 2));
    for bad in [group(&[item(0, 3), item(0, 1)]), group(&[item(0, 3), item(0, 3)]), doubled] {
        match journal.commit(&bad) {
            Err(CommitError::FinishedTwice(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let stray = Commit { appends: vec![(FileIndex(5), b"x\n".to_vec())], ..Commit::default() };
    assert!(matches!(journal.commit(&stray), Err(CommitError::UnknownFile(FileIndex(5)))));
    assert_eq!(audit(dir.path(), &journal).len(), 2);
    journal.commit(&group(&[item(0, 2), item(0, 3)])).unwrap();
    assert_eq!(audit(dir.path(), &journal).len(), 4);
}

#[test]
fn a_commit_without_items_keeps_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = start(dir.path());
    let sum = Commit { appends: vec![(RESULTS, b"{\"sum\": 1}\n".to_vec())], ..Commit::default() };
    journal.commit(&sum).unwrap();
    journal.commit(&Commit::default()).unwrap();
    drop(journal);
    drop(start(dir.path()));
    assert_eq!(fs::read(dir.path().join("results.jsonl")).unwrap(), b"{\"sum\": 1}\n");
}

#[test]
fn a_file_that_something_else_changes_stops_the_commit() {
    let (dir, mut journal) = begun(&[item(0, 0)]);
    let path = dir.path().join("results.jsonl");
    let text = fs::read(&path).unwrap();
    fs::write(&path, b"").unwrap();
    match journal.commit(&group(&[item(0, 1)])) {
        Err(error @ CommitError::Disturbed { .. }) => {
            assert!(error.to_string().contains("results.jsonl"), "{error}");
            assert!(error.to_string().contains("0 bytes"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    fs::write(&path, &text).unwrap();
    journal.commit(&group(&[item(0, 1)])).unwrap();
    fs::remove_file(dir.path().join("failures.jsonl")).unwrap();
    assert!(matches!(journal.commit(&group(&[item(0, 4)])), Err(CommitError::Disturbed { .. })));
    drop(journal);
    let journal = start(dir.path());
    assert_eq!(audit(dir.path(), &journal).len(), 2);
    assert!(items_in(dir.path(), FAILURES).is_empty());
}

#[test]
fn begin_leaves_files_alone_that_it_does_not_know_until_they_are_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.jsonl");
    fs::write(&path, b"precious\n").unwrap();
    let folder = OutputFolder::open(dir.path()).unwrap();
    assert!(
        matches!(Journal::begin(folder, &identity(), &files()), Err(BeginError::InTheWay(p)) if p == path)
    );
    assert_eq!(fs::read(&path).unwrap(), b"precious\n");
    let mut folder = OutputFolder::open(dir.path()).unwrap();
    folder.discard().unwrap();
    let journal = Journal::begin(folder, &identity(), &files()).unwrap();
    assert!(audit(dir.path(), &journal).is_empty());
}

#[test]
fn discard_says_what_it_throws_away_and_leaves_strangers() {
    let (dir, journal) = begun(&[item(0, 0), item(0, 1), item(0, 4)]);
    write_atomic(&dir.path().join("run.json"), b"{}").unwrap();
    fs::write(journal.folder().private_dir().join("items-scans"), b"a\nb\n").unwrap();
    fs::write(dir.path().join("notes.txt"), b"mine").unwrap();
    drop(journal);
    let mut folder = OutputFolder::open(dir.path()).unwrap();
    let discarded = folder.discard().unwrap();
    assert_eq!((discarded.counts.done, discarded.counts.failed), (2, 1));
    assert_eq!(discarded.files.len(), 4, "what is private is not said: {discarded:?}");
    assert_eq!(folder.state(), FolderState::Fresh);
    let left: Vec<_> = fs::read_dir(folder.private_dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
    assert!(dir.path().join("notes.txt").exists());
    assert!(!dir.path().join("results.jsonl").exists());
}

#[test]
fn placed_files_go_with_their_run_and_strangers_beside_them_stay() {
    let (dir, mut journal) = begun(&[item(0, 0), item(0, 7)]);
    journal.commit(&group(&[item(1, 0)])).unwrap();
    assert!(dir.path().join("own/1/0.txt").exists());
    fs::write(dir.path().join("own/0/mine.txt"), b"mine").unwrap();
    drop(journal);
    OutputFolder::open(dir.path()).unwrap().discard().unwrap();
    let left: Vec<_> =
        fs::read_dir(dir.path().join("own")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["0"], "a folder that is empty now is gone");
    let left: Vec<_> =
        fs::read_dir(dir.path().join("own/0")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["mine.txt"]);
}

#[test]
fn a_placed_file_that_became_a_link_goes_and_what_it_leads_to_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (out, archive) = (dir.path().join("out"), dir.path().join("archive"));
    let mut journal = start(&out);
    journal.commit(&group(&[item(0, 0), item(1, 0), item(1, 7)])).unwrap();
    drop(journal);
    fs::create_dir(&archive).unwrap();
    fs::rename(out.join("own/0/0.txt"), archive.join("0.txt")).unwrap();
    std::os::unix::fs::symlink(archive.join("0.txt"), out.join("own/0/0.txt")).unwrap();
    fs::rename(out.join("own/1"), archive.join("1")).unwrap();
    std::os::unix::fs::symlink(archive.join("1"), out.join("own/1")).unwrap();
    OutputFolder::open(&out).unwrap().discard().unwrap();
    assert!(!out.join("own/0").exists());
    for file in ["0.txt", "1/0.txt", "1/7.txt"] {
        assert!(!fs::read(archive.join(file)).unwrap().is_empty(), "{file}");
    }
}

#[test]
fn a_part_has_the_name_of_one_and_takes_the_rows_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = start(&dir.path().join("out"));
    journal.commit(&group(&[item(0, 0), item(0, 2)])).unwrap();
    let rows = journal.rows(ROWS).unwrap();
    let names = [
        "../parts-00000.txt",
        "/tmp/parts-00000.txt",
        "a/../parts-00000.txt",
        "",
        "run.json",
        "results.jsonl",
        "parts.txt",
        "parts-0000.txt",
        "parts-00000",
        "parts-0000x.txt",
        ".parts-00000.txt",
        ".orchestra/parts-00000.txt",
    ];
    for path in names.map(PathBuf::from) {
        let part = PlacedFile { path: path.clone(), bytes: rows.clone() };
        assert!(is_refused(&journal.seal(ROWS, &part, Vec::new()).unwrap_err()), "{}", path.display());
    }
    assert!(matches!(journal.rows(FileIndex(9)), Err(CommitError::UnknownFile(_))));
    let part = PlacedFile { path: "parts-00000.txt".into(), bytes: Vec::new() };
    assert!(
        matches!(journal.seal(RESULTS, &part, Vec::new()), Err(CommitError::UnknownFile(RESULTS))),
        "it only grows"
    );
    assert_eq!(journal.rows(ROWS).unwrap(), rows, "nothing has happened");
    let part = PlacedFile { path: "sub/parts-00000.txt".into(), bytes: rows.clone() };
    journal.seal(ROWS, &part, b"two rows".to_vec()).unwrap();
    assert_eq!(fs::read(dir.path().join("out/sub/parts-00000.txt")).unwrap(), rows);
    assert_eq!((journal.n_part_files(ROWS), journal.rows(ROWS).unwrap().len()), (1, 0));
    assert_eq!(journal.notes(ROWS), [b"two rows"]);
    journal.finish(0).unwrap();
    let part = PlacedFile { path: "parts-00001.txt".into(), bytes: Vec::new() };
    assert!(matches!(journal.seal(ROWS, &part, Vec::new()), Err(CommitError::Finished)));
}

#[test]
fn the_parts_of_a_run_go_with_it_and_a_link_in_the_place_of_one_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (out, archive) = (dir.path().join("out"), dir.path().join("archive"));
    let mut journal = start(&out);
    for index in [0, 2, 4] {
        journal.commit(&group(&[item(1, index + 10)])).unwrap();
        seal(&mut journal).unwrap();
    }
    drop(journal);
    fs::create_dir(&archive).unwrap();
    fs::rename(out.join("parts-00001.txt"), archive.join("1.txt")).unwrap();
    std::os::unix::fs::symlink(archive.join("1.txt"), out.join("parts-00001.txt")).unwrap();
    fs::write(out.join("parts-00009.txt"), b"mine").unwrap();
    OutputFolder::open(&out).unwrap().discard().unwrap();
    assert_eq!(parts(&out), [out.join("parts-00009.txt")]);
    assert!(!fs::read(archive.join("1.txt")).unwrap().is_empty());
}

#[test]
fn a_part_that_was_taken_away_since_it_was_durable_is_the_users_business() {
    let (dir, mut journal) = begun(&[item(0, 0), item(0, 2)]);
    seal(&mut journal).unwrap();
    journal.commit(&group(&[item(0, 6)])).unwrap();
    drop(journal);
    fs::remove_file(dir.path().join("parts-00000.txt")).unwrap();
    let mut journal = start(dir.path());
    assert_eq!((journal.counts().total(), journal.n_part_files(ROWS)), (3, 1));
    seal(&mut journal).unwrap();
    assert_eq!(parts(dir.path()), [dir.path().join("parts-00001.txt")], "its number is not given again");
}

#[test]
fn where_files_are_not_trusted_the_rows_of_a_damaged_part_do_not_count_and_those_before_it_do() {
    for is_torn in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = start(dir.path());
        for items in [[item(0, 0), item(0, 2)], [item(0, 6), item(0, 8)], [item(0, 10), item(0, 12)]] {
            items.iter().for_each(|item| journal.commit(&group(&[*item])).unwrap());
            seal(&mut journal).unwrap();
        }
        journal.commit(&group(&[item(0, 4), item(0, 16)])).unwrap();
        journal.finish(0).unwrap();
        drop(journal);
        // Something is shorter than it was when it was durable: from then on nothing is taken on trust.
        fs::write(dir.path().join("failures.jsonl"), b"").unwrap();
        let part = dir.path().join("parts-00001.txt");
        match is_torn {
            true => fs::write(&part, &fs::read(&part).unwrap()[1..]).unwrap(),
            false => fs::remove_file(&part).unwrap(),
        }
        let journal = start(dir.path());
        assert_eq!(audit(dir.path(), &journal), [item(0, 0), item(0, 2)].into());
        assert_eq!(parts(dir.path()), [dir.path().join("parts-00000.txt")]);
        assert_eq!(journal.recovered().lost_commits, 5);
    }
}

#[test]
fn where_the_seal_of_rows_does_not_count_the_rows_do_not_either() {
    let (dir, mut journal) = begun(&[item(0, 0)]);
    seal(&mut journal).unwrap();
    journal.commit(&group(&[item(0, 2)])).unwrap();
    let results = fs::read(dir.path().join("results.jsonl")).unwrap();
    // No row for a part, but it lies between those that go into one.
    journal.commit(&group(&[item(0, 1)])).unwrap();
    journal.commit(&group(&[item(0, 8)])).unwrap();
    seal(&mut journal).unwrap();
    drop(journal);
    fs::write(dir.path().join("results.jsonl"), results).unwrap();
    // The commit of item 1 is gone, so that of the seal is, and its part; item 2 would have its row nowhere.
    let journal = start(dir.path());
    assert_eq!(audit(dir.path(), &journal), [item(0, 0)].into());
    no_stray_parts(dir.path(), &journal);
}

#[test]
fn a_file_outside_of_the_folder_is_never_placed() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = start(&dir.path().join("out"));
    for path in ["../x", "/tmp/x", "a/../../x", "", "results.jsonl", ".orchestra/lock"] {
        let files = vec![PlacedFile { path: path.into(), bytes: Vec::new() }];
        let commit = Commit { files, done: vec![item(0, 0)], ..Commit::default() };
        assert!(is_refused(&journal.commit(&commit).unwrap_err()), "{path}");
        assert!(!journal.is_finished(item(0, 0)));
    }
}

/// An output folder that others have made leads to no file outside of it, whatever stands there in the place of what.
#[test]
fn links_in_the_output_folder_are_never_followed() {
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("mine");
    let link = |from: &Path| std::os::unix::fs::symlink(&mine, from).unwrap();
    let untouched = || assert_eq!(fs::read(&mine).unwrap(), b"a text of mine");
    fs::write(&mine, b"a text of mine").unwrap();
    // In the place of a result, before the run, and when it goes on.
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    link(&out.join("results.jsonl"));
    let open = || OutputFolder::open(&out).unwrap();
    let error = Journal::begin(open(), &identity(), &files()).unwrap_err();
    assert!(error.to_string().contains("it is a link"), "{error}");
    let mut folder = open();
    folder.discard().unwrap();
    Journal::begin(folder, &identity(), &files()).unwrap().commit(&group(&[item(0, 0)])).unwrap();
    assert!(!fs::read(out.join("results.jsonl")).unwrap().is_empty());
    fs::remove_file(out.join("results.jsonl")).unwrap();
    link(&out.join("results.jsonl"));
    let error = Journal::resume(open(), &identity(), &files()).unwrap_err();
    assert!(error.to_string().contains("it is a link"), "{error}");
    // And of the summary, when all is thrown away.
    link(&out.join("run.json"));
    open().discard().unwrap();
    assert!(!out.join("results.jsonl").is_symlink() && !out.join("run.json").is_symlink());
    untouched();
    // In the place of what the run keeps for itself.
    for name in [".orchestra/lock", ".orchestra/journal", ".orchestra"] {
        let out = dir.path().join(name.replace('/', "-"));
        let path = out.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        link(&path);
        let error = OutputFolder::open(&out).unwrap_err();
        assert!(error.to_string().contains("it is a link"), "{name}: {error}");
        untouched();
    }
}

#[test]
fn a_folder_that_is_a_link_out_of_the_output_folder_hides_no_file_that_is_written_or_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (out, elsewhere) = (dir.path().join("out"), dir.path().join("elsewhere"));
    let files = [PathBuf::from("sub/results.jsonl")];
    drop(Journal::begin(OutputFolder::open(&out).unwrap(), &identity(), &files).unwrap());
    fs::remove_dir_all(out.join("sub")).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("results.jsonl"), b"a text of mine").unwrap();
    std::os::unix::fs::symlink(&elsewhere, out.join("sub")).unwrap();
    let error = Journal::resume(OutputFolder::open(&out).unwrap(), &identity(), &files).unwrap_err();
    assert!(error.to_string().contains("outside of the output folder"), "{error}");
    let mut folder = OutputFolder::open(&out).unwrap();
    folder.discard().unwrap();
    let error = Journal::begin(folder, &identity(), &files).unwrap_err();
    assert!(error.to_string().contains("outside of the output folder"), "{error}");
    assert_eq!(fs::read(elsewhere.join("results.jsonl")).unwrap(), b"a text of mine");
}

/// A journal that no run of ours wrote.
#[test]
fn a_journal_that_names_files_outside_of_its_folder_is_none_and_they_stay() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mine = dir.path().join("mine");
    for name in [mine.clone(), "../mine".into(), "a/../../mine".into(), "./../mine".into()] {
        fs::write(&mine, b"a text of mine").unwrap();
        forge(&out, &name);
        let mut folder = OutputFolder::open(&out).unwrap();
        let FolderState::Unreadable(why) = folder.state() else { panic!("{name:?}: {:?}", folder.state()) };
        assert!(why.contains("mine") && why.contains("no file below the folder"), "{why}");
        assert_eq!(folder.discard().unwrap().files, [] as [PathBuf; 0]);
        assert_eq!(folder.state(), FolderState::Fresh);
        assert_eq!(fs::read(&mine).unwrap(), b"a text of mine");
    }
}

/// Writes the journal of a run without items that names this file. Its only frame is a length, a checksum and the header.
fn forge(out: &Path, name: &Path) {
    const FIRST_CHECKSUM: u32 = 0x4f52_4348;
    let other = tempfile::tempdir().unwrap();
    let placeholder = "x".repeat(name.as_os_str().len());
    let folder = OutputFolder::open(other.path()).unwrap();
    drop(Journal::begin(folder, &identity(), &[PathBuf::from(&placeholder)]).unwrap());
    let mut journal = fs::read(other.path().join(".orchestra/journal")).unwrap();
    let at = journal.windows(placeholder.len()).position(|bytes| bytes == placeholder.as_bytes()).unwrap();
    journal[at..at + placeholder.len()].copy_from_slice(name.as_os_str().as_encoded_bytes());
    let checked = [&FIRST_CHECKSUM.to_le_bytes(), &journal[..4], &journal[8..]].concat();
    journal[4..8].copy_from_slice(&crc32fast::hash(&checked).to_le_bytes());
    fs::create_dir_all(out.join(".orchestra")).unwrap();
    fs::write(out.join(".orchestra/journal"), journal).unwrap();
}

#[test]
fn a_list_that_claims_more_items_than_it_has_bytes_for_has_none() {
    let dir = tempfile::tempdir().unwrap();
    drop(start(dir.path()));
    let list = fs::File::create(dir.path().join(".orchestra/items-scans")).unwrap();
    // Its end claims as many items as its length allows.
    let (size, count) = (1_u64 << 43, 1_u64 << 40);
    list.set_len(size).unwrap();
    let index = count / 1024 * 8;
    let trailer = [&(size - 56 - index).to_le_bytes()[..], &count.to_le_bytes(), &[0; 32], b"orclist1"];
    list.write_all_at(&trailer.concat(), size - 56).unwrap();
    list.write_all_at(b"orclist1", 0).unwrap();
    let error = ListingReader::open(&dir.path().join(".orchestra/items-scans")).unwrap_err();
    assert!(error.to_string().contains("hole"), "{error}");
    let list = ListingReader::open_unfinished(&dir.path().join(".orchestra/items-scans")).unwrap();
    assert_eq!(list.n_items(), 0);
}

#[test]
fn a_pipe_or_a_link_in_the_place_of_a_file_is_told_and_never_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let names =
        [".orchestra/journal", ".orchestra/lock", ".orchestra/items-scans", "run.json", "logs/run.log"];
    for name in names {
        let dir = tempfile::tempdir().unwrap();
        drop(start(dir.path()));
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for is_link in [false, true].into_iter().filter(|is_link| !is_link || name != "run.json") {
            drop(fs::remove_file(&path));
            match is_link {
                true => std::os::unix::fs::symlink("/etc/hostname", &path).unwrap(),
                false => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
            }
            let error = OutputFolder::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("remove it"), "{error}");
        }
    }
    for name in [".orchestra", "logs", "tasks"] {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join(name)).unwrap();
        let error = OutputFolder::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("it is a link"), "{error}");
    }
}

#[test]
fn a_run_needs_files_of_its_own_that_can_be_cut() {
    let dir = tempfile::tempdir().unwrap();
    let open = || OutputFolder::open(dir.path()).unwrap();
    let same: Vec<_> = ["a.jsonl", "./sub/../a.jsonl"].map(PathBuf::from).to_vec();
    assert!(matches!(Journal::begin(open(), &identity(), &same), Err(BeginError::SameFile { .. })));
    fs::create_dir(dir.path().join("folder.jsonl")).unwrap();
    for (file, why) in [("folder.jsonl", "not a regular file"), ("/dev/null", "outside of the output folder")]
    {
        let error = Journal::begin(open(), &identity(), &[PathBuf::from(file)]).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    drop(start(dir.path()));
    assert!(matches!(Journal::begin(open(), &identity(), &files()), Err(BeginError::NotFresh(_))));
    let other = [PathBuf::from("results.jsonl")];
    assert!(matches!(Journal::resume(open(), &identity(), &other), Err(BeginError::OtherFiles { .. })));
    let empty = tempfile::tempdir().unwrap();
    let folder = OutputFolder::open(empty.path()).unwrap();
    assert!(matches!(Journal::resume(folder, &identity(), &files()), Err(BeginError::NothingToResume(_))));
}

#[test]
fn a_path_that_is_no_folder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = OutputFolder::open(&file).unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
}

#[test]
fn what_a_killed_run_was_about_to_write_is_removed_by_the_next_start_and_nothing_else() {
    let (dir, journal) = begun(&[item(0, 1)]);
    drop(journal);
    let leftovers = [".placing.tmp", ".orchestra/.placing.tmp", ".orchestra/.tmpXyZ123"];
    let kept = [
        ".hidden",
        "notes.tmp",
        ".orchestra/items-scans",
        ".orchestra/.hidden",
        ".orchestra/.tmp",
        ".orchestra/.tmp-notes",
        ".orchestra/.notes.tmp",
    ];
    for name in leftovers.iter().chain(&kept) {
        std::fs::write(dir.path().join(name), b"half").unwrap();
    }
    assert_eq!(start(dir.path()).counts().done, 1);
    for name in leftovers {
        assert!(!dir.path().join(name).exists(), "{name}");
    }
    for name in kept {
        assert!(dir.path().join(name).exists(), "{name}");
    }
}

#[test]
fn a_fresh_start_removes_what_runs_keep_in_the_private_folder_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("mine"), b"mine").unwrap();
    drop(start(dir.path()));
    let private = dir.path().join(".orchestra");
    let ours = ["items-scans", "items-scans.next", "rows-parts", "fold-all", "state-all.0", "made-all"];
    let ours = [&ours[..], &["tasks", "commands", "keepers", "command.json", "history.jsonl"]].concat();
    let mine = ["notes.txt", ".notes", "items", "my-items-list", "journal.old"];
    for name in ours.iter().chain(&mine) {
        fs::write(private.join(name), b"text").unwrap();
    }
    for folder in ["best", "folder", "rows-of-mine"] {
        fs::create_dir(private.join(folder)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), private.join(folder).join("link")).unwrap();
    }
    let mut folder = OutputFolder::open(dir.path()).unwrap();
    folder.discard().unwrap();
    let left = fs::read_dir(&private).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut expected = [&mine[..], &["folder", "lock", "rows-of-mine"]].concat();
    expected.sort_unstable();
    assert_eq!(BTreeSet::from_iter(left), BTreeSet::from_iter(expected.iter().map(ToString::to_string)));
    assert!(
        private.join("folder/link/mine").exists(),
        "what a link leads to stays, and the link of mine too"
    );
}

#[test]
fn only_the_last_state_has_to_be_there_and_where_it_is_damaged_its_rows_do_not_count() {
    for damaged in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = start(dir.path());
        for index in [0, 1, 3, 5, 7] {
            journal.commit(&group(&[item(0, index)])).unwrap();
            fold(&mut journal).unwrap();
        }
        assert_eq!(journal.n_part_files(FOLDED), 4);
        journal.commit(&group(&[item(0, 11)])).unwrap();
        drop(journal);
        fs::write(dir.path().join(format!(".orchestra/state-all.{damaged}")), b"mine").unwrap();
        let mut journal = start(dir.path());
        // Number 3 is the last state; with it item 7 is gone, whose row is in no other, and the state before lies in the other file.
        let expected = match damaged {
            0 => [0, 1, 3, 5, 7, 11].map(|index| item(0, index)).into(),
            _ => [0, 1, 3, 5].map(|index| item(0, index)).into(),
        };
        assert_eq!(audit(dir.path(), &journal), expected);
        journal.commit(&group(&[item(0, 13)])).unwrap();
        fold(&mut journal).unwrap();
        drop(journal);
        audit(dir.path(), &start(dir.path()));
    }
}

#[test]
fn a_state_that_was_about_to_be_written_leaves_the_one_that_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = start(dir.path());
    let mut lengths = Vec::new();
    for index in [1, 3, 5] {
        journal.commit(&group(&[item(0, index)])).unwrap();
        lengths.push(fs::metadata(dir.path().join(".orchestra/journal")).unwrap().len());
        fold(&mut journal).unwrap();
    }
    drop(journal);
    // The journal ends before the third state counts, which lies where the first one was; the second is damaged, too.
    let path = dir.path().join(".orchestra/journal");
    fs::write(&path, &fs::read(&path).unwrap()[..lengths[2] as usize]).unwrap();
    let journal = start(dir.path());
    assert_eq!(audit(dir.path(), &journal), [item(0, 1), item(0, 3)].into());
    drop(journal);
    fs::write(dir.path().join(".orchestra/state-all.1"), b"mine").unwrap();
    assert!(audit(dir.path(), &start(dir.path())).is_empty());
}

#[test]
fn only_a_file_that_is_folded_has_states() {
    let (_dir, mut journal) = begun(&[item(0, 0), item(0, 1)]);
    for file in [RESULTS, ROWS, FileIndex(9)] {
        assert!(is_refused(&journal.keep_state(file, Vec::new()).unwrap_err()));
    }
    assert_eq!(journal.state(FOLDED).unwrap(), None);
    journal.keep_state(FOLDED, Vec::new()).unwrap();
    assert_eq!(journal.state(FOLDED).unwrap(), Some(Vec::new()));
}

#[test]
fn parts_of_failures_that_are_done_again_count_no_more_wherever_the_run_is_killed() {
    let failing: Vec<ItemId> = (0..6).map(|n| item(0, 5 * n + 4)).collect();
    let commit = |items: &[ItemId]| Commit {
        appends: items.iter().flat_map(|i| [(FAILURES, record(*i)), (ROWS, record(*i))]).collect(),
        failed: items.to_vec(),
        ..Commit::default()
    };
    let dir = scratch();
    let mut journal = start(dir.path());
    for items in failing.chunks(3) {
        journal.commit(&commit(items)).unwrap();
        seal(&mut journal).unwrap();
    }
    assert_eq!(journal.n_part_files(ROWS), 2);
    assert_eq!(journal.retry_failed(&[FAILURES, ROWS]).unwrap(), 6);
    let is_empty = |journal: &Journal| {
        assert_eq!((journal.n_part_files(ROWS), journal.counts().failed), (0, 0));
        assert!(journal.rows(ROWS).unwrap().is_empty() && parts(dir.path()).is_empty());
    };
    is_empty(&journal);
    drop(journal);
    is_empty(&start(dir.path()));
    let mut journal = start(dir.path());
    journal.commit(&commit(&failing[..2])).unwrap();
    seal(&mut journal).unwrap();
    drop(journal);
    let journal = start(dir.path());
    assert_eq!((journal.n_part_files(ROWS), journal.counts().failed), (1, 2));
    drop(journal);
    // No byte is taken on trust where a durable record is gone.
    fs::write(dir.path().join("failures.jsonl"), "").unwrap();
    is_empty(&start(dir.path()));
}

#[test]
fn the_account_of_an_end_is_gone_once_a_later_start_changes_what_counts_and_not_before() {
    let failing = [item(0, 1), item(0, 2)];
    let commit = |journal: &mut Journal, done: &[ItemId], failed: &[ItemId]| {
        let of = |file, items: &[ItemId]| -> Vec<_> { items.iter().map(|i| (file, record(*i))).collect() };
        let appends = [of(RESULTS, done), of(FAILURES, failed)].concat();
        journal.commit(&Commit { appends, done: done.to_vec(), failed: failed.to_vec(), ..Commit::default() })
    };
    let dir = scratch();
    let account = dir.path().join("run.json");
    let mut journal = start(dir.path());
    commit(&mut journal, &[item(0, 0)], &failing).unwrap();
    let end = |mut journal: Journal| {
        journal.finish(65).unwrap();
        fs::write(&account, "{}").unwrap();
    };
    end(journal);
    // A start with nothing to do, one that is killed before it has done anything, and a commit that is refused.
    drop(start(dir.path()));
    let mut journal = start(dir.path());
    journal.commit(&Commit::default()).unwrap();
    journal.sync().unwrap();
    assert!(is_refused(&commit(&mut journal, &[item(0, 0)], &[]).unwrap_err()));
    assert!(account.exists());
    // The end of another start was recorded in between, and the account is that of this one.
    assert_eq!(journal.retry_failed(&[FAILURES]).unwrap(), 2);
    assert!(!account.exists());
    commit(&mut journal, &failing, &[]).unwrap();
    end(journal);
    let mut journal = start(dir.path());
    assert_eq!(journal.retry_failed(&[FAILURES]).unwrap(), 0);
    assert!(account.exists());
    commit(&mut journal, &[item(0, 3)], &[]).unwrap();
    assert!(!account.exists());
    // What the end of this run cannot replace is no reason to do no item.
    drop(journal);
    fs::create_dir(&account).unwrap();
    let mut journal = start(dir.path());
    commit(&mut journal, &[item(0, 4)], &[]).unwrap();
    assert!(account.is_dir());
}
