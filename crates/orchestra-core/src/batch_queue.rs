//! The batches that wait for a worker, and in which order they are tried. It holds ids only; whose fault what is, is decided in `blame`.
//!
//! * Fresh batches wait in order, and so do those whose worker was killed from outside.
//! * Suspects (a worker died of them, or of a larger batch around them) go first where the device has just proved that it works, so
//!   that their slots come free. On a device where something has died since, fresh batches go first: if they succeed, the suspects
//!   are to blame, and if they die, too, the device is. Suspects take turns, so the innocent half of a batch clears the device
//!   before the guilty one is tried again.
//! * Batches that must run alone wait until nothing else waits or runs.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::BatchId;

/// See the module.
#[derive(Debug, Default)]
pub struct BatchQueue {
    fresh: VecDeque<BatchId>,
    suspects: VecDeque<BatchId>,
    alone: VecDeque<(BatchId, Duration)>,
}

impl BatchQueue {
    /// Adds a batch behind the fresh ones.
    pub fn push_fresh(&mut self, id: BatchId) {
        self.fresh.push_back(id);
    }

    /// Puts a batch before the fresh ones: it waited long enough already.
    pub fn push_front(&mut self, id: BatchId) {
        self.fresh.push_front(id);
    }

    /// Adds a suspect behind the others.
    pub fn push_suspect(&mut self, id: BatchId) {
        self.suspects.push_back(id);
    }

    /// Adds a batch that must run alone, and not before `due`.
    pub fn push_alone(&mut self, id: BatchId, due: Duration) {
        self.alone.push_back((id, due));
    }

    /// Takes the next batch for a device that `is_sound` or not; `may_judge` says whether a suspect may be tried there.
    pub fn pop(&mut self, is_sound: bool, may_judge: impl Fn(BatchId) -> bool) -> Option<BatchId> {
        let suspect = self.suspects.iter().position(|id| may_judge(*id));
        match suspect {
            Some(at) if is_sound || self.fresh.is_empty() => self.suspects.remove(at),
            _ => self.fresh.pop_front(),
        }
    }

    /// Takes the first suspect that `wanted` names.
    pub fn pop_suspect(&mut self, wanted: impl Fn(BatchId) -> bool) -> Option<BatchId> {
        let at = self.suspects.iter().position(|id| wanted(*id))?;
        self.suspects.remove(at)
    }

    /// Takes the next batch that must run alone, if it is due and nothing else waits. The caller knows that nothing else runs.
    pub fn pop_alone(&mut self, now: Duration) -> Option<BatchId> {
        if !self.fresh.is_empty() || !self.suspects.is_empty() {
            return None;
        }
        let due = self.alone.iter().position(|(_, due)| *due <= now)?;
        self.alone.remove(due).map(|(id, _)| id)
    }

    /// When the first of those that must run alone is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.alone.iter().map(|(_, due)| *due).min()
    }

    /// Batches that could be sent now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fresh.len() + self.suspects.len()
    }

    /// Nothing could be sent now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(fresh: &[u64], suspects: &[u64]) -> BatchQueue {
        let mut q = BatchQueue::default();
        fresh.iter().for_each(|i| q.push_fresh(BatchId(*i)));
        suspects.iter().for_each(|i| q.push_suspect(BatchId(*i)));
        q
    }

    fn order(mut q: BatchQueue, is_sound: bool) -> Vec<u64> {
        std::iter::from_fn(|| q.pop(is_sound, |_| true)).map(|b| b.0).collect()
    }

    #[test]
    fn suspects_go_first_on_a_sound_device_and_last_on_one_where_something_died() {
        assert_eq!(order(queue(&[1, 2], &[8, 9]), true), [8, 9, 1, 2]);
        assert_eq!(order(queue(&[1, 2], &[8, 9]), false), [1, 2, 8, 9]);
    }

    #[test]
    fn a_suspect_that_another_device_should_judge_is_left_to_it() {
        let mut q = queue(&[1], &[8, 9]);
        assert_eq!(q.pop(true, |id| id != BatchId(8)), Some(BatchId(9)));
        assert_eq!(q.pop(true, |id| id != BatchId(8)), Some(BatchId(1)));
        assert_eq!(q.pop(true, |id| id != BatchId(8)), None);
        assert_eq!(q.pop(true, |_| true), Some(BatchId(8)));
    }

    #[test]
    fn what_must_run_alone_waits_for_everything_else_and_for_its_time() {
        let mut q = queue(&[1], &[]);
        q.push_alone(BatchId(5), Duration::from_secs(3));
        assert_eq!(q.pop_alone(Duration::from_secs(9)), None);
        assert_eq!(q.pop(true, |_| true), Some(BatchId(1)));
        assert_eq!(q.next_due(), Some(Duration::from_secs(3)));
        assert_eq!(q.pop_alone(Duration::from_secs(2)), None);
        assert_eq!(q.pop_alone(Duration::from_secs(3)), Some(BatchId(5)));
    }
}
