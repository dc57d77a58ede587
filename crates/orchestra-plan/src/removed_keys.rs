//! Keys that earlier versions of the file format had. Each is an error that says what takes its place; none is read.

use crate::tree::{Table, Value};

struct RemovedKey {
    /// What messages call its table begins so.
    table: &'static str,
    /// The only `kind` that had it; empty: any.
    kind: &'static str,
    key: &'static str,
    instead: &'static str,
}

const REMOVED: [RemovedKey; 18] = [
    RemovedKey {
        table: "task ",
        kind: "",
        key: "zip",
        instead: "use `for_each`: a file with a row of values for each task",
    },
    RemovedKey { table: "model ", kind: "", key: "spare", instead: WITHOUT_SPARE },
    RemovedKey { table: "stage ", kind: "", key: "spare", instead: WITHOUT_SPARE },
    RemovedKey {
        table: "model ",
        kind: "",
        key: "cuda_graphs",
        instead: "leave it out: for small models, raise `batch.max`, or set `streams = 2`",
    },
    RemovedKey {
        table: "model ",
        kind: "",
        key: "overlap",
        instead: "set `streams = 2`: the rows of one batch are copied while another computes",
    },
    RemovedKey {
        table: "model ",
        kind: "",
        key: "shrink",
        instead: "leave it out: a worker gives memory back after warm-up and after a batch that did not fit",
    },
    RemovedKey {
        table: "model ",
        kind: "",
        key: "blocking_sync",
        instead: "leave it out: a worker on a GPU keeps a core busy; `workers = 1` keeps one",
    },
    RemovedKey {
        table: "model ",
        kind: "",
        key: "allow_cpu_nodes",
        instead: "leave it out: nodes that run on the CPU are a warning",
    },
    RemovedKey {
        table: "`batch` of stage ",
        kind: "",
        key: "sizes",
        instead: "leave it out: on a GPU batches are padded to `max`, so a smaller `max` pads less",
    },
    RemovedKey {
        table: "`batch` of stage ",
        kind: "",
        key: "together",
        instead: "leave it out: for a quick model, raise `max`",
    },
    RemovedKey {
        table: "the workflow file",
        kind: "",
        key: "include",
        instead: "put all tables into one file; `[variables]` and `--set` say what differs from run to run",
    },
    RemovedKey {
        table: "stage ",
        kind: "mask",
        key: "as",
        instead: "leave it out: a mask is the content of a PNG file, and run lengths can be made of it",
    },
    RemovedKey {
        table: "stage ",
        kind: "mask",
        key: "class",
        instead: "leave it out: a mask holds all classes, and there are no run lengths of one any more",
    },
    RemovedKey {
        table: "pipeline ",
        kind: "",
        key: "loaders",
        instead: "leave it out: sources share `limits.loaders` equally",
    },
    RemovedKey {
        table: "pipeline ",
        kind: "",
        key: "memory",
        instead: "leave it out: all batch slots share `limits.memory`, and a smaller `batch.max` takes less of it",
    },
    RemovedKey {
        table: "task ",
        kind: "",
        key: "on_run_death",
        instead: "leave it out: a command ends with its run, and the next start runs it again; one that writes checkpoints goes on from them",
    },
    RemovedKey {
        table: "task ",
        kind: "",
        key: "stop_early",
        instead: "leave it out: all attempts end by themselves, and `best` names the best; a library such as Optuna prunes within a command",
    },
    RemovedKey {
        table: "task ",
        kind: "",
        key: "snapshot",
        instead: "leave it out, and set `cwd` to a checkout of its own: `git worktree add --detach ../run-1`",
    },
];

const WITHOUT_SPARE: &str =
    "leave it out: a dead worker is replaced at once; `workers = 2` keeps one at work meanwhile";

/// What to do instead of `key` of `table`, which messages call `what`, if that key was removed.
pub(crate) fn instead_of(what: &str, table: &Table, key: &str) -> Option<&'static str> {
    let has_kind = |kind: &str| match table.get("kind").map(|entry| &entry.node.value) {
        _ if kind.is_empty() => true,
        Some(Value::String(own)) => own == kind,
        _ => false,
    };
    let is_this = |removed: &&RemovedKey| {
        removed.key == key && what.starts_with(removed.table) && has_kind(removed.kind)
    };
    REMOVED.iter().find(is_this).map(|removed| removed.instead)
}
