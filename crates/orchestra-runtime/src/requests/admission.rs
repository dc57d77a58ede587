//! Places that are given by priority, then in the order of arrival: those of requests without an answer, and the one of the caller that claims a row.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use orchestra_core::locked;
use tokio::sync::{Notify, oneshot};

/// Who waits: the highest priority first, then the lowest number.
type TurnKey = (Reverse<u8>, u64);

#[derive(Debug)]
pub struct Admission {
    most: usize,
    state: Mutex<AdmissionState>,
    /// Told when the last place is free again.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct AdmissionState {
    taken: usize,
    next: u64,
    waiting: BTreeMap<TurnKey, oneshot::Sender<Place>>,
}

/// A place, until it is dropped. Then the next one that waits gets it.
#[derive(Debug)]
pub struct Place(Arc<Admission>);

/// Leaves the queue when it is dropped.
struct QueuedTurn<'a> {
    admission: &'a Admission,
    key: TurnKey,
}

impl Admission {
    /// At least one place.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), state: Mutex::default(), emptied: Notify::new() })
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// A place that is free now. Where others wait, none is.
    pub fn try_admit(self: &Arc<Self>) -> Option<Place> {
        let mut state = locked(&self.state);
        (state.taken < self.most).then(|| {
            state.taken += 1;
            Place(Arc::clone(self))
        })
    }

    /// Waits for a place. The number that wait is that of the callers.
    pub async fn admit(self: &Arc<Self>, priority: u8) -> Place {
        let (queued, place) = {
            let mut state = locked(&self.state);
            if state.taken < self.most {
                state.taken += 1;
                return Place(Arc::clone(self));
            }
            let key = (Reverse(priority), state.next);
            state.next += 1;
            let (give, place) = oneshot::channel();
            state.waiting.insert(key, give);
            (QueuedTurn { admission: self, key }, place)
        };
        let place =
            place.await.expect("it is sent before it leaves the queue, and the queue outlives the wait");
        drop(queued);
        place
    }

    /// Waits until all places are free.
    pub async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if locked(&self.state).taken == 0 {
                return;
            }
            emptied.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        let next = state.waiting.pop_first();
        match next {
            // Where that one has gone meanwhile, the place comes back, and is dropped for the next.
            Some((_, give)) => {
                drop(state);
                drop(give.send(Place(Arc::clone(&self.0))));
            }
            None => {
                state.taken -= 1;
                if state.taken == 0 {
                    self.0.emptied.notify_waiters();
                }
            }
        }
    }
}

impl Drop for QueuedTurn<'_> {
    fn drop(&mut self) {
        locked(&self.admission.state).waiting.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn places_go_by_priority_and_arrival_and_none_is_lost_by_those_who_leave() {
        let admission = Admission::new(1);
        let mut cx = Context::from_waker(Waker::noop());
        let held = admission.try_admit().unwrap();
        let mut low = pin!(admission.admit(1));
        let mut first = pin!(admission.admit(5));
        let mut second = pin!(admission.admit(5));
        let mut gone = Box::pin(admission.admit(9));
        let mut gone_with_a_place = Box::pin(admission.admit(9));
        for waiting in [gone.as_mut(), gone_with_a_place.as_mut()] {
            assert!(waiting.poll(&mut cx).is_pending());
        }
        assert!(low.as_mut().poll(&mut cx).is_pending());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(admission.try_admit().is_none());
        drop(gone);
        // It goes to the one that leaves before it looks.
        drop(held);
        drop(gone_with_a_place);
        let Poll::Ready(place) = first.as_mut().poll(&mut cx) else {
            panic!("the highest priority comes first")
        };
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(place);
        let Poll::Ready(place) = second.as_mut().poll(&mut cx) else { panic!("then the order of arrival") };
        drop(place);
        let Poll::Ready(place) = low.as_mut().poll(&mut cx) else { panic!("the lowest priority comes last") };
        let mut emptied = pin!(admission.emptied());
        assert!(emptied.as_mut().poll(&mut cx).is_pending());
        drop(place);
        assert!(emptied.as_mut().poll(&mut cx).is_ready());
    }
}
