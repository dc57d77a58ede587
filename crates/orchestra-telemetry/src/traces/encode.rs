//! Spans as the bytes of an `ExportTraceServiceRequest`, written as they are made and without anything in between: at full tilt a run ends
//! hundreds of thousands of spans a second, on cores that it needs itself. Sends nothing.
//!
//! The numbers are the fields of `opentelemetry/proto/trace/v1/trace.proto` and `common/v1/common.proto`.

use opentelemetry::trace::{SpanContext, TraceState};
use opentelemetry::{Array, KeyValue, Value};
use opentelemetry_sdk::Resource;

use super::settings::SpanLimits;
use super::wall::Wall;
use crate::names::SERVICE;

/// What a span needs, as a first guess.
const SPAN_BYTES: usize = 512;
/// `SPAN_KIND_INTERNAL`: nothing here is a call over a network.
const INTERNAL: u64 = 1;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;
/// Whether the parent, or the target of a link, is known to be of another process or not; and whether it is.
const REMOTE_KNOWN: u32 = 0x100;
const REMOTE: u32 = 0x200;
/// `Span.attributes`.
const ATTRIBUTES: u64 = 9;
/// `ScopeSpans.spans`.
const SPANS: u64 = 2;

/// The resource of all spans, as a message.
#[derive(Debug, Clone)]
pub(super) struct EncodedResource(Vec<u8>);

impl EncodedResource {
    pub(super) fn new(resource: &Resource) -> Self {
        let mut message = Message(Vec::new());
        for (key, value) in resource.iter() {
            message.key_value(1, key.as_str(), value, None);
        }
        Self(message.0)
    }
}

/// A request with these spans: what [`SpanBytes::append_to`] made, one after the other.
pub(super) fn request(spans: &[u8], resource: &EncodedResource) -> Vec<u8> {
    let mut scope = Message(Vec::with_capacity(32));
    scope.nested(1, |scope| scope.text(1, SERVICE));
    let scope_length = scope.0.len() + spans.len();
    let mut head = Message(Vec::with_capacity(resource.0.len() + 64));
    head.bytes(1, &resource.0);
    head.length(2, scope_length);
    head.0.extend_from_slice(&scope.0);
    let mut request = Message(Vec::with_capacity(16 + head.0.len() + spans.len()));
    request.length(1, head.0.len() + spans.len());
    request.0.extend_from_slice(&head.0);
    request.0.extend_from_slice(spans);
    request.0
}

/// Attributes that many spans have, written once.
#[derive(Debug, Clone, Default)]
pub(super) struct EncodedAttributes {
    message: Vec<u8>,
    count: u32,
}

impl EncodedAttributes {
    pub(super) fn new(attributes: &[KeyValue], limits: &SpanLimits) -> Self {
        let mut message = Message(Vec::new());
        for attribute in attributes {
            message.key_value(ATTRIBUTES, attribute.key.as_str(), &attribute.value, limits.value_length);
        }
        Self { message: message.0, count: attributes.len() as u32 }
    }
}

/// A span on its way to bytes: whatever is put on it is written at once. Its memory is used again for others.
pub(super) struct SpanBytes {
    message: Message,
    limits: SpanLimits,
    attributes: Counted,
    events: Counted,
    links: Counted,
}

/// How many of something there are.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    kept: u32,
    dropped: u32,
}

impl Counted {
    /// Whether there is room for another one; counts it in any case.
    fn add(&mut self, limit: Option<u32>) -> bool {
        let has_room = limit.is_none_or(|limit| self.kept < limit);
        self.kept += u32::from(has_room);
        self.dropped += u32::from(!has_room);
        has_room
    }
}

impl SpanBytes {
    pub(super) fn new(limits: SpanLimits) -> Self {
        let none = Counted::default();
        let message = Message(Vec::with_capacity(SPAN_BYTES));
        Self { message, limits, attributes: none, events: none, links: none }
    }

    /// Forgets what it was before, and begins a span.
    pub(super) fn begin(
        &mut self,
        context: &SpanContext,
        parent: Option<&SpanContext>,
        name: &str,
        start: Wall,
    ) {
        (self.attributes, self.events, self.links) = Default::default();
        let message = &mut self.message;
        message.0.clear();
        message.context(context);
        if let Some(parent) = parent {
            message.bytes(4, &parent.span_id().to_bytes());
        }
        message.text(5, name);
        message.number(6, INTERNAL);
        message.fixed64(7, start.nanoseconds());
        message.fixed32(16, flags(context, parent.is_some_and(SpanContext::is_remote)));
    }

    pub(super) fn attribute(&mut self, key: &str, value: &Value) {
        if self.attributes.add(self.limits.attributes) {
            self.message.key_value(ATTRIBUTES, key, value, self.limits.value_length);
        }
    }

    pub(super) fn text(&mut self, key: &str, text: &str) {
        if self.attributes.add(self.limits.attributes) {
            self.message.key_text(ATTRIBUTES, key, text, self.limits.value_length);
        }
    }

    /// Puts attributes on it that were written before; `all` are the same, for a span that may not have as many.
    pub(super) fn attributes(&mut self, written: &EncodedAttributes, all: &[KeyValue]) {
        let kept = self.attributes.kept + written.count;
        if self.limits.attributes.is_some_and(|limit| kept > limit) {
            return all.iter().for_each(|a| self.attribute(a.key.as_str(), &a.value));
        }
        self.attributes.kept = kept;
        self.message.0.extend_from_slice(&written.message);
    }

    pub(super) fn event(&mut self, name: &str, at: Wall, attributes: &[KeyValue]) {
        if !self.events.add(self.limits.events) {
            return;
        }
        let (most, length) = (self.limits.event_attributes, self.limits.value_length);
        self.message.nested(11, |message| {
            message.fixed64(1, at.nanoseconds());
            message.text(2, name);
            let kept = most.map_or(attributes.len(), |most| attributes.len().min(most as usize));
            for attribute in &attributes[..kept] {
                message.key_value(3, attribute.key.as_str(), &attribute.value, length);
            }
            message.number(4, (attributes.len() - kept) as u64);
        });
    }

    pub(super) fn link(&mut self, to: &SpanContext, attribute: &KeyValue) {
        if !self.links.add(self.limits.links) {
            return;
        }
        let keeps_attribute = self.limits.link_attributes != Some(0);
        let length = self.limits.value_length;
        self.message.nested(13, |message| {
            message.context(to);
            if keeps_attribute {
                message.key_value(4, attribute.key.as_str(), &attribute.value, length);
            }
            message.number(5, u64::from(!keeps_attribute));
            message.fixed32(6, flags(to, to.is_remote()));
        });
    }

    /// It ended in an error. To be said once.
    pub(super) fn fail(&mut self, words: &str) {
        self.message.nested(15, |status| {
            status.text(2, words);
            status.number(3, ERROR);
        });
    }

    pub(super) fn end(&mut self, at: Wall) {
        self.message.fixed64(8, at.nanoseconds());
        self.message.number(10, self.attributes.dropped.into());
        self.message.number(12, self.events.dropped.into());
        self.message.number(14, self.links.dropped.into());
    }

    /// Appends it to spans that are sent together.
    pub(super) fn append_to(&self, spans: &mut Vec<u8>) {
        let mut message = Message(std::mem::take(spans));
        message.bytes(SPANS, &self.message.0);
        *spans = message.0;
    }

    /// Bytes that it has so far.
    pub(super) fn len(&self) -> usize {
        self.message.0.len()
    }
}

fn flags(of: &SpanContext, remote: bool) -> u32 {
    u32::from(of.trace_flags().to_u8()) | REMOTE_KNOWN | if remote { REMOTE } else { 0 }
}

/// The first so many characters.
fn at_most(text: &str, characters: u32) -> &str {
    text.char_indices().nth(characters as usize).map_or(text, |(end, _)| &text[..end])
}

/// A protobuf message in the making. Fields with a default value are left out, as in every proto3 message.
struct Message(Vec<u8>);

/// How the value of a field is written.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire: u64) {
        self.varint(field << 3 | wire);
    }

    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.key(field, VARINT);
            self.varint(value);
        }
    }

    fn fixed64(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.key(field, FIXED64);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn fixed32(&mut self, field: u64, value: u32) {
        if value != 0 {
            self.key(field, FIXED32);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn text(&mut self, field: u64, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.length(field, bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// What stands before a field of so many bytes.
    fn length(&mut self, field: u64, length: usize) {
        self.key(field, LENGTH);
        self.varint(length as u64);
    }

    /// A message inside this one. Its length is known when it is written: most need one byte for that, and the others are moved.
    fn nested(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        self.key(field, LENGTH);
        let at = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - at - 1;
        if let Ok(short @ 0..0x80) = u8::try_from(length) {
            self.0[at] = short;
            return;
        }
        let end = self.0.len();
        self.varint(length as u64);
        let width = self.0.len() - end;
        // The length, now at the end, goes to the front; the byte that was kept free there is dropped.
        self.0[at + 1..].rotate_right(width);
        self.0.remove(at);
    }

    /// Fields 1 to 3 of a span, and of a link.
    fn context(&mut self, context: &SpanContext) {
        // All at once, since there is no span without: a field with its length, twice.
        let mut ids = [0; 2 + 16 + 2 + 8];
        (ids[0], ids[1], ids[18], ids[19]) = (0x0a, 16, 0x12, 8);
        ids[2..18].copy_from_slice(&context.trace_id().to_bytes());
        ids[20..].copy_from_slice(&context.span_id().to_bytes());
        self.0.extend_from_slice(&ids);
        if *context.trace_state() != TraceState::NONE {
            self.text(3, &context.trace_state().header());
        }
    }

    /// `longest` bounds the characters of a text.
    fn key_value(&mut self, field: u64, key: &str, value: &Value, longest: Option<u32>) {
        match value {
            Value::String(text) => self.key_text(field, key, text.as_str(), longest),
            _ => self.nested(field, |message| {
                message.text(1, key);
                message.nested(2, |message| message.any_value(value));
            }),
        }
    }

    fn key_text(&mut self, field: u64, key: &str, text: &str, longest: Option<u32>) {
        let text = longest.map_or(text, |longest| at_most(text, longest));
        self.nested(field, |message| {
            message.text(1, key);
            message.nested(2, |message| message.bytes(1, text.as_bytes()));
        });
    }

    /// The one field that an `AnyValue` has; it is there whatever its value.
    fn any_value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.bytes(1, text.as_str().as_bytes()),
            Value::Bool(flag) => self.any_varint(2, u64::from(*flag)),
            Value::I64(number) => self.any_varint(3, *number as u64),
            Value::F64(number) => self.any_double(*number),
            Value::Array(array) => self.nested(5, |message| message.array(array)),
            other => self.bytes(1, other.to_string().as_bytes()),
        }
    }

    fn any_varint(&mut self, field: u64, value: u64) {
        self.key(field, VARINT);
        self.varint(value);
    }

    fn any_double(&mut self, value: f64) {
        self.key(4, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn array(&mut self, array: &Array) {
        match array {
            Array::Bool(all) => all.iter().for_each(|v| self.nested(1, |m| m.any_varint(2, u64::from(*v)))),
            Array::I64(all) => all.iter().for_each(|v| self.nested(1, |m| m.any_varint(3, *v as u64))),
            Array::F64(all) => all.iter().for_each(|v| self.nested(1, |m| m.any_double(*v))),
            Array::String(all) => {
                all.iter().for_each(|v| self.nested(1, |m| m.bytes(1, v.as_str().as_bytes())))
            }
            other => self.nested(1, |m| m.bytes(1, other.to_string().as_bytes())),
        }
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
