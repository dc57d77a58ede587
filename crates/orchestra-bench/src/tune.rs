//! Which settings to try, and which to keep. It runs nothing itself: comparing two settings is the caller's.

use orchestra_core::DeviceKind;
use orchestra_plan::Plan;
use orchestra_trial::Spread;
use serde::Serialize;

use crate::error::BenchError;
use crate::limit::divide;

/// What is better by less than this is not worth a change.
const LEAST_GAIN: f64 = 0.01;
/// Largest batch that is tried.
const LARGEST_BATCH: u64 = 512;
/// Most workers on a GPU that are tried.
const MOST_GPU_WORKERS: u64 = 4;
/// Most batches at once in one worker that are tried.
const MOST_STREAMS: u64 = 4;

/// Settings that differ from the file: key and value.
pub type Settings = [(String, u64)];

/// A setting that may be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knob {
    /// Its key in the workflow file, with dots.
    pub key: String,
    /// What the plan has.
    pub now: u64,
    /// Smallest value that is tried.
    pub min: u64,
    /// Largest value that is tried.
    pub max: u64,
    /// Whether steps double and halve.
    pub doubles: bool,
}

/// A setting that was found better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its key in the workflow file, with dots.
    pub key: String,
    /// What the plan had.
    pub now: u64,
    /// What is better.
    pub value: u64,
}

/// Something that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Its key.
    pub key: String,
    /// The value tried.
    pub value: u64,
    /// Items per second of the best settings until then, measured in turns with it; none where it could not be run.
    pub best: Option<Spread>,
    /// Items per second with the value.
    pub tried: Option<Spread>,
    /// It is the best from then on.
    pub taken: bool,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Tuned {
    /// What to change; empty: the present settings are the best of those tried.
    pub settings: Vec<Setting>,
    /// All that was tried, in order.
    pub trials: Vec<Trial>,
    /// How much faster it is, as a factor: the product of what each step gained.
    pub gain: f64,
    /// There were no trials left, so something better may have been missed.
    pub ran_out: bool,
}

impl Knob {
    fn up(&self, from: u64) -> u64 {
        let next = if self.doubles { from * 2 } else { from + (from / 2).max(1) };
        next.min(self.max)
    }

    fn down(&self, from: u64) -> u64 {
        let next = if self.doubles { from / 2 } else { from.saturating_sub((from / 3).max(1)) };
        next.max(self.min)
    }
}

/// What may be changed about a plan on a machine with so many cores.
pub(crate) fn knobs(plan: &Plan, cores: usize) -> Vec<Knob> {
    let cores = cores as u64;
    let mut knobs = Vec::new();
    let mut seen = Vec::new();
    for (stage, infer) in plan.infer_stages() {
        if infer.fixed_batch.is_none() {
            let key = format!("stages.{}.batch.max", plan.stages[stage.index()].name);
            let now = infer.max_batch as u64;
            knobs.push(Knob { key, now, min: 1, max: LARGEST_BATCH.max(now), doubles: true });
        }
        if seen.contains(&infer.model) {
            continue;
        }
        seen.push(infer.model);
        let model = &plan.models[infer.model.index()].name;
        let on_cpu =
            infer.workers.iter().find(|w| plan.devices[w.device.index()].spec.kind == DeviceKind::Cpu);
        if let Some(first) = infer.workers.first() {
            let now = first.count as u64;
            let most = if on_cpu.is_some() { cores.saturating_mul(2) } else { MOST_GPU_WORKERS };
            let key = format!("models.{model}.workers");
            knobs.push(Knob { key, now, min: 1, max: most.max(now), doubles: false });
        }
        let now = infer.streams as u64;
        let most = if on_cpu.is_some() { cores.min(MOST_STREAMS) } else { MOST_STREAMS };
        if most.max(now) > 1 {
            let key = format!("models.{model}.streams");
            knobs.push(Knob { key, now, min: 1, max: most.max(now), doubles: true });
        }
        if let Some(first) = on_cpu {
            let now = first.threads as u64;
            let key = format!("models.{model}.threads");
            knobs.push(Knob { key, now, min: 1, max: cores.max(now), doubles: true });
        }
    }
    let now = plan.loader_threads as u64;
    let max = cores.saturating_mul(2).max(now);
    knobs.push(Knob { key: "limits.loaders".into(), now, min: 1, max, doubles: false });
    knobs
}

/// Whether `tried` beats `best` by more than either of them varied.
pub(crate) fn is_better(best: &Spread, tried: &Spread) -> bool {
    let needed = best.noise().max(tried.noise()).max(best.median * LEAST_GAIN);
    tried.median - best.median > needed
}

/// Compares the best settings with others, which differ in the named key and value; `None`: these cannot be run.
pub(crate) type Compare<'a> =
    &'a mut dyn FnMut(&Settings, &Settings, (&str, u64)) -> Result<Option<(Spread, Spread)>, BenchError>;

/// Goes from the present settings along one knob after the other, first up, then down, as long as it gets better; and once more over all
/// knobs whenever something changed.
pub(crate) fn descend(knobs: &[Knob], trials: usize, compare: Compare<'_>) -> Result<Tuned, BenchError> {
    let mut search =
        Search { best: Vec::new(), tried: Vec::new(), left: trials, compare, tuned: Tuned::default() };
    search.tuned.gain = 1.0;
    loop {
        let before = search.best.clone();
        for knob in knobs {
            let value = search.value(knob);
            search.climb(knob, Knob::up)?;
            if search.value(knob) == value {
                search.climb(knob, Knob::down)?;
            }
        }
        if search.best == before || search.left == 0 {
            break;
        }
    }
    let Search { best, mut tuned, .. } = search;
    let setting = |knob: &Knob| {
        let value = best.iter().find(|(key, _)| *key == knob.key)?.1;
        (value != knob.now).then(|| Setting { key: knob.key.clone(), now: knob.now, value })
    };
    tuned.settings = knobs.iter().filter_map(setting).collect();
    Ok(tuned)
}

struct Search<'a> {
    best: Vec<(String, u64)>,
    /// Settings that were compared already, sorted.
    tried: Vec<Vec<(String, u64)>>,
    left: usize,
    compare: Compare<'a>,
    tuned: Tuned,
}

impl Search<'_> {
    fn value(&self, knob: &Knob) -> u64 {
        self.best.iter().find(|(key, _)| *key == knob.key).map_or(knob.now, |(_, value)| *value)
    }

    fn climb(&mut self, knob: &Knob, step: fn(&Knob, u64) -> u64) -> Result<(), BenchError> {
        loop {
            let now = self.value(knob);
            let value = step(knob, now);
            if value == now || !self.attempt(knob, value)? {
                return Ok(());
            }
        }
    }

    /// Whether it was better.
    fn attempt(&mut self, knob: &Knob, value: u64) -> Result<bool, BenchError> {
        let mut other: Vec<(String, u64)> =
            self.best.iter().filter(|(key, _)| *key != knob.key).cloned().collect();
        other.push((knob.key.clone(), value));
        other.sort();
        if self.tried.contains(&other) {
            return Ok(false);
        }
        if self.left == 0 {
            self.tuned.ran_out = true;
            return Ok(false);
        }
        self.left -= 1;
        self.tried.push(other.clone());
        let compared = (self.compare)(&self.best, &other, (&knob.key, value))?;
        let taken = compared.as_ref().is_some_and(|(best, tried)| is_better(best, tried));
        if let (true, Some((best, tried))) = (taken, &compared) {
            self.tuned.gain *= divide(tried.median, best.median);
            self.best = other;
        }
        let (best, tried) = compared.unzip();
        self.tuned.trials.push(Trial { key: knob.key.clone(), value, best, tried, taken });
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knob(key: &str, now: u64, max: u64, doubles: bool) -> Knob {
        Knob { key: key.into(), now, min: 1, max, doubles }
    }

    fn spread(median: f64, noise: f64) -> Spread {
        Spread { median, min: median - noise, max: median + noise }
    }

    /// Tunes a machine whose rate is `rate` of the settings.
    fn tune(knobs: &[Knob], trials: usize, rate: impl Fn(&dyn Fn(&str) -> u64) -> f64) -> Tuned {
        let rate_of = |settings: &Settings| {
            let value = |key: &str| {
                let set = settings.iter().find(|(k, _)| k == key).map(|(_, v)| *v);
                set.unwrap_or_else(|| knobs.iter().find(|k| k.key == key).unwrap().now)
            };
            rate(&value)
        };
        descend(knobs, trials, &mut |best, other, _| {
            Ok(Some((spread(rate_of(best), 1.0), spread(rate_of(other), 1.0))))
        })
        .unwrap()
    }

    #[test]
    fn what_is_better_only_within_the_noise_is_not_taken() {
        assert!(is_better(&spread(100.0, 1.0), &spread(103.0, 2.0)));
        assert!(!is_better(&spread(100.0, 1.0), &spread(102.0, 2.0)));
        assert!(!is_better(&spread(100.0, 5.0), &spread(104.0, 0.0)));
        assert!(!is_better(&spread(100.0, 0.0), &spread(100.9, 0.0)), "not worth a change");
    }

    #[test]
    fn the_search_climbs_to_the_top_of_each_knob() {
        let knobs = [knob("batch", 8, 512, true), knob("workers", 2, 8, false)];
        let top = |value: &dyn Fn(&str) -> u64| {
            1000.0 - 5.0 * (value("batch") as f64 - 64.0).abs() - 50.0 * (value("workers") as f64 - 1.0)
        };
        let tuned = tune(&knobs, 50, top);
        let found: Vec<_> = tuned.settings.iter().map(|s| (s.key.as_str(), s.now, s.value)).collect();
        assert_eq!(found, [("batch", 8, 64), ("workers", 2, 1)]);
        assert!((tuned.gain - 1000.0 / 670.0).abs() < 1e-9, "{}", tuned.gain);
        assert!(!tuned.ran_out);
    }

    #[test]
    fn settings_that_cannot_be_bettered_stay_and_nothing_is_tried_twice() {
        let knobs = [knob("batch", 8, 512, true), knob("loaders", 2, 4, false)];
        let tuned = tune(&knobs, 50, |_| 100.0);
        assert!(tuned.settings.is_empty() && tuned.gain == 1.0);
        let tried: Vec<_> = tuned.trials.iter().map(|t| (t.key.as_str(), t.value)).collect();
        assert_eq!(tried, [("batch", 16), ("batch", 4), ("loaders", 3), ("loaders", 1)]);
    }

    #[test]
    fn the_number_of_trials_is_bounded_and_that_is_said() {
        let tuned = tune(&[knob("batch", 1, 512, true)], 3, |value| value("batch") as f64 * 100.0);
        assert_eq!((tuned.trials.len(), tuned.ran_out), (3, true));
        assert_eq!(tuned.settings[0].value, 8);
    }

    #[test]
    fn settings_that_cannot_be_run_are_not_taken() {
        let knobs = [knob("batch", 8, 512, true)];
        let tuned = descend(&knobs, 9, &mut |_, _, _| Ok(None)).unwrap();
        assert!(tuned.settings.is_empty() && tuned.trials.iter().all(|t| t.best.is_none() && !t.taken));
    }

    #[test]
    fn what_may_be_turned_stays_within_the_machine() {
        use crate::test_plan::{Small, plan};
        let small = Small { gpu: false, workers: 2, threads: 1, batch: 8, loaders: 4 };
        let bounds = |small, cores| -> Vec<(String, u64, u64)> {
            knobs(&plan(small), cores).into_iter().map(|k| (k.key, k.now, k.max)).collect()
        };
        let expected = [
            ("stages.run.batch.max", 8, 512),
            ("models.m.workers", 2, 8),
            ("models.m.streams", 1, 4),
            ("models.m.threads", 1, 4),
            ("limits.loaders", 4, 8),
        ];
        assert_eq!(bounds(small, 4), expected.map(|(k, now, max)| (k.to_owned(), now, max)));
        let gpu = bounds(Small { gpu: true, ..small }, 4);
        assert!(gpu.contains(&("models.m.workers".into(), 2, 4)), "{gpu:?}");
        assert!(gpu.contains(&("models.m.streams".into(), 1, 4)), "{gpu:?}");
        assert!(!gpu.iter().any(|(k, ..)| k == "models.m.threads"), "{gpu:?}");
        let one_core = bounds(small, 1);
        assert!(!one_core.iter().any(|(k, ..)| k == "models.m.streams"), "{one_core:?}");
    }
}
