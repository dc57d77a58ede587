//! Compares what items have in their batch with what the model gives for each of them alone. A probe before the run tries values that it makes up; these are
//! the values of the run, for models that let items change each other at some values, some sizes or some places alone. Of a loop a round is compared:
//! over many of them what was rounded otherwise may grow to anything.

use crate::session_names::output_of;
use std::time::{Duration, Instant};

use orchestra_core::model_output::texts;
use orchestra_core::probing::{Elements, ObservedOutput, Pair, Tolerance};
use orchestra_worker::arena::RowMemory;
use orchestra_worker::engine::EngineRunError;
use orchestra_worker::frames::{DynamicOutput, RunErrorKind, RunTiming};

use super::binding::BoundSession;
use super::memory::PrivateRows;
use super::model::{RowAddresses, SessionModel};
use super::not_finite::{Finiteness, suspects};
use crate::spec::OnnxSpec;

/// So much time goes into this at first: small runs are compared whole.
const AT_FIRST: Duration = Duration::from_millis(10);

/// The first batch is compared whole, unless that takes longer: some models leave a row alone and change the next one.
const FIRST_BATCH: Duration = Duration::from_millis(50);

/// Or this part of the time of batches, so that a long run is looked at to its end.
const PART: u32 = 256;

/// And this part, where items have infinities that came from elsewhere. Masks have them, too.
const PART_FOR_INFINITIES: u32 = 8;

/// No further row is run alone once those before hold so many bytes of outputs: a worker may be near the end of its memory.
const MOST_BYTES: usize = 64 << 20;

/// How much has been compared.
#[derive(Debug, Clone, Default)]
pub struct RowsAlone {
    /// Time of batches, and of comparisons.
    ran: Duration,
    spent: Duration,
    comparisons: usize,
    /// Nothing can be told: the model gives other outputs at each run. Or nothing may be run: its own operators may keep what they have seen.
    is_left_out: bool,
}

/// A batch that has run, and its outputs.
#[derive(Clone, Copy)]
pub struct FinishedBatch<'a> {
    pub slots: &'a RowAddresses<'a>,
    /// Of a loop nothing: rows have several rounds there.
    pub dynamic: &'a [DynamicOutput],
    /// Rows that an item runs with that is alone; all but its own are padding.
    pub alone: usize,
    /// Rows that the batch itself ran with.
    pub rows: usize,
    /// It was a loop, and the outputs are those of its last round.
    pub is_loop: bool,
    pub took: Duration,
}

impl RowsAlone {
    pub fn new(spec: &OnnxSpec) -> Self {
        Self { is_left_out: !spec.custom_ops.is_empty(), ..Self::default() }
    }

    fn is_in_turn(&self) -> bool {
        self.spent <= AT_FIRST.max(self.ran / PART)
    }

    /// Whether the batch that ran last is to be compared. What is no number is mostly what spreads from an item to others, so that is always looked at.
    fn is_due(&self, suspects: Finiteness) -> bool {
        match suspects {
            _ if self.is_in_turn() => true,
            Finiteness::Finite => false,
            Finiteness::Infinite => self.spent <= self.ran / PART_FOR_INFINITIES,
            Finiteness::NaN => true,
        }
    }

    /// Runs rows of the batch alone, if it is its turn: one at least, and no longer than the batch itself took, or [`FIRST_BATCH`], or in
    /// its turn half of [`AT_FIRST`]: its deadline goes on.
    ///
    /// # Errors
    /// A row has other outputs alone; or the device broke.
    ///
    /// # Safety
    /// No other code writes to inputs and outputs at `slots` during the call.
    pub unsafe fn compare(
        &mut self,
        bound: &mut BoundSession,
        model: &SessionModel,
        ran: &FinishedBatch<'_>,
    ) -> Result<(), EngineRunError> {
        self.ran += ran.took;
        if ran.slots.rows < 2 || self.is_left_out {
            return Ok(());
        }
        // SAFETY: the caller's promises are the same.
        let (kind, first) = unsafe { suspects(model, ran) };
        if !self.is_due(kind) {
            return Ok(());
        }
        let start = Instant::now();
        let found = match ran.is_loop {
            // SAFETY: as above.
            false => unsafe { self.find(bound, model, ran, &first) },
            // SAFETY: as above.
            true => unsafe { self.find_in_round(bound, model, ran, &first) },
        };
        self.comparisons += 1;
        self.spent += start.elapsed();
        found
    }

    /// Runs the first round of the batch again, and compares that.
    ///
    /// # Safety
    /// As for [`RowsAlone::compare`].
    unsafe fn find_in_round(
        &mut self,
        bound: &mut BoundSession,
        model: &SessionModel,
        ran: &FinishedBatch<'_>,
        first: &[usize],
    ) -> Result<(), EngineRunError> {
        let Ok(mut private) = PrivateRows::new(model, ran.rows) else { return Ok(()) };
        // SAFETY: the caller's promises are the same, and the private rows have no other user and outlive the run.
        let round = unsafe {
            let addresses = private.copy_in(ran.slots);
            bound.run(model, &addresses, &mut RunTiming::default()).map(|()| addresses)
        };
        bound.release();
        match round {
            Ok(RowAddresses { outputs, .. }) => {
                let slots = RowAddresses { outputs, ..ran.slots.clone() };
                // SAFETY: as above.
                unsafe { self.find(bound, model, &FinishedBatch { slots: &slots, ..*ran }, first) }
            }
            Err(error) if error.kind == RunErrorKind::Device => Err(error),
            // It was run before: for want of memory nothing can be told.
            Err(_) => Ok(()),
        }
    }

    /// # Safety
    /// As for [`RowsAlone::compare`].
    unsafe fn find(
        &mut self,
        bound: &mut BoundSession,
        model: &SessionModel,
        ran: &FinishedBatch<'_>,
        first: &[usize],
    ) -> Result<(), EngineRunError> {
        let Ok(mut private) = PrivateRows::new(model, ran.alone) else { return Ok(()) };
        let n = ran.slots.rows;
        let rows = in_turn(n, self.comparisons, first);
        // One of two may have it of itself.
        let at_least = first.len().clamp(1, 2);
        let of_row = |row: usize| {
            // SAFETY: the caller's promises are the same, and the private rows are ours.
            let alone = unsafe { alone(bound, model, &mut private, ran, row) };
            let alone = alone.map_err(|error| match error.kind {
                RunErrorKind::Shape => mixed(format!("item {row} of a batch of {n} alone: {}", error.error)),
                _ => error,
            })?;
            // SAFETY: as above.
            let in_batch = unsafe { in_batch(model, ran, row) };
            Ok(in_batch.into_iter().zip(alone).map(|(in_batch, alone)| Pair { in_batch, alone }).collect())
        };
        let n_outputs = model.outputs.len();
        let within = match self.comparisons {
            0 => ran.took.max(FIRST_BATCH),
            _ if self.is_in_turn() => ran.took.max(AT_FIRST / 2),
            _ => ran.took,
        };
        let (compared, pairs) = match pairs(rows, at_least, n_outputs, within, of_row) {
            Ok(pairs) => pairs,
            Err(error) if [RunErrorKind::Mixed, RunErrorKind::Device].contains(&error.kind) => {
                return Err(error);
            }
            // A row does not run alone, for want of memory or for its values: nothing can be told.
            Err(_) => return Ok(()),
        };
        let near = if bound.is_on_device() { Tolerance::ON_GPU } else { Tolerance::ON_CPU };
        let outputs = model.session_outputs.iter().zip(&pairs).enumerate();
        let mut found = outputs.filter_map(|(output, (spec, pairs))| {
            let (at, words) = Pair::that_differs(pairs, near)?;
            Some((output, at, format!("its output `{}` has {words}", output_of(&spec.name))))
        });
        let Some((output, at, words)) = found.next() else { return Ok(()) };
        let row = compared[at];
        // SAFETY: as above.
        let again = unsafe { alone(bound, model, &mut private, ran, row) };
        let is_steady = again.is_ok_and(|again| {
            let pair = Pair { in_batch: again[output].clone(), alone: pairs[output][at].alone.clone() };
            Pair::that_differs(&[pair], near).is_none()
        });
        if !is_steady {
            self.is_left_out = true;
            return Ok(());
        }
        Err(mixed(format!("{words} (item {row} of a batch of {n})")))
    }
}

/// The rows of a batch of `n` in the order in which they are compared: those that are to be `first`, and the others, from another one on each time, so that
/// every place of a batch gets its turn.
fn in_turn(n: usize, comparisons: usize, first: &[usize]) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..n).map(|k| (k + comparisons) % n).collect();
    rows.sort_by_key(|row| !first.contains(row));
    rows
}

/// The rows that are compared, `at_least` so many, and for each of so many outputs the pairs of them: until this time is spent, or what is kept of them is
/// enough.
fn pairs(
    rows: Vec<usize>,
    at_least: usize,
    n_outputs: usize,
    within: Duration,
    mut of_row: impl FnMut(usize) -> Result<Vec<Pair>, EngineRunError>,
) -> Result<(Vec<usize>, Vec<Vec<Pair>>), EngineRunError> {
    let start = Instant::now();
    let (mut compared, mut held) = (Vec::new(), 0);
    let mut pairs: Vec<Vec<Pair>> = vec![Vec::new(); n_outputs];
    for row in rows {
        for (pairs, pair) in pairs.iter_mut().zip(of_row(row)?) {
            held += pair.in_batch.elements.bytes() + pair.alone.elements.bytes();
            pairs.push(pair);
        }
        compared.push(row);
        if compared.len() >= at_least && (start.elapsed() >= within || held >= MOST_BYTES) {
            break;
        }
    }
    Ok((compared, pairs))
}

/// That the items of a batch change each other.
fn mixed(what: String) -> EngineRunError {
    let error = format!("{what}: the items of a batch change each other");
    EngineRunError { kind: RunErrorKind::Mixed, error }
}

/// What the model gives for this row alone.
///
/// # Safety
/// As for [`RowsAlone::compare`].
unsafe fn alone(
    bound: &mut BoundSession,
    model: &SessionModel,
    private: &mut PrivateRows,
    ran: &FinishedBatch<'_>,
    row: usize,
) -> Result<Vec<ObservedOutput>, EngineRunError> {
    let inputs = ran.slots.inputs.iter().zip(&model.inputs);
    let inputs = inputs.map(|(rows, tensor)| {
        // SAFETY: the batch has this row.
        let ptr = unsafe { rows.ptr.add(row * tensor.row_bytes) };
        RowMemory { ptr, len: tensor.row_bytes }
    });
    let texts = ran.slots.texts.iter().map(|texts| {
        let n = texts.len() / ran.slots.rows;
        texts[row * n..(row + 1) * n].to_vec()
    });
    let one = RowAddresses {
        rows: 1,
        inputs: inputs.collect(),
        texts: texts.collect(),
        outputs: vec![None; model.outputs.len()],
        trimmed_to: ran.slots.trimmed_to,
    };
    // SAFETY: the caller's promises are the same.
    let addresses = unsafe { private.copy_in(&one) };
    // SAFETY: the private rows have no other user and outlive the run.
    unsafe { bound.run(model, &addresses, &mut RunTiming::default()) }?;
    let dynamic = bound.take_dynamic(model, ran.alone, 1)?;
    bound.release();
    // SAFETY: the run is over.
    Ok(unsafe { observed(model, &addresses, &dynamic, 0) })
}

/// What the batch gave for this row.
///
/// # Safety
/// As for [`RowsAlone::compare`].
unsafe fn in_batch(model: &SessionModel, ran: &FinishedBatch<'_>, row: usize) -> Vec<ObservedOutput> {
    // SAFETY: the caller's promises are the same.
    unsafe { observed(model, ran.slots, ran.dynamic, row) }
}

/// What the outputs of a run hold for one of its rows.
///
/// # Safety
/// No other code writes to the outputs at `addresses`.
unsafe fn observed(
    model: &SessionModel,
    addresses: &RowAddresses<'_>,
    dynamic: &[DynamicOutput],
    row: usize,
) -> Vec<ObservedOutput> {
    let outputs = model.outputs.iter().zip(&addresses.outputs).enumerate();
    outputs
        .map(|(at, (tensor, rows))| {
            let (shape, elements) = match (tensor, rows) {
                (Some(tensor), Some(rows)) => {
                    // SAFETY: the rows are mapped, and the run that wrote them is over.
                    let bytes = unsafe { std::slice::from_raw_parts(rows.ptr.cast_const(), rows.len) };
                    let bytes = bytes.chunks_exact(tensor.row_bytes.max(1)).nth(row).unwrap_or_default();
                    let shape = tensor.row.iter().map(|n| *n as usize).collect();
                    (shape, Elements::Numbers(tensor.dtype, bytes.to_vec()))
                }
                _ => dynamic.iter().find(|of| of.output == at).map_or_else(
                    || (Vec::new(), Elements::Texts(Vec::new())),
                    |of| of_row(of, model.texts[at].is_some(), row),
                ),
            };
            ObservedOutput { batch: 1, shape, elements }
        })
        .collect()
}

fn of_row(output: &DynamicOutput, is_text: bool, row: usize) -> (Vec<usize>, Elements) {
    if is_text {
        // A list of them is compared as it travels.
        let texts = texts::unpack_bytes(&output.data).unwrap_or_default();
        let text = texts.get(row).map(|text| String::from_utf8_lossy(text).into_owned());
        return (vec![1], Elements::Texts(text.into_iter().collect()));
    }
    let shape = output.shape.get(1..).unwrap_or_default().to_vec();
    let bytes = shape.iter().product::<usize>() * output.dtype.size_bytes();
    let row = output.data.get(row * bytes..(row + 1) * bytes).unwrap_or_default();
    (shape, Elements::Numbers(output.dtype, row.to_vec()))
}

#[cfg(test)]
mod tests {
    use orchestra_core::DType;

    use super::*;

    const LONG: Duration = Duration::from_secs(1 << 20);

    #[test]
    fn what_is_kept_of_rows_that_are_compared_is_bounded_but_for_the_last_one() {
        let numbers = |bytes: usize| Elements::Numbers(DType::U8, vec![0; bytes]);
        let text = |bytes: usize| Elements::Texts(vec!["x".repeat(bytes)]);
        let pair = |elements: Elements| {
            let observed = ObservedOutput { batch: 1, shape: Vec::new(), elements };
            Pair { in_batch: observed.clone(), alone: observed }
        };
        for (outputs, most) in [
            (vec![numbers(1 << 20)], 32),
            (vec![numbers(20 << 20)], 2),
            (vec![numbers(40 << 20)], 1),
            (vec![numbers(2 << 20), text(2 << 20)], 8),
            (vec![numbers(1), text(0)], 100),
        ] {
            let of_row = |_| Ok(outputs.iter().cloned().map(pair).collect());
            let rows = (0..100).rev().collect();
            let (rows, pairs) = pairs(rows, 1, outputs.len(), LONG, of_row).ok().unwrap();
            assert_eq!(rows, (0..100).rev().take(most).collect::<Vec<_>>());
            assert!(pairs.len() == outputs.len() && pairs.iter().all(|pairs| pairs.len() == most));
        }
        for at_least in [1, 2] {
            let of_row = |_| Ok(vec![pair(numbers(1))]);
            let (rows, _) = pairs(vec![3, 4, 5], at_least, 1, Duration::ZERO, of_row).ok().unwrap();
            assert_eq!(rows.len(), at_least);
        }
    }

    #[test]
    fn what_is_no_number_is_compared_first_and_whatever_was_spent() {
        assert_eq!(in_turn(4, 6, &[]), [2, 3, 0, 1]);
        assert_eq!(in_turn(4, 6, &[0, 1, 3]), [3, 0, 1, 2]);
        let of = |spent, ran| RowsAlone {
            spent: Duration::from_secs(spent),
            ran: Duration::from_secs(ran),
            ..RowsAlone::default()
        };
        let kinds = [Finiteness::Finite, Finiteness::Infinite, Finiteness::NaN];
        for (alone, due) in [
            (of(0, 0), [true, true, true]),
            (of(2, 64), [false, true, true]),
            (of(9, 64), [false, false, true]),
        ] {
            assert_eq!(kinds.map(|kind| alone.is_due(kind)), due);
        }
    }
}
