//! What set the pace of a run, and the stages in figures.

use maud::{Markup, html};
use orchestra_launch::{BatchStatus, StageStatus, TIMES};

use super::measures::{mean_batch, quantile};
use super::table::{self, table};
use crate::gather::RunReport;
use crate::human::{counted, elapsed, per_second};
use crate::words::pace_in_words;

/// A shorter run is mostly the start of its workers.
const TELLING_SECONDS: f64 = 2.0;

pub fn pace(report: &RunReport) -> Option<Markup> {
    let status = &report.status;
    if status.stages.is_empty() {
        return None;
    }
    let words = match pace_in_words(status) {
        Some(words) => format!("The pace was {words}."),
        None => "Too little ran to tell what set the pace.".to_owned(),
    };
    let rows = status.stages.iter().map(|stage| row(report, stage));
    let loaders = &status.loaders;
    let of_loaders =
        loaders.seconds_loading + loaders.seconds_waiting_for_row + loaders.seconds_waiting_for_sinks;
    let share = |seconds: f64| format!("{:.0} %", seconds / of_loaders * 100.0);
    Some(html! {
        p.lead { (with_code(&words)) }
        @if status.seconds_items < TELLING_SECONDS {
            p { "The run took " (elapsed(status.seconds_items)) ", mostly the start of its workers: this says little of a longer one." }
        }
        @if of_loaders > 0.0 {
            p {
                "Loaders spent " (share(loaders.seconds_loading)) " of their time reading and decoding, "
                (share(loaders.seconds_waiting_for_row)) " waiting for a free place in a batch (the models were behind), and "
                (share(loaders.seconds_waiting_for_sinks)) " waiting because as much was in flight as may be (writing was behind)."
                @if loaders.restarts > 0 { " " (counted(loaders.restarts, "loader process was", "loader processes were")) " replaced." }
            }
        }
        (table("Stages, in the order of the graph", &["stage", "kind", "in", "out", "failed", "workers", "busy", "rows in/s", "mean batch", "run p50", "run p99"], rows.collect()))
    })
}

/// What stands between backticks is code.
fn with_code(words: &str) -> Markup {
    html! {
        @for (at, part) in words.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn row(report: &RunReport, stage: &StageStatus) -> Vec<table::Cell> {
    let status = &report.status;
    let seconds = (status.seconds_items - status.seconds_starting).max(1e-3);
    let busy = stage.seconds_busy / (seconds * stage.workers.max(1) as f64);
    let kind = report.plan.pipelines.iter().flat_map(|pipeline| &pipeline.nodes);
    let kind =
        kind.filter(|node| node.name == stage.name).map(|node| node.kind.as_str()).next().unwrap_or("");
    let time = |batches: &BatchStatus, q: f64| match quantile(&batches.run_times, TIMES, q) {
        Some(nanos) => table::number(nanos, super::measures::at_most(nanos)),
        None => table::none(),
    };
    let batches = stage.batches.as_ref();
    vec![
        table::text(&stage.name),
        table::text(kind),
        table::count(stage.entered),
        table::count(stage.out),
        table::count(stage.failed),
        if stage.workers > 0 { table::count(stage.workers) } else { table::none() },
        if stage.workers > 0 {
            table::number(busy, format!("{:.0} %", busy.min(1.0) * 100.0))
        } else {
            table::none()
        },
        table::number(stage.entered as f64 / seconds, per_second(stage.entered as f64 / seconds)),
        batches
            .and_then(|_| mean_batch(stage))
            .map_or_else(table::none, |mean| table::number(mean, format!("{mean:.1}"))),
        batches.map_or_else(table::none, |batches| time(batches, 0.5)),
        batches.map_or_else(table::none, |batches| time(batches, 0.99)),
    ]
}
