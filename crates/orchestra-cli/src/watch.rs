//! Follows a run from its snapshots: rates, time left, what waits where. Turns counters into what the progress shows; draws nothing.

use std::collections::VecDeque;
use std::time::Duration;

use orchestra::{PipelineSnapshot, Snapshot};

use crate::progress::{DeviceView, PipelineView, ProgressView, StageView};

/// Rates are means over this long.
const WINDOW: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Watch {
    seen: VecDeque<Snapshot>,
}

impl Watch {
    /// Takes a snapshot; gives what to show.
    pub fn look(&mut self, now: Snapshot) -> ProgressView {
        while self.seen.len() > 1 && self.seen[1].elapsed + WINDOW < now.elapsed {
            self.seen.pop_front();
        }
        let then = self.seen.front().cloned().unwrap_or_else(|| now.clone());
        let view = view(&then, &now);
        self.seen.push_back(now);
        view
    }
}

fn view(then: &Snapshot, now: &Snapshot) -> ProgressView {
    let seconds = now.elapsed.saturating_sub(then.elapsed).as_secs_f64();
    let rate = |before: u64, after: u64| {
        if seconds > 0.0 { after.saturating_sub(before) as f64 / seconds } else { 0.0 }
    };
    let finished = |s: &Snapshot| s.done + s.failed;
    let per_second = rate(finished(then), finished(now));
    let left = now.extent.known().map(|total| total.saturating_sub(finished(now)));
    let stages = now.stages.iter().zip(&then.stages).map(|(n, t)| StageView {
        name: n.name.clone(),
        queued: n.entered.saturating_sub(n.left + n.failed),
        per_second: rate(t.left, n.left),
    });
    let devices = now.devices.iter().zip(&then.devices).map(|(n, t)| {
        let capacity = seconds * n.workers as f64;
        let busy = n.busy.saturating_sub(t.busy).as_secs_f64();
        DeviceView {
            name: n.name.clone(),
            workers: n.ready,
            busy: if capacity > 0.0 { (busy / capacity).min(1.0) } else { 0.0 },
            memory: n.gpu.as_ref().map(|gpu| (gpu.memory_used(), gpu.memory_total)),
            utilization: n.gpu.as_ref().and_then(|gpu| gpu.utilization),
            watts: n.gpu.as_ref().and_then(|gpu| gpu.power_mw).map(|mw| mw.div_ceil(1000)),
        }
    });
    ProgressView {
        extent: now.extent,
        done: now.done,
        failed: now.failed,
        per_second,
        eta: left.filter(|_| per_second > 0.0).map(|left| Duration::from_secs_f64(left as f64 / per_second)),
        stages: stages.collect(),
        devices: devices.collect(),
        pipelines: now.pipelines.iter().filter(|p| !p.devices.is_empty()).map(pipeline).collect(),
        restarts: now.restarts,
        tasks: now.tasks.clone(),
    }
}

/// What it takes of all its devices.
fn pipeline(snapshot: &PipelineSnapshot) -> PipelineView {
    let cores: Vec<f64> = snapshot.devices.iter().filter_map(|look| look.cores).collect();
    let on_gpus: Vec<u64> = snapshot.devices.iter().filter_map(|look| look.gpu_memory).collect();
    PipelineView {
        name: snapshot.name.clone(),
        gpu_memory: (!on_gpus.is_empty()).then(|| on_gpus.iter().sum()),
        cores: (!cores.is_empty()).then(|| cores.iter().sum()),
        memory: snapshot.devices.iter().map(|look| look.memory).sum(),
    }
}

#[cfg(test)]
mod tests {
    use orchestra::{Extent, PipelineLook};

    use super::*;

    #[test]
    fn what_a_pipeline_takes_is_the_sum_over_its_devices() {
        let gpu = PipelineLook { gpu_memory: Some(3), memory: 5, cores: Some(0.5) };
        let cpu = PipelineLook { gpu_memory: None, memory: 7, cores: Some(1.5) };
        let of = |devices| pipeline(&PipelineSnapshot { name: "left".to_owned(), devices });
        let view = of(vec![gpu, gpu, cpu]);
        assert_eq!((view.gpu_memory, view.memory, view.cores), (Some(6), 17, Some(2.5)));
        let view = of(vec![cpu]);
        assert_eq!((view.gpu_memory, view.cores), (None, Some(1.5)));
    }

    fn at(seconds: u64, done: u64) -> Snapshot {
        let extent = Extent::Known(1000);
        Snapshot { elapsed: Duration::from_secs(seconds), extent, done, ..Snapshot::default() }
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds_and_the_time_left_follows_from_it() {
        let mut watch = Watch::default();
        watch.look(at(0, 0));
        for s in 1..=20 {
            watch.look(at(s, 10 * s));
        }
        let view = watch.look(at(21, 300));
        assert!((view.per_second - (300.0 - 150.0) / 6.0).abs() < 1e-9, "{}", view.per_second);
        assert_eq!(view.eta, Some(Duration::from_secs(28)));
    }

    #[test]
    fn no_time_left_is_told_while_items_are_being_listed_or_never_end() {
        for extent in [Extent::Growing(1000), Extent::Endless] {
            let mut watch = Watch::default();
            watch.look(Snapshot { extent, ..at(0, 0) });
            let view = watch.look(Snapshot { extent, ..at(1, 10) });
            assert_eq!((view.per_second, view.eta, view.extent), (10.0, None, extent));
        }
    }

    #[test]
    fn a_run_that_has_not_begun_has_no_time_left_to_tell() {
        assert_eq!(Watch::default().look(at(0, 0)).eta, None);
    }
}
