//! Items that have ended together, as the tracer is told of them: a group for each batch, so that what most of them have in common is
//! told once, and what is not asked for is not copied. It decides nothing about what is kept.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::Failure;

pub use crate::flow::ticket::Ticket;
pub use crate::flow::token::Token;
use crate::trace::timeline::Timeline;
use crate::trace::{BatchTrace, ItemEnd, ItemTrace};

/// The tokens of a slot by row, shared: the slot itself may be filled anew.
pub type SlotTokens = Arc<[Option<Token>]>;

pub type MaybeFailed = (Ticket, Option<Failure>);

/// Items that were handed to the committer together and have ended together.
#[derive(Debug)]
pub struct EndedItems {
    items: ItemGroup,
    handed: Duration,
    ended: Duration,
    /// Why they could not be written.
    not_written: Option<String>,
}

#[derive(Debug)]
enum ItemGroup {
    Rows(DoneRows),
    Each(Vec<MaybeFailed>),
}

/// Rows of one batch whose items are done with it.
#[derive(Debug)]
pub struct DoneRows {
    items: SlotTokens,
    rows: Range<usize>,
    /// Rows of these that failed after all, in order: they are not of the group.
    failed: Vec<usize>,
    /// The batch, which is not noted with these items.
    batch: Arc<BatchTrace>,
    /// When the first of them began, if all went the usual way.
    usual: Option<Duration>,
}

impl DoneRows {
    /// `rows` of a batch, out of the `items` of its slot, but for those that have `failed` after all. For callers that have
    /// their tickets at hand: here it is noted what can be said of all of them, so that no other code has to look at each.
    pub fn new(items: SlotTokens, rows: Range<usize>, failed: Vec<usize>, batch: Arc<BatchTrace>) -> Self {
        let mut done = Self { items, rows, failed, batch, usual: None };
        done.usual = done.look_at_each();
        done
    }

    fn look_at_each(&self) -> Option<Duration> {
        let began = |ticket: &Ticket| ticket.timeline().filter(|timeline| timeline.is_usual())?.began();
        self.tickets().map(began).reduce(|first, next| Some(first?.min(next?)))?
    }

    pub fn tickets(&self) -> impl Iterator<Item = &Ticket> {
        let rows = self.items.get(self.rows.clone()).unwrap_or_default().iter();
        let is_done = |row: &usize| self.failed.is_empty() || self.failed.binary_search(row).is_err();
        self.rows
            .clone()
            .zip(rows)
            .filter(move |(row, _)| is_done(row))
            .filter_map(|(_, item)| Some(&item.as_ref()?.ticket))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct EndedItem<'a> {
    group: &'a EndedItems,
    ticket: &'a Ticket,
    failure: Option<&'a Failure>,
    /// The batch that is told with the group.
    batch: Option<&'a Arc<BatchTrace>>,
}

impl EndedItems {
    /// Rows of a batch that were handed over at `handed`.
    pub fn rows(rows: DoneRows, handed: Duration) -> Self {
        Self { items: ItemGroup::Rows(rows), handed, ended: handed, not_written: None }
    }

    /// Items whose batches are noted with them; each with its failure, if it failed.
    pub fn each_of(items: Vec<MaybeFailed>, handed: Duration) -> Self {
        Self { items: ItemGroup::Each(items), handed, ended: handed, not_written: None }
    }

    /// They are in the journal, or could not be written, from `ended` on.
    pub fn written(&mut self, ended: Duration, result: &Result<(), String>) {
        self.ended = ended;
        self.not_written = result.as_ref().err().cloned();
    }

    /// From the loader that took the first of them until they were in the journal, where all of them are rows of a batch that have records and were in no
    /// other batch: none took longer. It was noted where their records were made, so that a tracer need not look at each: by now their tickets lie in the
    /// caches of other cores.
    pub fn longest_if_usual(&self) -> Option<Duration> {
        let ItemGroup::Rows(DoneRows { usual, .. }) = &self.items else { return None };
        let first = usual.filter(|_| self.not_written.is_none())?;
        Some(self.ended.saturating_sub(first))
    }

    pub fn items(&self) -> impl Iterator<Item = EndedItem<'_>> {
        let (rows, each) = match &self.items {
            ItemGroup::Rows(rows) => (Some(rows), &[][..]),
            ItemGroup::Each(items) => (None, &items[..]),
        };
        let of_rows =
            rows.into_iter().flat_map(|rows| rows.tickets().map(|ticket| (ticket, None, Some(&rows.batch))));
        let of_each = each.iter().map(|(ticket, failure)| (ticket, failure.as_ref(), None));
        of_rows.chain(of_each).map(|(ticket, failure, batch)| EndedItem {
            group: self,
            ticket,
            failure,
            batch,
        })
    }
}

impl<'a> EndedItem<'a> {
    pub fn ticket(&self) -> &'a Ticket {
        self.ticket
    }

    /// From the loader that took it until it was in the journal.
    pub fn took(&self) -> Duration {
        let began = self.ticket.timeline().and_then(Timeline::began).unwrap_or(self.group.handed);
        self.group.ended.saturating_sub(began)
    }

    /// It has no record.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some() || self.group.not_written.is_some()
    }

    /// A batch that it was in gave no result for it.
    pub fn was_retried(&self) -> bool {
        self.ticket.timeline().is_some_and(Timeline::was_retried)
    }

    /// Everything that is known of it.
    pub fn trace(&self) -> ItemTrace {
        let end = match (&self.group.not_written, self.failure) {
            (Some(error), _) => ItemEnd::NotWritten(error.clone()),
            (None, Some(failure)) => ItemEnd::Failed(failure.clone()),
            (None, None) => ItemEnd::Done,
        };
        let mut steps = self.ticket.timeline().map(Timeline::steps).unwrap_or_default();
        steps.batches.extend(self.batch.map(Arc::clone));
        ItemTrace {
            id: self.ticket.id(),
            name: self.ticket.name().to_owned(),
            steps,
            handed: self.group.handed,
            ended: self.group.ended,
            end,
        }
    }
}
