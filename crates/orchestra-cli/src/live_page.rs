//! Serves the page of a run or a service while it goes on, and sends browsers the sections that have changed. The output folder is read only while a browser shows the
//! page, for at most a fiftieth of the time. Nothing in it is changed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use axum::Router;
use axum::extract::{Path as PathPart, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use orchestra_core::locked;
use orchestra_launch::RunStatus;
use orchestra_launch::telemetry::metrics::names_this_machine;
use orchestra_report::{RunHistory, RunReport};
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
/// What a model or a graph says of itself, while it is loaded.
pub type StatusOf = dyn Fn() -> Option<RunStatus> + Send + Sync;

/// The page of what this process runs or serves, by a thread of its own.
pub struct LivePage {
    runs: Vec<Arc<ShownRun>>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A run or a service that browsers look at.
struct ShownRun {
    /// The output folder of a run, or the name of a service.
    name: PathBuf,
    origin: ShownOrigin,
    parts: watch::Sender<Arc<PageParts>>,
}

enum ShownOrigin {
    /// With what the run says itself, where it is one of this process.
    Folder(Mutex<Option<Snapshots>>),
    /// With what it has said so far: it has no folder that keeps it.
    Service(Box<StatusOf>, Box<Mutex<RunHistory>>),
}

type ShownRuns = Arc<Vec<Arc<ShownRun>>>;

impl ShownRun {
    fn new(name: &Path, origin: ShownOrigin) -> Arc<Self> {
        let (parts, _) = watch::channel(Arc::default());
        Arc::new(Self { name: name.to_owned(), origin, parts })
    }

    fn of_folder(folder: &Path) -> Arc<Self> {
        Self::new(folder, ShownOrigin::Folder(Mutex::new(None)))
    }

    fn read(&self) -> Result<RunReport, orchestra_report::ReadError> {
        match &self.origin {
            ShownOrigin::Folder(snapshots) => {
                let status = locked(snapshots).as_ref().map(|snapshots| snapshots.borrow().clone());
                orchestra_report::read_live(&self.name, status)
            }
            ShownOrigin::Service(_, history) => {
                Ok(RunReport::of_service(&self.name.to_string_lossy(), locked(history).clone()))
            }
        }
    }

    fn is_shown(&self) -> bool {
        self.parts.receiver_count() > 0
    }

    /// Notes what a service says: nothing else keeps it.
    fn note(&self) {
        if let ShownOrigin::Service(status, history) = &self.origin
            && let Some(status) = status()
        {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            locked(history).note(now.as_secs_f64(), status);
        }
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
    pub fn of_run(address: &str, folder: &Path) -> Result<Self, Failed> {
        Self::start(listen(address)?, vec![ShownRun::of_folder(folder)])
    }

    /// Serves a page for each of what answers requests.
    pub fn of_services<'a>(
        listener: std::net::TcpListener,
        services: impl Iterator<Item = (&'a str, Box<StatusOf>)>,
    ) -> Result<Self, Failed> {
        let service =
            |(name, status)| ShownRun::new(Path::new(name), ShownOrigin::Service(status, Box::default()));
        Self::start(listener, services.map(service).collect())
    }

    fn start(listener: std::net::TcpListener, runs: Vec<Arc<ShownRun>>) -> Result<Self, Failed> {
        let address = listener.local_addr().map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
        let (stop, stopped) = oneshot::channel();
        let shown = runs.clone();
        let thread = thread::Builder::new().name("page".into()).spawn(move || {
            if let Err(error) = serve(listener, shown, async { drop(stopped.await) }) {
                tracing::warn!(%error, "the page is not served any more; everything else goes on");
            }
        });
        let thread = thread.map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
        Ok(Self { runs, address, stop: Some(stop), thread: Some(thread) })
    }

    /// `page at http://..`
    pub fn in_words(&self) -> String {
        in_words(self.address)
    }

    /// The run says itself how far it is.
    pub fn observe(&self, snapshots: Snapshots) {
        self.set(Some(&snapshots));
    }

    fn set(&self, said: Option<&Snapshots>) {
        for run in &self.runs {
            if let ShownOrigin::Folder(snapshots) = &run.origin {
                *locked(snapshots) = said.cloned();
            }
        }
    }
}

impl Drop for LivePage {
    /// Those who look on get the end of the run.
    fn drop(&mut self) {
        self.set(None);
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
    let runs = folders.iter().map(|folder| ShownRun::of_folder(folder)).collect();
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

/// At an address for pages.
pub fn listen(address: &str) -> Result<std::net::TcpListener, Failed> {
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
        let runs = Arc::new(runs);
        let looks: Vec<_> = runs.iter().map(|run| tokio::spawn(look_on(Arc::clone(run)))).collect();
        let routes = Router::new()
            .route("/", get(first_page))
            .route("/events", get(|runs| events(runs, PathPart(0))))
            .route("/run/{n}/", get(page_of))
            .route("/run/{n}/events", get(events))
            .with_state(Arc::clone(&runs));
        let routes = if is_loopback { routes.layer(from_fn(this_machine_alone)) } else { routes };
        let server = axum::serve(TcpListener::from_std(listener)?, routes);
        tokio::select! {
            ended = server => return ended,
            () = stop => {}
        }
        looks.iter().for_each(tokio::task::JoinHandle::abort);
        let last: Vec<_> = runs.iter().filter(|run| run.is_shown()).map(Arc::clone).collect();
        let said = tokio::task::spawn_blocking(move || last.iter().for_each(|run| run.look()));
        drop(tokio::time::timeout(PATIENCE, said).await);
        if runs.iter().any(|run| run.is_shown()) {
            tokio::time::sleep(TO_BE_SENT).await;
        }
        Ok(())
    });
    runtime.shutdown_timeout(PATIENCE);
    served
}

/// Reads what a run has written again and again while a browser shows its page.
async fn look_on(run: Arc<ShownRun>) {
    loop {
        let began = Instant::now();
        run.note();
        if run.is_shown() {
            let run = Arc::clone(&run);
            drop(tokio::task::spawn_blocking(move || run.look()).await);
        }
        tokio::time::sleep(LOOK_EVERY.max(began.elapsed() * TIMES_A_LOOK)).await;
    }
}

/// Only this machine can ask, by its address or as `localhost`: a page of another host that has its name lead here is refused.
async fn this_machine_alone(request: Request, next: Next) -> Response {
    match names_this_machine(request.headers(), request.uri()) {
        true => next.run(request).await,
        false => StatusCode::FORBIDDEN.into_response(),
    }
}

async fn first_page(runs: State<ShownRuns>) -> Response {
    if runs.len() == 1 {
        return page_of(runs, PathPart(0)).await;
    }
    let list = tokio::task::spawn_blocking(move || {
        let read =
            runs.iter().enumerate().map(|(n, run)| (format!("run/{n}/"), run.name.clone(), run.read().ok()));
        orchestra_report::list_page(read.collect())
    });
    answer(list.await.ok())
}

async fn page_of(runs: State<ShownRuns>, PathPart(n): PathPart<usize>) -> Response {
    let Some(run) = runs.get(n).cloned() else { return StatusCode::NOT_FOUND.into_response() };
    let page = tokio::task::spawn_blocking(move || match run.read() {
        Ok(report) => orchestra_report::live_page(&report),
        Err(_) => orchestra_report::live_page(&RunReport::default()),
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
async fn events(runs: State<ShownRuns>, PathPart(n): PathPart<usize>) -> Response {
    let Some(run) = runs.get(n) else { return StatusCode::NOT_FOUND.into_response() };
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
