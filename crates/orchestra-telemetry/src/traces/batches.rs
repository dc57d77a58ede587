//! The batches of a run whose items are not all decided about: a batch is drawn when it is known which of its items are traced, so that
//! it can name them. It decides about no item.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::trace::SpanContext;
use orchestra_runtime::trace::{BatchEnd, BatchTrace};

use super::assembly::Draw;
use super::batch_spans;
use super::spans::Span;

/// Items that a batch names at most. The SDK keeps 128 links of a span unless a variable says otherwise, and those to the run and to
/// other attempts are among them.
const MOST_LINKS: u64 = 120;
/// Batches that are held at most. Far above what a run has in flight: only records that were lost bring it here.
const MOST_PENDING: usize = 8192;

/// See the module.
#[derive(Default)]
pub(super) struct Batches {
    pending: BTreeMap<u64, Pending>,
}

struct Pending {
    batch: Arc<BatchTrace>,
    /// Items of it that have not ended.
    undecided: usize,
    /// Items of it that are traced.
    kept: u64,
    /// Something refers to it that somebody will look for.
    is_wanted: bool,
    /// Other attempts that it is linked with.
    related: Vec<u64>,
    /// Begun when somebody first refers to it: then it is drawn.
    span: Option<Span>,
    /// Made when the first of its items is traced.
    of_parts: Option<Rc<[KeyValue]>>,
}

/// What an item that is traced says of a batch.
pub(super) struct Drawn {
    /// What it refers to it by.
    pub(super) context: SpanContext,
    /// What is on the parts of the item that have to do with it.
    pub(super) of_parts: Rc<[KeyValue]>,
}

impl Batches {
    /// A batch has ended.
    pub(super) fn add(&mut self, batch: Arc<BatchTrace>, draw: &Draw<'_>) {
        let number = batch.number.number;
        let undecided = batch.items;
        let (related, span, of_parts) = (Vec::new(), None, None);
        let pending = Pending { batch, undecided, kept: 0, is_wanted: false, related, span, of_parts };
        if undecided == 0 {
            pending.draw(draw);
            return;
        }
        self.pending.insert(number, pending);
        if self.pending.len() > MOST_PENDING
            && let Some((_, oldest)) = self.pending.pop_first()
        {
            oldest.draw(draw);
        }
    }

    /// What an item that is traced says of a batch.
    pub(super) fn drawn(&mut self, number: u64, draw: &Draw<'_>) -> Option<Drawn> {
        self.pending.get_mut(&number).map(|p| p.drawn(draw))
    }

    fn context(&mut self, number: u64, draw: &Draw<'_>) -> Option<SpanContext> {
        self.pending.get_mut(&number).map(|p| p.span(draw).context())
    }

    /// An item of the batch is traced.
    pub(super) fn link_item(&mut self, number: u64, item: &SpanContext, draw: &Draw<'_>) {
        if let Some(p) = self.pending.get_mut(&number) {
            p.kept += 1;
            if p.kept <= MOST_LINKS {
                p.span(draw).link(item.clone(), "item");
            }
        }
    }

    /// Rows of the batch `before`, which failed, were in the batch `after` next.
    pub(super) fn relate(&mut self, before: u64, after: u64, draw: &Draw<'_>) {
        let is_new = |p: &Pending| !p.related.contains(&after);
        if !self.pending.get(&before).is_some_and(is_new) {
            return;
        }
        let (Some(first), Some(second)) = (self.context(before, draw), self.context(after, draw)) else {
            return;
        };
        for (number, other, to, how) in [(before, after, second, "next"), (after, before, first, "previous")]
        {
            if let Some(p) = self.pending.get_mut(&number) {
                p.related.push(other);
                p.span(draw).link(to, how);
            }
        }
    }

    /// It is decided about so many of its items. Draws the batch if those were the last ones.
    pub(super) fn decided(&mut self, number: u64, items: usize, draw: &Draw<'_>) {
        let Some(p) = self.pending.get_mut(&number) else { return };
        p.undecided = p.undecided.saturating_sub(items);
        if p.undecided == 0
            && let Some(p) = self.pending.remove(&number)
        {
            p.draw(draw);
        }
    }

    /// Nothing more is to be expected of the items.
    pub(super) fn flush(&mut self, draw: &Draw<'_>) {
        std::mem::take(&mut self.pending).into_values().for_each(|p| p.draw(draw));
    }
}

impl Pending {
    fn span(&mut self, draw: &Draw<'_>) -> &mut Span {
        self.is_wanted |= !draw.is_plain();
        let draw = self.important(draw);
        self.span.get_or_insert_with(|| batch_spans::open(&draw, &self.batch))
    }

    fn drawn(&mut self, draw: &Draw<'_>) -> Drawn {
        let context = self.span(draw).context();
        let of_parts = || batch_spans::of_parts(draw, &self.batch);
        Drawn { context, of_parts: Rc::clone(self.of_parts.get_or_insert_with(of_parts)) }
    }

    /// Its spans can be spared, unless they are in the trace of the run, or something went wrong.
    fn important<'a>(&self, draw: &Draw<'a>) -> Draw<'a> {
        let is_first = draw.run_of_batch(self.batch.number.number).is_some();
        let is_rare = is_first || self.is_wanted || self.batch.end != BatchEnd::Done;
        if is_rare { draw.rare() } else { draw.plain() }
    }

    /// Those in the trace of the run are all drawn, and those without a result; of the others, those that somebody refers to.
    fn draw(mut self, draw: &Draw<'_>) {
        let is_drawn = self.span.is_some()
            || self.batch.end != BatchEnd::Done
            || draw.run_of_batch(self.batch.number.number).is_some();
        if is_drawn {
            let span = self.span.take().unwrap_or_else(|| batch_spans::open(draw, &self.batch));
            batch_spans::draw(&self.important(draw), &self.batch, span, self.kept);
        }
    }
}
