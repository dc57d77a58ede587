//! Serves the page of a run while it goes on, and sends browsers the sections that have changed. The output folder is read only while a browser shows the
//! page, for at most a fiftieth of the time. Nothing in it is changed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use axum::Router;
use axum::extract::{Path as PathPart, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use orchestra_core::locked;
use orchestra_launch::RunStatus;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use crate::Failed;
use crate::args::PageArgs;
use crate::exit_code::ExitCode;
use crate::signals::Signals;
use crate::stderr;

/// Between two looks at a folder, and how many times as long as a look takes: at most a fiftieth of a core is spent on it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const TIMES_A_LOOK: u32 = 50;
/// How long the end of a run waits for browsers to take what is left.
const PATIENCE: Duration = Duration::from_secs(2);
const TO_BE_SENT: Duration = Duration::from_millis(200);

type Snapshots = watch::Receiver<RunStatus>;
type PageParts = BTreeMap<&'static str, String>;

/// The page of the run of this process, served by a thread of its own.
pub struct LivePage {
    run: Arc<ShownRun>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A run that browsers look at.
struct ShownRun {
    folder: PathBuf,
    /// What it says itself, where it is one of this process.
    snapshots: Mutex<Option<Snapshots>>,
    parts: watch::Sender<Arc<PageParts>>,
}

#[derive(Clone)]
struct ShownRuns {
    runs: Arc<Vec<Arc<ShownRun>>>,
    /// Only this machine can ask, by its address or as `localhost`: a page of another host that has its name lead here is refused.
    is_loopback: bool,
}

impl ShownRun {
    fn new(folder: &Path) -> Arc<Self> {
        let (parts, _) = watch::channel(Arc::default());
        Arc::new(Self { folder: folder.to_owned(), snapshots: Mutex::new(None), parts })
    }

    fn read(&self) -> Result<orchestra_report::RunReport, orchestra_report::ReadError> {
        let snapshots = locked(&self.snapshots);
        let status = snapshots.as_ref().map(|snapshots| snapshots.borrow().clone());
        drop(snapshots);
        orchestra_report::read_live(&self.folder, status)
    }

    /// Tells those who look on what has changed. Blocks.
    fn look(&self) {
        if let Ok(report) = self.read() {
            let parts = Arc::new(orchestra_report::parts(&report));
            self.parts.send_if_modified(|known| {
                let is_new = *known != parts;
                *known = parts;
                is_new
            });
        }
    }
}

impl LivePage {
    /// Serves the page of the run in `folder`, which may not have begun.
    pub fn start(address: &str, folder: &Path) -> Result<Self, Failed> {
        let run = ShownRun::new(folder);
        let listener = listen(address)?;
        let address = listener.local_addr().map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
        let (stop, stopped) = oneshot::channel();
        let runs = vec![Arc::clone(&run)];
        let thread = thread::Builder::new().name("page".into()).spawn(move || {
            if let Err(error) = serve(listener, runs, async { drop(stopped.await) }) {
                tracing::warn!(%error, "the page of the run is not served any more; the run goes on");
            }
        });
        let thread = thread.map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
        Ok(Self { run, address, stop: Some(stop), thread: Some(thread) })
    }

    /// `page at http://..`
    pub fn in_words(&self) -> String {
        in_words(self.address)
    }

    /// The run says itself how far it is.
    pub fn observe(&self, snapshots: Snapshots) {
        *locked(&self.run.snapshots) = Some(snapshots);
    }
}

impl Drop for LivePage {
    /// Those who look on get the end of the run.
    fn drop(&mut self) {
        *locked(&self.run.snapshots) = None;
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// `orchestra page`: the run in a folder, or those in the folders below it, until it is told to end.
pub fn page(args: &PageArgs) -> Result<ExitCode, Failed> {
    let folders = folders_of(&args.output)?;
    let listener = listen(&args.listen)?;
    let address = listener.local_addr().map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    stderr::say_line(&format!("{} (Ctrl-C ends it)", in_words(address)));
    let runs = folders.iter().map(|folder| ShownRun::new(folder)).collect();
    let stop = async {
        match Signals::caught() {
            Ok(mut signals) => signals.next().await,
            Err(error) => tracing::error!(%error, "signals cannot be caught"),
        }
    };
    serve(listener, runs, stop).map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    Ok(ExitCode::Done)
}

/// The folder itself where it holds a run, else those below it that do.
fn folders_of(folder: &Path) -> Result<Vec<PathBuf>, Failed> {
    let holds_run = |folder: &Path| folder.join(".orchestra").is_dir();
    if holds_run(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read `{}`", folder.display()))
        .map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let below = entries.flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> =
        below.flat_map(|folder| [folder.join("out"), folder]).filter(|folder| holds_run(folder)).collect();
    folders.sort();
    if folders.is_empty() {
        let what = anyhow!(
            "`{}` holds no run, and no folder in it does: name the output folder of a run",
            folder.display()
        );
        return Err(Failed::new(ExitCode::Usage, what));
    }
    Ok(folders)
}

fn in_words(address: SocketAddr) -> String {
    let readers = if address.ip().is_loopback() { "" } else { ", which other machines can read" };
    format!("page at http://{address}/{readers}")
}

fn listen(address: &str) -> Result<std::net::TcpListener, Failed> {
    let listener = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener
        .with_context(|| {
            format!("cannot listen at `{address}`, which is to be HOST:PORT with a port that is free")
        })
        .map_err(|error| Failed::new(ExitCode::TryAgain, error))
}

/// Serves until `stop` is ready, and then says the last that there is to say.
fn serve(
    listener: std::net::TcpListener,
    runs: Vec<Arc<ShownRun>>,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let is_loopback = listener.local_addr()?.ip().is_loopback();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    let served = runtime.block_on(async {
        let runs = ShownRuns { runs: Arc::new(runs), is_loopback };
        let looks: Vec<_> = runs.runs.iter().map(|run| tokio::spawn(look_on(Arc::clone(run)))).collect();
        let routes = Router::new()
            .route("/", get(first_page))
            .route("/events", get(|runs, headers| events(runs, PathPart(0), headers)))
            .route("/run/{n}/", get(page_of))
            .route("/run/{n}/events", get(events))
            .with_state(runs.clone());
        let server = axum::serve(TcpListener::from_std(listener)?, routes);
        tokio::select! {
            ended = server => return ended,
            () = stop => {}
        }
        looks.iter().for_each(tokio::task::JoinHandle::abort);
        let last: Vec<_> =
            runs.runs.iter().filter(|run| run.parts.receiver_count() > 0).map(Arc::clone).collect();
        let said = tokio::task::spawn_blocking(move || last.iter().for_each(|run| run.look()));
        drop(tokio::time::timeout(PATIENCE, said).await);
        if runs.runs.iter().any(|run| run.parts.receiver_count() > 0) {
            tokio::time::sleep(TO_BE_SENT).await;
        }
        Ok(())
    });
    runtime.shutdown_timeout(PATIENCE);
    served
}

/// Reads the output folder of a run again and again while a browser shows its page.
async fn look_on(run: Arc<ShownRun>) {
    loop {
        let began = Instant::now();
        if run.parts.receiver_count() > 0 {
            let run = Arc::clone(&run);
            drop(tokio::task::spawn_blocking(move || run.look()).await);
        }
        tokio::time::sleep(LOOK_EVERY.max(began.elapsed() * TIMES_A_LOOK)).await;
    }
}

impl ShownRuns {
    fn refuses(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let name = host.parse::<SocketAddr>().map(|address| address.ip().to_string());
        let name = name.unwrap_or_else(|_| host.split(':').next().unwrap_or_default().to_owned());
        self.is_loopback && name != "localhost" && name.parse::<IpAddr>().is_err()
    }
}

async fn first_page(runs: State<ShownRuns>, headers: HeaderMap) -> Response {
    if runs.runs.len() == 1 {
        return page_of(runs, PathPart(0), headers).await;
    }
    if runs.refuses(&headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let list = tokio::task::spawn_blocking(move || {
        let read = runs
            .runs
            .iter()
            .enumerate()
            .map(|(n, run)| (format!("run/{n}/"), run.folder.clone(), run.read().ok()));
        orchestra_report::list_page(read.collect())
    });
    answer(list.await.ok())
}

async fn page_of(runs: State<ShownRuns>, PathPart(n): PathPart<usize>, headers: HeaderMap) -> Response {
    if runs.refuses(&headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let Some(run) = runs.runs.get(n).cloned() else { return StatusCode::NOT_FOUND.into_response() };
    let page = tokio::task::spawn_blocking(move || match run.read() {
        Ok(report) => orchestra_report::live_page(&report),
        Err(_) => orchestra_report::live_page(&orchestra_report::RunReport::default()),
    });
    answer(page.await.ok())
}

fn answer(page: Option<String>) -> Response {
    match page {
        Some(page) => ([(header::CACHE_CONTROL, "no-store")], Html(page)).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// What changes of a page, part by part, until the run or the browser is gone.
async fn events(runs: State<ShownRuns>, PathPart(n): PathPart<usize>, headers: HeaderMap) -> Response {
    if runs.refuses(&headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let Some(run) = runs.runs.get(n) else { return StatusCode::NOT_FOUND.into_response() };
    let known = (run.parts.subscribe(), Arc::<PageParts>::default());
    let events = stream::unfold(known, |(mut parts, known)| async move {
        parts.changed().await.ok()?;
        let now = Arc::clone(&parts.borrow_and_update());
        let changed: PageParts = now
            .iter()
            .filter(|(id, html)| known.get(*id) != Some(html))
            .map(|(id, html)| (*id, html.clone()))
            .collect();
        // On one line, as JSON is.
        let event = Event::default().data(serde_json::to_string(&changed).ok()?);
        Some((Ok::<_, Infallible>(event), (parts, now)))
    });
    Sse::new(events).into_response()
}
