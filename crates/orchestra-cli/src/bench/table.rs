//! A measurement as a table and a few sentences. Formats only.

use std::fmt::Write as _;

use orchestra::lab::Spread;
use orchestra::lab::bench_report::{BatchSizeReport, Pace, Report};

use crate::args::BenchArgs;
use crate::columns::{Row, aligned};
use crate::human::{count, counted, per_second, short_time};

pub fn table(report: &Report, args: &BenchArgs) -> String {
    let rounds = counted(report.rounds.len() as u64, "round", "rounds");
    let (items, total) = (count(report.items), count(report.items_total));
    let items = match report.items > report.items_total {
        true => format!("{items} items, the {total} of the list again and again"),
        false => format!("{items} of {total} items"),
    };
    let cores = counted(report.cores as u64, "core", "cores");
    let title = format!("{}: {items}, {cores}, {rounds}", report.workflow);
    let mut rows = vec![Row::new(title, ["median", "min", "max"].map(String::from))];
    parts(report, &mut rows);
    whole(report, &mut rows);
    let mut text = aligned(&rows);
    notes(report, args, &mut text);
    text
}

/// One line per stage, size and device.
pub fn batch_sizes(report: &BatchSizeReport) -> String {
    let mut rows = vec![Row::new(
        report.workflow.clone(),
        ["items/s", "time of a batch", "of the first", "behind another size", "device busy"]
            .map(String::from),
    )];
    for size in &report.batch_sizes {
        let workers = counted(size.workers as u64, "worker", "workers");
        let label = format!("stage {} on {}: {workers}, batches of {}", size.stage, size.device, size.batch);
        let batch_seconds = (size.batch * size.workers) as f64 / size.items_per_second.max(f64::MIN_POSITIVE);
        let [usual, first] = [batch_seconds, size.first_batch_seconds].map(short_time);
        let switched = size.switched_batch_seconds.map(short_time).unwrap_or_default();
        let busy = size.device_busy.map(|busy| format!("{:.0} %", 100.0 * busy)).unwrap_or_default();
        rows.push(Row::new(label, [per_second(size.items_per_second), usual, first, switched, busy]));
    }
    aligned(&rows)
}

fn row(label: impl Into<String>, spread: &Spread, format: impl Fn(f64) -> String) -> Row {
    Row::new(label, [spread.median, spread.min, spread.max].map(format))
}

fn parts(report: &Report, rows: &mut Vec<Row>) {
    for part in &report.decode {
        let threads = counted(part.threads as u64, "thread", "threads");
        let label = format!("decode {}: {threads}, items/s", part.source);
        rows.push(row(label, &part.items_per_second, per_second));
        rows.push(row("  time of a core per item", &part.core_seconds_per_item, short_time));
    }
    for part in &report.infer {
        let workers = counted(part.workers as u64, "worker", "workers");
        let threads = counted(part.threads as u64, "thread", "threads");
        let at_once = if part.streams > 1 { format!(", {} at once", part.streams) } else { String::new() };
        let label = format!(
            "stage {} on {}: {workers} of {threads}{at_once}, batches of {}, items/s",
            part.stage, part.device, part.batch
        );
        rows.push(row(label, &part.items_per_second, per_second));
        rows.push(row("  time of a core per item", &part.core_seconds_per_item, short_time));
    }
}

fn whole(report: &Report, rows: &mut Vec<Row>) {
    let run = &report.run;
    rows.push(row(format!("limit, set by {}, items/s", report.limited_by), &report.limit, per_second));
    if let Some(ratio) = &report.ratio_spread {
        rows.push(row("run, in its steady state, items/s", &run.items_per_second, per_second));
        rows.push(row("run / limit", ratio, |r| format!("{r:.3}")));
    }
    rows.push(row("run, from start to end, items/s", &run.whole_items_per_second, per_second));
    rows.push(row("  from start to end", &run.seconds, short_time));
    rows.push(row("  of that, until the first batch was done", &run.seconds_starting, short_time));
}

fn notes(report: &Report, args: &BenchArgs, text: &mut String) {
    text.push('\n');
    let mut say = |head: &str, what: &str| {
        let _ = writeln!(text, "{head:<9} {what}");
    };
    if report.too_short {
        let seconds = short_time(report.run.seconds.median);
        let longer = longer(report, args);
        say(
            "too short",
            &format!("a run of {seconds} is mostly start and end, so there is no ratio: {longer}"),
        );
    }
    if report.items_unreadable > 0 {
        let failed = counted(report.items_unreadable, "item", "items");
        say("skipped", &format!("{failed} of {} cannot be read or decoded", count(report.items)));
    }
    say("pace", pace(report.bottleneck));
}

/// How to have a run with a steady state.
fn longer(report: &Report, args: &BenchArgs) -> String {
    let needed = report.items_needed;
    let times = needed.div_ceil(report.items_total.max(1));
    if times > args.repeat {
        let without =
            if args.items.is_some_and(|items| items < needed) { " and without `--items`" } else { "" };
        format!("`--repeat {times}`{without} goes over the items again and again")
    } else if args.items.is_some_and(|items| items < needed) {
        format!("take `--items {needed}` or more, or leave that out")
    } else {
        format!("measure for longer, `--seconds {}`", (args.seconds * 2.0).max(2.0))
    }
}

fn pace(pace: Pace) -> &'static str {
    match pace {
        Pace::Loading => "loading: reading and decoding keep the cores busy",
        Pace::Inference => "inference: the models set it",
        Pace::Cpu => "cpu: decoding and the models share the cores",
        Pace::Sinks => "sinks: results are not written fast enough",
        Pace::Overhead => "overhead: neither decoding nor the models are near their limits",
    }
}
