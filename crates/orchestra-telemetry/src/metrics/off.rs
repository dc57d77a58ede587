//! Stands in for the exporter where the feature `otlp` is off: asking for it is an error, never silence.

use super::{MetricExport, MetricReport, Source};
use crate::TelemetryError;

/// There is none.
#[derive(Debug)]
pub(super) enum Export {}

impl Export {
    pub(super) fn start(settings: &MetricExport, _: Source) -> Result<Self, TelemetryError> {
        Err(TelemetryError::NotBuilt { endpoint: settings.to.endpoint.clone(), origin: settings.to.origin })
    }

    pub(super) fn finish(&self) {
        match *self {}
    }

    pub(super) fn shutdown(self) -> MetricReport {
        match self {}
    }
}
