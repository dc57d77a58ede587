//! What a start takes away of an earlier run, as it is asked to. A start that is refused takes nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use orchestra_plan::{BEST_FOLDER, Plan, TASKS_FOLDER};
use orchestra_store::{DiscardError, FolderState, OutputFolder, TaskJournal};

use super::StartRunError;
use super::error::discard_error;
use super::previous_run::{FoundResults, finished_in};
use crate::flow::part_file::part_files;
use crate::flow::result_files::result_files;
use crate::flow::uploads::is_free;

/// Discards all that an earlier run has left, also where no run can be seen: its journal may be lost, and its files are in the way.
pub(super) fn discard(plan: &Plan, folder: &mut OutputFolder) -> Result<FoundResults, StartRunError> {
    // First: a start that is refused discards nothing.
    must_be_free(plan, "", true)?;
    let before = folder.state();
    if TaskJournal::exists(&plan.output) || !plan.tasks.is_empty() {
        discard_tasks(&plan.output)?;
    }
    folder.discard().map_err(|error| discard_error(plan, error))?;
    let mut unknown = if before == FolderState::Fresh { with_text(plan) } else { Vec::new() };
    for (_, _, part) in part_files(plan) {
        fs::remove_file(&part)?;
        unknown.push(part);
    }
    Ok(match before != FolderState::Fresh || !unknown.is_empty() {
        true => FoundResults::Discarded { finished: finished_in(&before), unknown },
        false => FoundResults::Fresh,
    })
}

/// Lets this start replace results that are in the way of its sinks.
pub(super) fn replace(plan: &Plan, folder: &mut OutputFolder) -> Result<FoundResults, StartRunError> {
    must_be_free(plan, "", true)?;
    for (_, _, part) in part_files(plan) {
        fs::remove_file(&part)?;
    }
    folder.replace_files();
    Ok(FoundResults::Fresh)
}

/// The folders of all tasks, with the outputs in them.
fn discard_tasks(output: &Path) -> Result<(), StartRunError> {
    for folder in [TASKS_FOLDER, BEST_FOLDER].map(|name| output.join(name)) {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let error = DiscardError { path: folder.clone(), source: error };
                return Err(StartRunError::Discard { folder, error });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Result files of the plan that have text in them.
fn with_text(plan: &Plan) -> Vec<PathBuf> {
    let files = result_files(plan).into_iter().map(|file| plan.output.join(file));
    files.filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() > 0)).collect()
}

/// The prefixes of sinks in stores hold nothing of another run.
pub(super) fn must_be_free(plan: &Plan, run_id: &str, is_new: bool) -> Result<(), StartRunError> {
    for sink in &plan.sinks {
        let Some(bucket) = &sink.bucket else { continue };
        let sink_name = sink.name.clone();
        match is_free(sink, run_id, is_new) {
            Ok(true) => {}
            Ok(false) => return Err(StartRunError::Taken { sink_name, url: bucket.url.clone() }),
            Err(error) => return Err(StartRunError::Bucket { sink_name, error }),
        }
    }
    Ok(())
}
