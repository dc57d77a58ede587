//! The outputs of a model: what its file declares of them, and what of each a stage can have. It runs no model.

use std::fmt;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{BatchAxis, DType, Dim, Mixing, ProbedOutput, ReadOutput, SizeLimit, TensorSpec};

/// An output of a model as its file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOutput {
    pub name: String,
    pub holds: OutputType,
    /// `None` where the file states no shape.
    pub dims: Option<Vec<OutputDim>>,
    /// It is an input of the model, too: no node stands between.
    pub is_input: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputType {
    Tensor(DType),
    /// A tensor of texts.
    Text,
    /// What no stage can read, in the words of ONNX.
    Other(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputDim {
    Fixed(usize),
    /// It has the name of the batch of an input.
    Batch,
    Open,
}

/// What a stage can have of an output.
#[derive(Debug, Clone)]
pub(crate) struct StageOutput {
    pub read: ReadOutput,
    pub standing: RowStanding,
    pub declared: String,
    /// Of a program: what its rows are, where they are no tensors.
    pub values: Option<ColumnType>,
    /// Nothing was run to find out more of it.
    pub is_untried: bool,
}

/// How well it is known that the output has a row for each item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowStanding {
    /// It has, or a batch has one item.
    Known,
    /// It seems to have, and each run of the same batch gives another one.
    Unsteady,
    /// Each run of the same item gives another one, in batches of one.
    UnsteadyAlone,
    /// It has none, for this reason.
    NoRows(String),
    /// The model does not run batches of every size. In one of the size that it runs, the output has a row for each item or has none.
    SizeLimit { limit: SizeLimit, has_rows: bool },
    /// The file does not say it, and nothing was run, for this reason.
    Unconfirmed(Option<String>),
}

/// An output that no stage can read, why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableOutput {
    pub name: String,
    pub what: String,
    pub remedy: String,
}

/// Batches of the stage that reads an output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReaderBatches<'a> {
    /// The only size that the model takes.
    pub fixed: Option<usize>,
    /// Each has one item.
    pub is_single: bool,
    /// Sizes of which the model fails with one that the stage would run.
    pub size_limit: Option<&'a SizeLimit>,
    /// A model reads the output: a dimension that the file leaves open is what a probe has seen, whatever the values of its rows.
    pub fixes_open: bool,
}

impl From<TensorSpec> for ModelOutput {
    /// An output whose first dimension is the batch.
    fn from(spec: TensorSpec) -> Self {
        let fixed = |dim: Dim, open| dim.fixed().map_or(open, OutputDim::Fixed);
        let batch = fixed(spec.batch, OutputDim::Batch);
        let row = spec.row.iter().map(|dim| fixed(*dim, OutputDim::Open));
        let dims = Some([batch].into_iter().chain(row).collect());
        Self { name: spec.name, holds: OutputType::Tensor(spec.dtype), dims, is_input: false }
    }
}

impl fmt::Display for ModelOutput {
    /// `f32[batch, ?, 4]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holds {
            OutputType::Tensor(dtype) => dtype.fmt(f)?,
            OutputType::Text => f.write_str("text")?,
            OutputType::Other(what) => f.write_str(what)?,
        }
        let Some(dims) = &self.dims else { return Ok(()) };
        let words = dims.iter().map(|dim| match dim {
            OutputDim::Fixed(n) => n.to_string(),
            OutputDim::Batch => "batch".to_owned(),
            OutputDim::Open => "?".to_owned(),
        });
        write!(f, "[{}]", words.collect::<Vec<_>>().join(", "))
    }
}

impl ModelOutput {
    /// The tensor that it seems to be by its declaration, with the batch as the first dimension.
    pub fn tensor(&self, batch: Dim) -> Option<TensorSpec> {
        let OutputType::Tensor(dtype) = self.holds else { return None };
        let row = self.row(self.guess(batch.fixed()).0, None, false);
        Some(TensorSpec { name: self.name.clone(), dtype, row, batch })
    }

    /// Whether a probe can say anything of it.
    pub(crate) fn is_tensor(&self) -> bool {
        !matches!(self.holds, OutputType::Other(_))
    }

    /// Where the items lie by the names of its dimensions, and whether these leave no doubt.
    fn guess(&self, fixed: Option<usize>) -> (BatchAxis, bool) {
        let Some(dims) = &self.dims else { return (BatchAxis::FIRST, false) };
        let of = |wanted: OutputDim| dims.iter().enumerate().filter(move |(_, dim)| **dim == wanted);
        let has_open = dims.iter().any(|dim| !matches!(dim, OutputDim::Fixed(_)));
        let (wanted, is_told) = match fixed {
            Some(n) => (OutputDim::Fixed(n), !has_open),
            None => (OutputDim::Batch, true),
        };
        let mut named = of(wanted).map(|(axis, _)| axis);
        match (named.next(), named.next()) {
            (Some(0), None) => (BatchAxis::FIRST, is_told),
            (Some(axis), None) => (BatchAxis::along(axis), is_told && fixed.is_some()),
            // One item in a batch: which of them is the batch, makes no difference to the values.
            (Some(axis), Some(_)) => (BatchAxis::along(axis), is_told && fixed == Some(1)),
            (None, _) if !has_open && (fixed.is_some() || dims.is_empty()) => (BatchAxis::None, true),
            (None, _) => match (dims.first(), of(OutputDim::Open).next()) {
                (Some(OutputDim::Fixed(_)), Some((axis, _))) => (BatchAxis::along(axis), false),
                _ => (BatchAxis::FIRST, false),
            },
        }
    }

    /// Whether an item that is alone in its batch has all of it, however long: what follows the batch in a probe follows the values in truth, such as boxes
    /// with the number of their picture.
    fn is_all_of_one(&self, probed: &ProbedOutput) -> bool {
        let BatchAxis::Axis { axis, per_item } = probed.batch else { return true };
        let is_named = self.dims.as_ref().is_some_and(|dims| dims.get(axis) == Some(&OutputDim::Batch));
        probed.mixing >= Mixing::Placed && (per_item > 1 || !is_named)
    }

    /// Whether its declaration leaves a doubt.
    pub(crate) fn is_open(&self, fixed_batch: Option<usize>) -> bool {
        self.is_tensor() && !self.guess(fixed_batch).1
    }

    /// What an item has of it. A dimension that a probe has seen otherwise is open, and so is one that the file leaves open unless `fixes_open`.
    fn row(&self, batch: BatchAxis, probed: Option<&ProbedOutput>, fixes_open: bool) -> Vec<Dim> {
        let seen = probed.map(|probed| match (batch, &probed.alone) {
            (BatchAxis::None, Some(alone)) => &alone.shape[..],
            _ => &probed.row[..],
        });
        let of_seen = |seen: &Option<usize>| match seen {
            Some(n @ 1..) if fixes_open => Dim::Fixed(*n),
            _ => Dim::Dynamic,
        };
        let Some(dims) = &self.dims else {
            return seen.map_or(vec![Dim::Dynamic], |seen| seen.iter().map(of_seen).collect());
        };
        let dim = |dim: &OutputDim| match (dim, batch) {
            (OutputDim::Fixed(n), _) => Dim::Fixed(*n),
            (OutputDim::Batch, BatchAxis::None) => Dim::Fixed(1),
            (OutputDim::Batch | OutputDim::Open, _) => Dim::Dynamic,
        };
        let mut row: Vec<Dim> = match batch {
            BatchAxis::None => dims.iter().map(dim).collect(),
            BatchAxis::Axis { axis, per_item } => {
                let each = (per_item > 1).then_some(Dim::Fixed(per_item));
                let others = dims.iter().enumerate().filter(|(other, _)| *other != axis);
                each.into_iter().chain(others.map(|(_, of)| dim(of))).collect()
            }
        };
        let Some(seen) = seen else { return row };
        if seen.len() != row.len() {
            return seen.iter().map(of_seen).collect();
        }
        for (dim, seen) in row.iter_mut().zip(seen) {
            match dim {
                Dim::Dynamic => *dim = of_seen(seen),
                Dim::Fixed(n) if Some(*n) != *seen => *dim = Dim::Dynamic,
                Dim::Fixed(_) => {}
            }
        }
        row
    }

    /// What a stage can have of it. `probed` is what a probe says of it, or why there was none.
    pub(crate) fn stage_output(
        &self,
        batch: Dim,
        batches: ReaderBatches<'_>,
        probed: Result<&ProbedOutput, Option<&str>>,
        has_zip_map: bool,
    ) -> Result<StageOutput, UnreadableOutput> {
        let unreadable =
            |what: String, remedy: String| UnreadableOutput { name: self.name.clone(), what, remedy };
        let dtype = match self.holds {
            OutputType::Tensor(dtype) => dtype,
            OutputType::Text => DType::U8,
            OutputType::Other(what) => {
                return Err(unreadable(what.to_owned(), remedy(what, has_zip_map)));
            }
        };
        let (guessed, is_sure) = self.guess(batches.fixed);
        let axis = match probed {
            Ok(probed) if batches.is_single && self.is_all_of_one(probed) => BatchAxis::None,
            Ok(probed) => probed.batch,
            Err(_) => guessed,
        };
        let mut row = self.row(axis, probed.ok(), batches.fixes_open);
        let mut texts = None::<Vec<usize>>;
        if self.holds == OutputType::Text {
            let of_fixed = || row.iter().map(|dim| dim.fixed()).collect();
            let seen = probed.map_or(&[][..], |probed| &probed.row);
            let is_one = |n: Option<usize>| n.is_none_or(|n| n == 1);
            let is_one = row.iter().all(|dim| is_one(dim.fixed())) && seen.iter().all(|n| is_one(*n));
            texts = if is_one { Some(Vec::new()) } else { of_fixed() };
            if texts.is_none() {
                let what = format!("texts of which items have different numbers: {self}");
                let remedy = "let the model give as many texts for each item, and say so in their shape";
                return Err(unreadable(what, remedy.to_owned()));
            }
            row = vec![Dim::Dynamic];
        }
        let rank = match (probed, &self.dims) {
            (Ok(probed), _) => probed.shapes.last().map(Vec::len),
            (Err(_), dims) => dims.as_ref().map(Vec::len),
        };
        let tensor = TensorSpec { name: self.name.clone(), dtype, row, batch };
        let standing = match probed {
            _ if let Some(limit) = batches.size_limit => {
                let is_row = |of: &ProbedOutput| of.batch != BatchAxis::None && of.mixing < Mixing::Placed;
                RowStanding::SizeLimit { limit: limit.clone(), has_rows: probed.is_ok_and(is_row) }
            }
            Ok(probed) => standing(probed, batches),
            Err(_) if batches.is_single => RowStanding::Known,
            Err(_) if axis == BatchAxis::None => RowStanding::NoRows(format!("it is {self}")),
            Err(None) if is_sure => RowStanding::Known,
            Err(why) => RowStanding::Unconfirmed(why.map(str::to_owned)),
        };
        let read = ReadOutput { tensor, batch: axis, rank, texts, is_copied: self.is_input };
        let is_untried = probed.is_err_and(|why| why.is_none());
        Ok(StageOutput { read, standing, declared: self.to_string(), values: None, is_untried })
    }
}

fn standing(probed: &ProbedOutput, batches: ReaderBatches<'_>) -> RowStanding {
    if batches.is_single {
        let is_steady = probed.alone.as_ref().is_none_or(|alone| alone.is_steady);
        return if is_steady { RowStanding::Known } else { RowStanding::UnsteadyAlone };
    }
    let seen = || {
        let mut shapes: Vec<Vec<usize>> = Vec::new();
        for shape in &probed.shapes {
            if !shapes.contains(shape) {
                shapes.push(shape.clone());
            }
        }
        let of = if batches.fixed.is_some() { "" } else { " for batches of 1, 2 and 3" };
        format!("it has the shapes {}{of}", list_of(&shapes))
    };
    match (probed.batch, probed.mixing) {
        (BatchAxis::None, _) => RowStanding::NoRows(seen()),
        (_, Mixing::Mixed) => {
            RowStanding::NoRows("the values of one item change those of others in its batch".to_owned())
        }
        (_, Mixing::Placed) => RowStanding::NoRows(
            "an item has other values at another place of its batch, or in one of another size".to_owned(),
        ),
        (_, Mixing::Unsteady) => RowStanding::Unsteady,
        (_, Mixing::Apart) => RowStanding::Known,
    }
}

fn list_of(shapes: &[Vec<usize>]) -> String {
    shapes.iter().map(|shape| format!("{shape:?}")).collect::<Vec<_>>().join(", ")
}

/// What to do about an output that no stage can read.
fn remedy(what: &str, has_zip_map: bool) -> String {
    match what {
        "sequence" | "map" if has_zip_map => {
            "export the model with `zipmap = False` (skl2onnx: `options = {\"zipmap\": False}`): then it is a tensor".to_owned()
        }
        "sequence" => "put a `ConcatFromSequence` behind it and export the model again: then it is a tensor".to_owned(),
        "optional" => {
            "put an `OptionalGetElement` behind it and export the model again: then it is a tensor".to_owned()
        }
        "map" | "sparse tensor" => "export the model so that it gives a tensor".to_owned(),
        _ => {
            let known = DType::ALL.map(DType::name).join(", ");
            format!("put a `Cast` behind it and export the model again: tensors of {known} are supported, and texts")
        }
    }
}

impl StageOutput {
    /// An output of a program, which gives what it says.
    pub(crate) fn of_program(column: Column) -> Self {
        let Column { name, ty } = column;
        let read = match &ty {
            ColumnType::Tensor(tensor) => ReadOutput::rows(tensor.clone()),
            _ => ReadOutput::packed(&name),
        };
        let declared = ty.to_string();
        let values = (!matches!(ty, ColumnType::Tensor(_))).then_some(ty);
        Self { declared, read, standing: RowStanding::Known, values, is_untried: false }
    }

    pub(crate) fn column(&self) -> ColumnType {
        match (&self.values, self.read.texts.as_deref()) {
            (Some(ty), _) => ty.clone(),
            (None, Some([])) => ColumnType::Text,
            (None, Some(_)) => ColumnType::List(Schema::of("text", ColumnType::Text)),
            (None, None) => ColumnType::Tensor(self.read.tensor.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use OutputDim::{Batch, Fixed, Open};
    use orchestra_core::ProbedAlone;

    use super::*;

    fn output(dims: &[OutputDim]) -> ModelOutput {
        let dims = Some(dims.to_vec());
        ModelOutput { name: "y".into(), holds: OutputType::Tensor(DType::F32), dims, is_input: false }
    }

    #[test]
    fn names_of_dimensions_tell_where_the_batch_is_and_whether_that_is_sure() {
        let along = BatchAxis::along;
        for (dims, fixed, guess) in [
            (&[Batch, Fixed(4)][..], None, (along(0), true)),
            (&[Fixed(2), Batch, Fixed(4)], None, (along(1), false)),
            (&[Open, Batch, Fixed(4)], None, (along(1), false)),
            (&[Fixed(2), Open, Fixed(4)], None, (along(1), false)),
            (&[Open, Fixed(7)], None, (along(0), false)),
            (&[Batch, Batch], None, (along(0), false)),
            (&[Fixed(1), Fixed(10)], None, (along(0), false)),
            (&[], None, (BatchAxis::None, true)),
            (&[Fixed(8), Fixed(3)], Some(8), (along(0), true)),
            (&[Fixed(2), Fixed(8)], Some(8), (along(1), true)),
            (&[Fixed(8), Fixed(8)], Some(8), (along(0), false)),
            (&[Fixed(1), Fixed(1), Fixed(5)], Some(1), (along(0), true)),
            (&[Fixed(32), Fixed(1), Fixed(5)], Some(1), (along(1), true)),
            (&[Fixed(2), Fixed(10)], Some(4), (BatchAxis::None, true)),
            (&[Open, Fixed(10)], Some(4), (along(0), false)),
        ] {
            assert_eq!(output(dims).guess(fixed), guess, "{dims:?} {fixed:?}");
        }
    }

    #[test]
    fn an_item_has_all_but_the_batch_and_no_dimension_that_was_seen_otherwise() {
        let of = |dims: &[OutputDim], batch| output(dims).row(batch, None, false);
        assert_eq!(of(&[Fixed(2), Batch, Open], BatchAxis::along(1)), [Dim::Fixed(2), Dim::Dynamic]);
        assert_eq!(of(&[Open, Fixed(7)], BatchAxis::None), [Dim::Dynamic, Dim::Fixed(7)]);
        assert_eq!(of(&[Batch, Fixed(7)], BatchAxis::None), [Dim::Fixed(1), Dim::Fixed(7)]);
        let each = BatchAxis::Axis { axis: 0, per_item: 3 };
        assert_eq!(of(&[Open, Fixed(7)], each), [Dim::Fixed(3), Dim::Fixed(7)]);
        let probed = |row: &[Option<usize>]| ProbedOutput {
            name: "y".into(),
            batch: BatchAxis::FIRST,
            shapes: Vec::new(),
            row: row.to_vec(),
            mixing: Mixing::Apart,
            alone: Some(ProbedAlone { shape: vec![Some(32), Some(7)], is_steady: true }),
        };
        let seen = |row| output(&[Batch, Fixed(7)]).row(BatchAxis::FIRST, Some(&probed(row)), false);
        assert_eq!(seen(&[Some(7)]), [Dim::Fixed(7)]);
        assert_eq!(seen(&[Some(8)]), [Dim::Dynamic]);
        assert_eq!(seen(&[Some(7), Some(1)]), [Dim::Dynamic, Dim::Dynamic]);
        // What the file leaves open is what was seen, for a model that reads it.
        let row = [Some(7), Some(5), Some(0), None];
        let open =
            output(&[Batch, Fixed(7), Open, Open, Open]).row(BatchAxis::FIRST, Some(&probed(&row)), true);
        assert_eq!(open, [Dim::Fixed(7), Dim::Fixed(5), Dim::Dynamic, Dim::Dynamic]);
        // All of it belongs to the one item, whatever its file says of that dimension.
        let alone = output(&[Batch, Fixed(7)]).row(BatchAxis::None, Some(&probed(&[None, Some(7)])), false);
        assert_eq!(alone, [Dim::Dynamic, Dim::Fixed(7)]);
    }
}
