//! Puts terminal, log files and traces together into one subscriber. Reads no environment and decides no setting.

use std::sync::Arc;
use std::time::Duration;

use orchestra_plan::LogFormat;
use orchestra_runtime::Tracer;
use tracing::Dispatch;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry};

use crate::TelemetryError;
use crate::logs::filter::log_filter;
use crate::logs::{LineLayer, LogFiles, LogReport, Style, Terminal, TerminalOutput};
use crate::traces::{ItemParents, Recorder, SpanExport, SpanReport, TraceSettings};

#[derive(Debug, Clone)]
pub struct LogSettings {
    /// What the terminal shows of our own targets.
    pub terminal: LevelFilter,
    /// What the files hold of our own targets; `None` where there will be none, since lines wait in memory for them.
    pub files: Option<LevelFilter>,
    /// The text of `RUST_LOG`: overrides both levels.
    pub filter: Option<String>,
    pub color: bool,
    pub terminal_format: LogFormat,
    pub file_format: LogFormat,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            terminal: LevelFilter::WARN,
            files: Some(LevelFilter::INFO),
            filter: None,
            color: false,
            terminal_format: LogFormat::Text,
            file_format: LogFormat::Text,
        }
    }
}

/// A subscriber that is ready but not installed.
#[derive(Debug)]
pub struct Telemetry {
    dispatch: Dispatch,
    guard: TelemetryGuard,
}

impl Telemetry {
    /// Builds the subscriber; with `settings` for traces, starts the threads that make and send them. Needs no async runtime.
    pub fn build(logs: &LogSettings, settings: Option<&TraceSettings>) -> Result<Self, TelemetryError> {
        let tracing = settings.map(Tracing::start).transpose()?;
        let (terminal, files) = (Terminal::stderr(), LogFiles::default());
        files.set_format(logs.file_format);
        let style = if logs.color { Style::Color } else { Style::Plain };
        let user = logs.filter.as_deref();
        // A user who asks for more than warnings gets all lines.
        let limited = user.is_none() && logs.terminal <= LevelFilter::WARN;
        let output = TerminalOutput::new(terminal.clone(), style, logs.terminal_format, limited);
        let to_terminal = LineLayer(move |line: &_| output.write(line));
        let to_terminal = to_terminal.with_filter(log_filter(logs.terminal, user)?);
        let to_files = logs.files.map(|level| {
            let output = files.clone();
            let to_files = LineLayer(move |line: &_| output.write(line));
            Ok::<_, TelemetryError>(to_files.with_filter(log_filter(level, user)?))
        });
        let to_files = to_files.transpose()?;
        let subscriber = Registry::default().with(to_terminal).with(to_files);
        Ok(Self { dispatch: Dispatch::new(subscriber), guard: TelemetryGuard { terminal, files, tracing } })
    }

    /// Makes it the subscriber of this process. Only a command does that; a library never.
    pub fn install(self) -> Result<TelemetryGuard, TelemetryError> {
        tracing::dispatcher::set_global_default(self.dispatch)
            .map_err(|_| TelemetryError::AlreadyInstalled)?;
        Ok(self.guard)
    }

    /// The subscriber for a part of the process only, and the guard.
    pub fn into_parts(self) -> (Dispatch, TelemetryGuard) {
        (self.dispatch, self.guard)
    }
}

/// Says what became of the spans so far. May be called at any time, also after the end.
pub type SpanWatch = Arc<dyn Fn() -> SpanReport + Send + Sync>;

/// Keeps logs and traces going. Dropping it sends what is left, like [`TelemetryGuard::shutdown`].
#[derive(Debug)]
pub struct TelemetryGuard {
    terminal: Terminal,
    files: LogFiles,
    tracing: Option<Tracing>,
}

#[derive(Debug)]
struct Tracing {
    recorder: Recorder,
    export: SpanExport,
    patience: Duration,
}

impl Tracing {
    fn start(settings: &TraceSettings) -> Result<Self, TelemetryError> {
        let export = SpanExport::start(settings)?;
        let recorder = Recorder::over(export.sink(), settings.slow)?;
        Ok(Self { recorder, export, patience: settings.patience })
    }
}

impl TelemetryGuard {
    /// The run that lines belong to from now on, and those that wait for their files.
    pub fn set_run(&self, run_id: &str) {
        self.terminal.set_run(run_id);
        self.files.set_run(run_id);
    }

    pub fn terminal(&self) -> &Terminal {
        &self.terminal
    }

    /// The log files: `open` them as soon as the output folder is known.
    pub fn log_files(&self) -> &LogFiles {
        &self.files
    }

    /// What became of the spans so far, at each call, if they are sent anywhere.
    pub fn span_watch(&self) -> Option<SpanWatch> {
        let Tracing { recorder, export, .. } = self.tracing.as_ref()?;
        let (left_out, counts) = (recorder.left_out(), export.counts());
        Some(Arc::new(move || left_out.and(counts.report())))
    }

    /// To be handed to each run, if traces are sent anywhere.
    pub fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        self.tracing.as_ref().map(|tracing| tracing.recorder.tracer())
    }

    /// The same for requests that have spans of their own: see [`Recorder::with_item_parents`].
    pub fn tracer_below(&self, parents: ItemParents) -> Option<Arc<dyn Tracer>> {
        self.tracing.as_ref().map(|tracing| tracing.recorder.clone().with_item_parents(parents).tracer())
    }

    /// Ends the spans of what runs have told, sends them, waits for each of that no longer than [`TraceSettings::patience`], and says
    /// what was lost. Log lines are in their files already.
    pub fn shutdown(mut self) -> TelemetryReport {
        TelemetryReport { spans: self.end_tracing(), logs: self.files.report() }
    }

    fn end_tracing(&mut self) -> Option<SpanReport> {
        let Tracing { recorder, export, patience } = self.tracing.take()?;
        recorder.finish(patience);
        Some(recorder.left_out().and(export.shutdown(patience)))
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        self.end_tracing();
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TelemetryReport {
    pub spans: Option<SpanReport>,
    pub logs: LogReport,
}
