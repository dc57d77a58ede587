//! The keys of what holds for the whole run, or for one of its pipelines.

use orchestra_core::{Choice as _, SandboxMode};

use crate::key::{Key, key};
use crate::plan::{LogFormat, OtlpProtocol};

/// `[devices]`
pub const DEVICES: [Key; 3] = [
    key(
        "use",
        "text or list",
        "\"auto\"",
        "`\"auto\"`: all GPUs, or, where none can be used, the CPU; the plan and the run say why. Or a list: `[\"cuda:0\", \"cuda:1\"]`, GPU UUIDs, `[\"cpu\"]`; `[\"cpu\", \"cpu\"]` is two CPU devices",
    ),
    key("headroom", "memory", "\"2GiB\"", "memory of each GPU that stays free for others"),
    key(
        "slots",
        "integer",
        "the number of cores",
        "how many [tasks](../guide/tasks.md) share the CPU at once, each with one of them",
    )
    .from_to(1, 4096),
];

/// `[limits]`
pub const LIMITS: [Key; 11] = [
    key(
        "max_failed",
        "integer or percent",
        "none",
        "stop the run when more items than this have failed: `100`, or `\"1%\"` of all items",
    ),
    key(
        "first_failed",
        "integer",
        "100",
        "stop the run when the first so many items that came to a source, a stage or a sink have all failed there; 0: never. What a start goes on with, or `orchestra retry` tries again, is not stopped so once an item is done",
    ),
    key("item_timeout", "duration", "\"30s\"", "how long reading and decoding one item may take"),
    key(
        "batch_timeout",
        "duration",
        "\"60s\"",
        "how long a batch may run in a worker",
    ),
    key(
        "load_timeout",
        "duration",
        "\"10min\"",
        "how long a worker may take to load its model and to warm up, what TensorRT compiles for it or for another worker included",
    ),
    key(
        "grace",
        "duration",
        "\"25s\"",
        "how long the run may take to finish what is in flight when a signal stops it",
    ),
    key(
        "max_pixels",
        "integer",
        "268435456",
        "a picture that claims more pixels fails as `too_large`, before memory is taken",
    )
    .from_to(1, 1 << 40),
    key(
        "max_items",
        "integer",
        "100000000",
        "a source that has more items is refused; of `tensors` and `parquet`, what files claim counts, before they are listed",
    )
    .from_to(1, 1 << 40),
    key(
        "memory",
        "memory",
        "half of the machine's",
        "what the batch slots of all stages may take together; loaders get half as much again for decoding, and pictures that are [carried](../guide/devices.md#memory) up to a quarter",
    ),
    key("loaders", "integer", "the number of cores", "processes that read and decode, over all sources")
        .from_to(1, 1024),
    key(
        "sandbox",
        "text",
        "\"auto\"",
        "whether loaders and workers are [confined](../security.md) to what they need",
    )
    .one_of(SandboxMode::WORDS),
];

/// `[pipelines.NAME]`
pub const PIPELINE: [Key; 5] = [
    key(
        "max_failed",
        "integer or percent",
        "none",
        "stop this pipeline, and no other one, when more of its items than this have failed: `100`, or `\"1%\"` of its items",
    ),
    key(
        "first_failed",
        "integer",
        "that of `[limits]`",
        "stop this pipeline, and no other one, when the first so many items that came to its source, a stage or a sink have all failed there; 0: never",
    ),
    key(
        "item_timeout",
        "duration",
        "that of `[limits]`",
        "how long reading and decoding one of its items may take",
    ),
    key(
        "batch_timeout",
        "duration",
        "that of `[limits]`",
        "how long a batch of its stages may run in a worker",
    ),
    key(
        "load_timeout",
        "duration",
        "that of `[limits]`",
        "how long a worker of its stages may take to load its model and to warm up",
    ),
];

/// `[telemetry]`
pub const TELEMETRY: [Key; 7] = [
    key("otlp", "text", "none", "address of an OTLP collector: `\"http://localhost:4318\"`"),
    key("protocol", "text", "by the port", "how the collector is spoken to").one_of(OtlpProtocol::WORDS),
    key(
        "sample",
        "number, 0 to 1",
        "0.01",
        "share of the items that get a trace; those that failed, were tried again or took longer than `slow` get one always",
    ),
    key("slow", "duration", "none", "an item that takes longer is traced"),
    key(
        "flush_timeout",
        "duration",
        "\"3s\"",
        "how long the end of the run waits for spans that are not made yet, and again for those that are not sent",
    ),
    key("metrics", "text", "none", "where the page of metrics is served: `\"127.0.0.1:9464\"`"),
    key("log_format", "text", "\"text\"", "lines of the log files").one_of(LogFormat::WORDS),
];
