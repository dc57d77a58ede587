//! The decode part: threads that do to each item what a loader does, and nothing else. No actors, no workers, no results.

use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use orchestra_core::{SourceId, StageId};
use orchestra_media::Preparer;

use crate::error::LabError;
use crate::memory::{Memory, SourceWork, row_at};
use crate::run::Cancel;
use crate::stats::divide;

/// Pictures that are decoded to make a stage's inputs ready; the other rows are copies of them.
const DIFFERENT_ROWS: usize = 64;

#[derive(Debug, Clone, Copy)]
pub struct DecodePart<'a> {
    pub work: &'a SourceWork,
    pub memory: &'a Memory,
    pub paths: &'a [PathBuf],
    pub max_pixels: u64,
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
        let most = self.work.targets.iter().map(|(stage, _)| self.memory.n_rows(*stage)).max().unwrap_or(0);
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
        for (stage, _) in &self.work.targets {
            // SAFETY: `hand` borrows no row between items, and no worker runs during this part.
            unsafe { self.memory.repeat_rows(*stage, filled.min(self.memory.n_rows(*stage))) };
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
    preparer: Preparer,
    file: Vec<u8>,
    /// For rows that go to sinks, and for threads that have no row of their own.
    heap: Vec<u8>,
    cursors: Vec<Cursor>,
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
        let cursor =
            |&(stage, _): &(StageId, Vec<usize>)| Cursor { stage, first: thread, step: threads, at: thread };
        Self {
            part: *part,
            preparer: Preparer::new(),
            file: Vec::new(),
            heap: Vec::new(),
            cursors: part.work.targets.iter().map(cursor).collect(),
        }
    }

    /// As `LoaderThread::item`: read, decode, and one row for everybody who wants one.
    fn item(&mut self, path: &Path) -> Result<(), String> {
        let DecodePart { work, memory, max_pixels, .. } = self.part;
        orchestra_runtime::read_file(path, &mut self.file).map_err(|(_, error)| error)?;
        let named = |error: orchestra_media::MediaError| format!("`{}`: {error}", path.display());
        self.preparer.decode_for(&self.file, max_pixels, &work.images).map_err(named)?;
        for &image in &work.for_sinks {
            self.aside(image).map_err(named)?;
        }
        for (target, (_, inputs)) in work.targets.iter().enumerate() {
            let cursor = &mut self.cursors[target];
            let arena = memory.arena(cursor.stage);
            let row = cursor.next(memory.n_rows(cursor.stage));
            for (input, &image) in inputs.iter().enumerate() {
                match row {
                    Some(row) => {
                        let (slot, row) = row_at(arena.layout(), row);
                        // SAFETY: this row is only this thread's, and no worker runs during this part.
                        let row = unsafe { arena.input_row_mut(slot, input, row) };
                        self.preparer.write_row(&work.images[image], row).map_err(named)?;
                    }
                    None => self.aside(image).map_err(named)?,
                }
            }
        }
        Ok(())
    }

    fn aside(&mut self, image: usize) -> Result<(), orchestra_media::MediaError> {
        let spec = &self.part.work.images[image];
        self.heap.resize(spec.row().iter().product::<usize>() * spec.dtype.size_bytes(), 0);
        self.preparer.write_row(spec, &mut self.heap)
    }
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
