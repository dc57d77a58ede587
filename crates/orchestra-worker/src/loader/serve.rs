//! The loop of a loader process: takes items from the parent, and sends what became of them.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use orchestra_core::data::Refusal;
use orchestra_core::shapes::{LoaderSpec, Registry};
use orchestra_core::{ErrorClass, FailureKind};

use super::events::{Event, FromLoader, LoadChain, MapSpec, ToLoader};
use super::region::Ring;
use super::walk::{Chain, MapNode};
use crate::BUILD;
use crate::codec::{CodecError, FrameReader, FrameWriter};
use crate::frames::PROTOCOL_VERSION;
use crate::process::{EXIT_LOAD_FAILED, EXIT_PROTOCOL};
use crate::sandbox::Sandbox;
use crate::serve::{LoadError, nanos};

/// What is done is sent at least so often, so that small items share a frame and large ones do not wait.
const SEND_EVERY: Duration = Duration::from_millis(1);
/// Or when so many events are there.
const SEND_AT: usize = 1024;

/// Loads items for the parent until it hangs up. Returns the exit code.
pub fn run_loader(socket: &UnixStream, region: OwnedFd, registry: &dyn Registry) -> i32 {
    match serve(socket, region, registry) {
        Ok(()) | Err(End::Gone) => 0,
        Err(End::Refused) => EXIT_LOAD_FAILED,
        Err(End::Protocol(what)) => {
            eprintln!("loader: protocol error: {what}");
            EXIT_PROTOCOL
        }
    }
}

enum End {
    Gone,
    /// A frame that was sent says why.
    Refused,
    Protocol(String),
}

/// The parent is gone, or what it sent makes no sense.
pub(super) struct Gone;

impl From<CodecError> for End {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Gone | CodecError::Truncated { .. } => End::Gone,
            other => End::Protocol(other.to_string()),
        }
    }
}

fn serve(socket: &UnixStream, region: OwnedFd, registry: &dyn Registry) -> Result<(), End> {
    let clone = || socket.try_clone().map_err(|e| End::Protocol(e.to_string()));
    let mut reader: FrameReader<UnixStream, ToLoader> = FrameReader::new(clone()?);
    let mut writer: FrameWriter<UnixStream, FromLoader> = FrameWriter::new(clone()?);
    writer.write(&FromLoader::Hello { protocol: PROTOCOL_VERSION, build: BUILD.to_owned() })?;
    let load = match reader.read()? {
        Some(ToLoader::Load(load)) => load,
        Some(ToLoader::Items { .. }) => return Err(End::Protocol("`Items` before `Load`".to_owned())),
        None => return Err(End::Gone),
    };
    let ready = ready(&load, region, registry);
    let (mut chain, ring) = match ready {
        Ok(ready) => ready,
        Err(LoadError { class, error }) => {
            writer.write(&FromLoader::Refused { class, error })?;
            return Err(End::Refused);
        }
    };
    writer.write(&FromLoader::Ready)?;
    let mut parent = Parent {
        reader,
        writer,
        ring,
        has_all_room: load.region_bytes >= load.most_region_bytes,
        began: Instant::now(),
        items: VecDeque::new(),
        events: Vec::new(),
        item_events: 0,
        item_head: 0,
        sent_at: Instant::now(),
        end: None,
    };
    while let Some(item) = parent.next_item() {
        if chain.item(&item, &mut parent).is_err() {
            break;
        }
    }
    Err(parent.end.unwrap_or(End::Gone))
}

/// Confines the process and makes the chain.
fn ready(load: &LoadChain, region: OwnedFd, registry: &dyn Registry) -> Result<(Chain, Ring), LoadError> {
    let refused = |error: String| LoadError { class: ErrorClass::Permanent, error };
    let ring = Ring::map(region, load.region_bytes)
        .map_err(|e| refused(format!("its region cannot be mapped: {e}")))?;
    crate::limits::confine(load.memory).map_err(|e| refused(format!("its limits cannot be set: {e}")))?;
    let (mode, network) = (load.sandbox, load.network);
    let read = load.reads.iter().map(|path| OsStr::from_bytes(path).into()).collect();
    let decodes = !network;
    Sandbox { mode, read, write: Vec::new(), gpu: false, network, decodes, becomes: false }.enter()?;
    let unknown = |spec: &LoaderSpec| {
        refused(format!(
            "the program of the loader knows no kind `{}` of these settings; it must register the kinds that the run uses",
            spec.kind
        ))
    };
    fn nodes(
        specs: &[MapSpec],
        registry: &dyn Registry,
        unknown: &dyn Fn(&LoaderSpec) -> LoadError,
    ) -> Result<Vec<MapNode>, LoadError> {
        let node = |spec: &MapSpec| {
            let map = registry.map(&spec.map).ok_or_else(|| unknown(&spec.map))?;
            let (run, next) = (map.start(), nodes(&spec.next, registry, unknown)?);
            let packed = |column: &usize| map.packing(*column).map(|packing| packing.bytes());
            let packed = spec.sends.iter().map(packed).collect();
            Ok(MapNode { spec: MapSpec { next: Vec::new(), ..spec.clone() }, map, run, packed, next })
        };
        specs.iter().map(node).collect()
    }
    let fetch = registry.fetch(&load.fetch).ok_or_else(|| unknown(&load.fetch))?;
    let (run, maps) = (fetch.start(), nodes(&load.maps, registry, &unknown)?);
    Ok((Chain { fetch, sends: load.sends.clone(), maps, run }, ring))
}

/// The parent, as this process sees it.
pub(super) struct Parent {
    reader: FrameReader<UnixStream, ToLoader>,
    writer: FrameWriter<UnixStream, FromLoader>,
    ring: Ring,
    /// The region is as large as it can be.
    has_all_room: bool,
    began: Instant,
    items: VecDeque<Vec<u8>>,
    /// What is not sent yet.
    events: Vec<Event>,
    /// How many of `events` are of earlier items than the one in hand.
    item_events: usize,
    /// Where the values of the earlier items end.
    item_head: usize,
    sent_at: Instant,
    /// Why there are no more items.
    end: Option<End>,
}

impl Parent {
    /// Waits for the next item.
    fn next_item(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Some(item);
            }
            self.begin_item();
            self.send().ok()?;
            self.receive().ok()?;
        }
    }

    fn receive(&mut self) -> Result<(), Gone> {
        let received = self.reader.read().map_err(End::from).and_then(|frame| match frame {
            Some(ToLoader::Items { frames_done, text, ends }) => {
                self.ring.frames_done(usize::try_from(frames_done).unwrap_or(usize::MAX));
                let mut begin = 0;
                for end in ends.into_iter().map(|end| end as usize) {
                    let item = text
                        .get(begin..end)
                        .ok_or_else(|| End::Protocol("names outside of their frame".into()))?;
                    self.items.push_back(item.to_vec());
                    begin = end;
                }
                Ok(())
            }
            Some(ToLoader::Load(_)) => Err(End::Protocol("a second `Load` frame".into())),
            None => Err(End::Gone),
        });
        received.map_err(|end| {
            self.end = Some(end);
            Gone
        })
    }

    /// Sends what is known of earlier items than the one in hand.
    fn send(&mut self) -> Result<(), Gone> {
        self.sent_at = Instant::now();
        if self.item_events == 0 {
            return Ok(());
        }
        let events = self.events.drain(..self.item_events).collect();
        self.item_events = 0;
        let sent_ns = nanos(self.began.elapsed());
        self.ring.frame_sent(self.item_head);
        self.writer.write(&FromLoader::Events { sent_ns, events }).map_err(|error| {
            self.end = Some(error.into());
            Gone
        })
    }

    pub fn begin_item(&mut self) {
        self.item_events = self.events.len();
        self.item_head = self.ring.head();
    }

    /// Nothing has become of the item in hand so far.
    pub fn forget_item(&mut self) {
        self.events.truncate(self.item_events);
    }

    pub fn note(&mut self, event: Event) {
        self.events.push(event);
    }

    pub fn end_item(&mut self, began: Instant, read: Instant) {
        self.note(Event::Ended {
            began_ns: nanos(began - self.began),
            read_ns: nanos(read - began),
            took_ns: nanos(began.elapsed()),
        });
        self.ring.item_done();
        self.begin_item();
        if self.sent_at.elapsed() >= SEND_EVERY || self.events.len() >= SEND_AT {
            // Where the parent is gone, `next_item` finds that out.
            drop(self.send());
        }
    }

    /// `Gone` once nothing more can be sent or received.
    pub fn is_there(&self) -> Result<(), Gone> {
        if self.end.is_some() { Err(Gone) } else { Ok(()) }
    }

    /// Room in the region, and where it is. Waits until the parent is done with earlier items, if need be.
    pub fn room(&mut self, len: usize) -> Result<(u64, &mut [u8]), Refusal> {
        let at = loop {
            if let Some(at) = self.ring.take(len) {
                break at;
            }
            let gone = |_| Refusal::result("the run is over");
            self.send().map_err(gone)?;
            if !self.ring.waits_for_parent() {
                let error = format!(
                    "what is made of the item takes more than the {} MiB that a loader may hold; raise `limits.memory`",
                    self.ring.capacity() >> 20
                );
                let kind = match self.has_all_room {
                    true => FailureKind::TooLarge,
                    false => FailureKind::OutOfMemory,
                };
                return Err(Refusal { kind, error });
            }
            self.receive().map_err(gone)?;
        };
        Ok((at as u64, self.ring.value(at, len)))
    }
}
