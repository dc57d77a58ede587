//! Committer: the one thread that owns the journal and the result files of a run. It knows groups of bytes and ids, and rows that become part
//! files; no stages.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

use orchestra_core::PipelineId;
use orchestra_store::{Commit, NumberSet};

use crate::account::stats::{CommitCounts, Stats};
use crate::context::RunClock;
use crate::flow::ends::{FinishingSource, OnClosed};
use crate::flow::run_files::RunFiles;
use crate::messages::{HeldBatch, PipelineEnd};
use crate::panics::{RunBug, caught};
use crate::trace::{EndedItems, MaybeTracer};

/// Groups that are joined into one write when they wait already. Where there is no model, or no picture can be read, each is one item.
const MOST_JOBS_AT_ONCE: usize = 4096;

/// Under load, so many items come together before the next commit, because a write costs the same for one item as for many. Far below
/// what the window of items in flight covers, so no source waits for it.
const ITEMS_AT_ONCE: u64 = 512;

/// And so many bytes are worth a write of their own, however few items they are. A batch with so much text keeps its slot until then.
pub const BYTES_AT_ONCE: usize = 512 << 10;

/// Up to so many bytes, records of several groups are copied into one write; larger ones are written where they lie, so that they are in
/// memory once.
const BYTES_IN_ONE_WRITE: usize = 64 << 10;

/// Nothing waits longer for others to come.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How often what is written is also forced to the disk, so that a power cut costs little work.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// The ends of a pipeline, whose items are committed.
pub trait CommitObserver: Send + Sync {
    fn committed(&self, counts: &CommitCounts);

    /// No later group may be committed: it would come out of order.
    fn commit_failed(&self, error: String);

    fn is_refused(&self) -> bool;
}

pub struct CommitJob {
    pub commit: Commit,
    /// What `ends` is told when it is.
    pub counts: CommitCounts,
    /// What the tracer is told when it is written.
    pub traced: Vec<EndedItems>,
    /// Dropped when it is.
    pub holds: Vec<HeldBatch>,
    pub ends: Arc<dyn CommitObserver>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all jobs are commits")]
enum CommitterJob {
    Commit(CommitJob),
    /// Work on what is written, behind all that was sent before.
    Then(Box<dyn FnOnce(&mut RunFiles) + Send>),
    Close(Option<i32>, OnClosed),
}

/// Sends groups to the committer. The queue is bounded by the sources' windows of items in flight; and in bytes, as no source hands out further items
/// while so many as [`CommitterHandle::waiting`] says are enough. The committer comes to its end with them whatever sources do.
#[derive(Clone)]
pub struct CommitterHandle {
    queue: Sender<CommitterJob>,
    thread: Thread,
    hurried: Arc<AtomicUsize>,
    waiting: Arc<AtomicUsize>,
}

impl CommitterHandle {
    /// Hands a group over. Its `ends` hear of it, whatever becomes of it.
    pub fn send(&self, job: CommitJob) {
        self.waiting.fetch_add(job.commit.bytes(), Ordering::Relaxed);
        if let Err(gone) = self.queue.send(CommitterJob::Commit(job))
            && let CommitterJob::Commit(job) = gone.0
        {
            job.ends.commit_failed("the journal is closed".into());
        }
    }

    /// Bytes of records that were handed over and are not written yet. A source that is told of a commit finds its bytes gone.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Calls `then` once everything that was sent before is written, or is refused.
    pub fn when_written(&self, then: impl FnOnce() + Send + 'static) {
        self.then(move |_| then());
    }

    /// Gives the finished items by source, in the order of the plan, once everything sent before is written.
    pub fn finished(&self, then: impl FnOnce(Vec<Arc<NumberSet>>) + Send + 'static) {
        self.then(move |files| then(files.finished()));
    }

    /// Writes what a pipeline has left for its end, once all its items have one: the results of its reduces, and the last part files and the
    /// manifests of its sinks. All records of these sinks are on the disk, or in the store, when `then` is called.
    pub fn end_pipeline(
        &self,
        pipeline: PipelineId,
        then: impl FnOnce(Result<(), PipelineEnd>) + Send + 'static,
    ) {
        self.then(move |files| then(files.end_pipeline(pipeline)));
    }

    fn then(&self, work: impl FnOnce(&mut RunFiles) + Send + 'static) {
        // A committer that is gone has closed the journal: the run is over, and the answer is not needed.
        drop(self.queue.send(CommitterJob::Then(Box::new(work))));
        self.thread.unpark();
    }

    /// The last items of a source are on their way: as long as what this gives lives, nothing waits for more to come.
    pub fn hurry(&self) -> FinishingSource {
        let hurry = FinishingSource::of(&self.hurried);
        self.thread.unpark();
        hurry
    }

    /// Makes everything durable; with a code, also records the end of the run. Then the thread ends. The folder is still locked: its account is
    /// not written yet.
    pub fn close(&self, code: Option<i32>, then: OnClosed) {
        if let Err(gone) = self.queue.send(CommitterJob::Close(code, then))
            && let CommitterJob::Close(_, then) = gone.0
        {
            then(Err("the journal is closed already".into()), None);
        }
        self.thread.unpark();
    }
}

pub fn start(
    files: RunFiles,
    stats: Arc<Stats>,
    traces: Traces,
    bug: RunBug,
) -> std::io::Result<CommitterHandle> {
    let (queue, receiver) = channel();
    let hurried = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::new(AtomicUsize::new(0));
    let (theirs, unwritten) = (Arc::clone(&hurried), Arc::clone(&waiting));
    let thread = std::thread::Builder::new().name("committer".into()).spawn(move || {
        let (mut files, mut close) = (files, None);
        // What it had in hand is lost: the root ends the pipelines, which may wait for that. All that comes later has an answer.
        let mut work =
            |files: &mut _| run(files, (&stats, &traces), &receiver, &theirs, &unwritten, &mut close);
        while let Err(why) = bug.caught("the committer", || work(&mut files)) {
            files.give_up(why);
        }
        if let Some((code, told)) = close {
            let (counts, folder) = files.end(code);
            told(counts, Some(folder));
        }
    })?;
    Ok(CommitterHandle { queue, thread: thread.thread().clone(), hurried, waiting })
}

/// The tracer of the run, and its clock.
pub struct Traces {
    pub tracer: MaybeTracer,
    pub clock: RunClock,
    /// It has panicked, and is in no known state.
    pub is_broken: Cell<bool>,
}

/// Works until the journal is closed, or every sender of jobs is gone.
fn run(
    files: &mut RunFiles,
    (stats, traces): (&Stats, &Traces),
    queue: &Receiver<CommitterJob>,
    hurried: &AtomicUsize,
    waiting: &AtomicUsize,
    close: &mut Option<(Option<i32>, OnClosed)>,
) {
    let mut synced = Instant::now();
    let mut committed_at = Instant::now();
    while close.is_none()
        && let Some(job) = next_job(queue, SYNC_EVERY, &mut synced, || files.sync())
    {
        let mut jobs = Vec::new();
        let mut then = Vec::new();
        let mut more_wait = false;
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                CommitterJob::Commit(job) => jobs.push(job),
                CommitterJob::Then(work) => then.push(work),
                CommitterJob::Close(code, told) => *close = Some((code, told)),
            }
            more_wait = close.is_some() || !then.is_empty() || jobs.len() >= MOST_JOBS_AT_ONCE;
            if !more_wait {
                next = queue.try_recv().ok();
            }
        }
        let items = jobs.iter().map(|job| job.counts.done + job.counts.failed).sum();
        let bytes: usize = jobs.iter().map(|job| job.commit.bytes()).sum();
        let now = Instant::now();
        let pause = pause(items, bytes, now - std::mem::replace(&mut committed_at, now));
        commit(files, stats, traces, jobs, waiting);
        then.into_iter().for_each(|work: Box<dyn FnOnce(&mut RunFiles) + Send>| work(files));
        if !more_wait && hurried.load(Ordering::Acquire) == 0 {
            // `hurry`, `then` and `close` unpark this thread.
            std::thread::park_timeout(pause);
        }
    }
}

/// The next job; `None` once every sender is gone. Syncs as often as this says, also while none comes.
fn next_job(
    queue: &Receiver<CommitterJob>,
    every: Duration,
    synced: &mut Instant,
    mut sync: impl FnMut(),
) -> Option<CommitterJob> {
    loop {
        let job = queue.recv_timeout(every.saturating_sub(synced.elapsed()));
        if synced.elapsed() >= every {
            sync();
            *synced = Instant::now();
        }
        match job {
            Ok(job) => return Some(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// How long to wait after a commit of so many items and bytes, which came within `span`: until about [`ITEMS_AT_ONCE`] more have come, and
/// not at all where records are large, so that they do not pile up in memory.
fn pause(items: u64, bytes: usize, span: Duration) -> Duration {
    if bytes >= BYTES_AT_ONCE {
        return Duration::ZERO;
    }
    let seconds = span.as_secs_f64() * ITEMS_AT_ONCE as f64 / items.max(1) as f64;
    if items == 0 {
        Duration::ZERO
    } else {
        Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
    }
}

impl CommitJob {
    /// Joins a later one of the same ends to it.
    fn add(&mut self, job: CommitJob) {
        for (file, bytes) in job.commit.appends {
            match self.commit.appends.iter_mut().rfind(|(f, _)| *f == file) {
                Some((_, all)) if all.len() + bytes.len() <= BYTES_IN_ONE_WRITE => {
                    all.extend_from_slice(&bytes);
                }
                _ => self.commit.appends.push((file, bytes)),
            }
        }
        self.commit.files.extend(job.commit.files);
        self.commit.done.extend(job.commit.done);
        self.commit.failed.extend(job.commit.failed);
        job.commit.left_out.into_iter().for_each(|count| count.add_to(&mut self.commit.left_out));
        self.counts.add(&job.counts);
        self.traced.extend(job.traced);
        self.holds.extend(job.holds);
    }
}

/// Commits the groups of these jobs, those of one pipeline together: what goes wrong with one pipeline's files is not the others' business.
fn commit(files: &mut RunFiles, stats: &Stats, traces: &Traces, jobs: Vec<CommitJob>, waiting: &AtomicUsize) {
    let mut by_pipeline: Vec<CommitJob> = Vec::new();
    for job in jobs {
        match by_pipeline.iter_mut().find(|commit| Arc::ptr_eq(&commit.ends, &job.ends)) {
            Some(commit) => commit.add(job),
            None => by_pipeline.push(job),
        }
    }
    for CommitJob { ends, commit, counts, mut traced, holds } in by_pipeline {
        let (result, sealed) = if ends.is_refused() {
            (Err("an earlier group could not be written".to_owned()), Ok(()))
        } else {
            files.commit(&commit)
        };
        let bytes = commit.bytes();
        drop((commit, holds)); // Its text is gone before there is room for more.
        waiting.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(tracer) = traces.tracer.get().filter(|_| !traced.is_empty()) {
            let ended = traces.clock.now();
            traced.iter_mut().for_each(|items| items.written(ended, &result));
            // What goes wrong in there is no matter of the run.
            if !traces.is_broken.get()
                && let Err(bug) = caught("the tracer", || tracer.items_ended(&traced))
            {
                traces.is_broken.set(true);
                tracing::error!("{bug}; the run goes on, and the tracer is told of no further items");
            }
        }
        match result {
            Ok(()) => {
                stats.count(&counts);
                ends.committed(&counts);
            }
            Err(error) => ends.commit_failed(error),
        }
        if let Err(error) = sealed {
            ends.commit_failed(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_committed_is_synced_while_no_job_comes_and_while_jobs_keep_coming() {
        let (to, queue) = channel();
        for _ in 0..2 {
            let mut syncs = 0;
            let then = || to.send(CommitterJob::Then(Box::new(|_| ()))).unwrap();
            // Without a job there is none before a sync has sent it.
            let job = next_job(&queue, Duration::ZERO, &mut Instant::now(), || {
                syncs += 1;
                then();
            });
            assert!(matches!(job, Some(CommitterJob::Then(_))) && syncs > 0);
        }
        drop(to);
        assert!(std::iter::from_fn(|| next_job(&queue, SYNC_EVERY, &mut Instant::now(), || ())).count() <= 2);
    }

    #[test]
    fn the_pause_gathers_about_as_many_items_at_any_rate_and_is_bounded() {
        let ms = Duration::from_millis;
        assert_eq!(pause(128, 100, ms(4)), ms(16));
        assert_eq!(pause(128, BYTES_AT_ONCE, ms(4)), Duration::ZERO, "large records do not pile up");
        assert_eq!(pause(5_120, 100, ms(10)), ms(1), "a fast machine is not held up");
        assert_eq!(pause(1, 100, ms(1)), LONGEST_PAUSE);
        assert_eq!(pause(1, 100, Duration::MAX), LONGEST_PAUSE);
        assert_eq!(pause(0, 0, ms(1000)), Duration::ZERO, "nothing was committed, so nothing came");
    }
}
