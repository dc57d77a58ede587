//! From the text of a workflow file to its plan: the order of the passes. Each pass lives in its own module.

use std::path::{Path, PathBuf};

use crate::assemble::assemble;
use crate::cx::Cx;
use crate::devices::{Devices, from_option};
use crate::diagnostics::{Audience, Diagnostics, Reported};
use crate::files::lexical;
use crate::host::{Host, MachineView};
use crate::no_effect::NoEffect;
use crate::pipelines::Pipelines;
use crate::place::place;
use crate::plan::{Plan, TaskPlan, TasksPlan};
use crate::rules::behind_reduce;
use crate::rules::read_outputs::keep_read_outputs;
use crate::tasks::{self, Deferred, TaskTables};
use crate::tree::Table;
use crate::workflow::{self, WorkflowTables};
use crate::{connect, graph, requests, sinks, sources, tree, variables};

/// What the command line changes about a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// `--output`: where results go instead of `out/` beside the file.
    pub output: Option<PathBuf>,
    /// `--devices`: instead of `devices.use`.
    pub devices: Option<Vec<String>>,
    /// `--set a.b=value`, in order: the value is TOML, or a string where it is no TOML.
    pub set: Vec<(String, String)>,
    /// Do not look at the machine: names of devices are believed, and `auto` stays `auto`. Such a plan is for reading, not for running.
    pub offline: bool,
    pub audience: Audience,
    /// Ids of the tasks that count as done, so that what uses their values can be planned; `None`: those that earlier starts have done.
    pub tasks_done: Option<Vec<String>>,
}

/// Plans the workflow `text` of the file `file`.
///
/// Relative paths in it are relative to the folder of `file`, which should be absolute. There is a plan exactly if there is no
/// error and nothing is left open; all errors that can be found are found at once.
pub fn plan(text: &str, file: &Path, options: &PlanOptions, host: &dyn Host) -> (Option<Plan>, Diagnostics) {
    let mut diags = Diagnostics::new(&file.display().to_string(), text, options.audience);
    match tree::parse(text, &mut diags) {
        Some(tables) => plan_with(tables, file, options, host, diags),
        None => (None, diags),
    }
}

/// Plans a workflow that a program has made: the tables that its file would have. Messages name `file`, which need not be there, and show lines of
/// `text`, in which tables stand that were read from it.
pub fn plan_tables(
    tables: Table,
    text: &str,
    file: &Path,
    options: &PlanOptions,
    host: &dyn Host,
) -> (Option<Plan>, Diagnostics) {
    let diags = Diagnostics::new(&file.display().to_string(), text, options.audience);
    plan_with(tables, file, options, host, diags)
}

fn plan_with(
    tables: Table,
    file: &Path,
    options: &PlanOptions,
    host: &dyn Host,
    diags: Diagnostics,
) -> (Option<Plan>, Diagnostics) {
    let file = absolute(file);
    let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
    let output = options.output.as_deref().map_or_else(|| folder.join("out"), absolute);
    let mut cx = Cx { host, folder, output, diags, reasons: Vec::new() };
    let plan = plan_file(tables, &file, options, &mut cx);
    if plan.is_err() && !cx.diags.has_errors() && !cx.diags.is_open() {
        cx.error(None, "the workflow cannot be planned, and no step said why: this is a bug of orchestra");
    }
    cx.diags.sort();
    if cx.diags.has_errors() { (None, cx.diags) } else { (plan.ok(), cx.diags) }
}

fn plan_file(mut tree: Table, file: &Path, options: &PlanOptions, cx: &mut Cx<'_>) -> Result<Plan, Reported> {
    for (key, value) in &options.set {
        tree::set(&mut tree, key, value, &mut cx.diags);
    }
    variables::fill_in(&mut tree, cx);
    let raw_tasks = workflow::tasks_as_written(&tree, &mut cx.diags);
    let best = workflow::best_as_written(&tree, &mut cx.diags);
    let tables = tasks::tables(&raw_tasks, &best, cx);
    let none = TaskTables::default();
    let deferred = Deferred::fill(&mut tree, &raw_tasks, tables.as_ref().unwrap_or(&none), cx);
    let mut workflow = workflow::read(&tree, raw_tasks, &cx.host.kinds(), &mut cx.diags);
    sinks::find_files(&mut workflow.sinks, cx);
    let machine = machine(options, cx);
    // Without a look at the machine, nothing can be said about its devices.
    let mut devices = match (&machine, options.offline) {
        (None, false) => Err(Reported),
        (machine, _) => devices_in_use(&workflow, options, machine.as_ref(), cx),
    };
    let mut tasks = tables
        .and_then(|tables| expand_tasks(&workflow, &tables, machine.as_ref(), devices.as_ref().ok(), cx));
    let is_early = !deferred.is_empty() && !are_done(&deferred, tasks.as_ref().ok(), options, cx);
    if is_early {
        workflow.defer(|section, name| deferred.has(section, name));
    } else {
        deferred.must_be_known(cx);
    }
    graph::resolve(&mut workflow, cx);
    connect::connect(&mut workflow, cx);
    requests::check(&workflow, cx);
    behind_reduce::split(&mut workflow);
    keep_read_outputs(&mut workflow, cx);
    let devices = match &mut devices {
        Ok(devices) => place(&mut workflow, devices, tasks.as_ref().ok(), cx),
        Err(Reported) => Vec::new(),
    };
    if let (Ok(tasks), false) = (&mut tasks, is_early) {
        tasks::leave_to_models(tasks, &devices, &workflow, cx);
    }
    sources::check_apart(&workflow.sources, cx);
    let tasks = tasks?;
    if cx.diags.has_errors() {
        return Err(Reported);
    }
    if is_early {
        let pipelines = Pipelines::of(&workflow);
        pipelines.own_limits(&workflow, cx)?;
        let deferred = deferred.plan(&tasks, pipelines.names);
        cx.reasons.clear();
        let plan = assemble(workflow.of_tasks_alone(), &[], machine.as_ref(), tasks, file, cx)?;
        return Ok(Plan { deferred: Some(deferred), ..plan });
    }
    NoEffect { tree: &tree, workflow: &workflow, devices: &devices }.warn(cx);
    let outputs = match deferred.is_empty() {
        true => Vec::new(),
        false => deferred.outputs(&tasks, &cx.host.task_history(&tasks, &cx.output)),
    };
    let mut plan = assemble(workflow, &devices, machine.as_ref(), tasks, file, cx)?;
    plan.fingerprint.extend(outputs);
    Ok(plan)
}

fn expand_tasks(
    workflow: &WorkflowTables,
    tables: &TaskTables,
    machine: Option<&MachineView>,
    devices: Option<&Devices<'_>>,
    cx: &mut Cx<'_>,
) -> Result<TasksPlan, Reported> {
    let around = tasks::TaskContext {
        devices: &devices.map(Devices::for_commands).unwrap_or_default(),
        headroom: workflow.devices.headroom,
        slots: workflow.devices.slots,
        cores: machine.map_or(1, |machine| machine.cores.max(1)),
        is_known: machine.is_some(),
        sinks: &sinks::places(&workflow.sinks, &cx.output),
    };
    let mut tasks = tasks::expand(&workflow.tasks, tables, &around, cx)?;
    tasks::leave_to_shares(&mut tasks, |tasks| cx.host.task_history(tasks, &cx.output).done);
    Ok(tasks)
}

/// Whether the tasks have ended well whose values the tables of items use.
fn are_done(deferred: &Deferred, tasks: Option<&TasksPlan>, options: &PlanOptions, cx: &mut Cx<'_>) -> bool {
    let Some(tasks) = tasks else { return false };
    deferred.check(tasks, cx);
    match &options.tasks_done {
        Some(done) => {
            let is_done = |task: &TaskPlan| done.contains(&task.id);
            let is_done = |task: usize| is_done(&tasks.tasks[task]);
            let of_best = |best: &str| {
                tasks.best_named(best).is_some_and(|best| best.tasks.iter().any(|task| is_done(*task)))
            };
            deferred.is_done(is_done, of_best)
        }
        None => {
            let history = cx.host.task_history(tasks, &cx.output);
            deferred.is_done(|task| history.done.contains(&task), |best| history.have_best.contains(best))
        }
    }
}

fn machine(options: &PlanOptions, cx: &mut Cx<'_>) -> Option<MachineView> {
    if options.offline {
        return None;
    }
    let machine = cx.host.machine().map_err(|why| {
        cx.error(None, format!("this machine cannot be looked at: {why}"))
            .help("`orchestra doctor` says more")
            .unavailable();
    });
    machine.ok()
}

fn devices_in_use<'m>(
    workflow: &WorkflowTables,
    options: &PlanOptions,
    machine: Option<&'m MachineView>,
    cx: &mut Cx<'_>,
) -> Result<Devices<'m>, Reported> {
    let named = match &options.devices {
        Some(names) => from_option(names, cx),
        None => workflow.devices.use_.clone(),
    };
    Devices::resolve(named.as_deref(), machine, cx)
}

fn absolute(path: &Path) -> PathBuf {
    lexical(&std::path::absolute(path).unwrap_or_else(|_| path.into()))
}
