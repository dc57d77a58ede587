//! The file that says which commands run now, for others that look at a run: written once a second, gone with the run. No start reads it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orchestra_store::OutputFolder;

use crate::context::RunContext;
use crate::tasks::board::RunningCommand;

/// What is older was left by a run that was killed.
const OLDEST: Duration = Duration::from_secs(5);

pub fn write(context: &RunContext) {
    let file = file(&context.plan.output);
    let next = file.with_extension("next");
    let commands = context.tasks.commands(context.clock.now());
    let written =
        serde_json::to_vec(&commands).map_err(io::Error::other).and_then(|bytes| fs::write(&next, bytes));
    // A disk that is full is told by the journal.
    drop(written.and_then(|()| fs::rename(next, file)));
}

pub fn remove(context: &RunContext) {
    drop(fs::remove_file(file(&context.plan.output)));
}

/// The commands that run now into this output folder; `None` where no run with tasks is going on there.
#[must_use]
pub fn running_commands(output: &Path) -> Option<Vec<RunningCommand>> {
    let file = file(output);
    let written = fs::metadata(&file).ok()?.modified().ok()?;
    let is_old = written.elapsed().is_ok_and(|age| age > OLDEST);
    serde_json::from_slice(&fs::read(file).ok()?).ok().filter(|_| !is_old)
}

fn file(output: &Path) -> PathBuf {
    output.join(OutputFolder::private_file("commands"))
}
