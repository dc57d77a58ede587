//! All that the committer thread writes to: the journal with its result files, part files, and the states of reduces. It knows no queue.

use std::collections::BTreeSet;
use std::sync::Arc;

use orchestra_core::{PipelineId, SourceId};
use orchestra_plan::{Plan, SinkPlan};
use orchestra_store::{Commit, CommitError, Counts, FileIndex, Journal, NumberSet, OutputFolder};

use crate::account::stats::Stats;
use crate::child::spawn::ProcessLauncher;
use crate::flow::part_file::OpenPartFile;
use crate::flow::reduce_rows::{OpenReduce, ReduceError};
use crate::flow::result_files::sink_file;
use crate::messages::PipelineEnd;
use crate::panics::caught;
use crate::tasks::part_schedule::pipelines_of;

pub struct RunFiles {
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

impl RunFiles {
    /// `of_run` are its id, and what starts scripts of sinks. What an earlier run has left waits on, but for a result of which some rows are written: the others follow, before items come that are
    /// not in it.
    pub fn open(
        plan: &Arc<Plan>,
        journal: Journal,
        of_run: (&str, Option<&ProcessLauncher>),
        stats: &Arc<Stats>,
    ) -> Result<Self, String> {
        let part_files = OpenPartFile::all(plan, &journal, of_run, sink_file).map_err(|e| e.to_string())?;
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
            self.give_up(bug.clone());
            Err(bug)
        })
    }

    /// Nothing is written any more, for this reason.
    pub fn give_up(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    /// Commits a group; then rows that are enough for a part file become one, and contributions that are enough for a fold a state. The first
    /// result is that of the group, the second that of the others.
    pub fn commit(&mut self, commit: &Commit) -> (Result<(), String>, Result<(), String>) {
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
    pub fn finished(&self) -> Vec<Arc<NumberSet>> {
        let sources = (0..).map(SourceId).take(self.plan.sources.len());
        sources.map(|source| self.journal.finished(source)).collect()
    }

    /// Doing it again adds nothing: a start goes on behind what one that was killed in between has written.
    pub fn end_pipeline(&mut self, pipeline: PipelineId) -> Result<(), PipelineEnd> {
        let written = self.guarded(|files| files.write_end(pipeline));
        written.map_err(|why| match self.has_no_result {
            true => PipelineEnd::NoResult(why),
            false => PipelineEnd::SinkFailed(why),
        })
    }

    fn write_end(&mut self, pipeline: PipelineId) -> Result<(), String> {
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

    pub fn sync(&mut self) {
        // A disk that fails here fails the next commit or the close, too, and is reported then.
        if let Err(error) = self.journal.sync() {
            tracing::warn!(%error, "results could not be forced to the disk");
        }
    }

    /// Closes all of them. What the journal holds, and the folder, which is locked still.
    pub fn end(mut self, code: Option<i32>) -> (Result<Counts, String>, OutputFolder) {
        let closed = self.guarded(|files| files.close(code));
        let counts = self.journal.counts();
        for (sink, n) in self.stats.n_part_files.iter().enumerate() {
            n.set(self.journal.n_part_files(sink_file(sink)));
        }
        // Threads that read them end before the folder is unlocked.
        drop(self.part_files);
        (closed.map(|()| counts), self.journal.into_folder())
    }
}
