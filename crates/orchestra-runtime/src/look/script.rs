//! Lists the items of a source whose script yields them, in a process of its own. Each row is kept in the list as it is, so no later process has to
//! yield it again. It reads no row.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestra_core::blame::{LoaderBlame, LoaderDeathOutcome};
use orchestra_core::shapes::FileAccess;
use orchestra_core::{FailureKind, ScriptProgram, WorkerExit};
use orchestra_plan::{Limits, SourcePlan};
use orchestra_store::{Expand, Found, ListError, PushFound};
use orchestra_worker::script::{FromScript, LONGEST_ROW, LONGEST_ROW_NAME};
use sha2::{Digest as _, Sha256};

use super::{LoaderDeath, TELL_EVERY, patience_of};
use crate::child::spawn::ProcessLauncher;
use crate::flow::loader::LostLoader;
use crate::flow::loader::child::LoaderChild;

/// Starts the script of a source for each list.
#[derive(Debug)]
pub(super) struct ListsByScript {
    expand: Arc<dyn Expand>,
    lister: ScriptProgram,
    /// `None`: no processes can be started here.
    launcher: Option<ProcessLauncher>,
    /// What stands before the `#` of a locator: the path of the script, where loaders shall look for files beside it.
    place: Vec<u8>,
    /// How long the script may yield nothing.
    patience: Duration,
}

impl ListsByScript {
    /// `None`: no program lists the items of this source.
    pub fn of(source: &SourcePlan, limits: &Limits, launcher: Option<&ProcessLauncher>) -> Option<Self> {
        let lister = source.lister.clone()?;
        let place = match source.fetch.opens() {
            FileAccess::Beside(_) => lister.script.as_os_str().as_bytes().to_vec(),
            FileAccess::Any | FileAccess::OfItems(_) => Vec::new(),
        };
        let (expand, patience) = (source.expand.clone()?, patience_of(limits));
        Some(Self { expand, lister, launcher: launcher.cloned(), place, patience })
    }

    fn wrong(&self, reason: impl Into<String>) -> ListError {
        ListError::Script { path: self.lister.script.clone(), reason: reason.into() }
    }
}

impl Expand for ListsByScript {
    fn expand(&self, _: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let (mut blame, mut pushed) = (LoaderBlame::default(), PushedRows::default());
        loop {
            let before = pushed.n;
            match self.list(&mut pushed, push) {
                Ok(listed) => {
                    if pushed.n == 0 && listed.is_ok() {
                        let script = self.lister.script.display();
                        tracing::warn!(%script, "the source has no items: its script has yielded no row");
                    }
                    return listed;
                }
                Err(death) => {
                    if pushed.n > before {
                        blame.loaded(0);
                    }
                    self.died(&mut blame, &death)?;
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

/// The rows that are in the list, by whatever process.
#[derive(Default)]
struct PushedRows {
    n: u64,
    /// Of their names and of what they hold.
    digest: Sha256,
    names: KnownNames,
}

/// The names of rows. Those that count on from 0, as without a key, take no memory, and each other one some 30 bytes.
#[derive(Default)]
struct KnownNames {
    /// So many names were their number.
    n_counted: u64,
    /// Of the names behind those.
    digests: HashSet<u128>,
}

impl KnownNames {
    /// Takes a name in. Whether it is new.
    fn insert(&mut self, name: &str) -> bool {
        let number = name.parse::<u64>().ok().filter(|number| number.to_string() == name);
        if self.digests.is_empty() && number == Some(self.n_counted) {
            self.n_counted += 1;
            return true;
        }
        let (digest, mut half) = (Sha256::digest(name), [0; 16]);
        half.copy_from_slice(&digest[..16]);
        number.is_none_or(|number| number >= self.n_counted) && self.digests.insert(u128::from_le_bytes(half))
    }
}

impl ListsByScript {
    /// Has a process list. The outer error is its death.
    fn list(
        &self,
        pushed: &mut PushedRows,
        push: PushFound<'_>,
    ) -> Result<Result<(), ListError>, LoaderDeath> {
        let Some(launcher) = &self.launcher else {
            let reason = "this program starts no processes".to_owned();
            return Ok(Err(ListError::NoProcess { path: self.lister.script.clone(), reason }));
        };
        let launched = LoaderChild::launch_script(launcher, &self.lister);
        let mut process = launched
            .map_err(|error| LoaderDeath { lost: LostLoader::not_started(&error), has_begun: false })?;
        let listed = self.listen(&mut process, pushed, push);
        if listed.is_ok() {
            process.end(WorkerExit::Clean); // So that all that it has said is logged.
        }
        listed.map_err(|lost| LoaderDeath { lost, has_begun: true })
    }

    fn listen(
        &self,
        process: &mut LoaderChild<FromScript>,
        pushed: &mut PushedRows,
        push: PushFound<'_>,
    ) -> Result<Result<(), ListError>, LostLoader> {
        let (mut heard, mut heard_at) = (PushedRows::default(), Instant::now());
        loop {
            match process.receive_within(Instant::now() + TELL_EVERY) {
                Ok(Some(FromScript::Rows(rows))) => {
                    if rows.iter().any(is_no_row) {
                        return Err(process.garbled("a row that is none"));
                    }
                    for row in &rows {
                        if let Err(error) = self.take(row, &mut heard, pushed, push) {
                            return Ok(Err(error));
                        }
                    }
                    heard_at = Instant::now();
                }
                Ok(Some(FromScript::Done)) if heard.n < pushed.n => return Ok(Err(self.yields_others())),
                Ok(Some(FromScript::Done)) => return Ok(Ok(())),
                Ok(Some(FromScript::Failed(why))) => {
                    let reason = format!("has raised an error after {} rows: {why}", heard.n);
                    return Ok(Err(self.wrong(reason)));
                }
                Ok(None) if heard_at.elapsed() >= self.patience => {
                    return Err(process.end(WorkerExit::Hung));
                }
                Ok(None) => {
                    if let Err(error) = push(Found::Nothing) {
                        return Ok(Err(error));
                    }
                }
                Err(lost) => return Err(lost),
            }
        }
    }

    /// Pushes a row that is not in the list yet. A process that goes on for one that has died must yield the same rows first.
    fn take(
        &self,
        (name, row): &(String, Vec<u8>),
        heard: &mut PushedRows,
        pushed: &mut PushedRows,
        push: PushFound<'_>,
    ) -> Result<(), ListError> {
        heard.n += 1;
        // Neither holds a NUL.
        [name.as_bytes(), &[0], row, &[0]].iter().for_each(|part| heard.digest.update(part));
        if heard.n < pushed.n {
            return Ok(());
        }
        if heard.n > pushed.n {
            (pushed.n, pushed.digest) = (heard.n, heard.digest.clone());
            let locator = |row: &[u8]| [&self.place[..], b"#", row].concat();
            if pushed.names.insert(name) {
                return push(Found::Item(name, &locator(row)));
            }
            let why = format!(
                "another row is called `{name}`, too: `key` must name a column that no two rows share"
            );
            let why = serde_json::Value::from(why).to_string().replace('#', "\\u0023");
            return push(Found::Item(&format!("{name} (row {})", heard.n - 1), &locator(why.as_bytes())));
        }
        match heard.digest.clone().finalize() == pushed.digest.clone().finalize() {
            true => Ok(()),
            false => Err(self.yields_others()),
        }
    }

    fn yields_others(&self) -> ListError {
        self.wrong(
            "has yielded other rows when it was started again after its process had died: it must yield the same rows in the same order, new ones behind them",
        )
    }

    /// What the end of a process means: `Ok`, another one tries again.
    fn died(&self, blame: &mut LoaderBlame, death: &LoaderDeath) -> Result<(), ListError> {
        let lost = &death.lost;
        let script = self.lister.script.display();
        tracing::warn!(%script, exit = %lost.exit, last_words = %lost.last_words, "the process of a script that lists items is gone");
        match death.outcome(blame) {
            LoaderDeathOutcome::Retry | LoaderDeathOutcome::RetryWithAllMemory => Ok(()),
            LoaderDeathOutcome::GiveUp => {
                let reason = format!("its process cannot be started: {}{}", lost.exit, lost.words());
                Err(ListError::NoProcess { path: self.lister.script.clone(), reason })
            }
            LoaderDeathOutcome::Confirmed(FailureKind::Timeout, _) => Err(self.wrong(format!(
                "has yielded nothing for {} s (ten times `limits.item_timeout`, at least 10 s); raise that if it may take so long",
                self.patience.as_secs_f64()
            ))),
            LoaderDeathOutcome::Confirmed(_, tries) => Err(self.wrong(format!(
                "has ended {tries} processes, the last one {}{}",
                lost.exit,
                lost.words()
            ))),
        }
    }
}

/// Whether the list cannot hold it, or would take it for something else.
fn is_no_row((name, row): &(String, Vec<u8>)) -> bool {
    let is_name = (1..=LONGEST_ROW_NAME).contains(&name.len()) && !name.contains('\0');
    let is_row = (1..=LONGEST_ROW).contains(&row.len()) && !row.contains(&b'#') && !row.contains(&0);
    !is_name || !is_row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_new_once_and_numbers_that_count_on_take_no_memory() {
        let mut names = KnownNames::default();
        assert!((0..1000).all(|n: u64| names.insert(&n.to_string())) && names.digests.is_empty());
        assert!(!names.insert("7") && names.insert("07") && !names.insert("07"));
        assert!(names.insert("1000") && !names.insert("1000") && !names.insert("999"));
        assert!(names.insert("a") && names.insert("b") && !names.insert("a"));
        let mut by_key = KnownNames::default();
        assert!(by_key.insert("5") && by_key.insert("0") && !by_key.insert("5") && !by_key.insert("0"));
    }

    #[test]
    fn a_row_that_the_list_would_take_for_something_else_is_none() {
        let is_row = |name: &str, row: &[u8]| !is_no_row(&(name.to_owned(), row.to_vec()));
        assert!(is_row("a", b"{}") && is_row(&"a".repeat(LONGEST_ROW_NAME), &vec![b'x'; LONGEST_ROW]));
        for (name, row) in [("", &b"{}"[..]), ("a\0", b"{}"), ("a", b""), ("a", b"#"), ("a", b"\0")] {
            assert!(!is_row(name, row));
        }
        assert!(!is_row(&"a".repeat(LONGEST_ROW_NAME + 1), b"{}"));
        assert!(!is_row("a", &vec![b'x'; LONGEST_ROW + 1]));
    }
}
