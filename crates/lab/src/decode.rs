//! The decode part: threads that do to each item what a loader does, and nothing else. No actors, no workers, no results.

use std::os::unix::ffi::OsStrExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::{Emit, FetchRun, MapRun};
use orchestra_core::{SourceId, StageId};
use orchestra_plan::{ColumnRef, Origin};
use orchestra_runtime::RowScope;

use crate::error::LabError;
use crate::memory::{Leaf, Memory, SourceWork, row_at};
use crate::run::Cancel;
use crate::stats::divide;

/// Pictures that are decoded to make a stage's inputs ready; the other rows are copies of them.
const DIFFERENT_ROWS: usize = 64;

#[derive(Debug, Clone, Copy)]
pub struct DecodePart<'a> {
    pub work: &'a SourceWork,
    pub memory: &'a Memory,
    pub paths: &'a [PathBuf],
    pub cancel: &'a Cancel,
}

/// What the items of one source cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeFigures {
    pub source: SourceId,
    /// Items, those that cannot be decoded included.
    pub items: u64,
    pub threads: usize,
    /// From the start of the threads to the end of the last one.
    pub elapsed: Duration,
}

impl DecodeFigures {
    pub fn rate(&self) -> f64 {
        divide(self.items as f64, self.elapsed.as_secs_f64())
    }

    pub fn core_seconds(&self, cores: usize) -> f64 {
        divide(self.threads.min(cores) as f64, self.rate())
    }
}

#[derive(Default)]
struct Done {
    items: u64,
    failed: u64,
    first_error: Option<String>,
}

impl DecodePart<'_> {
    /// Goes over the items with `threads` threads, as often as it takes to fill `at_least`, and always to the end of the last pass, so
    /// that small and large pictures weigh as they do in a run.
    pub fn measure(&self, threads: usize, at_least: Duration) -> Result<DecodeFigures, LabError> {
        let next = AtomicUsize::new(0);
        let end = AtomicUsize::new(usize::MAX);
        let started = Instant::now();
        let work = |thread: usize| {
            let mut hand = Hand::new(self, thread, threads);
            let mut done = Done::default();
            while !self.cancel.is_cancelled() {
                let k = next.fetch_add(1, Ordering::Relaxed);
                if k > 0 && k.is_multiple_of(self.paths.len()) && started.elapsed() >= at_least {
                    end.fetch_min(k, Ordering::Relaxed);
                }
                if k >= end.load(Ordering::Relaxed) {
                    break;
                }
                done.items += 1;
                if let Err(error) = hand.item(&self.paths[k % self.paths.len()]) {
                    done.failed += 1;
                    done.first_error.get_or_insert(error);
                }
            }
            done
        };
        let done = on_threads(threads, &work);
        let elapsed = started.elapsed();
        self.cancel.check()?;
        let items: u64 = done.iter().map(|d| d.items).sum();
        let failed: u64 = done.iter().map(|d| d.failed).sum();
        if failed == items {
            let first = done.into_iter().find_map(|d| d.first_error).unwrap_or_default();
            return Err(LabError::NothingDecodes { tried: self.paths.len(), first });
        }
        Ok(DecodeFigures { source: self.work.source, items, threads, elapsed })
    }

    /// Fills every row of the stages that this source feeds with prepared pictures.
    pub fn make_ready(&self) -> Result<(), LabError> {
        let mut hand = Hand::new(self, 0, 1);
        let most = self.work.stages().map(|stage| self.memory.n_rows(stage)).max().unwrap_or(0);
        let mut filled = 0;
        let mut first_error = None;
        for path in self.paths {
            self.cancel.check()?;
            if filled >= most.min(DIFFERENT_ROWS) {
                break;
            }
            match hand.item(path) {
                Ok(()) => filled += 1,
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        if filled == 0 && most > 0 {
            let first = first_error.unwrap_or_default();
            return Err(LabError::NothingDecodes { tried: self.paths.len(), first });
        }
        for stage in self.work.stages() {
            // SAFETY: `hand` borrows no row between items, and no worker runs during this part.
            unsafe { self.memory.repeat_rows(stage, filled.min(self.memory.n_rows(stage))) };
        }
        Ok(())
    }
}

/// Runs `work` on so many threads; a panic in one of them goes on here.
fn on_threads<T: Send>(threads: usize, work: &(impl Fn(usize) -> T + Sync)) -> Vec<T> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|t| scope.spawn(move || work(t))).collect();
        all.into_iter().map(|t| t.join().unwrap_or_else(|why| panic::resume_unwind(why))).collect()
    })
}

/// One thread's buffers, and the rows that are its own.
struct Hand<'a> {
    part: DecodePart<'a>,
    fetch: Box<dyn FetchRun>,
    leaves: Vec<LeafRun<'a>>,
    /// For rows that go to sinks, and for threads that have no row of their own.
    heap: Vec<u8>,
}

struct LeafRun<'a> {
    reads: &'a [ColumnRef],
    maps: Vec<MapAt<'a>>,
    /// Of a batch stage.
    cursor: Option<Cursor>,
}

struct MapAt<'a> {
    stage: StageId,
    run: Box<dyn MapRun>,
    reads: &'a [ColumnRef],
}

/// Rows `first`, `first + step`, ... of a stage, over and over.
struct Cursor {
    stage: StageId,
    first: usize,
    step: usize,
    at: usize,
}

impl Cursor {
    /// The next row; `None` for a thread beyond the last row.
    fn next(&mut self, n_rows: usize) -> Option<usize> {
        if self.first >= n_rows {
            return None;
        }
        let row = self.at;
        self.at = if row + self.step < n_rows { row + self.step } else { self.first };
        Some(row)
    }
}

impl<'a> Hand<'a> {
    fn new(part: &DecodePart<'a>, thread: usize, threads: usize) -> Self {
        let leaf = |leaf: &'a Leaf| LeafRun {
            reads: &leaf.reads,
            maps: leaf
                .maps
                .iter()
                .map(|(stage, map, reads)| MapAt { stage: *stage, run: map.start(), reads })
                .collect(),
            cursor: leaf.stage.map(|stage| Cursor { stage, first: thread, step: threads, at: thread }),
        };
        Self {
            part: *part,
            fetch: part.work.fetch.start(),
            leaves: part.work.leaves.iter().map(leaf).collect(),
            heap: Vec::new(),
        }
    }

    /// As a loader does: reads the item, and makes one row for everything that takes one.
    fn item(&mut self, path: &Path) -> Result<(), String> {
        let DecodePart { work, memory, .. } = self.part;
        let named = |refusal: Refusal| format!("`{}`: {}", path.display(), refusal.error);
        self.fetch.fetch(path.as_os_str().as_bytes()).map_err(named)?;
        let (leaves, heap) = (&mut self.leaves, &mut self.heap);
        let mut ended = Ok(());
        self.fetch.with_row(&mut |row| {
            let scope = RowScope { from: Origin::Source(work.source), row, carried: &[], up: None };
            ended = leaves.iter_mut().try_for_each(|LeafRun { reads, maps, cursor }| {
                walk(maps, &scope, &mut |scope| write(reads, scope, memory, cursor.as_mut(), heap))
            });
        });
        ended.map_err(named)
    }
}

/// Takes a row through some maps, one inside of the other.
fn walk(
    maps: &mut [MapAt<'_>],
    scope: &RowScope<'_>,
    leaf: &mut dyn FnMut(&RowScope<'_>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let Some((map, rest)) = maps.split_first_mut() else { return leaf(scope) };
    let inputs: Option<Vec<Value<'_>>> = map.reads.iter().map(|read| scope.get(*read)).collect();
    let inputs = inputs.ok_or_else(|| Refusal::result("a column is missing; this is a bug"))?;
    map.run.apply(&inputs, &mut Inner { stage: map.stage, rest, scope, leaf })
}

struct Inner<'a, 'm, 'e> {
    stage: StageId,
    rest: &'a mut [MapAt<'m>],
    scope: &'a RowScope<'e>,
    leaf: &'a mut dyn FnMut(&RowScope<'_>) -> Result<(), Refusal>,
}

impl Emit for Inner<'_, '_, '_> {
    fn parts(&mut self, _: usize) -> Result<(), Refusal> {
        Ok(())
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), Refusal> {
        let scope = RowScope { from: Origin::Stage(self.stage), row, carried: &[], up: Some(self.scope) };
        walk(self.rest, &scope, self.leaf)
    }
}

/// Writes the tensors among some columns: into the next row of a batch stage, or aside.
fn write(
    reads: &[ColumnRef],
    scope: &RowScope<'_>,
    memory: &Memory,
    cursor: Option<&mut Cursor>,
    heap: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let row = cursor.and_then(|cursor| Some((cursor.stage, cursor.next(memory.n_rows(cursor.stage))?)));
    for (input, read) in reads.iter().enumerate() {
        let given = scope.get(*read);
        let row = match row {
            Some((stage, row)) => {
                let arena = memory.arena(stage);
                let (slot, row) = row_at(arena.layout(), row);
                // SAFETY: this row is only this thread's, and no worker runs during this part.
                unsafe { arena.input_row_mut(slot, input, row) }
            }
            None => {
                let bytes = match given {
                    Some(Value::Unwritten(tensor)) => tensor.spec().row_bytes().unwrap_or(0),
                    _ => continue,
                };
                heap.resize(bytes, 0);
                &mut *heap
            }
        };
        match given {
            Some(Value::Unwritten(tensor)) => tensor.write(row)?,
            Some(Value::Tensor(view)) if view.data.len() == row.len() => row.copy_from_slice(view.data),
            _ => return Err(Refusal::result("a column is missing; this is a bug")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_a_core_but_never_more_than_there_are_and_nothing_is_a_rate_of_zero() {
        let source = SourceId(0);
        let busy = DecodeFigures { source, items: 1000, threads: 8, elapsed: Duration::from_secs(1) };
        assert_eq!((busy.core_seconds(4), busy.core_seconds(16)), (0.004, 0.008));
        let none = DecodeFigures { items: 0, elapsed: Duration::ZERO, ..busy };
        assert_eq!((none.rate(), none.core_seconds(2)), (0.0, 0.0));
    }

    #[test]
    fn threads_share_all_rows_and_none_twice() {
        for (threads, rows) in [(1, 1), (2, 5), (4, 384), (16, 3)] {
            let mut seen = vec![0; rows];
            for thread in 0..threads {
                let mut cursor = Cursor { stage: StageId(0), first: thread, step: threads, at: thread };
                let own = (rows + threads - 1 - thread) / threads;
                for _ in 0..own {
                    seen[cursor.next(rows).unwrap()] += 1;
                }
                let again = cursor.next(rows);
                assert_eq!(again, (thread < rows).then_some(thread), "{threads} threads, {rows} rows");
            }
            assert!(seen.iter().all(|n| *n == 1), "{threads} threads, {rows} rows: {seen:?}");
        }
    }
}
