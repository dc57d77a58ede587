//! What of a chain a loader process does: the maps whose kinds can be made again there, as far as they read nothing else. The rest of the
//! chain, batches, folds and sinks among it, reads their rows here.

use orchestra_core::Placement;
use orchestra_core::data::ColumnType;
use orchestra_core::shapes::Fetch;
use orchestra_plan::{ColumnRef, Origin, Plan, Shape};
use orchestra_worker::loader::events::{LoadChain, MapSpec, RowOrigin};

use super::{Chain, ChainRun, MapStep, Step, StepRun};
use crate::flow::loader::{Current, Replay, SentColumns};

/// Marks the maps that a loader process runs. `known` is what they may read: the source, and maps in front of them that it runs, too.
pub(super) fn mark(steps: &mut [Step], known: &mut Vec<Origin>) {
    for step in steps {
        let Step::Map(map) = step else { continue };
        if !map.reads.iter().all(|read| known.contains(&read.from)) {
            continue;
        }
        map.in_loader = map.map.in_loader();
        if map.in_loader.is_some() {
            known.push(Origin::Stage(map.stage));
            mark(&mut map.next, known);
            known.pop();
        }
    }
}

/// Adds the columns of `of` that are read here, and not by the loader.
fn read_here(steps: &[Step], of: Origin, columns: &mut Vec<usize>) {
    let mut add = |reads: &[ColumnRef]| {
        for read in reads.iter().filter(|read| read.from == of) {
            if !columns.contains(&read.column) {
                columns.push(read.column);
            }
        }
    };
    for step in steps {
        match step {
            Step::Map(map) => {
                if map.in_loader.is_none() {
                    add(&map.reads);
                }
            }
            Step::Batch { reads, carries, .. } => {
                add(reads);
                add(carries);
            }
            Step::Fold { reads, .. } | Step::Reduce { reads, .. } | Step::Sink { reads, .. } => add(reads),
        }
    }
    for step in steps {
        if let Step::Map(map) = step {
            read_here(&map.next, of, columns);
        }
    }
}

fn sends(steps: &[Step], of: Origin) -> Vec<usize> {
    let mut columns = Vec::new();
    read_here(steps, of, &mut columns);
    columns
}

fn from(origin: Origin) -> RowOrigin {
    origin.stage().map(|stage| stage.0)
}

fn map_specs(steps: &[Step]) -> Vec<MapSpec> {
    let spec = |step: &Step| {
        let Step::Map(MapStep { stage, reads, next, in_loader: Some(spec), .. }) = step else { return None };
        Some(MapSpec {
            stage: stage.0,
            map: spec.clone(),
            reads: reads.iter().map(|read| (from(read.from), read.column)).collect(),
            sends: sends(next, Origin::Stage(*stage)),
            next: map_specs(next),
        })
    };
    steps.iter().filter_map(spec).collect()
}

/// The most bytes that are sent of an item where each map gives one row, but for pictures.
fn row_bytes(plan: &Plan, of: Origin, sends: &[usize], maps: &[MapSpec]) -> u64 {
    let map = of.stage().and_then(|stage| match &plan.stages[stage.index()].runs {
        Shape::Map(map) => Some(map),
        Shape::Batch(_) | Shape::Fold(_) => None,
    });
    let column = |column: &usize| {
        let read = ColumnRef { from: of, column: *column };
        if let Some(packing) = map.and_then(|map| map.packing(*column)) {
            return packing.bytes() as u64;
        }
        let bytes = match &plan.column(read).ty {
            ColumnType::Placement => Placement::tensor().row_bytes(),
            ty => ty.stored().and_then(|spec| spec.row_bytes()),
        };
        bytes.unwrap_or(0) as u64
    };
    let behind = |map: &MapSpec| {
        row_bytes(plan, Origin::Stage(orchestra_core::StageId(map.stage)), &map.sends, &map.next)
    };
    sends.iter().map(column).chain(maps.iter().map(behind)).sum()
}

impl Chain {
    /// What a loader process is told; `None` where the source can only be read here.
    pub fn load_chain(&self, fetch: &dyn Fetch) -> Option<LoadChain> {
        /// Room for many small items. No more than caches hold: what the process writes is read from them, and not from memory.
        const SMALL: u64 = 256 << 10;
        /// A process with less could not decode a small picture.
        const LEAST_MEMORY: u64 = 64 << 20;
        let plan = &self.context.plan;
        let (sends, maps) = (sends(&self.steps, self.origin), map_specs(&self.steps));
        let threads = plan.loader_threads.max(1) as u64;
        let memory = plan.loader_bytes / threads;
        // Pictures go on into the memory for those that are carried. A process has room for its part of them, and for more as long as that is
        // no more than half of its own memory.
        let pictures = self.pictures.as_ref().map_or(0, |arena| arena.len() as u64);
        let part = (pictures / threads).max(pictures.min(memory / 2));
        // Two items and what lies between them at the end of the ring.
        let rows = SMALL + row_bytes(plan, self.origin, &sends, &maps) * 2;
        Some(LoadChain {
            fetch: fetch.in_loader()?,
            region_bytes: rows + part,
            most_region_bytes: rows + pictures,
            sends,
            maps,
            sandbox: plan.limits.sandbox,
            network: fetch.network().is_some(),
            // Each process is told what they are by then.
            reads: Vec::new(),
            memory: memory.saturating_sub(rows + part).max(LEAST_MEMORY),
        })
    }

    /// As `start`, over items that a loader process has loaded.
    pub fn start_behind_loader(&self, current: &Current) -> ChainRun {
        ChainRun { runs: self.replays(&self.steps, current) }
    }

    fn replays(&self, steps: &[Step], current: &Current) -> Vec<StepRun> {
        let plan = &self.context.plan;
        let run = |step: &Step| match step {
            Step::Map(map) if map.in_loader.is_some() => {
                let gives = &plan.stages[map.stage.index()].gives;
                let gives =
                    SentColumns::new(gives, &sends(&map.next, Origin::Stage(map.stage)), Some(&*map.map));
                let replay = Replay { current: current.clone(), gives };
                StepRun { map: Some(Box::new(replay)), next: self.replays(&map.next, current) }
            }
            Step::Map(map) => StepRun { map: Some(map.map.start()), next: super::start(&map.next) },
            _ => StepRun { map: None, next: Vec::new() },
        };
        steps.iter().map(run).collect()
    }

    /// The row of the source, as a loader process sends it.
    pub fn source_gives(&self) -> SentColumns {
        let Origin::Source(source) = self.origin else {
            return SentColumns::new(&Default::default(), &[], None);
        };
        let gives = &self.context.plan.sources[source.index()].gives;
        SentColumns::new(gives, &sends(&self.steps, self.origin), None)
    }
}
