//! How large a test is: small on every push, full in `scripts/deep-check.sh`. And whose turn it is to take the whole machine.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// `full` runs every test at its full size; unset or empty is the quick size.
pub const VARIABLE: &str = "ORCHESTRA_TESTS_SIZE";

/// A number of items, kills or rounds: `full` in the deep check, `quick` on every push.
pub fn scaled<T>(full: T, quick: T) -> T {
    match std::env::var_os(VARIABLE) {
        None => quick,
        Some(value) if value.is_empty() => quick,
        Some(value) => {
            assert!(value == "full", "`{VARIABLE}` is `full` or unset, not {value:?}");
            full
        }
    }
}

/// Waits until no other test of this process storms the machine. Tests that kill processes by the second, or fill all cores for long, hold this so
/// that two of them do not slow each other down.
pub fn storm() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A storm that failed has ended, too.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
