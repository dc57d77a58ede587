//! The thread that sends metrics to a collector, and its end, which waits no longer than it was told. A collector that is down, slow or
//! takes no metrics costs the metrics and nothing else.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{MetricExport, MetricReport, Source, wire};
use crate::TelemetryError;
use crate::otlp::{Client, SendError, Signal};

/// How long the end may take, from [`Export::finish`] on.
const PATIENCE: Duration = Duration::from_secs(3);

/// A running exporter. Dropping it ends it without the last request.
#[derive(Debug)]
pub(super) struct Export {
    /// Turns true when nothing will change any more.
    finish: watch::Sender<bool>,
    finished_at: OnceLock<Instant>,
    /// Ends with the thread.
    done: Receiver<()>,
    report: Arc<Mutex<MetricReport>>,
}

impl Export {
    /// Starts the thread. It connects when the first request is due, not before.
    pub(super) fn start(settings: &MetricExport, source: Source) -> Result<Self, TelemetryError> {
        let client = Client::new(&settings.to, Signal::Metrics)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(TelemetryError::Thread)?;
        let (finish, finishing) = watch::channel(false);
        let (alive, done) = channel();
        let report = Arc::new(Mutex::new(MetricReport::default()));
        let exporter = Exporter {
            client,
            source,
            finishing,
            every: settings.every,
            endpoint: settings.to.endpoint.clone(),
            header: wire::Header::new(&settings.resource, SystemTime::now()),
            report: Arc::clone(&report),
        };
        thread::Builder::new()
            .name("metrics-export".to_owned())
            .spawn(move || work(&runtime, exporter, &alive))
            .map_err(TelemetryError::Thread)?;
        Ok(Self { finish, finished_at: OnceLock::new(), done, report })
    }

    /// Asks for the last request.
    pub(super) fn finish(&self) {
        self.finished_at.get_or_init(Instant::now);
        self.finish.send_replace(true);
    }

    /// Waits for it.
    pub(super) fn shutdown(self) -> MetricReport {
        self.finish();
        let since = self.finished_at.get().map_or(Duration::ZERO, Instant::elapsed);
        // Nothing is ever sent on it: either time runs out, or the thread has ended.
        let late = self.done.recv_timeout(PATIENCE.saturating_sub(since))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if late {
            report.lost += 1;
            report.words.get_or_insert_with(|| format!("no answer within {PATIENCE:?}"));
        }
        report
    }
}

/// Runs to the last request, or until nobody waits for it any more. `_alive` ends with it.
fn work(runtime: &Runtime, exporter: Exporter, _alive: &Sender<()>) {
    let mut nobody = exporter.finishing.clone();
    runtime.block_on(async {
        tokio::select! {
            () = exporter.run() => {}
            // An error: the other end was dropped.
            () = async { while nobody.changed().await.is_ok() {} } => {}
        }
    });
}

struct Exporter {
    client: Client,
    source: Source,
    finishing: watch::Receiver<bool>,
    every: Duration,
    endpoint: String,
    header: wire::Header,
    report: Arc<Mutex<MetricReport>>,
}

impl Exporter {
    async fn run(mut self) {
        let mut due = Instant::now() + self.every;
        loop {
            let last = tokio::select! {
                _ = self.finishing.wait_for(|finish| *finish) => true,
                () = tokio::time::sleep_until(due) => false,
            };
            let message = self.header.request(&(self.source)(), SystemTime::now());
            let answer = self.client.send(message, &mut self.finishing).await;
            let has_a_chance = self.note(answer.map(|answer| wire::rejection(&answer)));
            if last || !has_a_chance {
                return;
            }
            // What took longer than the interval is not made up for.
            due = (due + self.every).max(Instant::now());
        }
    }

    /// Counts what became of a request. `false`: no further one has a chance.
    fn note(&self, answer: Result<Option<String>, SendError>) -> bool {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = match answer {
            Ok(None) => {
                report.delivered += 1;
                return true;
            }
            Ok(Some(words)) => words,
            Err(error) if takes_no_metrics(&error) => {
                tracing::info!(endpoint = %self.endpoint, %error, "the collector takes no metrics, none are sent to it");
                report.unsupported = true;
                return false;
            }
            Err(error) => error.to_string(),
        };
        report.lost += 1;
        if report.words.replace(problem.clone()).is_none() {
            tracing::warn!(endpoint = %self.endpoint, error = %problem, "metrics cannot be delivered, the run goes on without them");
        }
        true
    }
}

/// A collector for traces alone, such as Jaeger, does not know the method or the path.
fn takes_no_metrics(error: &SendError) -> bool {
    let SendError::Refused { status, again: None, .. } = error else { return false };
    ["unimplemented", "404", "405", "501"].iter().any(|known| status.starts_with(known))
}
