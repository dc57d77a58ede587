//! The keys of tasks.

use orchestra_core::Choice as _;
use orchestra_core::tasks::{CurveValue, Goal};

use crate::{choices, keys};

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

keys! {
    /// `[tasks.NAME]`
    pub const TASK {
        /// the program and its arguments, or a text for `/bin/sh`, in which each value is one word
        command: "list or text" = "required",
        /// where it runs, relative to that folder
        cwd: "text" = "the folder of the file",
        /// variables in addition to those of the run: `{ SEED = "{seed}" }`
        env: "table" = "none",
        /// credentials of the run that it gets, by their names or as `AWS_*`: else it gets [none](../security.md#what-a-worker-may-do) of those of stores and of the collector
        pass_env: "list" = "none",
        /// `"auto"`: a GPU to itself, or a slot of the CPU where there is none; a number of GPUs; a share of one such as `0.5`; `"none"`: a slot of the CPU, also where there are GPUs; or a device such as `"cuda:0"`
        device: "text or number" = "\"auto\"",
        /// the higher one has a device first, of [commands and models](../guide/tasks.md#priority), and starts first, of commands
        #[range(1, 100)]
        priority: "integer" = "10",
        /// what it takes of its GPU: shares of a GPU run together only as far as its free memory holds them
        gpu_memory: "memory" = "none",
        /// tasks that must have ended well before: all of a table, or one by its id; `"sinks.NAME"`: a sink whose items must all have ended
        after: "text or list" = "none",
        /// a task for every combination of these values: `{ lr = [0.1, 0.01], seed = [1, 2, 3] }`
        matrix: "table of lists" = "none",
        /// a task for each row of this csv, tsv or jsonl file of at most 1,000 columns
        for_each: "text" = "none",
        /// how long an attempt may take before it is ended
        timeout: "duration" = "none",
        /// how long an attempt may write nothing before it is ended, as by `timeout`
        quiet: "duration" = "none",
        /// how often it is tried again: after every failure, or by the class of its end
        #[range(0, 1000)]
        #[table(RETRIES)]
        retries: "integer or table" = "0",
        /// what asks it to end
        #[words(StopSignal::WORDS)]
        stop_signal: "text" = "\"SIGTERM\"",
        /// how long it has to end then; what is left of it and of all that it has started is killed
        grace: "duration" = "\"10s\"",
        /// what all of its processes may have together, or each of them: see the [guide](../guide/tasks.md#limits); 16 MiB at least
        memory: "memory" = "none",
        /// cores that it is kept on, of which each takes a slot of the CPU
        #[range(1, 4096)]
        cpus: "integer" = "none",
        /// files and folders that it reads, relative to `cwd`; it runs again when one has changed
        inputs: "text or list" = "none",
        /// files and folders that it must leave, relative to `cwd`; `{output}` is a folder of its own. A table gives them names: with `{ model = "{output}/model.onnx" }`, `{tasks.NAME.model}` is that file
        outputs: "text, list or table" = "none",
        /// numbers that are read from its lines: `"loss"` is a key of lines that are JSON objects, `{ name = "epoch", regex = 'epoch ([0-9]+)' }` the first group of an expression, in any line
        metrics: "list" = "none",
        /// what its tasks are compared by: `{tasks.NAME.best.output}` is the output of the best one
        #[table(BEST)]
        best: "table" = "none",
    }

    /// `retries` of tasks, by the class of an attempt's end.
    pub const RETRIES {
        /// it ran out of memory, of a GPU or of its own
        #[range(0, 1000)]
        out_of_memory: "integer" = "0",
        /// its GPU has failed, or is gone
        #[range(0, 1000)]
        device_lost: "integer" = "0",
        /// it took longer than its `timeout`, or wrote nothing for as long as its `quiet`
        #[range(0, 1000)]
        timeout: "integer" = "0",
        /// it ended with another code than 0, for no such reason
        #[range(0, 1000)]
        code: "integer" = "0",
        /// a signal that the run had not sent ended it
        #[range(0, 1000)]
        signal: "integer" = "0",
        /// how long each waits before it is tried again
        pause: "duration" = "\"0s\"",
    }

    /// `best` of tasks.
    pub const BEST {
        /// one of `metrics`
        metric: "text" = "required",
        /// which values are better
        #[words(Goal::WORDS)]
        goal: "text" = "required",
        /// which value of a task counts
        #[words(CurveValue::WORDS)]
        value: "text" = "\"last\"",
    }

    /// `[best.NAME]`
    pub const BEST_OF {
        /// the tables of tasks of which one task is the best: `["mlp", "svm"]`; their outputs are `{best.NAME.output}`
        of: "text or list" = "required",
        /// a metric that each of them has
        metric: "text" = "required",
        /// which values are better
        #[words(Goal::WORDS)]
        goal: "text" = "required",
        /// which value of a task counts
        #[words(CurveValue::WORDS)]
        value: "text" = "\"last\"",
    }

    /// A table in `metrics` of tasks.
    pub const METRIC {
        /// as reports call it
        name: "text" = "required",
        /// an expression whose first group is the number
        regex: "text" = "required",
    }
}
