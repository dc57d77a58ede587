//! Keys and kinds that earlier versions of the file format had. Each is an error that says what takes its place; none is read.

use crate::tree::Table;

/// Declares removed keys: how the words begin that messages have for their tables, the only kind that had the key, and what takes its place.
macro_rules! removed_keys {
    ($($table:literal $key:ident $(of $kind:ident)?: $instead:literal,)*) => {
        const REMOVED: &[(&str, &str, &str, &str)] =
            &[$(($table, stringify!($key), concat!($(stringify!($kind))?), $instead)),*];
    };
}

removed_keys! {
    "task " zip: "use `for_each`: a file with a row of values for each task",
    "model " spare: "leave it out: a dead worker is replaced at once; `workers = 2` keeps one at work meanwhile",
    "stage " spare: "leave it out: a dead worker is replaced at once; `workers = 2` keeps one at work meanwhile",
    "model " cuda_graphs: "leave it out: for small models, raise `batch.max`, or set `streams = 2`",
    "model " overlap: "set `streams = 2`: the rows of one batch are copied while another computes",
    "model " shrink: "leave it out: a worker gives memory back after warm-up and after a batch that did not fit",
    "model " blocking_sync: "leave it out: a worker on a GPU keeps a core busy; `workers = 1` keeps one",
    "model " allow_cpu_nodes: "leave it out: nodes that run on the CPU are a warning",
    "`batch` of stage " sizes: "leave it out: on a GPU batches are padded to `max`, so a smaller `max` pads less",
    "`batch` of stage " together: "leave it out: for a quick model, raise `max`",
    "the workflow file" include: "put all tables into one file; `[variables]` and `--set` say what differs from run to run",
    "stage " as of mask: "leave it out: a mask is the content of a PNG file, and run lengths can be made of it",
    "stage " class of mask: "leave it out: a mask holds all classes, and there are no run lengths of one any more",
    "stage " checkpoint of iterate: "leave it out: a batch whose worker is lost begins its loop again; `limits.batch_timeout` bounds the whole loop",
    "stage " kind of merge: "write a stage of kind `python` that gives one list of several: `return {\"parts\": first + second}`",
    "[telemetry]" sample: "set `slow`: items that take so long are traced, with \"0s\" all; those that failed or were tried again always are",
    "source " watch: "leave it out, and start the workflow again from time to time: each start goes on with the files that came since, where those before stay",
    "source " watch_settle: "leave it out: what writes files moves them in once they are whole",
    "source " watch_idle: "leave it out: a run is complete once all files that are there are done",
    "pipeline " loaders: "leave it out: sources share `limits.loaders` equally",
    "pipeline " memory: "leave it out: all batch slots share `limits.memory`, and a smaller `batch.max` takes less of it",
    "task " on_run_death: "leave it out: a command ends with its run, and the next start runs it again; one that writes checkpoints goes on from them",
    "task " stop_early: "leave it out: all attempts end by themselves, and `best` names the best; a library such as Optuna prunes within a command",
    "task " snapshot: "leave it out, and set `cwd` to a checkout of its own: `git worktree add --detach ../run-1`",
}

/// What to do instead of `key` of `table`, which messages call `what`, if that key was removed.
pub(crate) fn instead_of(what: &str, table: &Table, key: &str) -> Option<&'static str> {
    let own = table.get("kind").and_then(|entry| entry.node.value.to_text()).unwrap_or_default();
    let is_this = |(table, removed, kind, _): &&(&str, &str, &str, &str)| {
        *removed == key && what.starts_with(table) && (kind.is_empty() || *kind == own)
    };
    REMOVED.iter().find(is_this).map(|(.., instead)| *instead)
}
