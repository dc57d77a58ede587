//! The working trees of tasks with `snapshot = true`, as they were when the run began. It looks at files, and starts nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use orchestra_plan::{TaskPlan, TasksPlan};
use orchestra_store::{OutputFolder, WorkingTree, WorkingTreeError};

/// The trees of a plan, by their folders: tasks with the same folder have one.
#[derive(Debug, Clone, Default)]
pub struct Trees {
    folder: PathBuf,
    trees: BTreeMap<PathBuf, WorkingTree>,
}

impl Trees {
    /// Reads the trees of all tasks that want one, without what the plan writes.
    pub fn read(plan: &TasksPlan, output: &Path) -> Result<Self, WorkingTreeError> {
        let except: Vec<&Path> =
            std::iter::once(output).chain(plan.written.iter().map(PathBuf::as_path)).collect();
        let mut trees = BTreeMap::new();
        for task in plan.tasks.iter().filter(|task| task.snapshot) {
            if !trees.contains_key(&task.cwd) {
                trees.insert(task.cwd.clone(), WorkingTree::read(&task.cwd, &except)?);
            }
        }
        Ok(Self { folder: output.join(OutputFolder::private_file("trees")), trees })
    }

    /// Copies those of these tasks, and removes copies that are no tree of this start.
    pub fn copy<'a>(&self, tasks: impl Iterator<Item = &'a TaskPlan>) -> Result<(), WorkingTreeError> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for old in entries.map(|entry| entry.path()) {
            if !self.trees.values().any(|tree| tree.place(&self.folder) == old) {
                drop(fs::remove_dir_all(old)); // What is left takes room, and nothing else.
            }
        }
        tasks.filter_map(|task| self.of(task)).try_for_each(|tree| tree.copy(&self.folder).map(drop))
    }

    /// What a task depends on by its tree.
    pub fn digest(&self, task: &TaskPlan) -> Option<[u8; 32]> {
        self.of(task).map(WorkingTree::digest)
    }

    /// Where a task runs.
    pub fn cwd(&self, task: &TaskPlan) -> PathBuf {
        self.of(task).map_or_else(|| task.cwd.clone(), |tree| tree.place(&self.folder))
    }

    fn of(&self, task: &TaskPlan) -> Option<&WorkingTree> {
        self.trees.get(&task.cwd).filter(|_| task.snapshot)
    }
}
