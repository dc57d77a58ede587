//! What a session's tensors are and where they lie: checks the session against the plan's layout, once. It runs nothing.

use orchestra_core::batch_layout::{BatchLayout, TensorSpan};
use orchestra_core::iteration::{Feed, FirstRound, LoopInput, Until};
use orchestra_core::{DType, Dim, Iteration, Placement, ReadOutput, TensorSpec, TextInput, Trim};
use orchestra_worker::arena::{RangeError, RowMemory, WorkerArena};
use orchestra_worker::frames::BatchRun;
use ort::session::Session;
use ort::value::{Outlet, TensorElementType, ValueType};

use super::{pixel_graph, trim_graph};
use crate::spec::OnnxSpec;
use orchestra_worker::load_error::LoadError;

/// A model whose session and layout agree.
pub struct SessionModel {
    /// Inputs as the session names them, in the order of the layout.
    pub session_inputs: Vec<TensorSpec>,
    /// Outputs that are read, as the session names them. Texts have bytes here.
    pub session_outputs: Vec<TensorSpec>,
    /// The same inputs: those that lie in slots, and those of a loop that do not.
    pub inputs: Vec<RowTensor>,
    /// How many lie in slots.
    pub in_slots: usize,
    /// The others.
    pub loop_inputs: Vec<LoopInput>,
    /// Inputs that take texts, in the order of the session.
    pub text_inputs: Vec<TextInput>,
    /// Outputs, in the order of the session; `None` where the shape is only known after the run.
    pub outputs: Vec<Option<RowTensor>>,
    /// Outputs of which a row has those of all rounds: they lie in no slot.
    pub is_collected: Vec<bool>,
    /// Outputs of texts.
    /// How many texts an item has of each.
    pub texts: Vec<Option<usize>>,
    /// Batches have one item, so all that comes out of one is its.
    pub is_single: bool,
    /// The only batch size that the model accepts, if it has one.
    pub batch: Option<usize>,
    /// Of an input that is trimmed, what a whole row has: height and width. The layout says behind the inputs where pictures lie.
    pub whole: Option<[i64; 2]>,
}

/// A tensor whose rows have a fixed shape.
pub struct RowTensor {
    pub dtype: DType,
    pub row: Vec<i64>,
    pub row_bytes: usize,
}

/// Where the tensors of one run lie.
#[derive(Clone)]
pub struct RowAddresses<'a> {
    pub rows: usize,
    /// Inputs, to be read only.
    pub inputs: Vec<RowMemory<*const u8>>,
    /// For each input of texts those of all rows, one row after the other.
    pub texts: Vec<Vec<&'a str>>,
    /// Outputs of fixed shape; `None` where the runtime allocates.
    pub outputs: Vec<Option<RowMemory<*mut u8>>>,
    /// Height and width that the rows are trimmed to; `None`: they are whole.
    pub trimmed_to: Option<[i64; 2]>,
}

impl SessionModel {
    /// Checks that names, element types and shapes of the session are those that the layout was made for, but for what it has behind them
    /// for a loop.
    ///
    /// An input that takes pixels, and an output that gives the largest numbers, has another name in the session.
    pub fn check(
        session: &Session,
        layout: &BatchLayout,
        spec: &OnnxSpec,
    ) -> Result<SessionModel, LoadError> {
        let iteration = spec.iteration.as_ref();
        let behind = [usize::from(spec.trim.is_some()), usize::from(iteration.is_some())];
        let layout_inputs = &layout.inputs[..layout.inputs.len().saturating_sub(behind[0])];
        let layout_outputs = &layout.outputs[..layout.outputs.len().saturating_sub(behind[1])];
        let is_text = |input: &&Outlet| spec.text_inputs.iter().any(|text| text.name == input.name());
        let of_tensors = session.inputs().iter().filter(|input| !is_text(input));
        let mut session_inputs: Vec<TensorSpec> =
            of_tensors.map(|input| self::spec(input, "input")).collect::<Result<_, _>>()?;
        session_inputs.retain(|input| spec.trim.is_none() || input.name != trim_graph::ENDS);
        let session_outputs: Vec<TensorSpec> =
            spec.outputs.iter().map(|output| read_output(session, spec, output)).collect::<Result<_, _>>()?;
        let planned = planned_inputs(layout_inputs, spec);
        let place = |input: &TensorSpec| planned.iter().position(|planned| planned.name == input.name);
        session_inputs.sort_by_key(|input| place(input).unwrap_or(usize::MAX));
        same_count(&session_inputs, planned.len(), "inputs")?;
        same_count(&session_outputs, layout_outputs.len(), "outputs")?;
        session_inputs
            .iter()
            .zip(&planned)
            .try_for_each(|(found, planned)| agree(found, planned, "input"))?;
        for (found, span) in session_outputs.iter().zip(layout_outputs) {
            if let Some(span) = span {
                let mut planned = span.tensor.clone();
                planned.name = spec.session_name(&planned.name);
                agree(found, &planned, "output")?;
            }
        }
        let in_loop = spec.loop_inputs.iter().map(|input| of_spec(&input.tensor));
        let inputs: Vec<RowTensor> = layout_inputs.iter().map(row_tensor).chain(in_loop).collect();
        let is_collected: Vec<bool> = (0..spec.outputs.len())
            .map(|output| iteration.is_some_and(|iteration| iteration.collect.contains(&output)))
            .collect();
        let outputs = layout_outputs.iter().zip(&spec.outputs).zip(&is_collected);
        let outputs: Vec<Option<RowTensor>> = outputs
            .map(|((span, output), is_collected)| match is_collected {
                true => Some(of_spec(&output.tensor)),
                false => span.as_ref().map(row_tensor),
            })
            .collect();
        if let Some(iteration) = iteration {
            can_loop(iteration, &spec.loop_inputs, &inputs, &outputs)?;
        }
        let of_texts = spec.text_inputs.first().and_then(|input| input.batch.fixed());
        let batch = fixed_batch(&session_inputs, layout.slot_rows)?.or(of_texts);
        Ok(SessionModel {
            inputs,
            in_slots: layout_inputs.len(),
            loop_inputs: spec.loop_inputs.clone(),
            outputs,
            is_collected,
            session_inputs,
            text_inputs: spec.text_inputs.clone(),
            session_outputs,
            texts: spec.outputs.iter().map(|output| Some(output.texts.as_ref()?.iter().product())).collect(),
            is_single: layout.slot_rows == 1 && batch.is_none_or(|batch| batch == 1),
            batch,
            whole: spec.trim.map(|trim| whole(&trim, layout)).transpose()?,
        })
    }

    pub fn row_addresses(
        &self,
        arena: &WorkerArena,
        run: &BatchRun,
    ) -> Result<RowAddresses<'static>, RangeError> {
        let BatchRun { slot, output_slot, first_row, rows, .. } = *run;
        let inputs = (0..self.in_slots)
            .map(|i| arena.input_rows(slot, i, first_row, rows))
            .collect::<Result<_, _>>()?;
        let outputs = self.outputs.iter().zip(&self.is_collected).enumerate();
        let outputs = outputs
            .map(|(i, (fixed, is_collected))| {
                let in_slot = fixed.as_ref().filter(|_| !is_collected);
                in_slot.map(|_| arena.output_rows(output_slot, i, first_row, rows)).transpose()
            })
            .collect::<Result<_, _>>()?;
        let trimmed_to = match self.whole {
            Some(whole) => {
                let placed = arena.input_rows(slot, self.in_slots, first_row, 1)?;
                // SAFETY: the row is mapped and has so many bytes; the parent has written it and sent it to be read.
                let placed = unsafe { std::slice::from_raw_parts(placed.ptr, placed.len) };
                Some(trimmed_to(placed, whole))
            }
            None => None,
        };
        Ok(RowAddresses { rows, inputs, texts: Vec::new(), outputs, trimmed_to })
    }
}

/// Height and width of whole rows of the input that is trimmed.
fn whole(trim: &Trim, layout: &BatchLayout) -> Result<[i64; 2], LoadError> {
    let row = layout.inputs.get(trim.input).and_then(|span| span.tensor.fixed_row());
    let side = |axis: usize| row.as_ref()?.get(axis).and_then(|n| i64::try_from(*n).ok());
    let whole = side(trim.axes[0]).zip(side(trim.axes[1])).map(|(height, width)| [height, width]);
    whole.ok_or_else(|| refused("the input that is to be trimmed has no height and width".to_owned()))
}

/// Height and width of what the row of a [`Placement`] is trimmed to; `whole` where that cannot be.
fn trimmed_to(placed: &[u8], whole: [i64; 2]) -> [i64; 2] {
    let fits = |[height, width]: &[i64; 2]| (1..=whole[0]).contains(height) && (1..=whole[1]).contains(width);
    let row = Placement::of(&Placement::value(placed)).ok().map(|placed| placed.row.map(i64::from));
    row.map(|[width, height]| [height, width]).filter(fits).unwrap_or(whole)
}

impl RowTensor {
    pub fn shape(&self, rows: usize) -> Vec<i64> {
        let mut shape = Vec::with_capacity(1 + self.row.len());
        shape.push(rows as i64);
        shape.extend_from_slice(&self.row);
        shape
    }
}

pub fn element_type(dtype: DType) -> TensorElementType {
    match dtype {
        DType::F32 => TensorElementType::Float32,
        DType::F16 => TensorElementType::Float16,
        DType::I64 => TensorElementType::Int64,
        DType::I32 => TensorElementType::Int32,
        DType::F64 => TensorElementType::Float64,
        DType::I16 => TensorElementType::Int16,
        DType::U8 => TensorElementType::Uint8,
        DType::Bool => TensorElementType::Bool,
    }
}

/// The inputs of the plan as the session names them: those in slots, then those of a loop that lie in none.
fn planned_inputs(layout_inputs: &[TensorSpan], spec: &OnnxSpec) -> Vec<TensorSpec> {
    let in_slot = |(at, span): (usize, &TensorSpan)| {
        let mut planned = TensorSpec { name: spec.input_name(&span.tensor.name), ..span.tensor.clone() };
        if spec.pixel_inputs.get(at).is_some_and(Option::is_some) {
            planned.name = pixel_graph::session_name(&planned.name);
        }
        if spec.trim.is_some_and(|trim| trim.input == at) {
            planned.name = trim_graph::session_name(&planned.name);
        }
        planned
    };
    let in_loop = |LoopInput { tensor, .. }: &LoopInput| TensorSpec {
        name: spec.input_name(&tensor.name),
        ..tensor.clone()
    };
    layout_inputs.iter().enumerate().map(in_slot).chain(spec.loop_inputs.iter().map(in_loop)).collect()
}

fn row_tensor(span: &TensorSpan) -> RowTensor {
    of_spec(&span.tensor)
}

/// A tensor in memory that was made for its rows, so every dimension of these is fixed.
fn of_spec(tensor: &TensorSpec) -> RowTensor {
    let row = tensor.fixed_row().unwrap_or_default().into_iter().map(|n| n as i64).collect();
    RowTensor { dtype: tensor.dtype, row, row_bytes: tensor.row_bytes().unwrap_or_default() }
}

/// What the session says of an output that is read.
fn read_output(session: &Session, spec: &OnnxSpec, output: &ReadOutput) -> Result<TensorSpec, LoadError> {
    let name = spec.session_name(&output.tensor.name);
    let outlet = session.outputs().iter().find(|outlet| outlet.name() == name);
    let outlet = outlet.ok_or_else(|| {
        refused(format!(
            "the plan reads output `{}`, and the model has none of that name",
            output.tensor.name
        ))
    })?;
    match &output.texts {
        Some(_) => Ok(TensorSpec { name, ..output.tensor.clone() }),
        None => self::spec(outlet, "output"),
    }
}

fn spec(outlet: &Outlet, what: &str) -> Result<TensorSpec, LoadError> {
    let name = outlet.name();
    let ValueType::Tensor { ty, ref shape, .. } = *outlet.dtype() else {
        return Err(refused(format!("{what} `{name}` is {}, only tensors are supported", outlet.dtype())));
    };
    let Some(dtype) = DType::ALL.into_iter().find(|dtype| element_type(*dtype) == ty) else {
        let known = DType::ALL.map(DType::name).join(", ");
        return Err(refused(format!("{what} `{name}` has elements of type `{ty}`, supported are {known}")));
    };
    let dim = |n: i64| usize::try_from(n).map_or(Dim::Dynamic, Dim::Fixed);
    let mut dims = shape.iter().copied().map(dim);
    // A scalar has no batch dimension. As an output it may still be the whole result of a batch of one.
    let batch = dims.next().unwrap_or(Dim::Fixed(1));
    if shape.is_empty() && what == "input" {
        return Err(refused(format!("input `{name}` is a scalar, every input needs a batch dimension")));
    }
    Ok(TensorSpec { name: name.to_owned(), dtype, row: dims.collect(), batch })
}

fn same_count(found: &[TensorSpec], planned: usize, what: &str) -> Result<(), LoadError> {
    if found.len() == planned {
        return Ok(());
    }
    let names: Vec<&str> = found.iter().map(|t| t.name.as_str()).collect();
    Err(refused(format!(
        "the model has `{}` {what} ({}), the plan `{planned}`",
        found.len(),
        names.join(", ")
    )))
}

/// An open dimension of the session agrees with whatever the plan fixed it to.
fn agree(found: &TensorSpec, planned: &TensorSpec, what: &str) -> Result<(), LoadError> {
    let same_dims = found.row.len() == planned.row.len()
        && found.row.iter().zip(&planned.row).all(|(f, p)| *f == Dim::Dynamic || f == p);
    if found.name == planned.name && found.dtype == planned.dtype && same_dims {
        return Ok(());
    }
    Err(refused(format!(
        "{what} `{}` is {planned} in the plan, but the model has `{}` as {found}",
        planned.name, found.name
    )))
}

/// Whether the places that a loop names exist, and what it feeds on fits. The planner has checked that; a frame may say anything.
fn can_loop(
    of: &Iteration,
    loop_inputs: &[LoopInput],
    inputs: &[RowTensor],
    outputs: &[Option<RowTensor>],
) -> Result<(), LoadError> {
    let output = |at: usize| outputs.get(at).and_then(Option::as_ref);
    let fits = |feed: &Feed| {
        output(feed.output)
            .zip(inputs.get(feed.input))
            .is_some_and(|(gives, takes)| gives.dtype == takes.dtype && gives.row_bytes == takes.row_bytes)
    };
    let is_number =
        |until: &Until| output(until.output).is_some_and(|gives| gives.row_bytes == gives.dtype.size_bytes());
    // The inputs that the loop steps through are those that take parts of values, in their order.
    let in_slots = inputs.len() - loop_inputs.len();
    let parts = loop_inputs.iter().enumerate().filter(|(_, input)| input.first == FirstRound::Part);
    let steps = of.each.iter().copied().eq(parts.map(|(at, _)| in_slots + at));
    let is_whole = |(input, tensor): (&LoopInput, &RowTensor)| match &input.first {
        FirstRound::Part => tensor.row_bytes > 0,
        FirstRound::Constant(bytes) => [tensor.row_bytes, tensor.dtype.size_bytes()].contains(&bytes.len()),
    };
    let are_whole = loop_inputs.iter().zip(&inputs[in_slots..]).all(is_whole);
    let is_sound = steps && are_whole && of.collect.iter().all(|at| output(*at).is_some());
    if is_sound
        && of.feed.iter().all(fits)
        && of.until.iter().all(is_number)
        && outputs.iter().all(Option::is_some)
    {
        return Ok(());
    }
    Err(refused("the loop of the plan does not fit the model; start the run again".to_owned()))
}

fn fixed_batch(inputs: &[TensorSpec], max_rows: usize) -> Result<Option<usize>, LoadError> {
    let mut fixed = inputs.iter().filter_map(|t| Some((t, t.batch.fixed()?)));
    let Some((first, batch)) = fixed.next() else { return Ok(None) };
    if let Some((other, _)) = fixed.find(|(_, n)| *n != batch) {
        return Err(refused(format!(
            "inputs `{}` ({first}) and `{}` ({other}) accept batches of different sizes",
            first.name, other.name
        )));
    }
    if batch == 0 || max_rows > batch {
        return Err(refused(format!(
            "input `{}` accepts batches of `{batch}` only ({first}), the plan wants up to `{max_rows}`; set `batch = {{ max = {batch} }}`",
            first.name
        )));
    }
    Ok(Some(batch))
}

fn refused(error: String) -> LoadError {
    LoadError::permanent(error)
}
