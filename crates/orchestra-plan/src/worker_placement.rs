//! How many workers each batch stage gets on each device, and with how many threads. Arithmetic only.

use orchestra_core::DeviceId;
use orchestra_core::device_share::{Want, share_out};

use crate::bytes::format_bytes;
use crate::cx::Cx;
use crate::devices::Device;
use crate::diagnostics::Span;
use crate::plan::{WorkerGrowth, WorkerPlan};
use crate::priority::divide;
use crate::workflow::ModelNode;

/// One-thread workers on the CPU beyond this number gain nothing but memory use.
const MAX_DEFAULT_CPU_WORKERS: usize = 8;
/// Workers on a GPU that compute at once, by MPS, or that take turns by their priorities, where it is known, or found out in the run, how many
/// fit, and no number is asked for; of all models together where priorities differ. Where they take turns, one is as fast as four, and keeps one core busy (docs/measurements.md).
const DEFAULT_CUDA_WORKERS: usize = 4;

/// A batch stage that wants workers.
#[derive(Debug)]
pub(crate) struct WorkerDemand<'a> {
    pub stage: &'a str,
    /// Its place among the stages.
    pub at: usize,
    /// That end before it starts: stages with fewer or more do not run beside it.
    pub n_reduces: usize,
    pub model: &'a ModelNode,
    /// Places in the device table.
    pub devices: Vec<usize>,
}

/// All stages that want workers, and what they share.
pub(crate) struct WorkerPlacement<'a> {
    pub demands: &'a [WorkerDemand<'a>],
    pub devices: &'a [Device],
    /// Bytes of each device that more than one worker of each model leaves to commands.
    pub of_shares: Vec<u64>,
    /// Of each CPU device.
    pub cores: usize,
    /// Bytes of each GPU that stay free.
    pub headroom: u64,
}

impl WorkerPlacement<'_> {
    /// The workers of each stage. Errors (memory) are reported.
    pub fn place(&self, cx: &mut Cx<'_>) -> Vec<Vec<WorkerPlan>> {
        let mut workers: Vec<Vec<WorkerPlan>> = self.demands.iter().map(|_| Vec::new()).collect();
        let on = |device: usize| -> Vec<usize> {
            (0..self.demands.len()).filter(|d| self.demands[*d].devices.contains(&device)).collect()
        };
        for (index, device) in self.devices.iter().enumerate() {
            let (stages, id) = (on(index), DeviceId(index as u16)); // a machine has fewer
            let placed = if stages.is_empty() {
                continue;
            } else if device.is_cuda() {
                OnCuda { of: self, stages: &stages, id, device }.place(cx)
            } else {
                OnCpu { demands: self.demands, stages: &stages, cores: self.cores }.place(
                    id,
                    device,
                    &mut cx.reasons,
                )
            };
            for (stage, placed) in stages.into_iter().zip(placed) {
                workers[stage].push(placed);
            }
        }
        workers
    }
}

/// The stages that share the cores of a CPU device.
struct OnCpu<'a> {
    demands: &'a [WorkerDemand<'a>],
    stages: &'a [usize],
    cores: usize,
}

impl OnCpu<'_> {
    fn place(&self, id: DeviceId, device: &Device, reasons: &mut Vec<String>) -> Vec<WorkerPlan> {
        let place = |stage: &usize| {
            let WorkerDemand { stage: name, model, .. } = &self.demands[*stage];
            let part = self.part(*stage);
            let asked = model.asked.workers.as_ref().map(|w| w.value as usize);
            // More threads gain a program little: what it does between two products runs on one.
            let threads = model.asked.threads.or(model.program.as_ref().map(|_| 1));
            let (count, threads) = workers_and_threads(part, asked, threads, model.streams());
            let growth = self.growth(*stage, count, threads);
            let why = match (asked, model.asked.threads, growth) {
                (Some(_), Some(_), _) => "workers and threads as asked".into(),
                (Some(_), None, _) => format!("workers as asked, sharing {}", plural(part, "core")),
                (None, threads, Some(WorkerGrowth { most, .. })) => format!(
                    "{}its share is {} of {}, and up to {most} come where cores have nothing else to do",
                    threads.map_or("", |_| "threads as asked; "),
                    plural(part, "core"),
                    self.cores
                ),
                (None, Some(_), None) => format!("threads as asked, sharing {}", plural(part, "core")),
                (None, None, None) => format!(
                    "its share is {} of {}; workers of few threads outrun one of many",
                    plural(part, "core"),
                    self.cores
                ),
            };
            let at_once = match model.streams() {
                1 => String::new(),
                n => format!(", with {n} batches at once in each"),
            };
            reasons.push(format!(
                "stage `{name}` on {}: {} of {}{at_once}: {why}",
                device.name,
                plural(count, "worker"),
                plural(threads, "thread")
            ));
            WorkerPlan { device: id, count, growth, threads, memory: None }
        };
        self.stages.iter().map(place).collect()
    }

    /// The stages that run at the same time as this one, itself included, and their priorities.
    fn concurrent(&self, stage: usize) -> (Vec<usize>, Vec<u32>) {
        let is_concurrent = |s: &usize| self.demands[*s].n_reduces == self.demands[stage].n_reduces;
        let stages = self.stages.iter().copied().filter(is_concurrent);
        stages.map(|s| (s, self.demands[s].model.asked.priority())).unzip()
    }

    /// The cores of a stage if all have work.
    fn part(&self, stage: usize) -> usize {
        let (stages, weights) = self.concurrent(stage);
        let parts = divide(self.cores, &weights);
        stages.iter().zip(parts).find(|(s, _)| **s == stage).map_or(1, |(_, part)| part)
    }

    /// Where nothing is asked for, a stage may use all cores while the others leave them idle.
    fn growth(&self, stage: usize, count: usize, threads: usize) -> Option<WorkerGrowth> {
        let model = self.demands[stage].model;
        let (_, weights) = self.concurrent(stage);
        let is_shared_out = weights.windows(2).any(|pair| pair[0] != pair[1]);
        if model.asked.workers.is_some() || weights.len() < 2 || is_shared_out {
            return None;
        }
        let most = self.cores / (threads + model.streams() - 1);
        (most > count).then_some(WorkerGrowth { most, is_asked: false })
    }
}

/// Shares cores among workers. A batch also runs on the thread that starts it, so each further one at once keeps one core more busy.
fn workers_and_threads(
    cores: usize,
    workers: Option<usize>,
    threads: Option<usize>,
    streams: usize,
) -> (usize, usize) {
    let beside = streams - 1;
    match (workers, threads) {
        (Some(count), Some(threads)) => (count, threads),
        (Some(count), None) => (count, (cores / count).saturating_sub(beside).max(1)),
        (None, Some(threads)) => ((cores / (threads + beside)).clamp(1, MAX_DEFAULT_CPU_WORKERS), threads),
        (None, None) => {
            let count = (cores / streams).clamp(1, MAX_DEFAULT_CPU_WORKERS);
            (count, (cores / count).saturating_sub(beside).max(1))
        }
    }
}

/// The stages that share a GPU.
struct OnCuda<'a> {
    of: &'a WorkerPlacement<'a>,
    stages: &'a [usize],
    id: DeviceId,
    device: &'a Device,
}

impl OnCuda<'_> {
    /// Bytes that more than one worker of each model leaves to commands.
    fn of_shares(&self) -> u64 {
        self.of.of_shares[self.id.index()]
    }

    fn model(&self, stage: usize) -> &ModelNode {
        self.of.demands[stage].model
    }

    /// What one worker of a stage takes, where the file declares it.
    fn memory(&self, stage: usize) -> Option<u64> {
        self.model(stage).asked.memory.as_ref().map(|declared| declared.value.get())
    }

    /// Bytes of one worker of a stage; 0 where that is not known.
    fn worker(&self, stage: usize) -> u64 {
        self.memory(stage).unwrap_or(0)
    }

    /// Bytes of all that has to be there.
    fn needed(&self) -> u64 {
        self.stages.iter().map(|s| self.worker(*s)).fold(0, u64::saturating_add)
    }

    /// What all workers together may take.
    fn room(&self) -> Option<u64> {
        self.device.memory.map(|(_, free)| free.saturating_sub(self.of.headroom))
    }

    /// The file does not declare of each model here what a worker takes, and the run can find out.
    fn is_to_be_measured(&self) -> bool {
        self.device.memory.is_some() && !self.stages.iter().all(|s| self.memory(*s).is_some())
    }

    /// Workers of a stage that asks for no number. A GPU gives busy processes equal time, so a stage's share of the workers is its share of the
    /// GPU.
    fn by_default(&self, stage: usize) -> usize {
        let weights = self.weights();
        if !self.is_shared_out(&weights) {
            return if self.device.mps { DEFAULT_CUDA_WORKERS } else { 1 };
        }
        let counts = divide(DEFAULT_CUDA_WORKERS, &weights);
        self.stages.iter().zip(counts).find(|(s, _)| **s == stage).map_or(1, |(_, count)| count)
    }

    fn weights(&self) -> Vec<u32> {
        self.stages.iter().map(|s| self.model(*s).asked.priority()).collect()
    }

    /// Whether the numbers of workers follow from priorities.
    fn is_shared_out(&self, weights: &[u32]) -> bool {
        let is_left_to_us = self.stages.iter().all(|s| self.model(*s).asked.workers.is_none());
        is_left_to_us && weights.windows(2).any(|pair| pair[0] != pair[1])
    }

    /// Why a stage that asks for no number has no more than by default.
    fn why_no_more(&self) -> &'static str {
        match (self.is_shared_out(&self.weights()), self.device.mps) {
            (true, _) => "its share by `priority`",
            (false, true) => "more gain little",
            (false, false) => "more would take turns with it, as no MPS is there",
        }
    }

    /// Workers to start with. Where nothing is known of one model, the others must not take the room that it may need; who asks for a
    /// number and says what one takes is given it.
    fn wanted(&self, stage: usize) -> usize {
        let memory = self.memory(stage);
        let asked = self.model(stage).asked.workers.as_ref().map(|asked| asked.value as usize);
        match (asked, self.is_to_be_measured()) {
            (_, true) if asked.is_none() || memory.is_none() => 1,
            (Some(asked), _) => asked,
            (None, false) if memory.is_some() && self.device.memory.is_some() => self.by_default(stage),
            (None, _) => 1,
        }
    }

    /// What may come of `count` workers within the run.
    fn growth(&self, stage: usize, count: usize) -> Option<WorkerGrowth> {
        let asked = self.model(stage).asked.workers.as_ref().map(|asked| asked.value as usize);
        let memory = self.memory(stage);
        let may_grow = self.is_to_be_measured() && (asked.is_none() || memory.is_none());
        let most = asked.unwrap_or_else(|| self.by_default(stage));
        (may_grow && most > count).then_some(WorkerGrowth { most, is_asked: asked.is_some() })
    }

    /// Workers and threads of each stage. One worker each, then the rest in turns, the stage furthest behind its priority
    /// first, as long as there is room.
    fn place(&self, cx: &mut Cx<'_>) -> Vec<WorkerPlan> {
        let room = self.room().unwrap_or(u64::MAX);
        if self.needed() > room {
            self.report_full(cx);
        }
        let needed = self.needed();
        let want = |s: &usize| Want {
            has: 1,
            most: self.wanted(*s),
            each: self.worker(*s),
            priority: self.model(*s).asked.priority(),
        };
        let wants: Vec<Want> = self.stages.iter().map(want).collect();
        let for_more = room.saturating_sub(needed).saturating_sub(self.of_shares());
        let counts = share_out(for_more, &wants);
        let place = |((&stage, count), want): ((&usize, usize), &Want)| {
            let growth = self.growth(stage, count);
            let why = match growth {
                Some(growth) => self.why_to_grow(stage, growth),
                None => self.reason(stage, count, want.most),
            };
            cx.reasons.push(format!(
                "stage `{}` on {}: {}: {why}",
                self.of.demands[stage].stage,
                self.device.name,
                plural(count, "worker")
            ));
            let threads = self.model(stage).asked.threads.unwrap_or(1);
            WorkerPlan { device: self.id, count, growth, threads, memory: self.memory(stage) }
        };
        self.stages.iter().zip(counts).zip(&wants).map(place).collect()
    }

    fn why_to_grow(&self, stage: usize, growth: WorkerGrowth) -> String {
        let WorkerGrowth { most, is_asked } = growth;
        let which = if is_asked { "the number asked for" } else { self.why_no_more() };
        let first = match self.memory(stage) {
            Some(_) => "another model here is measured in the run first",
            None => "what one takes is measured in the run",
        };
        format!("{first}, then up to {most} as far as they fit ({which})")
    }

    fn reason(&self, stage: usize, count: usize, wanted: usize) -> String {
        match (self.memory(stage), self.room()) {
            (Some(memory), Some(room)) if count < wanted => {
                let asked = match self.model(stage).asked.workers {
                    Some(_) => format!(" of the {wanted} asked for"),
                    None => String::new(),
                };
                let of_shares = match self.of_shares() {
                    0 => String::new(),
                    bytes => format!(" and {} for commands", format_bytes(bytes)),
                };
                format!(
                    "as many{asked} as fit: {} each (declared), and {} are free beyond the headroom of {}{of_shares}",
                    format_bytes(memory),
                    format_bytes(room.saturating_sub(self.of_shares())),
                    format_bytes(self.of.headroom)
                )
            }
            (_, _) if self.model(stage).asked.workers.is_some() => "as asked".into(),
            (Some(memory), Some(_)) => {
                format!("{} each (declared); {}", format_bytes(memory), self.why_no_more())
            }
            (None, _) if self.is_to_be_measured() => {
                format!("what one takes is measured in the run; {}", self.why_no_more())
            }
            _ => "the default where it is not known what one takes of the GPU".into(),
        }
    }

    fn report_full(&self, cx: &mut Cx<'_>) {
        let needed = self.needed();
        let mut spans =
            self.stages.iter().filter_map(|s| self.model(*s).asked.memory.as_ref().map(|m| m.span));
        let span: Option<Span> = spans.next_back();
        let (total, free) = self.device.memory.unwrap_or_default();
        let parts: Vec<String> = self
            .stages
            .iter()
            .filter(|s| self.worker(**s) > 0)
            .map(|s| format!("`{}` {}", self.of.demands[*s].stage, format_bytes(self.worker(*s))))
            .collect();
        let sum = if parts.len() > 1 { format!(" ({})", parts.join(" + ")) } else { String::new() };
        cx.error(
                span,
                format!(
                    "device `{}` is too full: one worker per model needs {}{sum}, and {} of {} are free, {} of them headroom",
                    self.device.name,
                    format_bytes(needed),
                    format_bytes(free),
                    format_bytes(total),
                    format_bytes(self.of.headroom.min(free))
                ),
            )
            .help("free the device, lower `devices.headroom`, or put models on different devices with `devices`")
            .unavailable();
    }
}

pub(crate) fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::workers_and_threads;

    #[test]
    fn each_batch_at_once_keeps_a_core_busy() {
        let of = |cores, workers, threads, streams| workers_and_threads(cores, workers, threads, streams);
        assert_eq!(of(8, None, None, 1), (8, 1));
        assert_eq!(of(8, None, None, 2), (4, 1));
        assert_eq!(of(8, None, None, 3), (2, 2));
        assert_eq!(of(2, None, None, 8), (1, 1));
        assert_eq!(of(8, None, Some(3), 2), (2, 3));
        assert_eq!(of(8, Some(2), None, 2), (2, 3));
        assert_eq!(of(8, Some(3), Some(5), 2), (3, 5), "what was asked for is believed");
        assert_eq!(of(64, None, None, 2), (8, 7));
    }
}
