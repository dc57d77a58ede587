//! The keys of tasks.

use orchestra_core::tasks::Goal;

use orchestra_core::Choice as _;

use crate::choices;
use crate::key::{Key, key};

choices! {
    /// `stop_signal` of tasks.
    pub enum StopSignal {
        Term = "SIGTERM",
        Int = "SIGINT",
        Hup = "SIGHUP",
        Quit = "SIGQUIT",
        Usr1 = "SIGUSR1",
        Usr2 = "SIGUSR2",
        Kill = "SIGKILL",
    }
}

impl StopSignal {
    /// The number that Linux gives it.
    pub(crate) fn number(self) -> i32 {
        [15, 2, 1, 3, 10, 12, 9][self as usize]
    }
}

/// `[tasks.NAME]`
pub const TASK: [Key; 20] = [
    key(
        "command",
        "list or text",
        "required",
        "the program and its arguments, or a text for `/bin/sh`, in which each value is one word",
    ),
    key("cwd", "text", "the folder of the file", "where it runs, relative to that folder"),
    key("env", "table", "none", "variables in addition to those of the run: `{ SEED = \"{seed}\" }`"),
    key(
        "pass_env",
        "list",
        "none",
        "credentials of the run that it gets, by their names or as `AWS_*`: else it gets [none](../security.md#what-a-worker-may-do) of those of stores and of the collector",
    ),
    key(
        "device",
        "text or number",
        "\"auto\"",
        "`\"auto\"`: a GPU to itself, or a slot of the CPU where there is none; a number of GPUs; a share of one such as `0.5`; `\"none\"`: a slot of the CPU, also where there are GPUs; or a device such as `\"cuda:0\"`",
    ),
    key(
        "priority",
        "integer",
        "10",
        "the higher one has a device first, of [commands and models](../guide/tasks.md#priority), and starts first, of commands",
    ).from_to(1, 100),
    key(
        "gpu_memory",
        "memory",
        "none",
        "what it takes of its GPU: shares of a GPU run together only as far as its free memory holds them",
    ),
    key(
        "after",
        "text or list",
        "none",
        "tasks that must have ended well before: all of a table, or one by its id; `\"sinks.NAME\"`: a sink whose items must all have ended",
    ),
    key(
        "matrix",
        "table of lists",
        "none",
        "a task for every combination of these values: `{ lr = [0.1, 0.01], seed = [1, 2, 3] }`",
    ),
    key("for_each", "text", "none", "a task for each row of this csv, tsv or jsonl file"),
    key("timeout", "duration", "none", "how long an attempt may take before it is ended"),
    key(
        "retries",
        "integer or table",
        "0",
        "how often it is tried again: after every failure, or by the class of its end",
    )
    .from_to(0, 1000)
    .of(&RETRIES),
    key(
        "stop_signal",
        "text",
        "\"SIGTERM\"",
        "what asks it to end",
    )
    .one_of(StopSignal::WORDS),
    key(
        "grace",
        "duration",
        "\"10s\"",
        "how long it has to end then; what is left of it and of all that it has started is killed",
    ),
    key(
        "memory",
        "memory",
        "none",
        "what all of its processes may have together, or each of them: see the [guide](../guide/tasks.md#limits); 16 MiB at least",
    ),
    key(
        "cpus",
        "integer",
        "none",
        "cores that it is kept on, of which each takes a slot of the CPU",
    ).from_to(1, 4096),
    key(
        "inputs",
        "text or list",
        "none",
        "files and folders that it reads, relative to `cwd`; it runs again when one has changed",
    ),
    key(
        "outputs",
        "text, list or table",
        "none",
        "files and folders that it must leave, relative to `cwd`; `{output}` is a folder of its own. A table gives them names: with `{ model = \"{output}/model.onnx\" }`, `{tasks.NAME.model}` is that file",
    ),
    key(
        "metrics",
        "list",
        "none",
        "numbers that are read from its lines: `\"loss\"` is a key of lines that are JSON objects, `{ name = \"epoch\", regex = 'epoch ([0-9]+)' }` the first group of an expression, in any line",
    ),
    key(
        "best",
        "table",
        "none",
        "what its tasks are compared by; later tasks may use `{tasks.NAME.best.output}`",
    )
    .of(&BEST),
];

/// `retries` of tasks, by the class of an attempt's end.
pub const RETRIES: [Key; 6] = [
    key("out_of_memory", "integer", "0", "it ran out of memory, of a GPU or of its own").from_to(0, 1000),
    key("device_lost", "integer", "0", "its GPU has failed, or is gone").from_to(0, 1000),
    key("timeout", "integer", "0", "it took longer than its `timeout`").from_to(0, 1000),
    key("code", "integer", "0", "it ended with another code than 0, for no such reason").from_to(0, 1000),
    key("signal", "integer", "0", "a signal that the run had not sent ended it").from_to(0, 1000),
    key("pause", "duration", "\"0s\"", "how long each waits before it is tried again"),
];

/// `best` of tasks.
pub const BEST: [Key; 2] = [
    key("metric", "text", "required", "one of `metrics`"),
    key("goal", "text", "required", "which values are better").one_of(Goal::WORDS),
];

/// A table in `metrics` of tasks.
pub const METRIC: [Key; 2] = [
    key("name", "text", "required", "as reports call it"),
    key("regex", "text", "required", "an expression whose first group is the number"),
];
