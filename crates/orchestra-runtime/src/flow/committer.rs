//! Committer: the one thread that owns the journal and the result files of a run. It knows groups of bytes and ids, and rows that become part
//! files; no stages.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use orchestra_core::{PipelineId, SourceId};
use orchestra_plan::{Plan, SinkPlan};
use orchestra_store::{Commit, CommitError, FileIndex, Journal, NumberSet};

use crate::account::stats::{CommitCounts, Stats};
use crate::context::RunClock;
use crate::flow::ends::{Hurry, WhenClosed};
use crate::flow::part_file::OpenPartFile;
use crate::flow::reduce_rows::{OpenReduce, ReduceError};
use crate::flow::result_files::sink_file;
use crate::messages::{HeldBatch, PipelineEnd};
use crate::panics::caught;
use crate::tasks::part_schedule::pipelines_of;
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
pub trait HearsOfCommits: Send + Sync {
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
    pub hold: Option<HeldBatch>,
    pub ends: Arc<dyn HearsOfCommits>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all jobs are commits")]
enum Job {
    Commit(CommitJob),
    /// Work on what is written, behind all that was sent before.
    Then(Box<dyn FnOnce(&mut Files) + Send>),
    Close(Option<i32>, WhenClosed),
}

/// Sends groups to the committer. The queue is bounded by the sources' windows of items in flight; and in bytes, as no source hands out further items
/// while so many as [`CommitterHandle::waiting`] says are enough. The committer comes to its end with them whatever sources do.
#[derive(Clone)]
pub struct CommitterHandle {
    queue: Sender<Job>,
    thread: Thread,
    hurried: Arc<AtomicUsize>,
    waiting: Arc<AtomicUsize>,
}

impl CommitterHandle {
    /// Hands a group over. Its `ends` hear of it, whatever becomes of it.
    pub fn send(&self, job: CommitJob) {
        self.waiting.fetch_add(job.commit.bytes(), Ordering::Relaxed);
        if let Err(gone) = self.queue.send(Job::Commit(job))
            && let Job::Commit(job) = gone.0
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
        self.then(move |files| {
            let written = files.guarded(|files| files.end_pipeline(pipeline));
            then(written.map_err(|why| match files.has_no_result {
                true => PipelineEnd::NoResult(why),
                false => PipelineEnd::SinkFailed(why),
            }));
        });
    }

    fn then(&self, work: impl FnOnce(&mut Files) + Send + 'static) {
        // A committer that is gone has closed the journal: the run is over, and the answer is not needed.
        drop(self.queue.send(Job::Then(Box::new(work))));
        self.thread.unpark();
    }

    /// The last items of a source are on their way: as long as what this gives lives, nothing waits for more to come.
    pub fn hurry(&self) -> Hurry {
        let hurry = Hurry::of(&self.hurried);
        self.thread.unpark();
        hurry
    }

    /// Makes everything durable; with a code, also records the end of the run. Then the thread ends. The folder is still locked: its account is
    /// not written yet.
    pub fn close(&self, code: Option<i32>, then: WhenClosed) {
        if let Err(gone) = self.queue.send(Job::Close(code, then))
            && let Job::Close(_, then) = gone.0
        {
            then(Err("the journal is closed already".into()), None);
        }
        self.thread.unpark();
    }
}

pub fn start(
    files: Files,
    stats: Arc<Stats>,
    traces: Traces,
) -> std::io::Result<(CommitterHandle, JoinHandle<()>)> {
    let (queue, receiver) = channel();
    let hurried = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::new(AtomicUsize::new(0));
    let (theirs, unwritten) = (Arc::clone(&hurried), Arc::clone(&waiting));
    let thread = std::thread::Builder::new()
        .name("committer".into())
        .spawn(move || run(files, &stats, &traces, &receiver, &theirs, &unwritten))?;
    Ok((CommitterHandle { queue, thread: thread.thread().clone(), hurried, waiting }, thread))
}

/// The tracer of the run, and its clock.
pub struct Traces {
    pub tracer: MaybeTracer,
    pub clock: RunClock,
    /// It has panicked, and is in no known state.
    pub is_broken: Cell<bool>,
}

/// What the thread writes to.
pub struct Files {
    /// Of each sink whose records go into part files. In front of the journal: threads that read them end before the folder is unlocked.
    part_files: Vec<OpenPartFile>,
    journal: Journal,
    plan: Arc<Plan>,
    stats: Arc<Stats>,
    /// Of each stage that reduces the rows of the run.
    reduces: Vec<OpenReduce>,
    /// The last of these to be written came to no result.
    has_no_result: bool,
    /// Pipelines whose items all have an end, with all that they have left for it.
    ended: BTreeSet<PipelineId>,
    /// Why nothing is written any more: a panic left them in no known state.
    broken: Option<String>,
}

impl Files {
    /// What an earlier run has left waits on, but for a result of which some rows are written: the others follow, before items come that are
    /// not in it.
    pub fn open(
        plan: &Arc<Plan>,
        journal: Journal,
        run_id: &str,
        stats: &Arc<Stats>,
    ) -> Result<Self, String> {
        let part_files = OpenPartFile::all(plan, &journal, run_id, sink_file).map_err(|e| e.to_string())?;
        let reduces = OpenReduce::all(plan, &journal).map_err(|e| e.to_string())?;
        let (plan, stats) = (Arc::clone(plan), Arc::clone(stats));
        let mut files = Self {
            journal,
            plan,
            stats,
            part_files,
            reduces,
            has_no_result: false,
            ended: BTreeSet::new(),
            broken: None,
        };
        files.write_results(OpenReduce::is_half_written)?;
        files.stats.left_out.note(files.journal.left_out());
        Ok(files)
    }

    /// What `work` gives. A panic in it is a bug, ours or of a kind of the host's: it fails this and all that follows, instead of being waited for.
    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<(), String> {
        if let Some(why) = &self.broken {
            return Err(why.clone());
        }
        caught("internal error: writing results", || work(self)).unwrap_or_else(|bug| {
            self.broken = Some(bug.clone());
            Err(bug)
        })
    }

    /// Commits a group; then rows that are enough for a part file become one, and contributions that are enough for a fold a state. The first
    /// result is that of the group, the second that of the others.
    fn commit(&mut self, commit: &Commit) -> (Result<(), String>, Result<(), String>) {
        let committed =
            self.guarded(|files| files.journal.commit(commit).map_err(|e: CommitError| e.to_string()));
        if committed.is_err() {
            return (committed, Ok(()));
        }
        let gathered = self.guarded(|files| {
            if !commit.left_out.is_empty() {
                files.stats.left_out.note(files.journal.left_out());
            }
            files.add(commit);
            files.seal(OpenPartFile::is_full)?;
            files.fold()
        });
        (committed, gathered)
    }

    fn add(&mut self, commit: &Commit) {
        for (file, rows) in &commit.appends {
            self.part_files.iter_mut().filter(|part| part.file() == *file).for_each(|part| part.add(rows));
            self.reduces
                .iter_mut()
                .filter(|reduce| reduce.file() == *file)
                .for_each(|reduce| reduce.add(rows));
        }
    }

    fn seal(&mut self, which: impl Fn(&OpenPartFile) -> bool) -> Result<(), String> {
        let mut part_files = self.part_files.iter_mut().filter(|part| which(part));
        part_files.try_for_each(|part| part.seal(&mut self.journal)).map_err(|e| e.to_string())
    }

    fn fold(&mut self) -> Result<(), String> {
        let mut reduces = self.reduces.iter_mut().filter(|reduce| reduce.is_full());
        reduces.try_for_each(|reduce| reduce.fold(&mut self.journal)).map_err(|e| e.to_string())
    }

    fn write_results(&mut self, which: impl Fn(&OpenReduce) -> bool) -> Result<(), String> {
        for at in 0..self.reduces.len() {
            let reduce = &self.reduces[at];
            if !which(reduce) {
                continue;
            }
            let stage = reduce.stage();
            let result = reduce.result(&self.plan, &self.journal);
            self.has_no_result = matches!(result, Err(ReduceError::Refused { .. }));
            let mut result = result.map_err(|e| e.to_string())?;
            while let Some((commit, rows)) = result.next_commit().map_err(|e| e.to_string())? {
                let (committed, sealed) = self.commit(&commit);
                committed.and(sealed)?;
                self.stats.stage(stage).left.add(rows);
            }
        }
        Ok(())
    }

    /// The finished items by source, in the order of the plan.
    fn finished(&self) -> Vec<Arc<NumberSet>> {
        let sources = (0..).map(SourceId).take(self.plan.sources.len());
        sources.map(|source| self.journal.finished(source)).collect()
    }

    /// Doing it again adds nothing: a start goes on behind what one that was killed in between has written.
    fn end_pipeline(&mut self, pipeline: PipelineId) -> Result<(), String> {
        self.ended.insert(pipeline);
        let stages = self.plan.pipelines[pipeline.index()].stages.clone();
        self.write_results(|reduce| stages.contains(&reduce.stage()))?;
        let (plan, ended) = (Arc::clone(&self.plan), self.ended.clone());
        let is_over = |sink: &SinkPlan| pipelines_of(&plan, sink).all(|of| ended.contains(&of));
        let over: Vec<FileIndex> =
            (0..).zip(&plan.sinks).filter(|(_, sink)| is_over(sink)).map(|(at, _)| sink_file(at)).collect();
        let is_over = |part: &OpenPartFile| over.contains(&part.file());
        self.seal(is_over)?;
        self.finish_part_files(is_over, true)?;
        // Before a command reads them, and its end is noted durably.
        self.journal.sync().map_err(|error| error.to_string())
    }

    fn finish_part_files(
        &mut self,
        which: impl Fn(&OpenPartFile) -> bool,
        is_complete: bool,
    ) -> Result<(), String> {
        let mut part_files = self.part_files.iter_mut().filter(|part| which(part));
        part_files.try_for_each(|part| part.finish(is_complete)).map_err(|e| e.to_string())
    }

    /// Rows that wait become part files, so the files of a run that has ended hold all finished rows. A run with a code is complete: each of its
    /// pipelines has ended.
    fn close(&mut self, code: Option<i32>) -> Result<(), String> {
        self.seal(|_| true)?;
        // Before the end is recorded: a run that has ended has its manifests.
        self.finish_part_files(|_| true, code.is_some())?;
        let closed = match code {
            Some(code) => self.journal.finish(code),
            None => self.journal.sync(),
        };
        closed.map_err(|e| e.to_string())
    }
}

fn run(
    mut files: Files,
    stats: &Stats,
    traces: &Traces,
    queue: &Receiver<Job>,
    hurried: &AtomicUsize,
    waiting: &AtomicUsize,
) {
    let mut synced = Instant::now();
    let mut committed_at = Instant::now();
    while let Ok(job) = queue.recv() {
        let mut jobs = Vec::new();
        let mut then = Vec::new();
        let mut close = None;
        let mut more_wait = false;
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                Job::Commit(job) => jobs.push(job),
                Job::Then(work) => then.push(work),
                Job::Close(code, told) => close = Some((code, told)),
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
        commit(&mut files, stats, traces, jobs, waiting);
        if synced.elapsed() >= SYNC_EVERY {
            // A disk that fails here fails the next commit or the close, too, and is reported then.
            if let Err(error) = files.journal.sync() {
                tracing::warn!(%error, "results could not be forced to the disk");
            }
            synced = Instant::now();
        }
        then.into_iter().for_each(|work: Box<dyn FnOnce(&mut Files) + Send>| work(&mut files));
        if let Some((code, told)) = close {
            let closed = files.guarded(|files| files.close(code));
            let counts = files.journal.counts();
            for (sink, n) in stats.n_part_files.iter().enumerate() {
                n.set(files.journal.n_part_files(sink_file(sink)));
            }
            let Files { part_files, journal, .. } = files;
            // Threads that read them end before the folder is unlocked.
            drop(part_files);
            told(closed.map(|()| counts), Some(journal.into_folder()));
            return;
        }
        if !more_wait && hurried.load(Ordering::Acquire) == 0 {
            // `hurry`, `then` and `close` unpark this thread.
            std::thread::park_timeout(pause);
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

/// What one pipeline commits at once, and what hears of it.
struct PipelineCommit {
    ends: Arc<dyn HearsOfCommits>,
    commit: Commit,
    counts: CommitCounts,
    traced: Vec<EndedItems>,
    holds: Vec<HeldBatch>,
}

impl PipelineCommit {
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
        self.holds.extend(job.hold);
    }
}

/// Commits the groups of these jobs, those of one pipeline together: what goes wrong with one pipeline's files is not the others' business.
fn commit(files: &mut Files, stats: &Stats, traces: &Traces, jobs: Vec<CommitJob>, waiting: &AtomicUsize) {
    let mut by_pipeline: Vec<PipelineCommit> = Vec::new();
    for job in jobs {
        match by_pipeline.iter_mut().find(|commit| Arc::ptr_eq(&commit.ends, &job.ends)) {
            Some(commit) => commit.add(job),
            None => by_pipeline.push(PipelineCommit {
                ends: job.ends,
                commit: job.commit,
                counts: job.counts,
                traced: job.traced,
                holds: job.hold.into_iter().collect(),
            }),
        }
    }
    for PipelineCommit { ends, commit, counts, mut traced, holds } in by_pipeline {
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
