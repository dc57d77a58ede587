//! What a request costs besides the model: `infer` and `process` beside a bare `session.run` in this process and a round trip over a socket between two
//! processes; many callers beside a bare loop over full batches; and the memory of requests that wait. All are measured in turns.
//!
//! `cargo bench -p orchestra --bench requests`. Prints tables; judges nothing. With the tests it runs too, a few rounds only.

#![allow(clippy::unwrap_used, reason = "a benchmark ends at the first surprise")]

mod bare;

use std::fs;
use std::future::IntoFuture as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::{join_all, poll_immediate};
use orchestra::{DType, Flow, Item, Model, Orchestra, Tensor, Workflow};
use orchestra_launch::library::{Env, Flavor, LibraryRequest, Silent, find_or_fetch};
use orchestra_testkit::models;
use ort::environment::Environment;
use ort::session::Session;

/// How much is measured.
struct Amount {
    /// Turns of each comparison.
    turns: usize,
    /// Requests of a turn.
    rounds: usize,
    /// How long a turn of many callers takes.
    lasts: Duration,
    waiting: usize,
}

const BENCH: Amount = Amount { turns: 5, rounds: 2_000, lasts: Duration::from_secs(2), waiting: 50_000 };
/// Measures nothing.
const TEST: Amount = Amount { turns: 1, rounds: 20, lasts: Duration::from_millis(20), waiting: 100 };
/// Two full batches: while the one runs, those who have had answers of the other ask again.
const CALLERS: usize = 2 * BATCH;
/// Rows of a full batch, the default for small rows on a CPU.
const BATCH: usize = 32;
/// Numbers of a row of the tiny model.
const TINY: usize = 16;
/// A row of the model `digits`.
const DIGIT: [usize; 3] = [1, 32, 32];
/// Numbers of a row of the slow model.
const SLOW: usize = 16;

fn main() -> ExitCode {
    orchestra::run_if_worker();
    if let Some(end) = bare::echo() {
        return end;
    }
    let Some(is_bench) = bare::is_measured() else { return ExitCode::SUCCESS };
    let amount = if is_bench { BENCH } else { TEST };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let orchestra = Orchestra::builder().build().await.unwrap();
        let environment = environment();
        one_caller(&amount, folder.path(), &orchestra, &environment).await;
        many_callers(&amount, &orchestra, &environment).await;
        waiting(&amount, folder.path(), &orchestra).await;
    });
    ExitCode::SUCCESS
}

async fn model(orchestra: &Orchestra, file: &Path, queue: usize) -> Model {
    let model = orchestra.model(file).devices(["cpu"]).workers(1).max_batch(BATCH).queue(queue);
    model.set("models.model.threads", 1).start().await.unwrap()
}

/// A graph of the model alone.
async fn graph(orchestra: &Orchestra, file: &Path) -> Flow {
    let text = format!(
        "version = 1\n[sources.rows]\nkind = \"request\"\ncolumns = {{ x = \"f32[{TINY}]\" }}\n\
         [models.model]\npath = {file:?}\nworkers = 1\nthreads = 1\n\
         [stages.model]\nkind = \"infer\"\nfrom = \"rows\"\nmodel = \"model\"\nbatch = {{ max = {BATCH}, wait = \"0ms\" }}\n\
         [sinks.all]\nkind = \"reply\"\nfrom = \"model\"\n[devices]\nuse = [\"cpu\"]\n"
    );
    let workflow = Workflow::parse(text, file.parent().unwrap()).unwrap();
    orchestra.flow(workflow).start().await.unwrap()
}

/// ONNX Runtime in this process, which has one environment.
fn environment() -> Environment {
    let request = LibraryRequest { flavor: Flavor::Cpu, explicit: None, offline: false };
    let library = find_or_fetch(&request, &Env::from_process(), &mut Silent).unwrap();
    ort::init_from(&library.path).unwrap().with_name("bench").with_telemetry(false).build().unwrap()
}

/// The model in this process, on one thread, as a worker has it.
fn session(environment: &Environment, file: &Path) -> Session {
    let builder = Session::builder(environment).unwrap();
    builder.with_intra_threads(1).unwrap().commit_from_file(file).unwrap()
}

async fn one_caller(amount: &Amount, folder: &Path, orchestra: &Orchestra, environment: &Environment) {
    let file = models::identity(folder, DType::F32, &[TINY]).unwrap();
    let (mut session, model) = (session(environment, &file), model(orchestra, &file, 1024).await);
    let graph = graph(orchestra, &file).await;
    let row = || vec![1.0_f32; TINY];
    let [mut sockets, mut runs, mut infers, mut processes] = [const { Vec::new() }; 4];
    for _ in 0..amount.turns {
        sockets.extend(bare::socket(amount.rounds));
        for _ in 0..amount.rounds {
            let x = ort::value::Tensor::from_array(([1, TINY], row())).unwrap();
            let start = Instant::now();
            drop(session.run(ort::inputs![x]).unwrap());
            runs.push(start.elapsed());
        }
        for _ in 0..amount.rounds {
            let x = Tensor::new([1, TINY], row()).unwrap();
            let start = Instant::now();
            drop(model.infer(x).await.unwrap());
            infers.push(start.elapsed());
        }
        for _ in 0..amount.rounds {
            let x = Tensor::new([TINY], row()).unwrap();
            let start = Instant::now();
            drop(graph.process(Item::columns([("x", x.into())])).await.unwrap());
            processes.push(start.elapsed());
        }
    }
    bare::print_head("one caller, 16 numbers, microseconds");
    let socket = bare::print_row("bare socket, two processes, 64 bytes", &mut sockets);
    let run = bare::print_row("session.run in this process", &mut runs);
    let infer = bare::print_row("Model::infer", &mut infers);
    let process = bare::print_row("Flow::process of the model alone", &mut processes);
    let times = |of: f64| (of - run) / socket;
    println!("added to session.run: infer {:.2}, process {:.2} round trips\n", times(infer), times(process));
    model.drain().await;
    graph.drain().await;
}

/// The model of the digits, as the repository has it.
fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/digits.onnx")
}

async fn many_callers(amount: &Amount, orchestra: &Orchestra, environment: &Environment) {
    let (mut session, model) = (session(environment, &digits()), model(orchestra, &digits(), 1024).await);
    let mut ratios = Vec::new();
    println!("{CALLERS} callers, rows of `digits` per second");
    for _ in 0..amount.turns {
        let limit = full_batches(&mut session, amount.lasts);
        let rate = rows_of_callers(&model, amount.lasts).await;
        println!("bare loop over batches of {BATCH}: {limit:.0}, callers: {rate:.0}");
        ratios.push(rate / limit);
    }
    ratios.sort_by(|a, b| a.partial_cmp(b).unwrap());
    println!("median of callers / bare loop: {:.3}\n", ratios[ratios.len() / 2]);
    model.drain().await;
}

/// Rows per second of a loop that does nothing else.
fn full_batches(session: &mut Session, lasts: Duration) -> f64 {
    let pixels = || vec![0.5_f32; BATCH * DIGIT.iter().product::<usize>()];
    let [channels, height, width] = DIGIT;
    let (start, mut n_rows) = (Instant::now(), 0);
    while start.elapsed() < lasts {
        let x = ort::value::Tensor::from_array(([BATCH, channels, height, width], pixels())).unwrap();
        drop(session.run(ort::inputs![x]).unwrap());
        n_rows += BATCH;
    }
    n_rows as f64 / start.elapsed().as_secs_f64()
}

/// Rows per second of callers of one row each.
async fn rows_of_callers(model: &Model, lasts: Duration) -> f64 {
    let (is_over, n_rows) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers = (0..CALLERS).map(|_| {
        let (model, is_over, n_rows) = (model.clone(), Arc::clone(&is_over), Arc::clone(&n_rows));
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let pixels = vec![0.5_f32; DIGIT.iter().product()];
                let x = Tensor::new([&[1], &DIGIT[..]].concat(), pixels).unwrap();
                drop(model.infer(x).await.unwrap());
                n_rows.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let (start, callers) = (Instant::now(), callers.collect::<Vec<_>>());
    tokio::time::sleep(lasts).await;
    is_over.store(true, Ordering::Relaxed);
    let rate = n_rows.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    join_all(callers).await;
    rate
}

/// Memory of this program that no file holds.
fn held_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Requests that all are asked before any can have its answer, with a place and without one.
async fn waiting(amount: &Amount, folder: &Path, orchestra: &Orchestra) {
    let file = models::slow(folder, SLOW, 2_000).unwrap();
    println!("bytes of a waiting request of {SLOW} numbers, {} at once", amount.waiting);
    let models = [model(orchestra, &file, amount.waiting).await, model(orchestra, &file, 1).await];
    // None is given back before the end: freed memory would serve the next requests, and count for nothing.
    let mut asked = Vec::with_capacity(2 * amount.waiting);
    for (name, model) in ["with a place", "waiting for one"].into_iter().zip(&models) {
        let before = held_bytes();
        for _ in 0..amount.waiting {
            let x = Tensor::new([1, SLOW], vec![1.0_f32; SLOW]).unwrap();
            let mut one = Box::pin(model.infer(x).wait().into_future());
            drop(poll_immediate(&mut one).await);
            asked.push(one);
        }
        let grown = held_bytes().saturating_sub(before);
        println!("{name:<52} {:>9}", grown / amount.waiting as u64);
    }
    drop(asked);
    for model in &models {
        model.drain().await;
    }
}
