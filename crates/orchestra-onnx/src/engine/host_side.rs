//! The host's end of a GPU's copies: slots that are page-locked, or rows between the GPU and the slots, or neither. It decides which,
//! once, and says it; it runs nothing.

use std::sync::Arc;

use orchestra_worker::arena::WorkerArena;

use super::cuda_runtime::CudaRuntime;
use super::host_memory::HostMemory;
use super::memory::PrivateRows;
use super::model::Model;
use super::page_lock::{PageLock, Refused};

/// Output slots that are page-locked beyond those of the batches that run: two batches wait at the worker, and two are being processed. Each
/// worker has as many output slots as its stage has slots, and what is page-locked takes memory whether it is used or not. The GPU copies to
/// the others more slowly; a stage that uses them waits for what follows it.
const OUTPUTS_BESIDE: usize = 4;

/// What copies of a session go through. The default is that of the CPU: sessions read and write the slots themselves. Drop it before the
/// arena.
#[derive(Default)]
pub struct HostSide {
    /// For parts of the slots that could not be page-locked.
    pub staging: Option<PrivateRows>,
    /// Where rows beside the slots come from.
    pub memory: Arc<HostMemory>,
    refused: Refused,
    _page_lock: Option<Arc<PageLock>>,
}

impl HostSide {
    /// For the GPU of this process, which runs so many batches at once. Call it when the provider is loaded.
    pub fn of_gpu(arena: &WorkerArena, model: &Model, streams: usize) -> HostSide {
        let Some(cuda) = CudaRuntime::of_this_process() else {
            eprintln!(
                "worker: batch slots are not page-locked: CUDA's runtime is not in the process under a known name"
            );
            return HostSide::default();
        };
        let (side, note) = HostSide::with(cuda, arena, model, streams + OUTPUTS_BESIDE);
        if let Some(note) = note {
            eprintln!("worker: {note}");
        }
        side
    }

    /// For another run beside those that there are: rows of its own between the GPU and the slots, and all else in common.
    pub fn beside(&self, model: &Model) -> HostSide {
        let page_locked = |bytes| self.memory.page_locked(bytes);
        let staging =
            self.staging.as_ref().map(|_| PrivateRows::for_refused(model, &self.refused, page_locked));
        if let Some(Err(why)) = &staging {
            eprintln!("worker: rows of one more stream are not page-locked, so copies take longer: {why}");
        }
        HostSide {
            staging: staging.and_then(Result::ok),
            memory: Arc::clone(&self.memory),
            refused: self.refused.clone(),
            _page_lock: self._page_lock.clone(),
        }
    }

    /// With what is not as fast as it could be, if anything. What is refused goes the next way: slots that are locked for reading only, slots
    /// that are locked, page-locked rows between, slots as they are.
    pub fn with(
        cuda: CudaRuntime,
        arena: &WorkerArena,
        model: &Model,
        output_slots: usize,
    ) -> (HostSide, Option<String>) {
        let (lock, refused) = PageLock::of(cuda, arena, output_slots);
        let memory = Arc::new(HostMemory::for_gpu(cuda));
        let page_locked = |bytes| memory.page_locked(bytes);
        let staging = (!refused.is_nothing()).then(|| PrivateRows::for_refused(model, &refused, page_locked));
        let note = match &staging {
            None => None,
            Some(Ok(staging)) => Some(format!(
                "batch slots are not all page-locked ({refused}); their rows go through {} bytes that are",
                staging.bytes()
            )),
            Some(Err(why)) => Some(format!(
                "batch slots are not all page-locked ({refused}), and no rows beside them either ({why}), so copies take longer; \
                 raise the limit of locked memory (`ulimit -l`)"
            )),
        };
        let staging = staging.and_then(Result::ok);
        (HostSide { staging, memory, refused, _page_lock: Some(Arc::new(lock)) }, note)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::SessionTuning;

    use super::super::cuda_runtime::fake;
    use super::super::fake_gpu::{MAX_ROWS, Twin};
    use super::*;

    /// Inputs and outputs of the twin's slots lie on pages of their own; a row of either has so many bytes.
    const ROW: usize = 12;

    /// A twin that believes in a GPU whose runtime refuses these calls, and what it says about that.
    fn on_a_gpu(refused: &[&'static str]) -> (Twin, Option<String>) {
        let mut twin = Twin::load(SessionTuning::default(), &[]);
        fake::refuse(refused);
        let serving = twin.serving();
        let (host, note) = HostSide::with(fake::RUNTIME, &serving.shared.arena, &serving.shared.model, 1);
        serving.host = host;
        (twin, note)
    }

    fn works(twin: &mut Twin) {
        for (seed, (first, rows)) in (1..).zip([(0, MAX_ROWS), (2, 3), (7, 1), (0, 5)]) {
            twin.check(first, rows, seed);
        }
    }

    #[test]
    fn page_locked_slots_are_read_and_written_in_place_and_unlocked_in_the_end() {
        let (mut twin, note) = on_a_gpu(&[]);
        assert_eq!(note, None);
        assert!(twin.serving().host.staging.is_none());
        works(&mut twin);
        drop(twin);
        let calls = fake::calls();
        let count = |what: &str| calls.iter().filter(|call| call.starts_with(what)).count();
        assert_eq!((count("register"), count("unregister"), count("alloc")), (2, 2, 0), "{calls:?}");
    }

    #[test]
    fn rows_of_slots_that_are_refused_go_through_page_locked_memory() {
        let (mut twin, note) = on_a_gpu(&["register"]);
        let bytes = 2 * ROW * MAX_ROWS;
        assert_eq!(
            note.unwrap(),
            format!(
                "batch slots are not all page-locked (inputs: CUDA error 801, operation not supported; outputs: CUDA error 801, \
                 operation not supported); their rows go through {bytes} bytes that are"
            )
        );
        works(&mut twin);
        drop(twin);
        let calls = fake::calls();
        assert_eq!(calls.iter().filter(|call| *call == "free").count(), 2, "{calls:?}");
        assert!(!fake::holds_an_error());
    }

    #[test]
    fn only_what_is_refused_is_staged() {
        // A mapping that may only be read: some drivers refuse it whatever the flags.
        let (mut twin, _) = on_a_gpu(&[]);
        let serving = twin.serving();
        let inputs: &'static str =
            format!("register {} ", serving.shared.arena.all_inputs().ptr as usize).leak();
        fake::refuse(&[inputs]);
        let (host, note) = HostSide::with(fake::RUNTIME, &serving.shared.arena, &serving.shared.model, 1);
        assert!(note.unwrap().contains("(inputs: CUDA error 801, operation not supported); their rows"));
        assert_eq!(host.staging.as_ref().unwrap().bytes(), ROW * MAX_ROWS);
        serving.host = host;
        works(&mut twin);
    }

    #[test]
    fn where_nothing_can_be_page_locked_copies_are_slow_and_right() {
        let (mut twin, note) = on_a_gpu(&["register", "alloc"]);
        let note = note.unwrap();
        assert!(
            note.ends_with("so copies take longer; raise the limit of locked memory (`ulimit -l`)"),
            "{note}"
        );
        assert!(twin.serving().host.staging.is_none());
        works(&mut twin);
        assert!(!fake::holds_an_error());
    }

    #[test]
    fn padded_batches_have_page_locked_rows() {
        let (mut twin, _) = on_a_gpu(&[]);
        twin.serving().batch_sizes = vec![4, 8];
        works(&mut twin);
        let calls = fake::calls();
        let allocated: Vec<&str> =
            calls.iter().map(String::as_str).filter(|call| call.starts_with("alloc")).collect();
        assert_eq!(allocated, ["alloc 48 0", "alloc 48 0", "alloc 96 0", "alloc 96 0"]);
    }
}
