//! Moments from a seed.

use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Numbers without a pattern: the splitmix64 generator.
pub struct Random(u64);

impl Random {
    /// Seeded with the time, so that every run of the test tries other moments.
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        println!("seed {}", now.as_nanos() as u64);
        Self(now.as_nanos() as u64)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Lets time pass until the moment of a fault, which is the fault itself.
pub fn let_pass(milliseconds: u64) {
    // Nobody sends on the channel.
    let (_keep, never) = channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(milliseconds));
}
