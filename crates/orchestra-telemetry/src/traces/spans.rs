//! A span in the making, for our own exporter or for that of a host. What is put on it is decided elsewhere.
//!
//! Our own spans have the ids that `ids` works out, and become bytes as they are made: nothing is measured or sampled here, because all
//! of it has happened and been decided already, and nothing is built that would only be taken apart again. A host's spans are made by its
//! tracer, with ids of its own.

use std::cell::RefCell;
use std::rc::Rc;

use opentelemetry::global::{BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, Value};

use super::encode::{EncodedAttributes, SpanBytes};
use super::queue::{Importance, Writer};
use super::wall::Wall;
use crate::names::{attribute, event};

/// Bytes of an error's words that a span keeps: a worker may have said a lot, and each item of its batch repeats it.
const LONGEST_WORDS: usize = 1024;

/// Where spans go.
pub(super) enum Out {
    /// To our exporter.
    Own(Rc<RefCell<Writer>>),
    /// Through the tracer of the host.
    Host(BoxedTracer),
}

/// A span that has not ended. Dropped before that, it was never there (a host's span then ends at that moment).
pub(super) struct Span(Kind);

enum Kind {
    Own(Own),
    Host(BoxedSpan, Wall),
}

struct Own {
    bytes: SpanBytes,
    context: SpanContext,
    start: Wall,
    importance: Importance,
    writer: Rc<RefCell<Writer>>,
}

/// Attributes that many spans have, made once.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    all: Vec<KeyValue>,
    /// The same as bytes, for spans of ours.
    written: EncodedAttributes,
}

impl Out {
    /// Attributes for many spans.
    pub(super) fn attributes(&self, all: Vec<KeyValue>) -> Attributes {
        let written = match self {
            Out::Own(writer) => writer.borrow().written(&all),
            Out::Host(_) => EncodedAttributes::default(),
        };
        Attributes { all, written }
    }

    /// Whether so many spans more would leave enough room for what matters more than one item of many.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        match self {
            Out::Own(writer) => writer.borrow_mut().has_room(spans),
            // A host's exporter looks after itself.
            Out::Host(_) => true,
        }
    }

    /// A span that began at `start`. Without a parent it begins the trace `trace`. A host knows neither id, nor what is important.
    pub(super) fn open(
        &self,
        name: &'static str,
        (trace, span): (TraceId, SpanId),
        parent: Option<&SpanContext>,
        start: Wall,
        importance: Importance,
    ) -> Span {
        match self {
            Out::Own(writer) => {
                let context = sampled(parent.map_or(trace, SpanContext::trace_id), span);
                let mut bytes = writer.borrow_mut().span();
                bytes.begin(&context, parent, name, start);
                Span(Kind::Own(Own { bytes, context, start, importance, writer: Rc::clone(writer) }))
            }
            Out::Host(tracer) => {
                let builder = SpanBuilder::from_name(name)
                    .with_kind(SpanKind::Internal)
                    .with_start_time(start.system_time());
                let context =
                    parent.map_or_else(Context::new, |p| Context::new().with_remote_span_context(p.clone()));
                Span(Kind::Host(tracer.build_with_context(builder, &context), start))
            }
        }
    }
}

/// A context of ours.
pub(super) fn sampled(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}

impl Span {
    /// What others refer to it by.
    pub(super) fn context(&self) -> SpanContext {
        match &self.0 {
            Kind::Own(own) => own.context.clone(),
            Kind::Host(span, _) => span.span_context().clone(),
        }
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        let value = value.into();
        match &mut self.0 {
            Kind::Own(own) => own.bytes.attribute(name, &value),
            Kind::Host(span, _) => span.set_attribute(KeyValue::new(name, value)),
        }
    }

    /// The same for a text that nobody else needs.
    pub(super) fn set_text(&mut self, name: &'static str, text: &str) {
        match &mut self.0 {
            Kind::Own(own) => own.bytes.text(name, text),
            Kind::Host(span, _) => span.set_attribute(KeyValue::new(name, text.to_owned())),
        }
    }

    pub(super) fn set_all(&mut self, attributes: &Attributes) {
        match &mut self.0 {
            Kind::Own(own) => own.bytes.attributes(&attributes.written, &attributes.all),
            Kind::Host(span, _) => attributes.all.iter().for_each(|a| span.set_attribute(a.clone())),
        }
    }

    pub(super) fn set_attribute(&mut self, attribute: KeyValue) {
        match &mut self.0 {
            Kind::Own(own) => own.bytes.attribute(attribute.key.as_str(), &attribute.value),
            Kind::Host(span, _) => span.set_attribute(attribute),
        }
    }

    pub(super) fn event(&mut self, name: &'static str, at: Wall, attributes: Vec<KeyValue>) {
        match &mut self.0 {
            Kind::Own(own) => own.bytes.event(name, at, &attributes),
            Kind::Host(span, _) => span.add_event_with_timestamp(name, at.system_time(), attributes),
        }
    }

    /// Says that it has to do with another span, and how.
    pub(super) fn link(&mut self, to: SpanContext, how: &'static str) {
        let attribute = KeyValue::new(attribute::LINK, how);
        match &mut self.0 {
            Kind::Own(own) => own.bytes.link(&to, &attribute),
            Kind::Host(span, _) => span.add_link(to, vec![attribute]),
        }
    }

    /// It ended in an error, of a kind from a small set and with these words.
    pub(super) fn fail(&mut self, kind: impl Into<Value>, words: &str, at: Wall) {
        let kind = kind.into();
        let words = &words[..words.floor_char_boundary(LONGEST_WORDS)];
        self.set(attribute::ERROR_TYPE, kind.clone());
        let exception = vec![
            KeyValue::new(attribute::EXCEPTION_TYPE, kind),
            KeyValue::new(attribute::EXCEPTION_MESSAGE, words.to_owned()),
        ];
        self.event(event::EXCEPTION, at, exception);
        match &mut self.0 {
            Kind::Own(own) => own.bytes.fail(words),
            Kind::Host(span, _) => span.set_status(Status::error(words.to_owned())),
        }
    }

    /// It ended at this time, or when it began if that is later. Sends it off.
    pub(super) fn end(self, at: Wall) {
        match self.0 {
            Kind::Own(Own { mut bytes, start, importance, writer, .. }) => {
                bytes.end(at.max(start));
                writer.borrow_mut().end(bytes, importance);
            }
            Kind::Host(mut span, start) => span.end_with_timestamp(at.max(start).system_time()),
        }
    }
}
