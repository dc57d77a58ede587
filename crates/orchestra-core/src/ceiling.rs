//! How large a batch one device takes of one model: halved when memory runs out, raised again slowly.
//! It never decides what happens to the batch that ran out of memory; the ledger does.

/// Additive increase, multiplicative decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    max: usize,
    current: usize,
    successes: u32,
}

/// So many full-sized batches must pass before one more row is tried.
const SUCCESSES_PER_STEP: u32 = 16;

impl Ceiling {
    pub fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { max, current: max, successes: 0 }
    }

    pub fn rows(&self) -> usize {
        self.current
    }

    /// A batch of `rows` rows ran out of memory: never send one as large until it was grown back.
    pub fn out_of_memory(&mut self, rows: usize) {
        let lowered = (rows / 2).max(1);
        self.successes = 0;
        self.current = self.current.min(lowered);
    }

    pub fn succeeded(&mut self, rows: usize) {
        if self.current == self.max || rows < self.current {
            return;
        }
        self.successes += 1;
        if self.successes >= SUCCESSES_PER_STEP {
            self.successes = 0;
            self.current = (self.current + (self.max / 8).max(1)).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_pressure_halves_and_success_raises_it_again_to_the_maximum_and_no_further() {
        let mut c = Ceiling::new(64);
        c.out_of_memory(64);
        assert_eq!(c.rows(), 32);
        c.out_of_memory(64);
        assert_eq!(c.rows(), 32, "news of an older, larger batch changes nothing");
        for _ in 0..10_000 {
            c.succeeded(c.rows());
            assert!(c.rows() <= 64);
        }
        assert_eq!(c.rows(), 64);
    }

    #[test]
    fn small_batches_prove_nothing_about_a_larger_ceiling() {
        let mut c = Ceiling::new(8);
        c.out_of_memory(8);
        for _ in 0..1000 {
            c.succeeded(1);
        }
        assert_eq!(c.rows(), 4);
    }
}
