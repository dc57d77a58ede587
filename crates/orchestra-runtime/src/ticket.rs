//! Items on their way through a run. They are handed out many at a time, and what all of those need lies in a few pieces of memory instead
//! of a few for each: where pictures are small, memory for tickets is a good part of what a run costs beside decoding and models.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::{ItemId, SourceId};

use crate::journey::Journey;

/// An item on its way through a pipeline. Clones are the same item.
#[derive(Clone)]
pub struct Ticket {
    /// Where it lies, with the others that were handed out with it: all of them are kept as long as one of them is.
    block: Arc<Block>,
    at: usize,
}

/// Items that are handed out together.
struct Block {
    names: String,
    paths: Vec<u8>,
    items: Vec<Item>,
}

struct Item {
    id: ItemId,
    sequence: u64,
    /// Where its name and its path end in those of the block. They begin where those of the item before it end.
    name_end: usize,
    path_end: usize,
    journey: Journey,
}

impl Ticket {
    /// An item that is handed out alone.
    #[must_use]
    pub fn alone(id: ItemId, sequence: u64, name: &str, path: &Path) -> Self {
        let mut tickets = Tickets::with_capacity(id.source, sequence, 1);
        tickets.add(id.index, name, path);
        Self { block: Arc::new(tickets.block), at: 0 }
    }

    /// Which.
    #[must_use]
    pub fn id(&self) -> ItemId {
        self.item().id
    }

    /// Its place in the order in which this run hands items out, per source, from 0.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.item().sequence
    }

    /// Path relative to the source's root: `item` in records.
    #[must_use]
    pub fn name(&self) -> &str {
        let begin = self.before().map_or(0, |item| item.name_end);
        &self.block.names[begin..self.item().name_end]
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        let begin = self.before().map_or(0, |item| item.path_end);
        Path::new(OsStr::from_bytes(&self.block.paths[begin..self.item().path_end]))
    }

    /// Its way through the run; empty if nobody traces.
    #[must_use]
    pub fn journey(&self) -> &Journey {
        &self.item().journey
    }

    fn item(&self) -> &Item {
        &self.block.items[self.at]
    }

    fn before(&self) -> Option<&Item> {
        self.at.checked_sub(1).map(|at| &self.block.items[at])
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id()).field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Makes the tickets of items that are handed out together.
pub struct Tickets {
    source: SourceId,
    first: u64,
    block: Block,
}

/// What names and paths usually take.
const USUAL_NAME: usize = 32;
const USUAL_PATH: usize = 96;

impl Tickets {
    /// None yet, and room for `n`. The first will be number `first` of those that are handed out.
    #[must_use]
    pub fn with_capacity(source: SourceId, first: u64, n: usize) -> Self {
        let block = Block {
            names: String::with_capacity(n * USUAL_NAME),
            paths: Vec::with_capacity(n * USUAL_PATH),
            items: Vec::with_capacity(n),
        };
        Self { source, first, block }
    }

    /// Adds item `index` of the source.
    pub fn add(&mut self, index: u64, name: &str, path: &Path) {
        let Block { names, paths, items } = &mut self.block;
        names.push_str(name);
        paths.extend_from_slice(path.as_os_str().as_bytes());
        items.push(Item {
            id: ItemId { source: self.source, index },
            sequence: self.first + items.len() as u64,
            name_end: names.len(),
            path_end: paths.len(),
            journey: Journey::default(),
        });
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.items.len()
    }

    /// A ticket for each.
    #[must_use]
    pub fn finish(self) -> Vec<Ticket> {
        let block = Arc::new(self.block);
        (0..block.items.len()).map(|at| Ticket { block: Arc::clone(&block), at }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_that_are_handed_out_together_keep_what_is_theirs() {
        let mut tickets = Tickets::with_capacity(SourceId(3), 40, 1);
        let no_text = OsStr::from_bytes(b"/p/\xff.png");
        tickets.add(7, r"\xFF.png", Path::new(no_text));
        tickets.add(9, "", Path::new(""));
        tickets.add(11, "ä\n.png", Path::new("/elsewhere"));
        assert_eq!(tickets.len(), 3);
        let tickets = tickets.finish();
        let of = |t: &Ticket| (t.id().index, t.sequence(), t.name().to_owned(), t.path().to_owned());
        assert_eq!(of(&tickets[0]), (7, 40, r"\xFF.png".to_owned(), no_text.into()));
        assert_eq!(of(&tickets[1]), (9, 41, String::new(), "".into()));
        assert_eq!(of(&tickets[2]), (11, 42, "ä\n.png".to_owned(), "/elsewhere".into()));
        assert!(tickets.iter().all(|t| t.id().source == SourceId(3)));
    }
}
