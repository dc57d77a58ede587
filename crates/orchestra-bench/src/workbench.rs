//! A workflow and a sample of its items, ready to be measured in this process: each part alone, and the whole. It chooses no sample and
//! no order.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::StageId;
use orchestra_core::restart::RestartPolicy;
use orchestra_plan::{InferPlan, Plan};
use orchestra_runtime::{DeviceOptions, Launcher, RunOptions, Timeouts};
use orchestra_source::ListingSpec;
use orchestra_trial::{Cancel, Sample, plan_for};

use crate::decode::DecodePart;
use crate::error::BenchError;
use crate::figures::{DecodeFigures, InferFigures, RunFigures};
use crate::infer::InferPart;
use crate::memory::{Memory, SourceWork, source_works};
use crate::own_time::OwnTime;
use crate::whole_run;

/// What runs have that a plan does not name.
#[derive(Clone)]
pub struct Tools {
    /// Starts workers.
    pub launcher: Arc<dyn Launcher>,
    /// ONNX Runtime's shared library.
    pub library: PathBuf,
    /// Libraries that workers on GPUs load by full path, in this order, before anything else needs them.
    pub preload: Vec<PathBuf>,
    /// Who may end it.
    pub cancel: Cancel,
}

/// See the module.
pub struct Workbench {
    pub plan: Plan,
    pub sample: Sample,
    pub tools: Tools,
    pub cores: usize,
    works: Vec<SourceWork>,
    memory: Memory,
}

impl Workbench {
    /// Takes the memory of the batches; its rows are not ready yet.
    pub fn new(plan: Plan, sample: Sample, tools: Tools) -> Result<Self, BenchError> {
        // The parts and the runs are compared, so both have the same workers from the start.
        let plan = plan.without_growth();
        Ok(Self {
            works: source_works(&plan),
            memory: Memory::new(&plan)?,
            cores: std::thread::available_parallelism().map_or(1, NonZero::get),
            plan,
            sample,
            tools,
        })
    }

    /// Fills the rows of the batches with pictures of the sample.
    pub fn make_ready(&self) -> Result<(), BenchError> {
        let time = OwnTime::undivided();
        self.works.iter().filter_map(|work| self.decode_part(work, &time)).try_for_each(|p| p.make_ready())
    }

    /// The decode part, one source after the other.
    pub fn decode(&self, at_least: Duration, time: &OwnTime) -> Result<Vec<DecodeFigures>, BenchError> {
        let parts = self.works.iter().filter_map(|work| self.decode_part(work, time));
        parts.map(|part| part.measure(self.cores, at_least)).collect()
    }

    /// The infer part, one stage after the other.
    pub fn infer(&self, lasting: Duration, time: &OwnTime) -> Result<Vec<InferFigures>, BenchError> {
        let mut all = Vec::new();
        for (stage, infer) in self.plan.infer_stages() {
            all.extend(self.infer_part(stage, infer, time).measure(lasting)?);
        }
        Ok(all)
    }

    /// One stage with batches of each of these sizes.
    pub fn sizes(
        &self,
        (stage, infer): (StageId, &InferPlan),
        sizes: &[usize],
        lasting: Duration,
    ) -> Result<Vec<InferFigures>, BenchError> {
        self.infer_part(stage, infer, &OwnTime::undivided()).measure_sizes(sizes, lasting)
    }

    /// A whole run over these lists, into `output`; `started` is told once its first items are finished.
    pub fn run(
        &self,
        lists: &[ListingSpec],
        output: &Path,
        time: &OwnTime,
        started: &mut dyn FnMut(),
    ) -> Result<RunFigures, BenchError> {
        let options = RunOptions {
            launcher: Arc::clone(&self.tools.launcher),
            library: self.tools.library.clone(),
            timeouts: Timeouts::default(),
            restart: RestartPolicy::default(),
            trace: None,
            events: None,
            devices: DeviceOptions { preload: self.tools.preload.clone(), ..DeviceOptions::default() },
        };
        let plan = Arc::new(plan_for(&self.plan, lists, output));
        whole_run::measure(&plan, options, (self.cores, time), &self.tools.cancel, started)
    }

    fn decode_part<'a>(&'a self, work: &'a SourceWork, time: &'a OwnTime) -> Option<DecodePart<'a>> {
        let paths = &self.sample.sources[work.source.index()].paths;
        (!paths.is_empty()).then_some(DecodePart {
            work,
            memory: &self.memory,
            paths,
            max_pixels: self.plan.limits.max_pixels,
            time,
            cancel: &self.tools.cancel,
        })
    }

    /// A stage with its inputs ready.
    fn infer_part<'a>(&'a self, stage: StageId, infer: &'a InferPlan, time: &'a OwnTime) -> InferPart<'a> {
        // SAFETY: no worker runs now, and no decoding thread does.
        unsafe { self.memory.feed(stage, infer) };
        InferPart {
            plan: &self.plan,
            stage,
            infer,
            memory: &self.memory,
            launcher: &*self.tools.launcher,
            library: &self.tools.library,
            preload: &self.tools.preload,
            time,
            cancel: &self.tools.cancel,
        }
    }
}
