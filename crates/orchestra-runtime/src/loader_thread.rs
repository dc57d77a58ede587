//! The decoding thread of a loader: reads files, decodes pictures and writes them into rows of batch slots. It talks to actors only by
//! sending, and waits only for work and for a free row.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use orchestra_core::gather::Report;
use orchestra_core::{Failure, FailureKind, ImageSpec, SinkId, SourceId, StageId};
use orchestra_media::{MediaError, Preparer};
use ractor::ActorRef;

use crate::context::RunContext;
use crate::messages::{ItemReport, LoaderMsg, Record, SinkMsg, SourceMsg, Ticket};
use crate::records::{self, TensorView, Tensors};
use crate::slot_pool::SlotPool;
use crate::stats::Counter;

/// No picture file is larger; it bounds what one item may take of our memory before it is decoded.
const LARGEST_FILE_BYTES: u64 = 1 << 30;

/// More items are asked for when so few are left, or half of the last ones if that is less: enough to work on until the answer comes.
const ASK_BELOW: usize = 32;

/// So many items are booked at once,
const BOOK_AT: u64 = 32;

/// and what there is, at least so often: the progress is drawn from it.
const BOOK_EVERY: Duration = Duration::from_millis(100);

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
    /// Its memory.
    pub pool: Arc<SlotPool>,
    /// For each model input: which of `LoaderWork::images` it shows.
    pub inputs: Vec<usize>,
    /// Sinks downstream of it.
    pub sinks: usize,
}

/// The items that wait for one thread, and what it is at.
pub struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Default)]
struct InboxState {
    items: VecDeque<Arc<Ticket>>,
    at: Option<(Arc<Ticket>, Instant)>,
    asked: bool,
    /// More are asked for when so few are left.
    ask_below: usize,
    /// What is done and not booked: here, and not in the thread, so that it is not lost with a thread that hangs.
    tally: Tally,
    booked_at: Option<Instant>,
    closed: bool,
}

/// What is left of a thread that was given up.
pub struct Abandoned {
    /// The item that it hangs on.
    pub stuck: Arc<Ticket>,
    /// Items that it had not begun.
    pub rest: Vec<Arc<Ticket>>,
    /// What it had done and not booked.
    pub tally: Tally,
}

/// What a thread has done since it was last booked. Counters that all threads share cost each of them a trip to another core, so they
/// are changed once for many small items.
#[derive(Debug, Default)]
pub struct Tally {
    /// Items that the thread is through with.
    loaded: u64,
    /// Of these, read and decoded or refused.
    decoded: u64,
    /// Of these, handed on.
    passed: u64,
    /// Time of reading and decoding.
    decoding: Duration,
    /// The same, with writing rows and records.
    loading: Duration,
    /// Time of waiting for a free row.
    waiting_for_row: Duration,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.loaded += other.loaded;
        self.decoded += other.decoded;
        self.passed += other.passed;
        self.decoding += other.decoding;
        self.loading += other.loading;
        self.waiting_for_row += other.waiting_for_row;
    }

    /// Adds it to the counters of the run.
    pub fn book(self, work: &LoaderWork) {
        let stats = &work.context.stats;
        stats.loading.add_time(self.loading);
        stats.waiting_for_row.add_time(self.waiting_for_row);
        for image in &work.images {
            let stage = stats.stage(image.stage);
            stage.entered.add(self.decoded);
            stage.left.add(self.passed);
            stage.busy.add_time(self.decoding / u32::try_from(work.images.len()).unwrap_or(1));
        }
        work.loaded.add(self.loaded);
    }
}

/// Starts a thread that works off `first`, and then asks for more.
pub fn start(
    work: &Arc<LoaderWork>,
    me: ActorRef<LoaderMsg>,
    first: Vec<Arc<Ticket>>,
) -> io::Result<Arc<Inbox>> {
    let state = InboxState { items: first.into(), ..InboxState::default() };
    let inbox = Arc::new(Inbox { state: Mutex::new(state), changed: Condvar::new() });
    let (work, theirs) = (Arc::clone(work), Arc::clone(&inbox));
    std::thread::Builder::new().name("loader".into()).spawn(move || {
        let mut thread = LoaderThread {
            inbox: theirs,
            me,
            preparer: Preparer::new(),
            file: Vec::new(),
            tally: Tally::default(),
        };
        while let Some((ticket, started)) = thread.next_item(&work) {
            thread.item(&work, &ticket, started);
        }
    })?;
    Ok(inbox)
}

impl InboxState {
    fn book(&mut self, work: &LoaderWork) {
        std::mem::take(&mut self.tally).book(work);
    }
}

impl Inbox {
    /// Adds items.
    pub fn push(&self, items: Vec<Arc<Ticket>>) {
        let mut state = self.lock();
        // What one thread hoards, others cannot have, and a run that is interrupted has still to do.
        state.ask_below = (items.len() / 2).min(ASK_BELOW);
        state.items.extend(items);
        state.asked = false;
        drop(state);
        self.changed.notify_one();
    }

    /// The thread shall end after the item in hand.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// If the item in hand has taken longer than `limit`: gives the thread up, and returns that item, all that wait, and what the
    /// thread had not booked yet.
    pub fn abandon_if_stuck(&self, limit: Duration) -> Option<Abandoned> {
        let mut state = self.lock();
        state.at.as_ref().filter(|(_, since)| since.elapsed() > limit)?;
        let (stuck, _) = state.at.take()?;
        state.closed = true;
        let tally = std::mem::take(&mut state.tally);
        Some(Abandoned { stuck, rest: state.items.drain(..).collect(), tally })
    }

    /// The item in hand is decoded: from now on the thread only waits for others. `false`: the thread was given up.
    fn decoded(&self) -> bool {
        self.lock().at.take().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct LoaderThread {
    inbox: Arc<Inbox>,
    me: ActorRef<LoaderMsg>,
    preparer: Preparer,
    file: Vec<u8>,
    /// Of the item in hand.
    tally: Tally,
}

impl LoaderThread {
    /// Waits for the next item, and says when it was there. Asks for more before the last one is taken, so that the thread does not
    /// wait for the answer.
    fn next_item(&mut self, work: &LoaderWork) -> Option<(Arc<Ticket>, Instant)> {
        let mut waited = false;
        let mut state = self.inbox.lock();
        state.tally.add(std::mem::take(&mut self.tally));
        loop {
            if state.closed {
                state.book(work);
                return None;
            }
            if state.items.len() <= state.ask_below && !state.asked {
                state.asked = true;
                // The source is gone only when the pipeline is: then the inbox is closed, too.
                drop(work.from.cast(SourceMsg::Demand(self.me.clone())));
            }
            if let Some(ticket) = state.items.pop_front() {
                let now = Instant::now();
                let late = state.booked_at.is_none_or(|at| now - at > BOOK_EVERY);
                if late || state.tally.loaded >= BOOK_AT {
                    state.book(work);
                    state.booked_at = Some(now);
                }
                state.at = Some((Arc::clone(&ticket), now));
                return Some((ticket, now));
            }
            if !waited {
                waited = true;
                // Everything handed to this thread is loaded: at the end of the listing the source waits for this.
                state.book(work);
                drop(work.from.cast(SourceMsg::LoadersProgressed));
            }
            state = self.inbox.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn item(&mut self, work: &LoaderWork, ticket: &Arc<Ticket>, started: Instant) {
        let decoded = self.guarded(|this| this.read_and_decode(work, &ticket.path));
        let decoded_at = Instant::now();
        if !self.inbox.decoded() {
            return; // Given up meanwhile: somebody else has reported the item.
        }
        self.tally.decoded = 1;
        self.tally.decoding = decoded_at - started;
        self.tally.loading = self.tally.decoding;
        let mut reports = Vec::new();
        let mut left = work.n_sinks;
        let handed = match decoded {
            Ok(()) => self.guarded(|this| this.hand_over(work, ticket, decoded_at, &mut reports, &mut left)),
            Err(failure) => Err(failure),
        };
        if let Err((kind, error)) = handed {
            reports.push(work.failure(ticket, left, kind, error));
        }
        if !reports.is_empty() {
            drop(work.sink.cast(SinkMsg::Reports(reports)));
        }
        self.tally.loaded = 1;
    }

    /// A panic in here is a bug of ours; it fails the item by name instead of losing it with its thread.
    fn guarded(&mut self, f: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal> {
        catch_unwind(AssertUnwindSafe(|| f(self))).unwrap_or_else(|_| {
            self.preparer = Preparer::new();
            Err((FailureKind::Decode, "internal error while preparing the picture; this is a bug".to_owned()))
        })
    }

    fn read_and_decode(&mut self, work: &LoaderWork, path: &Path) -> Result<(), Refusal> {
        read_file(path, &mut self.file)?;
        let max_pixels = work.context.plan.limits.max_pixels;
        let specs = work.images.iter().map(|image| &image.spec);
        self.preparer.decode_for(&self.file, max_pixels, specs).map_err(refusal)?;
        Ok(())
    }

    /// Writes the picture to everything that wants it. Rows are claimed one stage after the other and never held while waiting.
    /// `left` counts the sinks that have neither a record nor a row on its way to them: what a failure stands for.
    fn hand_over(
        &mut self,
        work: &LoaderWork,
        ticket: &Arc<Ticket>,
        mut since: Instant,
        reports: &mut Vec<ItemReport>,
        left: &mut usize,
    ) -> Result<(), Refusal> {
        for image in work.images.iter().filter(|i| !i.sinks.is_empty()) {
            reports.extend(self.records_of(work, image, ticket)?);
            *left -= image.sinks.len();
            let written = Instant::now();
            self.tally.loading += written - since;
            since = written;
        }
        for target in &work.infers {
            // A clock is only read where something was waited for: for small pictures that counts.
            let mut lease = match target.pool.claim_now() {
                Some(lease) => lease,
                None => {
                    // `None`: the pipeline is being torn down, and the item stays unfinished for the next run.
                    let Some(lease) = target.pool.claim() else { return Ok(()) };
                    let claimed = Instant::now();
                    self.tally.waiting_for_row += claimed - since;
                    since = claimed;
                    lease
                }
            };
            for (input, &image) in target.inputs.iter().enumerate() {
                // On an error the lease is dropped, and the row becomes a hole.
                self.preparer.write_row(&work.images[image].spec, lease.input_mut(input)).map_err(refusal)?;
            }
            lease.publish(Arc::clone(ticket));
            *left -= target.sinks;
            let published = Instant::now();
            self.tally.loading += published - since;
            since = published;
        }
        self.tally.passed = 1;
        Ok(())
    }

    fn records_of(
        &mut self,
        work: &LoaderWork,
        image: &ImageTarget,
        ticket: &Arc<Ticket>,
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
            ticket: Arc::clone(ticket),
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
    pub fn failure(
        &self,
        ticket: &Arc<Ticket>,
        sinks: usize,
        kind: FailureKind,
        error: String,
    ) -> ItemReport {
        for image in &self.images {
            self.context.stats.stage(image.stage).failed.add(1);
        }
        let failure = Failure { stage: self.first_stage_name(), kind, error, attempts: 1 };
        ItemReport { ticket: Arc::clone(ticket), report: Report::Failed { sinks, failure } }
    }

    /// The stage that reading and decoding are booked on.
    #[must_use]
    pub fn first_stage_name(&self) -> String {
        let plan = &self.context.plan;
        self.images.first().map_or_else(String::new, |i| plan.stages[i.stage.index()].name.clone())
    }
}

/// Reads a whole file into `buffer`. Only regular files: a FIFO would hang, a device would never end.
///
/// # Errors
/// The kind of the failure that the item ends with, and why.
pub fn read_file(path: &Path, buffer: &mut Vec<u8>) -> Result<(), (FailureKind, String)> {
    let read = |error: io::Error| (FailureKind::Read, format!("cannot read `{}`: {error}", path.display()));
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(read)?;
    let meta = file.metadata().map_err(read)?;
    let kind = meta.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() {
            "a folder"
        } else if kind.is_fifo() {
            "a pipe"
        } else {
            "a device"
        };
        return Err((FailureKind::Read, format!("`{}` is {what}, expected a picture file", path.display())));
    }
    if meta.len() > LARGEST_FILE_BYTES {
        let error = format!(
            "`{}` has {} bytes, more than a picture file can have (1 GiB)",
            path.display(),
            meta.len()
        );
        return Err((FailureKind::TooLarge, error));
    }
    read_whole(&file, meta.len(), buffer).map_err(read)
}

/// Reads to the end of a file that has `len` bytes, with a single call for most files: a read that leaves room in the buffer once all
/// bytes are there was the last one. A file that grows meanwhile is read on, up to a bound.
fn read_whole(file: &File, len: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    // One more than expected, so that the expected end leaves room.
    buffer.reserve(usize::try_from(len).unwrap_or(usize::MAX).saturating_add(1));
    loop {
        match rustix::io::read(file, rustix::buffer::spare_capacity(buffer)) {
            Ok(0) => return Ok(()),
            // Less than asked for: a network drive may do that in the middle, too, so it means the end only at the expected length.
            // A length of 0 means nothing: files that a system makes up as they are read have it, too.
            Ok(_) if len > 0 && buffer.len() < buffer.capacity() && buffer.len() as u64 >= len => {
                return Ok(());
            }
            Ok(_) if buffer.len() as u64 > LARGEST_FILE_BYTES => return Ok(()),
            Ok(_) => buffer.reserve(1),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_nothing_else_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let mut buffer = Vec::new();
        let fifo = dir.path().join("pipe.jpg");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        let cases = [
            (fifo.as_path(), "is a pipe"),
            (dir.path(), "is a folder"),
            (Path::new("/dev/null"), "is a device"),
        ];
        for (path, what) in cases {
            let (kind, error) = read_file(path, &mut buffer).unwrap_err();
            assert_eq!(kind, FailureKind::Read);
            assert!(error.contains(what), "{error}");
        }
        let (_, error) = read_file(&dir.path().join("gone"), &mut buffer).unwrap_err();
        assert!(error.contains("gone") && error.contains("No such file"), "{error}");
        let file = dir.path().join("a");
        std::fs::write(&file, b"abc").unwrap();
        read_file(&file, &mut buffer).unwrap();
        assert_eq!(buffer, b"abc");
    }

    #[test]
    fn a_file_that_claims_to_be_empty_is_read_to_its_end_whatever_was_read_before() {
        // A file without a length that has content: the kernel makes it up.
        let made_up = Path::new("/proc/self/mountinfo");
        let mut buffer = Vec::new();
        read_file(made_up, &mut buffer).unwrap();
        let whole = buffer.len();
        assert!(whole > 0 && std::fs::metadata(made_up).unwrap().len() == 0);
        buffer.reserve(1 << 20);
        read_file(made_up, &mut buffer).unwrap();
        assert_eq!(buffer.len(), whole);
    }

    #[test]
    fn a_thread_that_is_stuck_is_given_up_with_its_item_and_the_rest_is_kept() {
        let ticket = |index| {
            let id = orchestra_core::ItemId { source: SourceId(0), index };
            Arc::new(Ticket { id, sequence: index, name: String::new(), path: std::path::PathBuf::new() })
        };
        let inbox = Inbox { state: Mutex::default(), changed: Condvar::new() };
        inbox.push(vec![ticket(1), ticket(2)]);
        assert!(inbox.abandon_if_stuck(Duration::ZERO).is_none(), "nothing is in hand");
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        inbox.lock().at = Some((ticket(0), long_ago));
        assert!(inbox.abandon_if_stuck(Duration::from_secs(90)).is_none(), "not yet");
        inbox.lock().tally.loaded = 7;
        let Abandoned { stuck, rest, tally } = inbox.abandon_if_stuck(Duration::from_secs(30)).unwrap();
        assert_eq!(tally.loaded, 7, "what the thread had done is not lost with it");
        assert_eq!(stuck.id.index, 0);
        assert_eq!(rest.iter().map(|t| t.id.index).collect::<Vec<_>>(), [1, 2]);
        assert!(!inbox.decoded(), "the thread learns that it was given up");
    }
}
