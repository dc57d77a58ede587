//! The result of a reduce over a journal and no actors: cut off between its commits, and with states in between.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{TensorView, Value};
use orchestra_core::{DType, SourceId};
use orchestra_store::{FolderState, OutputFolder, RunIdentity};
use orchestra_testkit::workflow_file::WorkflowFile;

use super::*;
use crate::fault_tests::fake_plan::plan_of_text;
use crate::flow::result_files::result_files;
use crate::flow::row_lengths::HEAD;

const ROWS: u64 = 30;

/// So long that a few rows fill a commit of the result.
fn name(index: u64) -> String {
    format!("{index}-{}", "x".repeat(500_000))
}

fn plan_in(folder: &Path) -> Arc<Plan> {
    let flow = WorkflowFile::new()
        .source("items", "images", "paths = ['items']")
        .gray("pixels", "items", [1, 1], "")
        .stage("every", "reduce", "pixels", "op = 'concat'")
        .stage("total", "reduce", "pixels", "op = 'sum'\nover = 'elements'")
        .sink("every", "jsonl", "every")
        .sink("total", "npy", "total.sum");
    Arc::new(plan_of_text(&flow, 0, folder).unwrap())
}

fn open(plan: &Plan) -> Journal {
    let identity =
        RunIdentity { run_id: "r".into(), workflow: "w".into(), fingerprint: Vec::new(), started_unix_ms: 0 };
    let (folder, files) = (OutputFolder::open(&plan.output).unwrap(), result_files(plan));
    match folder.state() {
        FolderState::Fresh => Journal::begin(folder, &identity, &files).unwrap(),
        _ => Journal::resume(folder, &identity, &files).unwrap(),
    }
}

/// The commit of an item of one pixel, whose value is its number.
fn item(plan: &Plan, index: u64) -> Commit {
    let id = ItemId { source: SourceId(0), index };
    let item = name(index);
    let token = Token::whole(Ticket::alone(id, 0, &item, b""));
    let data = (index as f32).to_ne_bytes();
    let row =
        [Value::Tensor(TensorView { name: "pixels", dtype: DType::F32, shape: &[1, 1, 1], data: &data })];
    let mut commit = Commit { done: vec![id], ..Commit::default() };
    for (stage, reduce) in plan.reduces() {
        let mut bytes = Vec::new();
        let begin = begin_row(&mut bytes);
        write_head(&token, &mut bytes);
        reduce
            .contribute(&ItemInfo { name: &item, id, source: "items", parts: &[] }, &row, &mut bytes)
            .unwrap();
        end_row(&mut bytes, begin).unwrap();
        commit.appends.push((reduce_file(plan, stage), bytes));
    }
    commit
}

/// Items in this order, with a fold after each of those `folds`.
fn commit_all(plan: &Plan, journal: &mut Journal, order: &[u64], folds: &[u64]) {
    for index in order {
        journal.commit(&item(plan, *index)).unwrap();
        if folds.contains(index) {
            OpenReduce::all(plan, journal).unwrap().iter_mut().for_each(|open| open.fold(journal).unwrap());
        }
    }
}

fn left(plan: &Plan, journal: &Journal) -> Vec<Commit> {
    let mut commits = Vec::new();
    for open in OpenReduce::all(plan, journal).unwrap() {
        let mut result = open.result(plan, journal).unwrap();
        while let Some((commit, rows)) = result.next_commit().unwrap() {
            assert!(rows > 0);
            commits.push(commit);
        }
    }
    commits
}

fn written(folder: &Path) -> (String, Vec<u8>) {
    (
        fs::read_to_string(folder.join("every.jsonl")).unwrap(),
        fs::read(folder.join("total/total.npy")).unwrap(),
    )
}

fn in_order() -> Vec<u64> {
    (0..ROWS).collect()
}

fn uninterrupted() -> (String, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan_in(dir.path());
    let mut journal = open(&plan);
    commit_all(&plan, &mut journal, &in_order(), &[]);
    left(&plan, &journal).iter().for_each(|commit| journal.commit(commit).unwrap());
    written(dir.path())
}

#[test]
fn neither_the_order_of_commits_nor_folds_change_the_result() {
    let expected = uninterrupted();
    assert!(expected.1.ends_with(&((ROWS * (ROWS - 1) / 2) as f64).to_ne_bytes()));
    assert_eq!(expected.0.lines().count() as u64, ROWS);
    let dir = tempfile::tempdir().unwrap();
    let plan = plan_in(dir.path());
    let (first, second): (Vec<u64>, Vec<u64>) = in_order().into_iter().rev().partition(|index| index % 3 > 0);
    let mut journal = open(&plan);
    commit_all(&plan, &mut journal, &first, &[20, 4, 1]);
    drop(journal);
    let mut journal = open(&plan);
    commit_all(&plan, &mut journal, &second, &[3]);
    assert_eq!(journal.n_part_files(FileIndex(4)), 4, "it was folded so often");
    left(&plan, &journal).iter().for_each(|commit| journal.commit(commit).unwrap());
    assert_eq!(written(dir.path()), expected);
    assert!(left(&plan, &journal).is_empty(), "all of it is written");
}

#[test]
fn a_result_that_was_cut_off_goes_on_behind_what_is_written() {
    let expected = uninterrupted();
    for cut in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan_in(dir.path());
        let mut journal = open(&plan);
        commit_all(&plan, &mut journal, &in_order(), &[7]);
        let all = left(&plan, &journal);
        assert!(all.len() > 4, "the rows take several commits");
        all[..cut].iter().for_each(|commit| journal.commit(commit).unwrap());
        drop(journal);

        let mut journal = open(&plan);
        let open = OpenReduce::all(&plan, &journal).unwrap();
        assert_eq!(
            open[0].is_half_written(),
            (1..all.len() - 1).contains(&cut),
            "after {cut} of {}",
            all.len()
        );
        let rest = left(&plan, &journal);
        assert_eq!(rest, all[cut..]);
        rest.iter().for_each(|commit| journal.commit(commit).unwrap());
        assert_eq!(written(dir.path()), expected);
        if rest.is_empty() {
            return;
        }
    }
}

#[test]
fn a_head_sorts_as_items_and_parts_do_and_what_is_damaged_is_no_contribution() {
    let head = |source, index, parts: &[u32]| {
        let id = ItemId { source: SourceId(source), index };
        let path = parts.iter().map(|index| Part { index: *index, of: 9 }).collect();
        let mut out = Vec::new();
        write_head(&Token::new(Ticket::alone(id, 0, "a", b""), Share::WHOLE, path), &mut out);
        out
    };
    let sorted = [head(0, 255, &[300]), head(0, 256, &[2]), head(0, 256, &[300]), head(1, 0, &[0])];
    assert!(sorted.is_sorted());
    let one = Contribution::read(&sorted[2]).unwrap();
    assert_eq!((one.item.index, one.path[0].index, one.bytes), (256, 300, &[][..]));
    assert!((0..sorted[2].len()).all(|cut| Contribution::read(&sorted[2][..cut]).is_none()));
    let all = Written { rows: 7, is_all: true };
    assert_eq!(Written::read(&all.record()[HEAD..]), Some(all));
    assert!(Contribution::read(&all.record()[HEAD..]).is_none() && Written::read(&sorted[0]).is_none());
}
