//! `orchestra tasks --watch`: the table of tasks while a run goes on, by what its journal of tasks and its file of running commands say. It changes
//! nothing, and the run does not know of it.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use orchestra_launch::{KnownTask, Plan, TaskReport, TaskStanding};

use crate::Failed;
use crate::exit_code::ExitCode;
use crate::human::{count, counted};
use crate::progress::Screen;
use crate::surroundings::{Surroundings, terminal_size};
use crate::{stderr, stdout, tasks};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Looks in a row without a run, after which it has ended: between its two parts there is none for a moment.
const LOOKS_WITHOUT: u32 = 6;
/// Assumed where the terminal does not say: rows, columns.
const DEFAULT_SIZE: (usize, usize) = (24, 80);

/// Shows the tasks until no run is going on.
pub fn watch(plan: &Plan, surroundings: &Surroundings) -> Result<ExitCode, Failed> {
    let records = tasks::records(plan)?;
    let first = orchestra_launch::known_tasks(&plan.tasks, &records);
    let mut seen = TaskScreen { plan, first, rows: Vec::new(), states: Vec::new() };
    if seen.look()?.is_none() {
        let none = format!("no run with tasks is going on into `{}`\n", plan.output.display());
        stdout::print(&none)?;
        return tasks::show(plan, &records, false);
    }
    let is_drawn = surroundings.interactive() && std::io::stdout().is_terminal();
    match is_drawn {
        true => seen.draw()?,
        false => seen.print_changes()?,
    }
    let (ended, of) = (seen.ended(), counted(seen.states.len() as u64, "task", "tasks"));
    let last = if is_drawn { seen.rows.join("\n") + "\n\n" } else { String::new() };
    stdout::print(&format!("{last}the run has ended: {} of {of} have ended well\n", count(ended)))
}

struct TaskScreen<'a> {
    plan: &'a Plan,
    /// What was known before: what had changed since its last end shows so until it begins.
    first: Vec<KnownTask>,
    /// The heads, and a line for each task.
    rows: Vec<String>,
    /// The state and the attempt of each task.
    states: Vec<(TaskStanding, u32)>,
}

impl TaskScreen<'_> {
    /// Looks again; the number of commands that run, or `None` where no run is going on.
    fn look(&mut self) -> Result<Option<usize>, Failed> {
        // The file first: a command that ends between the two is seen as ended.
        let running = orchestra_launch::running_commands(&self.plan.output);
        let records = tasks::records(self.plan)?;
        let commands = running.as_deref().unwrap_or_default();
        let known = |(task, first): (&orchestra_launch::plan::TaskPlan, &KnownTask)| {
            let record = records.get(&task.id).cloned().unwrap_or_default();
            let is_new = record.attempts > first.attempts || first.is_begun;
            let ended = record.ended.filter(|_| record.running.is_none());
            let is_well = ended.as_ref().is_some_and(|ended| ended.class == "done");
            KnownTask {
                attempts: record.attempts,
                is_begun: record.running.is_some(),
                is_same: is_new || first.is_same,
                is_done: is_well && (is_new || first.is_done),
                ended,
                first_part: None,
            }
        };
        let known: Vec<KnownTask> = self.plan.tasks.tasks.iter().zip(&self.first).map(known).collect();
        let mut reports = TaskReport::all(&self.plan.tasks, &known);
        for report in reports.iter_mut().filter(|_| running.is_some()) {
            let Some(begun) = records.get(&report.task).and_then(|record| record.running.as_ref()) else {
                continue;
            };
            let is_it = |task: &&Arc<TaskReport>| task.task == begun.task && task.attempts == begun.attempt;
            if let Some(command) = commands.iter().find(is_it) {
                report.clone_from(command);
            }
            let report = Arc::make_mut(report);
            (report.state, report.attempts) = (TaskStanding::Running, begun.attempt);
            report.place.clone_from(&begun.place);
        }
        self.rows = tasks::table(self.plan, &reports, &known, running.is_some());
        self.states = reports.iter().map(|report| (report.state, report.attempts)).collect();
        Ok(running.map(|running| running.len()))
    }

    fn ended(&self) -> u64 {
        self.states.iter().filter(|(state, _)| *state == TaskStanding::Done).count() as u64
    }

    /// Calls `show` after each look, until the run has ended.
    fn follow(&mut self, mut show: impl FnMut(&Self, usize) -> Result<(), Failed>) -> Result<(), Failed> {
        let mut without = 0;
        while without < LOOKS_WITHOUT {
            match self.look()? {
                Some(running) => {
                    without = 0;
                    show(self, running)?;
                }
                None => without += 1,
            }
            thread::sleep(LOOK_EVERY);
        }
        self.look()?;
        show(self, 0)
    }

    /// The table in one place. Where it is higher than the terminal, what runs comes first.
    fn draw(&mut self) -> Result<(), Failed> {
        let mut screen = Screen::default();
        self.follow(|seen, running| {
            let (rows, columns) = terminal_size().unwrap_or(DEFAULT_SIZE);
            let all = counted(seen.states.len() as u64, "task", "tasks");
            let head = format!("{} of {all} done, {running} running", count(seen.ended()));
            let lines = std::iter::once(head).chain(seen.lines(rows.saturating_sub(3).max(1)));
            let cut = |line: String| console::truncate_str(&line, columns.saturating_sub(1), "").into_owned();
            let lines: Vec<String> = lines.map(cut).collect();
            stderr::say(&screen.draw(&[], &lines, columns));
            Ok(())
        })?;
        let (_, columns) = terminal_size().unwrap_or(DEFAULT_SIZE);
        stderr::say(&screen.erase(columns));
        Ok(())
    }

    /// The heads and at most so many tasks: those that run, then those that have an end other than a good one, then others.
    fn lines(&self, most: usize) -> Vec<String> {
        let rank = |task: &usize| match self.states[*task].0 {
            TaskStanding::Running => 0,
            TaskStanding::Waiting => 2,
            TaskStanding::Done => 3,
            _ => 1,
        };
        let mut shown: Vec<usize> = (0..self.states.len()).collect();
        if shown.len() > most {
            shown.sort_by_key(rank);
            shown.truncate(most);
            shown.sort_unstable();
        }
        let rows = std::iter::once(0).chain(shown.into_iter().map(|task| task + 1));
        rows.map(|row| self.rows[row].clone()).collect()
    }

    /// The table, then a line whenever a task begins or ends.
    fn print_changes(&mut self) -> Result<(), Failed> {
        stdout::print(&(self.rows.join("\n") + "\n"))?;
        let mut before = self.states.clone();
        self.follow(|seen, _| {
            let changed = (0..before.len()).filter(|task| before[*task] != seen.states[*task]);
            let lines: String = changed.map(|task| seen.rows[task + 1].clone() + "\n").collect();
            before.clone_from(&seen.states);
            stdout::print(&lines).map(|_| ())
        })
    }
}
