//! What earlier starts have left of the tasks of a plan: which are done and unchanged, and which ran when their run ended. It starts nothing.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use orchestra_core::PipelineId;
use orchestra_core::tasks::{EndClass, Exit, TaskEnd, TaskMetrics, in_order, judge};
use orchestra_plan::{BestOf, Plan, TaskHistory, TaskPlan, TaskResults, TasksPlan};
use orchestra_store::{OutputFolder, TaskEnded, TaskJournal, TaskRecord, TaskStarted};
use orchestra_worker::keeper::{CommandEnd, holders, is_stopped, kill_tree};

use crate::account::outcome::RunOutcome;
use crate::tasks::best::{self, LastEnd};
use crate::tasks::board::TaskStanding;
use crate::tasks::part_schedule::pipelines_of;
use crate::tasks::unchanged;

/// How often it is looked whether the keepers of an earlier start are gone.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The tasks of a plan, with what is known of each.
#[derive(Debug)]
pub struct KnownTasks {
    pub journal: TaskJournal,
    /// By their places in the plan.
    pub known: Vec<KnownTask>,
    /// Tasks whose commands ran when an earlier start ended, and did not end well: they run again.
    pub again: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct KnownTask {
    pub attempts: u32,
    /// An attempt was begun, and no end of it is noted.
    pub is_begun: bool,
    /// The end of the last attempt, where it was noted.
    pub ended: Option<TaskEnded>,
    /// Neither the task nor what it depends on has changed since that end: its numbers are those of what would run now.
    pub is_same: bool,
    /// It ended well, and its outputs have not changed either: it is not run again.
    pub is_done: bool,
    /// Where the first part of this start has left it, unless it was done before that.
    pub first_part: Option<TaskStanding>,
}

/// Opens the journal of tasks, and looks at what commands of earlier starts have left, of which none lives.
pub fn open(plan: &TasksPlan, output: &Path) -> io::Result<KnownTasks> {
    let mut journal = TaskJournal::open(output)?;
    if let Some(kept) = journal.damaged() {
        tracing::warn!(
            kept = %kept.display(),
            "the journal of tasks is damaged: what its last entries say is lost, and tasks that they call done run again"
        );
    }
    let mut again = Vec::new();
    for (at, task) in plan.tasks.iter().enumerate() {
        let Some(started) = journal.records().get(&task.id).and_then(|record| record.running.clone()) else {
            continue;
        };
        let ended = read_end(task, output, started.attempt);
        let end = ended.as_ref().map(|ended| end_of(plan, task, ended, true, started.before));
        match end.filter(|end| *end != TaskEnd::Stopped) {
            Some(end) => {
                let attempt = started.attempt;
                journal.ended(entry(plan, task, started, &end, ended.as_ref(), 0))?;
                forget(task, output, attempt); // Read at most once more.
            }
            None => again.push(at),
        }
    }
    let known = known(plan, journal.records());
    Ok(KnownTasks { journal, known, again })
}

impl KnownTasks {
    /// What the first part of this start has done is done; what was done before may be outdated by what a pipeline has to do.
    pub fn take_over(&mut self, plan: &TasksPlan, first_part: &RunOutcome) {
        for (task, known) in plan.tasks.iter().zip(&mut self.known) {
            known.first_part = first_part.tasks.get(&task.id).copied();
            known.is_done |= known.first_part == Some(TaskStanding::Done);
        }
    }

    /// Notes that tasks which come after a pipeline are to run again, where it has something to do: also if the run ends before they are reached.
    pub fn outdate(&mut self, plan: &Plan, has_work: impl Fn(PipelineId) -> bool) -> io::Result<()> {
        let is_outdated = |(task, known): &(&TaskPlan, &KnownTask)| {
            let sinks = || plan.sinks.iter().filter(|sink| task.after_sinks.contains(&sink.name));
            known.is_done && sinks().any(|sink| pipelines_of(plan, sink).any(&has_work))
        };
        let outdated: Vec<TaskEnded> = plan
            .tasks
            .tasks
            .iter()
            .zip(&self.known)
            .filter(is_outdated)
            .filter_map(|(_, known)| known.ended.clone())
            .collect();
        for mut ended in outdated {
            // What nothing has.
            ended.started.digest = [0; 32];
            self.journal.ended(ended)?;
        }
        self.known = known(&plan.tasks, self.journal.records());
        Ok(())
    }
}

/// What starts into this folder have left of the tasks of a plan. What cannot be read has left nothing: the start says so.
pub fn task_history(plan: &TasksPlan, output: &Path) -> TaskHistory {
    let records = TaskJournal::read(output).unwrap_or_default();
    let known = known(plan, &records);
    let ended = |(at, task): (usize, &TaskPlan)| Some((at, records.get(&task.id)?.ended.as_ref()?.at));
    let linked = plan.best.iter().filter_map(|of| Some((of.name.clone(), best::linked(plan, output, of)?)));
    let linked: BTreeMap<String, usize> = linked.collect();
    let ends: Vec<LastEnd> = known.iter().map(LastEnd::of_known).collect();
    let has_best = |of: &&BestOf| {
        let best = best::best_task(of, &ends);
        of.tasks.iter().all(|task| known[*task].is_done)
            && best.is_some_and(|best| linked.get(&of.name) == Some(&best))
    };
    let have_best = plan.best.iter().filter(has_best).map(|of| of.name.clone()).collect();
    TaskHistory {
        done: (0..known.len()).filter(|at| known[*at].is_done).collect(),
        ended_at: plan.tasks.iter().enumerate().filter_map(ended).collect(),
        have_best,
        linked,
    }
}

/// What tasks of starts into this folder have noted. What cannot be read has noted nothing: the start says so.
pub fn task_results(output: &Path) -> TaskResults {
    let records = TaskJournal::read(output).unwrap_or_default();
    let metrics = |(id, record): (String, TaskRecord)| Some((id, record.ended?.metrics));
    TaskResults { metrics: records.into_iter().filter_map(metrics).collect(), best: best::all_linked(output) }
}

pub fn known(plan: &TasksPlan, records: &BTreeMap<String, TaskRecord>) -> Vec<KnownTask> {
    let mut known: Vec<KnownTask> = plan
        .tasks
        .iter()
        .map(|task| {
            let record = records.get(&task.id);
            KnownTask {
                attempts: record.map_or(0, |record| record.attempts),
                is_begun: record.is_some_and(|record| record.running.is_some()),
                ended: record
                    .filter(|record| record.running.is_none())
                    .and_then(|record| record.ended.clone()),
                ..KnownTask::default()
            }
        })
        .collect();
    let mut ends = vec![LastEnd::default(); known.len()];
    // The planner has seen that there is no circle.
    for at in in_order(plan.tasks.len(), |task| &plan.tasks[task].after) {
        let task = &plan.tasks[at];
        // Where others that it takes the best of run first, it is decided when they have ended.
        let record =
            records.get(&task.id).filter(|_| task.after.iter().all(|earlier| known[*earlier].is_done));
        let digest = record.and_then(|_| digest_of(plan, task, &ends));
        let last = known[at].ended.as_ref().map(|ended| ended.started.digest);
        known[at].is_same = digest.is_some() && digest == last;
        known[at].is_done =
            record.zip(digest).is_some_and(|(record, digest)| done(plan, task, record, &digest).is_some());
        ends[at] = LastEnd::of_known(&known[at]);
    }
    known
}

/// The last end of a task, if it was a good one, and neither what the task depends on nor its outputs have changed since.
pub fn done<'a>(
    plan: &TasksPlan,
    task: &TaskPlan,
    record: &'a TaskRecord,
    digest: &[u8; 32],
) -> Option<&'a TaskEnded> {
    let ended = record.ended.as_ref().filter(|_| record.running.is_none())?;
    let is_same = ended.class == EndClass::Done.as_str()
        && ended.started.digest == *digest
        && unchanged::state(&task.outputs, &plan.folder).unwrap_or_default() == ended.outputs;
    is_same.then_some(ended)
}

/// What a task depends on; `None` where that is not there.
fn digest_of(plan: &TasksPlan, task: &TaskPlan, ends: &[LastEnd]) -> Option<[u8; 32]> {
    let earlier = best::earlier(plan, task, ends).ok()?;
    unchanged::digest(task, &plan.folder, &earlier).ok()
}

/// How the command of a task ended. `stopping`: orchestra had told it to end, or was gone. A command that was told ends well only with code 0 and
/// with declared outputs that have changed since `before`, the state at its start. Any other one is `Stopped`, and runs again. One that wrote nothing for
/// too long was told by its keeper, whatever else it was told later.
pub fn end_of(
    plan: &TasksPlan,
    task: &TaskPlan,
    ended: &CommandEnd,
    stopping: bool,
    before: Option<[u8; 32]>,
) -> TaskEnd {
    let missing = || task.outputs.iter().find(|output| !output.exists());
    let has_made_them = || {
        let now = unchanged::state(&task.outputs, &plan.folder).ok();
        !task.outputs.is_empty() && now.is_some() && now != before
    };
    let stopping = stopping || ended.quiet_ms.is_some();
    if stopping && ended.was_stopped && (ended.code != Some(0) || !has_made_them()) {
        return ended.quiet_ms.map_or(TaskEnd::Stopped, |quiet| TaskEnd::Quiet(Duration::from_millis(quiet)));
    }
    let exit = match (ended.code, ended.signal) {
        (Some(code), _) => Exit::of(task.command.first().map_or("", String::as_str), code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    };
    let end = match ended.ran_out_of_memory && exit != Exit::Code(0) {
        true => TaskEnd::OutOfMemory,
        false => judge(exit, &ended.last_words),
    };
    match (end, missing()) {
        (TaskEnd::Done, Some(output)) => TaskEnd::OutputMissing(output.display().to_string()),
        (end, _) => end,
    }
}

/// The entry for the end of an attempt, which was seen to hold so many bytes of one GPU.
pub fn entry(
    plan: &TasksPlan,
    task: &TaskPlan,
    started: TaskStarted,
    end: &TaskEnd,
    ended: Option<&CommandEnd>,
    gpu_memory: u64,
) -> TaskEnded {
    let words = ended.map_or_else(String::new, CommandEnd::excerpt);
    let why = match (end, &words[..]) {
        (TaskEnd::Done, _) => String::new(),
        (end, "") => end.to_string(),
        (end, words) => format!("{end}; its last words:\n{words}"),
    };
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TaskEnded {
        started,
        at: u64::try_from(at.as_micros()).unwrap_or(u64::MAX),
        class: end.class().as_str().to_owned(),
        why,
        milliseconds: ended.map_or(0, |ended| ended.milliseconds),
        peak_memory: ended.map_or(0, |ended| ended.peak_memory),
        gpu_memory,
        outputs: unchanged::state(&task.outputs, &plan.folder).unwrap_or_default(),
        metrics: ended.map(|ended| measured(task, &ended.metrics)).unwrap_or_default(),
    }
}

/// Whether some command of a run into this folder lives.
pub fn commands_live(output: &Path) -> bool {
    let Ok(file) = fs::File::open(lock_file(output)) else { return false };
    // Given back at once, with the file.
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// The curves of an attempt's metrics, beside its log.
pub fn curves_file(log: &Path) -> PathBuf {
    log.with_extension("metrics.jsonl")
}

/// Where the keeper of an attempt notes its end.
pub fn end_file(task: &TaskPlan, output: &Path, attempt: u32) -> PathBuf {
    output.join(&task.folder).join(format!("attempt-{attempt}.end"))
}

/// The end that the keeper of an attempt has noted.
pub fn read_end(task: &TaskPlan, output: &Path, attempt: u32) -> Option<CommandEnd> {
    CommandEnd::read(&end_file(task, output, attempt))
}

/// Removes what the keeper of an attempt has left beside its log: it says no more than the journal.
pub fn forget(task: &TaskPlan, output: &Path, attempt: u32) {
    drop(fs::remove_file(end_file(task, output, attempt)));
}

/// The file that every keeper holds a lock of.
pub fn lock_file(output: &Path) -> PathBuf {
    output.join(OutputFolder::private_file("keepers"))
}

/// Commands of a start that was killed have their grace: until they are gone none of them may run again.
pub fn wait_for_keepers(output: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(lock_file(output))?;
    let mut was_said = false;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if !std::mem::replace(&mut was_said, true) {
            tracing::warn!("commands of the start before have not ended yet: waiting for them");
        }
        // One that was stopped by a signal would never end: its orchestra, which would have seen that, is gone.
        for keeper in holders(&file).into_iter().filter(|keeper| is_stopped(*keeper)) {
            tracing::error!(pid = %keeper, "the keeper of a command was stopped by a signal: it is killed with the command");
            kill_tree(keeper);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    file.unlock()
}

/// What a keeper has read of the metrics of its task. Their names count: the file may have been edited since the command was started.
pub fn measured(task: &TaskPlan, read: &TaskMetrics) -> TaskMetrics {
    let is_of_task = |(name, _): &(&String, &_)| task.metrics.iter().any(|metric| metric.name == **name);
    read.iter().filter(is_of_task).map(|(name, values)| (name.clone(), *values)).collect()
}
