//! A graph that answers requests, as a program sees it: plans a workflow, starts it in memory, and gives records with their types.

use std::future::IntoFuture;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use orchestra_core::collect::Part;
use orchestra_core::data::{Column, ItemError, OwnedRow, OwnedValue, Schema};
use orchestra_core::row_bytes::StoredValue;
use orchestra_kinds::{read_reply, reply_json};
use orchestra_launch::run_options;
use orchestra_plan::{Json, Plan};
use orchestra_runtime::{ReplyRecord, Request, RequestContent, RequestFlow, RequestFlowOptions};

use crate::environment::{Orchestra, blocking};
use crate::error::{RequestError, StartError};
use crate::run::Status;
use crate::served::{Answers, FlowTree, PlannedFlow, Served, Terms, request_settings, served_methods};
use crate::workflow::Workflow;

/// Requests that may be without an answer, where nothing is said.
pub(crate) const QUEUE: usize = 1024;

/// What is asked about.
#[derive(Debug, Clone)]
pub struct Item {
    name: String,
    content: ItemContent,
}

#[derive(Debug, Clone)]
enum ItemContent {
    File(Bytes),
    Columns(Vec<(String, OwnedValue)>),
}

impl Item {
    /// The bytes of a file, for a source of kind `request` without `columns`.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self { name: String::new(), content: ItemContent::File(bytes.into()) }
    }

    /// The columns of a source of kind `request`, by their names. A [`Tensor`](crate::Tensor) is one of a single item: its shape has no dimension for rows.
    pub fn columns<N: Into<String>>(columns: impl IntoIterator<Item = (N, OwnedValue)>) -> Self {
        let columns = columns.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Self { name: String::new(), content: ItemContent::Columns(columns) }
    }

    /// As failures and logs call it.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
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

/// How a graph is started that answers requests.
#[must_use]
#[derive(Clone)]
pub struct FlowBuilder {
    orchestra: Orchestra,
    workflow: Workflow,
    queue: usize,
}

impl Orchestra {
    /// A graph that answers requests of this program: its source has `kind = "request"`, its sinks have `kind = "reply"`.
    pub fn flow(&self, workflow: Workflow) -> FlowBuilder {
        FlowBuilder::new(self.clone(), workflow)
    }
}

impl FlowBuilder {
    pub(crate) fn new(orchestra: Orchestra, workflow: Workflow) -> Self {
        Self { orchestra, workflow, queue: QUEUE }
    }

    /// How many requests may be without an answer, 1024 where nothing is said. At least 1. One more is refused, or waits: see [`ProcessRequest::wait`].
    pub fn queue(mut self, most: usize) -> Self {
        self.queue = most;
        self
    }

    /// Starts it. Returns once each model has a worker.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing runs then.
    pub async fn start(self) -> Result<Flow, StartError> {
        let Self { orchestra, workflow, queue } = self;
        let plan = move || -> BoxFuture<'static, Result<PlannedFlow, StartError>> {
            let (orchestra, workflow) = (orchestra.clone(), workflow.clone());
            Box::pin(blocking(move || {
                let workflow = workflow.read_again().map_err(StartError::options)?;
                plan_flow(&orchestra, orchestra.plan(&workflow, None)?, queue)
            }))
        };
        Ok(Flow(Served::start(plan).await?))
    }
}

/// A graph that answers requests. Clones share it; dropping the last one kills its processes. Nothing is written.
///
/// A process that dies costs no request: its items are taken on by others, and an item that kills processes fails alone.
#[derive(Clone)]
pub struct Flow(Arc<Served<ServedGraph>>);

/// One tree of actors of a flow.
pub(crate) struct ServedGraph {
    flow: RequestFlow,
    /// In the order of the plan.
    sinks: Vec<Arc<ReplySink>>,
}

impl Answers for ServedGraph {
    fn of(flow: RequestFlow) -> Self {
        let plan = flow.plan();
        let sinks = plan.sinks.iter().map(|sink| {
            let column = |(read, name): (&orchestra_plan::ColumnRef, &String)| Column {
                name: name.clone(),
                ty: plan.column(*read).ty.clone(),
            };
            let schema = Schema(sink.reads.iter().zip(&sink.columns).map(column).collect());
            Arc::new(ReplySink { name: sink.name.clone(), schema })
        });
        let sinks = sinks.collect();
        Self { flow, sinks }
    }

    fn flow(&self) -> &RequestFlow {
        &self.flow
    }
}

/// Finds what the workers need. Blocks.
pub(crate) fn plan_flow(
    orchestra: &Orchestra,
    plan: Plan,
    most_requests: usize,
) -> Result<PlannedFlow, StartError> {
    if most_requests == 0 {
        return Err(StartError::options(
            "`queue(0)` leaves room for no request; `queue(1)` takes one at a time",
        ));
    }
    let start = orchestra.start_options();
    let library = start.library(&plan)?;
    let run = run_options(start, &plan, library.as_ref())?;
    Ok(PlannedFlow { plan, options: RequestFlowOptions { run, most_requests } })
}

impl ServedGraph {
    /// The item as the source takes it, its columns in their order.
    fn request(&self, item: &Item) -> Result<Request, RequestError> {
        let content = match &item.content {
            ItemContent::File(bytes) => RequestContent::File(bytes.clone()),
            ItemContent::Columns(columns) => {
                let source = &self.flow.plan().sources[0];
                let of = |column: &Column| columns.iter().find(|(name, _)| *name == column.name);
                let row: Option<Vec<OwnedValue>> = source
                    .gives
                    .0
                    .iter()
                    .map(|column| Some(named(of(column)?.1.clone(), &column.name)))
                    .collect();
                let row = row.filter(|row| row.len() == columns.len()).ok_or_else(|| {
                    let names: Vec<&str> = columns.iter().map(|(name, _)| &**name).collect();
                    let (has, source, takes) = (names.join("`, `"), &source.name, &source.gives);
                    RequestError::Input(format!(
                        "the item has the columns `{has}`, and source `{source}` takes {takes}"
                    ))
                })?;
                RequestContent::Row(row)
            }
        };
        Ok(Request { name: item.name.clone(), content })
    }

    async fn process(&self, item: &Item, terms: Terms) -> Result<Vec<Record>, RequestError> {
        let records = self.flow.process(&self.request(item)?, terms.begin()).await?;
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
}

/// Values know the name of their column.
fn named(value: OwnedValue, name: &str) -> OwnedValue {
    match value {
        OwnedValue::Tensor { dtype, shape, data, .. } => {
            OwnedValue::Tensor { name: name.into(), dtype, shape, data }
        }
        OwnedValue::Missing(_) => OwnedValue::Missing(name.into()),
        value => value,
    }
}

/// A request that is being made. Awaiting it sends it.
#[must_use = "nothing is asked until it is awaited"]
pub struct ProcessRequest<'a> {
    flow: &'a Flow,
    item: Item,
    terms: Terms,
}

impl ProcessRequest<'_> {
    request_settings!();
}

impl<'a> IntoFuture for ProcessRequest<'a> {
    type Output = Result<Vec<Record>, RequestError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { flow, item, terms } = self;
        Box::pin(async move {
            let item = &item;
            flow.0.ask(|graph| async move { graph.process(item, terms).await }).await
        })
    }
}

impl Flow {
    /// Takes one item through the graph, and gives its records: in the order of the sinks, and of one sink in that of the parts of the item. May be
    /// called from many tasks at once. Dropping the future withdraws the request: what no process has is done no more, and what one has is finished
    /// and discarded.
    pub fn process(&self, item: Item) -> ProcessRequest<'_> {
        ProcessRequest { flow: self, item, terms: Terms::default() }
    }

    /// The columns of a request. One column of pictures: it is the bytes of a file.
    #[must_use]
    pub fn inputs(&self) -> Vec<Column> {
        self.0.current().flow.plan().sources[0].gives.0.clone()
    }

    /// The sinks by name, with the columns of their records.
    #[must_use]
    pub fn outputs(&self) -> Vec<(String, Vec<Column>)> {
        let sinks = &self.0.current().sinks;
        sinks.iter().map(|sink| (sink.name.clone(), sink.schema.0.clone())).collect()
    }

    served_methods!();
}
