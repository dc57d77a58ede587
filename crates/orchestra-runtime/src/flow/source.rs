//! Source: hands the items of one listing to loaders, in order, as long as the window of items in flight has room. It opens no item
//! and knows nothing of stages.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::SourceId;
use orchestra_journal::BitSet;
use orchestra_plan::BETWEEN_COMMITS;
use orchestra_source::ListingReader;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::account::stats::Counter;
use crate::context::RunContext;
use crate::flow::chain::Chain;
use crate::flow::committer::CommitterHandle;
use crate::flow::ticket::{Tickets, TicketsBuilder};
use crate::messages::{LoaderMsg, PipelineMsg, SourceMsg};

/// See the module.
pub struct Source;

/// What a source is started with.
pub struct SourceArgs {
    /// The run.
    pub context: Arc<RunContext>,
    /// Which source.
    pub source: SourceId,
    /// Its listing on disk.
    pub listing: PathBuf,
    /// Items that earlier runs have finished.
    pub finished: Arc<BitSet>,
    /// Items that may be handed out and not committed.
    pub window: u64,
    /// How many loaders ask.
    pub loaders: u64,
    /// How many items have no end yet.
    pub to_do: u64,
    /// Items that its loaders are through with, counted by them.
    pub loaded: Arc<Counter>,
    /// Its pipeline.
    pub pipeline: ActorRef<PipelineMsg>,
    /// What its loaders take items through: it hears of the end.
    pub chain: Arc<Chain>,
    /// Who writes; it learns when the last items are on their way.
    pub committer: CommitterHandle,
}

/// State of a source.
pub struct SourceState {
    args: SourceArgs,
    /// An error is reported when the first items are asked for.
    reader: Result<ListingReader, String>,
    /// Loaders that wait, each with the number of items that it asked for.
    waiting: VecDeque<(ActorRef<LoaderMsg>, u64)>,
    /// Since when loaders wait because the window is full: what is done is not written fast enough.
    full_since: Option<Duration>,
    handed: u64,
    committed: u64,
    exhausted: bool,
    stopped: bool,
    drained: bool,
    reported: bool,
}

impl Actor for Source {
    type Msg = SourceMsg;
    type State = SourceState;
    type Arguments = SourceArgs;

    async fn pre_start(
        &self,
        _: ActorRef<SourceMsg>,
        args: SourceArgs,
    ) -> Result<SourceState, ActorProcessingErr> {
        let reader = ListingReader::open(&args.listing).map_err(|e| e.to_string());
        Ok(SourceState {
            args,
            reader,
            waiting: VecDeque::new(),
            full_since: None,
            handed: 0,
            committed: 0,
            exhausted: false,
            stopped: false,
            drained: false,
            reported: false,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<SourceMsg>,
        message: SourceMsg,
        state: &mut SourceState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SourceMsg::Demand { loader, items } => state.waiting.push_back((loader, items)),
            SourceMsg::LoadersProgressed => {}
            SourceMsg::Committed(n) => state.committed += n,
            SourceMsg::Stop => state.stopped = true,
        }
        state.hand_out();
        state.look_for_the_end();
        Ok(())
    }
}

impl SourceState {
    fn hand_out(&mut self) {
        let now = self.args.context.clock.now();
        while !self.exhausted
            && !self.stopped
            && let Some(&(_, asked)) = self.waiting.front()
        {
            let room = self.args.window.saturating_sub(self.handed - self.committed);
            if room == 0 {
                self.full_since.get_or_insert(now);
                return;
            }
            if let Some(since) = self.full_since.take() {
                let loaders = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
                self.args.context.stats.waiting_for_sinks.add_time(now.saturating_sub(since) * loaders);
            }
            match self.next_items(room.min(self.share()).min(asked.max(1)) as usize) {
                Ok(items) if items.len() == 0 => return,
                Ok(items) => {
                    self.handed += items.len() as u64;
                    self.args.context.stats.handed.add(items.len() as u64);
                    self.args.context.stats.pipeline_of(self.args.source).handed.add(items.len() as u64);
                    if let Some((loader, _)) = self.waiting.pop_front() {
                        // A loader that is gone takes its pipeline with it.
                        drop(loader.cast(LoaderMsg::Work(items)));
                    }
                }
                Err(error) => {
                    self.stopped = true;
                    drop(self.args.pipeline.cast(PipelineMsg::SourceFailed(error)));
                }
            }
        }
    }

    /// Most items for one loader: fewer near the end, so that the loaders end together; and never so many that what some hold leaves no room
    /// for the others.
    fn share(&self) -> u64 {
        let left = self.args.to_do.saturating_sub(self.handed);
        let shared = left.min(self.args.window.saturating_sub(BETWEEN_COMMITS as u64));
        (shared / (self.args.loaders * 3).max(1)).max(1)
    }

    /// Up to `n` unfinished items. Reading on is cheap: the listing is a file in the page cache.
    fn next_items(&mut self, n: usize) -> Result<Tickets, String> {
        let mut items =
            TicketsBuilder::with_capacity(self.args.source, self.handed, n, self.args.context.tracer.is_on());
        let reader = match &mut self.reader {
            Ok(reader) => reader,
            Err(why) => return Err(why.clone()),
        };
        while items.len() < n {
            let index = self.args.finished.next_missing(reader.next_index());
            if index >= reader.n_items() {
                self.exhausted = true;
                break;
            }
            if index != reader.next_index() {
                reader.skip_to(index).map_err(|e| e.to_string())?;
            }
            match reader.read().map_err(|e| e.to_string())? {
                Some((name, path)) => items.add(index, name, path),
                None => {
                    self.exhausted = true;
                    break;
                }
            }
        }
        Ok(items.build())
    }

    fn look_for_the_end(&mut self) {
        if !self.exhausted && !self.stopped {
            return;
        }
        if !self.drained && self.args.loaded.get() >= self.handed {
            self.drained = true;
            self.args.committer.hurry();
            self.args.chain.drained();
        }
        if self.committed >= self.handed && !self.reported {
            self.reported = true;
            let (source, complete) = (self.args.source, self.exhausted);
            drop(self.args.pipeline.cast(PipelineMsg::SourceFinished { source, complete }));
        }
    }
}
