//! What sets the pace, and what to change about it, from the measured figures and the plan. Pure: it measures and tries nothing.

use std::fmt;

use orchestra_core::DeviceKind;
use orchestra_plan::{InferPlan, Plan, StageKind};
use serde::Serialize;

use crate::figures::Measured;
use crate::limit::{Bound, Limit, divide};

/// A part with this share of the core time is what the cores are busy with.
const MOST: f64 = 0.65;
/// A long run below this part of its limit is held back by something that the limit does not hold.
const CLOSE: f64 = 0.8;
/// Batches beyond this size are not proposed: they gain little and take memory.
const LARGEST_PROPOSED_BATCH: usize = 256;

/// The part that sets the pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// Reading and decoding.
    Loading,
    /// The models.
    Inference,
    /// Both: they share the cores.
    Cpu,
    /// Writing results.
    Sinks,
    /// Neither is near its limit: moving items about, or batches that leave too early.
    Overhead,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pace::Loading => "loading",
            Pace::Inference => "inference",
            Pace::Cpu => "cpu",
            Pace::Sinks => "sinks",
            Pace::Overhead => "overhead",
        })
    }
}

/// One thing to change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The key of the workflow file, with dots; none where no key helps.
    pub key: Option<String>,
    /// What it is now.
    pub now: Option<String>,
    /// What to try.
    pub value: Option<String>,
    /// The limit after that, in items per second, where it can be worked out.
    pub expected_limit: Option<f64>,
    /// Why, as a sentence.
    pub why: String,
}

/// What the judgement rests on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Evidence {
    pub limit: Limit,
    /// Run by limit; by CPU time where that can be told, because it does not waver with what else the machine does.
    pub ratio: f64,
    pub measured: Measured,
    /// It lasted so long that its start weighs little.
    pub is_long: bool,
    /// The run waited for its results to be written.
    pub run_says_sinks: bool,
    /// CPU time per item that is neither decoding nor inference.
    pub overhead_seconds: f64,
}

/// Names the part that sets the pace. A short run is judged by its parts alone: how far it is below the limit says more about its start.
pub(crate) fn judge(e: &Evidence) -> Pace {
    if e.is_long && e.ratio < CLOSE {
        return if e.run_says_sinks { Pace::Sinks } else { Pace::Overhead };
    }
    if let Bound::Device(_) = e.limit.bound {
        return Pace::Inference;
    }
    let share = divide(e.limit.decode_seconds, e.limit.decode_seconds + e.limit.infer_seconds);
    match share {
        s if s >= MOST => Pace::Loading,
        s if s <= 1.0 - MOST => Pace::Inference,
        _ => Pace::Cpu,
    }
}

/// What to change, the most promising first.
pub(crate) fn advise(e: &Evidence, plan: &Plan, cores: usize) -> Vec<Advice> {
    let pace = judge(e);
    let mut advice = Vec::new();
    match pace {
        Pace::Sinks => advice.push(plain(
            "results are not written fast enough: use a faster disk for the output folder, or smaller records (`top_k`, a `classify` stage)",
        )),
        Pace::Overhead => {
            let why = format!(
                "{:.1} us of CPU time per item are neither decoding nor inference, and much of that is the same for each batch, whatever its size",
                e.overhead_seconds * 1e6
            );
            advice.extend(infer_stages(plan).filter_map(|(name, infer)| larger_batch(name, infer, &why)));
        }
        Pace::Loading => advice.extend(decoding(e, plan)),
        Pace::Inference | Pace::Cpu => {
            advice.extend(inference(e, plan, cores));
            if pace == Pace::Cpu {
                advice.extend(decoding(e, plan));
            }
        }
    }
    if e.ratio < 0.95 || pace == Pace::Loading {
        advice.extend(loaders(plan, cores));
    }
    if e.measured == Measured::Whole {
        advice.push(plain(
            "the run is too short to have a steady state, so its start counts: measure with more items to see how close a long run comes",
        ));
    }
    advice
}

fn infer_stages(plan: &Plan) -> impl Iterator<Item = (&str, &InferPlan)> {
    plan.stages.iter().filter_map(|s| match &s.kind {
        StageKind::Infer(infer) => Some((s.name.as_str(), infer)),
        _ => None,
    })
}

fn plain(why: &str) -> Advice {
    Advice { key: None, now: None, value: None, expected_limit: None, why: why.to_owned() }
}

fn change(key: String, now: impl fmt::Display, value: impl fmt::Display, why: impl Into<String>) -> Advice {
    Advice {
        key: Some(key),
        now: Some(now.to_string()),
        value: Some(value.to_string()),
        expected_limit: None,
        why: why.into(),
    }
}

fn loaders(plan: &Plan, cores: usize) -> Option<Advice> {
    (plan.loader_threads < cores).then(|| {
        change(
            "limits.loaders".into(),
            plan.loader_threads,
            cores,
            "fewer threads decode than there are cores",
        )
    })
}

/// Where decoding takes the cores.
fn decoding(e: &Evidence, plan: &Plan) -> Vec<Advice> {
    let mut advice = Vec::new();
    for stage in &plan.stages {
        let StageKind::Image { spec, .. } = &stage.kind else { continue };
        if !spec.fast && spec.filter != orchestra_core::ResizeFilter::Nearest {
            let why = "JPEG files much larger than `size` are then decoded to a fraction of their size; pixels differ a little from those of the full decode";
            advice.push(change(format!("stages.{}.fast", stage.name), false, true, why));
        }
        if spec.filter != orchestra_core::ResizeFilter::Bilinear
            && spec.filter != orchestra_core::ResizeFilter::Nearest
        {
            let why = "a simpler filter costs less per picture, if the model was trained with it";
            let now = format!("{:?}", spec.filter).to_lowercase();
            advice.push(change(format!("stages.{}.filter", stage.name), now, "\"bilinear\"", why));
        }
    }
    let others = e.limit.infer_seconds;
    let half = divide(
        e.limit.cores_items_per_second * (e.limit.decode_seconds + others),
        e.limit.decode_seconds / 2.0 + others,
    );
    let expected = half.min(e.limit.devices_items_per_second);
    let mut smaller = plain(
        "reading and decoding take the cores: more cores, or smaller picture files, made once (half the decoding time would give the limit named here)",
    );
    smaller.expected_limit = expected.is_finite().then_some(expected);
    advice.push(smaller);
    advice
}

/// Where the models set the pace.
fn inference(e: &Evidence, plan: &Plan, cores: usize) -> Vec<Advice> {
    let mut advice = Vec::new();
    for (name, infer) in infer_stages(plan) {
        let model = &plan.models[infer.model.index()].name;
        let is_cpu =
            |w: &&orchestra_plan::WorkerPlan| plan.devices[w.device.index()].spec.kind == DeviceKind::Cpu;
        let on_cpu: Vec<_> = infer.workers.iter().filter(is_cpu).collect();
        let on_gpu = infer.workers.iter().find(|w| !is_cpu(w));
        match (e.limit.bound, on_gpu) {
            (Bound::Device(_), Some(gpu)) => {
                advice.extend(larger_batch(
                    name,
                    infer,
                    "a GPU does more per second in larger batches, as far as its memory goes",
                ));
                let why =
                    "a second worker fills the gaps of the first one, if the GPU's memory has room for both";
                let more = change(format!("models.{model}.workers"), gpu.count, gpu.count + 1, why);
                advice.extend((gpu.count < 4).then_some(more));
            }
            _ => advice.extend(cpu_workers(model, &on_cpu, infer.streams, cores)),
        }
    }
    advice.extend(other_devices(e, plan));
    advice
}

fn cpu_workers(
    model: &str,
    on_cpu: &[&orchestra_plan::WorkerPlan],
    streams: usize,
    cores: usize,
) -> Vec<Advice> {
    let lanes: usize = on_cpu.iter().map(|w| w.count * (w.threads + streams - 1)).sum();
    let workers: usize = on_cpu.iter().map(|w| w.count).sum();
    let mut advice = Vec::new();
    if on_cpu.is_empty() {
        return advice;
    }
    if on_cpu.iter().any(|w| w.threads > 1) {
        let why = "workers of one thread outrun those of several, which wait for each other";
        let threads = on_cpu.iter().map(|w| w.threads).max().unwrap_or(1);
        advice.push(change(format!("models.{model}.threads"), threads, 1, why));
    } else if lanes < cores {
        let per_device = cores.div_ceil(on_cpu.len() * streams);
        let why = "fewer threads run the model than there are cores";
        advice.push(change(format!("models.{model}.workers"), workers, per_device, why));
    }
    advice
}

fn other_devices(e: &Evidence, plan: &Plan) -> Option<Advice> {
    match e.limit.bound {
        Bound::Device(device) => {
            let now = &plan.devices[device].spec.name;
            let why = "another GPU adds its rate to this one's, until the cores cannot decode fast enough";
            let mut advice = change("devices.use".into(), now, "\"auto\"", why);
            let n = plan.devices.iter().filter(|d| d.spec.kind != DeviceKind::Cpu).count().max(1) as f64;
            let more = e.limit.devices_items_per_second * (n + 1.0) / n;
            advice.expected_limit = Some(more.min(e.limit.cores_items_per_second));
            Some(advice)
        }
        Bound::Cores if e.limit.infer_seconds > 0.0 => {
            let share = e.limit.infer_seconds / (e.limit.decode_seconds + e.limit.infer_seconds);
            let why = "a GPU would take inference off the cores; the limit named here is what decoding alone allows then";
            let mut advice = change("devices.use".into(), "cpu", "\"cuda:0\"", why);
            let decoding_alone = divide(e.limit.cores_items_per_second, 1.0 - share);
            advice.expected_limit = (decoding_alone > 0.0 && share < 1.0).then_some(decoding_alone);
            Some(advice)
        }
        Bound::Cores => None,
    }
}

fn larger_batch(stage: &str, infer: &InferPlan, why: &str) -> Option<Advice> {
    let next = (infer.max_batch * 2).min(LARGEST_PROPOSED_BATCH);
    let may_grow = infer.fixed_batch.is_none() && next > infer.max_batch;
    may_grow.then(|| change(format!("stages.{stage}.batch.max"), infer.max_batch, next, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plan::{self, Small};

    fn evidence(decode: f64, infer: f64, bound: Bound) -> Evidence {
        let cores = 4.0 / (decode + infer);
        let limit = Limit {
            items_per_second: cores,
            bound,
            decode_seconds: decode,
            infer_seconds: infer,
            cores_items_per_second: cores,
            devices_items_per_second: if bound == Bound::Cores { f64::INFINITY } else { cores / 2.0 },
        };
        Evidence {
            limit,
            ratio: 0.97,
            measured: Measured::Steady,
            is_long: true,
            run_says_sinks: false,
            overhead_seconds: 0.0,
        }
    }

    #[test]
    fn the_larger_part_of_the_core_time_sets_the_pace() {
        assert_eq!(judge(&evidence(0.009, 0.001, Bound::Cores)), Pace::Loading);
        assert_eq!(judge(&evidence(0.001, 0.009, Bound::Cores)), Pace::Inference);
        assert_eq!(judge(&evidence(0.005, 0.005, Bound::Cores)), Pace::Cpu);
        assert_eq!(judge(&evidence(0.005, 0.0, Bound::Device(0))), Pace::Inference);
    }

    #[test]
    fn a_steady_run_far_below_its_limit_is_held_back_by_something_else() {
        let slow = Evidence { ratio: 0.5, ..evidence(0.005, 0.005, Bound::Cores) };
        assert_eq!(judge(&slow), Pace::Overhead);
        assert_eq!(judge(&Evidence { run_says_sinks: true, ..slow }), Pace::Sinks);
        let short = Evidence { measured: Measured::Whole, is_long: false, ..slow };
        assert_eq!(judge(&short), Pace::Cpu, "a short run says nothing about that");
    }

    const SMALL: Small = Small { gpu: false, workers: 4, threads: 1, batch: 8, loaders: 4 };

    fn keys(e: &Evidence, small: Small) -> Vec<(String, String)> {
        let advice = advise(e, &test_plan::plan(small), 4);
        assert!(advice.iter().all(|a| !a.why.is_empty() && a.key.is_some() == a.value.is_some()));
        advice.into_iter().filter_map(|a| Some((a.key?, a.value?))).collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn cores_that_nobody_uses_are_named() {
        let e = Evidence { ratio: 0.9, ..evidence(0.001, 0.009, Bound::Cores) };
        let found = keys(&e, Small { workers: 1, loaders: 2, ..SMALL });
        assert!(found.contains(&pair("models.m.workers", "4")), "{found:?}");
        assert!(found.contains(&pair("limits.loaders", "4")), "{found:?}");
        let full = keys(&e, SMALL);
        assert!(!full.iter().any(|(k, _)| k != "devices.use"), "{full:?}");
        let wide = keys(&e, Small { workers: 1, threads: 4, ..SMALL });
        assert!(wide.contains(&pair("models.m.threads", "1")), "{wide:?}");
    }

    #[test]
    fn a_busy_gpu_gets_larger_batches_more_workers_or_another_gpu() {
        let gpu = Small { gpu: true, workers: 1, ..SMALL };
        let e = evidence(0.001, 0.0, Bound::Device(0));
        let found = keys(&e, gpu);
        let expected = [
            pair("stages.run.batch.max", "16"),
            pair("models.m.workers", "2"),
            pair("devices.use", "\"auto\""),
        ];
        assert_eq!(found, expected);
        let another = advise(&e, &test_plan::plan(gpu), 4).pop().unwrap();
        assert_eq!(another.expected_limit, Some(4000.0), "twice the GPU, or all that the cores decode");
    }

    #[test]
    fn where_decoding_sets_the_pace_models_are_left_alone() {
        let e = evidence(0.008, 0.002, Bound::Cores);
        let advice = advise(&e, &test_plan::plan(SMALL), 4);
        let keys: Vec<_> = advice.iter().filter_map(|a| a.key.as_deref()).collect();
        assert_eq!(keys, ["stages.pixels.fast"]);
        let faster = advice.last().unwrap().expected_limit.unwrap();
        assert!((faster - 4.0 / 0.006).abs() < 1e-6, "{faster}");
    }

    #[test]
    fn a_gpu_is_proposed_with_what_decoding_alone_allows() {
        let advice = advise(&evidence(0.001, 0.009, Bound::Cores), &test_plan::plan(SMALL), 4);
        let gpu = advice.iter().find(|a| a.key.as_deref() == Some("devices.use")).unwrap();
        assert!((gpu.expected_limit.unwrap() - 4000.0).abs() < 1e-6);
    }

    #[test]
    fn a_steady_run_that_is_slow_gets_larger_batches_and_a_short_one_more_items() {
        let slow = Evidence { ratio: 0.5, ..evidence(0.005, 0.005, Bound::Cores) };
        assert_eq!(keys(&slow, SMALL), [pair("stages.run.batch.max", "16")]);
        assert_eq!(keys(&slow, Small { batch: 256, ..SMALL }), []);
        let short = Evidence { measured: Measured::Whole, is_long: false, ..slow };
        let last = advise(&short, &test_plan::plan(SMALL), 4).pop().unwrap();
        assert!(last.why.contains("too short"), "{}", last.why);
    }
}
