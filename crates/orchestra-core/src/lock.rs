//! Locking without a case for a lock that is poisoned. It guards nothing itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of a thread that had it. The rule that makes this right: no code under a lock can panic between two
/// statements that belong together, so what is guarded is whole at any time.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
