//! `orchestra tasks`, but for what it follows, and `orchestra run --dry-run`: the tasks of a file, what would run of them, and what has run. Starts nothing and changes
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use orchestra_launch::plan::{TaskPlan, TasksPlan, format_bytes};
use orchestra_launch::{KnownTask, Plan, TaskJournal, TaskRecord, TaskReport, TaskStanding};
use serde_json::json;

use crate::Failed;
use crate::args::TasksArgs;
use crate::columns::{CellAlignment, aligned};
use crate::exit_code::ExitCode;
use crate::human::{count, counted, elapsed, metric};
use crate::planning::{self, WorkflowText};
use crate::stdout;
use crate::surroundings::Surroundings;
use crate::tasks_watch;

/// By the ids of tasks.
type TaskRecords = BTreeMap<String, TaskRecord>;

/// The table of the tasks of a workflow.
pub fn tasks(args: &TasksArgs, surroundings: &Surroundings) -> Result<ExitCode, Failed> {
    let options = planning::options(&args.workflow, args.output.as_deref());
    let machine = planning::machine(&args.workflow);
    let planned = WorkflowText::read(&args.workflow.file)?.check(&options, &machine);
    let plan = only(planning::show(planned, surroundings)?, &args.only)?;
    if args.watch {
        return tasks_watch::watch(&plan, surroundings);
    }
    show(&plan, &records(&plan)?, args.json)
}

/// What earlier starts have noted of the tasks of a plan.
pub fn records(plan: &Plan) -> Result<TaskRecords, Failed> {
    TaskJournal::read(&plan.output)
        .with_context(|| format!("cannot read the journal of tasks in `{}`", plan.output.display()))
        .map_err(|e| Failed::new(ExitCode::TryAgain, e))
}

/// The plan with these tasks, and all that they come after; with no names, all of it.
pub fn only(mut plan: Plan, names: &[String]) -> Result<Plan, Failed> {
    if !names.is_empty() {
        plan.tasks = of_plan(&plan, names).map_err(|unknown| {
            let mut tables: Vec<&str> = plan.tasks.tasks.iter().map(|task| &task.name[..]).collect();
            tables.dedup();
            let tables =
                if tables.is_empty() { "none".to_owned() } else { orchestra_launch::plan::list(tables) };
            Failed::new(
                ExitCode::Usage,
                anyhow::anyhow!("--only: the file has no task `{unknown}`; its tasks: {tables}"),
            )
        })?;
    }
    Ok(plan)
}

/// These names, and the tasks by which pipelines are planned that one of them comes after: the second part of a run has them, too.
pub fn with_deferred(plan: &Plan, names: &[String]) -> Vec<String> {
    let deferred = plan.deferred.as_ref().filter(|_| !names.is_empty());
    deferred.map_or_else(|| names.to_vec(), |deferred| [names, &deferred.tasks, &deferred.best].concat())
}

/// Where one of them comes after a sink, all pipelines run, and so do the tasks that these are planned by.
fn of_plan(plan: &Plan, names: &[String]) -> Result<TasksPlan, String> {
    let named = plan.tasks.only(names)?;
    match &plan.deferred {
        Some(deferred) if named.tasks.iter().any(|task| !task.after_sinks.is_empty()) => {
            plan.tasks.only(&[names, &deferred.tasks, &deferred.best].concat())
        }
        _ => Ok(named),
    }
}

/// What would run now, by what is known of each task.
pub fn show(plan: &Plan, records: &TaskRecords, as_json: bool) -> Result<ExitCode, Failed> {
    let known = orchestra_launch::known_tasks(&plan.tasks, records);
    let reports = TaskReport::all(&plan.tasks, &known);
    if as_json {
        let rows = plan.tasks.tasks.iter().zip(&reports).map(|(task, report)| {
            let mut after: Vec<String> =
                task.after.iter().map(|earlier| plan.tasks.tasks[*earlier].id.clone()).collect();
            after.extend(task.after_sinks.iter().map(|sink| format!("sinks.{sink}")));
            json!({ "known": report, "would_run": !report.before, "command": task.in_full(), "after": after })
        });
        return stdout::print_json(&rows.collect::<Vec<_>>());
    }
    let later =
        plan.deferred.as_ref().map(|deferred| format!("\n{}\n", deferred.in_words())).unwrap_or_default();
    let commands_live = orchestra_launch::commands_live(&plan.output);
    stdout::print(&(text(plan, &reports, &known, commands_live) + &later))
}

fn text(plan: &Plan, reports: &[Arc<TaskReport>], known: &[KnownTask], commands_live: bool) -> String {
    if reports.is_empty() {
        return "the file has no tasks\n".to_owned();
    }
    let would_run = reports.iter().filter(|report| !report.before).count() as u64;
    let slots = counted(plan.tasks.cpu_slots as u64, "slot", "slots");
    let on = match plan.tasks.gpus.len() {
        0 => format!("{slots} of the CPU"),
        gpus => format!("{}, {slots} of the CPU", counted(gpus as u64, "GPU", "GPUs")),
    };
    let sum = format!(
        "\n\n{} would run on {on}, {} done\n",
        counted(would_run, "task", "tasks"),
        count(reports.len() as u64 - would_run)
    );
    table(plan, reports, known, commands_live).join("\n") + &sum
}

/// A line for the heads, and one for each task.
pub fn table(
    plan: &Plan,
    reports: &[Arc<TaskReport>],
    known: &[KnownTask],
    commands_live: bool,
) -> Vec<String> {
    let row = |((task, report), known): ((&TaskPlan, &Arc<TaskReport>), &KnownTask)| {
        let cell = |is_known: bool, text: String| if is_known { text } else { "-".to_owned() };
        let has_run = report.end.is_some() || report.state == TaskStanding::Running;
        [
            report.task.clone(),
            standing(task, report, known, commands_live),
            cell(report.attempts > 0, count(report.attempts.into())),
            cell(has_run, elapsed(report.seconds)),
            cell(report.peak_memory > 0, format_bytes(report.peak_memory)),
            cell(has_run, report.place.clone()),
            cell(!report.metrics.is_empty(), metrics(report)),
            in_one_line(&task.in_full()),
        ]
    };
    let heads =
        ["task", "state", "attempts", "time", "memory", "place", "metrics", "command"].map(str::to_owned);
    let rows = plan.tasks.tasks.iter().zip(reports).zip(known).map(row);
    aligned(std::iter::once(heads).chain(rows), CellAlignment::Left)
}

/// What a start would find.
fn standing(task: &TaskPlan, report: &TaskReport, known: &KnownTask, is_live: bool) -> String {
    match (report.state, report.end.as_deref()) {
        // Items are listed when a run starts.
        (TaskStanding::Done, _) if !task.after_sinks.is_empty() => "done unless items are new".to_owned(),
        (TaskStanding::Done, _) if !report.best.is_empty() => "done, best".to_owned(),
        (TaskStanding::Done, _) => "done".to_owned(),
        (TaskStanding::Running, _) => "running".to_owned(),
        _ if known.is_begun && is_live => "running".to_owned(),
        _ if known.is_begun => "broken off".to_owned(),
        (_, Some("done")) => "changed".to_owned(),
        (_, Some(class)) => class.to_owned(),
        (_, None) => "new".to_owned(),
    }
}

/// The last values, in one line, with the best where that is another one and it is known what is better.
pub fn metrics(task: &TaskReport) -> String {
    let one = |(name, values): (&String, &orchestra_launch::MetricValues)| {
        let best = task.goals.get(name).map(|goal| goal.best_of(values)).filter(|best| best.is_finite());
        let best = best.filter(|best| *best != values.last).map(|best| format!(" (best {})", metric(best)));
        format!("{name} {}{}", metric(values.last), best.unwrap_or_default())
    };
    task.metrics.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A command as it could be given to a shell, cut where it is long.
fn in_one_line(command: &[String]) -> String {
    const LONGEST: usize = 100;
    let words: Vec<&str> = match command {
        [shell, flag, text] if shell == "/bin/sh" && flag == "-c" => vec![text],
        words => words.iter().map(String::as_str).collect(),
    };
    let line = words.join(" ").replace(['\n', '\r', '\t'], " ");
    let line: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
