//! The metrics of a run: where they go, as the user says, and where they come from. Counts nothing, and knows no format: that is the
//! business of `orchestra::telemetry::metrics`.

mod counters;
mod devices;

use std::sync::Arc;

use orchestra::telemetry::metrics::{MetricReport, MetricSettings, Metrics, Reading, Source, names};
use orchestra::telemetry::otlp::Configured;
use orchestra::telemetry::{LogFiles, SpanWatch, TelemetryError, TelemetryGuard};
use orchestra::{Meter, Plan};

use crate::Failed;
use crate::args::RunArgs;
use crate::exit_code::ExitCode;
use crate::notices::Notices;
use crate::stderr;

/// Serves and sends metrics as the command line, the file and the environment say. `said`: warnings that need not be repeated.
pub fn start(args: &RunArgs, plan: &Plan, notices: Notices, said: &[String]) -> Result<Metrics, Failed> {
    let page = args.metrics.as_deref().or(plan.telemetry.metrics.as_deref());
    let collector = Configured {
        endpoint: args.otlp.as_deref().or(plan.telemetry.otlp.as_deref()),
        protocol: plan.telemetry.protocol,
    };
    let refused = match args.metrics {
        Some(_) => ExitCode::Usage,
        None => ExitCode::BadFile,
    };
    let resolved = MetricSettings::resolve(page, collector, &|name| std::env::var(name).ok())
        .map_err(|e| Failed::new(refused, e))?;
    for warning in resolved.warnings.iter().filter(|warning| !said.contains(warning)) {
        tracing::warn!("{warning}");
    }
    let metrics = Metrics::start(&resolved.settings).map_err(|e| {
        let taken = matches!(e, TelemetryError::PageNotServed { .. } | TelemetryError::Thread(_));
        Failed::new(if taken { ExitCode::TryAgain } else { refused }, e)
    })?;
    if let Some(address) = metrics.page_address() {
        let readers = if address.ip().is_loopback() { "" } else { ", which other machines can read" };
        notices.say(&format!("metrics at http://{address}/metrics{readers}"));
        tracing::info!(%address, "metrics page served");
    }
    Ok(metrics)
}

/// Shows the numbers of this run from now on.
pub fn observe(metrics: &Metrics, meter: Meter, telemetry: &TelemetryGuard) {
    if metrics.is_wanted() {
        let besides = Besides { spans: telemetry.span_watch(), logs: telemetry.log_files().clone() };
        metrics.observe(source(meter, besides));
    }
}

/// Waits for the last request, within bounds, and says if the collector has not got it.
pub fn end(metrics: Metrics) {
    let Some(MetricReport { delivered, lost, words, .. }) = metrics.shutdown() else { return };
    if lost > 0 {
        let words = words.map(|words| format!(" ({words})")).unwrap_or_default();
        let requests = delivered + lost;
        stderr::say_line(&format!(
            "warning: metrics are incomplete: {lost} of {requests} requests were not taken by the collector{words}"
        ));
    }
}

/// Where numbers come from that the run itself does not know.
struct Besides {
    spans: Option<SpanWatch>,
    logs: LogFiles,
}

/// All metrics of a run. It may be read until the process ends.
fn source(meter: Meter, besides: Besides) -> Source {
    Arc::new(move || {
        let mut reading = Reading::new();
        counters::read(&meter, &mut reading);
        devices::read(&meter, &mut reading);
        besides.read(&mut reading);
        reading
    })
}

impl Besides {
    fn read(&self, reading: &mut Reading) {
        if let Some(spans) = &self.spans {
            let spans = spans();
            reading.add(&names::SPANS_ENDED, &[], spans.ended);
            for (reason, n) in
                [("unsent", spans.unsent), ("rejected", spans.rejected), ("overflowed", spans.overflowed)]
            {
                reading.add(&names::SPANS_DROPPED, &[reason], n);
            }
            for (kind, n) in [("item", spans.items_left_out), ("batch", spans.batches_left_out)] {
                reading.add(&names::TRACES_LEFT_OUT, &[kind], n);
            }
        }
        reading.add(&names::LOG_LINES_LOST, &[], self.logs.report().lines_lost);
    }
}
