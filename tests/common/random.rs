//! Moments from a seed.

use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

/// Seeded with the time, so that every run of the test tries other moments.
pub fn random() -> Rng {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = now.as_nanos() as u64;
    println!("seed {seed}");
    Rng::with_seed(seed)
}

/// Lets time pass until the moment of a fault, which is the fault itself.
pub fn let_pass(milliseconds: u64) {
    // Nothing is sent on the channel.
    let (_keep, never) = channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(milliseconds));
}
