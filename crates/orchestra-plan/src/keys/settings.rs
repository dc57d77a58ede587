//! The keys of what holds for the whole run, or for one of its pipelines.

use crate::key::Key;
use crate::keys;
use crate::plan::{Limits, ServeSettings, TelemetryPlan};
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

/// `[limits]`
pub const LIMITS: &[Key] = Limits::KEYS;

/// `[serve]`
pub const SERVE: &[Key] = ServeSettings::KEYS;

/// `[telemetry]`
pub const TELEMETRY: &[Key] = TelemetryPlan::KEYS;
