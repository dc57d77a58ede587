//! One loader process: its start, its frames, its end. The thread that owns it waits for it, and for nothing else.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestra_core::WorkerExit;
use orchestra_worker::loader::LoaderRegion;
use orchestra_worker::loader::events::{ChainSpec, FromLoader, ItemAnswer, ToLoader};

use super::child::{LoaderChild, LostLoader};
use super::setup::LoaderSetup;
use crate::flow::loader::inbox::Inbox;
use crate::trace::LoaderTrace;

/// A frame of locators is full with so many bytes, and takes the locator that reaches it.
const FULL_FRAME: usize = 64 << 10;

pub struct LoaderProcess<'a> {
    setup: &'a LoaderSetup,
    inbox: &'a Inbox,
    child: LoaderChild,
    /// How it was lost, and its last words.
    lost: Option<(WorkerExit, String)>,
    pub region: Arc<LoaderRegion>,
    /// What it has sent and the chain has not taken yet, whole items in their order.
    ready: VecDeque<LoadedItem>,
    started: Instant,
    n_given: u64,
    /// Items that it has answered for.
    n_received: u64,
    n_frames: u64,
    /// Frames that the chain is done with, and that it was told of.
    frames_told: u64,
}

pub struct LoadedItem {
    pub answer: ItemAnswer,
    pub region: Arc<LoaderRegion>,
    pub began: Instant,
    pub read: Duration,
    pub took: Duration,
    frame: u64,
}

impl<'a> LoaderProcess<'a> {
    /// Starts it and waits until it is ready, or until `inbox` is closed: then, and later, it ends.
    pub fn start(setup: &'a LoaderSetup, load: &ChainSpec, inbox: &'a Inbox) -> Result<Self, LostLoader> {
        let failed = |error: io::Error| LostLoader::not_started(&error);
        let region = usize::try_from(load.region_bytes).unwrap_or(usize::MAX);
        let region = Arc::new(LoaderRegion::new(region).map_err(failed)?);
        let (child, socket) = LoaderChild::launch(&setup.launcher, region.fd()).map_err(failed)?;
        inbox.wake_with(socket);
        let mut process = Self {
            setup,
            inbox,
            lost: None,
            child,
            region,
            ready: VecDeque::new(),
            started: Instant::now(),
            n_given: 0,
            n_received: 0,
            n_frames: 0,
            frames_told: 0,
        };
        let ready = process.child.handshake(&ToLoader::Load(Box::new(load.clone())), setup.handshake);
        ready.map_err(|lost| process.lost(lost))?;
        Ok(process)
    }

    /// Gives it more items, as many as go into a frame, and tells it what the chain is done with. Gives how many it was given.
    pub fn send<'l>(&mut self, locators: impl Iterator<Item = &'l [u8]>) -> Result<usize, LostLoader> {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for locator in locators {
            text.extend_from_slice(locator);
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
            if text.len() >= FULL_FRAME {
                break;
            }
        }
        let n = ends.len();
        self.n_given += n as u64;
        // What is ready lies in frames that are still needed, from the first of them on.
        let done = self.ready.front().map_or(self.n_frames, |loaded| loaded.frame - 1);
        let frames_done = done - self.frames_told;
        self.frames_told = done;
        if ends.is_empty() && frames_done == 0 {
            return Ok(n);
        }
        let written = self.child.begin_write(&ToLoader::Items { frames_done, text, ends });
        written.map(|()| n).map_err(|lost| self.lost(lost))
    }

    /// What became of the next item, if that is known already.
    pub fn take_ready(&mut self) -> Option<LoadedItem> {
        self.ready.pop_front()
    }

    /// Waits until something becomes of an item.
    pub fn wait(&mut self, until: Instant) -> Result<(), LostLoader> {
        let received = self.child.receive_within(until).and_then(|frame| match frame {
            Some(FromLoader::Answers { sent_ns, answers }) => self.accept(sent_ns, answers),
            Some(_) => Err(self.child.garbled("a frame out of order")),
            None => Err(self.child.end(WorkerExit::Hung)),
        });
        received.map_err(|lost| self.lost(lost))
    }

    fn accept(&mut self, sent_ns: u64, answers: Vec<ItemAnswer>) -> Result<(), LostLoader> {
        let (now, n) = (Instant::now(), answers.len() as u64);
        let age = now - self.started;
        self.n_frames += 1;
        self.n_received += n;
        if n == 0 || self.n_received > self.n_given {
            return Err(self.child.garbled("answers for other items than those that it was given"));
        }
        let (region, frame) = (&self.region, self.n_frames);
        self.ready.extend(answers.into_iter().map(|answer| {
            // No longer ago than it was started, and nothing took longer than that.
            let ago = Duration::from_nanos(sent_ns.saturating_sub(answer.began_ns)).min(age);
            let took = Duration::from_nanos(answer.took_ns).min(ago);
            let (read, region) = (Duration::from_nanos(answer.read_ns).min(took), Arc::clone(region));
            LoadedItem { answer, region, began: now.checked_sub(ago).unwrap_or(now), read, took, frame }
        }));
        Ok(())
    }

    fn lost(&mut self, lost: LostLoader) -> LostLoader {
        self.lost = Some((lost.exit.clone(), lost.last_words.clone()));
        LostLoader { through: self.region.items_done().saturating_sub(self.n_received), ..lost }
    }
}

impl Drop for LoaderProcess<'_> {
    fn drop(&mut self) {
        if self.lost.is_none() {
            self.child.end(WorkerExit::Clean);
        }
        let Some(tracer) = self.setup.tracer.get() else { return };
        // At the end of the run it is the run that ends the connection.
        let lost = self.lost.take().filter(|_| !self.inbox.is_closed());
        let (exit, last_words) = lost.unwrap_or((WorkerExit::Clean, String::new()));
        let LoaderSetup { source, clock, .. } = *self.setup;
        let (began, ended) = (clock.at(self.started), clock.now());
        tracer.loader(LoaderTrace { source, pid: self.child.pid, began, ended, exit, last_words });
    }
}
