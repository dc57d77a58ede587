//! What of a chain a loader process does: the maps whose kinds can be made again there, as far as they read nothing else. What it sends comes to the leaves
//! and to the other maps here, as rows that are made here do.

use orchestra_core::data::{ColumnType, ItemError, Schema, Value};
use orchestra_core::shapes::{
    FanOut, Fetch, KindSettings, Leaves as _, MapCount, MapRuns, MapStep, MapStepOf, RowEnded, RowScope,
    Step, StepOf, Walk,
};
use orchestra_core::{Placement, StageId};
use orchestra_plan::{ColumnRef, LEAST_LOADER_BYTES, Origin};
use orchestra_worker::loader::LoaderRegion;
use orchestra_worker::loader::events::{ChainSpec, ItemAnswer, RowEvent, SentColumn, SentLeaf, SentValue};
use smallvec::{SmallVec, smallvec};

use super::row_in_hand::RowInHand;
use super::{Chain, ItemInHand, Outcome, Token};
use crate::flow::loader::{CellType, ReceivedValue, out_of_order};

/// How rows of a loader process are read.
#[derive(Default)]
pub struct SentRows {
    columns: Vec<CellType>,
    leaves: Vec<SentTo>,
}

/// What takes rows of a loader process: a leaf, or a map that runs here.
struct SentTo {
    step: Step,
    at: usize,
    n_splits: usize,
    columns: Vec<usize>,
}

/// Cuts a chain in two.
struct ChainSplitter<'a> {
    chain: &'a Chain,
    /// What the loader's maps may read: the source, and maps in front of them, by their places.
    known: Vec<(Origin, Option<usize>)>,
    sends: Vec<SentColumn>,
    rows: SentRows,
    bytes: SentBytes,
}

/// What values take in the region that are sent of one item.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct SentBytes {
    /// The most, of those of which the plan says how large they are.
    known: u64,
    /// There are others: pictures, bytes, tensors of any shape, or rows of which a map makes any number.
    has_unknown: bool,
}

/// Whether a loader process can send rows of these columns.
fn can_be_sent(gives: &Schema) -> bool {
    !gives.0.iter().any(|column| matches!(column.ty, ColumnType::List(_)))
}

impl ChainSplitter<'_> {
    fn steps(&mut self, steps: &[Step], n_splits: usize) -> Vec<StepOf<KindSettings>> {
        let step = |step: &Step| {
            if let Step::Map(map) = step
                && let Some(settings) = self.in_loader(map)
            {
                self.known.push((Origin::Stage(map.stage), Some(map.at)));
                let next = self.steps(&map.next, n_splits + usize::from(map.map.fan() == FanOut::Parts));
                self.known.pop();
                let MapStep { stage, at, ref reads, .. } = *map;
                return StepOf::Map(MapStepOf { stage, at, map: settings, reads: reads.clone(), next });
            }
            let (at, mut columns) = (self.chain.first_leaf(step), Vec::new());
            self.read_here(step, &mut columns);
            self.rows.leaves.push(SentTo { step: step.clone(), at, n_splits, columns });
            StepOf::Leaf(self.rows.leaves.len() - 1)
        };
        steps.iter().map(step).collect()
    }

    /// What a loader process needs to run a map, where that may.
    fn in_loader(&self, map: &MapStep) -> Option<KindSettings> {
        let knows = |read: &ColumnRef| self.known.iter().any(|(known, _)| *known == read.from);
        let can = map.reads.iter().all(knows)
            && can_be_sent(self.chain.context.plan.gives(Origin::Stage(map.stage)));
        map.map.to_wire().filter(|_| can)
    }

    /// Adds what is read of the loader's rows from a step on.
    fn read_here(&mut self, step: &Step, columns: &mut Vec<usize>) {
        let chain = self.chain;
        let (reads, passthrough_columns, next) = match step {
            Step::Map(map) => (&map.reads, &[][..], &map.next[..]),
            Step::Leaf(leaf) => {
                (&chain.leaves[*leaf].reads, &chain.leaves[*leaf].passthrough_columns[..], &[][..])
            }
        };
        for read in reads.iter().chain(passthrough_columns) {
            let Some((_, at)) = self.known.iter().find(|(known, _)| *known == read.from) else { continue };
            let column = self.column(*read, *at);
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        next.iter().for_each(|step| self.read_here(step, columns));
    }

    /// The place of a column among those that are sent.
    fn column(&mut self, read: ColumnRef, at: Option<usize>) -> usize {
        let known = self.sends.iter().position(|sent| sent.at == at && sent.read == read);
        known.unwrap_or_else(|| {
            let plan = &self.chain.context.plan;
            let place = at.map(|at| &self.chain.maps[at]);
            let packing = place.and_then(|place| place.map.packing(read.column));
            let packed = packing.as_ref().map(|packing| packing.bytes());
            let bytes = packed.or_else(|| match &plan.column(read).ty {
                ColumnType::Placement => Placement::tensor().row_bytes(),
                // These go with the answer.
                ColumnType::Text | ColumnType::Labels => Some(0),
                ty => ty.stored().and_then(|spec| spec.row_bytes()),
            });
            let is_in_split =
                place.is_some_and(|place| place.n_splits > 0 || place.map.fan() == FanOut::Parts);
            self.bytes.known += bytes.unwrap_or(0) as u64;
            self.bytes.has_unknown |= bytes.is_none_or(|bytes| bytes > 0 && is_in_split);
            self.rows.columns.push(CellType { read, column: plan.column(read).clone(), packing });
            self.sends.push(SentColumn { at, read, packed });
            self.sends.len() - 1
        })
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
    /// What a loader process is told, and how its rows are read; `None` where the source can only be read here.
    pub fn in_loader(&self, fetch: &dyn Fetch) -> Option<(ChainSpec, SentRows)> {
        let plan = &self.context.plan;
        let fetch = fetch.to_wire().filter(|_| can_be_sent(plan.gives(self.origin)))?;
        let (known, sends) = (vec![(self.origin, None)], Vec::new());
        let (rows, bytes) = (SentRows::default(), SentBytes::default());
        let mut cut = ChainSplitter { chain: self, known, sends, rows, bytes };
        let steps = cut.steps(&self.steps, 0);
        let ChainSplitter { sends, rows, bytes, .. } = cut;
        let leaf = |to: &SentTo| SentLeaf { stage: self.stage_of(&to.step), columns: to.columns.clone() };
        let leaves = rows.leaves.iter().map(leaf).collect();
        // Pictures that are carried go on into the memory for them.
        let pictures = self.pictures.as_ref().map_or(0, |arena| arena.len() as u64);
        let memory = LoaderMemory::of(plan.loader_share(), bytes, pictures, plan.n_loaders() as u64);
        let spec = ChainSpec {
            source: self.origin,
            fetch,
            steps,
            leaves,
            sends,
            region_bytes: memory.region,
            most_region_bytes: LoaderMemory::most_region(plan.alone_bytes(), bytes, pictures),
            sandbox: plan.limits.sandbox,
            // Each process is told what they are by then.
            readable: Vec::new(),
            memory: memory.own,
        };
        Some((spec, rows))
    }

    /// As `row`, of an item that a loader process has loaded. Gives why its source could not read it.
    pub fn loaded<'a>(
        &'a self,
        runs: &mut MapRuns,
        token: &Token,
        (sent, answer, region): (&SentRows, ItemAnswer, &LoaderRegion),
        out: &mut Outcome,
        item: &mut ItemInHand<'a>,
    ) -> Result<(), ItemError> {
        let stats = &self.context.stats;
        let knows = |stage: StageId| {
            let places = self.maps.iter().map(|place| place.stage);
            places.chain(self.leaves.iter().map(|leaf| leaf.stage)).any(|known| known == stage)
        };
        let ItemAnswer { rows, mut counts, left_out, .. } = answer;
        counts.truncate(self.maps.len());
        MapCount::add_all(&mut runs.counts, &counts);
        for (of, what, n) in left_out {
            if of == self.origin || of.stage().is_some_and(knows) {
                stats.left_out.add(token.ticket.id(), of, what, n);
            }
        }
        let rows = match rows {
            Err((None, refused)) => return Err(refused),
            Err((Some(stage), refused)) if knows(stage) => Err((stage, refused)),
            Err((Some(_), _)) => Err((self.first_stage(), out_of_order())),
            Ok(rows) => Ok(rows),
        };
        stats.first_items(self.origin).pass();
        for (place, count) in self.maps.iter().zip(&counts) {
            if count.left > 0 || (count.entered > 0 && rows.is_ok()) {
                stats.stage(place.stage).first_items.pass();
            }
        }
        self.with(token, out, Some(item), |row| match rows {
            Ok(rows) => sent.take(rows, region, runs, row),
            Err((stage, item_error)) => {
                row.leave_loading()?;
                Err(row.fail(stage, item_error))
            }
        });
        Ok(())
    }
}

impl SentRows {
    /// Takes what a loader process has sent of an item. Nothing of it is believed: it must be what a row can come to.
    fn take(
        &self,
        sent: Vec<RowEvent>,
        region: &LoaderRegion,
        runs: &mut MapRuns,
        row: &mut RowInHand<'_, '_>,
    ) -> Result<(), RowEnded> {
        let chain = row.chain;
        let mut last: SmallVec<[Option<SentValue>; 2]> = smallvec![None; self.columns.len()];
        let mut events = sent.into_iter();
        while let Some(event) = events.next() {
            let (at, split) = match event {
                RowEvent::Row { leaf, values } => {
                    self.row(leaf, values, &mut last, region, runs, row)?;
                    continue;
                }
                RowEvent::Parts { at, n } => (at, Some(n)),
                RowEvent::Nothing { at } => (at, None),
            };
            let place = chain.maps.get(at).filter(|place| row.is_at(place.leaves.start, place.n_splits));
            let taken = match (place.map(|place| place.map.fan()), split) {
                // Each part has an event at least: a number beyond that was made up.
                (Some(FanOut::Parts), Some(n)) if n > 0 && n as usize <= events.len() => row.parts(at, n),
                (Some(FanOut::Parts | FanOut::AtMostOne), None) => row.nothing(at),
                _ => Err(out_of_order()),
            };
            let stage = place.map_or(chain.first_stage(), |place| place.stage);
            taken.map_err(|item_error| row.fail(stage, item_error))?;
        }
        match row.is_at(chain.leaves.len(), 0) {
            true => Ok(()),
            false => Err(row.fail(chain.first_stage(), out_of_order())),
        }
    }

    /// Takes a row on that has come to a leaf of the loader.
    fn row(
        &self,
        leaf: usize,
        values: Vec<SentValue>,
        last: &mut [Option<SentValue>],
        region: &LoaderRegion,
        runs: &mut MapRuns,
        row: &mut RowInHand<'_, '_>,
    ) -> Result<(), RowEnded> {
        let to = self.leaves.get(leaf).filter(|to| row.is_at(to.at, to.n_splits));
        let Some(SentTo { step, columns, .. }) = to.filter(|to| to.columns.len() == values.len()) else {
            return Err(row.fail(row.chain.first_stage(), out_of_order()));
        };
        for (column, value) in columns.iter().zip(values) {
            if value != SentValue::Same {
                last[*column] = Some(value);
            }
        }
        let cell =
            |column: &usize| ReceivedValue::new(&self.columns[*column], last[*column].as_ref()?, region);
        let Some(cells) = columns.iter().map(cell).collect::<Option<SmallVec<[ReceivedValue<'_>; 4]>>>()
        else {
            return Err(row.fail(row.chain.stage_of(step), out_of_order()));
        };
        let values =
            columns.iter().zip(&cells).map(|(column, cell)| (self.columns[*column].read, cell.value()));
        let carried: SmallVec<[(ColumnRef, Value<'_>); 4]> = values.collect();
        let scope = RowScope { from: row.chain.origin, row: &[], carried: &carried, up: None };
        Walk { runs, leaves: row }.steps(std::slice::from_ref(step), &scope)
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
