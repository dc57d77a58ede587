//! How many workers each infer stage gets on each device, and with how many threads. Arithmetic only.

use crate::bytes::format_bytes;
use crate::devices::Device;
use crate::diagnostics::{Diagnostics, Span};
use crate::plan::WorkerMemory;
use crate::raw::RawModel;

/// One-thread workers on the CPU beyond this number gain nothing but memory use.
const MAX_DEFAULT_CPU_WORKERS: usize = 8;
/// Workers on a GPU when the model declares its memory and asks for no number.
const DEFAULT_CUDA_WORKERS: usize = 4;

/// An infer stage that wants workers.
#[derive(Debug)]
pub(crate) struct Demand<'a> {
    /// Name of the stage.
    pub stage: &'a str,
    pub model: &'a RawModel,
    /// Size of the model's file, weights included.
    pub model_bytes: u64,
    /// Places in the device table.
    pub devices: Vec<usize>,
    /// Device memory of one worker on each of these, where it is known.
    pub memory: Vec<Option<WorkerMemory>>,
}

impl Demand<'_> {
    fn memory_on(&self, device: usize) -> Option<WorkerMemory> {
        let at = self.devices.iter().position(|d| *d == device)?;
        self.memory.get(at).copied().flatten()
    }
}

/// Workers of one stage on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub device: usize,
    pub count: usize,
    pub threads: usize,
    pub spares: usize,
    pub memory: Option<WorkerMemory>,
}

/// Places the workers of all stages: per stage its shares. Errors (memory) are reported.
pub(crate) fn place(
    demands: &[Demand<'_>],
    devices: &[Device],
    cores: usize,
    headroom: u64,
    reasons: &mut Vec<String>,
    diags: &mut Diagnostics,
) -> Vec<Vec<Share>> {
    let mut shares: Vec<Vec<Share>> = demands.iter().map(|_| Vec::new()).collect();
    let on = |device: usize| -> Vec<usize> {
        (0..demands.len()).filter(|d| demands[*d].devices.contains(&device)).collect()
    };
    let n_cpus = (0..devices.len()).filter(|d| !devices[*d].is_cuda() && !on(*d).is_empty()).count();
    for (index, device) in devices.iter().enumerate() {
        let stages = on(index);
        let placed = if stages.is_empty() {
            continue;
        } else if device.is_cuda() {
            let gpu = OnCuda { demands, stages: &stages, index, device, headroom };
            gpu.place(reasons, diags)
        } else {
            let cores = (cores / n_cpus.max(1)).max(1);
            on_cpu(demands, &stages, device, cores, reasons)
        };
        for (stage, (count, threads)) in stages.into_iter().zip(placed) {
            let memory = demands[stage].memory_on(index).filter(|_| device.is_cuda());
            shares[stage].push(Share { device: index, count, threads, spares: 0, memory });
        }
    }
    shares
}

fn on_cpu(
    demands: &[Demand<'_>],
    stages: &[usize],
    device: &Device,
    cores: usize,
    reasons: &mut Vec<String>,
) -> Vec<(usize, usize)> {
    let weights: Vec<u32> = stages.iter().map(|s| demands[*s].model.priority).collect();
    let parts = divide(cores, &weights);
    stages
        .iter()
        .zip(parts)
        .map(|(stage, part)| {
            let Demand { stage, model, .. } = &demands[*stage];
            let asked = model.workers.as_ref().map(|w| w.value as usize);
            let (count, threads) = match (asked, model.threads) {
                (Some(count), Some(threads)) => (count, threads),
                (Some(count), None) => (count, (part / count).max(1)),
                (None, Some(threads)) => ((part / threads).clamp(1, MAX_DEFAULT_CPU_WORKERS), threads),
                (None, None) => {
                    let count = part.clamp(1, MAX_DEFAULT_CPU_WORKERS);
                    (count, (part / count).max(1))
                }
            };
            let why = match (asked, model.threads) {
                (Some(_), Some(_)) => "workers and threads as asked".into(),
                (Some(_), None) => format!("workers as asked, sharing {}", plural(part, "core")),
                (None, Some(_)) => format!("threads as asked, sharing {}", plural(part, "core")),
                (None, None) => format!(
                    "its share is {} of {cores}; workers of few threads outrun one of many",
                    plural(part, "core")
                ),
            };
            reasons.push(format!(
                "stage `{stage}` on {}: {} of {}: {why}",
                device.name,
                plural(count, "worker"),
                plural(threads, "thread")
            ));
            (count, threads)
        })
        .collect()
}

/// The stages that share a GPU.
struct OnCuda<'a> {
    demands: &'a [Demand<'a>],
    stages: &'a [usize],
    /// Its place in the device table.
    index: usize,
    device: &'a Device,
    headroom: u64,
}

impl OnCuda<'_> {
    fn model(&self, stage: usize) -> &RawModel {
        self.demands[stage].model
    }

    /// Bytes of one worker of a stage; 0 where that is not known.
    fn worker(&self, stage: usize) -> u64 {
        self.demands[stage].memory_on(self.index).map_or(0, WorkerMemory::bytes)
    }

    /// Bytes of the first worker of a stage and of its spares.
    fn least(&self, stage: usize) -> u64 {
        let spares = self.model(stage).spare.as_ref().map_or(0, |n| n.value);
        self.worker(stage).saturating_mul(1 + spares)
    }

    /// What all workers together may take.
    fn room(&self) -> Option<u64> {
        self.device.memory.map(|(_, free)| free.saturating_sub(self.headroom))
    }

    /// Where nothing is known of one model, the others must not take the room that it may need.
    fn wanted(&self, stage: usize) -> usize {
        let is_known = |s: &usize| self.demands[*s].memory_on(self.index).is_some();
        if self.model(stage).workers.is_none() && !self.stages.iter().all(is_known) {
            return 1;
        }
        match (&self.model(stage).workers, self.demands[stage].memory_on(self.index), self.device.memory) {
            (Some(asked), _, _) => asked.value as usize,
            (None, Some(_), Some(_)) => DEFAULT_CUDA_WORKERS,
            (None, _, _) => 1,
        }
    }

    /// Workers and threads of each stage. One worker and its spares each, then the rest in turns, the stage furthest behind its priority
    /// first, as long as there is room.
    fn place(&self, reasons: &mut Vec<String>, diags: &mut Diagnostics) -> Vec<(usize, usize)> {
        let wanted: Vec<usize> = self.stages.iter().map(|s| self.wanted(*s)).collect();
        let mut counts = vec![1; self.stages.len()];
        let needed = self.stages.iter().map(|s| self.least(*s)).fold(0u64, u64::saturating_add);
        let room = self.room().unwrap_or(u64::MAX);
        if needed > room {
            self.full(needed, reasons, diags);
        }
        let mut left = room.saturating_sub(needed);
        loop {
            let next = (0..self.stages.len())
                .filter(|i| counts[*i] < wanted[*i] && self.worker(self.stages[*i]) <= left)
                .min_by_key(|i| (behind(counts[*i], self.model(self.stages[*i]).priority), *i));
            let Some(next) = next else { break };
            left -= self.worker(self.stages[next]);
            counts[next] += 1;
        }
        for ((stage, count), wanted) in self.stages.iter().zip(&counts).zip(&wanted) {
            let why = self.reason(*stage, *count, *wanted);
            reasons.push(format!(
                "stage `{}` on {}: {}: {why}",
                self.demands[*stage].stage,
                self.device.name,
                plural(*count, "worker")
            ));
        }
        self.stages
            .iter()
            .zip(counts)
            .map(|(s, count)| (count, self.model(*s).threads.unwrap_or(1)))
            .collect()
    }

    fn reason(&self, stage: usize, count: usize, wanted: usize) -> String {
        let memory = self.demands[stage].memory_on(self.index);
        match (memory, self.room()) {
            (Some(memory), Some(room)) if count < wanted => {
                let asked = match self.model(stage).workers {
                    Some(_) => format!(" of the {wanted} asked for"),
                    None => String::new(),
                };
                format!(
                    "as many{asked} as fit: {} each ({}), and {} are free beyond the headroom of {}",
                    format_bytes(memory.bytes()),
                    memory.word(),
                    format_bytes(room),
                    format_bytes(self.headroom)
                )
            }
            (_, _) if self.model(stage).workers.is_some() => "as asked".into(),
            (Some(memory), Some(_)) => {
                format!(
                    "{} each ({}); more than {wanted} gain little",
                    format_bytes(memory.bytes()),
                    memory.word()
                )
            }
            _ => "the default where the model declares no `memory` and no earlier run has measured it".into(),
        }
    }

    /// What the file says is believed. What an earlier run has seen may have been somebody else's, so it is tried, and measured again.
    fn full(&self, needed: u64, reasons: &mut Vec<String>, diags: &mut Diagnostics) {
        let is_declared = |s: &usize| self.model(*s).memory.is_some();
        if self.stages.iter().any(is_declared) {
            return self.report_full(needed, diags);
        }
        let room = self.room().unwrap_or_default();
        reasons.push(format!(
            "device {}: earlier runs have measured {} for one worker per model, and {} are free beyond the headroom; one each is tried all the same",
            self.device.name,
            format_bytes(needed),
            format_bytes(room)
        ));
    }

    fn report_full(&self, needed: u64, diags: &mut Diagnostics) {
        let mut spans = self.stages.iter().filter_map(|s| self.model(*s).memory.as_ref().map(|m| m.span));
        let span: Option<Span> = spans.next_back();
        let (total, free) = self.device.memory.unwrap_or_default();
        let has_spare = |s: &usize| self.model(*s).spare.as_ref().is_some_and(|n| n.value > 0);
        let who = match self.stages.iter().any(has_spare) {
            true => "one worker per model, with the spares, needs",
            false => "one worker per model needs",
        };
        let parts: Vec<String> = self
            .stages
            .iter()
            .filter(|s| self.least(**s) > 0)
            .map(|s| format!("`{}` {}", self.demands[*s].stage, format_bytes(self.least(*s))))
            .collect();
        let sum = if parts.len() > 1 { format!(" ({})", parts.join(" + ")) } else { String::new() };
        diags
            .error(
                span,
                format!(
                    "device `{}` is too full: {who} {}{sum}, and {} of {} are free, {} of them headroom",
                    self.device.name,
                    format_bytes(needed),
                    format_bytes(free),
                    format_bytes(total),
                    format_bytes(self.headroom.min(free))
                ),
            )
            .help("free the device, lower `devices.headroom`, or put models on different devices with `devices`")
            .unavailable();
    }
}

/// Cuts `total` into parts by weight, each at least 1: one each, then one at a time to the part furthest behind its weight.
fn divide(total: usize, weights: &[u32]) -> Vec<usize> {
    let mut parts = vec![1; weights.len()];
    for _ in weights.len()..total {
        if let Some(next) = (0..parts.len()).min_by_key(|i| (behind(parts[*i], weights[*i]), *i)) {
            parts[next] += 1;
        }
    }
    parts
}

/// Smaller for a part that has less of what its weight gives it.
fn behind(part: usize, weight: u32) -> u64 {
    part as u64 * 1_000_000 / u64::from(weight.max(1))
}

pub(crate) fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::divide;

    #[test]
    fn cores_are_divided_by_weight() {
        assert_eq!(divide(8, &[30, 10]), [6, 2]);
        assert_eq!(divide(8, &[10, 10, 10]), [3, 3, 2]);
        assert_eq!(divide(1, &[10, 10]), [1, 1]);
        assert_eq!(divide(4, &[100, 1]), [3, 1]);
        assert_eq!(divide(4, &[]), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn every_core_is_given_once_and_nobody_gets_none(
            total in 1usize..200,
            weights in proptest::collection::vec(1u32..=100, 1..10),
        ) {
            let parts = divide(total, &weights);
            prop_assert!(parts.iter().all(|p| *p >= 1));
            prop_assert_eq!(parts.iter().sum::<usize>(), total.max(weights.len()));
        }
    }
}
