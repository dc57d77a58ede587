//! The keys of what holds for the whole run, or for one of its pipelines.

use orchestra_core::{Choice as _, SandboxMode};

use crate::key::Key;
use crate::keys;
use crate::plan::TelemetryPlan;
use crate::settings::Settings as _;

keys! {
    /// `[devices]`
    pub const DEVICES {
        /// `"auto"`: all GPUs, or, where none can be used, the CPU; the plan and the run say why. Or a list: `["cuda:0", "cuda:1"]`, GPU UUIDs, `["cpu"]`; `["cpu", "cpu"]` is two CPU devices
        use: "text or list" = "\"auto\"",
        /// memory of each GPU that stays free for others
        headroom: "memory" = "\"2GiB\"",
        /// how many [tasks](../guide/tasks.md) share the CPU at once, each with one of them
        #[range(1, 4096)]
        slots: "integer" = "the number of cores",
    }

    /// `[limits]`
    pub const LIMITS {
        /// stop the run when more items than this have failed: `100`, or `"1%"` of all items
        max_failed: "integer or percent" = "none",
        /// stop the run when the first so many items that came to a source, a stage or a sink have all failed there; 0: never. What a start goes on with, or `orchestra retry` tries again, is not stopped so once an item is done
        first_failed: "integer" = "100",
        /// how long reading and decoding one item may take
        item_timeout: "duration" = "\"30s\"",
        /// how long a batch may run in a worker
        batch_timeout: "duration" = "\"60s\"",
        /// how long a worker may take to load its model and to warm up, what TensorRT compiles for it or for another worker included
        load_timeout: "duration" = "\"10min\"",
        /// how long the run may take to finish what is in flight when a signal stops it
        grace: "duration" = "\"25s\"",
        /// a picture that claims more pixels fails as `too_large`, before memory is taken
        #[range(1, 1 << 40)]
        max_pixels: "integer" = "268435456",
        /// a source that has more items is refused; of `tensors` and `parquet`, what files claim counts, before they are listed
        #[range(1, 1 << 40)]
        max_items: "integer" = "100000000",
        /// what the batch slots of all stages may take together; loaders get half as much again for decoding, and pictures that are [carried](../guide/devices.md#memory) up to a quarter
        memory: "memory" = "half of the machine's",
        /// processes that read and decode, over all sources
        #[range(1, 1024)]
        loaders: "integer" = "the number of cores",
        /// whether loaders and workers are [confined](../security.md) to what they need
        #[words(SandboxMode::WORDS)]
        sandbox: "text" = "\"auto\"",
    }

    /// `[pipelines.NAME]`
    pub const PIPELINE {
        /// stop this pipeline, and no other one, when more of its items than this have failed: `100`, or `"1%"` of its items
        max_failed: "integer or percent" = "none",
        /// stop this pipeline, and no other one, when the first so many items that came to its source, a stage or a sink have all failed there; 0: never
        first_failed: "integer" = "that of `[limits]`",
        /// how long reading and decoding one of its items may take
        item_timeout: "duration" = "that of `[limits]`",
        /// how long a batch of its stages may run in a worker
        batch_timeout: "duration" = "that of `[limits]`",
        /// how long a worker of its stages may take to load its model and to warm up
        load_timeout: "duration" = "that of `[limits]`",
    }
}

/// `[telemetry]`
pub const TELEMETRY: &[Key] = TelemetryPlan::KEYS;
