//! How many batch slots each batch stage gets, within a bound on their memory. Reserves nothing itself.

use orchestra_core::TensorSpec;
use orchestra_core::batch_layout::{BatchLayout, LayoutError, PAGE};

use crate::bytes::format_bytes;
use crate::fields::Spanned;

#[derive(Debug)]
pub(crate) struct SlotDemand<'a> {
    pub stage: &'a Spanned<String>,
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
    fn wanted(&self, one: &BatchLayout) -> usize {
        ((self.streams + ready_batches(one, self.on_cpu)) * self.most + 2).max(3)
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
    let one = |(stage, demand): (usize, &SlotDemand<'_>)| {
        demand.layout(1).map_err(|error| SlotError::Layout { stage, error })
    };
    let ones = demands.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    let mut slots: Vec<usize> = demands.iter().zip(&ones).map(|(demand, one)| demand.wanted(one)).collect();
    if let Some(limit) = limit {
        // Arenas and outputs are whole pages, as in `BatchLayout::total_bytes`.
        let block = |n: usize, bytes: usize| {
            let bytes = (bytes as u64).saturating_mul(n as u64);
            bytes.checked_next_multiple_of(PAGE as u64).unwrap_or(u64::MAX)
        };
        let total = |slots: &[usize]| -> u64 {
            let of_stage = |(n, one): (&usize, &BatchLayout)| {
                block(*n, one.input_slot_bytes).saturating_add(block(*n, one.output_slot_bytes))
            };
            slots.iter().zip(&ones).map(of_stage).fold(0, u64::saturating_add)
        };
        let least: Vec<usize> = demands.iter().map(|d| d.workers.max(1)).collect();
        if total(&least) > limit {
            return Err(SlotError::TooLittleMemory { needed: total(&least) });
        }
        let wanted = slots.clone();
        while total(&slots) > limit {
            // The stage that holds the most above its least gives one back.
            let spare = |s: &usize| (slots[*s] - least[*s]) as u64 * ones[*s].slot_bytes() as u64;
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
