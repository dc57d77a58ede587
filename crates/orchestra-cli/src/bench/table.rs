//! A measurement as a table and a few sentences. Formats only.

use std::fmt::Write as _;

use super::limit::Pace;
use super::{BenchReport, LONG_ENOUGH_SECONDS, Spread};
use crate::args::BenchArgs;
use crate::columns::{CellAlignment, aligned};
use crate::human::{count, counted, per_second};

pub fn table(report: &BenchReport, args: &BenchArgs) -> String {
    let (items, total) = (count(report.items), count(report.items_total));
    let items = match report.items > report.items_total {
        true => format!("{items} items, the {total} of the list again and again"),
        false => format!("{items} of {total} items"),
    };
    let cores = counted(report.cores as u64, "core", "cores");
    let rounds = counted(args.runs as u64, "round", "rounds");
    let title = format!("{}: {items}, {cores}, {rounds}", report.workflow);
    let mut rows = vec![[&title, "median", "min", "max"].map(str::to_owned)];
    rows.push(row("loading, items/s", &report.loading, per_second));
    for model in &report.models {
        let label = format!("stage {}, rows/s", model.stage);
        rows.push(row(label, &model.rows_per_second, per_second));
    }
    rows.push(row(format!("limit, set by {}, items/s", report.limited_by), &report.limit, per_second));
    rows.push(row("run, items/s", &report.run, per_second));
    if let Some(ratio) = &report.ratio_spread {
        rows.push(row("run / limit", ratio, |ratio| format!("{ratio:.3}")));
    }
    aligned(rows, CellAlignment::Right).join("\n") + "\n\n" + &notes(report, args)
}

fn row(label: impl Into<String>, spread: &Spread, format: impl Fn(f64) -> String) -> [String; 4] {
    [label.into(), format(spread.median), format(spread.min), format(spread.max)]
}

fn notes(report: &BenchReport, args: &BenchArgs) -> String {
    let mut text = String::new();
    let mut say = |head: &str, what: &str| {
        let _ = writeln!(text, "{head:<9} {what}");
    };
    if report.too_short {
        let longer = longer(report, args);
        say("too short", &format!("such a run is mostly start and end, so there is no ratio: {longer}"));
    }
    if report.items_failed > 0 {
        let failed = counted(report.items_failed, "item", "items");
        say("failed", &format!("{failed} of {}", count(report.items)));
    }
    say("pace", pace(report.bottleneck));
    text
}

/// How to have a run with a steady state.
fn longer(report: &BenchReport, args: &BenchArgs) -> String {
    let needed = (report.limit_items_per_second * LONG_ENOUGH_SECONDS) as u64; // saturates
    let times = needed.div_ceil(report.items_total.max(1));
    let is_few = args.items.is_some_and(|items| items < needed);
    match times > args.repeat {
        true if is_few => format!("`--repeat {times}` without `--items` goes over the items again and again"),
        true => format!("`--repeat {times}` goes over the items again and again"),
        false if is_few => format!("take `--items {needed}` or more, or leave that out"),
        false => format!("measure for longer, `--seconds {}`", (args.seconds * 2.0).max(2.0)),
    }
}

fn pace(pace: Pace) -> &'static str {
    match pace {
        Pace::Loading => "loading: reading and decoding keep the cores busy",
        Pace::Inference => "inference: the models set it",
        Pace::Cpu => "cpu: loading and the models share the cores",
        Pace::Sinks => "sinks: results are not written fast enough",
        Pace::Overhead => "overhead: neither loading nor the models are near their limits",
    }
}
