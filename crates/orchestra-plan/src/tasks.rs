//! `[tasks.*]`: from the tables to tasks, one for each combination of values, with everything filled in. Knows no process.

mod beside;
mod checks;
mod combine;
mod comparisons;
mod deferred;
mod fill;
mod order;
mod rows;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use orchestra_core::tasks::{Demand, Gpus, WHOLE};

pub(crate) use self::beside::{leave_to_models, leave_to_shares};
pub(crate) use self::combine::product;
use self::comparisons::TaskComparison;
pub(crate) use self::deferred::Deferred;
pub use self::deferred::is_output_of_task;
use crate::bytes::format_bytes;
use crate::cx::Cx;
use crate::devices::Device;
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::nearest::{list, suggestion};
use crate::plan::{BestOf, TASKS_FOLDER, TaskGpu, TaskPlan, TasksPlan, id_of, task_names};
use crate::workflow::{RawBest, RawDevice, RawTask};

/// Most tasks of a file: each is a process, a folder and a log.
const MAX_TASKS: usize = 100_000;
/// Most pairs of a task and one that it comes after.
const MAX_LINKS: usize = 10_000_000;

/// What tasks depend on beside their tables.
#[derive(Default)]
pub(crate) struct TaskContext<'a> {
    pub devices: &'a [Device],
    /// Bytes of each GPU that stay free.
    pub headroom: u64,
    /// `devices.slots`
    pub slots: Option<usize>,
    pub cores: usize,
    /// The machine was looked at.
    pub is_known: bool,
    /// The sinks, and what each writes: a file, a folder of files, a glob of part files or a URL.
    pub sinks: &'a [(String, String)],
}

/// A task of which the values are known, and nothing else yet.
pub(crate) struct Instance {
    table: usize,
    id: String,
    /// Relative to the output folder.
    folder: PathBuf,
    values: Vec<(String, String)>,
}

/// Which tasks there are, and which of them are compared.
#[derive(Default)]
pub(crate) struct TaskTables {
    instances: Vec<Instance>,
    comparisons: Vec<TaskComparison>,
    /// Names of comparisons that are wrong, which was reported.
    wrong_comparisons: Vec<String>,
}

/// The tasks of all tables.
pub(crate) fn expand(
    raws: &[RawTask],
    tables: &TaskTables,
    around: &TaskContext<'_>,
    cx: &mut Cx<'_>,
) -> Result<TasksPlan, Reported> {
    let expander = Expander::new(raws, tables, around, cx);
    let instances = &tables.instances;
    let mut tasks: Vec<TaskPlan> = Vec::new();
    let (mut is_fine, mut links) = (Ok(()), 0);
    let too_many = |raw: &RawTask, each: usize, cx: &mut Cx<'_>| {
        let span = raw.after.first().map_or(raw.name.span, |after| after.span);
        cx.error(span, format!("tasks come after one another more than {MAX_LINKS} times"))
            .label(format!("each task of `{}` waits for {each} others", raw.name.value))
            .help("let a task between come after the many, and these after that one")
            .fail()
    };
    for (table, raw) in raws.iter().enumerate() {
        let own = || instances.iter().filter(|instance| instance.table == table);
        // Before any of them is made: tables that `after` names as a whole.
        let named = raw.after.iter().filter_map(|after| expander.of_table.get(&after.value[..]));
        let each = named.map(Vec::len).sum();
        if own().count().saturating_mul(each).saturating_add(links) > MAX_LINKS {
            return too_many(raw, each, cx);
        }
        for instance in own() {
            // What is wrong with a table is wrong with all of its instances: it is said once.
            let task = match expander.task(raw, instance, cx) {
                Ok(task) => task,
                Err(reported) => {
                    is_fine = Err(reported);
                    break;
                }
            };
            links += task.after.len();
            if links > MAX_LINKS {
                return too_many(raw, task.after.len(), cx);
            }
            tasks.push(task);
        }
    }
    is_fine?;
    if !tables.wrong_comparisons.is_empty() {
        return Err(Reported);
    }
    let span_of = |task: usize| raws[instances[task].table].name.span;
    order::complete(&mut tasks, span_of, cx)?;
    let best = expander.comparisons.iter().map(|comparison| BestOf {
        name: comparison.name.clone(),
        tasks: expander.compared(comparison).collect(),
        objective: comparison.objective.clone(),
    });
    Ok(TasksPlan {
        tasks,
        best: best.collect(),
        gpus: expander.gpus,
        cpu_slots: around.slots.unwrap_or(around.cores).max(1),
        cores: around.cores,
        folder: cx.folder.clone(),
    })
}

pub(crate) fn tables(raws: &[RawTask], best: &[RawBest], cx: &mut Cx<'_>) -> Result<TaskTables, Reported> {
    let instances = instances(raws, cx);
    let (comparisons, wrong_comparisons) = comparisons::comparisons(raws, best, cx);
    Ok(TaskTables { instances: instances?, comparisons, wrong_comparisons })
}

fn instances(raws: &[RawTask], cx: &mut Cx<'_>) -> Result<Vec<Instance>, Reported> {
    checks::check_names(raws, cx)?;
    let mut instances: Vec<Instance> = Vec::new();
    let mut is_fine = Ok(());
    for (table, raw) in raws.iter().enumerate() {
        let combinations = match combine::combinations(raw, MAX_TASKS, cx) {
            Ok(combinations) => combinations,
            Err(reported) => {
                is_fine = Err(reported);
                continue;
            }
        };
        let mut seen = BTreeSet::new();
        for values in combinations {
            let (id, folder) = task_names(&raw.name.value, &values);
            if !seen.insert(folder.clone()) {
                let message = format!("there are two tasks `{id}`");
                let help = "values must differ between any two of them";
                is_fine = cx.error(raw.name.span, message).help(help).fail();
                break;
            }
            instances.push(Instance { table, id, folder: Path::new(TASKS_FOLDER).join(folder), values });
        }
    }
    if instances.len() > MAX_TASKS {
        let message = format!("these are {} tasks, and {MAX_TASKS} is the most", instances.len());
        return cx.error(raws[0].name.span, message).fail();
    }
    is_fine.map(|()| instances)
}

struct Expander<'a> {
    raws: &'a [RawTask],
    around: &'a TaskContext<'a>,
    /// The tasks of each table, by their places.
    of_table: HashMap<&'a str, Vec<usize>>,
    by_id: HashMap<&'a str, usize>,
    instances: &'a [Instance],
    comparisons: &'a [TaskComparison],
    wrong_comparisons: &'a [String],
    /// Absolute.
    outputs: Vec<PathBuf>,
    gpus: Vec<TaskGpu>,
}

impl<'a> Expander<'a> {
    fn new(raws: &'a [RawTask], tables: &'a TaskTables, around: &'a TaskContext<'a>, cx: &Cx<'_>) -> Self {
        let TaskTables { instances, comparisons, wrong_comparisons } = tables;
        let mut of_table: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, instance) in instances.iter().enumerate() {
            of_table.entry(&raws[instance.table].name.value).or_default().push(at);
        }
        let gpu = |device: &Device| TaskGpu {
            name: device.name.clone(),
            uuid: device.uuid().unwrap_or_default().to_owned(),
            memory: device.memory.map(|(_, free)| free.saturating_sub(around.headroom)),
            headroom: around.headroom,
            of_models: 0,
            of_shares: 0,
        };
        Self {
            raws,
            around,
            of_table,
            by_id: instances.iter().enumerate().map(|(at, instance)| (&instance.id[..], at)).collect(),
            instances,
            comparisons,
            wrong_comparisons,
            outputs: instances.iter().map(|i| cx.output.join(&i.folder).join("output")).collect(),
            gpus: around.devices.iter().filter(|device| device.is_cuda()).map(gpu).collect(),
        }
    }

    fn task(&self, raw: &RawTask, instance: &Instance, cx: &mut Cx<'_>) -> Result<TaskPlan, Reported> {
        let place = self.by_id[&instance.id[..]];
        let mut fill = fill::Fill::new(self, &instance.values, &self.outputs[place]);
        let (command, env) = fill.command(raw, cx)?;
        let cwd = raw.cwd.as_ref().map(|cwd| fill.text(cwd, cx)).transpose()?;
        let cwd = cwd.map_or_else(|| cx.folder.clone(), |cwd| cx.resolve(&cwd));
        let pass_env = raw.pass_env.iter().map(|name| name.value.clone()).collect();
        let mut paths = |key: &str, paths: &[Spanned<String>]| -> Result<Vec<PathBuf>, Reported> {
            let path = |path: &Spanned<String>| self.path(key, path.span, &cwd, &fill.text(path, cx)?, cx);
            paths.iter().map(path).collect()
        };
        let (inputs, outputs) = (paths("inputs", &raw.inputs)?, paths("outputs", &raw.outputs)?);
        let (mut after, mut after_sinks) = (BTreeSet::new(), BTreeSet::new());
        for earlier in &raw.after {
            let named = Spanned::new(fill.text(earlier, cx)?, earlier.span);
            match named.value.strip_prefix("sinks.") {
                Some(sink) => after_sinks.extend([self.sink(sink, named.span, cx)?.0.clone()]),
                None => after.extend(self.named(&named, cx)?),
            }
        }
        after.extend(fill.after);
        let of_best = fill.best_of.iter().flat_map(|best| self.compared(&self.comparisons[*best]));
        let of_best: BTreeSet<usize> = of_best.collect();
        let may_fail = of_best.difference(&after).copied().collect();
        after.extend(of_best);
        after_sinks.extend(fill.after_sinks);
        Ok(TaskPlan {
            id: instance.id.clone(),
            name: raw.name.value.clone(),
            values: instance.values.clone(),
            command,
            cwd,
            env,
            pass_env,
            demand: self.demand(raw, cx)?,
            after: after.into_iter().collect(),
            best_of: fill.best_of.into_iter().collect(),
            late_values: fill.late_values,
            may_fail,
            after_sinks: after_sinks.into_iter().collect(),
            timeout: raw.timeout,
            quiet: raw.quiet,
            retries: raw.retries,
            stop_signal: raw.stop_signal,
            grace: raw.grace,
            memory: raw.memory,
            inputs,
            outputs,
            folder: instance.folder.clone(),
            metrics: raw.measured.metrics.clone(),
        })
    }

    fn tasks_of(&self, table: usize) -> impl Iterator<Item = usize> + '_ {
        self.of_table.get(&self.raws[table].name.value[..]).into_iter().flatten().copied()
    }

    fn compared<'s>(&'s self, comparison: &'s TaskComparison) -> impl Iterator<Item = usize> + 's {
        comparison.tables.iter().flat_map(|table| self.tasks_of(*table))
    }

    /// The tasks that `after` names: all of a table, or one of them.
    fn named(&self, name: &Spanned<String>, cx: &mut Cx<'_>) -> Result<Vec<usize>, Reported> {
        if let Some(all) = self.of_table.get(&name.value[..]) {
            return Ok(all.clone());
        }
        let by_id = |id: &str| self.by_id.get(id).map(|one| vec![*one]);
        if let Some(one) = by_id(&name.value).or_else(|| by_id(&id_of(&name.value)?)) {
            return Ok(one);
        }
        self.unknown(&name.value, name.span, cx)
    }

    fn sink(&self, name: &str, span: Span, cx: &mut Cx<'_>) -> Result<&'a (String, String), Reported> {
        let sinks = self.around.sinks;
        sinks.iter().find(|(sink, _)| sink == name).ok_or(()).or_else(|()| {
            let help = suggestion("sinks", name, sinks.iter().map(|(sink, _)| &sink[..]));
            cx.error(span, format!("there is no sink `{name}`")).help(help).fail()
        })
    }

    fn unknown<T>(&self, name: &str, span: Span, cx: &mut Cx<'_>) -> Result<T, Reported> {
        let table = name.split_once('[').map_or(name, |(table, _)| table);
        let help = match self.of_table.get(table) {
            Some(tasks) => format!("tasks of `{table}`: {}", self.some_of(tasks)),
            None => suggestion("tasks", name, self.raws.iter().map(|raw| &raw.name.value[..])),
        };
        cx.error(span, format!("there is no task `{name}`")).help(help).fail()
    }

    /// A few of their ids, for messages.
    fn some_of(&self, tasks: &[usize]) -> String {
        const SHOWN: usize = 4;
        let mut ids: Vec<&str> =
            self.by_id.iter().filter(|(_, at)| tasks.contains(at)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let more = ids.len().saturating_sub(SHOWN);
        ids.truncate(SHOWN);
        let shown = list(ids);
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    }

    fn demand(&self, raw: &RawTask, cx: &mut Cx<'_>) -> Result<Demand, Reported> {
        let name = &raw.name.value;
        let gpus = match &raw.device {
            RawDevice::None => Gpus::None,
            _ if !self.around.is_known => Gpus::None,
            RawDevice::Named(device) if device.value == "cpu" => Gpus::None,
            RawDevice::Named(device) => {
                let is_meant = |gpu: &TaskGpu| gpu.name == device.value || gpu.uuid == device.value;
                let Some(gpu) = self.gpus.iter().position(is_meant) else {
                    let message =
                        format!("task `{name}`: device `{}` is not among the devices in use", device.value);
                    let in_use = list(self.gpus.iter().map(|gpu| &gpu.name[..]));
                    let in_use = if in_use.is_empty() { "none" } else { &in_use };
                    let help = format!("GPUs in use: {in_use}; \"auto\" takes any of them");
                    return cx.error(device.span, message).help(help).unavailable().fail();
                };
                Gpus::This(gpu)
            }
            RawDevice::Share(_) | RawDevice::Count(_) if self.gpus.is_empty() => Gpus::Instead,
            RawDevice::Share(share) => Gpus::Share(*share),
            RawDevice::Count(count) => Gpus::Count(count.value),
        };
        // Without GPUs the same file runs on the cores: a device is a slot of the CPU.
        let instead = match &raw.device {
            RawDevice::Share(share) => *share,
            RawDevice::Count(count) => u32::try_from(count.value).unwrap_or(u32::MAX).saturating_mul(WHOLE),
            RawDevice::None | RawDevice::Named(_) => WHOLE,
        };
        let cores = raw.cpus.unwrap_or(0);
        let cpu = match (cores, gpus) {
            (0, Gpus::None | Gpus::Instead) => instead,
            (cores, _) => u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(WHOLE),
        };
        let gpu_memory = raw
            .gpu_memory
            .as_ref()
            .filter(|_| !matches!(gpus, Gpus::None | Gpus::Instead))
            .map_or(0, |bytes| bytes.value);
        let demand = Demand { gpus, gpu_memory, cpu, cores, priority: raw.priority, after_loss: false };
        self.must_be_possible(raw, Demand { cpu: 0, ..demand }, cx).map(|()| demand)
    }

    /// Reports what no lease of the GPUs could ever give.
    fn must_be_possible(&self, raw: &RawTask, demand: Demand, cx: &mut Cx<'_>) -> Result<(), Reported> {
        let leases = TasksPlan { gpus: self.gpus.clone(), ..TasksPlan::default() }.leases();
        if leases.could_take(&demand) {
            return Ok(());
        }
        let (span, what) = match (&raw.gpu_memory, &raw.device) {
            (Some(bytes), _) if leases.could_take(&Demand { gpu_memory: 0, ..demand }) => {
                (bytes.span, format!("{} of a GPU", format_bytes(bytes.value)))
            }
            (_, RawDevice::Count(count)) => (count.span, format!("{} GPUs", count.value)),
            _ => (raw.name.span, "a GPU".to_owned()),
        };
        let free =
            |gpu: &TaskGpu| format!("{} ({} to give away)", gpu.name, format_bytes(gpu.memory.unwrap_or(0)));
        let free: Vec<String> = self.gpus.iter().map(free).collect();
        cx.error(span, format!("task `{}` asks for {what}, and no lease can have that", raw.name.value))
            .help(format!("GPUs in use: {}", free.join(", ")))
            .unavailable()
            .fail()
    }
}
