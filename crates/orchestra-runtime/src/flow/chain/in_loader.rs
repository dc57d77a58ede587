//! What of a chain a loader process does: the maps whose kinds can be made again there, as far as they read nothing else. The rest of the
//! chain, batches, folds and sinks among it, reads their rows here.

use orchestra_core::Placement;
use orchestra_core::data::{ColumnType, Schema};
use orchestra_core::shapes::{Fan, Fetch};
use orchestra_plan::{ColumnRef, LEAST_LOADER_BYTES, Origin, Plan, Shape};
use orchestra_worker::loader::events::{ChainSpec, MapSpec, RowOrigin};

use super::{Chain, ChainRun, MapStep, Step, StepRun};
use crate::flow::loader::{ItemEvents, Replay, SentColumns};

/// Whether a loader process can send rows of these columns.
fn can_be_sent(gives: &Schema) -> bool {
    !gives.0.iter().any(|column| matches!(column.ty, ColumnType::List(_)))
}

/// Marks the maps that a loader process runs. `known` is what they may read: the source, and maps in front of them that it runs, too.
pub(super) fn mark(plan: &Plan, steps: &mut [Step], known: &mut Vec<Origin>) {
    for step in steps {
        let Step::Map(map) = step else { continue };
        if !map.reads.iter().all(|read| known.contains(&read.from)) {
            continue;
        }
        let is_sent = can_be_sent(&plan.stages[map.stage.index()].gives);
        map.in_loader = map.map.in_loader().filter(|_| is_sent);
        if map.in_loader.is_some() {
            known.push(Origin::Stage(map.stage));
            mark(plan, &mut map.next, known);
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

/// What values take in the region that are sent of one item.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct SentBytes {
    /// The most, of those of which the plan says how large they are.
    known: u64,
    /// There are others: pictures, bytes, tensors of any shape, or rows of which a map makes any number.
    has_unknown: bool,
}

impl SentBytes {
    fn of(plan: &Plan, origin: Origin, sends: &[usize], maps: &[MapSpec]) -> Self {
        let map = origin.stage().and_then(|stage| match &plan.stages[stage.index()].runs {
            Shape::Map(map) => Some(map),
            Shape::Batch(_) | Shape::Fold(_) => None,
        });
        let column = |column: &usize| {
            if let Some(packing) = map.and_then(|map| map.packing(*column)) {
                return Some(packing.bytes());
            }
            match &plan.column(ColumnRef { from: origin, column: *column }).ty {
                ColumnType::Placement => Placement::tensor().row_bytes(),
                // These go with the events.
                ColumnType::Text | ColumnType::Labels => Some(0),
                ty => ty.stored().and_then(|spec| spec.row_bytes()),
            }
        };
        let here = sends
            .iter()
            .map(column)
            .map(|bytes| Self { known: bytes.unwrap_or(0) as u64, has_unknown: bytes.is_none() });
        let behind = maps.iter().map(|map| {
            let stage = orchestra_core::StageId(map.stage);
            Self::of(plan, Origin::Stage(stage), &map.sends, &map.next)
        });
        let mut all = here.chain(behind).fold(Self::default(), |all, of| Self {
            known: all.known + of.known,
            has_unknown: all.has_unknown || of.has_unknown,
        });
        all.has_unknown |= all.known > 0 && map.is_some_and(|map| map.fan() == Fan::Parts);
        all
    }
}

/// What one loader process may take, in bytes.
#[derive(Debug, PartialEq, Eq)]
struct LoaderMemory {
    /// Shared with the parent: what is on its way there.
    region: u64,
    /// Of its own, for decoding.
    own: u64,
}

/// A process with less could not decode a small picture.
const LEAST_OWN: u64 = 64 << 20;

/// What a process may take for itself that may take so much with its region.
pub fn own_bytes(all: u64, region: u64) -> u64 {
    all.saturating_sub(region).max(LEAST_OWN)
}

impl LoaderMemory {
    /// Cuts the `share` of one of `n` processes into a region and memory of its own. The region has room for values of known size, and for its part
    /// of the carried `pictures`, or for more of them up to half of the share. With values of unknown size it has half of the share. Both together
    /// are the share, where that is [`LEAST_LOADER_BYTES`] or more and values of known size are small.
    fn of(share: u64, sent: SentBytes, pictures: u64, n: u64) -> Self {
        /// Of carried pictures: with less, most of them would be loaded one at a time.
        const LEAST_PICTURES: u64 = 16 << 20;
        const { assert!(LEAST_OWN + LEAST_PICTURES < LEAST_LOADER_BYTES) };
        let rows = Self::rows(sent);
        let most = share.saturating_sub(LEAST_OWN + rows).max(LEAST_PICTURES);
        let half = share / 2;
        let unknown = if sent.has_unknown {
            half.max(LEAST_PICTURES)
        } else {
            (pictures / n.max(1)).max(pictures.min(half))
        };
        let region = rows + unknown.min(most);
        Self { region, own: own_bytes(share, region) }
    }

    /// The region of a process that has an item alone, with `alone` bytes: it holds the largest picture that can be carried, and values of unknown size
    /// have half of `alone`.
    fn most_region(alone: u64, sent: SentBytes, pictures: u64) -> u64 {
        let unknown = if sent.has_unknown { Self::of(alone, sent, pictures, 1).region } else { 0 };
        (Self::rows(sent) + pictures).max(unknown)
    }

    /// Two items and what lies between them at the end of the ring.
    fn rows(sent: SentBytes) -> u64 {
        /// Room for many small items. No more than caches hold: what the process writes is read from them, and not from memory.
        const SMALL: u64 = 256 << 10;
        SMALL + sent.known * 2
    }
}

impl Chain {
    /// What a loader process is told; `None` where the source can only be read here.
    pub fn spec_for_loader(&self, fetch: &dyn Fetch) -> Option<ChainSpec> {
        let plan = &self.context.plan;
        if let Origin::Source(source) = self.origin
            && !can_be_sent(&plan.sources[source.index()].gives)
        {
            return None;
        }
        let (sends, maps) = (sends(&self.steps, self.origin), map_specs(&self.steps));
        // Pictures that are carried go on into the memory for them.
        let pictures = self.pictures.as_ref().map_or(0, |arena| arena.len() as u64);
        let sent = SentBytes::of(plan, self.origin, &sends, &maps);
        let memory = LoaderMemory::of(plan.loader_share(), sent, pictures, plan.n_loaders() as u64);
        Some(ChainSpec {
            fetch: fetch.in_loader()?,
            region_bytes: memory.region,
            most_region_bytes: LoaderMemory::most_region(plan.alone_bytes(), sent, pictures),
            sends,
            maps,
            sandbox: plan.limits.sandbox,
            // Each process is told what they are by then.
            readable: Vec::new(),
            memory: memory.own,
        })
    }

    /// As `start`, over items that a loader process has loaded.
    pub fn start_behind_loader(&self, events: &ItemEvents) -> ChainRun {
        ChainRun { runs: self.replays(&self.steps, events) }
    }

    fn replays(&self, steps: &[Step], events: &ItemEvents) -> Vec<StepRun> {
        let plan = &self.context.plan;
        let run = |step: &Step| match step {
            Step::Map(map) if map.in_loader.is_some() => {
                let gives = &plan.stages[map.stage.index()].gives;
                let gives =
                    SentColumns::new(gives, &sends(&map.next, Origin::Stage(map.stage)), Some(&*map.map));
                let replay = Replay { events: events.clone(), gives };
                StepRun { map: Some(Box::new(replay)), next: self.replays(&map.next, events) }
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of_rows(known: u64, has_unknown: bool) -> SentBytes {
        SentBytes { known, has_unknown }
    }

    #[test]
    fn all_loaders_together_take_no_more_than_what_is_there_for_them() {
        let kinds =
            [0, 10, 128, 512].map(|n| (n * MIB, false)).into_iter().chain([(0, true), (128 * MIB, true)]);
        let kinds: Vec<_> = kinds
            .flat_map(|(pictures, open)| [0, 8 * MIB - MIB / 8].map(|rows| (pictures, open, rows)))
            .collect();
        for loader_bytes in [96, 256, 1024, 4096, 65_536].map(|n| n * MIB) {
            for n in 1..=loader_bytes / LEAST_LOADER_BYTES {
                for &(pictures, has_unknown, known) in &kinds {
                    let (share, sent) = (loader_bytes / n, of_rows(known, has_unknown));
                    let LoaderMemory { region, own } = LoaderMemory::of(share, sent, pictures, n);
                    let text = format!("{n} of {loader_bytes}, {pictures} of pictures, {sent:?}");
                    assert!((region + own) * n <= loader_bytes, "{text}: {region} + {own}");
                    assert!(own >= 64 * MIB && region >= known * 2, "{text}: {region} + {own}");
                    let for_unknown = if has_unknown { 15 * MIB } else { pictures.min(16 * MIB) };
                    assert!(region >= known * 2 + for_unknown, "{text}: {region}");
                    // Alone, with a region for the largest picture that can be carried, in what a plan leaves for that.
                    let alone = (pictures + LEAST_LOADER_BYTES).max(share);
                    let most = LoaderMemory::most_region(alone, sent, pictures);
                    assert!(most >= region.min(known * 2 + pictures), "{text}: {most}");
                    assert!(!has_unknown || most >= region, "{text}: {most} and {region}");
                    assert!(own_bytes(alone, most) + most <= alone, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_share_is_for_decoding_but_for_what_pictures_need_that_are_carried_or_sent() {
        let small = of_rows(3 * MIB / 8, false);
        let of = |share, pictures, n| LoaderMemory::of(share * MIB, small, pictures * MIB, n);
        assert_eq!(of(128, 0, 2), LoaderMemory { region: MIB, own: 127 * MIB });
        assert_eq!(of(128, 128, 2), LoaderMemory { region: 64 * MIB, own: 64 * MIB });
        assert_eq!(of(2048, 512, 2), LoaderMemory { region: 513 * MIB, own: 1535 * MIB });
        // Where there is less than one loader needs, it starts all the same.
        assert_eq!(of(1, 2, 1), LoaderMemory { region: 3 * MIB, own: 64 * MIB });
        let unknown = of_rows(3 * MIB / 8, true);
        let of = |share| LoaderMemory::of(share * MIB, unknown, 0, 4);
        assert_eq!(of(2048), LoaderMemory { region: 1025 * MIB, own: 1023 * MIB });
        assert_eq!(of(96), LoaderMemory { region: 32 * MIB, own: 64 * MIB });
        assert_eq!(LoaderMemory::most_region(4096 * MIB, unknown, 0), 2049 * MIB);
        assert_eq!(LoaderMemory::most_region(4096 * MIB, small, 128 * MIB), 129 * MIB);
    }
}
