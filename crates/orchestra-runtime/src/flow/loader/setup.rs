//! How the loader processes of a source are started. It starts none.

use std::sync::Arc;
use std::time::Duration;

use orchestra_core::SourceId;
use orchestra_plan::Limits;
use orchestra_worker::loader::events::ChainSpec;

use super::exclusive::ExclusiveLoads;
use super::readable_places::ReadablePlaces;
use crate::account::stats::Stats;
use crate::child::spawn::ProcessLauncher;
use crate::context::RunClock;
use crate::flow::chain::SentRows;
use crate::trace::MaybeTracer;

/// How the loader processes of a source are started.
pub struct LoaderSetup {
    pub launcher: ProcessLauncher,
    /// From the start of a process until it is ready to read items.
    pub handshake: Duration,
    /// After a process that has loaded nothing, and twice as long after each further one.
    pub first_pause: Duration,
    pub load: ChainSpec,
    /// How what it sends is read.
    pub rows: SentRows,
    pub readable: ReadablePlaces,
    /// Bytes of memory, with its region, that a process gets for an item that does not fit into its share, one such item at a time.
    pub alone_bytes: u64,
    pub alone: ExclusiveLoads,
    pub limits: Limits,
    pub stats: Arc<Stats>,
    pub source: SourceId,
    pub tracer: MaybeTracer,
    pub clock: RunClock,
}

impl LoaderSetup {
    /// What a process is told that starts now.
    pub(super) fn load(&self) -> ChainSpec {
        ChainSpec { readable: self.readable.as_bytes(), ..self.load.clone() }
    }
}
