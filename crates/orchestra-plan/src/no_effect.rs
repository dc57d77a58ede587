//! Keys that are right and change nothing on this plan: each becomes a warning at its place. Knows no kind; kinds do the same in `connect`.

use orchestra_core::SandboxMode;
use orchestra_core::credentials::can_mean_one;
use orchestra_core::data::ColumnType;
use orchestra_core::shapes::FileAccess;

use crate::cx::Cx;
use crate::devices::Device;
use crate::kind::{Connect, Draft};
use crate::plan::SourcePlan;
use crate::tree::{Table, Toml};
use crate::workflow::{ModelNode, StageNode, WorkflowTables};

/// A workflow that is placed without errors.
pub(crate) struct NoEffect<'a> {
    pub tree: &'a Table,
    pub workflow: &'a WorkflowTables,
    pub devices: &'a [Device],
}

impl NoEffect<'_> {
    pub fn warn(&self, cx: &mut Cx<'_>) {
        let WorkflowTables { sources, tasks, limits, .. } = self.workflow;
        let used: Vec<(&ModelNode, Vec<&Device>)> = self.used_models();
        self.keys_of_models(&used, cx);
        self.trims(cx);
        let is_off = limits.sandbox == SandboxMode::Off;
        for source in sources {
            let reads_all =
                source.plan.as_ref().is_some_and(|plan| matches!(plan.fetch.opens(), FileAccess::Any));
            let why = match (is_off, reads_all) {
                (true, _) => "its loaders are not confined: `limits.sandbox` is \"off\"",
                (false, true) => "its loaders read as their user",
                (false, false) => continue,
            };
            self.at(&["sources", &source.name.value, "sandbox_read"], why, cx);
        }
        for task in tasks {
            for name in task.pass_env.iter().filter(|name| !can_mean_one(&name.value)) {
                let (task, variable) = (&task.name.value, &name.value);
                let message = format!(
                    "task `{task}`: `{variable}` in `pass_env` has no effect: it is no credential, so the command gets it anyway"
                );
                cx.warning(name.span, message).label("has no effect").help("leave it out");
            }
        }
        let gives_pictures =
            |source: &SourcePlan| source.gives.0.iter().any(|column| column.ty == ColumnType::Picture);
        let has_pictures = sources.iter().filter_map(|source| source.plan.as_ref()).any(gives_pictures);
        let takes_requests = |source: &SourcePlan| source.request.is_some();
        if !sources.iter().filter_map(|source| source.plan.as_ref()).any(takes_requests) {
            self.at(
                &["serve"],
                "`orchestra serve` reads it, and this file has no source of kind `request`",
                cx,
            );
        }
        let (runs_none, has_tasks) = (used.is_empty(), !tasks.is_empty());
        let on_cpu = !runs_none && none_is_cuda(&self.devices.iter().collect::<Vec<_>>());
        for (holds, table, key, why) in [
            (runs_none && !has_tasks, "devices", "use", "the workflow runs no model"),
            (runs_none && !has_tasks, "devices", "headroom", "the workflow runs no model"),
            (runs_none, "limits", "batch_timeout", "the workflow runs no model"),
            (runs_none, "limits", "load_timeout", "the workflow runs no model"),
            (on_cpu, "devices", "headroom", "no model runs on a GPU"),
            (!has_tasks, "devices", "slots", "the workflow has no tasks"),
            (!has_pictures, "limits", "max_pixels", "no source gives pictures"),
        ] {
            if holds {
                self.at(&[table, key], why, cx);
            }
        }
    }

    fn keys_of_models(&self, used: &[(&ModelNode, Vec<&Device>)], cx: &mut Cx<'_>) {
        for (model, devices) in used {
            let shares = |(other, on): &(&ModelNode, Vec<&Device>)| {
                other.name != model.name && on.iter().any(|device| devices.contains(device))
            };
            let is_alone = !used.iter().any(shares) && self.workflow.tasks.is_empty();
            let is_off = model.asked.sandbox == Some(SandboxMode::Off);
            let unconfined = "its workers are not confined: `sandbox` is \"off\"";
            for (holds, keys, why) in [
                (none_is_cuda(devices), &["tf32", "memory"][..], "the model runs on no GPU"),
                (is_off, &["sandbox_read", "sandbox_write", "sandbox_env"], unconfined),
                (is_alone, &["priority"], "no other model runs on its devices"),
            ] {
                for key in keys.iter().filter(|_| holds) {
                    self.at(&["models", &model.name.value, key], why, cx);
                }
            }
        }
    }

    /// `trim` of stages whose rows no model takes trimmed.
    fn trims(&self, cx: &mut Cx<'_>) {
        let stages = &self.workflow.stages;
        for (at, stage) in stages.iter().enumerate() {
            let is_trimmed = |of: &StageNode| {
                let placed = of.plan().and_then(|plan| plan.reads.last());
                of.batch_plan().is_some_and(|batch| batch.trim.is_some() && !batch.workers.is_empty())
                    && placed.and_then(|placed| placed.from.stage()).is_some_and(|from| from.index() == at)
            };
            let has_trim = |draft: &dyn Connect| draft.pixels().is_some_and(|spec| spec.trim.is_some());
            let trims = matches!(&stage.draft, Some(Draft::Stage(draft)) if has_trim(&**draft));
            if trims && !stages.iter().any(is_trimmed) {
                self.at(&["stages", &stage.name.value, "trim"], "no model is given its rows", cx);
            }
        }
    }

    /// With the devices of all stages that run them.
    fn used_models(&self) -> Vec<(&ModelNode, Vec<&Device>)> {
        let models = self.workflow.models.iter().enumerate().map(|(at, model)| {
            let stages = self.workflow.stages.iter().filter(|stage| stage.model == Some(at));
            let workers = stages.filter_map(StageNode::batch_plan).flat_map(|batch| &batch.workers);
            (model, workers.map(|worker| &self.devices[worker.device.index()]).collect::<Vec<_>>())
        });
        models.filter(|(_, devices)| !devices.is_empty()).collect()
    }

    /// Warns of the key at `path`, if the file has it.
    fn at(&self, path: &[&str], why: &str, cx: &mut Cx<'_>) {
        let (key, tables) = path.split_last().expect("a path ends with a key");
        let table = tables.iter().try_fold(self.tree, |table, key| match &table.get(key)?.node.value {
            Toml::Table(inner) => Some(inner),
            _ => None,
        });
        let Some(entry) = table.and_then(|table| table.get(key)) else { return };
        let what = match tables {
            [tables, name] => format!("{} `{name}`: `{key}`", tables.trim_end_matches('s')),
            _ => format!("`{}`", path.join(".")),
        };
        cx.warning(entry.key_span, format!("{what} has no effect: {why}"))
            .label("has no effect")
            .help("leave it out");
    }
}

/// Whether it is known that none is a GPU: without a look at the machine `auto` may be anything.
fn none_is_cuda(devices: &[&Device]) -> bool {
    devices.iter().all(|device| !device.is_cuda() && device.name != "auto")
}
