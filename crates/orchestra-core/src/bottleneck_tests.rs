use proptest::prelude::*;

use super::*;

fn s(n: f64) -> Duration {
    Duration::from_secs_f64(n)
}

/// 10 seconds on 2 cores.
fn spent(loading: f64, waiting: f64, stages: &[StageTime]) -> TimeSpent<'_> {
    let (time, loading, waiting_for_row) = (s(10.0), s(loading), s(waiting));
    TimeSpent { time, cores: 2, loading, waiting_for_row, stages, ..TimeSpent::default() }
}

fn on_cpu(running: f64, workers: usize) -> StageTime {
    StageTime { running: s(running), workers, most: workers, cores_each: 1 }
}

fn on_gpu(running: f64) -> StageTime {
    StageTime { cores_each: 0, ..on_cpu(running, 1) }
}

fn judged(spent: TimeSpent<'_>) -> (Bottleneck, Option<usize>, Vec<(usize, usize)>) {
    let pace = spent.pace();
    (pace.bottleneck, pace.stage, pace.workers)
}

#[test]
fn the_stage_that_holds_the_others_up_is_named_with_the_workers_that_would_help() {
    use Bottleneck::{Cpu, Handover, Inference, Loading, Sinks};
    assert_eq!(
        judged(spent(1.0, 19.0, &[on_cpu(0.3, 1), on_cpu(9.7, 1)])),
        (Inference, Some(1), vec![(1, 2)])
    );
    assert_eq!(judged(spent(1.0, 19.0, &[on_cpu(2.0, 1), on_cpu(18.0, 2)])), (Inference, Some(1), vec![]));
    let refused = StageTime { most: 2, ..on_cpu(9.7, 1) };
    assert_eq!(judged(spent(1.0, 19.0, &[refused])), (Inference, Some(0), vec![]));
    assert_eq!(judged(spent(1.0, 19.0, &[on_gpu(9.5)])), (Inference, Some(0), vec![]));
    assert_eq!(judged(spent(19.0, 1.0, &[on_gpu(2.0)])), (Loading, None, vec![]));
    assert_eq!(judged(spent(9.0, 6.0, &[on_cpu(9.0, 2)])), (Cpu, None, vec![]));
    assert_eq!(judged(spent(1.0, 19.0, &[on_cpu(5.0, 2)])), (Handover, Some(0), vec![]));
    let stages = [on_cpu(2.0, 1)];
    let slow_sink = TimeSpent { waiting_for_sinks: s(18.0), ..spent(1.0, 0.0, &stages) };
    assert_eq!(slow_sink.pace().bottleneck, Sinks);
    assert_eq!(TimeSpent::default().pace(), PaceSetter::default());
}

/// A pipeline whose every part is slowed down alike by the slowest: items per second, and where the time of 10 seconds goes.
fn steady(cores: usize, loading: f64, stages: &[(f64, usize)]) -> (f64, TimeSpent<'static>) {
    let total: f64 = loading + stages.iter().map(|(cost, _)| cost).sum::<f64>();
    let of_stages = stages.iter().map(|(cost, workers)| *workers as f64 / cost);
    let rate = of_stages.fold(cores as f64 / total, f64::min);
    let times = stages.iter().map(|(cost, workers)| on_cpu(cost * rate * 10.0, *workers)).collect::<Vec<_>>();
    let all = s(10.0 * cores as f64);
    let waiting_for_row = all.saturating_sub(s(loading * rate * 10.0));
    (rate, TimeSpent { cores, waiting_for_row, ..spent(loading * rate * 10.0, 0.0, times.leak()) })
}

proptest! {
    #[test]
    fn advice_that_is_followed_makes_a_run_faster_until_none_is_given(
        cores in 1usize..9,
        loading in 0.01f64..1.0,
        costs in proptest::collection::vec((0.01f64..1.0, 1usize..3), 1..5),
    ) {
        let mut stages = costs;
        let mut rate = steady(cores, loading, &stages).0;
        for _ in 0..stages.len() * cores {
            let pace = steady(cores, loading, &stages).1.pace();
            if pace.workers.is_empty() {
                return Ok(());
            }
            for (stage, workers) in pace.workers {
                prop_assert!(workers > stages[stage].1 && workers <= cores);
                stages[stage].1 = workers;
            }
            let faster = steady(cores, loading, &stages).0;
            prop_assert!(faster > rate * 1.1, "{rate} then {faster}");
            rate = faster;
        }
        prop_assert!(steady(cores, loading, &stages).1.pace().workers.is_empty());
    }
}
