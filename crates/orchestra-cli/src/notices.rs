//! What a command says beside its result: what a run goes on with, and how the search for ONNX Runtime gets on.

use std::collections::BTreeSet;

use orchestra_launch::plan::TaskPlan;
use orchestra_launch::{FoundResults, Prepared, Progress as LibraryProgress};

use crate::human::{count, counted};
use crate::stderr;

#[derive(Debug, Clone, Copy)]
pub struct Notices {
    pub quiet: bool,
}

impl Notices {
    pub fn say(self, text: &str) {
        if !self.quiet {
            stderr::say_line(text);
        }
    }

    fn found_tasks(self, prepared: &Prepared, done: u64, again: &[String]) {
        if done > 0 {
            let left = (prepared.plan.tasks.tasks.len() as u64).saturating_sub(done);
            self.say(&format!(
                "going on: {} done and unchanged, {} left",
                counted(done, "task is", "tasks are"),
                count(left)
            ));
        }
        const NAMED: usize = 5;
        if !again.is_empty() {
            let no_outputs = |task: &&TaskPlan| task.outputs.is_empty();
            let tasks = prepared.plan.tasks.tasks.iter().filter(no_outputs);
            let unsure: BTreeSet<&str> = tasks.map(|task| &task.id[..]).collect();
            // What may be done twice is known by no other way: all of it is named, and that is no more than there are slots.
            let is_unsure = |name: &String| unsure.contains(&name[..]);
            let named: Vec<&str> = again
                .iter()
                .enumerate()
                .filter_map(|(at, name)| (at < NAMED || is_unsure(name)).then_some(&name[..]))
                .collect();
            let more = if again.len() > named.len() { ", .." } else { "" };
            let names = orchestra_launch::plan::list(named);
            let bound = match again.iter().any(is_unsure) {
                true => "; what declares no `outputs` may so be done more than once",
                false => "",
            };
            let were = counted(again.len() as u64, "command that ran", "commands that ran");
            self.say(&format!(
                "going on: {were} when the start before ended will run again: {names}{more}{bound}"
            ));
        }
    }

    /// `is_second`: of two parts, of which the first has said what becomes of tasks.
    pub fn found(self, prepared: &Prepared, is_second: bool) {
        match &prepared.found {
            FoundResults::Fresh => {}
            FoundResults::Resumed { finished: 0, retried: 0, .. } if is_second => {}
            FoundResults::Discarded { finished, unknown } => {
                for file in unknown {
                    let file = file.display();
                    self.say(&format!("starting over: `{file}`, which no run of this folder is known to have written, is emptied"));
                }
                if *finished > 0 {
                    let items = counted(*finished, "finished item is", "finished items are");
                    self.say(&format!("starting over: {items} discarded"));
                }
            }
            FoundResults::Resumed { finished, new_items, retried, tasks_done, tasks_again } => {
                let (finished, new_items, retried) = (*finished, *new_items, *retried);
                if !is_second {
                    self.found_tasks(prepared, *tasks_done, tasks_again);
                }
                if prepared.plan.pipelines.is_empty() {
                    return;
                }
                let new =
                    if new_items > 0 { format!(", {} of them new", count(new_items)) } else { String::new() };
                let total = prepared.extent().known();
                let left = total.map(|n| format!(", {} left{new}", count(n.saturating_sub(finished))));
                let finished = counted(finished, "item is", "items are");
                let again = if retried > 0 {
                    format!(", {} again", counted(retried, "failed one is tried", "failed ones are tried"))
                } else {
                    String::new()
                };
                self.say(&format!("going on: {finished} finished{}{again}", left.unwrap_or_default()));
            }
        }
    }
}

/// Says what the search for the runtime library does when it takes a while.
pub struct LibraryNotes {
    pub notices: Notices,
    /// Bytes when it was said last.
    pub last: Option<u64>,
}

impl LibraryProgress for LibraryNotes {
    fn note(&mut self, line: &str) {
        self.notices.say(line);
    }

    fn bytes(&mut self, done: u64, total: Option<u64>) {
        const STEP: u64 = 10 << 20;
        if self.last.is_none_or(|last| done >= last + STEP) {
            self.last = Some(done);
            let of =
                total.map(|t| format!(" of {}", orchestra_launch::plan::format_bytes(t))).unwrap_or_default();
            self.notices.say(&format!("  {}{of}", orchestra_launch::plan::format_bytes(done)));
        }
    }
}
