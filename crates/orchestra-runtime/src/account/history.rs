//! Writes the history of a run in its output folder: a line of JSON for each start, worker, lost device and end, and the status in between, ten times
//! a second at first. A longer run is seen less often: statuses are bounded in number, and nothing else is left out. No start and no decision reads it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use orchestra_machine::MachineUse;
use orchestra_plan::Plan;
use orchestra_store::{OutputFolder, write_atomic};
use serde::Deserialize;

use crate::account::history_line::{HISTORY, HistoryEvent, HistoryLine, PlannedRun};
use crate::account::status::RunStatus;
use crate::context::RunContext;
use crate::events::EventHook;
use crate::panics::caught;

/// Statuses in the file: a megabyte for most workflows.
const MOST_STATUSES: usize = 512;
const EVERY: Duration = Duration::from_millis(100);
/// A file that is larger was not written here, and is begun anew.
const LARGEST: u64 = 256 << 20;

/// The thread that writes the history of a run. Dropping it ends the thread.
pub struct HistoryWriter {
    events: Sender<Option<HistoryEvent>>,
    thread: Option<JoinHandle<()>>,
}

/// What happens, on its way to the thread.
pub struct HistoryEvents {
    to: Sender<Option<HistoryEvent>>,
    from: Receiver<Option<HistoryEvent>>,
}

impl HistoryEvents {
    pub fn new() -> Self {
        let (to, from) = channel();
        Self { to, from }
    }

    /// A hook that notes what happens to workers, and tells this one.
    pub fn hook(&self, plan: &Arc<Plan>, next: Option<EventHook>) -> EventHook {
        let (to, plan) = (self.to.clone(), Arc::clone(plan));
        Arc::new(move |event| {
            if let Some(event) = HistoryEvent::of(event, &plan) {
                drop(to.send(Some(event)));
            }
            if let Some(next) = &next {
                next(event);
            }
        })
    }
}

impl HistoryWriter {
    /// Goes on with the history of the folder. Where that cannot be written, a warning says so, and the run goes on.
    pub fn start(context: &Arc<RunContext>, HistoryEvents { to, from }: HistoryEvents) -> Self {
        let context = Arc::clone(context);
        let write = move || {
            let written =
                caught("writing the history", || HistoryFile::open(&context)?.write(&context, &from));
            if let Err(error) = written.unwrap_or_else(|bug| Err(io::Error::other(bug))) {
                tracing::warn!(%error, "the history of the run is not written any more; its results are");
            }
        };
        let thread = thread::Builder::new().name("history".into()).spawn(write);
        let thread =
            thread.inspect_err(|error| tracing::warn!(%error, "the history of the run is not written"));
        Self { events: to, thread: thread.ok() }
    }

    pub fn end(self, exit_code: i32) {
        drop(self.events.send(Some(HistoryEvent::End { exit_code })));
    }
}

impl Drop for HistoryWriter {
    /// Nothing writes to the folder any more when this returns: it may belong to the next run by then.
    fn drop(&mut self) {
        drop(self.events.send(None));
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // What it panics of is caught.
        }
    }
}

struct HistoryFile {
    path: PathBuf,
    file: File,
    n_statuses: usize,
    /// Between two statuses.
    every: Duration,
}

impl HistoryFile {
    fn open(context: &RunContext) -> io::Result<Self> {
        let path = context.plan.output.join(OutputFolder::private_file(HISTORY));
        let (file, n_statuses) = thinned(&path)?;
        let mut history = Self { path, file, n_statuses, every: EVERY };
        history.append(HistoryEvent::Start {
            run_id: context.run_id.clone(),
            workflow: context.plan.name.clone(),
            orchestra: env!("CARGO_PKG_VERSION").to_owned(),
            plan: Some(Box::new(PlannedRun::of(context))),
        })?;
        Ok(history)
    }

    fn write(mut self, context: &RunContext, events: &Receiver<Option<HistoryEvent>>) -> io::Result<()> {
        let mut next = Instant::now() + self.every;
        loop {
            let event = events.recv_timeout(next.saturating_duration_since(Instant::now()));
            let (is_end, event) = match event {
                Ok(Some(event)) => (matches!(event, HistoryEvent::End { .. }), Some(event)),
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => (false, None),
            };
            if is_end || event.is_none() {
                self.append_status(context)?;
                next = Instant::now() + self.every;
            }
            event.map_or(Ok(()), |event| self.append(event))?;
        }
    }

    fn append_status(&mut self, context: &RunContext) -> io::Result<()> {
        if self.n_statuses >= MOST_STATUSES {
            (self.file, self.n_statuses) = thinned(&self.path)?;
            self.every *= 2;
        }
        self.n_statuses += 1;
        // Of tasks their journal knows more, and what is written does not change.
        let status = RunStatus { tasks: Vec::new(), outputs: Vec::new(), ..RunStatus::now(context) };
        self.append(HistoryEvent::Status(Box::new(status)))
    }

    fn append(&mut self, event: HistoryEvent) -> io::Result<()> {
        let is_status = matches!(event, HistoryEvent::Status(_));
        let machine = is_status.then(|| MachineUse::read("/".as_ref()));
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut line = serde_json::to_vec(&HistoryLine { at, machine, event })?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

/// Opens a history whose statuses are at most half of those that it may have: of more, every other one goes, again and again. What is no line of it, such
/// as the last one of a run that was killed, goes as well. Also gives how many statuses are left.
fn thinned(path: &Path) -> io::Result<(File, usize)> {
    #[derive(Deserialize)]
    struct Line<'a> {
        what: &'a str,
    }
    let is_status = |line: &str| Some(serde_json::from_str::<Line<'_>>(line).ok()?.what == "status");
    let is_ours = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() <= LARGEST);
    let mut lines = Vec::new();
    if is_ours {
        for line in BufReader::new(File::open(path)?).split(b'\n') {
            let Ok(line) = String::from_utf8(line?) else { continue };
            lines.extend(is_status(&line).map(|is_status| (is_status, line)));
        }
    }
    let n_statuses = lines.iter().filter(|(is_status, _)| *is_status).count();
    let step = n_statuses.div_ceil(MOST_STATUSES / 2).max(1).next_power_of_two();
    let mut seen = 0;
    lines.retain(|(is_status, _)| {
        seen += usize::from(*is_status);
        !is_status || seen % step == 0
    });
    let left: String = lines.iter().flat_map(|(_, line)| [line, "\n"]).collect();
    write_atomic(path, left.as_bytes())?;
    let file = OpenOptions::new().append(true).open(path)?;
    Ok((file, n_statuses / step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines by what they are.
    fn lines(text: &str) -> (Vec<&str>, Vec<&str>) {
        text.lines().partition(|line| line.contains(r#""what":"status""#))
    }

    #[test]
    fn statuses_are_bounded_and_nothing_else_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        let (_, none) = thinned(&path).unwrap();
        assert_eq!(none, 0);
        for n in [1, MOST_STATUSES / 2, MOST_STATUSES, 10 * MOST_STATUSES + 1] {
            let line = |i: usize| {
                let what = if i.is_multiple_of(3) { "worker_ended" } else { "status" };
                format!("{{\"at\":{i}.5,\"what\":\"{what}\",\"why\":\"a \\\"quote\\\"\"}}\n")
            };
            let all: String = (0..n).map(line).collect();
            fs::write(&path, format!("{all}{{\"at\":7.5,\"what\":\"sta")).unwrap();
            let (_, counted) = thinned(&path).unwrap();
            let left = fs::read_to_string(&path).unwrap();
            let ((statuses, others), (_, others_before)) = (lines(&left), lines(&all));
            assert_eq!((statuses.len(), others), (counted, others_before), "{n}");
            assert!(
                counted <= MOST_STATUSES / 2 && (n < MOST_STATUSES / 2 || counted >= MOST_STATUSES / 8),
                "{n}"
            );
            let mut all = all.lines();
            assert!(left.lines().all(|line| all.any(|of| of == line)), "they stand in their order");
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(thinned(&path).unwrap().1, 0, "what is no file is begun anew");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }
}
