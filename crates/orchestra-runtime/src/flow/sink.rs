//! Sink of a pipeline: knows when each item has ended, whatever became of it on its way, and commits finished items as a whole. It formats
//! no record, but for what the index of records that are files says of them, and writes no file itself: the committer does, and answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::lineage::{Ending, Finished, Lineage};
use orchestra_core::{Failure, PipelineId, SourceId, StageId};
use orchestra_plan::{FilesPlan, Origin, SinkPlan};
use orchestra_store::{Commit, FileIndex, PlacedFile};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::context::RunContext;
use crate::flow::committer::{CommitJob, CommitterHandle};
use crate::flow::failures::{failure_line, failure_record};
use crate::flow::result_files::{FAILURES_FILE, reduce_file, sink_file};
use crate::flow::ticket::Ticket;
use crate::messages::{
    CommitCounts, FinishedItems, PipelineMsg, Record, RecordTo, RootMsg, SinkMsg, SourceMsg, Stopped,
    TokenEnd,
};
use crate::trace::{EndedItems, MaybeFailed, id_in_logs};

pub struct Sink;

pub struct SinkArgs {
    pub context: Arc<RunContext>,
    pub pipeline: PipelineId,
    pub committer: CommitterHandle,
    pub parent: ActorRef<PipelineMsg>,
    /// The root, for the failure limit.
    pub root: ActorRef<RootMsg>,
}

pub struct SinkState {
    args: SinkArgs,
    lineages: HashMap<SourceId, Lineage<Ticket, Record>>,
    sources: HashMap<SourceId, ActorRef<SourceMsg>>,
    limit_reported: Option<Stopped>,
}

impl Actor for Sink {
    type Msg = SinkMsg;
    type State = SinkState;
    type Arguments = SinkArgs;

    async fn pre_start(&self, _: ActorRef<SinkMsg>, args: SinkArgs) -> Result<SinkState, ActorProcessingErr> {
        let plan = &args.context.plan;
        let lineages = plan.pipelines[args.pipeline.index()].sources.iter().map(|&source| {
            let of_source = |sink: &SinkPlan| {
                sink.from.iter().any(|from| plan.ancestors(*from).contains(&Origin::Source(source)))
            };
            let ordered = plan.sinks.iter().any(|sink| sink.ordered && of_source(sink));
            (source, Lineage::new(ordered))
        });
        let lineages = lineages.collect();
        Ok(SinkState { args, lineages, sources: HashMap::new(), limit_reported: None })
    }

    async fn handle(
        &self,
        me: ActorRef<SinkMsg>,
        message: SinkMsg,
        state: &mut SinkState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SinkMsg::Attach(source, actor) => drop(state.sources.insert(source, actor)),
            SinkMsg::Ends(ends) => state.ends(&me, ends),
            SinkMsg::Finished(items) => state.finished(&me, items),
            SinkMsg::Committed(counts, told) => {
                state.committed(&counts);
                drop(told); // Here, with the actors that made the tickets: memory is freed cheaply where it came from.
            }
            SinkMsg::CommitFailed(error) => drop(state.args.parent.cast(PipelineMsg::SinkFailed(error))),
        }
        Ok(())
    }
}

impl SinkState {
    fn ends(&mut self, me: &ActorRef<SinkMsg>, ends: Vec<TokenEnd>) {
        let mut finished = Vec::with_capacity(ends.len());
        for TokenEnd { ticket, end } in ends {
            if let Some(lineage) = self.lineages.get_mut(&ticket.id().source) {
                let (id, sequence) = (ticket.id(), ticket.sequence());
                lineage.end(id, sequence, ticket, end, &mut finished);
            }
        }
        if finished.is_empty() {
            return;
        }
        let (commit, counts, items) = self.group(finished);
        let traced = self.traced(|handed| EndedItems::each_of(items, handed));
        self.args.committer.send(CommitJob { commit, counts, traced, hold: None, reply_to: me.clone() });
    }

    fn finished(&self, me: &ActorRef<SinkMsg>, items: FinishedItems) {
        let FinishedItems { source, sink, done, text, traced, hold } = items;
        let n = done.len() as u64;
        let counts = CommitCounts { done: n, by_source: vec![(source, n)], ..CommitCounts::default() };
        let commit = Commit { appends: vec![(sink_file(sink.index()), text)], done, ..Commit::default() };
        let traced = traced.and_then(|rows| self.traced(|handed| EndedItems::rows(rows, handed)));
        self.args.committer.send(CommitJob { commit, counts, traced, hold, reply_to: me.clone() });
    }

    /// What the tracer is told of these items, which are handed over now, once they are written.
    fn traced(&self, items: impl FnOnce(Duration) -> EndedItems) -> Option<Box<EndedItems>> {
        let context = &self.args.context;
        context.tracer.is_on().then(|| Box::new(items(context.clock.now())))
    }

    /// One commit of all these items, the bytes of each file in one piece; and, while the run is traced, the items with their failures.
    fn group(&self, finished: Vec<Finished<Ticket, Record>>) -> (Commit, CommitCounts, Vec<MaybeFailed>) {
        let is_traced = self.args.context.tracer.is_on();
        let mut traced = Vec::new();
        let mut commit = Commit::default();
        let mut counts = CommitCounts::default();
        // By file; a pipeline writes to few.
        let mut appends: Vec<(FileIndex, Vec<u8>)> = Vec::new();
        for Finished { ticket, ending } in finished {
            count(&mut counts.by_source, ticket.id().source);
            match ending {
                Ending::Done(records) => {
                    for Record { to, bytes, file: name } in records {
                        let file = self.file_of(to);
                        let Some((name, folder)) = name.zip(self.folder_of(to)) else {
                            append(&mut appends, file, &bytes);
                            continue;
                        };
                        let (item, id) = (ticket.name(), ticket.id());
                        let source = &self.args.context.plan.sources[id.source.index()].name;
                        append(&mut appends, file, &index_line(item, id.index, source, &name, bytes.len()));
                        let path = folder.folder.join(&*name);
                        commit.files.push(PlacedFile { path, bytes: bytes.into() });
                    }
                    commit.done.push(ticket.id());
                    counts.done += 1;
                    if is_traced {
                        traced.push((ticket, None));
                    }
                }
                Ending::Failed(failure) => {
                    append(&mut appends, FAILURES_FILE, &self.failure_line(&ticket, &failure));
                    self.failure_records(&ticket, &failure, &mut appends);
                    commit.failed.push(ticket.id());
                    counts.failed += 1;
                    let stage = self.args.context.plan.stages.iter().position(|s| s.name == failure.stage);
                    counts.failures.extend(stage.map(|index| (StageId(index as u16), failure.kind)));
                    if is_traced {
                        traced.push((ticket, Some(failure)));
                    }
                }
            }
        }
        commit.appends = appends;
        (commit, counts, traced)
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
        let stopped = self.args.context.too_many_failed(self.args.pipeline);
        if let Some(stopped) = stopped.filter(|stopped| self.limit_reported != Some(*stopped)) {
            self.limit_reported = Some(stopped);
            drop(self.args.root.cast(RootMsg::FailureLimit(stopped)));
        }
    }
}

/// What the index of a sink says of a file.
pub fn index_line(item: &str, index: u64, source: &str, file: &str, bytes: usize) -> Vec<u8> {
    let line = serde_json::json!({
        "item": item, "index": index, "source": source, "file": file, "bytes": bytes,
    });
    format!("{line}\n").into_bytes()
}

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
