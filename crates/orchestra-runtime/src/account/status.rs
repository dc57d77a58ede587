//! How far a run is: what the progress, `bench` and tests look at while it goes on, and what `run.json` says at its end. Field names are part of
//! the contract with users; what is not written is known while the run goes on alone.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use orchestra_core::batching::LeaveReason;
use orchestra_core::bottleneck::Bottleneck;
use orchestra_core::failure_causes::{FailureCause, FailureCauses};
use orchestra_core::{DeviceId, LeftOutCount, PipelineId};
use orchestra_machine::Gpu;
use orchestra_plan::{DevicePlan, Plan, RecordsPerItem, SinkPlan, StagePlan};
use orchestra_store::{Counts, Extent, FAILURE_RECORDS, each_record};
use serde::{Deserialize, Serialize};

use crate::account::counter::Counter;
use crate::account::pace::{StagePace, pace};
use crate::account::stage_status::{StageStatus, by_name, from_names};
use crate::account::stats::{DeviceStats, StageStats, Stats};
use crate::context::RunContext;
use crate::fleet::device_use::DeviceUse;
use crate::messages::PipelineEnd;
use crate::tasks::board::{TaskReport, TaskStanding};

/// Raised where a field gets another meaning.
const VERSION: u32 = 1;

/// A run at some moment; at its end the contents of `run.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStatus {
    pub version: u32,
    pub workflow: String,
    /// Id of the run, kept over all its resumptions.
    pub run_id: String,
    /// When it was first started: RFC 3339, UTC.
    pub started: String,
    /// Seconds that this part of the run took.
    pub seconds: f64,
    /// Of these, seconds until a worker had finished the first batch.
    pub seconds_starting: f64,
    pub exit_code: i32,
    /// Every item and task has its end.
    pub complete: bool,
    /// Over the whole run, resumptions included.
    pub items: ItemCounts,
    /// Items finished per second in this part of the run, without the time that commands took alone.
    pub items_per_second: f64,
    /// Of `seconds`: until the last pipeline ended; what `items_per_second` counts by.
    pub seconds_items: f64,
    /// Why items failed over the whole run, the commonest cause first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureCause>,
    /// The tasks, in the order of the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Arc<TaskReport>>,
    /// In the order of the plan; written by their names.
    #[serde(serialize_with = "by_name", deserialize_with = "from_names")]
    pub stages: Vec<StageStatus>,
    /// In the order of the plan.
    pub devices: Vec<DeviceStatus>,
    /// How many items each source names, by its name; `None` if the run ended before that was known.
    pub sources: BTreeMap<String, Option<u64>>,
    /// What each source was given that is no item: how much, by reason. Sources that passed nothing over are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub passed_over: BTreeMap<String, BTreeMap<String, u64>>,
    /// What items hold that no stage was given, in this part of the run.
    pub left_out: Vec<LeftOutCount>,
    /// What the sinks have written, in the order of the plan.
    pub outputs: Vec<OutputReport>,
    pub pipelines: BTreeMap<String, PipelineStatus>,
    /// Where the time of the loaders went.
    pub loaders: LoaderStatus,
    pub batches_by_reason: BTreeMap<String, u64>,
    /// The part that set the pace: `loading`, `inference`, `cpu`, `handover`, `sinks` or `unknown`.
    pub bottleneck: Bottleneck,
    /// The stage that set it, or that was the busiest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pace: Option<StagePace>,
}

/// Items of a run: `read = done + failed` when it is complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemCounts {
    /// Items with an end.
    pub read: u64,
    pub done: u64,
    pub failed: u64,
    /// Items that the sources name; `None` if the run ended before it was known how many they are.
    pub total: Option<u64>,
    pub listed: u64,
    pub extent: ListedExtent,
    /// Of `read`: finished by earlier parts of the run.
    pub resumed: u64,
    /// Handed out and not finished yet; at the end none are.
    #[serde(skip_serializing_if = "is_none")]
    pub in_flight: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListedExtent {
    #[default]
    Known,
    /// The run ended before that.
    Growing,
}

/// A sink in `run.json`: enough to count its records again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputReport {
    pub sink: String,
    pub kind: String,
    /// Its file, relative to the output folder; of part files, a glob that they fit; of records that are files, the index of them.
    pub path: PathBuf,
    /// The sources of whose items it has records.
    pub sources: Vec<String>,
    /// How many records an item has that is done.
    pub records: RecordsPerItem,
    /// Of part files: how many there are. A sink that got no rows has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_files: Option<u64>,
    /// What the URLs of its parts begin with, where they are in a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The script that has taken its parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<PathBuf>,
}

/// Seconds are summed over the threads of loaders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoaderStatus {
    /// Reading, decoding, resizing.
    pub seconds_loading: f64,
    /// Waiting for a free row, because the models were behind.
    pub seconds_waiting_for_row: f64,
    /// Waiting for items, because too much was in flight: results were not written fast enough.
    pub seconds_waiting_for_sinks: f64,
    /// Processes that were started in place of others.
    pub restarts: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    pub device: String,
    /// Workers that serve now.
    #[serde(skip)]
    pub ready: u64,
    /// Workers that the plan gave it, and those that were added once it was known that they fit.
    pub workers: u64,
    /// Of these, those that were added.
    pub workers_added: u64,
    /// Bytes that one worker takes of the GPU as this run has measured it, by stage.
    pub worker_memory_measured: BTreeMap<String, u64>,
    pub starts: u64,
    pub restarts: u64,
    pub batches: u64,
    pub mean_batch: f64,
    /// Share of the time in which its sessions ran, 0 to 1.
    pub busy: f64,
    /// Seconds in which its sessions ran, summed over workers.
    pub seconds_busy: f64,
    /// Now: the part of the GPU that is used (0 to 1), bytes of it that are taken, and watts that it draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// What was seen of it once a second.
    #[serde(flatten)]
    pub usage: DeviceUse,
    pub lost: Option<String>,
    /// Time in which its sessions ran, summed over workers.
    #[serde(skip)]
    pub time_busy: Duration,
    /// The GPU as it was seen last; `None` for a CPU, and where nothing is known.
    #[serde(skip)]
    pub gpu: Option<Gpu>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PipelineStatus {
    /// `complete`, `stopped`, `not started` where a task has failed that it is planned by, or what ended it before its last item; `null` where that is
    /// not known.
    pub end: Option<String>,
}

impl RunStatus {
    pub fn tasks_done(&self) -> Vec<String> {
        let done = self.tasks.iter().filter(|task| task.state == TaskStanding::Done);
        done.map(|task| task.task.clone()).collect()
    }

    /// Writes it into an output folder.
    pub fn write(&self, output: &Path) -> io::Result<()> {
        let path = output.join(orchestra_store::RUN_SUMMARY);
        let written = serde_json::to_vec_pretty(self).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            orchestra_store::write_atomic(&path, &bytes)
        });
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("`{}` could not be written: {error}", path.display()))
        })
    }

    /// By the counters of the run, as they are now.
    pub fn now(context: &RunContext) -> Self {
        let stats = &context.stats;
        Self::of(context, Counts { done: stats.done.get(), failed: stats.failed.get() })
    }

    /// The account of the run, from its counters, what the journal holds, and the failures that are written.
    pub fn at_the_end(
        context: &RunContext,
        started_unix_ms: u64,
        counts: Counts,
        exit_code: i32,
        ends: &BTreeMap<PipelineId, PipelineEnd>,
    ) -> Self {
        Self {
            started: rfc3339(started_unix_ms),
            exit_code,
            failures: if counts.failed > 0 { failure_causes(&context.plan.output) } else { Vec::new() },
            pipelines: pipelines(context, ends),
            ..Self::of(context, counts)
        }
    }

    fn of(context: &RunContext, counts: Counts) -> Self {
        let (plan, stats) = (&context.plan, &context.stats);
        let elapsed = context.clock.now();
        let first_part = context.options.first_part.as_ref().map_or(0.0, |first| first.report.seconds);
        let seconds_items = match stats.pipelines_ended.time() {
            ended if !ended.is_zero() && !plan.tasks.is_empty() => ended.as_secs_f64(),
            _ => elapsed.as_secs_f64(),
        };
        let items = items(stats, counts);
        let (bottleneck, pace) = pace(context, Duration::from_secs_f64(seconds_items));
        let devices = (0..).map(DeviceId).zip(plan.devices.iter().zip(&stats.devices));
        let devices: Vec<_> = devices.map(|(id, of)| device(context, id, of, elapsed)).collect();
        Self {
            version: VERSION,
            workflow: plan.name.clone(),
            run_id: context.run_id.clone(),
            seconds: first_part + elapsed.as_secs_f64(),
            seconds_starting: stats.first_batch.time().as_secs_f64(),
            items,
            items_per_second: ratio(items.read.saturating_sub(items.resumed) as f64, seconds_items),
            seconds_items,
            tasks: context.tasks.reports(&plan.tasks, elapsed),
            stages: plan.stages.iter().zip(&stats.stages).map(StageStatus::of).collect(),
            bottleneck,
            pace,
            devices,
            sources: sources(context),
            passed_over: passed_over(context),
            left_out: stats.left_out.done(),
            outputs: outputs(plan, stats),
            loaders: LoaderStatus {
                seconds_loading: stats.loading.time().as_secs_f64(),
                seconds_waiting_for_row: stats.waiting_for_row.time().as_secs_f64(),
                seconds_waiting_for_sinks: stats.waiting_for_sinks.time().as_secs_f64(),
                restarts: stats.loader_restarts.get(),
            },
            batches_by_reason: LeaveReason::ALL
                .map(|reason| (reason.as_str().to_owned(), stats.reason(reason)))
                .into(),
            ..Self::default()
        }
    }

    /// Workers that were started in place of others.
    pub fn restarts(&self) -> u64 {
        self.devices.iter().map(|device| device.restarts).sum()
    }
}

fn items(stats: &Stats, counts: Counts) -> ItemCounts {
    let (resumed, in_flight) = (stats.resumed.get(), stats.in_flight());
    // After the items that are counted above, each of which is listed.
    let extent = stats.extent();
    ItemCounts {
        read: counts.total(),
        done: counts.done,
        failed: counts.failed,
        total: extent.known(),
        listed: extent.listed(),
        extent: match extent {
            Extent::Known(_) => ListedExtent::Known,
            Extent::Growing(_) => ListedExtent::Growing,
        },
        resumed,
        in_flight,
    }
}

fn device(
    context: &RunContext,
    id: DeviceId,
    (plan, stats): (&DevicePlan, &DeviceStats),
    elapsed: Duration,
) -> DeviceStatus {
    let (workers, batches, time_busy) = (stats.workers(), stats.batches.get(), stats.busy.time());
    let gpu = context.watch.latest(id);
    DeviceStatus {
        device: plan.spec.name.clone(),
        ready: stats.ready.get(),
        workers,
        workers_added: stats.added.get(),
        worker_memory_measured: measured(context, id),
        starts: stats.starts.get(),
        restarts: stats.restarts.get(),
        batches,
        mean_batch: ratio(stats.rows.get() as f64, batches as f64),
        busy: ratio(time_busy.as_secs_f64(), elapsed.as_secs_f64() * workers as f64).min(1.0),
        seconds_busy: time_busy.as_secs_f64(),
        utilization: gpu.as_ref().and_then(|gpu| Some(f64::from(gpu.utilization?) / 100.0)),
        memory_used: gpu.as_ref().map(Gpu::memory_used),
        power_watts: gpu.as_ref().and_then(|gpu| Some(f64::from(gpu.power_mw?) / 1000.0)),
        usage: context.watch.usage(id),
        lost: context.watch.lost(id),
        time_busy,
        gpu,
    }
}

fn is_none(n: &u64) -> bool {
    *n == 0
}

/// Why items have failed, as far as `failures.jsonl` of an output folder says, the commonest cause first.
pub fn failure_causes(output: &Path) -> Vec<FailureCause> {
    let mut causes = FailureCauses::default();
    let read = each_record(&output.join(FAILURE_RECORDS), |_, line, _| {
        // A line that is none is told by `orchestra verify`.
        serde_json::from_slice(line).iter().for_each(|line| causes.add(line));
        Ok::<_, io::Error>(())
    });
    if let Err(error) = read {
        tracing::warn!(%error, "failures cannot be read again to be grouped");
    }
    causes.commonest_first().0
}

fn sources(context: &RunContext) -> BTreeMap<String, Option<u64>> {
    let growths = context.stats.growths.get().into_iter().flatten();
    let counted = context.plan.sources.iter().zip(growths);
    counted.map(|(source, growth)| (source.name.clone(), growth.extent().known())).collect()
}

fn passed_over(context: &RunContext) -> BTreeMap<String, BTreeMap<String, u64>> {
    let growths = context.stats.growths.get().into_iter().flatten();
    let counted = context.plan.sources.iter().zip(growths).map(|(source, growth)| {
        let by_reason =
            growth.passed_over().iter().map(|(reason, n)| (reason.as_str().to_owned(), n)).collect();
        (source.name.clone(), by_reason)
    });
    counted.filter(|(_, by_reason): &(_, BTreeMap<_, _>)| !by_reason.is_empty()).collect()
}

fn outputs(plan: &Plan, stats: &Stats) -> Vec<OutputReport> {
    let output = |(sink, n_part_files): (&SinkPlan, &Counter)| OutputReport {
        sink: sink.name.clone(),
        kind: sink.kind.clone(),
        path: sink.path.strip_prefix(&plan.output).unwrap_or(&sink.path).to_owned(),
        sources: plan.sources_of(sink).map(|source| source.name.clone()).collect(),
        records: plan.records_of(sink),
        part_files: sink.part_files.as_ref().map(|_| n_part_files.get()),
        url: sink.bucket.as_ref().map(|bucket| bucket.url.clone()),
        script: sink.script.as_ref().map(|script| script.script.clone()),
    };
    plan.sinks.iter().zip(&stats.n_part_files).map(output).collect()
}

fn pipelines(
    context: &RunContext,
    ends: &BTreeMap<PipelineId, PipelineEnd>,
) -> BTreeMap<String, PipelineStatus> {
    let plan = &context.plan;
    let report = |id| PipelineStatus { end: ends.get(&id).map(ToString::to_string) };
    let named = (0..).map(PipelineId).zip(&plan.pipelines);
    let mut reports: BTreeMap<String, PipelineStatus> =
        named.map(|(id, pipeline)| (pipeline.name.clone(), report(id))).collect();
    for name in plan.deferred.iter().flat_map(|late| &late.pipelines) {
        let end = Some("not started".to_owned());
        reports.insert(name.clone(), PipelineStatus { end });
    }
    reports
}

fn measured(context: &RunContext, device: DeviceId) -> BTreeMap<String, u64> {
    let of_stage = |(plan, stats): (&StagePlan, &StageStats)| {
        let bytes = stats.on(device)?.worker_bytes.get();
        (bytes > 0).then(|| (plan.name.clone(), bytes))
    };
    context.plan.stages.iter().zip(&context.stats.stages).filter_map(of_stage).collect()
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

fn rfc3339(unix_ms: u64) -> String {
    let time: SystemTime = UNIX_EPOCH + Duration::from_millis(unix_ms);
    humantime::format_rfc3339_millis(time).to_string()
}
