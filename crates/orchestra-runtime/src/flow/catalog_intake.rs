//! The items of a run: those of a list that have no end yet, in its order. It lists nothing.

use std::sync::Arc;

use orchestra_core::SourceId;
use orchestra_store::{ListError, ListingReader};

use super::endpoints::Intake;
use super::listing::Listing;
use super::ticket::{Tickets, TicketsBuilder};
use crate::context::RunContext;
use crate::messages::PipelineEnd;

/// Reads the list of a source, as far as it has grown.
pub struct CatalogIntake {
    context: Arc<RunContext>,
    source: SourceId,
    /// Its items, and which of them earlier runs have finished.
    listing: Listing,
    /// `None` if it could not be opened, which ends the source.
    reader: Option<ListingReader>,
    /// How many items are listed, as of the last look.
    listed: u64,
    /// Of these, those that were unfinished at the start: what there is to hand out.
    to_do: u64,
    handed: u64,
    failure: Option<PipelineEnd>,
}

impl CatalogIntake {
    pub fn new(context: &Arc<RunContext>, source: SourceId, listing: Listing) -> Self {
        let reader = listing.catalog.reader();
        let (context, reader, error) = match reader {
            Ok(reader) => (Arc::clone(context), Some(reader), None),
            Err(error) => (Arc::clone(context), None, Some(error)),
        };
        let mut intake =
            Self { context, source, listing, reader, listed: 0, to_do: 0, handed: 0, failure: None };
        intake.failure = error.map(|error| intake.failed(&error));
        intake
    }

    /// What is in flight is finished; the run can be resumed.
    fn failed(&self, error: &ListError) -> PipelineEnd {
        let name = &self.context.plan.sources[self.source.index()].name;
        let why = format!("the items of source `{name}` cannot be listed: {error}{}", error.remedy());
        if error.is_of_source() { PipelineEnd::NotListed(why) } else { PipelineEnd::SourceFailed(why) }
    }

    /// Reading on is cheap: the list is a file in the page cache.
    fn read(&mut self, most: usize) -> Result<Tickets, ListError> {
        let is_traced = self.context.tracer.is_on();
        let mut items = TicketsBuilder::with_capacity(self.source, self.handed, most, is_traced);
        let finished = &self.listing.finished;
        while let Some(reader) = self.reader.as_mut().filter(|_| items.len() < most) {
            let index = finished.next_missing(reader.next_index());
            if index != reader.next_index() {
                reader.skip_to(index)?;
            }
            match reader.read()? {
                Some((name, locator)) => items.add(index, name, locator),
                None => break,
            }
        }
        Ok(items.build())
    }
}

impl Intake for CatalogIntake {
    fn look(&mut self) -> Option<PipelineEnd> {
        let Listing { catalog, finished } = &self.listing;
        // In this order: what is complete is known in full.
        let (extent, n) = (catalog.growth().extent(), catalog.growth().count());
        if n != std::mem::replace(&mut self.listed, n) {
            self.to_do = n - finished.count_below(n);
        }
        let failure = self.failure.take().or_else(|| catalog.growth().failure(|error| self.failed(error)));
        failure.or_else(|| (extent.known().is_some() && self.left() == 0).then_some(PipelineEnd::Complete))
    }

    fn left(&self) -> u64 {
        self.to_do.saturating_sub(self.handed)
    }

    fn next(&mut self, most: usize) -> Result<Tickets, PipelineEnd> {
        let items = self.read(most).map_err(|error| self.failed(&error))?;
        self.handed += items.len() as u64;
        Ok(items)
    }

    fn watch(&self, news: Box<dyn Fn() + Send + Sync>) {
        self.listing.catalog.growth().watch(news);
    }
}
