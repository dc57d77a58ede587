//! The end of a row's way through a chain: a slot of a batch, a fold, a contribution to a reduce, or the record of a sink. Columns that stages
//! behind a batch or a fold read are kept here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestra_core::collect::Arrival;
use orchestra_core::data::{Column, ColumnType, ItemError, OwnedRow, OwnedValue, TensorView, Value};
use orchestra_core::lineage::Share;
use orchestra_core::shapes::{ItemInfo, Leaves as _, RowEnded, RowScope};
use orchestra_core::{Placement, StageId, locked};
use orchestra_plan::ColumnRef;
use smallvec::SmallVec;

use super::outcome::RecordRange;
use super::row_in_hand::RowInHand;
use super::{BatchTarget, ChainLeaf, LeafAction, Token};
use crate::batch::slot_pool::{RowLease, TrimmedSize};
use crate::flow::file_name::{file_name, index_line};
use crate::flow::file_rows::end_file_row;
use crate::flow::reduce_rows::write_head;
use crate::flow::row_lengths::{HEAD, begin_row, end_row};
use crate::messages::RecordTo;

impl RowInHand<'_, '_> {
    pub(super) fn take(
        &mut self,
        leaf: &ChainLeaf,
        token: &Token,
        share: Share,
        scope: &RowScope<'_>,
    ) -> Result<(), RowEnded> {
        self.leave_loading()?;
        let ChainLeaf { stage, reads, passthrough_columns, .. } = leaf;
        match &leaf.does {
            LeafAction::Batch { target, trims } => {
                let size = trims.map(|read| {
                    trimmed_size(read, scope).map_err(|item_error| self.fail_at(read, *stage, item_error))
                });
                let size = size.transpose()?;
                self.batch((target, size), reads, passthrough_columns, token, share, scope)
            }
            LeafAction::Fold(fold) => {
                let row = self.keep_all(reads, *stage, scope)?;
                self.hand(share);
                self.out.part(fold, fold.part(token, token.path(), share, Arrival::Row(row)));
                Ok(())
            }
            LeafAction::Reduce(reduce) => {
                self.chain.context.stats.stage(*stage).entered.add(1);
                let row = begin_row(&mut self.out.text);
                write_head(token, &mut self.out.text);
                let contributed = self
                    .record(reads, token, scope, |item, row, out| reduce.contribute(item, row, out))
                    .and_then(|()| end_row(&mut self.out.text, row));
                if let Err(item_error) = contributed {
                    return Err(self.fail(*stage, item_error));
                }
                self.pass(*stage);
                let bytes = row - HEAD..self.out.text.len();
                self.records.push(RecordRange { to: RecordTo::Reduce(*stage), bytes, file: None });
                Ok(())
            }
            LeafAction::Sink { sink, encoder } => {
                let begin = self.out.text.len();
                let plan = &self.chain.context.plan.sinks[sink.index()];
                let file = plan.files.as_ref().map(|files| file_name(files, token)).transpose();
                let row = plan.part_files.is_some().then(|| begin_row(&mut self.out.text));
                let encoded = self
                    .record(reads, token, scope, |item, row, out| encoder.encode(item, row, out))
                    .and(file);
                let encoded = match row {
                    Some(row) => {
                        encoded.and_then(|file| self.end_part_file_row(token, row, file)).map(|()| None)
                    }
                    None => encoded,
                };
                let first_items = &self.chain.context.stats.first_of_sinks[sink.index()];
                match encoded {
                    Ok(file) => {
                        first_items.pass();
                        let bytes = begin..self.out.text.len();
                        self.records.push(RecordRange { to: RecordTo::Sink(*sink), bytes, file });
                        Ok(())
                    }
                    Err(item_error) => {
                        first_items.fail(token.ticket.id());
                        Err(self.fail(*stage, item_error))
                    }
                }
            }
        }
    }

    /// Ends a row that waits for a part file, which may be a file.
    fn end_part_file_row(
        &mut self,
        token: &Token,
        row: usize,
        file: Option<Box<str>>,
    ) -> Result<(), ItemError> {
        let text = &mut self.out.text;
        let Some(file) = file else { return end_row(text, row) };
        let (item, id) = (token.ticket.name(), token.ticket.id());
        let source = &self.chain.context.plan.sources[id.source.index()].name;
        let line = index_line(item, id.index, source, &file, text.len() - row);
        end_file_row(text, row, &line)
    }

    fn record(
        &mut self,
        reads: &[ColumnRef],
        token: &Token,
        scope: &RowScope<'_>,
        encode: impl FnOnce(&ItemInfo<'_>, &[Value<'_>], &mut Vec<u8>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        let row: SmallVec<[Value<'_>; 4]> =
            reads.iter().map(|read| scope.get(*read)).collect::<Result<_, _>>()?;
        let id = token.ticket.id();
        let source = &self.chain.context.plan.sources[id.source.index()].name;
        let item = ItemInfo { name: token.ticket.name(), id, source, parts: token.path() };
        encode(&item, &row, &mut self.out.text)
    }

    /// Fails a row that lacks a value which the batch takes beside its slots.
    fn check_missing(&mut self, stage: StageId, carried: &[OwnedValue]) -> Result<(), RowEnded> {
        let values =
            self.chain.context.plan.stages[stage.index()].batch().map_or(&[][..], |batch| &batch.values);
        let is_needed = |column: &Column| !matches!(column.ty, ColumnType::Optional(_));
        let missing = carried.iter().zip(values).find_map(|(value, column)| match value {
            OwnedValue::Missing(name) if is_needed(column) => Some(ItemError::missing(name)),
            _ => None,
        });
        missing.map_or(Ok(()), |item_error| Err(self.fail(stage, item_error)))
    }

    fn batch(
        &mut self,
        (target, size): (&BatchTarget, Option<TrimmedSize>),
        reads: &[ColumnRef],
        passthrough_columns: &[ColumnRef],
        token: &Token,
        share: Share,
        scope: &RowScope<'_>,
    ) -> Result<(), RowEnded> {
        let chain = self.chain;
        // Before `claim`: a thread that waits for room must hold no row, or the two waits could lock each other.
        let carried = self.keep_all(passthrough_columns, target.stage, scope)?;
        self.check_missing(target.stage, &carried)?;
        let since = Instant::now();
        let room = target.carried.take(&carried);
        self.waited(since.elapsed());
        let room = room.map_err(|item_error| self.fail(target.stage, item_error))?;
        // None: as below.
        let Some(room) = room else { return Err(self.void()) };
        let open = self.lease.take();
        let open = open.or_else(|| size.is_none().then(|| target.pool.claim_now()).flatten());
        let lease = match open {
            Some(lease) => Some(lease),
            None => {
                let since = Instant::now();
                let lease = match size {
                    None => target.pool.claim(),
                    Some(size) => target.pool.claim_trimmed(size),
                };
                self.waited(since.elapsed());
                lease
            }
        };
        // None: the pipeline is being torn down, and the item stays unfinished for the next run.
        let Some(mut lease) = lease else { return Err(self.void()) };
        if let Err((read, item_error)) = write(reads, scope, &mut lease) {
            drop(lease); // It becomes a hole.
            return Err(self.fail_at(read, target.stage, item_error));
        }
        if let Some(trace) = token.ticket.timeline() {
            trace.queued(target.stage, chain.context.clock.now());
        }
        self.hand(share);
        let path = token.path().into();
        lease.publish(Token::carrying(token.ticket.clone(), share, path, carried, room));
        Ok(())
    }

    /// Keeps columns for the stages behind a batch or a fold, `reader`.
    fn keep_all(
        &mut self,
        reads: &[ColumnRef],
        reader: StageId,
        scope: &RowScope<'_>,
    ) -> Result<OwnedRow, RowEnded> {
        let mut row = OwnedRow::with_capacity(reads.len());
        for read in reads {
            match self.keep(*read, scope) {
                Ok(Some(value)) => row.push(value),
                Ok(None) => return Err(self.void()),
                Err(item_error) => return Err(self.fail_at(*read, reader, item_error)),
            }
        }
        Ok(row)
    }

    /// Keeps a column for the stages behind a batch or a fold. `None`: the pipeline is being torn down.
    fn keep(&mut self, read: ColumnRef, scope: &RowScope<'_>) -> Result<Option<OwnedValue>, ItemError> {
        let value = scope.get(read)?;
        let Value::Picture(picture) = value else { return OwnedValue::copy_of(&value).map(Some) };
        let known = self.kept.iter().find(|(column, _)| *column == read);
        if let Some(kept) = picture.kept().or_else(|| known.map(|(_, kept)| Arc::clone(kept))) {
            return Ok(Some(OwnedValue::Picture(kept)));
        }
        let chain = self.chain;
        let no_room =
            || ItemError::result("internal error: no room for pictures that are carried; this is a bug");
        let arena = chain.pictures.as_ref().ok_or_else(no_room)?;
        let (mut kept, mut waited) = (None, Duration::ZERO);
        picture.copy_pixels(&mut |size, channels, copy| {
            let since = Instant::now();
            if let (None, Some(keep_lock)) = (&self.keeping, &chain.keep_lock) {
                self.keeping = Some(locked(keep_lock));
            }
            kept = arena.keep(size, channels, copy)?;
            waited = since.elapsed();
            Ok(())
        })?;
        self.waited(waited);
        let Some(kept) = kept else { return Ok(None) };
        // The row that came in is the same for all of its parts; what a map makes is not.
        if read.from == chain.origin {
            self.kept.push((read, Arc::clone(&kept)));
        }
        Ok(Some(OwnedValue::Picture(kept)))
    }

    pub(super) fn leave_loading(&mut self) -> Result<(), RowEnded> {
        let goes_on = self.item.as_mut().is_none_or(|item| item.leaves_loading());
        if goes_on { Ok(()) } else { Err(self.void()) }
    }

    fn waited(&mut self, time: Duration) {
        if let Some(item) = &mut self.item {
            item.waited += time;
        }
    }

    /// A column could not be made: the stage that gives it is to blame, or else the one that reads it.
    fn fail_at(&mut self, read: ColumnRef, reader: StageId, item_error: ItemError) -> RowEnded {
        self.fail(read.from.stage().unwrap_or(reader), item_error)
    }
}

/// What the row is trimmed to whose placement this is.
fn trimmed_size(placed: ColumnRef, scope: &RowScope<'_>) -> Result<TrimmedSize, ItemError> {
    Ok(Placement::of(&scope.get(placed)?)?.row)
}

/// Writes the columns to the row. An error comes with the column that cannot be made.
///
/// The last one is written first: where rows are trimmed it says to what, and a worker believes that of the first row of a run, which may be a
/// hole because another column failed.
fn write(
    reads: &[ColumnRef],
    scope: &RowScope<'_>,
    lease: &mut RowLease<'_>,
) -> Result<(), (ColumnRef, ItemError)> {
    for (input, read) in reads.iter().enumerate().rev() {
        let dtype = lease.dtype(input);
        let written = scope.get(*read).and_then(|value| match value {
            Value::Tensor(view) if view.dtype == dtype => copy(&view, lease.input_mut(input)),
            Value::Unwritten(tensor) if tensor.spec().dtype == dtype => tensor.write(lease.input_mut(input)),
            value => value.with_tensor(|view| view.write_as(dtype, lease.input_mut(input))),
        });
        written.map_err(|item_error| (*read, item_error))?;
    }
    Ok(())
}

/// The plan matched the shapes; this guards the copy.
fn copy(view: &TensorView<'_>, row: &mut [u8]) -> Result<(), ItemError> {
    if view.data.len() != row.len() {
        let (name, given, expected) = (view.name, view.data.len(), row.len());
        return Err(ItemError::result(format!(
            "`{name}` has {given} bytes, and the next stage takes {expected}"
        )));
    }
    row.copy_from_slice(view.data);
    Ok(())
}

#[cfg(test)]
mod tests {
    use orchestra_core::batch_layout::BatchLayout;
    use orchestra_core::data::WriteTensor;
    use orchestra_core::{DType, Dim, SlotId, TensorSpec};
    use orchestra_plan::Origin;
    use orchestra_worker::arena::Arena;

    use super::*;
    use crate::batch::slot_pool::SlotPool;
    use crate::context::RunClock;

    struct Unmakable(TensorSpec);

    impl WriteTensor for Unmakable {
        fn spec(&self) -> &TensorSpec {
            &self.0
        }

        fn write(&self, _: &mut [u8]) -> Result<(), ItemError> {
            Err(ItemError::result("no pixel of it"))
        }
    }

    #[test]
    fn a_hole_says_what_its_row_was_trimmed_to() {
        let pixels = TensorSpec {
            name: "pixels".into(),
            dtype: DType::U8,
            row: vec![Dim::Fixed(6)],
            batch: Dim::Dynamic,
        };
        let layout = BatchLayout::new(&[pixels.clone(), Placement::tensor()], &[], 2, 1).unwrap();
        let arena = Arena::create("test", layout).unwrap();
        let pool = SlotPool::new(arena, RunClock::start(), 1, 2, Arc::default(), Box::new(|| {}));
        let placed = Placement { row: [3, 2], picture: [9, 9], to_picture: [1.0; 6] };
        let (bytes, unmakable) = (placed.bytes(), Unmakable(pixels));
        let row = [Value::Unwritten(&unmakable), Placement::value(&bytes)];
        let from = Origin::Stage(StageId(0));
        let scope = RowScope { from, row: &row, carried: &[], up: None };
        let reads = [0, 1].map(|column| ColumnRef { from, column });
        let size = trimmed_size(reads[1], &scope).unwrap();
        let mut lease = pool.claim_trimmed(size).unwrap();
        let (read, _) = write(&reads, &scope, &mut lease).unwrap_err();
        assert_eq!(read, reads[0], "the column that failed is named");
        drop(lease);
        // SAFETY: no row of the slot is leased or sent.
        let there = unsafe { pool.arena.input_rows(SlotId(0), 1, 0, 1) };
        assert_eq!(Placement::of(&Placement::value(there)).unwrap(), placed);
    }
}
