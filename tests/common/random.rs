//! Moments from a seed.

use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

/// Seeded with the time, so that every run of the test tries other moments, or with `ORCHESTRA_SEED`, which tries those of a run that printed it.
pub fn random() -> Rng {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let given = std::env::var("ORCHESTRA_SEED").ok();
    let seed = given.map_or(now.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    Rng::with_seed(seed)
}

/// Lets time pass until the moment of a fault, which is the fault itself.
pub fn let_pass(milliseconds: u64) {
    // Nothing is sent on the channel.
    let (_keep, never) = channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(milliseconds));
}
