//! The ends of items that go to the journal: knows when each item has ended in all its sinks, whatever became of it on its way, and commits
//! finished items as a whole. It formats no record, but for what the index of records that are files says of them, and writes no file itself:
//! the committer does, and answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use orchestra_core::lineage::{Ending, Finished, Lineage};
use orchestra_core::{Failure, PipelineId, SourceId, StageId, locked};
use orchestra_plan::{FilesPlan, Origin, SinkPlan};
use orchestra_store::{Commit, FileIndex, PlacedFile};
use ractor::ActorRef;

use crate::account::stats::CommitCounts;
use crate::context::RunContext;
use crate::flow::committer::{CommitJob, CommitObserver, CommitterHandle};
use crate::flow::ends::{Ends, FinishingSource};
use crate::flow::failures::{failure_line, failure_record};
use crate::flow::file_name::index_line;
use crate::flow::result_files::{FAILURES_FILE, reduce_file, sink_file};
use crate::flow::ticket::Ticket;
use crate::messages::{
    EndedRows, PipelineMsg, RecordTo, SingleRecordItems, SinkRecord, SourceMsg, Stopped, TokenEnd,
};
use crate::trace::{EndedItems, MaybeFailed, id_in_logs};

/// The ends of the items of one pipeline of a run.
pub struct JournalEnds {
    context: Arc<RunContext>,
    pipeline: PipelineId,
    committer: CommitterHandle,
    parent: ActorRef<PipelineMsg>,
    me: Weak<Self>,
    /// Items are handed to the committer under this lock, so that it gets them in their order.
    state: Mutex<JournalEndsState>,
    sources: Mutex<HashMap<SourceId, ActorRef<SourceMsg>>>,
    /// A group of it could not be written.
    is_refused: AtomicBool,
}

struct JournalEndsState {
    lineages: HashMap<SourceId, Lineage<Ticket, SinkRecord>>,
    limit_reported: Option<Stopped>,
    is_closed: bool,
}

impl Ends for JournalEnds {
    fn attach(&self, source: SourceId, actor: ActorRef<SourceMsg>) {
        locked(&self.sources).insert(source, actor);
    }

    fn ended(&self, rows: EndedRows) {
        // A thread that panicked in here has left no known state, and its pipeline is built anew.
        let Ok(mut state) = self.state.lock() else { return };
        if state.is_closed {
            return;
        }
        let EndedRows { whole, tokens, outputs } = rows;
        debug_assert!(outputs.is_empty(), "items of a run have records");
        let mut finished = Vec::with_capacity(tokens.len());
        for TokenEnd { ticket, end } in tokens {
            if let Some(lineage) = state.lineages.get_mut(&ticket.id().source) {
                let (id, sequence) = (ticket.id(), ticket.sequence());
                lineage.end(id, sequence, ticket, end, &mut finished);
            }
        }
        if (whole.is_some() || !finished.is_empty())
            && let Some(me) = self.me.upgrade()
        {
            self.committer.send(self.commit_job(me, whole, finished));
        }
    }

    fn is_piled_up(&self) -> bool {
        self.committer.waiting() as u64 > self.context.plan.record_bytes()
    }

    fn when_written(&self, then: Box<dyn FnOnce() + Send>) {
        self.committer.when_written(then);
    }

    fn hurry(&self) -> Option<FinishingSource> {
        Some(self.committer.hurry())
    }

    fn close(&self) {
        locked(&self.state).is_closed = true;
    }
}

impl JournalEnds {
    pub fn new(
        context: &Arc<RunContext>,
        pipeline: PipelineId,
        committer: &CommitterHandle,
        parent: &ActorRef<PipelineMsg>,
    ) -> Arc<Self> {
        let plan = &context.plan;
        let lineages = plan.pipelines[pipeline.index()].sources.iter().map(|&source| {
            let of_source = |sink: &SinkPlan| {
                sink.from.iter().any(|from| plan.ancestors(*from).contains(&Origin::Source(source)))
            };
            let ordered = plan.sinks.iter().any(|sink| sink.ordered && of_source(sink));
            (source, Lineage::new(ordered))
        });
        let state = JournalEndsState { lineages: lineages.collect(), limit_reported: None, is_closed: false };
        Arc::new_cyclic(|me| Self {
            context: Arc::clone(context),
            pipeline,
            committer: committer.clone(),
            parent: parent.clone(),
            me: Weak::clone(me),
            state: Mutex::new(state),
            sources: Mutex::default(),
            is_refused: AtomicBool::new(false),
        })
    }

    /// One commit of all these items, the bytes of each file in one piece; and, while the run is traced, the items with their failures.
    fn commit_job(
        &self,
        me: Arc<Self>,
        whole: Option<SingleRecordItems>,
        finished: Vec<Finished<Ticket, SinkRecord>>,
    ) -> CommitJob {
        let handed = self.context.tracer.is_on().then(|| self.context.clock.now());
        let (mut commit, mut counts) = (Commit::default(), CommitCounts::default());
        let (mut of_batch, mut hold) = (None, None);
        if let Some(items) = whole {
            counts.done = items.done.len() as u64;
            counts.by_source.push((items.source, counts.done));
            commit.appends.push((sink_file(items.sink.index()), items.text));
            commit.done = items.done;
            of_batch = items.traced.zip(handed).map(|(rows, handed)| EndedItems::rows(rows, handed));
            hold = items.hold;
        }
        let mut each: Vec<MaybeFailed> = Vec::new();
        for Finished { ticket, ending } in finished {
            count(&mut counts.by_source, ticket.id().source);
            match ending {
                Ending::Done(records) => {
                    for SinkRecord { to, bytes, file: name } in records {
                        let file = self.file_of(to);
                        let Some((name, folder)) = name.zip(self.folder_of(to)) else {
                            commit.append_to(file).extend_from_slice(&bytes);
                            continue;
                        };
                        let (item, id) = (ticket.name(), ticket.id());
                        let source = &self.context.plan.sources[id.source.index()].name;
                        let line = index_line(item, id.index, source, &name, bytes.len());
                        commit.append_to(file).extend_from_slice(&line);
                        let path = folder.folder.join(&*name);
                        commit.files.push(PlacedFile { path, bytes: bytes.into() });
                    }
                    commit.done.push(ticket.id());
                    counts.done += 1;
                    each.extend(handed.map(|_| (ticket, None)));
                }
                Ending::Failed(failure) => {
                    commit.append_to(FAILURES_FILE).extend(self.failure_line(&ticket, &failure));
                    self.failure_records(&ticket, &failure, &mut commit);
                    commit.failed.push(ticket.id());
                    counts.failed += 1;
                    let stage = self.context.plan.stages.iter().position(|s| s.name == failure.stage);
                    counts.failures.extend(stage.map(|index| (StageId(index as u16), failure.kind)));
                    each.extend(handed.map(|_| (ticket, Some(failure))));
                }
            }
        }
        self.context.stats.left_out.give(&self.context.plan, &mut commit);
        let each = handed.filter(|_| !each.is_empty()).map(|handed| EndedItems::each_of(each, handed));
        let traced = of_batch.into_iter().chain(each).collect();
        CommitJob { commit, counts, traced, holds: hold.into_iter().collect(), ends: me }
    }

    /// The records of a failure in the sinks that write such.
    fn failure_records(&self, ticket: &Ticket, failure: &Failure, commit: &mut Commit) {
        let plan = &self.context.plan;
        for (at, sink) in plan.sinks.iter().enumerate().filter(|(_, sink)| sink.is_of_failures) {
            let source = &plan.sources[ticket.id().source.index()].name;
            match failure_record(sink, ticket, source, failure) {
                Ok(record) => commit.append_to(sink_file(at)).extend(record),
                // `failures.jsonl` has it all the same.
                Err(item_error) => {
                    tracing::error!(sink = %sink.name, item = %ticket.name(), error = %item_error.error, "a failure has no record")
                }
            }
        }
    }

    fn file_of(&self, to: RecordTo) -> FileIndex {
        match to {
            RecordTo::Sink(sink) => sink_file(sink.index()),
            RecordTo::Reduce(stage) => reduce_file(&self.context.plan, stage),
        }
    }

    fn folder_of(&self, to: RecordTo) -> Option<&FilesPlan> {
        match to {
            RecordTo::Sink(sink) => self.context.plan.sinks[sink.index()].files.as_ref(),
            RecordTo::Reduce(_) => None,
        }
    }

    fn failure_line(&self, ticket: &Ticket, failure: &Failure) -> Vec<u8> {
        let plan = &self.context.plan;
        let trace = self.context.tracer.get().and_then(|tracer| tracer.trace_of_failed(ticket.id()));
        tracing::warn!(
            pipeline = %plan.pipelines[self.pipeline.index()].name, item = %ticket.name(),
            stage = %failure.stage, kind = %failure.kind, error = %failure.error, attempts = failure.attempts,
            trace_id = trace.as_ref().map(id_in_logs),
            "item failed"
        );
        failure_line(ticket, &plan.sources[ticket.id().source.index()].name, failure)
    }
}

impl CommitObserver for JournalEnds {
    fn committed(&self, counts: &CommitCounts) {
        let sources = locked(&self.sources);
        for (source, n) in &counts.by_source {
            if let Some(actor) = sources.get(source) {
                drop(actor.cast(SourceMsg::Committed(*n))); // One that is gone has ended.
            }
        }
        drop(sources);
        let Some(reached) = self.context.too_many_failed(self.pipeline) else { return };
        let told = locked(&self.state).limit_reported.replace(reached.stopped);
        if told != Some(reached.stopped) {
            drop(self.parent.cast(PipelineMsg::LimitReached(reached)));
        }
    }

    fn commit_failed(&self, error: String) {
        self.is_refused.store(true, Ordering::Relaxed);
        drop(self.parent.cast(PipelineMsg::SinkFailed(error))); // One that is gone has ended.
    }

    fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }
}

fn count(by_source: &mut Vec<(SourceId, u64)>, source: SourceId) {
    match by_source.iter_mut().find(|(s, _)| *s == source) {
        Some((_, n)) => *n += 1,
        None => by_source.push((source, 1)),
    }
}
