//! The decoding thread of a loader: reads files, decodes pictures and writes them into rows of batch slots. It talks to actors only by
//! sending, and waits only for work and for a free row.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use orchestra_core::gather::Report;
use orchestra_core::{Failure, FailureKind, ImageSpec, SinkId, SourceId, StageId};
use orchestra_media::{MediaError, Preparer};
use ractor::ActorRef;
use rustix::thread::sched_setaffinity;

use crate::context::RunContext;
use crate::journey::Loading;
use crate::launcher::cpu_set;
use crate::loader_inbox::{Inbox, Tally};
use crate::messages::{ItemReport, LoaderMsg, Record, SinkMsg, SourceMsg};
use crate::read_file::read_file;
use crate::records::{self, TensorView, Tensors};
use crate::slot_pool::{RowLease, SlotPool};
use crate::stats::Counter;
use crate::ticket::{Ticket, Tickets};

/// What the loaders of a source do with each item.
pub struct LoaderWork {
    /// The run.
    pub context: Arc<RunContext>,
    /// The source.
    pub source: SourceId,
    /// Who hands out items.
    pub from: ActorRef<SourceMsg>,
    /// Where reports go.
    pub sink: ActorRef<SinkMsg>,
    /// Sinks of this source: what a file that cannot be read stands for.
    pub n_sinks: usize,
    /// Its image stages.
    pub images: Vec<ImageTarget>,
    /// Infer stages that take their inputs from these.
    pub infers: Vec<InferTarget>,
    /// Items that loaders are through with.
    pub loaded: Arc<Counter>,
}

/// An image stage.
pub struct ImageTarget {
    /// Which.
    pub stage: StageId,
    /// What it makes.
    pub spec: ImageSpec,
    /// Sinks right on it.
    pub sinks: Vec<SinkId>,
}

/// An infer stage that is fed by loaders.
pub struct InferTarget {
    /// Which.
    pub stage: StageId,
    /// Its memory.
    pub pool: Arc<SlotPool>,
    /// For each model input: which of `LoaderWork::images` it shows.
    pub inputs: Vec<usize>,
    /// Sinks downstream of it.
    pub sinks: usize,
}

/// Starts a thread that works off `first`, and then asks for more.
pub fn start(
    work: &Arc<LoaderWork>,
    me: ActorRef<LoaderMsg>,
    first: VecDeque<Tickets>,
) -> io::Result<Arc<Inbox>> {
    let inbox = Arc::new(Inbox::new(first));
    let (work, theirs) = (Arc::clone(work), Arc::clone(&inbox));
    let near = work.context.plan.loaders_near.as_ref().map(|near| cpu_set(&near.cores));
    std::thread::Builder::new().name("loader".into()).spawn(move || {
        // Where the kernel refuses, it runs anywhere, which costs a little speed.
        if let Some(Err(error)) = near.map(|cores| sched_setaffinity(None, &cores)) {
            tracing::warn!(%error, "a loader cannot be kept near the devices");
        }
        let mut thread = LoaderThread {
            inbox: theirs,
            me,
            preparer: Preparer::new(),
            file: Vec::new(),
            read_at: None,
            stepped: Duration::ZERO,
            tally: Tally::default(),
        };
        while let Some((ticket, started)) =
            thread.inbox.next(std::mem::take(&mut thread.tally), &work, &thread.me)
        {
            thread.item(&work, ticket, started);
        }
    })?;
    Ok(inbox)
}

struct LoaderThread {
    inbox: Arc<Inbox>,
    me: ActorRef<LoaderMsg>,
    preparer: Preparer,
    file: Vec<u8>,
    /// When the file of the item in hand was read, if somebody traces it.
    read_at: Option<Instant>,
    /// Likewise, when its last step ended, on the clock of the run. Steps are added up: a difference of instants costs more than what is
    /// done with it.
    stepped: Duration,
    /// Of the item in hand.
    tally: Tally,
}

impl LoaderThread {
    fn item(&mut self, work: &LoaderWork, ticket: Ticket, started: Instant) {
        self.read_at = None;
        let decoded = self.guarded(|this| this.read_and_decode(work, &ticket));
        let decoded_at = Instant::now();
        if !self.inbox.decoded() {
            return; // Given up meanwhile: somebody else has reported the item.
        }
        self.tally.decoded = 1;
        self.tally.decoding = decoded_at - started;
        self.tally.loading = self.tally.decoding;
        if let Some(journey) = ticket.journey() {
            let began = work.context.clock.at(started);
            let read = self.read_at.map(|read_at| began + (read_at - started));
            self.stepped = began + self.tally.decoding;
            journey.loaded(Loading { began, read, decoded: self.stepped });
        }
        let mut reports = Vec::new();
        let mut left = work.n_sinks;
        let last_row = match decoded {
            Ok(()) => self.guarded(|this| this.hand_over(work, &ticket, decoded_at, &mut reports, &mut left)),
            Err(failure) => Err(failure),
        };
        match last_row {
            // Here, where it need not be cloned: tickets share a count, which other cores change, too.
            Ok(Some(row)) => row.publish(ticket),
            Ok(None) => {}
            Err((kind, error)) => reports.push(work.failure(&ticket, left, kind, error)),
        }
        if !reports.is_empty() {
            drop(work.sink.cast(SinkMsg::Reports(reports)));
        }
        self.tally.loaded = 1;
    }

    /// A panic in here is a bug of ours; it fails the item by name instead of losing it with its thread.
    fn guarded<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T, Refusal>) -> Result<T, Refusal> {
        catch_unwind(AssertUnwindSafe(|| f(self))).unwrap_or_else(|_| {
            self.preparer = Preparer::new();
            Err((FailureKind::Decode, "internal error while preparing the picture; this is a bug".to_owned()))
        })
    }

    fn read_and_decode(&mut self, work: &LoaderWork, ticket: &Ticket) -> Result<(), Refusal> {
        read_file(ticket.path(), &mut self.file)?;
        self.read_at = ticket.journey().map(|_| Instant::now());
        self.tally.bytes = self.file.len() as u64;
        let max_pixels = work.context.plan.limits.max_pixels;
        let specs = work.images.iter().map(|image| &image.spec);
        self.preparer.decode_for(&self.file, max_pixels, specs).map_err(refusal)?;
        Ok(())
    }

    /// Writes the picture to everything that wants it. Rows are claimed one stage after the other and never held while waiting.
    /// `left` counts the sinks that have neither a record nor a row on its way to them: what a failure stands for. Gives the last row, which
    /// is written and has still to be published.
    fn hand_over<'a>(
        &mut self,
        work: &'a LoaderWork,
        ticket: &Ticket,
        mut since: Instant,
        reports: &mut Vec<ItemReport>,
        left: &mut usize,
    ) -> Result<Option<RowLease<'a>>, Refusal> {
        for image in work.images.iter().filter(|i| !i.sinks.is_empty()) {
            reports.extend(self.records_of(work, image, ticket)?);
            *left -= image.sinks.len();
            let took = self.step(&mut since, Instant::now());
            self.tally.loading += took;
        }
        let mut written: Option<RowLease<'a>> = None;
        for target in &work.infers {
            if let Some(row) = written.take() {
                row.publish(ticket.clone());
            }
            // A clock is only read where something was waited for: for small pictures that counts.
            let mut lease = match target.pool.claim_now() {
                Some(lease) => lease,
                None => {
                    // `None`: the pipeline is being torn down, and the item stays unfinished for the next run.
                    let Some(lease) = target.pool.claim() else { return Ok(None) };
                    let waited = self.step(&mut since, Instant::now());
                    self.tally.waiting_for_row += waited;
                    lease
                }
            };
            for (input, &image) in target.inputs.iter().enumerate() {
                // On an error the lease is dropped, and the row becomes a hole.
                self.preparer.write_row(&work.images[image].spec, lease.input_mut(input)).map_err(refusal)?;
            }
            // Also what whoever traces is told, who is therefore told before the row can go on.
            let took = self.step(&mut since, Instant::now());
            self.tally.loading += took;
            if let Some(journey) = ticket.journey() {
                journey.queued(target.stage, self.stepped);
            }
            *left -= target.sinks;
            written = Some(lease);
        }
        self.tally.passed = 1;
        Ok(written)
    }

    /// A step of the item in hand that began at `since` has ended. Gives how long it took.
    fn step(&mut self, since: &mut Instant, ended: Instant) -> Duration {
        let took = ended - *since;
        self.stepped += took;
        *since = ended;
        took
    }

    fn records_of(
        &mut self,
        work: &LoaderWork,
        image: &ImageTarget,
        ticket: &Ticket,
    ) -> Result<Vec<ItemReport>, Refusal> {
        let shape = image.spec.row();
        let mut row = vec![0u8; shape.iter().product::<usize>() * image.spec.dtype.size_bytes()];
        self.preparer.write_row(&image.spec, &mut row).map_err(refusal)?;
        let tensor = TensorView { name: "pixels", dtype: image.spec.dtype, shape: &shape, data: &row };
        let source = &work.context.plan.sources[work.source.index()].name;
        let mut line = Vec::new();
        records::result_line(ticket, source, &Tensors(&[tensor]), &mut line)
            .map_err(|error| (FailureKind::Result, error))?;
        let line = Bytes::from(line);
        let reports = image.sinks.iter().map(|&sink| ItemReport {
            ticket: ticket.clone(),
            report: Report::Record(Record { sink, line: line.clone() }),
        });
        Ok(reports.collect())
    }
}

/// Why an item ends at a loader.
type Refusal = (FailureKind, String);

fn refusal(error: MediaError) -> Refusal {
    (error.kind(), error.to_string())
}

impl LoaderWork {
    /// The report of an item that ends here, for `sinks` sinks.
    #[must_use]
    pub fn failure(&self, ticket: &Ticket, sinks: usize, kind: FailureKind, error: String) -> ItemReport {
        for image in &self.images {
            self.context.stats.stage(image.stage).failed.add(1);
        }
        let failure = Failure { stage: self.first_stage_name(), kind, error, attempts: 1 };
        ItemReport { ticket: ticket.clone(), report: Report::Failed { sinks, failure } }
    }

    /// The stage that reading and decoding are booked on.
    #[must_use]
    pub fn first_stage_name(&self) -> String {
        let plan = &self.context.plan;
        self.images.first().map_or_else(String::new, |i| plan.stages[i.stage.index()].name.clone())
    }
}
