//! Items that have ended together, as whoever traces is told of them: a group for each batch, so that what most of them have in common is
//! told once, and what nobody asks for is not copied. It decides nothing about what is kept.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::Failure;

use crate::journey::Steps;
use crate::messages::Ticket;
use crate::trace::{BatchTrace, ItemEnd, ItemTrace};

/// The items of a slot by row, shared: the slot itself may be filled anew.
pub type SlotItems = Arc<[Option<Arc<Ticket>>]>;

/// An item; with its failure, if it failed.
pub type MaybeFailed = (Arc<Ticket>, Option<Failure>);

/// Items that were handed to the committer together and have ended together.
#[derive(Debug)]
pub struct EndedItems {
    items: Items,
    handed: Duration,
    ended: Duration,
    /// Why they could not be written.
    not_written: Option<String>,
}

#[derive(Debug)]
enum Items {
    Rows(DoneRows),
    Each(Vec<MaybeFailed>),
}

/// Rows of one batch whose items are done with it.
#[derive(Debug)]
pub struct DoneRows {
    /// The items of their slot.
    pub items: SlotItems,
    /// The rows of the batch.
    pub rows: Range<usize>,
    /// Rows of these that failed after all, in order: they are not of the group.
    pub failed: Vec<usize>,
    /// The batch, which is not noted with these items.
    pub batch: Arc<BatchTrace>,
}

impl DoneRows {
    /// The tickets of the group.
    pub fn tickets(&self) -> impl Iterator<Item = &Arc<Ticket>> {
        let rows = self.items.get(self.rows.clone()).unwrap_or_default().iter();
        let is_done = |row: &usize| self.failed.is_empty() || self.failed.binary_search(row).is_err();
        self.rows.clone().zip(rows).filter(move |(row, _)| is_done(row)).filter_map(|(_, item)| item.as_ref())
    }
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct EndedItem<'a> {
    group: &'a EndedItems,
    ticket: &'a Arc<Ticket>,
    failure: Option<&'a Failure>,
    /// The batch that is told with the group.
    batch: Option<&'a Arc<BatchTrace>>,
}

impl EndedItems {
    /// Rows of a batch that were handed over at `handed`.
    #[must_use]
    pub fn rows(rows: DoneRows, handed: Duration) -> Self {
        Self { items: Items::Rows(rows), handed, ended: handed, not_written: None }
    }

    /// Items whose batches are noted with them; each with its failure, if it failed.
    #[must_use]
    pub fn each_of(items: Vec<MaybeFailed>, handed: Duration) -> Self {
        Self { items: Items::Each(items), handed, ended: handed, not_written: None }
    }

    /// They are in the journal, or could not be written, from `ended` on.
    pub fn written(&mut self, ended: Duration, result: &Result<(), String>) {
        self.ended = ended;
        self.not_written = result.as_ref().err().cloned();
    }

    /// Calls `f` for each of them.
    pub fn each<'a>(&'a self, mut f: impl FnMut(EndedItem<'a>)) {
        match &self.items {
            Items::Rows(rows) => {
                let batch = Some(&rows.batch);
                rows.tickets().for_each(|ticket| f(EndedItem { group: self, ticket, failure: None, batch }));
            }
            Items::Each(items) => {
                let items = items.iter().map(|(ticket, failure)| (ticket, failure.as_ref()));
                items
                    .for_each(|(ticket, failure)| f(EndedItem { group: self, ticket, failure, batch: None }));
            }
        }
    }
}

impl<'a> EndedItem<'a> {
    /// The item.
    #[must_use]
    pub fn ticket(&self) -> &'a Arc<Ticket> {
        self.ticket
    }

    /// From the loader that took it until it was in the journal.
    #[must_use]
    pub fn took(&self) -> Duration {
        let began = self.ticket.journey.began().unwrap_or(self.group.handed);
        self.group.ended.saturating_sub(began)
    }

    /// It has no record.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failure.is_some() || self.group.not_written.is_some()
    }

    /// A batch that it was in gave no result for it.
    #[must_use]
    pub fn was_retried(&self) -> bool {
        self.ticket.journey.was_retried()
    }

    /// Calls `f` for each batch that it was in, in the order in which they ended.
    pub fn each_batch(&self, mut f: impl FnMut(&Arc<BatchTrace>)) {
        self.ticket.journey.each_batch(&mut f);
        self.batch.into_iter().for_each(f);
    }

    /// Everything that is known of it.
    #[must_use]
    pub fn trace(&self) -> ItemTrace {
        let end = match (&self.group.not_written, self.failure) {
            (Some(error), _) => ItemEnd::NotWritten(error.clone()),
            (None, Some(failure)) => ItemEnd::Failed(failure.clone()),
            (None, None) => ItemEnd::Done,
        };
        let mut steps: Steps = self.ticket.journey.steps();
        steps.batches.extend(self.batch.map(Arc::clone));
        ItemTrace {
            ticket: Arc::clone(self.ticket),
            steps,
            handed: self.group.handed,
            ended: self.group.ended,
            end,
        }
    }
}
