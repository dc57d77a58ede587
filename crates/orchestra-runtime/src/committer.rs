//! Committer: the one thread that owns the journal and the result files of a run. It knows groups of bytes and ids, no stages.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use orchestra_core::SourceId;
use orchestra_journal::{BitSet, Commit, CommitError, Counts, Journal};
use ractor::{ActorId, ActorRef};

use crate::messages::{CommitCounts, SinkMsg};
use crate::stats::Stats;

/// Groups that are joined into one write when they wait already. Where there is no model, or no picture can be read, each is one item.
const MOST_GROUPS_AT_ONCE: usize = 4096;

/// Commits follow each other at this distance at least (unless groups wait already), so that under load groups come together: a write costs the same for one group
/// as for ten. Far below what the window of items in flight covers, and nothing on a run that has little to commit.
const LEAST_DISTANCE: Duration = Duration::from_millis(5);

/// How often what is written is also forced to the disk, so that a power cut costs little work.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// A group of finished items.
pub struct CommitJob {
    /// What is written.
    pub commit: Commit,
    /// What the sink is told when it is.
    pub counts: CommitCounts,
    /// The sink.
    pub reply_to: ActorRef<SinkMsg>,
}

enum Job {
    Commit(CommitJob),
    Look(Box<dyn FnOnce(Vec<Arc<BitSet>>) + Send>),
    Close(Option<i32>, Box<dyn FnOnce(Result<Counts, String>) + Send>),
}

/// Sends groups to the committer. The queue is bounded by the sources' windows of items in flight.
#[derive(Clone)]
pub struct CommitterHandle(Sender<Job>);

impl CommitterHandle {
    /// Hands a group over. The sink hears of it, whatever becomes of it.
    pub fn send(&self, job: CommitJob) {
        if let Err(gone) = self.0.send(Job::Commit(job))
            && let Job::Commit(job) = gone.0
        {
            drop(job.reply_to.cast(SinkMsg::CommitFailed("the journal is closed".into())));
        }
    }

    /// Gives the finished items by source, in the order of the plan, once everything sent before is written.
    pub fn look(&self, then: impl FnOnce(Vec<Arc<BitSet>>) + Send + 'static) {
        // A committer that is gone has closed the journal: the run is over, and nobody needs the answer.
        drop(self.0.send(Job::Look(Box::new(then))));
    }

    /// Makes everything durable; with a code, also records the end of the run. Then the thread ends.
    pub fn close(&self, code: Option<i32>, then: impl FnOnce(Result<Counts, String>) + Send + 'static) {
        if let Err(gone) = self.0.send(Job::Close(code, Box::new(then)))
            && let Job::Close(_, then) = gone.0
        {
            then(Err("the journal is closed already".into()));
        }
    }
}

/// Starts the thread.
pub fn start(
    journal: Journal,
    stats: Arc<Stats>,
    n_sources: usize,
) -> std::io::Result<(CommitterHandle, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new()
        .name("committer".into())
        .spawn(move || run(journal, stats, n_sources, &receiver))?;
    Ok((CommitterHandle(sender), thread))
}

fn run(mut journal: Journal, stats: Arc<Stats>, n_sources: usize, jobs: &Receiver<Job>) {
    let mut synced = Instant::now();
    // Pipelines whose records could not be written: a later group of theirs would come out of order.
    let mut refused = HashSet::new();
    while let Ok(job) = jobs.recv() {
        let mut group = Vec::new();
        let mut looks = Vec::new();
        let mut close = None;
        let mut more_wait = false;
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                Job::Commit(job) => group.push(job),
                Job::Look(then) => looks.push(then),
                Job::Close(code, then) => close = Some((code, then)),
            }
            more_wait = close.is_some() || !looks.is_empty() || group.len() >= MOST_GROUPS_AT_ONCE;
            if !more_wait {
                next = jobs.try_recv().ok();
            }
        }
        let pause = !group.is_empty() && !more_wait;
        commit(&mut journal, &stats, group, &mut refused);
        if synced.elapsed() >= SYNC_EVERY {
            // A disk that fails here fails the next commit or the close, too, and is reported then.
            if let Err(error) = journal.sync() {
                tracing::warn!(%error, "results could not be forced to the disk");
            }
            synced = Instant::now();
        }
        for then in looks {
            let sources = (0..n_sources).filter_map(|s| u16::try_from(s).ok());
            then(sources.map(|s| journal.finished(SourceId(s))).collect());
        }
        if let Some((code, then)) = close {
            let closed = match code {
                Some(code) => journal.finish(code),
                None => journal.sync(),
            };
            let counts = journal.counts();
            drop(journal); // The output folder is free before anybody hears that the run is over.
            then(closed.map(|()| counts).map_err(|e| e.to_string()));
            return;
        }
        if pause {
            std::thread::sleep(LEAST_DISTANCE);
        }
    }
}

/// What one pipeline commits at once, and who hears of it.
struct Joined {
    sink: ActorRef<SinkMsg>,
    commit: Commit,
    counts: CommitCounts,
}

impl Joined {
    fn add(&mut self, job: CommitJob) {
        for (file, bytes) in job.commit.appends {
            match self.commit.appends.iter_mut().find(|(f, _)| *f == file) {
                Some((_, all)) => all.extend_from_slice(&bytes),
                None => self.commit.appends.push((file, bytes)),
            }
        }
        self.commit.done.extend(job.commit.done);
        self.commit.failed.extend(job.commit.failed);
        self.counts.add(&job.counts);
    }
}

/// Commits the groups, those of one pipeline together: what goes wrong with one pipeline's files is not the others' business.
fn commit(journal: &mut Journal, stats: &Stats, group: Vec<CommitJob>, refused: &mut HashSet<ActorId>) {
    let mut by_sink: Vec<Joined> = Vec::new();
    for job in group {
        match by_sink.iter_mut().find(|j| j.sink.get_id() == job.reply_to.get_id()) {
            Some(joined) => joined.add(job),
            None => by_sink.push(Joined { sink: job.reply_to, commit: job.commit, counts: job.counts }),
        }
    }
    for Joined { sink, commit, counts } in by_sink {
        let result = if refused.contains(&sink.get_id()) {
            Err("an earlier group could not be written".to_owned())
        } else {
            journal.commit(&commit).map_err(|e: CommitError| e.to_string())
        };
        // A sink that is gone belongs to a pipeline that was torn down; what is committed stays committed.
        drop(match result {
            Ok(()) => {
                stats.done.add(counts.done);
                stats.failed.add(counts.failed);
                sink.cast(SinkMsg::Committed(counts))
            }
            Err(error) => {
                refused.insert(sink.get_id());
                sink.cast(SinkMsg::CommitFailed(error))
            }
        });
    }
}
