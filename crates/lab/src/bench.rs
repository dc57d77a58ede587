//! How fast a workflow can be on this machine, and how fast a run is: lists, chooses items, then rounds of decode, infer and run.

use std::num::NonZero;
use std::time::Duration;

use orchestra_core::StageId;
use orchestra_plan::{BatchPlan, Plan, batch_sizes};
use tempfile::TempDir;

use crate::bench_report::{BatchSizeReport, Judge, Report, Round};
use crate::decode::{DecodeFigures, DecodePart};
use crate::error::LabError;
use crate::infer::{InferFigures, InferPart};
use crate::item_lists::{ItemLists, Lists};
use crate::memory::{Memory, SourceWork, source_works};
use crate::run::{Progress, Tell, Tools, plan_for};
use crate::whole_run;

/// Items that are looked at to find out how many are worth measuring, and that are decoded for batch sizes.
const FIRST_LOOK: u64 = 256;
/// Fewest items of a run, where there are so many.
const LEAST_ITEMS: u64 = 64;
/// A run lasts so many times as long as a part, so that its steady state lasts about as long as that.
const RUN_BY_PART: f64 = 2.0;
/// Distinct items that the decode part holds in memory; more would not change what an item costs.
const MOST_PATHS: u64 = 1 << 20;

#[derive(Clone)]
pub struct Options {
    pub rounds: usize,
    /// How long each part is measured in each round. Decoding ends with the last item of a pass over all of them.
    pub part: Duration,
    /// Items of the run; `None`: as many as keep it busy for twice `part`.
    pub items: Option<u64>,
    /// How many times the run may go over the items of the sources.
    pub repeat: u64,
    pub tools: Tools,
}

/// A workflow that is ready to be measured. Dropping it removes all of its files.
pub struct Bench {
    plan: Plan,
    options: Options,
    cores: usize,
    items_total: u64,
    works: Vec<SourceWork>,
    memory: Memory,
    /// Per source what the decode part goes over.
    paths: Vec<Vec<std::path::PathBuf>>,
    /// What a run goes over.
    lists: Lists,
    item_lists: ItemLists,
    folder: TempDir,
}

impl Bench {
    /// Lists the items, takes the memory of the batches and fills it. Blocks, as all of this does; must not be called within a tokio runtime.
    pub fn prepare(plan: Plan, options: Options, tell: Tell<'_>) -> Result<Self, LabError> {
        // The parts and the runs are compared, so both have the same workers from the start.
        let plan = plan.without_growth();
        let memory = Memory::new(&plan)?;
        let folder = options.tools.scratch_folder("orchestra-bench-")?;
        tell(Progress::Listing);
        let item_lists = ItemLists::list(&plan, folder.path(), &options.tools.cancel)?;
        let bench = Self {
            cores: std::thread::available_parallelism().map_or(1, NonZero::get),
            items_total: item_lists.total(),
            works: source_works(&plan),
            paths: item_lists.paths(FIRST_LOOK)?,
            memory,
            lists: Lists::default(),
            item_lists,
            folder,
            plan,
            options,
        };
        if bench.plan.is_on_cpu() {
            // Decoders and workers of the parts wait for cores as those of a run do.
            orchestra_runtime::run_as_batch_work();
        }
        bench
            .works
            .iter()
            .filter_map(|work| bench.decode_part(work))
            .try_for_each(|part| part.make_ready())?;
        Ok(bench)
    }

    /// Each stage with a model alone, with batches of these sizes; of none: of 1, 2, 4 and so on up to the largest.
    pub fn batch_sizes(&self, named: &[usize]) -> Result<BatchSizeReport, LabError> {
        let mut measured = Vec::new();
        for (stage, batch) in self.plan.batch_stages() {
            let sizes = match batch.fixed_batch {
                Some(only) => vec![only],
                None if named.is_empty() => batch_sizes(batch.max_batch),
                None => named.to_vec(),
            };
            if let Some(&size) = sizes.iter().find(|size| **size > batch.max_batch) {
                let (stage, max) = (self.plan.stages[stage.index()].name.clone(), batch.max_batch);
                return Err(LabError::BatchSize { size, stage, max });
            }
            measured.extend(self.infer_part(stage, batch).measure(&sizes, self.options.part)?);
        }
        Ok(BatchSizeReport { workflow: self.plan.name.clone(), batch_sizes: measured })
    }

    /// Chooses the items, and measures all rounds.
    pub fn measure(&mut self, tell: Tell<'_>) -> Result<Report, LabError> {
        self.choose_items(tell)?;
        let of = self.options.rounds.max(1);
        let mut rounds = Vec::with_capacity(of);
        for round in 1..=of {
            let mut at = |part, finished| tell(Progress::Round { round, of, part, finished });
            at("decode", 0);
            let decode = self.decode(self.options.part)?;
            at("batches", 0);
            let infer = self.infer(self.options.part)?;
            at("run", 0);
            let plan = plan_for(&self.plan, &self.lists, &self.folder.path().join("out"));
            let look = &mut |s: &orchestra_runtime::Snapshot| at("run", s.done + s.failed);
            let run = whole_run::measure(plan, &self.options.tools, look)?;
            rounds.push(Round { decode, infer, run });
        }
        Ok(self.judge().report(&rounds, self.items_total))
    }

    fn choose_items(&mut self, tell: Tell<'_>) -> Result<(), LabError> {
        let most = self.items_total.saturating_mul(self.options.repeat.max(1));
        let items = match self.options.items {
            Some(items) => items,
            None => {
                tell(Progress::FirstLook);
                self.lists =
                    self.item_lists.write_lists(FIRST_LOOK.min(self.items_total), self.folder.path())?;
                let look = self.options.part / 4;
                let limit = self.judge().limit(&self.decode(look)?, &self.infer(look)?).items_per_second;
                // Saturates where nothing limits it.
                ((limit * self.options.part.as_secs_f64() * RUN_BY_PART) as u64).max(LEAST_ITEMS)
            }
        };
        let items = items.clamp(1, most);
        self.lists = self.item_lists.write_lists(items, self.folder.path())?;
        self.paths = self.item_lists.paths(items.min(MOST_PATHS))?;
        tell(Progress::Chosen { items: self.lists.total(), of: self.items_total });
        Ok(())
    }

    fn judge(&self) -> Judge<'_> {
        Judge { plan: &self.plan, lists: &self.lists, cores: self.cores }
    }

    fn decode(&self, at_least: Duration) -> Result<Vec<DecodeFigures>, LabError> {
        let parts = self.works.iter().filter_map(|work| self.decode_part(work));
        parts.map(|part| part.measure(self.cores, at_least)).collect()
    }

    fn infer(&self, lasting: Duration) -> Result<Vec<InferFigures>, LabError> {
        let mut all = Vec::new();
        for (stage, batch) in self.plan.batch_stages() {
            all.extend(self.infer_part(stage, batch).measure(&[batch.max_batch], lasting)?);
        }
        Ok(all)
    }

    fn decode_part<'a>(&'a self, work: &'a SourceWork) -> Option<DecodePart<'a>> {
        let paths = &self.paths[work.source.index()];
        (!paths.is_empty()).then_some(DecodePart {
            work,
            memory: &self.memory,
            paths,
            cancel: &self.options.tools.cancel,
        })
    }

    fn infer_part<'a>(&'a self, stage: StageId, batch: &'a BatchPlan) -> InferPart<'a> {
        // SAFETY: no worker runs now, and no decoding thread does.
        unsafe { self.memory.feed(&self.plan, stage) };
        InferPart { plan: &self.plan, stage, batch, memory: &self.memory, tools: &self.options.tools }
    }
}
