//! The thread that strikes: when, and at whom, by a seed. What a strike does is the scene's business.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::scene::Scene;
use crate::tracker::Fault;

/// How often, and whom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Strikes {
    /// Between two SIGKILLs, on average; `None`: never.
    pub kill_every: Option<Duration>,
    /// Between two SIGSTOPs, on average; `None`: never.
    pub stop_every: Option<Duration>,
    /// Strike workers that stand by, too.
    pub spares: bool,
    /// The same seed chooses the same moments, and the same ones among the same workers.
    pub seed: u64,
}

/// The thread. Dropping it ends it, which takes no longer than a strike.
#[derive(Debug)]
pub struct Striker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<u64>>,
}

/// One kind of strike, and when it is due.
#[derive(Debug)]
struct Clock {
    fault: Fault,
    every: Duration,
    due: Instant,
}

impl Striker {
    /// Begins to strike.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start(scene: Arc<Scene>, strikes: Strikes) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let work = move || {
            let mut random = Random::new(strikes.seed);
            let now = Instant::now();
            let clock = |(fault, every): (Fault, Option<Duration>)| {
                every.map(|every| Clock { fault, every, due: now + uneven(every, &mut random) })
            };
            let kinds = [(Fault::Kill, strikes.kill_every), (Fault::Stop, strikes.stop_every)];
            let mut clocks: Vec<Clock> = kinds.into_iter().filter_map(clock).collect();
            let mut missed = 0;
            while let Some(next) = clocks.iter_mut().min_by_key(|c| c.due) {
                let wait = next.due.saturating_duration_since(Instant::now());
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                missed += u64::from(!scene.strike(next.fault, strikes.spares, &mut random));
                // What was missed is not made up for: after a pause of this machine there is one strike, not many.
                next.due = next.due.max(Instant::now()) + uneven(next.every, &mut random);
            }
            missed
        };
        let thread = std::thread::Builder::new().name("striker".into()).spawn(work)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends it, and says how many strikes found nobody.
    pub fn stop(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        drop(self.stop.take());
        // The thread does not panic; if it did, it missed nothing that could be counted.
        self.thread.take().and_then(|t| t.join().ok()).unwrap_or_default()
    }
}

impl Drop for Striker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Half to one and a half times as long, so that strikes keep step with nothing.
fn uneven(every: Duration, random: &mut Random) -> Duration {
    every.mul_f64(0.5 + random.unit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_differ_and_keep_their_mean() {
        let mut random = Random::new(3);
        let all: Vec<Duration> = (0..4_000).map(|_| uneven(Duration::from_secs(1), &mut random)).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*least >= Duration::from_millis(500) && *most <= Duration::from_millis(1_500));
        let mean = all.iter().sum::<Duration>().as_secs_f64() / all.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn a_striker_without_anything_to_do_ends_by_itself() {
        let nothing = Strikes { kill_every: None, stop_every: None, spares: false, seed: 0 };
        assert_eq!(Striker::start(Scene::new(), nothing).unwrap().stop(), 0);
    }
}
