//! The metrics of a run: where they are served, as the user says, and where they come from. Counts nothing, and knows no format: that is the
//! business of `orchestra_launch::telemetry::metrics`.

mod counters;
mod devices;

use std::sync::Arc;

use orchestra_launch::telemetry::metrics::{MetricSource, Metrics, Reading, names, page_address};
use orchestra_launch::telemetry::{LogFiles, SpanWatch, TelemetryError, TelemetryGuard};
use orchestra_launch::{Meter, Plan};

use crate::Failed;
use crate::args::RunArgs;
use crate::exit_code::ExitCode;
use crate::notices::Notices;

/// Serves metrics as the command line or the file says. `None`: neither asks for metrics.
pub fn start(args: &RunArgs, plan: &Plan, notices: Notices) -> Result<Option<Metrics>, Failed> {
    let Some(page) = args.metrics.as_deref().or(plan.telemetry.metrics.as_deref()) else { return Ok(None) };
    let refused = match args.metrics {
        Some(_) => ExitCode::Usage,
        None => ExitCode::BadFile,
    };
    let page = page_address(page).map_err(|e| Failed::new(refused, e))?;
    let metrics = Metrics::start(page).map_err(|e| {
        let taken = matches!(e, TelemetryError::PageNotServed { .. } | TelemetryError::Thread(_));
        Failed::new(if taken { ExitCode::TryAgain } else { refused }, e)
    })?;
    let address = metrics.page_address();
    let readers = if address.ip().is_loopback() { "" } else { ", which other machines can read" };
    notices.say(&format!("metrics at http://{address}/metrics{readers}"));
    tracing::info!(%address, "metrics page served");
    Ok(Some(metrics))
}

/// Shows the numbers of this run from now on.
pub fn observe(metrics: &Metrics, meter: Meter, telemetry: &TelemetryGuard) {
    let besides = Besides { spans: telemetry.span_watch(), logs: telemetry.log_files().clone() };
    metrics.observe(source(meter, besides));
}

/// Where numbers come from that the run itself does not know.
struct Besides {
    spans: Option<SpanWatch>,
    logs: LogFiles,
}

/// All metrics of a run. It may be read until the process ends.
fn source(meter: Meter, besides: Besides) -> MetricSource {
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
