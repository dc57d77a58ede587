//! From spans to the bytes of an `ExportTraceServiceRequest`, in one pass and without copies in between: at full tilt a run ends tens of
//! thousands of spans a second, on cores that it needs itself. Sends nothing.
//!
//! The numbers are the fields of `opentelemetry/proto/trace/v1/trace.proto` and `common/v1/common.proto`.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status};
use opentelemetry::{Array, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;

/// What a span needs of a request, as a first guess.
const SPAN_BYTES: usize = 512;
/// Whether the parent, or the target of a link, is known to be of another process or not; and whether it is.
const REMOTE_KNOWN: u32 = 0x100;
const REMOTE: u32 = 0x200;

/// The resource of all spans, as a message.
#[derive(Debug, Clone)]
pub(super) struct EncodedResource(Vec<u8>);

impl EncodedResource {
    pub(super) fn new(resource: &Resource) -> Self {
        let mut message = Message(Vec::new());
        for (key, value) in resource.iter() {
            message.key_value(1, key.as_str(), value);
        }
        Self(message.0)
    }
}

/// A request with these spans.
pub(super) fn request(spans: &[SpanData], resource: &EncodedResource) -> Vec<u8> {
    let mut request = Message(Vec::with_capacity(spans.len() * SPAN_BYTES));
    request.nested(1, |of_resource| {
        of_resource.bytes(1, &resource.0);
        for spans in spans.chunk_by(|a, b| a.instrumentation_scope == b.instrumentation_scope) {
            of_resource.nested(2, |of_scope| {
                of_scope.nested(1, |scope| write_scope(scope, &spans[0].instrumentation_scope));
                for span in spans {
                    of_scope.nested(2, |message| write_span(message, span));
                }
                of_scope.text(3, spans[0].instrumentation_scope.schema_url().unwrap_or_default());
            });
        }
    });
    request.0
}

fn write_scope(message: &mut Message, scope: &InstrumentationScope) {
    message.text(1, scope.name());
    message.text(2, scope.version().unwrap_or_default());
    for attribute in scope.attributes() {
        message.attribute(3, attribute);
    }
}

fn write_span(message: &mut Message, span: &SpanData) {
    message.context(&span.span_context);
    if span.parent_span_id != SpanId::INVALID {
        message.bytes(4, &span.parent_span_id.to_bytes());
    }
    message.text(5, &span.name);
    message.number(6, kind(&span.span_kind));
    message.fixed64(7, nanoseconds(span.start_time));
    message.fixed64(8, nanoseconds(span.end_time));
    for attribute in &span.attributes {
        message.attribute(9, attribute);
    }
    message.number(10, span.dropped_attributes_count.into());
    for event in span.events.iter() {
        message.nested(11, |message| {
            message.fixed64(1, nanoseconds(event.timestamp));
            message.text(2, &event.name);
            for attribute in &event.attributes {
                message.attribute(3, attribute);
            }
            message.number(4, event.dropped_attributes_count.into());
        });
    }
    message.number(12, span.events.dropped_count.into());
    for link in span.links.iter() {
        message.nested(13, |message| write_link(message, link));
    }
    message.number(14, span.links.dropped_count.into());
    message.nested(15, |message| match &span.status {
        Status::Unset => {}
        Status::Ok => message.number(3, 1),
        Status::Error { description } => {
            message.text(2, description);
            message.number(3, 2);
        }
    });
    message.fixed32(16, flags(&span.span_context, span.parent_span_is_remote));
}

fn write_link(message: &mut Message, link: &Link) {
    message.context(&link.span_context);
    for attribute in &link.attributes {
        message.attribute(4, attribute);
    }
    message.number(5, link.dropped_attributes_count.into());
    message.fixed32(6, flags(&link.span_context, link.span_context.is_remote()));
}

fn kind(kind: &SpanKind) -> u64 {
    match kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    }
}

fn flags(of: &SpanContext, remote: bool) -> u32 {
    u32::from(of.trace_flags().to_u8()) | REMOTE_KNOWN | if remote { REMOTE } else { 0 }
}

/// Since 1970; 0 for what was before, which only a clock that is set wrong shows.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
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
        self.key(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
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
        self.bytes(1, &context.trace_id().to_bytes());
        self.bytes(2, &context.span_id().to_bytes());
        self.text(3, &context.trace_state().header());
    }

    fn attribute(&mut self, field: u64, attribute: &KeyValue) {
        self.key_value(field, attribute.key.as_str(), &attribute.value);
    }

    fn key_value(&mut self, field: u64, key: &str, value: &Value) {
        self.nested(field, |message| {
            message.text(1, key);
            message.nested(2, |message| message.any_value(value));
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
