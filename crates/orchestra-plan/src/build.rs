//! From the text of a workflow file to its plan: the order of the steps. Each step lives in its own module.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::shapes::Encoder;
use orchestra_core::{Code, SandboxMode};
use orchestra_store::ListingSpec;

use crate::devices::{Device, Devices, from_option};
use crate::diagnostics::Diagnostics;
use crate::fields::At;
use crate::graph::{Graph, Link};
use crate::host::{Host, MachineView, lexical};
use crate::kind::{Draft, Input, SourceConnected, whole_row};
use crate::models::{self, Model};
use crate::no_effect::NoEffect;
use crate::plan::{ColumnRef, KnownItems, Plan, WorkerPlan};
use crate::raw::{self, RawModel, RawSource, RawStage, RawWorkflow};
use crate::sinks::{FAILURES, failure_schema};
use crate::tasks::{self, Late, TasksPlan};
use crate::wiring::{self, Wired, Wiring};
use crate::worker_placement::{Demand, place};
use crate::{sinks, sources, tree, tuning, variables};
use read_outputs::ReadOutputs;

mod assemble;
mod batches;
mod before_tasks_end;
mod fewer_loaders;
mod memory;
mod pipelines;
mod read_outputs;

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
    /// Ids of the tasks that count as done, so that what uses their values can be planned; `None`: those that earlier starts have done.
    pub tasks_done: Option<Vec<String>>,
}

/// Plans the workflow `text` of the file `file`.
///
/// Relative paths in it are relative to the folder of `file`, which should be absolute. There is a plan exactly if there is no
/// error and nothing is left open; all errors that can be found are found at once.
#[must_use]
pub fn plan(text: &str, file: &Path, options: &PlanOptions, host: &dyn Host) -> (Option<Plan>, Diagnostics) {
    let mut diags = Diagnostics::new(&file.display().to_string(), text);
    let plan = Planner { file: absolute(file), options, host, reasons: Vec::new() }.plan(text, &mut diags);
    if plan.is_none() && !diags.has_errors() && !diags.is_open() {
        diags.error(None, "the workflow cannot be planned, and no step said why: this is a bug of orchestra");
    }
    diags.sort();
    if diags.has_errors() { (None, diags) } else { (plan, diags) }
}

/// The absolute, clean path of something that the file names.
pub(crate) fn resolve(folder: &Path, written: &str, host: &dyn Host) -> PathBuf {
    host.resolve(&folder.join(written))
}

struct Planner<'a> {
    file: PathBuf,
    options: &'a PlanOptions,
    host: &'a dyn Host,
    reasons: Vec<String>,
}

/// The file as it is read, with the order of what reads what.
struct ReadFile {
    tree: tree::Table,
    /// That of the file.
    folder: PathBuf,
    output: PathBuf,
    late: Late,
    workflow: RawWorkflow,
    graph: Graph,
    sink_paths: Vec<Option<PathBuf>>,
}

/// What the tables of items are, as their kinds say. In the order of the file; `None` was reported, is unused or comes later.
struct Connected {
    listings: Vec<Option<ListingSpec>>,
    /// See [`Parts::sandbox_reads`].
    sandbox_reads: Vec<Vec<PathBuf>>,
    sources: Vec<Option<SourceConnected>>,
    n_items: Vec<Option<KnownItems>>,
    models: Vec<Option<Model>>,
    wired: Vec<Option<Wired>>,
    records: Vec<Option<RecordConnected>>,
}

/// Everything that the plan is assembled from. Tables are in the order of the file; `None` was reported, or is unused.
struct Parts {
    workflow: RawWorkflow,
    listings: Vec<Option<ListingSpec>>,
    /// What loaders may read beside the list, per source.
    sandbox_reads: Vec<Vec<PathBuf>>,
    sources: Vec<Option<SourceConnected>>,
    n_items: Vec<Option<KnownItems>>,
    models: Vec<Option<Model>>,
    graph: Graph,
    wired: Vec<Option<Wired>>,
    records: Vec<Option<RecordConnected>>,
    sink_paths: Vec<Option<PathBuf>>,
    devices: Vec<Device>,
    /// Per stage.
    workers: Vec<Vec<WorkerPlan>>,
    machine: Option<MachineView>,
    output: PathBuf,
    tasks: TasksPlan,
    /// Which outputs of tasks are read, for the fingerprint.
    outputs_of_tasks: Vec<(String, String)>,
}

impl Planner<'_> {
    fn plan(mut self, text: &str, diags: &mut Diagnostics) -> Option<Plan> {
        let mut read = self.read_file(text, diags)?;
        let machine = self.machine(diags);
        let looked_at = if self.options.offline { None } else { Some(machine.clone().unwrap_or_default()) };
        let mut in_use = self.devices_in_use(&read.workflow, looked_at.as_ref(), machine.is_some(), diags);
        let mut tasks = self.expand_tasks(&read, machine.as_ref(), in_use.as_ref(), diags);
        let is_early =
            !read.late.is_empty() && !self.are_done(&read.late, tasks.as_ref(), &read.output, diags);
        let connected = self.connect(&mut read, is_early, diags);
        let of = (in_use.as_mut(), looked_at.as_ref(), tasks.as_ref());
        let (devices, workers) = self.place(&read, &connected, of, diags);
        if let Some(tasks) = tasks.as_mut().filter(|_| !is_early) {
            tasks::leave_to_models(tasks, (&devices, &workers), &read.workflow.tasks, diags);
        }
        sources::check_apart(&read.workflow.sources, &read.folder, &read.output, self.host, diags);
        let outputs_of_tasks = match &tasks {
            Some(tasks) if !read.late.is_empty() && !is_early => {
                read.late.outputs(tasks, &self.host.tasks_ended(tasks, &read.output))
            }
            _ => Vec::new(),
        };
        let ReadFile { tree, output, late, workflow, graph, sink_paths, .. } = read;
        let Connected { listings, sandbox_reads, sources, n_items, models, wired, records } = connected;
        let parts = Parts {
            workflow,
            listings,
            sandbox_reads,
            n_items,
            sources,
            models,
            graph,
            wired,
            records,
            sink_paths,
            devices,
            workers,
            machine,
            output,
            tasks: tasks.unwrap_or_default(),
            outputs_of_tasks,
        };
        if diags.has_errors() {
            return None;
        }
        if is_early {
            return before_tasks_end::plan(parts, &late, self.file, diags);
        }
        let Parts { workflow, sources, wired, devices, workers, .. } = &parts;
        NoEffect { tree: &tree, workflow, sources, wired, devices, workers }.warn(diags);
        assemble::Assembler::new(&parts, self.file, self.reasons, diags).assemble()
    }

    /// Reads the file, and looks at nothing that it names. `None`: it is no TOML.
    fn read_file(&self, text: &str, diags: &mut Diagnostics) -> Option<ReadFile> {
        let mut tree = tree::parse(text, diags)?;
        for (key, value) in &self.options.set {
            tree::set(&mut tree, key, value, diags);
        }
        variables::fill_in(&mut tree, self.host, diags);
        let folder = self.file.parent().unwrap_or(Path::new("/")).to_owned();
        let output = match &self.options.output {
            Some(output) => absolute(output),
            None => folder.join("out"),
        };
        let around = tasks::Surroundings {
            folder: &folder,
            output: &output,
            devices: &[],
            headroom: 0,
            slots: None,
            cores: 1,
            is_known: false,
            sinks: &[],
            host: self.host,
        };
        let tasks = raw::tasks(&tree, diags);
        let late = Late::fill(&mut tree, &tasks, &around, diags);
        let mut workflow = raw::read(&tree, tasks, &self.host.kinds(), diags);
        let graph = Graph::new(&mut workflow, diags);
        let sink_paths = sinks::check_paths(&workflow.sinks, diags);
        Some(ReadFile { tree, folder, output, late, workflow, graph, sink_paths })
    }

    /// The tasks of all tables; `None` after an error.
    fn expand_tasks(
        &self,
        read: &ReadFile,
        machine: Option<&MachineView>,
        in_use: Option<&Devices<'_>>,
        diags: &mut Diagnostics,
    ) -> Option<TasksPlan> {
        let ReadFile { folder, output, workflow, sink_paths, .. } = read;
        let around = tasks::Surroundings {
            folder,
            output,
            devices: &in_use.map(Devices::for_commands).unwrap_or_default(),
            headroom: workflow.devices.headroom,
            slots: workflow.devices.slots,
            cores: machine.map_or(1, |machine| machine.cores.max(1)),
            is_known: machine.is_some(),
            sinks: &sinks::places(&workflow.sinks, sink_paths, output),
            host: self.host,
        };
        let mut tasks = tasks::expand(&workflow.tasks, &around, diags)?;
        tasks::leave_to_shares(&mut tasks, |tasks| self.host.tasks_done(tasks, output));
        Some(tasks)
    }

    /// Finds what sources, models, stages and sinks are. `is_early`: those that use values of tasks are planned when the tasks have ended.
    fn connect(&self, read: &mut ReadFile, is_early: bool, diags: &mut Diagnostics) -> Connected {
        let ReadFile { folder, late, workflow, graph, .. } = read;
        let (folder, late) = (folder.as_path(), &*late);
        let is_late = |section: &str, name: &At<String>| is_early && late.has(section, &name.value);
        let listing = |s: &RawSource| match is_late("sources", &s.name) {
            true => None,
            false => sources::resolve_listing(s, folder, self.host, diags),
        };
        let listings: Vec<_> = workflow.sources.iter().map(listing).collect();
        let is_off = workflow.limits.sandbox == SandboxMode::Off;
        let sandbox_read = |s: &RawSource| {
            let what = format!("source `{}`", s.name.value);
            let of = (&*what, "sandbox_read", is_off);
            models::allowed_paths(of, &s.sandbox_read, folder, self.host, diags)
        };
        let sandbox_reads: Vec<_> = workflow.sources.iter().map(sandbox_read).collect();
        let load = |m: &RawModel| match is_late("models", &m.name) {
            true => None,
            false => models::load(m, folder, self.host, diags),
        };
        let mut models: Vec<_> = workflow.models.iter().map(load).collect();
        let connect = |(source, listing): (&RawSource, &Option<ListingSpec>)| {
            sources::connect(source, listing.as_ref(), &workflow.limits, self.host, diags)
        };
        let connected: Vec<_> = workflow.sources.iter().zip(&listings).map(connect).collect();
        let (sources, n_items): (Vec<_>, Vec<_>) = connected.into_iter().map(Option::unzip).unzip();
        let n_items = n_items.into_iter().map(Option::flatten).collect();
        let is_late_stage = |stage: &RawStage| is_late("stages", &stage.name);
        let place = (self.host, folder);
        let mut wired = Wiring::new(workflow, graph, &sources, &models, place, &is_late_stage, diags).check();
        programs_are_known(workflow, &mut models, &wired);
        let mut records = records(workflow, graph, &sources, &models, &wired, diags);
        let (n_stages, wired_now, records_now) = (graph.n_stages, &mut wired, &mut records);
        ReadOutputs { workflow, models: &models, n_stages, wired: wired_now, records: records_now }
            .keep(diags);
        Connected { listings, sandbox_reads, sources, n_items, models, wired, records }
    }

    /// The devices in the order of the plan, and the workers of each stage on them; none after an error of the devices.
    fn place(
        &mut self,
        read: &ReadFile,
        connected: &Connected,
        (in_use, looked_at, tasks): (Option<&mut Devices<'_>>, Option<&MachineView>, Option<&TasksPlan>),
        diags: &mut Diagnostics,
    ) -> (Vec<Device>, Vec<Vec<WorkerPlan>>) {
        let Some(in_use) = in_use else {
            return (Vec::new(), read.workflow.stages.iter().map(|_| Vec::new()).collect());
        };
        let (Connected { models, .. }, of) = (connected, (in_use, looked_at, tasks));
        self.devices(&read.workflow, models, &read.graph, of, diags)
    }

    /// Whether the tasks have ended well whose values the tables of items use.
    fn are_done(
        &self,
        late: &Late,
        tasks: Option<&TasksPlan>,
        output: &Path,
        diags: &mut Diagnostics,
    ) -> bool {
        let Some(tasks) = tasks else { return false };
        late.check(tasks, diags);
        match &self.options.tasks_done {
            Some(done) => {
                let is_done = |task: &tasks::TaskPlan| done.contains(&task.id);
                let of_table =
                    |table: &str| tasks.tasks.iter().any(|task| task.name == table && is_done(task));
                late.is_done(|task| is_done(&tasks.tasks[task]), of_table)
            }
            None => {
                let done = self.host.tasks_done(tasks, output);
                let is_done = |task| done.get(task) == Some(&true);
                late.is_done(is_done, |table| self.host.has_best(tasks, output, table))
            }
        }
    }

    fn machine(&self, diags: &mut Diagnostics) -> Option<MachineView> {
        if self.options.offline {
            return None;
        }
        match self.host.machine() {
            Ok(machine) => Some(machine),
            Err(why) => {
                diags
                    .error(None, format!("this machine cannot be looked at: {why}"))
                    .help("`orchestra doctor` says more; --offline checks the file alone")
                    .unavailable();
                None
            }
        }
    }

    /// The devices in use; `None` after an error. `is_known`: the machine was looked at.
    fn devices_in_use<'m>(
        &self,
        workflow: &RawWorkflow,
        machine: Option<&'m MachineView>,
        is_known: bool,
        diags: &mut Diagnostics,
    ) -> Option<Devices<'m>> {
        let asked: Option<Vec<At<String>>> = match &self.options.devices {
            Some(names) => from_option(names, diags),
            None => workflow.devices.use_.clone(),
        };
        if machine.is_some() && !is_known {
            return None; // Already reported: nothing can be said about devices.
        }
        Devices::resolve(asked.as_deref(), machine, diags)
    }

    /// All devices that some used batch stage may use, and the workers of each stage on them.
    fn devices(
        &mut self,
        workflow: &RawWorkflow,
        models: &[Option<Model>],
        graph: &Graph,
        (devices, looked_at, tasks): (&mut Devices<'_>, Option<&MachineView>, Option<&TasksPlan>),
        diags: &mut Diagnostics,
    ) -> (Vec<Device>, Vec<Vec<WorkerPlan>>) {
        let mut workers: Vec<Vec<WorkerPlan>> = workflow.stages.iter().map(|_| Vec::new()).collect();
        let is_asked = self.options.devices.is_some() || workflow.devices.use_.is_some();
        let mut table: Vec<Device> = Vec::new();
        let mut demands = Vec::new();
        let mut stages = Vec::new();
        // Several stages may run one model.
        let mut unchecked = vec![true; workflow.models.len()];
        let mut no_compiler = None;
        for (index, stage) in workflow.stages.iter().enumerate() {
            let Some(model) = stage.batch().and_then(|batch| batch.model.as_ref()) else { continue };
            let Some(at) = workflow.models.iter().position(|m| m.name.value == model.value) else { continue };
            let model = &workflow.models[at];
            // A model that could not be read was reported: there will be no plan.
            let code = models[at].as_ref().and_then(|m| m.plan.code.as_ref());
            let own = match &model.devices {
                Some(names) => devices.of_model(names, diags),
                None if models[at].as_ref().is_some_and(|m| m.on_cores) => Some(devices.cores()),
                None if code.is_some() => Some(devices.for_code()),
                None => Some(devices.in_use.clone()),
            };
            let own = match code {
                Some(Code::Kernel(_)) if looked_at.is_some() => {
                    own.and_then(|own| devices.gpus(model, own, diags))
                }
                Some(_) => own,
                None => own.and_then(|own| devices.for_model(own, diags)),
            };
            let Some(own) = own.filter(|_| index < graph.n_stages) else { continue };
            if let Some(Code::Kernel(kernel)) = code {
                no_compiler = no_compiler.or(kernel.compilers.as_ref().err());
            }
            if std::mem::take(&mut unchecked[at]) {
                let named = is_asked || model.devices.is_some();
                tuning::check_devices(&model.name.value, &model.tuning, &own, named, diags);
            }
            let own = own.into_iter().map(|d| place_of(&mut table, d)).collect();
            demands.push(Demand { stage: &stage.name.value, model, devices: own });
            stages.push(index);
        }
        if let Some(why) = no_compiler.filter(|_| looked_at.is_some()) {
            diags.error(None, format!("CUDA kernels cannot be compiled: {why}")).unavailable();
        }
        if !demands.is_empty() {
            let takes_more = table.iter().all(Device::is_cuda) && !devices.in_use.iter().any(Device::is_cuda);
            let reason = match takes_more {
                true => "devices: the GPUs, for code that needs nothing of what models need".to_owned(),
                false => devices.reason.clone(),
            };
            self.reasons.push(reason);
        }
        let cores = looked_at.map_or(1, |m| m.cores.max(1));
        let headroom = workflow.devices.headroom;
        let of_shares: Vec<u64> = table.iter().map(|device| of_shares(tasks, device)).collect();
        let placed = place(&demands, (&table, &of_shares), cores, headroom, &mut self.reasons, diags);
        for (stage, placed) in stages.into_iter().zip(placed) {
            workers[stage] = placed;
        }
        (table, workers)
    }
}

/// Fills in what is known of a program once it has been asked, and what feeds it.
fn programs_are_known(workflow: &mut RawWorkflow, models: &mut [Option<Model>], wired: &[Option<Wired>]) {
    for (stage, wired) in workflow.stages.iter_mut().zip(wired) {
        let (Some(Draft::Batch(batch)), Some(Wired::Batch { model, tensors, .. })) =
            (&mut stage.draft, wired)
        else {
            continue;
        };
        if let Some(model) = models[*model].as_mut().filter(|model| model.plan.code.is_some()) {
            model.plan.inputs.clone_from(tensors);
            let asked = model.max_batch.map(|rows| At::new(rows, stage.name.span));
            batch.max_batch = batch.max_batch.take().or(asked);
        }
    }
}

/// What a sink writes.
pub(crate) struct RecordConnected {
    reads: Vec<ColumnRef>,
    columns: Vec<String>,
    encoder: Arc<dyn Encoder>,
}

/// What each sink writes; `None` after an error.
fn records(
    workflow: &RawWorkflow,
    graph: &Graph,
    sources: &[Option<SourceConnected>],
    models: &[Option<Model>],
    wired: &[Option<Wired>],
    diags: &mut Diagnostics,
) -> Vec<Option<RecordConnected>> {
    let record = |(sink, links): (&raw::RawSink, &Vec<Option<Link>>)| {
        if sink.is_of_failures {
            let input = Input {
                name: FAILURES.to_owned(),
                kind: FAILURES,
                is_source: true,
                span: sink.from.first()?.span,
                paths: Vec::new(),
                gives: failure_schema(),
                unreadable: Vec::new(),
                column: None,
                aliases: Vec::new(),
                labels: None,
                metadata: Arc::default(),
            };
            let encoder = sinks::connect(sink, &input, diags)?;
            let columns = input.gives.names().map(str::to_owned).collect();
            return Some(RecordConnected { reads: Vec::new(), columns, encoder });
        }
        let links: Vec<&Link> = links.iter().map(Option::as_ref).collect::<Option<_>>()?;
        let input = |link: &&Link| wiring::input(workflow, sources, models, wired, link);
        let inputs: Vec<Input> = links.iter().map(input).collect::<Option<_>>()?;
        let what = format!("sink `{}`", sink.name.value);
        let (input, reads) = whole_row(&what, &inputs, diags)?;
        let encoder = sinks::connect(sink, &input, diags)?;
        let read = |(input, column): (usize, usize)| ColumnRef { from: links[input].target, column };
        let reads = reads.into_iter().map(read).collect();
        let columns = input.gives.names().map(str::to_owned).collect();
        Some(RecordConnected { reads, columns, encoder })
    };
    workflow.sinks.iter().zip(&graph.sinks).map(record).collect()
}

/// Bytes of a device that models leave to commands with a share of it.
fn of_shares(tasks: Option<&TasksPlan>, device: &Device) -> u64 {
    let gpu = tasks.and_then(|tasks| tasks.gpus.iter().find(|gpu| gpu.name == device.name));
    gpu.map_or(0, |gpu| gpu.of_shares)
}

fn place_of(table: &mut Vec<Device>, device: Device) -> usize {
    match table.iter().position(|d| *d == device) {
        Some(at) => at,
        None => {
            table.push(device);
            table.len() - 1
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    lexical(&std::path::absolute(path).unwrap_or_else(|_| path.into()))
}
