//! Source: hands the items of one intake to loaders, in order, as far as they are there and as long as the window of items in flight has room and
//! records do not pile up.
//! Threads of its own load them (`loader/thread.rs`); it replaces one that hangs. It opens no item and knows nothing of stages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestra_core::slot_claims::ClaimedItems;
use orchestra_core::{PipelineId, SourceId};
use orchestra_plan::{BETWEEN_COMMITS, SourcePlan};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use crate::actor_threads::join_blocking;
use crate::context::RunContext;
use crate::flow::chain::Chain;
use crate::flow::endpoints::Intake;
use crate::flow::ends::FinishingSource;
use crate::flow::loader::ReadablePlaces;
use crate::flow::loader::inbox::Inbox;
use crate::flow::loader::setup::LoaderSetup;
use crate::flow::loader::thread as loader_thread;
use crate::flow::loader::work::LoaderWork;
use crate::messages::{PipelineEnd, PipelineMsg, SourceMsg};

/// How often loader threads are looked at.
const TICK: Duration = Duration::from_secs(1);

/// How long the end of a source waits for the end of all its loader processes: longer than for one that the kernel does not let go.
const LOADER_END: Duration = Duration::from_secs(8);

pub struct Source;

pub struct SourceArgs {
    pub context: Arc<RunContext>,
    pub source: SourceId,
    pub intake: Box<dyn Intake>,
    /// Items that may be handed out and have no end.
    pub window: u64,
    pub loaders: usize,
    pub pipeline: ActorRef<PipelineMsg>,
    /// What its loaders take items through: it hears of the end.
    pub chain: Arc<Chain>,
}

pub struct SourceState {
    args: SourceArgs,
    work: Arc<LoaderWork>,
    loaders: Vec<Arc<Inbox>>,
    /// Loaders that wait, each with the number of items that it asked for.
    waiting: VecDeque<(usize, u64)>,
    /// Since when loaders wait because the window is full, or records that wait are enough: what is done is not written fast enough.
    full_since: Option<Duration>,
    /// A [`SourceMsg::Written`] is to come: the commits that make room may be none of its own.
    waits_for_records: bool,
    handed: u64,
    committed: u64,
    /// Nothing more is handed out, for this reason.
    end: Option<PipelineEnd>,
    is_drained: bool,
    hurry: Option<FinishingSource>,
    reported: bool,
}

impl Actor for Source {
    type Msg = SourceMsg;
    type State = SourceState;
    type Arguments = SourceArgs;

    async fn pre_start(
        &self,
        me: ActorRef<SourceMsg>,
        mut args: SourceArgs,
    ) -> Result<SourceState, ActorProcessingErr> {
        // Before any of its items can be committed.
        args.chain.ends.attach(args.source, me.clone());
        args.intake.begin(&args.chain);
        let work = Arc::new(LoaderWork {
            context: Arc::clone(&args.context),
            source: args.source,
            from: me.clone(),
            fetch: Arc::clone(&args.context.plan.sources[args.source.index()].fetch),
            chain: Arc::clone(&args.chain),
            pipeline: args.pipeline.clone(),
            setup: loader_setup(&args),
            loaded: ClaimedItems::default(),
        });
        me.send_interval(TICK, || SourceMsg::Tick);
        // A source that is gone needs no items.
        args.intake.watch(Box::new(move || drop(me.cast(SourceMsg::Progressed))));
        let mut state = SourceState {
            args,
            work,
            loaders: Vec::new(),
            waiting: VecDeque::new(),
            full_since: None,
            waits_for_records: false,
            handed: 0,
            committed: 0,
            end: None,
            is_drained: false,
            hurry: None,
            reported: false,
        };
        for loader in 0..state.args.loaders {
            state.loaders.push(loader_thread::start(&state.work, loader)?);
        }
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<SourceMsg>,
        message: SourceMsg,
        state: &mut SourceState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SourceMsg::Demand { loader, items } => state.waiting.push_back((loader, items)),
            SourceMsg::Progressed => {}
            SourceMsg::Written => state.waits_for_records = false,
            SourceMsg::LoaderPanicked => return Err("a thread of its loaders panicked".into()),
            SourceMsg::Tick => {
                for (loader, inbox) in state.loaders.iter_mut().enumerate() {
                    loader_thread::replace_if_stuck(&state.work, loader, inbox)?;
                }
            }
            SourceMsg::Committed(n) => state.committed += n,
            SourceMsg::Stop => drop(state.end.get_or_insert(PipelineEnd::Stopped)),
        }
        state.look();
        state.hand_out();
        state.look_for_the_end();
        Ok(())
    }

    /// Before the pipeline hears of its end, which is told the root: the state of an actor is dropped later.
    async fn post_stop(
        &self,
        _: ActorRef<SourceMsg>,
        state: &mut SourceState,
    ) -> Result<(), ActorProcessingErr> {
        let loaders = state.close();
        drop(join_blocking(move || wait_for_end(&loaders)).await); // It does not panic.
        Ok(())
    }
}

/// Loader processes, where something starts them and the source can be read there.
fn loader_setup(args: &SourceArgs) -> Option<LoaderSetup> {
    let plan = &args.context.plan;
    let fetch = &*plan.sources[args.source.index()].fetch;
    let launcher = args.context.options.loaders.clone()?.with_network(fetch.network().as_ref());
    let (load, rows) = args.chain.in_loader(fetch)?;
    let (alone_bytes, limits) = (plan.alone_bytes(), plan.limits_of_source(args.source).clone());
    let stats = Arc::clone(&args.context.stats);
    let SourcePlan { listing, sandbox_read, .. } = &plan.sources[args.source.index()];
    let readable = ReadablePlaces::new(fetch.opens(), listing, sandbox_read);
    let (tracer, clock, source) = (args.context.tracer.clone(), args.context.clock, args.source);
    let (alone, options) = (args.context.loads_alone.clone(), &args.context.options);
    let (handshake, first_pause) = (options.timeouts.handshake, options.restart.first_pause);
    Some(LoaderSetup {
        launcher,
        handshake,
        first_pause,
        load,
        rows,
        readable,
        alone_bytes,
        alone,
        limits,
        stats,
        source,
        tracer,
        clock,
    })
}

/// Also when it panics, or is dropped with its runtime.
impl Drop for SourceState {
    fn drop(&mut self) {
        wait_beside(&self.close());
    }
}

/// As [`wait_for_end`], while other tasks of the executor go on, on another thread. One of a single thread cannot have another.
fn wait_beside(loaders: &[Arc<Inbox>]) -> bool {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) if !loaders.is_empty() => block_in_place(|| wait_for_end(loaders)),
        _ => wait_for_end(loaders),
    }
}

/// Waits for the ends of loaders. Their processes are killed, which takes a moment, so that none outlives the run; one that the kernel holds fast is
/// left to itself. Says whether all have ended.
fn wait_for_end(loaders: &[Arc<Inbox>]) -> bool {
    let until = Instant::now() + LOADER_END;
    loaders.iter().all(|inbox| inbox.wait_for_end(until.saturating_duration_since(Instant::now())))
}

impl SourceState {
    /// Its threads shall end, each after the item in hand; gives those that end at once, because they have processes.
    fn close(&self) -> Vec<Arc<Inbox>> {
        self.loaders.iter().for_each(|inbox| inbox.close());
        if self.work.setup.is_some() { self.loaders.clone() } else { Vec::new() }
    }

    fn look(&mut self) {
        if self.end.is_none() {
            self.end = self.args.intake.look();
        }
    }

    fn hand_out(&mut self) {
        let now = self.args.context.clock.now();
        while self.end.is_none()
            && let Some(&(_, asked)) = self.waiting.front()
        {
            if let Some(reached) = self.args.context.first_failed(self.pipeline()) {
                // There are more, which would fail as these have.
                self.end = Some(PipelineEnd::Stopped);
                drop(self.args.pipeline.cast(PipelineMsg::LimitReached(reached))); // One that is gone has ended.
                return;
            }
            let room = self.args.window.saturating_sub(self.handed - self.committed);
            // Large records fill memory long before so many items are on their way.
            let is_piled_up = self.args.chain.ends.is_piled_up();
            if room == 0 || is_piled_up {
                self.full_since.get_or_insert(now);
                if is_piled_up && !std::mem::replace(&mut self.waits_for_records, true) {
                    let me = self.work.from.clone();
                    // One that is gone needs no items.
                    let written = move || drop(me.cast(SourceMsg::Written));
                    self.args.chain.ends.when_written(Box::new(written));
                }
                return;
            }
            if let Some(since) = self.full_since.take() {
                let loaders = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
                self.args.context.stats.waiting_for_sinks.add_time(now.saturating_sub(since) * loaders);
            }
            match self.args.intake.next(room.min(self.share()).min(asked.max(1)) as usize) {
                Ok(items) if items.len() == 0 => return,
                Ok(items) => {
                    self.handed += items.len() as u64;
                    self.args.context.stats.handed.add(items.len() as u64);
                    self.args.context.stats.pipeline_of(self.args.source).handed.add(items.len() as u64);
                    if let Some((loader, _)) = self.waiting.pop_front() {
                        self.loaders[loader].push(items);
                    }
                }
                Err(end) => self.end = Some(end),
            }
            self.look();
        }
    }

    /// Most items for one loader: fewer where few are listed, so that the loaders share them, and at the end of the list come to theirs
    /// together; and never so many that what some hold leaves no room for the others.
    fn share(&self) -> u64 {
        let left = self.args.intake.left();
        let shared = left.min(self.args.window.saturating_sub(BETWEEN_COMMITS as u64));
        (shared / (self.args.loaders as u64 * 3).max(1)).max(1)
    }

    fn pipeline(&self) -> PipelineId {
        self.args.context.plan.sources[self.args.source.index()].pipeline
    }

    fn look_for_the_end(&mut self) {
        let Some(end) = &self.end else { return };
        if !self.is_drained && self.work.loaded.get() >= self.handed {
            self.is_drained = true;
            self.hurry = self.args.chain.ends.hurry();
            self.args.chain.drained();
        }
        if self.committed >= self.handed && !self.reported {
            self.reported = true;
            let (source, end) = (self.args.source, end.clone());
            drop(self.args.pipeline.cast(PipelineMsg::SourceFinished { source, end }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_of_the_executor_go_on_while_the_ends_of_loaders_are_waited_for() {
        let inbox = Arc::new(Inbox::new(VecDeque::new(), VecDeque::new()));
        let waits = tokio::spawn(async move {
            let ending = Arc::clone(&inbox);
            // Behind this one on the only thread.
            tokio::spawn(async move { ending.thread_ended() });
            wait_beside(&[inbox])
        });
        assert!(waits.await.unwrap(), "the thread ended while its end was waited for");
    }
}
