//! Figures over time, and distributions: rates, queues, batches, latency, the machine.

use maud::{Markup, html};
use orchestra_launch::{BATCH_SIZES, StageStatus, TIMES};

use super::chart::{Chart, SECONDS};
use super::table::{self, table};
use crate::gather::{Moment, RunReport};
use crate::human::{count, elapsed};

const GIB: f64 = (1_u64 << 30) as f64;

impl RunReport {
    fn chart(&self, title: &str, unit: &str) -> Chart {
        Chart {
            title: title.to_owned(),
            x_label: SECONDS.to_owned(),
            unit: unit.to_owned(),
            marks: self.history.start_times().into_iter().skip(1).collect(),
            ..Chart::default()
        }
    }

    fn batch_stages(&self) -> impl Iterator<Item = &StageStatus> {
        self.status.stages.iter().filter(|stage| stage.batches.is_some())
    }
}

fn stage_of<'a>(moment: &'a Moment, name: &str) -> Option<&'a StageStatus> {
    moment.status.stages.iter().find(|stage| stage.name == name)
}

pub fn rates(report: &RunReport) -> Option<Markup> {
    let history = &report.history;
    let mut rates = report.chart("Items that ended", "items per second");
    let ended = |moment: &Moment| {
        let items = &moment.status.items;
        Some(items.read.saturating_sub(items.resumed) as f64)
    };
    rates.add("all", history.rate(ended));
    if report.status.items.failed > 0 {
        rates.add("failed", history.rate(|moment| Some(moment.status.items.failed as f64)));
    }
    let mut queues = report.chart("Queues", "items in flight; batches that are filled, wait or run");
    queues.add("items in flight", history.figure(|moment| Some(moment.status.items.in_flight as f64)));
    for stage in report.batch_stages() {
        let slots =
            |moment: &Moment| Some(stage_of(moment, &stage.name)?.batches.as_ref()?.slots_in_use as f64);
        queues.add(&format!("batches of {}", stage.name), history.figure(slots));
    }
    let figures: Vec<Markup> = [rates, queues].iter().filter_map(Chart::figure).collect();
    (report.status.items.read > 0 && !figures.is_empty())
        .then(|| html! { div.charts { @for figure in figures { (figure) } } })
}

pub fn batches(report: &RunReport) -> Option<Markup> {
    let stages: Vec<&StageStatus> =
        report.batch_stages().filter(|stage| mean_batch(stage).is_some()).collect();
    let mut reasons: Vec<&str> = stages
        .iter()
        .flat_map(|stage| &stage.batches)
        .flat_map(|batches| batches.reasons.keys())
        .map(String::as_str)
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    let rows = stages.iter().map(|stage| {
        let batches = stage.batches.clone().unwrap_or_default();
        let of = |reason: &&str| table::count(batches.reasons.get(*reason).copied().unwrap_or(0));
        let mut row = vec![table::text(&stage.name), table::count(batches.sizes.iter().sum())];
        row.push(table::number(
            mean_batch(stage).unwrap_or(0.0),
            format!("{:.1}", mean_batch(stage).unwrap_or(0.0)),
        ));
        row.extend(reasons.iter().map(of));
        row
    });
    let heads: Vec<&str> =
        ["stage", "batches", "mean items"].into_iter().chain(reasons.iter().copied()).collect();
    (!stages.is_empty()).then(|| {
        html! {
            p { "Why batches left: " @for (at, reason) in reasons.iter().enumerate() { @if at > 0 { "; " } b { (reason) } " – " (meaning(reason)) } "." }
            (table("Batches by stage and reason", &heads, rows.collect()))
            div.charts {
                @for stage in &stages {
                    @let sizes = stage.batches.as_ref().map(|batches| batches.sizes.as_slice()).unwrap_or_default();
                    (bars(&format!("Batch sizes of {}", stage.name), sizes, BATCH_SIZES, |n| count(n as u64)))
                }
            }
        }
    })
}

/// Of a reason for which a batch left.
fn meaning(reason: &str) -> &'static str {
    match reason {
        "full" => "it had as many items as it may have",
        "timer" => "its oldest item had waited for the time that `wait` sets",
        "size" => "no place was free for a row of another size",
        "drain" => "no further item came",
        "split" => "it is a part of one that failed or ran out of memory",
        "retry" => "its worker died, and it was sent again",
        _ => "another reason",
    }
}

pub fn latency(report: &RunReport) -> Option<Markup> {
    let stages: Vec<&StageStatus> =
        report.batch_stages().filter(|stage| mean_batch(stage).is_some()).collect();
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for stage in &stages {
        let Some(batches) = &stage.batches else { continue };
        for (what, counts) in
            [("wait for the batch to leave", &batches.queue_times), ("run in a worker", &batches.run_times)]
        {
            let n: u64 = counts.iter().sum();
            let time = |q: f64| match quantile(counts, TIMES, q) {
                Some(nanos) => table::number(nanos, at_most(nanos)),
                None => table::none(),
            };
            rows.push(vec![
                table::text(&stage.name),
                table::text(what),
                table::count(n),
                time(0.5),
                time(0.9),
                time(0.99),
            ]);
        }
        figures.push(bars(
            &format!("Time of a batch of {} in a worker", stage.name),
            &batches.run_times,
            TIMES,
            milliseconds,
        ));
    }
    (!rows.is_empty()).then(|| {
        html! {
            p { "Of every batch. Times are counted in buckets, so a quantile is known up to the bound of its bucket." }
            (table("Times of batches", &["stage", "what", "batches", "p50", "p90", "p99"], rows))
            div.charts { @for figure in figures { (figure) } }
        }
    })
}

pub fn machine(report: &RunReport) -> Option<Markup> {
    let history = &report.history;
    let mut cores =
        report.chart("Cores of the machine that were busy", "cores; everything that ran on the machine");
    // The counter goes on from start to start; the first look of each is left out.
    let mut before: Option<(usize, f64, f64)> = None;
    let busy = history.moments.iter().map(|moment| {
        let now = moment.machine.map(|(seconds, _)| seconds);
        let last = before.filter(|(start, ..)| *start == moment.start);
        before = now.map(|now| (moment.start, moment.at, now));
        let rate = last.zip(now).map(|((_, at, value), now)| (now - value) / (moment.at - at).max(1e-3));
        (history.clock(moment.at), rate)
    });
    cores.add("busy cores", busy.collect());
    let mut memory = report.chart("Memory that was taken", "GiB");
    memory.add("machine", history.figure(|moment| Some(moment.machine?.1 as f64 / GIB)));
    let mut charts = vec![cores, memory];
    let mut gpus = report.chart("Use of GPUs", "percent");
    let mut gpu_memory = report.chart("Memory of GPUs", "GiB");
    let mut power = report.chart("Power of GPUs", "watts");
    for (at, device) in report.status.devices.iter().enumerate() {
        let of = |figure: fn(&orchestra_launch::DeviceStatus) -> Option<f64>| {
            history.figure(move |moment| figure(moment.status.devices.get(at)?))
        };
        gpus.add(&device.device, of(|device| Some(device.utilization? * 100.0)));
        gpu_memory.add(&device.device, of(|device| Some(device.memory_used? as f64 / GIB)));
        power.add(&device.device, of(|device| device.power_watts));
    }
    charts.extend([gpus, gpu_memory, power]);
    let figures: Vec<Markup> = charts.iter().filter_map(Chart::figure).collect();
    let devices = &report.status.devices;
    (!figures.is_empty() || !devices.is_empty()).then(|| {
        html! {
            @if !devices.is_empty() { (devices_table(report)) }
            div.charts { @for figure in figures { (figure) } }
        }
    })
}

/// What each device took over the whole run.
fn devices_table(report: &RunReport) -> Markup {
    let devices = report.status.devices.iter().map(|device| {
        let usage = &device.usage;
        let gib = |bytes: Option<u64>| {
            bytes.map_or_else(table::none, |bytes| {
                table::number(bytes as f64, format!("{:.2} GiB", bytes as f64 / GIB))
            })
        };
        vec![
            table::text(&device.device),
            table::count(device.workers),
            table::number(device.busy, format!("{:.0} %", device.busy * 100.0)),
            table::count(device.batches),
            table::count(device.restarts),
            gib(usage.worker_memory_max),
            usage
                .worker_cpu_seconds
                .map_or_else(table::none, |seconds| table::number(seconds, elapsed(seconds))),
            gib(usage.memory_used_max),
            usage
                .utilization_mean
                .map_or_else(table::none, |mean| table::number(mean, format!("{:.0} %", mean * 100.0))),
            usage
                .power_mean_watts
                .map_or_else(table::none, |watts| table::number(watts, format!("{watts:.0} W"))),
            table::text(device.lost.clone().unwrap_or_default()),
        ]
    });
    let heads = [
        "device",
        "workers",
        "busy",
        "batches",
        "restarts",
        "largest worker",
        "CPU time of workers",
        "most GPU memory",
        "mean GPU use",
        "mean power",
        "lost",
    ];
    table("Devices", &heads, devices.collect())
}

/// Counts by buckets as bars, and in words.
fn bars(title: &str, counts: &[u64], bounds: &[u64], name: impl Fn(f64) -> String) -> Markup {
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let first = counts.iter().position(|n| *n > 0).unwrap_or(0);
    let label = |at: usize| match bounds.get(at) {
        Some(bound) => format!("≤ {}", name(*bound as f64)),
        None => format!("> {}", name(bounds.last().copied().unwrap_or(0) as f64)),
    };
    html! {
        figure.bars {
            h3 { (title) }
            @if counts.is_empty() { p { "none" } }
            dl {
                @for (at, n) in counts.iter().enumerate().skip(first) {
                    dt { (label(at)) }
                    dd { meter min="0" max=(most) value=(n) { } " " (count(*n)) }
                }
            }
        }
    }
}

/// A quantile that is read from buckets.
pub fn at_most(nanos: f64) -> String {
    format!("≤ {}", milliseconds(nanos))
}

/// `0.4 ms`, `12 ms`, `3.2 s` of nanoseconds.
pub fn milliseconds(nanos: f64) -> String {
    match nanos / 1e6 {
        ms if ms < 10.0 => format!("{} ms", (ms * 100.0).round() / 100.0),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms => format!("{} s", (ms / 100.0).round() / 10.0),
    }
}

/// The bound of the bucket that holds the value below which a part `q` of all values lies.
pub fn quantile(counts: &[u64], bounds: &[u64], q: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    let mut left = (all as f64 * q).ceil() as u64;
    let at = counts.iter().position(|n| {
        let is_there = left <= *n && all > 0;
        left = left.saturating_sub(*n);
        is_there
    })?;
    Some(bounds.get(at).or(bounds.last()).copied()? as f64)
}

/// Items of a batch, of a stage that has had any.
pub fn mean_batch(stage: &StageStatus) -> Option<f64> {
    let batches: u64 = stage.batches.as_ref()?.sizes.iter().sum();
    (batches > 0).then(|| stage.entered as f64 / batches as f64)
}
