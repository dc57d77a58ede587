//! Items that have ended together, sorted by whether they may be traced. Nearly none is, so what costs no look at the item itself is asked
//! first. It makes no span.

use orchestra_runtime::trace::{EndedItem, EndedItems, ItemTrace, UsualItems};

use super::sampling::{Ended, Kept, Sampler};

/// Items that have ended together, apart: those that may be traced, and the others.
pub(super) struct Sorted {
    pub(super) candidates: Vec<(ItemTrace, Option<Kept>)>,
    pub(super) others: Others,
    /// For so many more candidates that others can stand for.
    room: usize,
    /// That found none.
    pub(super) left_out: u64,
    /// Items may have parents of the host: then all are candidates.
    has_parents: bool,
}

impl Sorted {
    /// Nothing yet, and room for so many candidates that others can stand for.
    pub(super) fn new(room: usize, has_parents: bool) -> Self {
        Self { candidates: Vec::new(), others: Others::default(), room, left_out: 0, has_parents }
    }

    /// Adds a group.
    pub(super) fn group(&mut self, group: &EndedItems, sampler: &mut Sampler) {
        let usual = group.usual().filter(|_| !self.has_parents);
        if let Some(usual) = usual {
            sampler.note(usual.typical(), usual.ids().len() as u64);
            if !sampler.may_be_slow(usual.longest()) {
                self.usual(&usual, sampler);
                return;
            }
        }
        group.each(|item| {
            let facts = facts(&item);
            if usual.is_none() {
                sampler.note(facts.took, 1);
            }
            self.item(&item, sampler.decide(&facts));
        });
    }

    /// A group of which nothing is to be said but which of them are in the share.
    fn usual(&mut self, items: &UsualItems<'_>, sampler: &Sampler) {
        let before = self.candidates.len();
        // Walked only as far as there is something to take.
        let (mut walk, mut walked) = (items.items(), 0);
        for (at, id) in items.ids().iter().enumerate() {
            if !sampler.is_in_the_share(id.source.0, id.index) {
                continue;
            }
            if self.room == 0 {
                self.left_out += 1;
            } else if let Some(item) = walk.nth(at - std::mem::replace(&mut walked, at + 1)) {
                self.room -= 1;
                self.candidates.push((item.trace(), Some(Kept::Ratio)));
            }
        }
        let traced = self.candidates.len() - before;
        self.others.add(items.batch().number.number, items.ids().len() - traced);
    }

    fn item(&mut self, item: &EndedItem<'_>, kept: Option<Kept>) {
        let is_candidate = kept.is_some() || self.has_parents;
        let is_plain = kept.is_none_or(Kept::is_plain);
        if is_candidate && !(is_plain && self.room == 0) {
            self.room -= usize::from(is_plain);
            self.candidates.push((item.trace(), kept));
        } else {
            self.left_out += u64::from(kept.is_some());
            item.each_batch(|batch| self.others.add(batch.number.number, 1));
        }
    }
}

/// How many items of which batches have ended and are not traced. Few batches at a time, and mostly the same as the item before.
#[derive(Default)]
pub(super) struct Others(pub(super) Vec<(u64, usize)>);

impl Others {
    fn add(&mut self, batch: u64, items: usize) {
        match self.0.iter_mut().rev().find(|(known, _)| *known == batch) {
            Some((_, n)) => *n += items,
            None if items > 0 => self.0.push((batch, items)),
            None => {}
        }
    }
}

/// What the decision about an item depends on.
fn facts(item: &EndedItem<'_>) -> Ended {
    let id = item.ticket().id();
    Ended {
        source: id.source.0,
        index: id.index,
        has_failed: item.has_failed(),
        was_retried: item.was_retried(),
        took: item.took(),
    }
}
