//! Items on their way through a run. They are handed out many at a time, and what all of those need lies in a few pieces of memory instead
//! of a few for each: where pictures are small, memory for tickets is a good part of what a run costs beside decoding and models.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use orchestra_core::data::OwnedRow;
use orchestra_core::{ItemId, SourceId};

use crate::trace::timeline::Timeline;

/// An item on its way through a pipeline. Clones are the same item.
#[derive(Clone)]
pub struct Ticket {
    /// Where it lies, with the others that were handed out with it: all of them are kept as long as one of them is.
    block: Arc<TicketBlock>,
    at: usize,
}

struct TicketBlock {
    source: SourceId,
    /// The place of the first of them among those that the run hands out.
    first: u64,
    /// Their locators, each with its name behind it unless the locator ends with that.
    text: Vec<u8>,
    items: Vec<TicketItem>,
    /// By item; none in a run without traces.
    timelines: Vec<Timeline>,
    /// Where all of them are what one request asks about.
    request: Option<AcceptedRequest>,
}

struct AcceptedRequest {
    content: RequestPayload,
    /// The one who asked has gone: nothing more is to be done for it.
    is_withdrawn: AtomicBool,
}

/// What a request has brought for its items.
pub enum RequestPayload {
    /// The only item, whose records are asked for.
    Records(Option<RequestContent>),
    /// Rows of a model, whose outputs are asked for as they are. `Some`: the only one.
    Outputs(Option<OwnedRow>),
}

#[derive(Debug, Clone)]
pub enum RequestContent {
    /// What the fetch of its source reads, in place of a locator.
    File(Bytes),
    /// The columns that its source gives.
    Row(OwnedRow),
}

/// Half a cache line: the thread that looks at it has last seen the memory on another core, or long ago.
struct TicketItem {
    index: u64,
    /// Where in the text its locator ends, which begins where the item before it ends.
    locator_end: usize,
    name_begin: usize,
    end: usize,
}

impl Ticket {
    /// An item that is handed out alone, and traced.
    pub fn alone(id: ItemId, sequence: u64, name: &str, locator: &[u8]) -> Self {
        let mut tickets = TicketsBuilder::with_capacity(id.source, sequence, 1, true);
        tickets.add(id.index, name, locator);
        Self { block: Arc::new(tickets.block), at: 0 }
    }

    /// The first of `n` items that someone asks about, which share a name.
    pub fn of_request(first: ItemId, n: usize, name: &str, content: RequestPayload, is_traced: bool) -> Self {
        let item =
            |index| TicketItem { index: first.index + index, locator_end: 0, name_begin: 0, end: name.len() };
        let block = TicketBlock {
            source: first.source,
            first: first.index,
            text: name.as_bytes().to_vec(),
            items: (0..n as u64).map(item).collect(),
            timelines: (0..if is_traced { n } else { 0 }).map(|_| Timeline::default()).collect(),
            request: Some(AcceptedRequest { content, is_withdrawn: AtomicBool::new(false) }),
        };
        Self { block: Arc::new(block), at: 0 }
    }

    /// The number of the first item of its request.
    pub fn request(&self) -> u64 {
        self.block.first
    }

    /// Its place among the items of its request.
    pub fn row_of_request(&self) -> usize {
        self.at
    }

    /// The item that is so many places behind it in the same request.
    pub fn behind(&self, n: usize) -> Self {
        debug_assert!(self.at + n < self.block.items.len(), "it is an item of the request");
        Self { block: Arc::clone(&self.block), at: self.at + n }
    }

    /// Whether it is that item.
    pub fn is_behind(&self, first: &Self, n: usize) -> bool {
        Arc::ptr_eq(&self.block, &first.block) && self.at == first.at + n
    }

    /// The outputs of its row are asked for as they are, and no records.
    pub fn asks_for_outputs(&self) -> bool {
        matches!(&self.block.request, Some(AcceptedRequest { content: RequestPayload::Outputs(_), .. }))
    }

    /// The one who asked has gone.
    pub fn withdraw(&self) {
        if let Some(request) = &self.block.request {
            request.is_withdrawn.store(true, Ordering::Relaxed);
        }
    }

    /// Whether nothing more is to be done for it.
    pub fn is_withdrawn(&self) -> bool {
        self.block.request.as_ref().is_some_and(|request| request.is_withdrawn.load(Ordering::Relaxed))
    }

    /// Its row, where a request has brought that.
    pub fn row(&self) -> Option<&OwnedRow> {
        match &self.block.request.as_ref()?.content {
            RequestPayload::Records(Some(RequestContent::Row(row))) | RequestPayload::Outputs(Some(row)) => {
                Some(row)
            }
            RequestPayload::Records(_) | RequestPayload::Outputs(None) => None,
        }
    }

    pub fn id(&self) -> ItemId {
        ItemId { source: self.block.source, index: self.item().index }
    }

    /// Its place in the order in which this run hands items out, per source, from 0.
    pub fn sequence(&self) -> u64 {
        self.block.first + self.at as u64
    }

    /// Path relative to the source's root: `item` in records.
    pub fn name(&self) -> &str {
        let &TicketItem { name_begin, end, .. } = self.item();
        // These are the bytes of a `str`; to look at so few again costs less than to keep them apart.
        str::from_utf8(&self.block.text[name_begin..end]).unwrap_or_default()
    }

    /// What the kind of its source finds it by.
    pub fn locator(&self) -> &[u8] {
        if let Some(request) = &self.block.request {
            let RequestPayload::Records(Some(RequestContent::File(bytes))) = &request.content else {
                return b"";
            };
            return bytes;
        }
        let begin = self.at.checked_sub(1).map_or(0, |before| self.block.items[before].end);
        &self.block.text[begin..self.item().locator_end]
    }

    /// Its way through the run; `None` in a run without traces.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.block.timelines.get(self.at)
    }

    fn item(&self) -> &TicketItem {
        &self.block.items[self.at]
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id()).field("name", &self.name()).finish_non_exhaustive()
    }
}

/// The tickets of items that are handed out together, one after the other. Each is made when it is taken, by the thread that works on its
/// item: they share a count, which would go from core to core otherwise.
pub struct Tickets {
    block: Arc<TicketBlock>,
    next: usize,
}

impl Tickets {
    /// Of a request.
    pub fn of(ticket: &Ticket) -> Self {
        Self { block: Arc::clone(&ticket.block), next: ticket.at }
    }

    pub fn last_taken(&self) -> Option<Ticket> {
        let at = self.next.checked_sub(1)?;
        Some(Ticket { block: Arc::clone(&self.block), at })
    }
}

impl Iterator for Tickets {
    type Item = Ticket;

    fn next(&mut self) -> Option<Ticket> {
        let at = self.next;
        (at < self.block.items.len()).then(|| {
            self.next += 1;
            Ticket { block: Arc::clone(&self.block), at }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n_left = self.block.items.len() - self.next;
        (n_left, Some(n_left))
    }
}

impl ExactSizeIterator for Tickets {}

pub struct TicketsBuilder {
    is_traced: bool,
    block: TicketBlock,
}

const USUAL_LOCATOR: usize = 96;

impl TicketsBuilder {
    /// None yet, and room for `n`. The first will be number `first` of those that are handed out.
    pub fn with_capacity(source: SourceId, first: u64, n: usize, is_traced: bool) -> Self {
        let block = TicketBlock {
            source,
            first,
            text: Vec::with_capacity(n * USUAL_LOCATOR),
            items: Vec::with_capacity(n),
            timelines: Vec::with_capacity(if is_traced { n } else { 0 }),
            request: None,
        };
        Self { is_traced, block }
    }

    pub fn add(&mut self, index: u64, name: &str, locator: &[u8]) {
        let TicketBlock { text, items, timelines, .. } = &mut self.block;
        text.extend_from_slice(locator);
        let locator_end = text.len();
        if !locator.ends_with(name.as_bytes()) {
            text.extend_from_slice(name.as_bytes());
        }
        items.push(TicketItem { index, locator_end, name_begin: text.len() - name.len(), end: text.len() });
        if self.is_traced {
            timelines.push(Timeline::default());
        }
    }

    pub fn len(&self) -> usize {
        self.block.items.len()
    }

    pub fn build(self) -> Tickets {
        Tickets { block: Arc::new(self.block), next: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::time::Duration;

    use orchestra_core::StageId;

    use super::*;

    #[test]
    fn each_item_that_is_traced_has_a_timeline_of_its_own() {
        let mut tickets = TicketsBuilder::with_capacity(SourceId(0), 0, 2, true);
        (0..2).for_each(|index| tickets.add(index, "", b""));
        let tickets: Vec<Ticket> = tickets.build().collect();
        let timeline = |at: usize| tickets[at].timeline().unwrap();
        timeline(1).queued(StageId(0), Duration::from_secs(1));
        assert!(timeline(0).is_empty() && !timeline(1).is_empty());
    }

    #[test]
    fn items_that_are_handed_out_together_keep_what_is_theirs() {
        let mut tickets = TicketsBuilder::with_capacity(SourceId(3), 40, 1, false);
        let no_text = b"/p/\xff.png";
        tickets.add(7, r"\xFF.png", no_text);
        tickets.add(9, "", b"");
        tickets.add(11, "ä\n.png", b"/elsewhere");
        tickets.add(12, "b/ä.png", "/root/b/ä.png".as_bytes());
        assert_eq!(tickets.len(), 4);
        let mut tickets = tickets.build();
        assert!(tickets.last_taken().is_none());
        let first = tickets.next().unwrap();
        assert_eq!((tickets.len(), tickets.last_taken().unwrap().id()), (3, first.id()));
        let tickets: Vec<Ticket> = iter::once(first).chain(tickets).collect();
        let of = |t: &Ticket| (t.id().index, t.sequence(), t.name().to_owned(), t.locator().to_owned());
        assert_eq!(of(&tickets[0]), (7, 40, r"\xFF.png".to_owned(), no_text.to_vec()));
        assert_eq!(of(&tickets[1]), (9, 41, String::new(), vec![]));
        assert_eq!(of(&tickets[2]), (11, 42, "ä\n.png".to_owned(), b"/elsewhere".to_vec()));
        assert_eq!(of(&tickets[3]), (12, 43, "b/ä.png".to_owned(), "/root/b/ä.png".into()));
        assert!(tickets.iter().all(|t| t.id().source == SourceId(3) && t.timeline().is_none()));
    }
}
