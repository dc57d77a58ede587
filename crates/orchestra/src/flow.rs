//! A graph that answers requests, as a host sees it: plans a workflow file, starts it in memory, and gives records with their types.

use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use orchestra_core::collect::Part;
use orchestra_core::data::{Column, ItemError, OwnedRow, OwnedValue, Schema};
use orchestra_core::row_bytes::StoredValue;
use orchestra_kinds::{read_reply, reply_json};
use orchestra_machine::Machine;
use orchestra_onnx::library::Silent;
use orchestra_plan::{Json, Plan, PlanOptions, RenderStyle};
use orchestra_runtime::{ProcessError, ReplyRecord, Request, RequestContent, StartFlowError};
use thiserror::Error;

use crate::{StartError, StartOptions, plan_file_with, run_options, runtime_library};

/// How a graph is started that answers requests.
#[derive(Clone)]
pub struct FlowOptions {
    /// What is changed about the workflow file.
    pub plan: PlanOptions,
    /// Workers, loaders and their libraries. `earlier` has no effect, because nothing is written. A tracer is told of workers and batches, and not of
    /// requests.
    pub start: StartOptions,
    /// Requests that may be without an answer at once. One more is refused with [`ProcessError::Overloaded`].
    pub most_requests: usize,
}

impl Default for FlowOptions {
    fn default() -> Self {
        Self { plan: PlanOptions::default(), start: StartOptions::default(), most_requests: 1024 }
    }
}

/// Why a graph does not answer requests.
#[derive(Debug, Error)]
pub enum FlowError {
    /// The file cannot be planned, with all that is wrong with it.
    #[error("{0}")]
    Plan(String),
    /// What its workers need is not there.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It takes no requests, or a worker cannot be started.
    #[error(transparent)]
    Flow(#[from] StartFlowError),
    /// The file cannot be read, or a thread cannot be started.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What is asked about.
#[derive(Debug, Clone)]
pub struct Item(Request);

impl Item {
    /// The bytes of a file, for a source of kind `request` without `columns`.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self(Request { name: String::new(), content: RequestContent::File(bytes.into()) })
    }

    /// The columns of a source of kind `request`, in their order.
    #[must_use]
    pub fn row(values: Vec<OwnedValue>) -> Self {
        Self(Request { name: String::new(), content: RequestContent::Row(values) })
    }

    /// As failures and logs call it.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }
}

/// A record of an item.
#[derive(Debug, Clone)]
pub struct Record {
    of: Arc<ReplySink>,
    bytes: Bytes,
}

#[derive(Debug)]
struct ReplySink {
    name: String,
    schema: Schema,
}

impl Record {
    /// The sink that it came to.
    pub fn sink(&self) -> &str {
        &self.of.name
    }

    /// The columns of [`Record::values`].
    pub fn columns(&self) -> &[Column] {
        &self.of.schema.0
    }

    /// As the encoder of the sink has made it: of a kind of your own, whatever it writes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its values with their types, where they lie.
    ///
    /// # Errors
    /// The sink is of another kind than `reply`.
    pub fn values(&self) -> Result<Vec<StoredValue<'_>>, ItemError> {
        Ok(read_reply(&self.bytes)?.1)
    }

    /// What a sink of kind `jsonl` writes as its `result`.
    ///
    /// # Errors
    /// As [`Record::values`].
    pub fn json(&self) -> Result<Json, ItemError> {
        let row: OwnedRow = self.values()?.into_iter().map(StoredValue::into_value).collect();
        reply_json(&self.of.schema, &row).map_err(|error| ItemError::result(error.to_string()))
    }

    /// Which part of its item it is of, the outermost split first.
    fn part(&self) -> Vec<Part> {
        read_reply(&self.bytes).map(|(part, _)| part).unwrap_or_default()
    }
}

/// A graph that answers requests. Dropping it kills its processes.
pub struct Flow {
    flow: orchestra_runtime::RequestFlow,
    /// In the order of the plan.
    sinks: Vec<Arc<ReplySink>>,
}

/// Plans a workflow file whose items are requests, and starts it. Returns once each model has a worker.
///
/// Its source has `kind = "request"` and its sinks have `kind = "reply"`. A process that dies costs no request: its items are taken on by others, and an
/// item that kills processes fails alone. Nothing is written.
///
/// ```no_run
/// # async fn service(jpeg: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
/// use orchestra::{FlowOptions, Item};
///
/// let machine = orchestra::usable_machine(None, false);
/// let flow = orchestra::flow("read.toml".as_ref(), &machine, FlowOptions::default()).await?;
/// let in_time = Some(std::time::Duration::from_millis(200));
/// for record in flow.process(Item::bytes(jpeg), in_time).await? {
///     println!("{}", record.json().unwrap());
/// }
/// flow.close().await;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`FlowError`]. Nothing runs then.
pub async fn flow(file: &Path, machine: &Machine, options: FlowOptions) -> Result<Flow, FlowError> {
    let (file, machine) = (file.to_owned(), machine.clone());
    let FlowOptions { plan, start, most_requests } = options;
    let of = start.clone();
    let planned = tokio::task::spawn_blocking(move || {
        let (plan, diagnostics) = plan_file_with(&file, &plan, &machine, crate::kinds(), &of)?;
        plan.ok_or_else(|| FlowError::Plan(diagnostics.render(RenderStyle::Plain)))
    });
    let plan = planned.await.map_err(io::Error::other)??;
    flow_of(plan, start, most_requests).await
}

/// As [`flow`], of a plan, which may have kinds of your own.
///
/// # Errors
/// See [`FlowError`]. Nothing runs then.
pub async fn flow_of(plan: Plan, start: StartOptions, most_requests: usize) -> Result<Flow, FlowError> {
    let sinks = plan.sinks.iter().map(|sink| {
        let column = |(read, name): (&orchestra_plan::ColumnRef, &String)| Column {
            name: name.clone(),
            ty: plan.column(*read).ty.clone(),
        };
        let schema = Schema(sink.reads.iter().zip(&sink.columns).map(column).collect());
        Arc::new(ReplySink { name: sink.name.clone(), schema })
    });
    let sinks = sinks.collect();
    Ok(Flow { flow: start_flow(plan, start, most_requests).await?, sinks })
}

/// Finds what the workers need, and starts the flow.
pub(crate) async fn start_flow(
    plan: Plan,
    start: StartOptions,
    most_requests: usize,
) -> Result<orchestra_runtime::RequestFlow, FlowError> {
    let blocking = tokio::task::spawn_blocking(move || {
        let (library, offline) = (start.ort_library.clone(), start.offline);
        let library = runtime_library(&plan, library, offline, &mut Silent).map_err(StartError::from)?;
        let run = run_options(start, &plan, library.as_ref())?;
        Ok::<_, FlowError>((plan, run))
    });
    let (plan, run) = blocking.await.map_err(io::Error::other)??;
    let options = orchestra_runtime::RequestFlowOptions { run, most_requests };
    Ok(orchestra_runtime::RequestFlow::start(plan, options).await?)
}

/// Its plan, counters and workers, how many items wait, and its end.
impl Deref for Flow {
    type Target = orchestra_runtime::RequestFlow;

    fn deref(&self) -> &Self::Target {
        &self.flow
    }
}

impl Flow {
    /// Takes one item through the graph, and gives its records: in the order of the sinks, and of one sink in that of the parts of the item. `None`:
    /// it may take as long as it does. May be called from many tasks at once.
    ///
    /// Dropping the future withdraws the request: what no process has is done no more, and what one has is finished and discarded.
    ///
    /// # Errors
    /// See [`ProcessError`].
    pub async fn process(&self, item: Item, within: Option<Duration>) -> Result<Vec<Record>, ProcessError> {
        let deadline = within.map(|within| tokio::time::Instant::now() + within);
        let records = self.flow.process(item.0, deadline).await?;
        let record = |ReplyRecord { sink, bytes }: ReplyRecord| {
            let record = Record { of: Arc::clone(&self.sinks[sink.index()]), bytes };
            ((sink, record.part()), record)
        };
        let mut records: Vec<_> = records.into_iter().map(record).collect();
        records.sort_by_cached_key(|((sink, part), _)| {
            (*sink, part.iter().map(|part| part.index).collect::<Vec<_>>())
        });
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }

    /// Kills the processes and returns when all of them have ended.
    pub async fn close(self) {
        self.flow.close().await;
    }
}
