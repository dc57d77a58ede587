//! What a loader process does with one item: reads it, takes its rows through the maps, and sends to the leaves what they read. The values lie in the ring.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use orchestra_core::data::{ItemError, Pixels, TensorView, Value, WriteTensor};
use orchestra_core::failure::cut_words;
use orchestra_core::shapes::{Fetch, FetchRun, Leaves, MapRuns, RowEnded, RowScope, Step, Walk};
use orchestra_core::{FailureKind, LeftOut, Origin, StageId};

use super::events::{ItemAnswer, RowEvent, SentColumn, SentLeaf, SentValue};
use super::parent::Parent;
use crate::exit_codes::EXIT_NO_MEMORY;
use crate::process::leave;

/// The maps of a chain, and the fetch in front of them.
pub(super) struct LoaderChain {
    pub source: Origin,
    pub fetch: Arc<dyn Fetch>,
    pub run: Box<dyn FetchRun>,
    pub steps: Vec<Step>,
    pub runs: MapRuns,
    pub leaves: Vec<SentLeaf>,
    pub sends: Vec<SentColumn>,
}

/// The rows of an item that leaves get.
struct ItemRows<'c> {
    parent: &'c mut Parent,
    leaves: &'c [SentLeaf],
    sends: &'c [SentColumn],
    /// Of the last row that had it, by column: what lies in the ring, until a leaf has got it.
    laid: Vec<Result<SentValue, ItemError>>,
    sent: Vec<RowEvent>,
    failed: Option<(Option<StageId>, ItemError)>,
    left_out: Vec<(Origin, LeftOut, u64)>,
}

impl LoaderChain {
    pub fn item(&mut self, locator: &[u8], parent: &mut Parent) {
        let Self { source, fetch, run, steps, runs, leaves, sends } = self;
        let began = Instant::now();
        let (mut read, mut read_bytes) = (began, 0);
        let laid = vec![Ok(SentValue::Same); sends.len()];
        let (sent, failed, left_out) = Default::default();
        let mut rows = ItemRows { parent, leaves, sends, laid, sent, failed, left_out };
        let done = catch_unwind(AssertUnwindSafe(|| {
            let fetched = run.fetch(locator);
            read = Instant::now();
            read_bytes = fetched?;
            run.with_row(&mut |row| {
                rows.lay(None, row);
                let scope = RowScope { from: *source, row, carried: &[], up: None };
                // Why it is over is noted.
                drop(Walk { runs, leaves: &mut rows }.steps(steps, &scope));
            });
            rows.left_out.extend(run.left_out().into_iter().map(|(what, n)| (*source, what, n)));
            Ok(())
        }));
        // A bug of ours, which fails the item by name. What was at work is in no known state.
        let done = done.unwrap_or_else(|_| {
            (*run, *runs) = (fetch.start(), MapRuns::default());
            let error = "internal error while the item was loaded; this is a bug".to_owned();
            Err(ItemError { kind: FailureKind::Read, error })
        });
        let ItemRows { parent, sent, failed, left_out, .. } = rows;
        let failed = done.map_err(|item_error| (None, refused(item_error))).err().or(failed);
        let rows = failed.map_or(Ok(sent), Err);
        let counts = std::mem::take(&mut runs.counts).into_vec();
        let (began_ns, read_ns, took_ns) = (0, 0, 0);
        let answer = ItemAnswer { rows, read_bytes, counts, left_out, began_ns, read_ns, took_ns };
        parent.end_item(began, read, answer);
    }
}

impl ItemRows<'_> {
    /// Lays those columns of a row into the ring that leaves read, also if no leaf gets the row after all: a picture is decoded whole before maps ask for less of it.
    fn lay(&mut self, at: Option<usize>, row: &[Value<'_>]) {
        for (column, laid) in self.sends.iter().zip(&mut self.laid).filter(|(column, _)| column.at == at) {
            let value = row.get(column.read.column).copied().unwrap_or(Value::Missing(""));
            *laid = lay(&value, column.packed, self.parent).map_err(refused);
        }
    }
}

impl Leaves for ItemRows<'_> {
    fn made(&mut self, at: usize, _: StageId, row: &[Value<'_>]) {
        self.lay(Some(at), row);
    }

    fn parts(&mut self, at: usize, n: u32) -> Result<(), ItemError> {
        self.sent.push(RowEvent::Parts { at, n });
        Ok(())
    }

    fn nothing(&mut self, at: usize) -> Result<(), ItemError> {
        self.sent.push(RowEvent::Nothing { at });
        Ok(())
    }

    fn leaf(&mut self, leaf: usize, _: &RowScope<'_>) -> Result<(), RowEnded> {
        let SentLeaf { stage, columns } = &self.leaves[leaf];
        let mut values = Vec::with_capacity(columns.len());
        for column in columns {
            match std::mem::replace(&mut self.laid[*column], Ok(SentValue::Same)) {
                Ok(value) => values.push(value),
                Err(refused) => {
                    // The stage that gives it is to blame, or else the one that reads it.
                    let stage = self.sends[*column].read.from.stage().unwrap_or(*stage);
                    self.failed = Some((Some(stage), refused));
                    return Err(RowEnded);
                }
            }
        }
        self.sent.push(RowEvent::Row { leaf, values });
        Ok(())
    }

    fn fail(&mut self, stage: StageId, item_error: ItemError) -> RowEnded {
        self.failed = Some((Some(stage), refused(item_error)));
        RowEnded
    }

    fn left_out(&mut self, stage: StageId, what: LeftOut, n: u64) {
        self.left_out.push((Origin::Stage(stage), what, n));
    }
}

fn lay(value: &Value<'_>, packed: Option<usize>, parent: &mut Parent) -> Result<SentValue, ItemError> {
    match (value, packed) {
        (Value::Unwritten(tensor), Some(len)) => {
            let (at, to) = parent.room(len)?;
            tensor.write_packed(to)?;
            Ok(SentValue::Packed { at })
        }
        _ => lay_whole(value, parent),
    }
}

fn lay_whole(value: &Value<'_>, parent: &mut Parent) -> Result<SentValue, ItemError> {
    match value {
        Value::Tensor(view) => tensor(view, parent),
        Value::Unwritten(tensor) => unwritten(*tensor, parent),
        Value::Picture(picture) => {
            let mut sent = Ok(SentValue::Missing);
            picture.with_pixels(&mut |pixels| {
                sent = picture_pixels(&pixels, parent);
                Ok(())
            })?;
            sent
        }
        Value::Labels(labels) => {
            Ok(SentValue::Labels(labels.iter().map(|l| (l.label.to_owned(), l.class, l.score)).collect()))
        }
        Value::Text(text) => Ok(SentValue::Text((*text).to_owned())),
        Value::Bytes(bytes) => {
            let (at, to) = parent.room(bytes.len())?;
            to.copy_from_slice(bytes);
            Ok(SentValue::Bytes { at, len: bytes.len() as u64 })
        }
        Value::Missing(_) => Ok(SentValue::Missing),
        Value::List(_) => Err(ItemError::result("internal error: a loader gives no lists; this is a bug")),
    }
}

fn tensor(view: &TensorView<'_>, parent: &mut Parent) -> Result<SentValue, ItemError> {
    let (at, to) = parent.room(view.data.len())?;
    to.copy_from_slice(view.data);
    Ok(SentValue::Tensor { at, shape: view.shape.to_vec() })
}

fn unwritten(tensor: &dyn WriteTensor, parent: &mut Parent) -> Result<SentValue, ItemError> {
    let spec = tensor.spec();
    let len = spec
        .row_bytes()
        .ok_or_else(|| ItemError::result("internal error: a tensor of no known size; this is a bug"))?;
    let (at, to) = parent.room(len)?;
    tensor.write(to)?;
    let shape = spec.row.iter().map(|dim| dim.fixed().unwrap_or(0)).collect();
    Ok(SentValue::Tensor { at, shape })
}

fn picture_pixels(pixels: &Pixels<'_>, parent: &mut Parent) -> Result<SentValue, ItemError> {
    let (at, to) = parent.room(pixels.bytes.len())?;
    to.copy_from_slice(pixels.bytes);
    // One or three.
    let channels = u8::try_from(pixels.channels).unwrap_or(0);
    Ok(SentValue::Picture { at, width: pixels.width, height: pixels.height, channels })
}

/// A refusal for the parent. Where there is no memory, this process has done what it can: the item may have more of it in another one.
fn refused(mut item_error: ItemError) -> ItemError {
    if item_error.kind == FailureKind::OutOfMemory {
        eprintln!("{}", item_error.error);
        leave(EXIT_NO_MEMORY);
    }
    cut_words(&mut item_error.error);
    item_error
}
