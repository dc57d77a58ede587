//! The keys of the tables that are no kinds, and of every source, stage and sink: declared once. Parsing, `check` and the pages of
//! docs/reference come from here.

mod settings;
mod tasks;
mod workers;

pub use self::settings::{DEVICES, LIMITS, PIPELINE, TELEMETRY};
pub(crate) use self::tasks::StopSignal;
pub use self::tasks::{BEST, METRIC, RETRIES, TASK};
pub(crate) use self::workers::ProviderName;
pub use self::workers::{MODEL, RECYCLE, WORKERS};

use crate::key::{Key, key};

/// What stands outside of all tables.
pub const TOP_LEVEL: [Key; 3] = [
    key("version", "integer", "required", "must be 1"),
    key("name", "text", "the file's name without its ending", "name of the workflow"),
    key(
        "variables",
        "table",
        "none",
        "values for `${NAME}` in the texts of the file; `${NAME:-default}` is the environment's variable or the default, where it is not here",
    ),
];

/// What a source, a stage or a sink is.
pub const KIND: Key = key("kind", "text", "required", "one of the kinds that there are");

/// Every source, beside `kind`.
pub const SOURCE: [Key; 7] = [
    key(
        "paths",
        "text or list",
        "none",
        "files, folders (with all below them) and globs; or [objects](../guide/workflow-file.md#objects) of a store",
    ),
    key(
        "manifest",
        "text",
        "none",
        "instead of `paths`: a list of files, or of [objects](../guide/workflow-file.md#objects): `.csv`, `.tsv`, `.jsonl`, `.ndjson`, or one path per line; it may be an object itself, and `\"-\"` is standard input",
    ),
    key(
        "root",
        "text",
        "the manifest's folder",
        "only with `manifest`: what relative paths in it are relative to; `\"s3://bucket/pages\"` where they are keys of objects",
    ),
    key(
        "watch",
        "true or false",
        "false",
        "new files or objects of `paths` are [taken as they appear](../guide/workflow-file.md#watching-folders), each path once, until the run is stopped",
    ),
    key(
        "watch_settle",
        "duration",
        "\"2s\"",
        "only with `watch`: for so long, size and time of change of a new file are the same before it is taken; a bucket is listed at intervals of it",
    ),
    key(
        "watch_idle",
        "duration",
        "none",
        "only with `watch`: after so long without a new one the run is complete; at least twice `watch_settle`",
    ),
    key(
        "sandbox_read",
        "text or list",
        "none",
        "files and folders that its loaders may read beside [those of its items](../security.md#what-a-loader-may-do): where records name pictures that lie elsewhere",
    ),
];

/// Every stage, beside `kind`.
pub const STAGE: [Key; 1] = [key(
    "from",
    "text or list",
    "required",
    "what it reads from: the name of a source or a stage, or `name.column` for one of its columns",
)];

/// Every sink, beside `kind`.
pub const SINK: [Key; 4] = [
    key(
        "from",
        "text or list",
        "required",
        "the stages whose results are written, or `stage.column` for one of their columns; or `failures`: those of the run",
    ),
    key(
        "path",
        "text",
        "the name of the table, with the ending of the kind",
        "the file or folder, in the output folder; or a [prefix of a bucket](../guide/running.md#buckets), `s3://bucket/results/`",
    ),
    key(
        "rows_per_file",
        "integer",
        "100000; of `tar` 10000",
        "only of part files, which `parquet` and `tar` write, and all kinds to a bucket: one is made once so many rows wait for it, or 64 MiB of them; it has more where one commit brings more",
    ).from_to(1, 100000000),
    key("ordered", "true or false", "false", "records in the order of the source"),
];
