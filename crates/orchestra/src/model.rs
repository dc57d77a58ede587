//! A model that answers requests of a program: a flow of one batch stage, planned from the model file alone, whose rows are tensors.

use std::future::IntoFuture;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use orchestra_core::TensorSpec;
use orchestra_core::data::OwnedRow;
use orchestra_plan::tree::{Table, Toml};
use orchestra_plan::{ModelTables, Plan, model_tables, toml_key};
use orchestra_runtime::{CopiedOutput, RequestFlow, RequestRows};

use crate::environment::{Orchestra, blocking};
use crate::error::{RequestError, StartError};
use crate::flow::{QUEUE, plan_flow};
use crate::run::Status;
use crate::served::{Answers, FlowTree, PlannedFlow, Served, Terms, request_settings, served_methods};
use crate::tensor::{Tensor, TensorInfo, Tensors};
use crate::workflow::{SettingValue, Workflow, WorkflowError};

/// How a model is started that answers requests.
#[must_use]
#[derive(Clone)]
pub struct ModelBuilder {
    orchestra: Orchestra,
    file: PathBuf,
    /// Where a workflow file says more of it.
    base: Option<(Workflow, ModelTables)>,
    shapes: Vec<(String, Vec<usize>)>,
    constants: Vec<(String, SettingValue)>,
    set: Vec<(String, SettingValue)>,
    devices: Option<Vec<String>>,
    queue: usize,
}

impl Orchestra {
    /// A model that answers requests of this program.
    pub fn model(&self, file: impl Into<PathBuf>) -> ModelBuilder {
        let file = file.into();
        // As long as it is served, it is this file, whatever becomes of the current folder.
        ModelBuilder::new(self.clone(), std::path::absolute(&file).unwrap_or(file))
    }

    /// The models of a workflow file that none of its stages runs, by name, each to be started alone, as its table `[models.NAME]` says.
    ///
    /// # Errors
    /// The text is no TOML, or a model has no `path`. What is wrong with its other keys the start says.
    pub fn models(&self, workflow: &Workflow) -> Result<Vec<(String, ModelBuilder)>, WorkflowError> {
        ModelBuilder::of_workflow(self, workflow)
    }
}

impl ModelBuilder {
    pub(crate) fn new(orchestra: Orchestra, file: PathBuf) -> Self {
        let model = Self {
            orchestra,
            file,
            base: None,
            shapes: Vec::new(),
            constants: Vec::new(),
            set: Vec::new(),
            devices: None,
            queue: QUEUE,
        };
        // What waits meanwhile shares the next batch.
        model.max_delay(Duration::ZERO)
    }

    /// The models of a workflow file by name, each with all that the file says of it and of runs.
    pub(crate) fn of_workflow(
        orchestra: &Orchestra,
        workflow: &Workflow,
    ) -> Result<Vec<(String, Self)>, WorkflowError> {
        let Workflow { file, text, options, .. } = workflow;
        let (models, _) = model_tables(text, file, options).map_err(WorkflowError)?;
        let builder = |tables: ModelTables| {
            let mut workflow = workflow.clone();
            // They are in the tables.
            workflow.options.set.clear();
            let (name, file) = (tables.name.clone(), tables.path.clone());
            (name, Self { base: Some((workflow, tables)), ..Self::new(orchestra.clone(), file) })
        };
        Ok(models.into_iter().map(builder).collect())
    }

    /// The shape of a row of this input, where the model file leaves a dimension beside the batch open.
    pub fn shape(mut self, input: &str, row: impl Into<Vec<usize>>) -> Self {
        self.shapes.push((input.to_owned(), row.into()));
        self
    }

    /// The value of an input that is the same for all rows: requests bring no tensor for it, and workers get it once, with the model. A number, a `bool` or a
    /// text fills the input; a list as deep as the input has dimensions is all of it, and one that is one less deep is what each row has.
    pub fn constant(mut self, input: &str, value: impl Into<SettingValue>) -> Self {
        self.constants.push((input.to_owned(), value.into()));
        self
    }

    /// Worker processes on each device.
    pub fn workers(self, n: usize) -> Self {
        self.set("models.model.workers", n)
    }

    /// The most rows that the model runs at once.
    pub fn max_batch(self, rows: usize) -> Self {
        self.set("stages.model.batch.max", rows)
    }

    /// How long the first row of a batch waits for others where a worker is free; not at all where nothing is said.
    pub fn max_delay(self, delay: Duration) -> Self {
        self.set("stages.model.batch.wait", format!("{}us", delay.as_micros()))
    }

    /// How many requests may be without an answer, 1024 where nothing is said. At least 1. One more is refused, or waits: see [`InferRequest::wait`].
    pub fn queue(mut self, most: usize) -> Self {
        self.queue = most;
        self
    }

    /// The devices: `"cpu"`, `"cuda:0"`, the UUID of a GPU. Else all GPUs, or the CPU where there are none.
    pub fn devices(mut self, devices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.devices = Some(devices.into_iter().map(Into::into).collect());
        self
    }

    /// A key of `[models.model]` or of its stage `[stages.model]`, as a workflow file has them, such as `"models.model.threads"`.
    pub fn set(mut self, key: impl Into<String>, value: impl Into<SettingValue>) -> Self {
        self.set.push((key.into(), value.into()));
        self
    }

    /// Starts it. Returns once a worker has loaded the model.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing runs then.
    pub async fn start(self) -> Result<Model, StartError> {
        let plan = move || -> BoxFuture<'static, Result<PlannedFlow, StartError>> {
            let builder = self.clone();
            Box::pin(blocking(move || plan_flow(&builder.orchestra, builder.plan()?, builder.queue)))
        };
        Ok(Model(Served::start(plan).await?))
    }

    /// Plans the stage `model`, between a source of its inputs and a sink of its outputs.
    fn plan(&self) -> Result<Plan, StartError> {
        let path = std::path::absolute(&self.file).map_err(StartError::options)?;
        let shown = path.display();
        let file = orchestra_plan::read_model(&path);
        let file = file.map_err(|error| StartError::Options(format!("model `{shown}`: {error}")))?;
        let is_fed = |name: &str| self.constants.iter().all(|(constant, _)| constant != name);
        let texts = file.signature.text_inputs.iter().filter(|text| is_fed(&text.name));
        let texts = texts.map(|text| {
            let ty = match text.n_texts() {
                1 => "text".to_owned(),
                n => format!("text[{n}]"),
            };
            (text.name.as_str(), ty)
        });
        let numbers = file.signature.inputs.iter().filter(|input| is_fed(&input.name));
        let numbers = numbers.map(|input| self.column(input));
        let inputs: Vec<(&str, String)> = numbers.chain(texts.map(Ok)).collect::<Result<_, _>>()?;
        if let Some((name, _)) = self.shapes.iter().find(|(name, _)| inputs.iter().all(|(of, _)| of != name))
        {
            let names = inputs.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("`, `");
            let what =
                format!("model `{shown}` has no input `{name}`, which `shape` names; inputs: `{names}`");
            return Err(StartError::Options(what));
        }
        let utf8 = path.to_str().ok_or_else(|| StartError::Options(format!("`{shown}` is no UTF-8")))?;
        let (mut workflow, model) = match self.base.clone() {
            Some(base) => base,
            None => {
                let name = format!("service of {}", path.file_name().unwrap_or_default().to_string_lossy());
                let workflow = Workflow::in_memory(path.with_file_name(name), String::new());
                let table = Table::of([("path", utf8.into())]);
                (workflow, ModelTables { table, ..ModelTables::default() })
            }
        };
        if self.devices.is_some() {
            workflow.options.devices.clone_from(&self.devices);
        }
        for (key, value) in &self.set {
            workflow = workflow.set(key, value.clone());
        }
        for (input, value) in &self.constants {
            // As a table, so that a text is no name of a stage.
            workflow = workflow.set(format!("stages.model.inputs.{}.value", toml_key(input)), value.clone());
        }
        self.orchestra.plan_tables(tables(model, &inputs), &workflow)
    }

    /// An input of the model as requests have it: its name, and its type with every dimension of a row.
    fn column<'a>(&self, input: &'a TensorSpec) -> Result<(&'a str, String), StartError> {
        let name = &input.name;
        let said = self.shapes.iter().find(|(of, _)| of == name).map(|(_, row)| row.clone());
        let row = said.or_else(|| input.fixed_row()).ok_or_else(|| {
            let way = match self.base {
                Some(_) => format!(
                    "serve it as a graph, whose source says it: `kind = \"request\"` with `columns = {{ {} = \"{}[..]\" }}`",
                    toml_key(name),
                    input.dtype
                ),
                None => format!("`shape(\"{name}\", [..])` says it"),
            };
            StartError::Options(format!(
                "input `{name}` is {input}, and every dimension but the batch must be known: {way}"
            ))
        })?;
        Ok((name, format!("{}{row:?}", input.dtype)))
    }
}

/// The workflow of a model alone.
fn tables(model: ModelTables, inputs: &[(&str, String)]) -> Table {
    let table = |entries: Vec<(&str, Toml)>| Toml::from(Table::of(entries));
    let columns = inputs.iter().map(|(name, ty)| (*name, Toml::from(&**ty))).collect();
    let reads = inputs.iter().map(|(name, _)| (*name, Toml::from(&*format!("requests.{name}")))).collect();
    let stage = vec![("kind", "infer".into()), ("model", "model".into()), ("inputs", table(reads))];
    let named = |name, entries| table(vec![(name, table(entries))]);
    let mut own = Table::of([
        ("version", Toml::Integer(1)),
        ("sources", named("requests", vec![("kind", "request".into()), ("columns", table(columns))])),
        ("models", table(vec![("model", model.table.into())])),
        ("stages", named("model", stage)),
        ("sinks", named("answers", vec![("kind", "reply".into()), ("from", "model".into())])),
    ]);
    own.entries.extend(model.shared.entries);
    own
}

/// A model that answers requests. Clones share it; dropping the last one ends its workers.
///
/// Requests of many tasks share batches. A worker that dies costs none of them: its rows run again elsewhere, and a row that kills workers fails alone.
#[derive(Clone)]
pub struct Model(Arc<Served<ServedModel>>);

/// One tree of actors of a model.
pub(crate) struct ServedModel {
    flow: RequestFlow,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
}

impl Answers for ServedModel {
    fn of(flow: RequestFlow) -> Self {
        let plan = flow.plan();
        let (id, batch) = plan.batch_stages().next().expect("it was planned with one");
        let mut outputs: Vec<_> = plan.stages[id.index()].gives.0.iter().map(TensorInfo::of).collect();
        for output in &batch.outputs {
            let info = outputs.iter_mut().find(|info: &&mut TensorInfo| info.name == output.tensor.name);
            if let (Some(info), Some(row)) = (info, &output.texts) {
                info.row = row.iter().copied().map(Some).collect();
            }
        }
        let mut inputs: Vec<_> = plan.sources[0].gives.0.iter().map(TensorInfo::of).collect();
        for texts in &plan.models[batch.model.index()].text_inputs {
            if let Some(info) = inputs.iter_mut().find(|info| info.name == texts.name && texts.n_texts() != 1)
            {
                info.row = texts.row.iter().map(|dim| dim.fixed()).collect();
            }
        }
        Self { inputs, outputs, flow }
    }

    fn flow(&self) -> &RequestFlow {
        &self.flow
    }
}

/// A request that is being made. Awaiting it sends it.
#[must_use = "nothing is asked until it is awaited"]
pub struct InferRequest<'a> {
    model: &'a Model,
    name: String,
    inputs: Tensors,
    terms: Terms,
}

impl InferRequest<'_> {
    /// As logs and traces call its rows.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    request_settings!();
}

impl<'a> IntoFuture for InferRequest<'a> {
    type Output = Result<Tensors, RequestError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { model, name, inputs, terms } = self;
        Box::pin(async move {
            let (name, inputs) = (&*name, &inputs);
            model.0.ask(|served| async move { served.infer(name, inputs, terms).await }).await
        })
    }
}

impl Model {
    /// Runs the rows of these tensors, batched with those of other requests, and gives the outputs of the same rows in the same order. The first dimension of
    /// each tensor counts its rows. Of a model with one input a [`Tensor`] without a name will do.
    ///
    /// May be called from many tasks at once. Dropping the future withdraws the rows that no worker has yet.
    pub fn infer(&self, inputs: impl Into<Tensors>) -> InferRequest<'_> {
        InferRequest { model: self, name: String::new(), inputs: inputs.into(), terms: Terms::default() }
    }

    /// What it takes, in the order of the model file.
    #[must_use]
    pub fn inputs(&self) -> Vec<TensorInfo> {
        self.0.current().inputs.clone()
    }

    /// What it gives.
    #[must_use]
    pub fn outputs(&self) -> Vec<TensorInfo> {
        self.0.current().outputs.clone()
    }

    /// The most rows that it runs at once. A request may have more.
    #[must_use]
    pub fn max_batch(&self) -> usize {
        let current = self.0.current();
        let batch = current.flow.plan().batch_stages().next();
        batch.map_or(1, |(_, batch)| batch.max_batch)
    }

    served_methods!();
}

impl ServedModel {
    async fn infer(&self, name: &str, inputs: &Tensors, terms: Terms) -> Result<Tensors, RequestError> {
        let rows = TensorRows(self.check(inputs)?);
        let admitted = self.flow.admit(terms.begin()).await?;
        let mut pieces = admitted.in_time(admitted.rows(name, &rows)).await?;
        pieces.sort_unstable_by_key(|piece| piece.first);
        debug_assert_eq!(pieces.iter().map(|piece| piece.count).sum::<usize>(), rows.count());
        let mut columns: Vec<_> = pieces.into_iter().map(|piece| piece.columns.into_iter()).collect();
        let output = |info: &TensorInfo| {
            let pieces = columns.iter_mut().filter_map(Iterator::next).collect();
            Ok((info.name.clone(), stacked(info, rows.count(), pieces)?))
        };
        self.outputs.iter().map(output).collect()
    }

    /// The tensors in the order of the inputs, if they match them.
    fn check<'a>(&self, tensors: &'a Tensors) -> Result<Vec<&'a Tensor>, RequestError> {
        let names = || self.inputs.iter().map(|input| &*input.name).collect::<Vec<_>>().join("`, `");
        let wrong = |what: String| Err(RequestError::Input(what));
        if let Some((name, _)) = tensors.iter().find(|(name, _)| {
            let is_only = name.is_empty() && self.inputs.len() == 1 && tensors.len() == 1;
            !is_only && self.inputs.iter().all(|input| input.name != *name)
        }) {
            return wrong(format!("the model has no input `{name}`; inputs: `{}`", names()));
        }
        if tensors.len() > self.inputs.len() {
            return wrong(format!(
                "there are {} tensors, and the model takes `{}` once each",
                tensors.len(),
                names()
            ));
        }
        let mut ordered = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let Some(tensor) = tensors.get(&input.name).or_else(|| tensors.get("")) else {
                return wrong(format!("input `{}` is missing; the model takes `{}`", input.name, names()));
            };
            ordered.push(tensor);
        }
        let rows = ordered.first().map_or(0, |tensor| tensor.n_rows());
        for (tensor, input) in ordered.iter().zip(&self.inputs) {
            let row = tensor.shape().get(1..).unwrap_or_default();
            let fits =
                tensor.dtype() == input.dtype && row.iter().copied().map(Some).eq(input.row.iter().copied());
            if !fits || rows == 0 || tensor.n_rows() != rows {
                return wrong(format!(
                    "input `{}` is {} {:?}, and the model takes {} with at least 1 row, as many for every input",
                    input.name,
                    tensor.type_name(),
                    tensor.shape(),
                    input,
                ));
            }
        }
        Ok(ordered)
    }
}

/// The rows of a request, whose tensors match the inputs.
struct TensorRows<'a>(Vec<&'a Tensor>);

impl RequestRows for TensorRows<'_> {
    fn count(&self) -> usize {
        self.0.first().map_or(0, |tensor| tensor.n_rows())
    }

    fn write(&self, column: usize, rows: Range<usize>, to: &mut [u8]) {
        to.copy_from_slice(self.0[column].rows(rows));
    }

    fn row(&self, row: usize) -> OwnedRow {
        self.0.iter().map(|tensor| tensor.owned_row(row)).collect()
    }
}

/// An output of `n` rows, of which each piece has some.
fn stacked(info: &TensorInfo, n: usize, pieces: Vec<CopiedOutput>) -> Result<Tensor, RequestError> {
    let mut pieces = pieces.into_iter();
    let (dtype, row, first) = match pieces.next().expect("a request has rows") {
        CopiedOutput::Tensor { dtype, row, data } => (dtype, row, data),
        CopiedOutput::Texts(mut texts) => {
            for piece in pieces {
                if let CopiedOutput::Texts(more) = piece {
                    texts.extend(more);
                }
            }
            let row = info.row.iter().flatten().copied();
            let shape: Vec<usize> = [n].into_iter().chain(row).collect();
            let other = vec![texts.len() / n];
            return Tensor::texts(shape, texts).map_err(|_| RequestError::Ragged {
                output: info.name.clone(),
                first: info.row.iter().flatten().copied().collect(),
                other,
            });
        }
    };
    let mut all = vec![first];
    for piece in pieces {
        match piece {
            CopiedOutput::Tensor { row: other, data, .. } if other == row => all.push(data),
            CopiedOutput::Tensor { row: other, .. } => {
                return Err(RequestError::Ragged { output: info.name.clone(), first: row, other });
            }
            CopiedOutput::Texts(_) => unreachable!("an output has one type"),
        }
    }
    Ok(match &all[..] {
        [one] => Tensor::of_aligned(dtype, n, &row, one.clone()),
        pieces => Tensor::of_rows(dtype, n, &row, &pieces.iter().map(|piece| &piece[..]).collect::<Vec<_>>()),
    })
}
