//! Serves a model to the program itself: a flow of one batch stage, planned from the model file alone, whose rows are tensors.

use std::io;
use std::ops::Deref;
use std::path::Path;

use futures::future::try_join_all;
use orchestra_core::data::{Column, TensorView, Value};
use orchestra_core::row_bytes::StoredValue;
use orchestra_core::{DType, Dim, Failure, TensorSpec};
use orchestra_kinds::read_reply;
use orchestra_machine::Machine;
use orchestra_plan::tree::{Table, Toml};
use orchestra_plan::{Plan, PlanOptions, RenderStyle};
use orchestra_runtime::{ProcessError, ReplyRecord, RequestFlow};
use thiserror::Error;

use crate::flow::{FlowError, start_flow};
use crate::{StartOptions, kinds, machine_view};

/// How a model is served.
#[derive(Clone, Default)]
pub struct ServeOptions {
    /// Names of inputs and the shapes of their rows, for inputs of which the model file leaves a dimension beside the batch open.
    pub shapes: Vec<(String, Vec<usize>)>,
    /// `set` takes the keys of `models.model` and of its stage `stages.model`, as a workflow file has them, for example
    /// `("models.model.workers", "2")` and `("stages.model.batch.max", "8")`; `devices` those to use.
    pub plan: PlanOptions,
    /// Workers and their libraries. `earlier` has no effect, because a service writes nothing. A tracer is told of workers and batches, but not of
    /// requests, which are no items.
    pub start: StartOptions,
}

/// A tensor of a request or of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The type of an element.
    pub dtype: DType,
    /// The whole shape; the first dimension counts the rows.
    pub shape: Vec<usize>,
    /// Elements in native byte order, row-major: as many bytes as type and shape say.
    pub data: Vec<u8>,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InferError {
    /// The tensors do not match the inputs of the stage. The text says what was found and what is expected. Nothing ran.
    #[error("{0}")]
    Input(String),
    /// A row has no result: the model refuses it, or it kills workers. Other rows of the request may have run.
    #[error("row {row} failed after {} of stage `{}`: {}", attempts(.failure.attempts), .failure.stage, .failure.error)]
    Failed {
        /// Which, from 0.
        row: usize,
        /// Where, and why.
        failure: Failure,
    },
    /// The rows of an output have different shapes.
    #[error(
        "output `{output}` has rows of shapes {first:?} and {other:?}, which cannot be stacked; send one row per request"
    )]
    Ragged {
        /// The name of the output.
        output: String,
        /// The shape of the first row.
        first: Vec<usize>,
        /// That of a later one.
        other: Vec<usize>,
    },
    /// The service has ended, for this reason.
    #[error("the service has ended: {0}")]
    Over(String),
}

fn attempts(n: u32) -> String {
    if n == 1 { "1 attempt".to_owned() } else { format!("{n} attempts") }
}

/// A model that answers requests: a flow, which counts its rows. Dropping it kills its workers.
pub struct Service {
    flow: RequestFlow,
    stage: String,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

/// Serves an ONNX model: its workers are started on the devices of `machine`, and requests of many tasks share batches. Returns once a worker
/// is loaded.
///
/// A request has a [`Tensor`](crate::Tensor) for each input of the model, in the order of [`Service::inputs`]; the first dimension counts its
/// rows. A worker that dies costs no request: its rows run again elsewhere, and a row that kills workers fails alone. Nothing is written.
/// Dropping the service kills its workers.
///
/// ```no_run
/// # async fn service() -> Result<(), Box<dyn std::error::Error>> {
/// use orchestra::{DType, ServeOptions, Tensor};
///
/// let machine = orchestra::usable_machine(None, false);
/// let model = orchestra::serve_model("digits.onnx".as_ref(), &machine, ServeOptions::default()).await?;
/// // Two rows of a model that takes f32 [batch, 1, 28, 28].
/// let pixels = vec![0.0_f32; 2 * 28 * 28].into_iter().flat_map(f32::to_ne_bytes).collect();
/// let request = Tensor { dtype: DType::F32, shape: vec![2, 1, 28, 28], data: pixels };
/// let answer = model.infer(&[request]).await?;
/// println!("{} {:?}", answer[0].dtype, answer[0].shape);
/// model.close().await;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`FlowError`]. Nothing runs then.
pub async fn serve_model(
    model: &Path,
    machine: &Machine,
    options: ServeOptions,
) -> Result<Service, FlowError> {
    let (model, machine) = (model.to_owned(), machine.clone());
    let ServeOptions { shapes, plan, start } = options;
    let of = start.clone();
    let planned = tokio::task::spawn_blocking(move || plan_of(&model, &machine, &shapes, &plan, &of));
    let plan = planned.await.map_err(io::Error::other)??;
    let flow = start_flow(plan, start, usize::MAX).await?;
    Ok(Service::new(flow))
}

/// Plans the stage `model`, between a source of its inputs and a sink of its outputs.
fn plan_of(
    model: &Path,
    machine: &Machine,
    shapes: &[(String, Vec<usize>)],
    options: &PlanOptions,
    start: &StartOptions,
) -> Result<Plan, FlowError> {
    let path = std::path::absolute(model)?;
    let file = orchestra_plan::read_model(&path);
    let file = file.map_err(|error| FlowError::Plan(format!("model `{}`: {error}", path.display())))?;
    if let Some(text) = file.signature.text_inputs.first() {
        let name = &text.name;
        return Err(FlowError::Plan(format!(
            "input `{name}` takes texts, which no tensor holds: start a flow of a workflow with a `request` source, columns = {{ {name} = \"text\" }}"
        )));
    }
    let inputs: Vec<(&str, String)> =
        file.signature.inputs.iter().map(|input| column(input, shapes)).collect::<Result<_, _>>()?;
    if let Some((name, _)) = shapes.iter().find(|(name, _)| inputs.iter().all(|(of, _)| of != name)) {
        let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
        let (model, names) = (path.display(), names.join("`, `"));
        let what = format!("model `{model}` has no input `{name}`, which `shapes` names; inputs: `{names}`");
        return Err(FlowError::Plan(what));
    }
    let utf8 = path.to_str().ok_or_else(|| FlowError::Plan(format!("`{}` is no UTF-8", path.display())))?;
    let table = |entries: Vec<(&str, Toml)>| Toml::from(Table::of(entries));
    let columns = inputs.iter().map(|(name, ty)| (*name, Toml::from(&**ty))).collect();
    let reads = inputs.iter().map(|(name, _)| (*name, Toml::from(&*format!("requests.{name}")))).collect();
    let stage = vec![("kind", "infer".into()), ("model", "model".into()), ("inputs", table(reads))];
    let named = |name, entries| table(vec![(name, table(entries))]);
    let tables = Table::of([
        ("version", Toml::Integer(1)),
        ("sources", named("requests", vec![("kind", "request".into()), ("columns", table(columns))])),
        ("models", named("model", vec![("path", utf8.into())])),
        ("stages", named("model", stage)),
        ("sinks", named("answers", vec![("kind", "reply".into()), ("from", "model".into())])),
    ]);
    let host = crate::host(kinds(), machine_view(machine), start);
    let name = format!("service of {}", path.file_name().unwrap_or_default().to_string_lossy());
    let (plan, diagnostics) = orchestra_plan::plan_tables(tables, &path.with_file_name(name), options, &host);
    let said = || diagnostics.render(RenderStyle::Plain);
    let plan = plan.ok_or_else(|| FlowError::Plan(said()))?;
    if !diagnostics.all().is_empty() {
        tracing::warn!(model = %path.display(), diagnostics = %said(), "the service starts with warnings");
    }
    Ok(plan)
}

/// An input of the model as requests have it: its name, and its type with every dimension of a row.
fn column<'a>(
    input: &'a TensorSpec,
    shapes: &[(String, Vec<usize>)],
) -> Result<(&'a str, String), FlowError> {
    let name = &input.name;
    let said = shapes.iter().find(|(of, _)| of == name).map(|(_, row)| row.clone());
    let row = said.or_else(|| input.fixed_row()).ok_or_else(|| {
        FlowError::Plan(format!(
            "input `{name}` is {input}, and every dimension but the batch must be known: say it in `ServeOptions::shapes`"
        ))
    })?;
    Ok((name, format!("{}{row:?}", input.dtype)))
}

/// Its plan, counters and workers, how many rows wait, and its end.
impl Deref for Service {
    type Target = RequestFlow;

    fn deref(&self) -> &RequestFlow {
        &self.flow
    }
}

impl Service {
    fn new(flow: RequestFlow) -> Self {
        let plan = flow.plan();
        let (id, batch) = plan.batch_stages().next().expect("it was planned with one");
        let stage = &plan.stages[id.index()];
        // Behind those of the model lies what a loop keeps of each row.
        let inputs = batch.layout.inputs[..stage.reads.len()].iter().map(|span| span.tensor.clone());
        let text = |name: &String| TensorSpec {
            name: name.clone(),
            dtype: DType::U8,
            row: vec![Dim::Dynamic],
            batch: Dim::Dynamic,
        };
        let output = |column: &Column| column.ty.stored().cloned().unwrap_or_else(|| text(&column.name));
        let outputs = stage.gives.0.iter().map(output).collect();
        Self { stage: stage.name.clone(), inputs: inputs.collect(), outputs, flow }
    }

    /// The inputs, in the order of a request. Dimensions are those of one row; a request has its number of rows before them.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The outputs, in the order of an answer. A dimension that is known only after a run is `Dynamic`. A text is
    /// its bytes in UTF-8.
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    /// Runs the rows of `inputs`, batched with those of other requests, and returns their outputs in the same order. A row whose worker dies
    /// runs again on another one. May be called from many tasks at once. Dropping the future withdraws the rows that are not written yet; the
    /// outputs of the others are discarded.
    ///
    /// # Errors
    /// See [`InferError`].
    pub async fn infer(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, InferError> {
        let rows = self.check(inputs)?;
        let admitted = &self.flow.admit().map_err(|error| InferError::Over(error.to_string()))?;
        let row = |row: usize| async move {
            let show = |show: &mut dyn FnMut(&[Value<'_>])| show(&self.values(inputs, row));
            self.flow.row(admitted, "", &show).await.map_err(|error| failed(row, error))
        };
        let records = try_join_all((0..rows).map(row)).await?;
        let answers: Vec<Vec<StoredValue<'_>>> = records.iter().map(|records| values(records)).collect();
        let output = |(at, spec): (usize, &TensorSpec)| {
            let cells: Vec<(Vec<usize>, &[u8])> = answers.iter().map(|row| bytes_of(&row[at])).collect();
            let first = cells.first().map_or_else(Vec::new, |(shape, _)| shape.clone());
            if let Some((other, _)) = cells.iter().find(|(shape, _)| *shape != first) {
                let (output, other) = (spec.name.clone(), other.clone());
                return Err(InferError::Ragged { output, first, other });
            }
            let data = cells.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>().concat();
            Ok(Tensor { dtype: spec.dtype, shape: [&[rows], &first[..]].concat(), data })
        };
        self.outputs.iter().enumerate().map(output).collect()
    }

    /// One row of a request, where it lies.
    fn values<'a>(&'a self, inputs: &'a [Tensor], row: usize) -> Vec<Value<'a>> {
        let value = |(tensor, spec): (&'a Tensor, &'a TensorSpec)| {
            let bytes = spec.row_bytes().unwrap_or_default();
            Value::Tensor(TensorView {
                name: &spec.name,
                dtype: tensor.dtype,
                shape: &tensor.shape[1..],
                data: &tensor.data[row * bytes..(row + 1) * bytes],
            })
        };
        inputs.iter().zip(&self.inputs).map(value).collect()
    }

    /// Kills the workers and returns when all of them have ended.
    pub async fn close(self) {
        self.flow.close().await;
    }

    /// The number of rows, if the tensors match the inputs.
    fn check(&self, inputs: &[Tensor]) -> Result<usize, InferError> {
        let stage = &self.stage;
        if inputs.len() != self.inputs.len() {
            let names: Vec<&str> = self.inputs.iter().map(|spec| &*spec.name).collect();
            let (found, n, names) = (inputs.len(), names.len(), names.join("`, `"));
            let what = format!("the request has {found} tensors, expected {n} for `{stage}`: `{names}`");
            return Err(InferError::Input(what));
        }
        let rows = inputs.first().and_then(|tensor| tensor.shape.first()).copied().unwrap_or_default();
        for (tensor, spec) in inputs.iter().zip(&self.inputs) {
            let Tensor { dtype, shape, data } = tensor;
            let row = spec.fixed_row().unwrap_or_default();
            let fits = *dtype == spec.dtype && rows > 0 && *shape == [&[rows], &row[..]].concat();
            if !fits {
                return Err(InferError::Input(format!(
                    "input `{}` of `{stage}` is {dtype} {shape:?}, expected {} [rows, {}] with at least 1 row, as many for every input",
                    spec.name,
                    spec.dtype,
                    row.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
                )));
            }
            let bytes = spec.row_bytes().and_then(|bytes| bytes.checked_mul(rows));
            if bytes != Some(data.len()) {
                return Err(InferError::Input(format!(
                    "input `{}` of `{stage}` has {} bytes, expected those of {dtype} {shape:?}",
                    spec.name,
                    data.len()
                )));
            }
        }
        Ok(rows)
    }
}

fn failed(row: usize, error: ProcessError) -> InferError {
    match error {
        ProcessError::Failed(failure) => InferError::Failed { row, failure },
        ProcessError::Over(why) => InferError::Over(why),
        error => InferError::Over(error.to_string()),
    }
}

/// The outputs of a row, which has one record.
fn values(records: &[ReplyRecord]) -> Vec<StoredValue<'_>> {
    let [record] = records else { unreachable!("a model gives one row for each") };
    read_reply(&record.bytes).expect("the sink has written it").1
}

/// Shape and data of an output. A text is its bytes.
fn bytes_of<'a>(value: &'a StoredValue<'_>) -> (Vec<usize>, &'a [u8]) {
    match value {
        StoredValue::Tensor { shape, data, .. } => (shape.clone(), data),
        StoredValue::Text(text) => (vec![text.len()], text.as_bytes()),
        other => unreachable!("a batch stage gives tensors and texts, and no {other:?}"),
    }
}
