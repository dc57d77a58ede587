//! What commands take of GPUs, from the lists of processes that a driver gives: the most that each took, and who is on a GPU without a lease.
//! It asks no driver.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOnGpu {
    pub task: usize,
    pub gpu: String,
    /// Bytes that it holds; `None` where the driver does not tell.
    pub memory: Option<u64>,
}

#[derive(Debug, Default)]
pub struct GpuUse {
    running: BTreeMap<usize, Running>,
}

#[derive(Debug)]
struct Running {
    gpus: BTreeSet<String>,
    peak: u64,
    /// It was seen on another GPU.
    is_astray: bool,
}

impl GpuUse {
    /// A command runs on these GPUs, and should be on no other.
    pub fn begin(&mut self, task: usize, gpus: impl IntoIterator<Item = String>) {
        self.running.insert(task, Running { gpus: gpus.into_iter().collect(), peak: 0, is_astray: false });
    }

    /// A command has ended: the most that all of its processes together were seen to hold of one of its GPUs; 0 where none was seen.
    pub fn end(&mut self, task: usize) -> u64 {
        self.running.remove(&task).map_or(0, |running| running.peak)
    }

    /// Takes what was seen at one moment. Gives each command that is on a GPU without a lease, once, with that GPU.
    pub fn look(&mut self, seen: &[CommandOnGpu]) -> Vec<(usize, String)> {
        let mut held: BTreeMap<(usize, &str), u64> = BTreeMap::new();
        for sighting in seen {
            *held.entry((sighting.task, &sighting.gpu)).or_default() += sighting.memory.unwrap_or_default();
        }
        let mut astray = Vec::new();
        for ((task, gpu), bytes) in held {
            match self.running.get_mut(&task) {
                Some(running) if running.gpus.contains(gpu) => running.peak = running.peak.max(bytes),
                Some(running) => {
                    let was_astray = std::mem::replace(&mut running.is_astray, true);
                    astray.extend((!was_astray).then(|| (task, gpu.to_owned())));
                }
                None => {} // It has just ended.
            }
        }
        astray
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_all_processes_on_one_gpu_and_others_are_told_of() {
        let seen = |task, gpu: &str, memory| CommandOnGpu { task, gpu: gpu.to_owned(), memory };
        let mut gpus = GpuUse::default();
        gpus.begin(3, ["a".to_owned(), "b".to_owned()]);
        gpus.begin(4, []);
        assert_eq!(gpus.look(&[seen(3, "a", Some(5)), seen(3, "a", Some(2)), seen(3, "b", Some(6))]), []);
        let astray = gpus.look(&[
            seen(3, "a", None),
            seen(4, "a", Some(1)),
            seen(3, "c", Some(90)),
            seen(9, "a", None),
        ]);
        assert_eq!(astray, [(3, "c".to_owned()), (4, "a".to_owned())]);
        assert_eq!(gpus.look(&[seen(4, "a", Some(1))]), [], "once is enough");
        assert_eq!((gpus.end(3), gpus.end(4), gpus.end(3)), (7, 0, 0));
    }
}
