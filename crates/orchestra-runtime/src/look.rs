//! Looks into files of sources in a loader process, for the list of a run and for a plan: what others made is opened there alone. It opens no
//! file.

mod script;

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use orchestra_core::blame::{LoaderBlame, LoaderDeathOutcome};
use orchestra_core::shapes::{KindSettings, Network};
use orchestra_core::{FailureKind, SandboxMode, WorkerExit, locked};
use orchestra_plan::{Limits, LookInto, LookRequest, SourcePlan};
use orchestra_store::{Expand, Found, ListError, PassedOverCounts, PushFound};
use orchestra_worker::loader::LoaderRegion;
use orchestra_worker::loader::events::{FoundBlock, FromLoader, LookSpec, ToLoader};

use self::script::ListsByScript;
use crate::child::spawn::ProcessLauncher;
use crate::context::Timeouts;
use crate::flow::loader::child::LoaderChild;
use crate::flow::loader::{LostLoader, ReadablePlaces};

/// Bytes of memory that a process may take to look into a file: directories of archives and footers of tables, not what lies behind them.
const MEMORY: u64 = 256 << 20;
/// So many times `limits.item_timeout` a process may read a file without finding anything: it may have to read all of it.
const PATIENCE: u32 = 10;
/// And no less: it may share its cores with all of the run.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// How often the list is told that a process that finds nothing is still at it.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// After a process that could not be started.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer for a plan may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What lists the items of a source: a process of its script; or for its files a loader process, where its kind can be made again there and `loaders` start
/// such processes.
pub fn expand_of(
    source: &SourcePlan,
    limits: &Limits,
    loaders: Option<&ProcessLauncher>,
) -> Option<Arc<dyn Expand>> {
    if let Some(lists) = ListsByScript::of(source, limits, loaders) {
        return Some(Arc::new(lists));
    }
    let expand = source.expand.as_ref()?;
    let (Some(look), Some(launcher)) = (expand.to_wire(), loaders) else { return Some(Arc::clone(expand)) };
    let network = source.fetch.network();
    let looker = Looker::new(launcher, look, network.as_ref(), limits.sandbox);
    let readable = ReadablePlaces::new(source.fetch.opens(), &source.listing, &source.sandbox_read);
    Some(Arc::new(ListsInLoader {
        expand: Arc::clone(expand),
        looker,
        readable,
        patience: patience_of(limits),
        open: Mutex::default(),
    }))
}

/// How long a process that lists may find nothing, and a script may take with a part.
pub(crate) fn patience_of(limits: &Limits) -> Duration {
    limits.item_timeout.saturating_mul(PATIENCE).max(LEAST_PATIENCE)
}

/// Looks into files in processes of this program.
#[derive(Debug)]
pub struct LooksInLoader {
    pub launcher: ProcessLauncher,
}

impl LookInto for LooksInLoader {
    fn look(&self, request: &LookRequest<'_>) -> Result<Vec<u8>, ListError> {
        // The caller may be in a runtime, where no process may be waited for.
        let looking = || self.look_from_here(request);
        let looked = thread::scope(|scope| scope.spawn(looking).join());
        looked.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl LooksInLoader {
    fn look_from_here(&self, request: &LookRequest<'_>) -> Result<Vec<u8>, ListError> {
        let LookRequest { question, file, network, sandbox } = *request;
        let looker = Looker::new(&self.launcher, question.clone(), network, sandbox);
        let place = file.canonicalize().ok().map(|file| file.as_os_str().as_bytes().to_vec());
        let mut blame = LoaderBlame::default();
        loop {
            let answered = looker.start(place.iter().cloned().collect()).and_then(|mut process| {
                let file = file.as_os_str().as_bytes().to_vec();
                let answer = process
                    .write(&ToLoader::Describe { file })
                    .and_then(|()| process.receive_within(Instant::now() + ANSWER_WITHIN))
                    .and_then(|frame| match frame {
                        Some(FromLoader::Described(answer)) => Ok(answer),
                        Some(_) => Err(process.garbled("a frame that is no answer")),
                        None => Err(process.end(WorkerExit::Hung)),
                    });
                answer.map_err(|lost| LoaderDeath { lost, has_begun: true })
            });
            match answered {
                Ok(answer) => return answer.map_err(|error| error.of(file)),
                Err(death) => looker.died(file, &mut blame, &death, ANSWER_WITHIN)?,
            }
        }
    }
}

/// How its processes are started.
struct Looker {
    launcher: ProcessLauncher,
    spec: LookSpec,
    /// What it reads to reach objects.
    files: Vec<Vec<u8>>,
    handshake: Duration,
}

/// The end of a process, and whether it had begun with the file, or with the list of a script.
struct LoaderDeath {
    lost: LostLoader,
    has_begun: bool,
}

impl LoaderDeath {
    /// What is to be done. The next process is not started at once where this one could not be.
    fn outcome(&self, blame: &mut LoaderBlame) -> LoaderDeathOutcome {
        let outcome = blame.died(&self.lost.exit, false, self.has_begun.then_some(0));
        if matches!(outcome, LoaderDeathOutcome::Retry | LoaderDeathOutcome::RetryWithAllMemory)
            && !self.has_begun
        {
            thread::sleep(PAUSE);
        }
        outcome
    }
}

impl fmt::Debug for Looker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looker").field("kind", &self.spec.look.kind).finish_non_exhaustive()
    }
}

impl Looker {
    fn new(
        launcher: &ProcessLauncher,
        look: KindSettings,
        network: Option<&Network>,
        sandbox: SandboxMode,
    ) -> Self {
        let files = network.iter().flat_map(|network| &network.files);
        Self {
            launcher: launcher.clone().with_network(network),
            files: files.map(|file| file.as_os_str().as_bytes().to_vec()).collect(),
            spec: LookSpec {
                look,
                sandbox,
                readable: Vec::new(),
                network: network.is_some(),
                memory: MEMORY,
            },
            handshake: Timeouts::default().handshake,
        }
    }

    /// Starts a process that may read these files and folders.
    fn start(&self, mut readable: Vec<Vec<u8>>) -> Result<LoaderChild, LoaderDeath> {
        let failed =
            |error: std::io::Error| LoaderDeath { lost: LostLoader::not_started(&error), has_begun: false };
        readable.extend(self.files.iter().cloned());
        // It needs none, and what starts loaders hands one over.
        let region = LoaderRegion::new(0).map_err(failed)?;
        let (mut process, _) = LoaderChild::launch(&self.launcher, region.fd()).map_err(failed)?;
        let spec = LookSpec { readable, ..self.spec.clone() };
        let ready = process.handshake(&ToLoader::Look(Box::new(spec)), self.handshake);
        ready.map(|()| process).map_err(|lost| LoaderDeath { lost, has_begun: false })
    }

    /// What the end of a process means for the file that it looked into: `Ok`, another one tries again.
    fn died(
        &self,
        file: &Path,
        blame: &mut LoaderBlame,
        death: &LoaderDeath,
        patience: Duration,
    ) -> Result<(), ListError> {
        let lost = &death.lost;
        let path = file.display();
        tracing::warn!(file = %path, exit = %lost.exit, last_words = %lost.last_words, "a loader that looked into a file is gone");
        let kind = match death.outcome(blame) {
            LoaderDeathOutcome::Retry | LoaderDeathOutcome::RetryWithAllMemory => return Ok(()),
            LoaderDeathOutcome::GiveUp => {
                let reason = format!("no loader can be started: {}", lost.why_none(&self.launcher));
                return Err(ListError::NoProcess { path: file.to_owned(), reason });
            }
            LoaderDeathOutcome::Confirmed(kind, tries) => (kind, tries),
        };
        let reason = match kind {
            (FailureKind::Timeout, _) => format!(
                "nothing was found in it for {} s; leave it out, or raise `limits.item_timeout`, of which a file has {PATIENCE} times as much",
                patience.as_secs_f64()
            ),
            _ if lost.no_memory() => format!(
                "to look into it takes more than the {} MiB that a loader may take for that{}; leave it out, or write it as several files",
                MEMORY >> 20,
                lost.words()
            ),
            (_, tries) => format!(
                "it ended {tries} loaders that looked into it, the last one {}{}; leave it out, or make it anew",
                lost.exit,
                lost.words()
            ),
        };
        Err(ListError::bad_file(file, reason))
    }
}

/// Lists the files of a source, one after the other, in a process that it starts with the first of them.
#[derive(Debug)]
struct ListsInLoader {
    expand: Arc<dyn Expand>,
    looker: Looker,
    readable: ReadablePlaces,
    /// How long a process may find nothing.
    patience: Duration,
    open: Mutex<Option<OpenLoader>>,
}

/// A process, and how many places it may read.
struct OpenLoader {
    process: LoaderChild,
    n_places: usize,
}

impl fmt::Debug for OpenLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenLoader").field("pid", &self.process.pid).finish_non_exhaustive()
    }
}

impl Expand for ListsInLoader {
    fn expand(&self, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        self.expand_unless(None, file, push)
    }

    fn expand_unless(&self, known: Option<u64>, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let mut open = locked(&self.open);
        let (mut blame, mut pushed) = (LoaderBlame::default(), Pushed::default());
        loop {
            let before = pushed.items;
            // Of another process, which goes on where the last one died.
            let known = known.filter(|_| pushed.version.is_none());
            match self.list(&mut open, known, file, &mut pushed, push) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    // It may be in the middle of the file.
                    *open = None;
                    return Err(error);
                }
                Err(death) => {
                    *open = None;
                    if pushed.items > before {
                        blame.loaded(0);
                    }
                    self.looker.died(file, &mut blame, &death, self.patience)?;
                }
            }
        }
    }

    fn file_of<'a>(&self, locator: &'a Path) -> &'a Path {
        self.expand.file_of(locator)
    }

    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        self.expand.has_changed(before, now)
    }
}

/// What a file was found to hold so far, by all processes that have listed it: the next one finds it again, in the same order.
#[derive(Default)]
struct Pushed {
    items: u64,
    passed_over: PassedOverCounts,
    version: Option<u64>,
}

impl ListsInLoader {
    /// Has a process list a file. The outer error is its death.
    fn list(
        &self,
        open: &mut Option<OpenLoader>,
        known: Option<u64>,
        file: &Path,
        pushed: &mut Pushed,
        push: PushFound<'_>,
    ) -> Result<Result<(), ListError>, LoaderDeath> {
        // What an item leads to is found out by its path, and nothing that a process says.
        if open.as_ref().is_none_or(|open| self.readable.add_for_file(file, open.n_places)) {
            *open = None;
            self.readable.add_for_file(file, 0);
            let readable = self.readable.as_bytes();
            let n_places = readable.len();
            *open = Some(OpenLoader { process: self.looker.start(readable)?, n_places });
        }
        let Some(OpenLoader { process, .. }) = open else { return Ok(Err(ListError::Stopped)) };
        let died = |lost| LoaderDeath { lost, has_begun: true };
        let asked = process.write(&ToLoader::List { file: file.as_os_str().as_bytes().to_vec(), known });
        asked.map_err(died)?;
        let (mut heard, mut heard_at) = (Pushed::default(), Instant::now());
        loop {
            match process.receive_within(Instant::now() + TELL_EVERY) {
                Ok(Some(FromLoader::Found(block))) => {
                    heard_at = Instant::now();
                    match pushed.take(file, &block, &mut heard, push) {
                        Some(Ok(())) => {}
                        Some(Err(error)) => return Ok(Err(error)),
                        None => return Err(died(process.garbled("items that lie in no file"))),
                    }
                    // What it says while the list is written does not count as silence.
                    heard_at = heard_at.max(Instant::now());
                }
                Ok(Some(FromLoader::Listed(listed))) => return Ok(listed.map_err(|error| error.of(file))),
                Ok(Some(FromLoader::Refused { class, error })) => {
                    let lost = process.end(WorkerExit::LoadFailed { class, why: error });
                    return Err(LoaderDeath { lost, has_begun: false });
                }
                Ok(Some(_)) => return Err(died(process.garbled("a frame out of order"))),
                Ok(None) if heard_at.elapsed() >= self.patience => {
                    return Err(died(process.end(WorkerExit::Hung)));
                }
                Ok(None) => {
                    if let Err(error) = push(Found::Nothing) {
                        return Ok(Err(error));
                    }
                }
                Err(lost) => return Err(died(lost)),
            }
        }
    }
}

impl Pushed {
    /// Pushes what is new in a block of a process from which `heard` came before it; `None`: the block makes no sense.
    fn take(
        &mut self,
        file: &Path,
        block: &FoundBlock,
        heard: &mut Pushed,
        push: PushFound<'_>,
    ) -> Option<Result<(), ListError>> {
        if let Some(version) = block.version
            && self.version.replace(version) != Some(version)
            && let Err(error) = push(Found::Version(version))
        {
            return Some(Err(error));
        }
        let taken = block.each(file, |name, locator| {
            heard.items += 1;
            if heard.items <= self.items {
                return Ok(());
            }
            self.items = heard.items;
            push(Found::Item(name, locator))
        })?;
        if taken.is_err() {
            return Some(taken);
        }
        heard.passed_over = heard.passed_over.and(block.passed_over);
        for (reason, n) in heard.passed_over.iter() {
            let new = n.saturating_sub(self.passed_over.of(reason));
            if new > 0 {
                self.passed_over.add(reason, new);
                if let Err(error) = push(Found::PassedOver(reason, new)) {
                    return Some(Err(error));
                }
            }
        }
        Some(Ok(()))
    }
}
