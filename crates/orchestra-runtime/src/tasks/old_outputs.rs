//! Outputs that were there before a command ran and that it has not written, although the task has changed: they may be what the command before
//! has made. That is said, and the task is done: a command may have found that there was nothing to do.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use orchestra_plan::TaskPlan;

use crate::tasks::unchanged::last_write;

/// The outputs of tasks that have changed since their last end, as their first attempts of this start found them; by the places of the tasks.
#[derive(Debug, Default)]
pub struct OldOutputs(Mutex<HashMap<usize, Vec<Found>>>);

/// An output, and when it was last written.
type Found = (PathBuf, [u8; 32]);

impl OldOutputs {
    /// An attempt at a changed task begins. What an attempt before it has written in this start is not old.
    pub fn begin(&self, at: usize, task: &TaskPlan) {
        let found = task.outputs.iter().filter_map(|output| Some((output.clone(), last_write(output)?)));
        let found = found.collect();
        self.lock().entry(at).or_insert(found);
    }

    /// The task is done; says which of its outputs are old.
    pub fn end(&self, at: usize) -> Option<String> {
        let mut found = self.lock().remove(&at)?;
        found.retain(|(output, before)| last_write(output) == Some(*before));
        let (first, _) = found.first()?;
        let (which, are) = match found.len() {
            1 => (String::new(), "is"),
            n => (format!(" and {} more", n - 1), "are"),
        };
        let first = first.display();
        Some(format!(
            "its output `{first}`{which} {are} as before the command ran, although the task or what it depends on has changed since: it may be of the command before"
        ))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Vec<Found>>> {
        // Each change is whole by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
