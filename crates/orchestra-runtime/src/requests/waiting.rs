//! The requests of a flow that have no end yet, and whether the flow serves. It moves no item.
//!
//! Bound: requests are admitted up to a number, and each counts until its item has ended, also when the one who asked has gone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use orchestra_core::lineage::{Ending, Finished};
use orchestra_core::{Failure, ItemId, SinkId, SourceId, StageId, locked};
use tokio::sync::{oneshot, watch};

use super::admission::{Admission, Place};
use crate::account::stats::CommitCounts;
use crate::batch::outputs::CopiedOutput;
use crate::context::RunContext;
use crate::flow::chain::Chain;
use crate::flow::ticket::{RequestPayload, Ticket};
use crate::messages::{RecordTo, RequestOutputs, SinkRecord};
use crate::panics::caught;
use crate::trace::{EndedItems, MaybeFailed};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyRecord {
    pub sink: SinkId,
    /// As the encoder of the sink has made it.
    pub bytes: Bytes,
}

/// Rows of a request, one behind the other, and what their batch gave for them.
#[derive(Debug, Clone, PartialEq)]
pub struct RowOutputs {
    /// The first of them in the request.
    pub first: usize,
    pub count: usize,
    /// In the order of the outputs of the stage.
    pub columns: Vec<CopiedOutput>,
}

pub enum RequestEnd {
    Records(Vec<ReplyRecord>),
    Outputs(Vec<RowOutputs>),
    /// An item of it has failed, of which this is the place in the request.
    Failed(usize, Failure),
    /// Its pipeline fell over, and is built anew: it is to be asked again.
    Again,
}

#[derive(Clone, Default)]
pub struct FlowState {
    /// Each batch stage has had a worker.
    pub has_served: bool,
    /// What items of the source are taken through, while there is a pipeline.
    pub chain: Option<Arc<Chain>>,
    /// It has ended, for this reason.
    pub over: Option<String>,
}

pub struct Requests {
    pub context: Arc<RunContext>,
    pub source: SourceId,
    pub admission: Arc<Admission>,
    state: Mutex<WaitingRequests>,
    standing: watch::Sender<FlowState>,
}

type QueueKey = (Reverse<u8>, u64);

#[derive(Default)]
struct WaitingRequests {
    /// By the numbers of their first items.
    asked: HashMap<u64, WaitingRequest>,
    /// Those of them that no loader has yet: the highest priority first, then the lowest number.
    queue: BTreeMap<QueueKey, Ticket>,
    next: u64,
    /// Batch stages without a worker so far.
    unserved: BTreeSet<StageId>,
    /// Told when something is queued.
    news: Option<Box<dyn Fn() + Send + Sync>>,
    is_over: bool,
}

struct WaitingRequest {
    /// Its first item.
    ticket: Ticket,
    /// Items that have no end yet, and will have one.
    left: usize,
    outputs: Vec<RowOutputs>,
    /// `None`: the one who asked has gone, or has its answer.
    answer: Option<oneshot::Sender<RequestEnd>>,
    /// Where it stands in the queue until its source hands it out.
    queued_at: Option<QueueKey>,
    is_handed: bool,
    place: Arc<Place>,
}

/// A request that waits for its answer. Dropping it withdraws the request.
pub struct PendingRequest<'a> {
    requests: &'a Requests,
    /// Its first item.
    pub ticket: Ticket,
    /// Items that were not handed on: they have no end.
    pub left: usize,
    answer: oneshot::Receiver<RequestEnd>,
    end: Option<Option<RequestEnd>>,
}

impl PendingRequest<'_> {
    /// Waits for the answer, which [`PendingRequest::answered`] gives.
    pub async fn ended(&mut self) {
        if self.end.is_none() {
            self.end = Some((&mut self.answer).await.ok());
        }
    }

    /// `None`: the flow is over.
    pub async fn answered(mut self) -> Option<RequestEnd> {
        self.ended().await;
        self.end.take().flatten()
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.requests.withdraw(&self.ticket, self.left);
    }
}

impl Requests {
    pub fn new(context: &Arc<RunContext>, source: SourceId, most: usize) -> Self {
        let unserved = context.plan.batch_stages().map(|(stage, _)| stage).collect();
        Self {
            context: Arc::clone(context),
            source,
            admission: Admission::new(most),
            state: Mutex::new(WaitingRequests { unserved, ..WaitingRequests::default() }),
            standing: watch::Sender::default(),
        }
    }

    /// Items that have no end yet.
    pub fn n_waiting(&self) -> usize {
        locked(&self.state).asked.values().map(|asked| asked.left).sum()
    }

    /// Registers `n` items. Under the lock that `over` and `detach` take: nothing is registered behind them. `None`: `chain` takes nothing any more.
    fn register(
        &self,
        place: &Arc<Place>,
        chain: &Arc<Chain>,
        (n, name): (usize, &str),
        content: RequestPayload,
        then: impl FnOnce(&mut WaitingRequests, &Ticket),
    ) -> Option<PendingRequest<'_>> {
        let (sender, answer) = oneshot::channel();
        let mut waiting = locked(&self.state);
        let is_current = |standing: &FlowState| {
            standing.over.is_none() && standing.chain.as_ref().is_some_and(|now| Arc::ptr_eq(now, chain))
        };
        if !is_current(&self.standing.borrow()) {
            return None;
        }
        let id = ItemId { source: self.source, index: waiting.next };
        waiting.next += n as u64;
        let ticket = Ticket::of_request(id, n, name, content, self.context.tracer.is_on());
        let asked = WaitingRequest {
            ticket: ticket.clone(),
            left: n,
            outputs: Vec::new(),
            answer: Some(sender),
            queued_at: None,
            is_handed: false,
            place: Arc::clone(place),
        };
        waiting.asked.insert(id.index, asked);
        then(&mut waiting, &ticket);
        Some(PendingRequest { requests: self, ticket, left: n, answer, end: None })
    }

    /// An item that loaders take, by priority and in the order of these calls.
    pub fn queue(
        &self,
        place: &Arc<Place>,
        priority: u8,
        chain: &Arc<Chain>,
        name: &str,
        content: RequestPayload,
    ) -> Option<PendingRequest<'_>> {
        let mut pending = self.register(place, chain, (1, name), content, |waiting, ticket| {
            let key = (Reverse(priority), ticket.id().index);
            waiting.queue.insert(key, ticket.clone());
            if let Some(asked) = waiting.asked.get_mut(&key.1) {
                asked.queued_at = Some(key);
            }
            waiting.news.iter().for_each(|news| news());
        })?;
        pending.left = 0;
        Some(pending)
    }

    /// Items that the caller takes to their batch.
    pub fn direct(
        &self,
        place: &Arc<Place>,
        chain: &Arc<Chain>,
        (n, name): (usize, &str),
        content: RequestPayload,
    ) -> Option<PendingRequest<'_>> {
        self.register(place, chain, (n, name), content, |_, _| {})
    }

    /// The caller takes `n` more of them there.
    pub fn count_handed(&self, n: usize) {
        self.context.stats.handed.add(n as u64);
        self.context.stats.pipeline_of(self.source).handed.add(n as u64);
    }

    /// Up to now, what loaders have not taken.
    pub fn n_queued(&self) -> usize {
        locked(&self.state).queue.len()
    }

    pub fn next_queued(&self) -> Option<Ticket> {
        let mut waiting = locked(&self.state);
        let (_, ticket) = waiting.queue.pop_first()?;
        if let Some(asked) = waiting.asked.get_mut(&ticket.id().index) {
            asked.is_handed = true;
        }
        Some(ticket)
    }

    pub fn watch(&self, news: Box<dyn Fn() + Send + Sync>) {
        locked(&self.state).news = Some(news);
    }

    /// The one who asked has gone. What nothing else has is gone with it; what is under way ends where it comes to next.
    fn withdraw(&self, ticket: &Ticket, not_handed: usize) {
        let mut waiting = locked(&self.state);
        let Some(asked) = waiting.asked.get_mut(&ticket.id().index) else { return };
        ticket.withdraw();
        asked.answer = None;
        asked.left -= not_handed;
        let queued = asked.queued_at.filter(|_| !asked.is_handed);
        if asked.left == 0 || queued.is_some() {
            queued.map(|key| waiting.queue.remove(&key));
            waiting.asked.remove(&ticket.id().index);
        }
    }

    /// Notes these ends, and answers each request once. How many of the items the source had handed out.
    pub fn finish(&self, finished: Vec<Finished<Ticket, SinkRecord>>, outputs: Vec<RequestOutputs>) -> u64 {
        let (mut counts, mut handed) = (CommitCounts::default(), 0);
        let mut answers = Vec::with_capacity(finished.len() + outputs.len());
        let (ended_at, mut traced) = (self.context.clock.now(), Vec::new());
        let is_traced = self.context.tracer.is_on();
        let mut waiting = locked(&self.state);
        for RequestOutputs { first, count, columns } in outputs {
            counts.done += count as u64;
            if is_traced {
                traced.extend((0..count).map(|at| (first.behind(at), None)));
            }
            let outputs = RowOutputs { first: first.row_of_request(), count, columns };
            handed += waiting.end(&first, count, ItemsEnd::Outputs(outputs), &mut answers);
        }
        for Finished { ticket, ending } in finished {
            let end = match ending {
                Ending::Done(records) => {
                    counts.done += 1;
                    ItemsEnd::Records(records.into_iter().filter_map(record).collect())
                }
                Ending::Failed(failure) => {
                    counts.failed += 1;
                    let stages = &self.context.plan.stages;
                    let stage = stages.iter().position(|stage| stage.name == failure.stage);
                    counts.failures.extend(stage.map(|at| (StageId(at as u16), failure.kind)));
                    ItemsEnd::Failed(failure)
                }
            };
            if is_traced {
                let failure = if let ItemsEnd::Failed(failure) = &end { Some(failure.clone()) } else { None };
                traced.push((ticket.clone(), failure));
            }
            handed += waiting.end(&ticket, 1, end, &mut answers);
        }
        drop(waiting);
        counts.by_source.push((self.source, counts.done + counts.failed));
        self.context.stats.count(&counts);
        for RequestAnswer { place, to, end } in answers {
            // Its place is free before the one who asked can ask again.
            drop(place);
            drop(to.send(end)); // Dropped meanwhile.
        }
        self.trace(traced, ended_at);
        handed
    }

    /// Tells the tracer of items that have ended. It is code of the host, and costs no request.
    fn trace(&self, ended: Vec<MaybeFailed>, at: Duration) {
        let Some(tracer) = self.context.tracer.get().filter(|_| !ended.is_empty()) else { return };
        let ended = EndedItems::each_of(ended, at);
        if let Err(bug) = caught("the tracer", || tracer.items_ended(&[ended])) {
            tracing::error!("{bug}; the flow goes on");
        }
    }

    /// A pipeline takes items, through this chain.
    pub fn attach(&self, chain: &Arc<Chain>) {
        let has_all = locked(&self.state).unserved.is_empty();
        self.standing.send_modify(|standing| {
            standing.chain = Some(Arc::clone(chain));
            standing.has_served |= has_all;
        });
    }

    pub fn serving(&self, stage: StageId) {
        let mut waiting = locked(&self.state);
        if waiting.unserved.remove(&stage) && waiting.unserved.is_empty() {
            self.standing.send_modify(|standing| standing.has_served = true);
        }
    }

    /// The pipeline takes no items any more: those that it had are asked again, of the next one.
    pub fn detach(&self) {
        let mut waiting = locked(&self.state);
        self.standing.send_modify(|standing| standing.chain = None);
        (waiting.queue, waiting.news) = (BTreeMap::new(), None);
        let asked = std::mem::take(&mut waiting.asked);
        drop(waiting);
        for answer in asked.into_values().filter_map(|asked| asked.answer) {
            drop(answer.send(RequestEnd::Again)); // Dropped meanwhile.
        }
    }

    /// Gives no answer any more, for this reason. Only the first one counts.
    pub fn over(&self, why: &str) {
        let mut waiting = locked(&self.state);
        self.standing.send_modify(|standing| {
            standing.over.get_or_insert_with(|| why.to_owned());
            standing.chain = None;
        });
        waiting.queue.clear();
        waiting.is_over = true;
        let asked = std::mem::take(&mut waiting.asked);
        drop(waiting);
        for asked in asked.into_values() {
            asked.ticket.withdraw();
        }
    }

    pub fn why_over(&self) -> String {
        self.standing.borrow().over.clone().unwrap_or_else(|| "its actors are gone".to_owned())
    }

    /// Waits until the flow has served, or is over.
    pub async fn started(&self) -> Result<(), String> {
        let mut standing = self.standing.subscribe();
        let started = standing.wait_for(|now| now.over.is_some() || (now.has_served && now.chain.is_some()));
        match started.await {
            Ok(now) => now.over.clone().map_or(Ok(()), Err),
            Err(_) => Err(self.why_over()),
        }
    }

    /// What takes items: waits where a pipeline is built anew. `None`: the flow is over.
    pub async fn chain(&self) -> Option<Arc<Chain>> {
        let mut standing = self.standing.subscribe();
        let there = standing.wait_for(|now| now.over.is_some() || now.chain.is_some()).await.ok()?;
        if there.over.is_some() { None } else { there.chain.clone() }
    }
}

/// What became of some items of a request.
enum ItemsEnd {
    /// Of the only one.
    Records(Vec<ReplyRecord>),
    Outputs(RowOutputs),
    /// Of one of them.
    Failed(Failure),
}

/// An answer on its way.
struct RequestAnswer {
    /// That of its request, where all items of that have ended.
    place: Option<Arc<Place>>,
    to: oneshot::Sender<RequestEnd>,
    end: RequestEnd,
}

impl WaitingRequests {
    /// Notes the end of `n` items of a request, the first of which this is. How many of them the source had handed out.
    fn end(&mut self, first: &Ticket, n: usize, end: ItemsEnd, answers: &mut Vec<RequestAnswer>) -> u64 {
        let key = first.request();
        let Some(asked) = self.asked.get_mut(&key).filter(|asked| asked.left >= n) else {
            if !self.is_over {
                tracing::error!(item = %first.name(), "a request ended twice; this is a bug");
            }
            return 0;
        };
        asked.left -= n;
        let (is_last, handed) = (asked.left == 0, if asked.is_handed { n as u64 } else { 0 });
        let end = match end {
            // A row that was withdrawn has no outputs.
            ItemsEnd::Records(_) if first.asks_for_outputs() => None,
            ItemsEnd::Records(records) => Some(RequestEnd::Records(records)),
            ItemsEnd::Outputs(outputs) => {
                asked.outputs.push(outputs);
                is_last.then(|| RequestEnd::Outputs(std::mem::take(&mut asked.outputs)))
            }
            ItemsEnd::Failed(failure) => {
                // The request has its end, so its other items are withdrawn.
                first.withdraw();
                Some(RequestEnd::Failed(first.row_of_request(), failure))
            }
        };
        let answer = end.and_then(|end| Some((asked.answer.take()?, end)));
        let place = if is_last { self.asked.remove(&key).map(|asked| asked.place) } else { None };
        answers.extend(answer.map(|(to, end)| RequestAnswer { place, to, end }));
        handed
    }
}

/// A record of a reduce belongs to a run; a plan of requests has none.
fn record(record: SinkRecord) -> Option<ReplyRecord> {
    match record.to {
        RecordTo::Sink(sink) => Some(ReplyRecord { sink, bytes: record.bytes }),
        RecordTo::Reduce(_) => None,
    }
}
