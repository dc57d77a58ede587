//! The batches that wait for a worker, and in which order they are tried. It holds ids only; which are to blame, `blame` decides.
//!
//! * Fresh batches wait in order, and so do those whose worker was killed from outside.
//! * Suspects (a worker died of them, or of a larger batch around them) go first where the device has just proved that it works, so
//!   that their slots come free. On a device where something has died since, fresh batches go first: if they succeed, the suspects
//!   are to blame, and if they die, too, the device is. Suspects take turns, so the harmless half of a batch clears the device
//!   before the half to blame is tried again.
//! * Batches that must run alone wait until nothing else runs or could.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::BatchId;

#[derive(Debug, Default)]
pub struct BatchQueue {
    fresh: VecDeque<BatchId>,
    suspects: VecDeque<BatchId>,
    alone: VecDeque<(BatchId, Duration)>,
}

impl BatchQueue {
    pub fn push_fresh(&mut self, id: BatchId) {
        self.fresh.push_back(id);
    }

    /// Puts a batch before the fresh ones: it waited long enough already.
    pub fn push_front(&mut self, id: BatchId) {
        self.fresh.push_front(id);
    }

    pub fn push_suspect(&mut self, id: BatchId) {
        self.suspects.push_back(id);
    }

    /// Puts a suspect before the others: the rest of one of which a part is tried.
    pub fn push_suspect_front(&mut self, id: BatchId) {
        self.suspects.push_front(id);
    }

    /// Adds a batch that must run alone, and not before `due`.
    pub fn push_alone(&mut self, id: BatchId, due: Duration) {
        self.alone.push_back((id, due));
    }

    /// Takes the next batch for a device that `is_sound` or not; `may_run` says whether a suspect may be tried there.
    pub fn pop(&mut self, is_sound: bool, may_run: impl Fn(BatchId) -> bool) -> Option<BatchId> {
        let suspect = self.suspects.iter().position(|id| may_run(*id));
        match suspect {
            Some(at) if is_sound || self.fresh.is_empty() => self.suspects.remove(at),
            _ => self.fresh.pop_front(),
        }
    }

    pub fn pop_suspect(&mut self, wanted: impl Fn(BatchId) -> bool) -> Option<BatchId> {
        let at = self.suspects.iter().position(|id| wanted(*id))?;
        self.suspects.remove(at)
    }

    /// Takes the next batch that must run alone, is due and may run here, if no fresh one waits. The caller knows that nothing else runs,
    /// and that no suspect can.
    pub fn pop_alone(&mut self, now: Duration, may_run: impl Fn(BatchId) -> bool) -> Option<BatchId> {
        if !self.fresh.is_empty() {
            return None;
        }
        let at = self.alone.iter().position(|(id, due)| *due <= now && may_run(*id))?;
        self.alone.remove(at).map(|(id, _)| id)
    }

    pub fn suspects(&self) -> impl Iterator<Item = BatchId> {
        self.suspects.iter().copied()
    }

    pub fn alone_due(&self, now: Duration) -> impl Iterator<Item = BatchId> {
        self.alone.iter().filter(move |(_, due)| *due <= now).map(|(id, _)| *id)
    }

    pub fn doubtful(&self) -> impl Iterator<Item = BatchId> {
        self.suspects().chain(self.alone.iter().map(|(id, _)| *id))
    }

    pub fn remove(&mut self, id: BatchId) {
        self.fresh.retain(|b| *b != id);
        self.suspects.retain(|b| *b != id);
        self.alone.retain(|(b, _)| *b != id);
    }

    pub fn n_fresh(&self) -> usize {
        self.fresh.len()
    }

    /// Something waits for any worker, and no suspect waits.
    pub fn any_worker_will_do(&self) -> bool {
        self.suspects.is_empty() && !self.fresh.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.suspects.is_empty() && self.alone.is_empty()
    }

    /// When the first of those that must run alone and are not due yet is.
    pub fn next_due(&self, now: Duration) -> Option<Duration> {
        self.alone.iter().map(|(_, due)| *due).filter(|due| *due > now).min()
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
    fn a_suspect_that_another_device_should_run_is_left_to_it() {
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
        assert_eq!(q.pop_alone(Duration::from_secs(9), |_| true), None);
        assert_eq!(q.pop(true, |_| true), Some(BatchId(1)));
        assert_eq!(q.next_due(Duration::ZERO), Some(Duration::from_secs(3)));
        assert_eq!(q.next_due(Duration::from_secs(3)), None);
        assert_eq!(q.pop_alone(Duration::from_secs(2), |_| true), None);
        assert_eq!(q.alone_due(Duration::from_secs(2)).next(), None);
        assert_eq!(q.alone_due(Duration::from_secs(3)).next(), Some(BatchId(5)));
        assert_eq!(q.pop_alone(Duration::from_secs(3), |_| false), None);
        assert_eq!(q.pop_alone(Duration::from_secs(3), |_| true), Some(BatchId(5)));
    }

    #[test]
    fn the_rest_of_a_suspect_comes_before_the_others() {
        let mut q = queue(&[], &[8, 9]);
        q.push_suspect_front(BatchId(7));
        assert_eq!(q.suspects().collect::<Vec<_>>(), [BatchId(7), BatchId(8), BatchId(9)]);
        assert_eq!(q.n_fresh(), 0);
        q.push_alone(BatchId(6), Duration::ZERO);
        q.remove(BatchId(8));
        assert_eq!(q.doubtful().collect::<Vec<_>>(), [BatchId(7), BatchId(9), BatchId(6)]);
    }
}
