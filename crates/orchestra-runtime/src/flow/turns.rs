//! What threads take parts of and give back, in the order in which they come: none waits for ever beside others that need less.

use std::sync::{Condvar, Mutex, PoisonError};

use orchestra_core::locked;

#[derive(Debug)]
pub struct Turns<S> {
    state: Mutex<TurnState<S>>,
    changed: Condvar,
}

#[derive(Debug)]
struct TurnState<S> {
    of: S,
    /// The number of the thread that comes next, and of the one that is served now.
    next: u64,
    served: u64,
    is_shut: bool,
}

impl<S> Turns<S> {
    pub fn new(of: S) -> Self {
        Self {
            state: Mutex::new(TurnState { of, next: 0, served: 0, is_shut: false }),
            changed: Condvar::new(),
        }
    }

    /// What `take` gives, once it gives something and those that came before have theirs. `None` when it was shut. Blocks: never call it in an actor.
    pub fn wait<T>(&self, mut take: impl FnMut(&mut S) -> Option<T>) -> Option<T> {
        let mut state = locked(&self.state);
        let number = state.next;
        state.next += 1;
        loop {
            if state.is_shut {
                return None;
            }
            if state.served == number
                && let Some(taken) = take(&mut state.of)
            {
                state.served += 1;
                drop(state);
                self.changed.notify_all();
                return Some(taken);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn give_back(&self, give: impl FnOnce(&mut S)) {
        give(&mut locked(&self.state).of);
        self.changed.notify_all();
    }

    /// Wakes all threads that wait, which get `None` from now on.
    pub fn shut(&self) {
        locked(&self.state).is_shut = true;
        self.changed.notify_all();
    }

    #[cfg(test)]
    pub fn look<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&locked(&self.state).of)
    }

    #[cfg(test)]
    pub fn n_came(&self) -> u64 {
        locked(&self.state).next
    }
}
