//! The order of a measurement: list, sample, then rounds of decode, infer and run, one after the other. The parts are measured
//! elsewhere, and what the figures mean is said elsewhere.

use std::fmt;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::StageId;
use orchestra_core::restart::RestartPolicy;
use orchestra_plan::{InferPlan, Plan, ladder};
use orchestra_runtime::{DeviceOptions, Launcher, RunOptions, StartRunError, Timeouts, Tracer};
use orchestra_source::ListingSpec;
use orchestra_trial::{Cancel, Catalogue, Sample, Spread, TrialError, plan_for, scratch_folder};
use tempfile::TempDir;

use crate::decode::DecodePart;
use crate::error::BenchError;
use crate::figures::{DecodeFigures, InferFigures, RunFigures};
use crate::infer::InferPart;
use crate::memory::{Memory, SourceWork, source_works};
use crate::report::{Judged, Report, Round};
use crate::rungs::{Rung, RungReport};
use crate::tune::{self, Settings, Tuned};
use crate::whole_run;

/// Items that are looked at to find out how many are worth measuring.
const FIRST_LOOK: u64 = 256;
/// Fewest items of a sample, where there are so many.
const LEAST_ITEMS: u64 = 64;
/// A run lasts so many times as long as a part, so that its steady state lasts about as long as that.
const RUN_BY_PART: f64 = 2.0;
/// Runs of each of two settings that are compared, at least.
const LEAST_RUNS_COMPARED: usize = 3;

/// How to measure.
#[derive(Clone)]
pub struct Options {
    /// Rounds, at least 1.
    pub rounds: usize,
    /// How long each part is measured in each round. A part that goes over all items goes on to the last one.
    pub part: Duration,
    /// Items of the sample; `None`: as many as keep a run busy for about twice `part`.
    pub items: Option<u64>,
    /// Starts workers.
    pub launcher: Arc<dyn Launcher>,
    /// ONNX Runtime's shared library.
    pub library: PathBuf,
    /// Libraries that workers on GPUs load by full path, in this order, before anything else needs them.
    pub preload: Vec<PathBuf>,
    /// Who follows the measured runs, as a run would be followed.
    pub trace: Option<Arc<dyn Tracer>>,
    /// Who may end it.
    pub cancel: Cancel,
    /// Where the measured runs write: a folder in it is made, and removed in the end. `None`: where temporary files go.
    pub folder: Option<PathBuf>,
}

/// What is being done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The items are listed.
    Listing,
    /// A first look at how fast it all is.
    FirstLook,
    /// The sample is chosen.
    Chosen {
        /// Its items.
        items: u64,
        /// All items.
        of: u64,
    },
    /// A part of a round begins.
    Part {
        /// From 1.
        round: usize,
        /// How many there will be.
        of: usize,
        /// `decode`, `infer STAGE` or `run`.
        part: &'a str,
    },
    /// A setting is tried.
    Trying {
        /// From 1.
        trial: usize,
        /// At most so many.
        of: usize,
        /// Its key.
        key: &'a str,
        /// Its value.
        value: u64,
    },
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Listing => f.write_str("listing the items"),
            Progress::FirstLook => f.write_str("a first look at how long it takes"),
            Progress::Chosen { items, of } if items == of => write!(f, "measuring with all {of} items"),
            Progress::Chosen { items, of } => write!(f, "measuring with {items} of {of} items"),
            Progress::Part { round, of, part } => write!(f, "round {round} of {of}: {part}"),
            Progress::Trying { trial, of, key, value } => {
                write!(f, "trial {trial} of at most {of}: {key} = {value}")
            }
        }
    }
}

/// Everything but the run.
struct Parts {
    decode: Vec<DecodeFigures>,
    infer: Vec<InferFigures>,
}

/// Plans the workflow with settings changed, keys with dots and their values; `None`: it cannot be planned so.
pub type Replan<'a> = &'a mut dyn FnMut(&Settings) -> Option<Plan>;

/// Told what is being done.
pub type Tell<'a> = &'a mut dyn FnMut(Progress<'_>);

/// A workflow that is ready to be measured. Dropping it removes all of its files.
pub struct Bench {
    plan: Arc<Plan>,
    run_plan: Arc<Plan>,
    options: Options,
    cores: usize,
    items_total: u64,
    sample: Sample,
    listings: Vec<ListingSpec>,
    works: Vec<SourceWork>,
    memory: Memory,
    folder: TempDir,
}

impl Bench {
    /// Lists the items, looks how fast it all is, and chooses the sample. Blocks, as all of this does; never call it within a tokio
    /// runtime.
    ///
    /// # Errors
    /// There is no infer stage or no item, no item can be decoded, a worker cannot load, or memory and disk do not suffice.
    pub fn prepare(plan: Plan, options: Options, tell: Tell<'_>) -> Result<Self, BenchError> {
        // As a run does: a decoder that was asked for and cannot be used is an error before anything is decoded.
        orchestra_media::jpeg_backend().map_err(|e| TrialError::from(StartRunError::from(e)))?;
        // The parts and the runs are compared, so both have the same workers from the start.
        let plan = plan.without_growth();
        let memory = Memory::new(&plan)?;
        let folder = scratch_folder("orchestra-bench-", options.folder.as_deref())?;
        tell(Progress::Listing);
        let catalogue = Catalogue::list(&plan, folder.path(), &options.cancel)?;
        let items_total = catalogue.total();
        let mut bench = Self {
            sample: catalogue.sample(options.items.unwrap_or(FIRST_LOOK).min(FIRST_LOOK))?,
            works: source_works(&plan),
            cores: std::thread::available_parallelism().map_or(1, NonZero::get),
            run_plan: Arc::new(plan.clone()),
            plan: Arc::new(plan),
            listings: Vec::new(),
            options,
            items_total,
            memory,
            folder,
        };
        tell(Progress::FirstLook);
        for work in &bench.works {
            if let Some(part) = bench.decode_part(work) {
                part.make_ready()?;
            }
        }
        let items = match bench.options.items {
            Some(items) => items,
            None => bench.enough_items()?,
        };
        bench.sample = catalogue.sample(items.clamp(1, items_total))?;
        bench.listings = bench.sample.manifests(bench.folder.path())?;
        bench.run_plan = Arc::new(bench.plan_of_run(&bench.plan));
        tell(Progress::Chosen { items: bench.sample.n_items(), of: items_total });
        Ok(bench)
    }

    /// As many items as keep a run busy for a while, found by a short look at both parts.
    fn enough_items(&self) -> Result<u64, BenchError> {
        let look = self.options.part / 4;
        let decode = self.decode(look)?;
        let infer = self.infer(look, &mut |_| {})?;
        let limit = self.judged().loads(&decode, &infer).limit().items_per_second;
        // Saturates where nothing limits it.
        Ok(((limit * self.options.part.as_secs_f64() * RUN_BY_PART) as u64).max(LEAST_ITEMS))
    }

    /// Each infer stage alone, in a bare loop, with batches of 1, 2, 4 and so on up to the largest: what a size is worth on a device.
    ///
    /// # Errors
    /// A worker fails, or it is cancelled.
    pub fn rungs(&mut self, tell: Tell<'_>) -> Result<RungReport, BenchError> {
        let mut rungs = Vec::new();
        for (stage, infer) in self.plan.infer_stages() {
            let name = &self.plan.stages[stage.index()].name;
            tell(Progress::Part { round: 1, of: 1, part: &format!("infer {name}") });
            let sizes = infer.fixed_batch.map_or_else(|| ladder(infer.max_batch), |only| vec![only]);
            let figures = self.infer_part(stage, infer).measure_sizes(&sizes, self.options.part)?;
            rungs.extend(figures.iter().map(|f| Rung {
                stage: name.clone(),
                device: self.plan.devices[f.device.index()].spec.name.clone(),
                workers: f.workers,
                threads: f.threads,
                batch: f.batch,
                items_per_second: f.rate,
                cpu_seconds_per_item: f.cpu_seconds,
                first_batch_seconds: f.first_batch.as_secs_f64(),
                median_batch_seconds: f.usual_batch.as_secs_f64(),
                switched_batch_seconds: f.switched_batch.map(|taken| taken.as_secs_f64()),
            }));
        }
        Ok(RungReport { workflow: self.plan.name.clone(), rungs })
    }

    /// All rounds.
    ///
    /// # Errors
    /// A worker fails, the measured run does not end well, or it is cancelled.
    pub fn measure(&mut self, tell: Tell<'_>) -> Result<Report, BenchError> {
        let of = self.options.rounds.max(1);
        let part = self.options.part;
        let mut rounds = Vec::with_capacity(of);
        let mut before = self.parts(part, &mut |part| tell(Progress::Part { round: 1, of, part }))?;
        for round in 1..=of {
            let mut tell = |part: &str| tell(Progress::Part { round, of, part });
            tell("run");
            let run = self.run(&self.run_plan)?;
            // What comes after this run comes before the next one.
            let after = self.parts(part, &mut tell)?;
            let decode = before.decode.iter().zip(&after.decode).map(|(a, b)| a.and(b)).collect();
            let infer = before.infer.iter().zip(&after.infer).map(|(a, b)| a.and(b)).collect();
            rounds.push(Round { decode, infer, run });
            before = after;
        }
        Ok(self.judged().report(&rounds))
    }

    fn parts(&self, part: Duration, tell: &mut dyn FnMut(&str)) -> Result<Parts, BenchError> {
        tell("decode");
        Ok(Parts { decode: self.decode(part)?, infer: self.infer(part, tell)? })
    }

    /// Tries other settings, at most `trials` of them, each side by side with the best so far. `replan` plans the workflow with settings
    /// changed; `None`: it cannot be planned so.
    ///
    /// # Errors
    /// As for [`Bench::measure`]. A setting with which a run does not start or end well is only not taken.
    pub fn tune(&mut self, trials: usize, replan: Replan<'_>, tell: Tell<'_>) -> Result<Tuned, BenchError> {
        let knobs = tune::knobs(&self.plan, self.cores);
        let runs = self.options.rounds.max(LEAST_RUNS_COMPARED);
        let mut trial = 0;
        let mut compare = |best: &Settings, other: &Settings, (key, value): (&str, u64)| {
            trial += 1;
            tell(Progress::Trying { trial, of: trials, key, value });
            let (Some(best), Some(other)) = (replan(best), replan(other)) else { return Ok(None) };
            self.compare(&best, &other, runs)
        };
        tune::descend(&knobs, trials, &mut compare)
    }

    /// Runs of both in turns, the order changing, so that what drifts falls on both alike.
    fn compare(
        &self,
        best: &Plan,
        other: &Plan,
        runs: usize,
    ) -> Result<Option<(Spread, Spread)>, BenchError> {
        let plans = [best, other].map(|p| Arc::new(self.plan_of_run(p)));
        let mut rates = [Vec::new(), Vec::new()];
        for turn in 0..2 * runs {
            // 0 1, 1 0, 0 1, ...
            let which = (turn + turn / 2) % 2;
            match self.run(&plans[which]) {
                Ok(figures) => rates[which].push(figures.rate),
                Err(BenchError::Trial(TrialError::Cancelled)) => return Err(BenchError::cancelled()),
                // The best one ran before, so this is what the setting does: too little memory, for example.
                Err(_) if which == 1 => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let [best, other] = rates.map(Spread::of);
        Ok(Some((best, other)))
    }

    fn plan_of_run(&self, plan: &Plan) -> Plan {
        plan_for(plan, &self.listings, &self.folder.path().join("out"))
    }

    fn judged(&self) -> Judged<'_> {
        Judged { plan: &self.plan, sample: &self.sample, cores: self.cores, items_total: self.items_total }
    }

    fn decode_part<'a>(&'a self, work: &'a SourceWork) -> Option<DecodePart<'a>> {
        let paths = &self.sample.sources[work.source.index()].paths;
        (!paths.is_empty()).then_some(DecodePart {
            work,
            memory: &self.memory,
            paths,
            max_pixels: self.plan.limits.max_pixels,
            cancel: &self.options.cancel,
        })
    }

    fn decode(&self, at_least: Duration) -> Result<Vec<DecodeFigures>, BenchError> {
        let parts = self.works.iter().filter_map(|work| self.decode_part(work));
        parts.map(|part| part.measure(self.cores, at_least)).collect()
    }

    fn infer(&self, lasting: Duration, tell: &mut dyn FnMut(&str)) -> Result<Vec<InferFigures>, BenchError> {
        let mut all = Vec::new();
        for (stage, infer) in self.plan.infer_stages() {
            tell(&format!("infer {}", self.plan.stages[stage.index()].name));
            all.extend(self.infer_part(stage, infer).measure(lasting)?);
        }
        Ok(all)
    }

    /// A stage with its inputs ready.
    fn infer_part<'a>(&'a self, stage: StageId, infer: &'a InferPlan) -> InferPart<'a> {
        // SAFETY: no worker runs now, and no decoding thread does.
        unsafe { self.memory.feed(stage, infer) };
        InferPart {
            plan: &self.plan,
            stage,
            infer,
            memory: &self.memory,
            launcher: &*self.options.launcher,
            library: &self.options.library,
            preload: &self.options.preload,
            cancel: &self.options.cancel,
        }
    }

    fn run(&self, plan: &Arc<Plan>) -> Result<RunFigures, BenchError> {
        let options = RunOptions {
            launcher: Arc::clone(&self.options.launcher),
            library: self.options.library.clone(),
            timeouts: Timeouts::default(),
            restart: RestartPolicy::default(),
            trace: self.options.trace.clone(),
            events: None,
            devices: DeviceOptions { preload: self.options.preload.clone(), ..DeviceOptions::default() },
        };
        whole_run::measure(plan, options, self.cores, &self.options.cancel)
    }
}
