//! How many batch slots each batch stage gets, within a bound on their memory. Reserves nothing itself.

use orchestra_core::TensorSpec;
use orchestra_core::batch_layout::{BatchLayout, LayoutError};

use crate::bytes::format_bytes;
use crate::fields::At;

#[derive(Debug)]
pub(crate) struct SlotDemand<'a> {
    pub stage: &'a At<String>,
    pub inputs: &'a [TensorSpec],
    pub outputs: &'a [TensorSpec],
    pub max_batch: usize,
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
pub(crate) const SMALL: usize = 1 << 20;

/// Batches that wait at a worker beyond those that it runs. One is enough where a batch takes longer than the way of an answer. Where
/// models run on the cores, an answer waits for its turn there, for some milliseconds, and a small batch takes no longer than that.
pub(crate) fn ready_batches(layout: &BatchLayout, on_cpu: bool) -> usize {
    let is_small = layout.slot_bytes() <= SMALL;
    if on_cpu && is_small { 2 } else { 1 }
}

impl SlotDemand<'_> {
    /// What workers may hold, two being filled.
    fn wanted(&self) -> Result<usize, LayoutError> {
        let ready = ready_batches(&self.layout(1)?, self.on_cpu);
        Ok(((self.streams + ready) * self.most + 2).max(3))
    }

    fn layout(&self, slots: usize) -> Result<BatchLayout, LayoutError> {
        BatchLayout::new(self.inputs, self.outputs, self.max_batch, slots)
    }
}

#[derive(Debug)]
pub(crate) enum SlotError {
    /// One stage's slots cannot be laid out.
    Layout { stage: usize, error: LayoutError },
    /// One slot per worker is more than the bound.
    TooLittleMemory { needed: u64 },
}

/// Lays out the slots of all stages in at most `limit` bytes: all that are wanted; where that is too much, fewer of them, but one per worker
/// that there is at first.
pub(crate) fn allot(
    demands: &[SlotDemand<'_>],
    limit: Option<u64>,
    reasons: &mut Vec<String>,
) -> Result<Vec<BatchLayout>, SlotError> {
    let each = |of: &dyn Fn(&SlotDemand<'_>) -> Result<usize, LayoutError>| {
        let of = |(stage, demand): (usize, &SlotDemand<'_>)| {
            of(demand).map_err(|error| SlotError::Layout { stage, error })
        };
        demands.iter().enumerate().map(of).collect::<Result<Vec<usize>, _>>()
    };
    let per_slot = each(&|demand| Ok(demand.layout(1)?.slot_bytes()))?;
    let mut slots = each(&|demand| demand.wanted())?;
    if let Some(limit) = limit {
        let total = |slots: &[usize]| -> u64 {
            let of_stage = |(n, bytes): (&usize, &usize)| (*bytes as u64).saturating_mul(*n as u64);
            slots.iter().zip(&per_slot).map(of_stage).fold(0, u64::saturating_add)
        };
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
                    demand.stage.value,
                    slots[s],
                    wanted[s],
                    format_bytes(limit)
                ));
            }
        }
    }
    let layout = |(stage, slots): (usize, usize)| {
        let layout = demands[stage].layout(slots);
        layout.map_err(|error| SlotError::Layout { stage, error })
    };
    slots.into_iter().enumerate().map(layout).collect()
}
