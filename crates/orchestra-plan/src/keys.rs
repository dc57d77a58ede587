//! The keys of the tables that are no kinds, and of every source, stage and sink: declared once. Parsing, `check` and the pages of
//! docs/reference come from here.

mod settings;
mod tasks;
mod workers;

pub use self::settings::{DEVICES, LIMITS, PIPELINE, SERVE, TELEMETRY};
pub(crate) use self::tasks::StopSignal;
pub use self::tasks::{BEST, BEST_OF, METRIC, RETRIES, TASK};
pub(crate) use self::workers::{AskedWorkers, DeviceNames, ProviderName};
pub use self::workers::{MODEL, WORKERS};

use crate::key::{Key, key};
use crate::keys;

keys! {
    /// What stands outside of all tables.
    pub const TOP_LEVEL {
        /// must be 1
        version: "integer" = "required",
        /// name of the workflow
        name: "text" = "the file's name without its ending",
        /// values for `${NAME}` in the texts of the file; `${NAME:-default}` is the environment's variable or the default, where it is not here
        variables: "table" = "none",
    }
}

/// What a source, a stage or a sink is.
pub const KIND: Key = key("kind", "text", "required", "one of the kinds that there are");

keys! {
    /// Every source, beside `kind`.
    pub const SOURCE {
        /// files, folders (with all below them) and globs; or [objects](../guide/workflow-file.md#objects) of a store
        paths: "text or list" = "none",
        /// instead of `paths`: a list of files, or of [objects](../guide/workflow-file.md#objects): `.csv`, `.tsv`, `.jsonl`, `.ndjson`, or one path per line; it may be an object itself, and `"-"` is standard input
        manifest: "text" = "none",
        /// only with `manifest`: what relative paths in it are relative to; `"s3://bucket/pages"` where they are keys of objects
        root: "text" = "the manifest's folder",
        /// files and folders that its loaders may read beside [those of its items](../security.md#what-a-loader-may-do): where records name pictures that lie elsewhere
        sandbox_read: "text or list" = "none",
    }

    /// Every stage, beside `kind`.
    pub const STAGE {
        /// what it reads from: the name of a source or a stage, or `name.column` for one of its columns
        from: "text or list" = "required",
        /// a [part](../guide/workflow-file.md#a-stage-for-several-values) of each row for each combination of these lists, for stages that work on each row by itself: `{ size = [[96, 128], [48, 64]] }`; `{size}` in this and later stages is the value, and `NAME.size` a column
        matrix: "table of lists" = "none",
    }

    /// Every sink, beside `kind`.
    pub const SINK {
        /// the stages whose results are written, or `stage.column` for one of their columns; or `failures`: those of the run
        from: "text or list" = "required",
        /// the file or folder, in the output folder; or a [prefix of a bucket](../guide/running.md#buckets), `s3://bucket/results/`
        path: "text" = "the name of the table, with the ending of the kind",
        /// only of part files, which `parquet` and `tar` write and `python` takes, and all kinds to a bucket: one is made once so many rows wait for it, or 64 MiB of them; it has more where one commit brings more
        #[range(1, 100000000)]
        rows_per_file: "integer" = "100000; of `tar` 10000, of `python` 1000",
        /// records in the order of the source
        ordered: "true or false" = "false",
    }

    /// A sink that writes no file, beside `kind`.
    pub const REPLY {
        /// the stages whose results go back to the one who asked, or `stage.column` for one of their columns
        from: "text or list" = "required",
    }
}
