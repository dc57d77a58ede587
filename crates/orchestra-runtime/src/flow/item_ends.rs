//! Item ends: the actor of a pipeline that knows when each item has ended in all its sinks, whatever became of it on its way, and commits
//! finished items as a whole. It formats no record, but for what the index of records that are files says of them, and writes no file itself:
//! the committer does, and answers.

use std::collections::HashMap;
use std::sync::Arc;

use orchestra_core::lineage::{Ending, Finished, Lineage};
use orchestra_core::{Failure, PipelineId, SourceId, StageId};
use orchestra_plan::{FilesPlan, Origin, SinkPlan};
use orchestra_store::{Commit, FileIndex, PlacedFile};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::context::RunContext;
use crate::flow::committer::{CommitJob, CommitterHandle};
use crate::flow::failures::{failure_line, failure_record};
use crate::flow::file_name::index_line;
use crate::flow::result_files::{FAILURES_FILE, reduce_file, sink_file};
use crate::flow::ticket::Ticket;
use crate::messages::{
    CommitCounts, Ends, ItemEndsMsg, PipelineMsg, Record, RecordTo, RootMsg, SourceMsg, Stopped, TokenEnd,
    WholeItems,
};
use crate::trace::{EndedItems, MaybeFailed, id_in_logs};

pub struct ItemEnds;

pub struct ItemEndsArgs {
    pub context: Arc<RunContext>,
    pub pipeline: PipelineId,
    pub committer: CommitterHandle,
    pub parent: ActorRef<PipelineMsg>,
    /// The root, for the failure limit.
    pub root: ActorRef<RootMsg>,
}

pub struct ItemEndsState {
    args: ItemEndsArgs,
    lineages: HashMap<SourceId, Lineage<Ticket, Record>>,
    sources: HashMap<SourceId, ActorRef<SourceMsg>>,
    limit_reported: Option<Stopped>,
}

impl Actor for ItemEnds {
    type Msg = ItemEndsMsg;
    type State = ItemEndsState;
    type Arguments = ItemEndsArgs;

    async fn pre_start(
        &self,
        _: ActorRef<ItemEndsMsg>,
        args: ItemEndsArgs,
    ) -> Result<ItemEndsState, ActorProcessingErr> {
        let plan = &args.context.plan;
        let lineages = plan.pipelines[args.pipeline.index()].sources.iter().map(|&source| {
            let of_source = |sink: &SinkPlan| {
                sink.from.iter().any(|from| plan.ancestors(*from).contains(&Origin::Source(source)))
            };
            let ordered = plan.sinks.iter().any(|sink| sink.ordered && of_source(sink));
            (source, Lineage::new(ordered))
        });
        let lineages = lineages.collect();
        Ok(ItemEndsState { args, lineages, sources: HashMap::new(), limit_reported: None })
    }

    async fn handle(
        &self,
        me: ActorRef<ItemEndsMsg>,
        message: ItemEndsMsg,
        state: &mut ItemEndsState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ItemEndsMsg::Attach(source, actor) => drop(state.sources.insert(source, actor)),
            ItemEndsMsg::Ends(ends) => state.ends(&me, ends),
            ItemEndsMsg::Committed(counts, told) => {
                state.committed(&counts);
                drop(told); // Here, with the actors that made the tickets: memory is freed cheaply where it came from.
            }
            ItemEndsMsg::CommitFailed(error) => drop(state.args.parent.cast(PipelineMsg::SinkFailed(error))),
        }
        Ok(())
    }
}

impl ItemEndsState {
    fn ends(&mut self, me: &ActorRef<ItemEndsMsg>, ends: Ends) {
        let Ends { whole, tokens } = ends;
        let mut finished = Vec::with_capacity(tokens.len());
        for TokenEnd { ticket, end } in tokens {
            if let Some(lineage) = self.lineages.get_mut(&ticket.id().source) {
                let (id, sequence) = (ticket.id(), ticket.sequence());
                lineage.end(id, sequence, ticket, end, &mut finished);
            }
        }
        if whole.is_some() || !finished.is_empty() {
            self.args.committer.send(self.commit_job(me, whole, finished));
        }
    }

    /// One commit of all these items, the bytes of each file in one piece; and, while the run is traced, the items with their failures.
    fn commit_job(
        &self,
        me: &ActorRef<ItemEndsMsg>,
        whole: Option<WholeItems>,
        finished: Vec<Finished<Ticket, Record>>,
    ) -> CommitJob {
        let handed = self.args.context.tracer.is_on().then(|| self.args.context.clock.now());
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
                    for Record { to, bytes, file: name } in records {
                        let file = self.file_of(to);
                        let Some((name, folder)) = name.zip(self.folder_of(to)) else {
                            append(&mut commit.appends, file, &bytes);
                            continue;
                        };
                        let (item, id) = (ticket.name(), ticket.id());
                        let source = &self.args.context.plan.sources[id.source.index()].name;
                        let line = index_line(item, id.index, source, &name, bytes.len());
                        append(&mut commit.appends, file, &line);
                        let path = folder.folder.join(&*name);
                        commit.files.push(PlacedFile { path, bytes: bytes.into() });
                    }
                    commit.done.push(ticket.id());
                    counts.done += 1;
                    each.extend(handed.map(|_| (ticket, None)));
                }
                Ending::Failed(failure) => {
                    append(&mut commit.appends, FAILURES_FILE, &self.failure_line(&ticket, &failure));
                    self.failure_records(&ticket, &failure, &mut commit.appends);
                    commit.failed.push(ticket.id());
                    counts.failed += 1;
                    let stage = self.args.context.plan.stages.iter().position(|s| s.name == failure.stage);
                    counts.failures.extend(stage.map(|index| (StageId(index as u16), failure.kind)));
                    each.extend(handed.map(|_| (ticket, Some(failure))));
                }
            }
        }
        self.args.context.stats.left_out.give(&self.args.context.plan, &mut commit);
        let each = handed.filter(|_| !each.is_empty()).map(|handed| EndedItems::each_of(each, handed));
        let traced = of_batch.into_iter().chain(each).collect();
        CommitJob { commit, counts, traced, hold, reply_to: me.clone() }
    }

    /// The records of a failure in the sinks that write such.
    fn failure_records(&self, ticket: &Ticket, failure: &Failure, files: &mut Vec<(FileIndex, Vec<u8>)>) {
        let plan = &self.args.context.plan;
        for (at, sink) in plan.sinks.iter().enumerate().filter(|(_, sink)| sink.is_of_failures) {
            let source = &plan.sources[ticket.id().source.index()].name;
            match failure_record(sink, ticket, source, failure) {
                Ok(record) => append(files, sink_file(at), &record),
                // `failures.jsonl` has it all the same.
                Err(refusal) => {
                    tracing::error!(sink = %sink.name, item = %ticket.name(), error = %refusal.error, "a failure has no record")
                }
            }
        }
    }

    fn file_of(&self, to: RecordTo) -> FileIndex {
        match to {
            RecordTo::Sink(sink) => sink_file(sink.index()),
            RecordTo::Reduce(stage) => reduce_file(&self.args.context.plan, stage),
        }
    }

    fn folder_of(&self, to: RecordTo) -> Option<&FilesPlan> {
        match to {
            RecordTo::Sink(sink) => self.args.context.plan.sinks[sink.index()].files.as_ref(),
            RecordTo::Reduce(_) => None,
        }
    }

    fn failure_line(&self, ticket: &Ticket, failure: &Failure) -> Vec<u8> {
        let plan = &self.args.context.plan;
        let trace = self.args.context.tracer.get().and_then(|tracer| tracer.trace_of_failed(ticket.id()));
        tracing::warn!(
            pipeline = %plan.pipelines[self.args.pipeline.index()].name, item = %ticket.name(),
            stage = %failure.stage, kind = %failure.kind, error = %failure.error, attempts = failure.attempts,
            trace_id = trace.as_ref().map(id_in_logs),
            "item failed"
        );
        failure_line(ticket, &plan.sources[ticket.id().source.index()].name, failure)
    }

    fn committed(&mut self, counts: &CommitCounts) {
        for (source, n) in &counts.by_source {
            if let Some(actor) = self.sources.get(source) {
                drop(actor.cast(SourceMsg::Committed(*n)));
            }
        }
        let reached = self.args.context.too_many_failed(self.args.pipeline);
        if let Some(reached) = reached.filter(|reached| self.limit_reported != Some(reached.stopped)) {
            self.limit_reported = Some(reached.stopped);
            drop(self.args.root.cast(RootMsg::FailureLimit(reached)));
        }
    }
}

/// A pipeline writes to few files.
fn append(files: &mut Vec<(FileIndex, Vec<u8>)>, file: FileIndex, line: &[u8]) {
    match files.iter_mut().find(|(f, _)| *f == file) {
        Some((_, bytes)) => bytes.extend_from_slice(line),
        None => files.push((file, line.to_vec())),
    }
}

fn count(by_source: &mut Vec<(SourceId, u64)>, source: SourceId) {
    match by_source.iter_mut().find(|(s, _)| *s == source) {
        Some((_, n)) => *n += 1,
        None => by_source.push((source, 1)),
    }
}
