//! How many batch slots each batch stage gets, within a bound on their memory. Reserves nothing itself.

use orchestra_core::TensorSpec;
use orchestra_core::batch_layout::{BatchLayout, LayoutError};

use crate::bytes::format_bytes;

/// A stage that needs slots.
#[derive(Debug)]
pub(crate) struct SlotDemand<'a> {
    pub stage: &'a str,
    pub inputs: &'a [TensorSpec],
    pub outputs: &'a [TensorSpec],
    pub max_batch: usize,
    /// Batches that may go to a worker together, where the file says so.
    pub together: Option<usize>,
    /// Workers on all devices, at first.
    pub workers: usize,
    /// Workers that there may be in the end.
    pub most: usize,
    /// Batches that each of them runs at once.
    pub streams: usize,
    /// All of them run on the cores.
    pub on_cpu: bool,
}

/// Up to so many bytes a batch is small.
const SMALL: usize = 1 << 20;

/// Up to so many rows go to a worker together: a frame of them takes long enough beside the way there and back.
const TOGETHER_ROWS: usize = 256;

/// Batches that wait at a worker beyond those that it runs. One is enough where a batch takes longer than the way of an answer. Where
/// models run on the cores, an answer waits for its turn there, for some milliseconds, and a small batch takes no longer than that.
pub(crate) fn ready_batches(layout: &BatchLayout, on_cpu: bool) -> usize {
    let is_small = layout.slot_bytes() <= SMALL;
    if on_cpu && is_small { 2 } else { 1 }
}

impl SlotDemand<'_> {
    /// What workers may hold, two being filled.
    fn wanted(&self, together: usize) -> Result<usize, LayoutError> {
        let ready = ready_batches(&self.layout(1, together)?, self.on_cpu);
        Ok(((self.streams + ready) * self.most + 2).max(3))
    }

    /// How many batches there is room for in a slot: small ones may go to a worker together where models run on the cores. On a GPU they
    /// overlap anyway, and what travels in frames is no matter of slots.
    fn together(&self) -> Result<usize, LayoutError> {
        let one = self.layout(1, 1)?;
        if !self.on_cpu || one.outputs.iter().any(Option::is_none) {
            return Ok(1);
        }
        let by_bytes = SMALL / one.slot_bytes().max(1);
        let by_rows = TOGETHER_ROWS / self.max_batch.max(1);
        Ok(by_bytes.min(by_rows).min(self.together.unwrap_or(usize::MAX)).max(1))
    }

    fn layout(&self, slots: usize, together: usize) -> Result<BatchLayout, LayoutError> {
        let rows = self.max_batch.checked_mul(together).ok_or(LayoutError::TooLarge)?;
        BatchLayout::new(self.inputs, self.outputs, rows, slots)
    }
}

/// Why there are no slots.
#[derive(Debug)]
pub(crate) enum SlotError {
    /// One stage's slots cannot be laid out.
    Layout { stage: usize, error: LayoutError },
    /// One slot per worker is more than the bound.
    TooLittleMemory { needed: u64 },
}

/// Lays out the slots of all stages in at most `limit` bytes: all that are wanted; where that is too much, those without room for batches
/// that go together; and where that is, too, fewer of them, but one per worker that there is at first.
pub(crate) fn allot(
    demands: &[SlotDemand<'_>],
    limit: Option<u64>,
    reasons: &mut Vec<String>,
) -> Result<Vec<BatchLayout>, SlotError> {
    let each = |of: &dyn Fn(&SlotDemand<'_>, usize) -> Result<usize, LayoutError>, together: &[usize]| {
        let of = |(stage, demand): (usize, &SlotDemand<'_>)| {
            of(demand, together[stage]).map_err(|error| SlotError::Layout { stage, error })
        };
        demands.iter().enumerate().map(of).collect::<Result<Vec<usize>, _>>()
    };
    let wanted = |together: &[usize]| each(&|demand, together| demand.wanted(together), together);
    let bytes =
        |together: &[usize]| each(&|demand, together| Ok(demand.layout(1, together)?.slot_bytes()), together);
    let total = |slots: &[usize], per_slot: &[usize]| -> u64 {
        slots
            .iter()
            .zip(per_slot)
            .fold(0_u64, |sum, (n, bytes)| sum.saturating_add((*bytes as u64).saturating_mul(*n as u64)))
    };
    let mut together = each(&|demand, _| demand.together(), &vec![1; demands.len()])?;
    for (demand, room) in demands.iter().zip(&together) {
        if demand.together.is_some_and(|asked| asked > 1) && *room == 1 {
            reasons.push(format!(
                "stage `{}`: each batch by itself, whatever `batch.together` says: only small ones of outputs with a known shape go together, \
                 on the CPU",
                demand.stage
            ));
        }
    }
    let (mut slots, mut per_slot) = (wanted(&together)?, bytes(&together)?);
    if limit.is_some_and(|limit| total(&slots, &per_slot) > limit) {
        for (demand, together) in demands.iter().zip(&together) {
            if *together > 1 {
                reasons.push(format!(
                    "stage `{}`: batches do not go together: with room for that all slots would take more than {}",
                    demand.stage,
                    format_bytes(limit.unwrap_or_default())
                ));
            }
        }
        together.fill(1);
        (slots, per_slot) = (wanted(&together)?, bytes(&together)?);
    }
    if let Some(limit) = limit {
        let total = |slots: &[usize]| total(slots, &per_slot);
        let least: Vec<usize> = demands.iter().map(|d| d.workers.max(1)).collect();
        if total(&least) > limit {
            return Err(SlotError::TooLittleMemory { needed: total(&least) });
        }
        let wanted = slots.clone();
        while total(&slots) > limit {
            // The stage that holds the most above its least gives one back.
            let spare = |s: &usize| (slots[*s] - least[*s]) as u64 * per_slot[*s] as u64;
            let Some(largest) = (0..slots.len()).filter(|s| slots[*s] > least[*s]).max_by_key(|s| spare(s))
            else {
                break;
            };
            slots[largest] -= 1;
        }
        for (s, demand) in demands.iter().enumerate() {
            if slots[s] < wanted[s] {
                reasons.push(format!(
                    "stage `{}`: {} batch slots instead of {}: all slots together may take {}",
                    demand.stage,
                    slots[s],
                    wanted[s],
                    format_bytes(limit)
                ));
            }
        }
    }
    let layout = |(stage, slots): (usize, usize)| {
        let layout = demands[stage].layout(slots, together[stage]);
        layout.map_err(|error| SlotError::Layout { stage, error })
    };
    slots.into_iter().enumerate().map(layout).collect()
}
