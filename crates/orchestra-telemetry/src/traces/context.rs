//! Trace contexts as they come from and go to others: headers, frames, the host's own spans. Makes no span.

pub use orchestra_runtime::trace::TraceContext;

/// Reads the value of a `traceparent` header (W3C Trace Context). `None` if it is not valid.
///
/// ```
/// use orchestra_telemetry::traces::context::{from_traceparent, to_traceparent};
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = from_traceparent(header).unwrap();
/// assert_eq!(context.flags, 1);
/// assert_eq!(to_traceparent(&context), header);
/// ```
#[must_use]
pub fn from_traceparent(header: &str) -> Option<TraceContext> {
    let mut parts = header.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may say more behind that; `ff` is none.
    let [version] = bytes::<1>(version)?;
    if version == 0xff || (version == 0 && parts.next().is_some()) {
        return None;
    }
    let (trace_id, span_id, [flags]) = (bytes::<16>(trace)?, bytes::<8>(span)?, bytes::<1>(flags)?);
    let is_valid = trace_id != [0; 16] && span_id != [0; 8];
    is_valid.then_some(TraceContext { trace_id, span_id, flags })
}

/// The value of a `traceparent` header.
#[must_use]
pub fn to_traceparent(context: &TraceContext) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("00-{}-{}-{:02x}", hex(&context.trace_id), hex(&context.span_id), context.flags)
}

/// Two lower-case hexadecimal digits for each byte.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

/// The context of the OpenTelemetry span that is active in this thread, as a host's own instrumentation set it; `None` if there is none.
#[must_use]
pub fn current() -> Option<TraceContext> {
    use opentelemetry::trace::TraceContextExt as _;
    of_span(opentelemetry::Context::current().span().span_context())
}

/// The context of an OpenTelemetry span; `None` if it is not valid.
#[must_use]
pub fn of_span(span: &opentelemetry::trace::SpanContext) -> Option<TraceContext> {
    span.is_valid().then(|| TraceContext {
        trace_id: span.trace_id().to_bytes(),
        span_id: span.span_id().to_bytes(),
        flags: span.trace_flags().to_u8(),
    })
}

/// The same as OpenTelemetry has it, of a span elsewhere.
pub(super) fn to_span(context: TraceContext) -> opentelemetry::trace::SpanContext {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
    SpanContext::new(
        TraceId::from_bytes(context.trace_id),
        SpanId::from_bytes(context.span_id),
        TraceFlags::new(context.flags),
        true,
        TraceState::default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_that_is_not_valid_gives_nothing() {
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(from_traceparent(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_header_of_a_later_version_is_read_as_far_as_it_is_known() {
        let later = HEADER.replacen("00", "01", 1) + "-what-comes";
        assert_eq!(from_traceparent(&later), from_traceparent(HEADER));
        assert_eq!(to_traceparent(&from_traceparent(HEADER).unwrap()), HEADER);
    }
}
