//! What is served, by name: started, replaced, ended and counted. One version of each, `1`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use orchestra::{Flow, FlowBuilder, Model, ModelBuilder, StartError, Status, Tensors};

use crate::call::{Call, NamedData, WantedOutput};
use crate::datatype::Datatype;
use crate::error::{ErrorKind, ServeError};
use crate::graph;
use crate::protocol::{
    ConfigInput, ConfigOutput, InferStatistics, ModelConfig, ModelIndex, ModelMetadata, ModelStatistics,
    StatisticDuration, Statistics, TensorMetadata,
};
use crate::trace;

/// The one version of everything.
pub const VERSION: &str = "1";

/// A model or a graph of the file.
pub struct Entry {
    pub name: String,
    starts: Starts,
    state: Mutex<State>,
    /// One load or unload at a time.
    turn: tokio::sync::Mutex<()>,
    counts: RequestCounts,
}

pub enum Starts {
    Model(Box<ModelBuilder>),
    Graph(Box<FlowBuilder>),
}

enum State {
    Ready(Arc<LoadedEntry>),
    /// Why it is not.
    Unavailable(String),
}

/// What runs, and what it takes and gives.
struct LoadedEntry {
    served: ModelOrGraph,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
}

enum ModelOrGraph {
    Model(Model),
    Graph(Flow),
}

#[derive(Default)]
struct RequestCounts {
    done: TimedCount,
    failed: TimedCount,
    items: AtomicU64,
    last: AtomicU64,
}

#[derive(Default)]
struct TimedCount {
    count: AtomicU64,
    ns: AtomicU64,
}

impl TimedCount {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn read(&self) -> StatisticDuration {
        StatisticDuration { count: self.count.load(Ordering::Relaxed), ns: self.ns.load(Ordering::Relaxed) }
    }
}

impl Entry {
    pub fn new(name: String, starts: Starts) -> Self {
        let state = Mutex::new(State::Unavailable("it is not loaded yet".to_owned()));
        Self { name, starts, state, turn: tokio::sync::Mutex::default(), counts: RequestCounts::default() }
    }

    fn loaded(&self) -> Result<Arc<LoadedEntry>, ServeError> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ready(loaded) => Ok(Arc::clone(loaded)),
            State::Unavailable(why) => Err(ServeError::new(
                ErrorKind::Unavailable,
                format!("`{}` is not available: {why}", self.name),
            )),
        }
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Starts it; one that runs is replaced by a new one, which reads its file again, and no request fails for that.
    pub async fn load(&self) -> Result<(), StartError> {
        let _turn = self.turn.lock().await;
        let started = match (self.loaded(), &self.starts) {
            (Ok(loaded), _) => return loaded.served.reload().await.map(|served| self.put(served)),
            (Err(_), Starts::Model(builder)) => (**builder).clone().start().await.map(ModelOrGraph::Model),
            (Err(_), Starts::Graph(builder)) => (**builder).clone().start().await.map(ModelOrGraph::Graph),
        };
        started
            .map(|served| self.put(served))
            .inspect_err(|error| self.set(State::Unavailable(error.to_string())))
    }

    /// As [`Self::load`], for a client, who may bring parameters: a configuration or files that are to be used instead.
    pub async fn load_as_it_is(&self, parameters: impl Iterator<Item = &String>) -> Result<(), ServeError> {
        let parameters: Vec<&str> = parameters.map(String::as_str).collect();
        if !parameters.is_empty() {
            return Err(ServeError::invalid(format!(
                "failed to load `{}`: the workflow file says how; leave out the parameters `{}`",
                self.name,
                parameters.join("`, `")
            )));
        }
        Ok(self.load().await?)
    }

    fn put(&self, served: ModelOrGraph) {
        let (inputs, outputs) = served.tensors();
        self.set(State::Ready(Arc::new(LoadedEntry { served, inputs, outputs })));
    }

    /// Takes no more requests, answers those that there are, and ends its processes.
    pub async fn unload(&self, why: &str) {
        let _turn = self.turn.lock().await;
        let loaded = self.loaded();
        self.set(State::Unavailable(why.to_owned()));
        if let Ok(loaded) = loaded {
            loaded.served.drain().await;
        }
    }

    pub fn is_ready(&self) -> bool {
        self.loaded().is_ok()
    }

    pub fn index(&self) -> ModelIndex {
        let (state, reason) = match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ready(_) => ("READY", String::new()),
            State::Unavailable(why) => ("UNAVAILABLE", why.clone()),
        };
        ModelIndex { name: self.name.clone(), version: VERSION.to_owned(), state: state.to_owned(), reason }
    }

    pub fn metadata(&self) -> Result<ModelMetadata, ServeError> {
        let loaded = self.loaded()?;
        Ok(ModelMetadata {
            name: self.name.clone(),
            versions: vec![VERSION.to_owned()],
            platform: loaded.served.platform().to_owned(),
            inputs: loaded.inputs.clone(),
            outputs: loaded.outputs.clone(),
        })
    }

    pub fn config(&self) -> Result<ModelConfig, ServeError> {
        let loaded = self.loaded()?;
        // That of a model counts its rows beside the shape.
        let (max_batch_size, skip) = match &loaded.served {
            ModelOrGraph::Model(model) => (i32::try_from(model.max_batch()).unwrap_or(i32::MAX), 1),
            ModelOrGraph::Graph(_) => (0, 0),
        };
        let of = |tensor: &TensorMetadata| {
            let datatype = Datatype::parse(&tensor.datatype, &tensor.name).map_or(0, Datatype::number);
            let dims = tensor.shape[skip..].to_vec();
            (tensor.name.clone(), datatype, if dims.is_empty() { vec![1] } else { dims })
        };
        let (input, output) = (loaded.inputs.iter().map(of), loaded.outputs.iter().map(of));
        Ok(ModelConfig {
            name: self.name.clone(),
            platform: loaded.served.platform().to_owned(),
            backend: "orchestra".to_owned(),
            max_batch_size,
            input: input.map(|(name, data_type, dims)| ConfigInput { name, data_type, dims }).collect(),
            output: output.map(|(name, data_type, dims)| ConfigOutput { name, data_type, dims }).collect(),
        })
    }

    /// `None` while it is not loaded.
    pub fn status(&self) -> Option<Status> {
        self.loaded().ok().map(|loaded| loaded.served.status())
    }

    pub fn statistics(&self) -> ModelStatistics {
        let batches = self.loaded().map_or(0, |loaded| loaded.served.batches());
        ModelStatistics {
            name: self.name.clone(),
            version: VERSION.to_owned(),
            last_inference: self.counts.last.load(Ordering::Relaxed),
            inference_count: self.counts.items.load(Ordering::Relaxed),
            execution_count: batches,
            inference_stats: Some(InferStatistics {
                success: Some(self.counts.done.read()),
                fail: Some(self.counts.failed.read()),
            }),
        }
    }

    /// Answers a request with the outputs in the order in which it asks for them, and counts it.
    pub async fn infer(&self, call: Call) -> Result<Vec<NamedData>, ServeError> {
        let began = Instant::now();
        let loaded = self.loaded()?;
        let outputs = &loaded.outputs;
        let is_given = |wanted: &&WantedOutput| outputs.iter().any(|output| output.name == wanted.name);
        if let Some(unknown) = call.outputs.iter().find(|wanted| !is_given(wanted)) {
            return Err(no_output(&unknown.name, outputs));
        }
        let (items, answer) = match &loaded.served {
            ModelOrGraph::Model(model) => infer(model, call).await,
            ModelOrGraph::Graph(graph) => process(graph, call, outputs).await.map(|answer| (1, answer)),
        }
        .inspect_err(|_| self.counts.failed.add(began.elapsed()))?;
        self.counts.done.add(began.elapsed());
        self.counts.items.fetch_add(items, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.counts.last.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(answer)
    }
}

impl Statistics {
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Arc<Entry>>) -> Self {
        Self { model_stats: entries.into_iter().map(|entry| entry.statistics()).collect() }
    }
}

fn no_output(name: &str, outputs: &[TensorMetadata]) -> ServeError {
    let names: Vec<&str> = outputs.iter().map(|output| &*output.name).collect();
    ServeError::invalid(format!("there is no output `{name}`; outputs: `{}`", names.join("`, `")))
}

impl ModelOrGraph {
    /// Gives itself, since it goes on as it was under another signature.
    async fn reload(&self) -> Result<Self, StartError> {
        match self {
            ModelOrGraph::Model(model) => model.reload().await.map(|()| ModelOrGraph::Model(model.clone())),
            ModelOrGraph::Graph(flow) => flow.reload().await.map(|()| ModelOrGraph::Graph(flow.clone())),
        }
    }

    async fn drain(&self) {
        match self {
            ModelOrGraph::Model(model) => model.drain().await,
            ModelOrGraph::Graph(flow) => flow.drain().await,
        }
    }

    fn platform(&self) -> &'static str {
        match self {
            ModelOrGraph::Model(_) => "onnxruntime_onnx",
            ModelOrGraph::Graph(_) => "orchestra_graph",
        }
    }

    fn tensors(&self) -> (Vec<TensorMetadata>, Vec<TensorMetadata>) {
        match self {
            ModelOrGraph::Model(model) => {
                let of = |info: orchestra::TensorInfo| TensorMetadata {
                    name: info.name,
                    datatype: Datatype::of(info.dtype).name().to_owned(),
                    shape: std::iter::once(None)
                        .chain(info.row)
                        .map(|dim| dim.map_or(-1, |dim| dim as i64))
                        .collect(),
                };
                (model.inputs().into_iter().map(of).collect(), model.outputs().into_iter().map(of).collect())
            }
            ModelOrGraph::Graph(flow) => (graph::inputs(flow), graph::outputs(flow)),
        }
    }

    fn status(&self) -> Status {
        match self {
            ModelOrGraph::Model(model) => model.status(),
            ModelOrGraph::Graph(flow) => flow.status(),
        }
    }

    /// How many batches its workers have run.
    fn batches(&self) -> u64 {
        let status = self.status().json();
        let devices = status["devices"].as_array().into_iter().flatten();
        devices.filter_map(|device| device["batches"].as_u64()).sum()
    }
}

/// Runs the rows of a request. Gives how many, too.
async fn infer(model: &Model, call: Call) -> Result<(u64, Vec<NamedData>), ServeError> {
    let name = trace::name_of(&call);
    let Call { inputs, outputs, within, priority, .. } = call;
    let rows = inputs.first().and_then(|input| input.shape.first()).copied().unwrap_or(0);
    let named = |input: NamedData| Ok((input.name.clone(), input.into_tensor()?));
    let tensors: Tensors = inputs.into_iter().map(named).collect::<Result<_, ServeError>>()?;
    let mut request = model.infer(tensors).named(name).priority(priority);
    if let Some(within) = within {
        request = request.deadline(within);
    }
    let tensors = request.await?;
    let of = |wanted: &WantedOutput| {
        classified(NamedData::of_tensor(&wanted.name, &tensors[&*wanted.name]), wanted)
    };
    let outputs = match &outputs[..] {
        [] => tensors.iter().map(|(name, tensor)| NamedData::of_tensor(name, tensor)).collect(),
        wanted => wanted.iter().map(of).collect::<Result<_, _>>()?,
    };
    Ok((rows as u64, outputs))
}

async fn process(flow: &Flow, call: Call, all: &[TensorMetadata]) -> Result<Vec<NamedData>, ServeError> {
    let name = trace::name_of(&call);
    let Call { inputs, outputs, within, priority, .. } = call;
    let item = graph::item(flow, inputs)?.named(name);
    let mut request = flow.process(item).priority(priority);
    if let Some(within) = within {
        request = request.deadline(within);
    }
    let records = request.await?;
    let of = |wanted: &WantedOutput| classified(graph::output(&wanted.name, flow, &records)?, wanted);
    match &outputs[..] {
        [] => all.iter().map(|output| graph::output(&output.name, flow, &records)).collect(),
        wanted => wanted.iter().map(of).collect(),
    }
}

fn classified(output: NamedData, wanted: &WantedOutput) -> Result<NamedData, ServeError> {
    if wanted.classes == 0 { Ok(output) } else { output.classes(wanted.classes) }
}

/// All that is served.
pub type ServedEntries = Vec<Arc<Entry>>;
