//! Every metric: its name, kind, unit, labels and meaning. Names only: where the numbers come from is said where they are read.
//!
//! Names are OpenTelemetry's form; [`Instrument::prometheus_name`] gives the form of the page, by the rules with which a collector would translate one
//! into the other. What each means for a person is in `docs/metrics.md`, which a test holds against this file.

use orchestra_core::named_enum;

named_enum! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum InstrumentKind {
        /// Only rises; starts at 0 with the process.
        Counter = "counter",
        Gauge = "gauge",
        Histogram = "histogram",
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Instrument {
    /// For example `orchestra.items.done`.
    pub name: &'static str,
    pub kind: InstrumentKind,
    /// A unit of <https://ucum.org>: `s`, `By`, `W`, `Cel`, `1` for a share, `{item}` for things that are counted; empty: none.
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    /// One sentence without its full stop.
    pub help: &'static str,
}

impl Instrument {
    /// For example `orchestra_items_done_total`.
    pub fn prometheus_name(&self) -> String {
        let mut name = self.name.replace('.', "_");
        let unit = match self.unit {
            "s" => "_seconds",
            "By" => "_bytes",
            "W" => "_watts",
            "Cel" => "_celsius",
            "1" => "_ratio",
            _ => "",
        };
        name.push_str(unit);
        if self.kind == InstrumentKind::Counter {
            name.push_str("_total");
        }
        name
    }
}

// Each label has few values, whatever happens in a run: `docs/metrics.md` lists them.
const PIPELINE: &str = "pipeline";
const STAGE: &str = "stage";
const MODEL: &str = "model";
const DEVICE: &str = "device";
const KIND: &str = "kind";
const REASON: &str = "reason";
const STATE: &str = "state";
const EXIT: &str = "exit";
const WORKFLOW: &str = "workflow";
const VERSION: &str = "version";
const END: &str = "end";
const TABLE: &str = "table";
const SLOT: &str = "slot";
const METRIC: &str = "metric";

macro_rules! instruments {
    ($($(#[$doc:meta])* $id:ident = $kind:ident $name:literal, $unit:literal, [$($label:ident),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $id: Instrument = Instrument {
                name: $name,
                kind: InstrumentKind::$kind,
                unit: $unit,
                labels: &[$($label),*],
                help: $help,
            };
        )*

        /// Every metric, in the order of the page.
        pub static ALL: &[&Instrument] = &[$(&$id),*];
    };
}

instruments! {
    BUILD_INFO = Gauge "orchestra.build.info", "", [VERSION], "Always 1; the label says which build runs";
    RUN_INFO = Gauge "orchestra.run.info", "", [WORKFLOW], "Always 1; the label says what runs";
    RUN_START = Gauge "orchestra.run.start_time", "s", [], "When this start of the run began, since the Unix epoch";

    ITEMS = Gauge "orchestra.items", "{item}", [PIPELINE], "Items that the sources name, as far as they are listed";
    ITEMS_LISTING = Gauge "orchestra.items.listing", "", [PIPELINE], "1 while items are being listed, or have no last one: there may be more";
    ITEMS_RESUMED = Gauge "orchestra.items.resumed", "{item}", [PIPELINE], "Of these, items that earlier starts of the run had finished";
    ITEMS_STARTED = Counter "orchestra.items.started", "{item}", [PIPELINE], "Items handed out to be read";
    ITEMS_DONE = Counter "orchestra.items.done", "{item}", [PIPELINE], "Items whose records are written";
    ITEMS_FAILED = Counter "orchestra.items.failed", "{item}", [PIPELINE, STAGE, KIND], "Items whose failure is written";
    ITEMS_IN_FLIGHT = Gauge "orchestra.items.in_flight", "{item}", [PIPELINE], "Items handed out and not finished yet";

    READ_BYTES = Counter "orchestra.read", "By", [PIPELINE], "Bytes of the files that were read";
    LOADER_TIME = Counter "orchestra.loader.time", "s", [STATE],
        "Time of all loaders: reading, decoding and resizing; waiting for a free row; waiting for results to be written";
    STAGE_IN = Counter "orchestra.stage.items.in", "{item}", [PIPELINE, STAGE], "Items that reached the stage";
    STAGE_OUT = Counter "orchestra.stage.items.out", "{item}", [PIPELINE, STAGE], "Items that left the stage with a result";
    STAGE_BUSY = Counter "orchestra.stage.busy", "s", [PIPELINE, STAGE],
        "Time that threads spent on the stage reading and decoding, or workers running batches";

    BATCHES = Counter "orchestra.batches", "{batch}", [PIPELINE, STAGE, MODEL, REASON],
        "Batches sent to workers, halves and repeats included, by the reason for which they left";
    BATCH_SIZE = Histogram "orchestra.batch.size", "{item}", [PIPELINE, STAGE, MODEL], "Items in each batch that was sent";
    BATCH_QUEUE_TIME = Histogram "orchestra.batch.queue_time", "s", [PIPELINE, STAGE, MODEL],
        "From the moment the first row of a batch was claimed until the batch was first sent: how long its oldest item waited";
    BATCH_RUN_TIME = Histogram "orchestra.batch.run_time", "s", [PIPELINE, STAGE, MODEL, DEVICE],
        "Time that a worker spent on a batch: binding, running the session, copying out";
    BATCH_CEILING = Gauge "orchestra.batch.ceiling", "{item}", [PIPELINE, STAGE, MODEL, DEVICE],
        "Items of the largest batch that the device gets now; less than the largest batch of the plan after it ran out of memory";
    SLOTS = Gauge "orchestra.slots", "{slot}", [PIPELINE, STAGE, STATE], "Batch slots, the credits of the data path";

    WORKERS = Gauge "orchestra.workers", "{worker}", [DEVICE, STATE], "Worker processes by what they do";
    WORKERS_PLANNED = Gauge "orchestra.workers.planned", "{worker}", [DEVICE, STATE], "Worker processes that the plan asks for, and those added in the run because they fit";
    WORKER_STARTS = Counter "orchestra.worker.starts", "{worker}", [DEVICE], "Worker processes started";
    WORKER_RESTARTS = Counter "orchestra.worker.restarts", "{worker}", [DEVICE], "Dead workers that were replaced";
    WORKER_EXITS = Counter "orchestra.worker.exits", "{worker}", [DEVICE, EXIT], "Worker processes that are gone, by how they ended";
    WORKER_MEMORY = Gauge "orchestra.worker.memory", "By", [DEVICE],
        "Main memory that the workers on the device hold; batch slots count in each worker that has touched them";
    WORKER_CPU = Counter "orchestra.worker.cpu_time", "s", [DEVICE], "CPU time of the workers on the device, those that are gone included as far as it was seen";

    DEVICE_BATCHES = Counter "orchestra.device.batches", "{batch}", [DEVICE], "Batches that the device completed";
    DEVICE_ITEMS = Counter "orchestra.device.items", "{item}", [DEVICE], "Items in these batches";
    DEVICE_BUSY = Counter "orchestra.device.busy", "s", [DEVICE], "Time in which sessions ran on the device, summed over its workers";
    DEVICE_UTILIZATION = Gauge "orchestra.device.utilization", "1", [DEVICE], "Share of the last sample period in which the GPU ran a kernel";
    DEVICE_MEMORY = Gauge "orchestra.device.memory", "By", [DEVICE, STATE], "Memory of the GPU";
    DEVICE_POWER = Gauge "orchestra.device.power", "W", [DEVICE], "Power that the GPU draws";
    DEVICE_TEMPERATURE = Gauge "orchestra.device.temperature", "Cel", [DEVICE], "Temperature of the GPU's chip";


    TASKS = Gauge "orchestra.tasks", "{task}", [STATE], "Tasks by where they stand";
    TASK_ATTEMPTS = Counter "orchestra.task.attempts", "{attempt}", [END], "Attempts at tasks that have ended, by how";
    TASK_METRIC = Gauge "orchestra.task.metric", "", [TABLE, SLOT, METRIC],
        "The last value that the command on the slot has reported";

    PROCESS_MEMORY = Gauge "orchestra.process.memory", "By", [STATE], "Main memory of the parent process: all of it, and the part that is its own";
    PROCESS_CPU = Counter "orchestra.process.cpu_time", "s", [], "CPU time of the parent process";
    SPANS_ENDED = Counter "orchestra.spans.ended", "{span}", [], "Sampled spans that ended";
    SPANS_DROPPED = Counter "orchestra.spans.dropped", "{span}", [REASON], "Spans that no collector will get";
    TRACES_LEFT_OUT = Counter "orchestra.traces.left_out", "{trace}", [KIND], "Items and batches that got no spans, because too much happened at once";
    LOG_LINES_LOST = Counter "orchestra.log.lines_lost", "{line}", [], "Log lines that reached no file";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_ours() {
        let names: BTreeSet<&str> = ALL.iter().map(|i| i.name).collect();
        let pages: BTreeSet<String> = ALL.iter().map(|i| i.prometheus_name()).collect();
        assert_eq!((names.len(), pages.len()), (ALL.len(), ALL.len()));
        for name in &pages {
            assert!(name.starts_with("orchestra_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        }
    }

    #[test]
    fn the_name_on_the_page_has_the_unit_and_the_kind() {
        for (instrument, expected) in [
            (&ITEMS_DONE, "orchestra_items_done_total"),
            (&READ_BYTES, "orchestra_read_bytes_total"),
            (&BATCH_QUEUE_TIME, "orchestra_batch_queue_time_seconds"),
            (&DEVICE_UTILIZATION, "orchestra_device_utilization_ratio"),
            (&BUILD_INFO, "orchestra_build_info"),
        ] {
            assert_eq!(instrument.prometheus_name(), expected);
        }
    }

    #[test]
    fn no_label_can_grow_with_items_or_workers() {
        let few = [
            PIPELINE, STAGE, MODEL, DEVICE, KIND, REASON, STATE, EXIT, WORKFLOW, VERSION, END, TABLE, SLOT,
            METRIC,
        ];
        assert!(ALL.iter().flat_map(|i| i.labels).all(|label| few.contains(label)));
    }

    #[test]
    fn no_help_ends_with_a_full_stop_or_breaks_a_line() {
        assert!(ALL.iter().all(|i| !i.help.is_empty() && !i.help.ends_with('.') && !i.help.contains('\n')));
    }
}
