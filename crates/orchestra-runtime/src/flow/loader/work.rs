//! What all loader threads of a source work with, and what each has done that is not booked yet. It takes no item.

use std::sync::Arc;
use std::time::Duration;

use orchestra_core::SourceId;
use orchestra_core::shapes::{Fetch, MapCount};
use orchestra_core::slot_claims::ClaimedItems;
use orchestra_plan::Limits;
use ractor::ActorRef;
use smallvec::SmallVec;

use super::setup::LoaderSetup;
use crate::context::RunContext;
use crate::flow::chain::Chain;
use crate::messages::{PipelineMsg, SourceMsg};

/// What all loader threads of one source share.
pub struct LoaderWork {
    pub context: Arc<RunContext>,
    pub source: SourceId,
    pub from: ActorRef<SourceMsg>,
    pub pipeline: ActorRef<PipelineMsg>,
    pub fetch: Arc<dyn Fetch>,
    pub chain: Arc<Chain>,
    /// What reads and decodes; `None`: the threads do.
    pub setup: Option<LoaderSetup>,
    /// Items that loaders are through with.
    pub loaded: ClaimedItems,
}

/// What a thread has done since it was last booked. Counters that all threads share cost each of them a trip to another core, so they
/// are changed once for many small items.
#[derive(Debug, Default)]
pub struct LoaderTally {
    pub loaded: u64,
    /// Rows that entered and left each map of the chain.
    pub counts: SmallVec<[MapCount; 2]>,
    pub bytes: u64,
    pub decoding: Duration,
    /// The same, with writing rows and records.
    pub loading: Duration,
    pub waiting_for_row: Duration,
}

impl LoaderTally {
    pub fn add(&mut self, other: LoaderTally) {
        self.loaded += other.loaded;
        MapCount::add_all(&mut self.counts, &other.counts);
        // What a loader process says it has read may be anything.
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.decoding += other.decoding;
        self.loading += other.loading;
        self.waiting_for_row += other.waiting_for_row;
    }

    pub fn book(self, work: &LoaderWork) {
        let stats = &work.context.stats;
        stats.loading.add_time(self.loading);
        stats.waiting_for_row.add_time(self.waiting_for_row);
        stats.pipeline_of(work.source).bytes_read.add(self.bytes);
        work.chain.book(&self.counts);
        let maps = &work.chain.maps;
        for map in maps {
            stats.stage(map.stage).busy.add_time(self.decoding / u32::try_from(maps.len()).unwrap_or(1));
        }
        work.loaded.add(self.loaded);
    }
}

/// Of an item, beyond its `item_timeout`.
pub fn took_too_long(limits: &Limits) -> String {
    let seconds = limits.item_timeout.as_secs_f64();
    format!("reading and decoding took longer than {} ({seconds} s)", limits.called("item_timeout"))
}
