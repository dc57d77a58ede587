//! What the end of a run comes to: its exit code, its problems in words, and the word to its tracer. It ends nothing.

use std::sync::Arc;

use orchestra_store::Counts;

use crate::context::RunContext;
use crate::messages::{LimitReached, PipelineEnd};
use crate::panics::{lacks_threads, no_threads};
use crate::root::RunEnding;
use crate::tasks::actor::TasksProblem;
use crate::tasks::board::{TaskReport, TaskStanding};
use crate::trace::RunEnded;

const INTERRUPTED: &str = "interrupted; run the same command again to go on";

/// Tells the tracer of the run how it ended, also when nothing waits for the end.
pub struct EndReporter(Option<Arc<RunContext>>);

impl EndReporter {
    /// Until it is told, dropping this gives the run up.
    pub fn of(context: &Arc<RunContext>) -> Self {
        Self(Some(Arc::clone(context)))
    }

    pub fn tell(&mut self, counts: Counts, exit_code: Option<i32>, problems: &[String]) {
        let Some(context) = self.0.take() else { return };
        let Some(tracer) = context.tracer.get() else { return };
        let (stats, at) = (&context.stats, context.clock.now());
        let (total, resumed) = (stats.extent().known(), stats.resumed.get());
        let Counts { done, failed } = counts;
        tracer.ended(RunEnded { at, total, resumed, done, failed, exit_code, problems: problems.to_vec() });
    }
}

impl Drop for EndReporter {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            let (done, failed) = (context.stats.done.get(), context.stats.failed.get());
            self.tell(Counts { done, failed }, None, &[]);
        }
    }
}

/// Why the sources, stages and sinks of the file were not started, where they use values of tasks and were to be: the exit code, and in words.
pub fn not_started(context: &RunContext) -> Option<(i32, String)> {
    let deferred = context.plan.deferred.as_ref().filter(|_| !context.options.tasks_only)?;
    let reports = context.tasks.reports(&context.plan.tasks, context.clock.now());
    let mut used = reports.iter().filter(|report| deferred.tasks.contains(&report.task));
    let used = used.find(|report| report.state != TaskStanding::Done).map(|report| &**report);
    let (code, why) = match used {
        Some(TaskReport { task, state: TaskStanding::Failed, .. }) => {
            (65, format!("task `{task}` has failed"))
        }
        Some(TaskReport { task, state: TaskStanding::Skipped, why, .. }) => {
            (65, format!("task `{task}` {}", why.as_deref().unwrap_or("was not started")))
        }
        Some(TaskReport { task, .. }) => (130, format!("task `{task}` is not done")),
        None => without_best(context, &deferred.best, &reports)
            .unwrap_or((75, "what their tasks have left has changed since".to_owned())),
    };
    let names: Vec<String> = deferred.pipelines.iter().map(|name| format!("`{name}`")).collect();
    Some((code, format!("pipelines not started: {}, because {why}", names.join(", "))))
}

/// Why none of several tasks is the best.
fn without_best(
    context: &RunContext,
    names: &[String],
    reports: &[Arc<TaskReport>],
) -> Option<(i32, String)> {
    let plan = &context.plan.tasks;
    names.iter().filter_map(|name| plan.best_named(name)).find_map(|of| {
        let states: Vec<TaskStanding> = of.tasks.iter().map(|task| reports[*task].state).collect();
        let is_open = |state: &TaskStanding| matches!(state, TaskStanding::Waiting | TaskStanding::Stopped);
        let name = &of.name;
        match of.winner(|task| reports[task].metrics_if_done()) {
            Some(_) => None,
            None if states.iter().any(is_open) => {
                Some((130, format!("the tasks of `{name}` have not ended")))
            }
            None if states.contains(&TaskStanding::Done) => Some((
                65,
                format!(
                    "there is no `{name}`: none of its tasks that are done has a finite value of `{}`",
                    of.objective.metric
                ),
            )),
            None => Some((65, format!("there is no `{name}`: none of its tasks is done"))),
        }
    })
}

/// The settings with which a start goes on regardless of the limits that have stopped this one.
pub fn lifted(ending: &RunEnding) -> Vec<String> {
    let of_pipelines = ending.pipelines.values().filter_map(|end| match end {
        PipelineEnd::TooManyFailed(reached) => Some(reached),
        _ => None,
    });
    of_pipelines.chain(&ending.failure_limit).map(|reached| reached.lifted.clone()).collect()
}

pub fn judge(ending: &RunEnding, failed: u64) -> (i32, Vec<String>) {
    let mut code = if failed > 0 || ending.tasks.failed > 0 { 65 } else { 0 };
    let mut problems = Vec::new();
    let mut add = |problem: String| {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    };
    let mut worst = 0;
    for end in ending.pipelines.values() {
        let Some((rank, of_this, problem)) = judge_pipeline(end, ending.failure_limit.as_ref()) else {
            continue;
        };
        if rank > worst {
            (worst, code) = (rank, of_this);
        }
        add(problem);
    }
    match &ending.failure_limit {
        Some(reached) if ending.tasks.was_stopped => add(reached.why.clone()),
        None if ending.tasks.was_stopped && worst < 2 => {
            code = 130;
            add(INTERRUPTED.to_owned());
        }
        _ => {}
    }
    let of_tasks = ending.tasks.problem.as_ref().map(|problem| match problem {
        TasksProblem::Bug(why) if lacks_threads(why) => (75, no_threads(why)),
        TasksProblem::Bug(why) => (70, bug(why)),
        TasksProblem::Journal(why) => (75, why.clone()),
    });
    let of_journal = ending
        .journal
        .as_ref()
        .err()
        .map(|why| (75, format!("the end of the run could not be recorded: {why}")));
    for (of_this, problem) in of_tasks.into_iter().chain(of_journal) {
        code = if code == 70 { 70 } else { of_this };
        add(problem);
    }
    (code, problems)
}

/// How bad its end is, the exit code of that, and why; `None` where it is complete.
fn judge_pipeline(end: &PipelineEnd, limit: Option<&LimitReached>) -> Option<(u8, i32, String)> {
    Some(match (end, limit) {
        // Those before it say why.
        (PipelineEnd::Complete | PipelineEnd::NotStarted, _) => return None,
        (PipelineEnd::Stopped, Some(reached)) | (PipelineEnd::TooManyFailed(reached), _) => {
            (1, 65, reached.why.clone())
        }
        (PipelineEnd::Stopped, None) => (2, 130, INTERRUPTED.to_owned()),
        (PipelineEnd::SinkFailed(why), _) => (3, 75, format!("results could not be written: {why}")),
        (PipelineEnd::SourceFailed(why), _) => (3, 75, why.clone()),
        (PipelineEnd::NotListed(why), _) => (3, 78, why.clone()),
        (PipelineEnd::Unusable(why) | PipelineEnd::Doubted(why) | PipelineEnd::NoResult(why), _) => {
            (4, 78, why.clone())
        }
        (PipelineEnd::NoDevice(why) | PipelineEnd::Bug(why), _) if lacks_threads(why) => {
            (4, 75, no_threads(why))
        }
        (PipelineEnd::NoDevice(why), _) => (4, 69, why.clone()),
        (PipelineEnd::Bug(why), _) => (5, 70, bug(why)),
    })
}

fn bug(why: &str) -> String {
    format!("internal error: {why}; please report it")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;

    use rustix::io::Errno;

    use super::*;
    use crate::tasks::actor::TasksEnd;

    #[test]
    fn tasks_whose_ends_cannot_be_noted_are_tried_again_and_those_that_fell_over_are_a_bug() {
        for (problem, code, says) in [
            (
                TasksProblem::of(&io::Error::other("no room")),
                75,
                "the journal of tasks could not be written: no room",
            ),
            (TasksProblem::Bug("it fell over".to_owned()), 70, "internal error: it fell over"),
            (
                TasksProblem::Bug(format!("it fell over: {}", Errno::AGAIN)),
                75,
                "no further thread or process",
            ),
        ] {
            let tasks = TasksEnd { problem: Some(problem), ..TasksEnd::default() };
            let journal = Ok(Counts::default());
            let (pipelines, failure_limit, folder) = (BTreeMap::new(), None, None);
            let (ended, problems) = judge(&RunEnding { pipelines, tasks, failure_limit, journal, folder }, 0);
            assert_eq!((ended, problems.len()), (code, 1));
            assert!(problems[0].starts_with(says), "{problems:?}");
        }
    }
}
