//! Puts terminal, log files and traces together into one subscriber. Reads no environment and decides no setting.

use tracing::Dispatch;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry};

use crate::TelemetryError;
use crate::logs::filter::log_filter;
use crate::logs::{LineLayer, LogFiles, LogReport, Style, Terminal, TerminalOutput};
use crate::traces::{SpanReport, TraceSettings, Traces};

/// What is logged where.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// What the terminal shows of our own targets.
    pub terminal: LevelFilter,
    /// What the files hold of our own targets.
    pub files: LevelFilter,
    /// The text of `RUST_LOG`: overrides both.
    pub filter: Option<String>,
    /// Colours on the terminal.
    pub color: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { terminal: LevelFilter::WARN, files: LevelFilter::INFO, filter: None, color: false }
    }
}

/// A subscriber that is ready but not installed.
#[derive(Debug)]
pub struct Telemetry {
    dispatch: Dispatch,
    guard: TelemetryGuard,
}

impl Telemetry {
    /// Builds the subscriber; with `traces`, starts the thread that sends them. Needs no async runtime.
    pub fn build(logs: &LogSettings, traces: Option<&TraceSettings>) -> Result<Self, TelemetryError> {
        let traces = traces.map(Traces::start).transpose()?;
        let (terminal, files) = (Terminal::stderr(), LogFiles::default());
        let style = if logs.color { Style::Color } else { Style::Plain };
        let user = logs.filter.as_deref();
        // Whoever asks for more than warnings wants all of it.
        let limited = user.is_none() && logs.terminal <= LevelFilter::WARN;
        let terminal_layer = LineLayer(TerminalOutput::new(terminal.clone(), style, limited))
            .with_filter(log_filter(logs.terminal, user)?);
        let file_layer = LineLayer(files.clone()).with_filter(log_filter(logs.files, user)?);
        let subscriber = Registry::default()
            .with(traces.as_ref().map(Traces::layer))
            .with(terminal_layer)
            .with(file_layer);
        Ok(Self { dispatch: Dispatch::new(subscriber), guard: TelemetryGuard { terminal, files, traces } })
    }

    /// Makes it the subscriber of this process. Only a command does that; a library never.
    pub fn install(self) -> Result<TelemetryGuard, TelemetryError> {
        tracing::dispatcher::set_global_default(self.dispatch)
            .map_err(|_| TelemetryError::AlreadyInstalled)?;
        if let Some(traces) = &self.guard.traces {
            traces.make_global();
        }
        Ok(self.guard)
    }

    /// The subscriber for a part of the process only, and the guard.
    #[must_use]
    pub fn into_parts(self) -> (Dispatch, TelemetryGuard) {
        (self.dispatch, self.guard)
    }
}

/// Keeps logs and traces going. Dropping it sends what is left, like [`TelemetryGuard::shutdown`].
#[derive(Debug)]
pub struct TelemetryGuard {
    terminal: Terminal,
    files: LogFiles,
    traces: Option<Traces>,
}

impl TelemetryGuard {
    /// Where terminal lines go.
    #[must_use]
    pub fn terminal(&self) -> &Terminal {
        &self.terminal
    }

    /// The log files: `open` them as soon as the output folder is known.
    #[must_use]
    pub fn log_files(&self) -> &LogFiles {
        &self.files
    }

    /// Sends the spans that have ended, waits for that no longer than [`TraceSettings::patience`], and says what was lost. Drop
    /// the spans that are still open first: an open span is not sent. Log lines are in their files already.
    #[must_use]
    pub fn shutdown(mut self) -> TelemetryReport {
        let spans = self.traces.take().map(Traces::shutdown);
        TelemetryReport { spans, logs: self.files.report() }
    }
}

/// What became of spans and log lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TelemetryReport {
    /// Spans, if they were sent anywhere.
    pub spans: Option<SpanReport>,
    /// Log lines.
    pub logs: LogReport,
}
