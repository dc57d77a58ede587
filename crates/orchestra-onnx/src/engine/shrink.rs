//! Makes the runtime's arena give back what a run leaves unused. How far an arena may grow is the business of `cpu_arena` and `cuda`.
//!
//! An arena takes memory in regions, one for a request that fits into none of those that are there, and keeps them all. Sizes that are
//! run one after the other, each larger than the last, therefore leave it with far more than the largest of them needs, and a batch that
//! did not fit leaves it with whatever it got before it failed: regions that were cut for that batch, and suit no smaller one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orchestra_core::DeviceKind;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{RunOptions, Session};

/// The run option. A run that has it frees every region in which nothing lies when it is over, also when it fails.
const OPTION: &str = "memory.enable_memory_arena_shrinkage";

/// When the arena shrinks. `O` are the runtime's options of a run.
pub struct Shrink<O = RunOptions> {
    /// `None` once the runtime has said that there is no arena.
    options: Option<O>,
    /// The arena is one for all streams of a session, and so is the wish: whichever runs next carries it out.
    after_next: Arc<AtomicBool>,
}

impl Shrink {
    /// After runs of a session on the device, when it is asked for.
    pub fn new(session: &Session, device: &DeviceKind) -> ort::Result<Shrink> {
        // A worker sees one device, whose number is 0.
        let arena = match device {
            DeviceKind::Cpu => {
                keep_batches_out_of_the_first_region(session)?;
                "cpu:0"
            }
            DeviceKind::Cuda { .. } => "gpu:0",
        };
        let mut options = RunOptions::new()?;
        options.set(OPTION, arena)?;
        Ok(Shrink { options: Some(options), after_next: Arc::default() })
    }

    /// For another stream of the same session.
    pub fn another(&self, session: &Session, device: &DeviceKind) -> ort::Result<Shrink> {
        Ok(Shrink { after_next: Arc::clone(&self.after_next), ..Shrink::new(session, device)? })
    }
}

/// An arena that doubles, as that of the CPU does, never gives back its first region. Weights lie there; where a model has none, it shall
/// be a small one.
fn keep_batches_out_of_the_first_region(session: &Session) -> ort::Result<()> {
    let arena = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Arena, MemoryType::Default)?;
    Allocator::new(session, arena)?.alloc::<u8>(1).map(drop)
}

impl<O> Shrink<O> {
    /// Asks for it after the next run.
    pub fn after_next(&mut self) {
        self.after_next.store(true, Ordering::Relaxed);
    }

    /// Runs `run` once, with the options that it needs now. Where they are refused, as where there is no arena, it runs without, and
    /// they are never tried again.
    pub fn around<T>(&mut self, mut run: impl FnMut(Option<&O>) -> ort::Result<T>) -> ort::Result<T> {
        let wanted = self.after_next.swap(false, Ordering::Relaxed);
        let Some(options) = self.options.as_ref().filter(|_| wanted) else { return run(None) };
        match run(Some(options)) {
            Err(error) if is_refusal(&error.to_string()) => {
                eprintln!("worker: unused memory cannot be given back: {error}");
                self.options = None;
                run(None)
            }
            ran => ran,
        }
    }
}

/// Whether this says that the option itself is refused: then nothing has run.
fn is_refusal(text: &str) -> bool {
    text.contains("arena based allocator")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of three runs were asked to shrink, where the second one shall. A runtime without an arena refuses.
    fn asked(shrink: &mut Shrink<()>, has_arena: bool) -> Vec<bool> {
        let mut asked = Vec::new();
        for n in 0..3 {
            if n == 1 {
                shrink.after_next();
            }
            let ran = shrink.around(|options| {
                asked.push(options.is_some());
                match options {
                    Some(()) if !has_arena => Err(ort::Error::new(
                        "Did not find an arena based allocator registered for device-id combination in the memory arena shrink list",
                    )),
                    _ => Ok(n),
                }
            });
            assert_eq!(ran.unwrap(), n);
        }
        asked
    }

    fn shrink() -> Shrink<()> {
        Shrink { options: Some(()), after_next: Arc::default() }
    }

    #[test]
    fn the_arena_shrinks_after_the_run_that_was_asked_for() {
        assert_eq!(asked(&mut shrink(), true), [false, true, false]);
    }

    #[test]
    fn what_one_stream_asks_for_the_next_run_of_any_carries_out() {
        let (mut first, mut second) = (shrink(), shrink());
        second.after_next = Arc::clone(&first.after_next);
        first.after_next();
        let asked = |shrink: &mut Shrink<()>| shrink.around(|options| Ok(options.is_some())).unwrap();
        assert_eq!((asked(&mut second), asked(&mut first)), (true, false));
    }

    #[test]
    fn where_there_is_no_arena_every_run_goes_on_without() {
        assert_eq!(asked(&mut shrink(), false), [false, true, false, false]);
    }

    #[test]
    fn what_fails_for_another_reason_is_not_run_again() {
        let mut runs = 0;
        let mut shrink = shrink();
        shrink.after_next();
        let ran = shrink.around(|_| {
            runs += 1;
            Err::<(), _>(ort::Error::new("CUDA failure 2: out of memory"))
        });
        assert!(ran.is_err());
        assert_eq!(runs, 1);
    }
}
