//! Part files that go to a script: it is sent each, in their order, and the file is removed once it has answered. It makes no part file, and reads no
//! row.
//!
//! A part file is sealed before the script sees it. So a number has the same rows however often they are sent: again where the process or the run
//! died before the answer.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orchestra_core::blame::{LoaderBlame, LoaderDeathOutcome};
use orchestra_core::{FailureKind, ScriptProgram, WorkerExit};
use orchestra_worker::script::{FromScript, ToScript};

use crate::child::spawn::ProcessLauncher;
use crate::flow::loader::LostLoader;
use crate::flow::loader::child::LoaderChild;

/// Bytes of a part file that are sent at once.
const BLOCK: u64 = 256 << 10;
/// How often it is looked at whether the run is over, while the script writes.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Sends part files to the script of a sink, in one process.
#[derive(Debug)]
pub struct ScriptParts {
    pub script: ScriptProgram,
    pub launcher: ProcessLauncher,
    /// How long the script may take with a part.
    pub patience: Duration,
}

/// The process of a script, once there is one.
pub type ScriptProcess = Option<LoaderChild<FromScript>>;

/// What became of a part that was sent.
enum PartAnswer {
    Taken,
    /// The run is over.
    Left,
    /// The script has raised this.
    Failed(String),
    /// The process has ended. Whether it had begun with the part.
    Died(LostLoader, bool),
}

impl ScriptParts {
    /// Has the script take a part file, and removes it. One that is not taken when the run `is_over` stays.
    pub fn take(
        &self,
        process: &mut ScriptProcess,
        (number, path): (u64, &Path),
        is_over: &AtomicBool,
    ) -> Result<(), String> {
        let cannot = |doing: &str, error: io::Error| format!("cannot {doing} `{}`: {error}", path.display());
        let mut blame = LoaderBlame::default();
        loop {
            let file = File::open(path).map_err(|error| cannot("read", error))?;
            match self.send(process, number, file, is_over).map_err(|error| cannot("read", error))? {
                PartAnswer::Taken => return fs::remove_file(path).map_err(|error| cannot("remove", error)),
                PartAnswer::Left => return Ok(()),
                PartAnswer::Failed(why) => {
                    Self::end(process);
                    return Err(self.refused(number, &format!("has raised an error: {why}")));
                }
                PartAnswer::Died(lost, has_begun) => {
                    *process = None;
                    self.died(number, &mut blame, &lost, has_begun)?;
                }
            }
        }
    }

    /// Ends the process, if there is one, and logs what it has said.
    pub fn end(process: &mut ScriptProcess) {
        if let Some(mut process) = process.take() {
            process.end(WorkerExit::Clean);
        }
    }

    fn refused(&self, number: u64, what: &str) -> String {
        format!("script `{}`, at part {number}, {what}", self.script.script.display())
    }

    fn send(
        &self,
        process: &mut ScriptProcess,
        number: u64,
        mut file: File,
        is_over: &AtomicBool,
    ) -> io::Result<PartAnswer> {
        if process.is_none() {
            match LoaderChild::launch_script(&self.launcher, &self.script) {
                Ok(started) => process.insert(started).patience = self.patience,
                Err(error) => return Ok(PartAnswer::Died(LostLoader::not_started(&error), false)),
            }
        }
        let Some(process) = process else { return Ok(PartAnswer::Left) };
        let mut next = ToScript::Part(number, self.script.told.clone());
        loop {
            if let Err(lost) = process.write(&next) {
                return Ok(PartAnswer::Died(lost, true));
            }
            if next == ToScript::End {
                break;
            }
            let mut block = Vec::new();
            (&mut file).take(BLOCK).read_to_end(&mut block)?;
            next = if block.is_empty() { ToScript::End } else { ToScript::Bytes(block) };
        }
        let began = Instant::now();
        loop {
            match process.receive_within(Instant::now() + LOOK_EVERY) {
                Ok(Some(FromScript::Done)) => return Ok(PartAnswer::Taken),
                Ok(Some(FromScript::Failed(why))) => return Ok(PartAnswer::Failed(why)),
                Ok(Some(FromScript::Rows(_))) => {
                    return Ok(PartAnswer::Died(process.garbled("rows, where a sink yields none"), true));
                }
                // It is killed with the process in hand: the next start sends the part again.
                Ok(None) if is_over.load(Ordering::Acquire) => return Ok(PartAnswer::Left),
                Ok(None) if began.elapsed() >= self.patience => {
                    return Ok(PartAnswer::Died(process.end(WorkerExit::Hung), true));
                }
                Ok(None) => {}
                Err(lost) => return Ok(PartAnswer::Died(lost, true)),
            }
        }
    }

    /// What the end of a process means: `Ok`, another one tries again.
    fn died(
        &self,
        number: u64,
        blame: &mut LoaderBlame,
        lost: &LostLoader,
        has_begun: bool,
    ) -> Result<(), String> {
        let script = self.script.script.display();
        tracing::warn!(%script, part = number, exit = %lost.exit, last_words = %lost.last_words, "the process of a script that writes parts is gone");
        match blame.died(&lost.exit, false, has_begun.then_some(number)) {
            LoaderDeathOutcome::Retry | LoaderDeathOutcome::RetryWithAllMemory => Ok(()),
            LoaderDeathOutcome::GiveUp => {
                Err(self.refused(number, &format!("cannot be started: {}{}", lost.exit, lost.words())))
            }
            LoaderDeathOutcome::Confirmed(FailureKind::Timeout, _) => {
                let seconds = self.patience.as_secs_f64();
                let what = format!(
                    "has not returned for {seconds} s (ten times `limits.item_timeout`, at least 10 s): raise that, or lower `rows_per_file`"
                );
                Err(self.refused(number, &what))
            }
            LoaderDeathOutcome::Confirmed(_, tries) => {
                let what = format!("has ended {tries} processes, the last one {}{}", lost.exit, lost.words());
                Err(self.refused(number, &what))
            }
        }
    }
}
