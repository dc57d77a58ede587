//! What a batch costs besides the model: the way from the batcher to a worker process and back, measured in a real run whose batches
//! hold one pixel. Beside it the bare machine: a round trip over a socket between two processes.
//!
//! `cargo bench -p orchestra-launch --bench round_trip`. Prints a table; judges nothing. With the tests it runs too, a few rounds only.

#![allow(clippy::unwrap_used, reason = "a benchmark ends at the first surprise")]

mod bare;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use orchestra_core::DType;
use orchestra_launch::{Earlier, PlanOptions, ProcessLauncher, RenderStyle, StartOptions};
use orchestra_testkit::images::{self, Kind};
use orchestra_testkit::models;
use orchestra_testkit::workflow_file::WorkflowFile;
use tracing::field::{Field, Visit};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Batches of one run, and round trips over the bare socket.
const ROUNDS: usize = 4_000;
/// The same in a test, which measures nothing.
const ROUNDS_OF_A_TEST: usize = 40;
/// Side of the picture in pixels: decoding it takes far longer than a round trip, so that batches come one at a time and find the
/// worker waiting. Decoding stands aside meanwhile: see [`let_loaders_stand_aside`].
const SIDE: u32 = 512;

fn main() -> ExitCode {
    orchestra_launch::run_if_worker();
    if let Some(end) = bare::echo() {
        return end;
    }
    let Some(is_bench) = bare::is_measured() else { return ExitCode::SUCCESS };
    let rounds = if is_bench { ROUNDS } else { ROUNDS_OF_A_TEST };
    let before = bare::socket(rounds / 2);
    let mut batches = one_batch_at_a_time(rounds);
    let after = bare::socket(rounds / 2);
    let mut bare: Vec<Duration> = before.into_iter().chain(after).collect();
    bare::print_head("round trip, microseconds");
    bare::print_row("bare socket, two processes, 64 bytes", &mut bare);
    bare::print_row("empty batch: batcher -> worker -> batcher", &mut batches);
    ExitCode::SUCCESS
}

/// A run in which nothing queues: from "batch sent" to "batch done", less the time that the engine takes to bind and run the model.
fn one_batch_at_a_time(rounds: usize) -> Vec<Duration> {
    let dir = tempfile::tempdir().unwrap();
    let workflow = workflow(dir.path(), rounds);
    let (plan, diagnostics) =
        orchestra_launch::plan_file(&workflow, &PlanOptions::default(), &orchestra_launch::machine())
            .unwrap();
    let plan = plan.unwrap_or_else(|| panic!("{}", diagnostics.render(RenderStyle::Plain)));
    let times = Arc::new(Mutex::new(Vec::with_capacity(rounds)));
    // As the command does: what libraries say about themselves is not recorded, and costs nothing.
    let ours = Targets::new().with_target("orchestra_runtime", LevelFilter::DEBUG);
    let layer = Stopwatch { times: Arc::clone(&times), sent: Mutex::default() }.with_filter(ours);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    let launcher = ProcessLauncher {
        program: std::env::current_exe().unwrap(),
        args: vec!["worker".into()],
        env: Vec::new(),
    };
    let options = StartOptions {
        earlier: Earlier::Discard,
        launcher: Some(Arc::new(launcher)),
        ..StartOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let outcome = runtime.block_on(async {
        let run = orchestra_launch::start(plan, options).await.unwrap();
        let_loaders_stand_aside().await;
        run.wait().await
    });
    assert_eq!(outcome.report.items.done, rounds as u64, "{outcome:?}");
    let mut times = times.lock().unwrap();
    assert_eq!(times.len(), rounds, "every batch is seen to be sent and done");
    // The first ones pay for cold caches.
    times.split_off(rounds / 10)
}

/// Lets the threads that decode run only where no other thread wants a core: what is measured is the way of a batch, and not how long the next
/// picture keeps a core from it.
async fn let_loaders_stand_aside() {
    let names = || fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let is_loader =
        |thread: &Path| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "loader\n");
    let loaders = loop {
        let found: Vec<_> = names().filter(|thread| is_loader(thread)).collect();
        if !found.is_empty() {
            break found;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    for loader in loaders {
        let id = loader.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap();
        let no_priority = libc::sched_param { sched_priority: 0 };
        // SAFETY: the pointer is good for the time of the call.
        let done = unsafe { libc::sched_setscheduler(id, libc::SCHED_IDLE, &raw const no_priority) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

fn workflow(folder: &Path, rounds: usize) -> std::path::PathBuf {
    let picture = images::write_picture(folder, 1, SIDE, SIDE, Kind::Png).unwrap();
    let model = models::identity(folder, DType::F32, &[1, 1, 1]).unwrap();
    let picture = picture.file_name().unwrap().to_str().unwrap();
    fs::write(folder.join("items.txt"), format!("{picture}\n").repeat(rounds)).unwrap();
    let flow = WorkflowFile::new()
        .source("pixels", "images", "manifest = 'items.txt'")
        .table("models.identity", format_args!("path = {model:?}\nworkers = 1\nthreads = 1"))
        .gray("pixel", "pixels", [1, 1], "")
        .stage("same", "infer", "pixel", "model = 'identity'\nbatch = { max = 1 }")
        .sink("all", "jsonl", "same")
        .on_cpu()
        .table("limits", "loaders = 1");
    let file = folder.join("workflow.toml");
    fs::write(&file, flow).unwrap();
    file
}

/// Takes the time of every batch from the events that the batcher gives.
struct Stopwatch {
    times: Arc<Mutex<Vec<Duration>>>,
    sent: Mutex<HashMap<String, Instant>>,
}

#[derive(Default)]
struct Fields {
    message: String,
    batch: String,
    /// The engine's time in the worker.
    engine_us: u64,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if ["bind_us", "run_us", "copy_out_us"].contains(&field.name()) {
            self.engine_us += value;
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "batch" => self.batch = format!("{value:?}"),
            _ => {}
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Stopwatch {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let now = Instant::now();
        let mut fields = Fields::default();
        event.record(&mut fields);
        match fields.message.as_str() {
            "batch sent" => drop(self.sent.lock().unwrap().insert(fields.batch, Instant::now())),
            "batch done" => {
                if let Some(sent) = self.sent.lock().unwrap().remove(&fields.batch) {
                    let model = Duration::from_micros(fields.engine_us);
                    self.times.lock().unwrap().push((now - sent).saturating_sub(model));
                }
            }
            _ => {}
        }
    }
}
