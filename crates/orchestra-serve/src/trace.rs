//! The trace of a request goes with it in the name of its items, which is all that a tracer is told of them.

use std::sync::Arc;

use orchestra::telemetry::{ItemParents, TraceContext};

use crate::call::Call;

/// What logs and traces call the items of a request: its trace, and its id.
pub fn name_of(call: &Call) -> String {
    let words = [call.traceparent.as_deref().unwrap_or_default(), &call.id];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Gives the items of a request the span of the client as their parent, where it sends one (`traceparent`): for the tracer of the
/// [`Orchestra`](orchestra::Orchestra) whose models are served.
#[must_use]
pub fn item_parents() -> ItemParents {
    Arc::new(|_, name| parsed(name.split(' ').next()?))
}

/// `00-<trace>-<span>-<flags>`, in hexadecimal digits.
fn parsed(traceparent: &str) -> Option<TraceContext> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let [_, trace, span, flags, ..] = parts[..] else { return None };
    if (trace.len(), span.len(), flags.len()) != (32, 16, 2) {
        return None;
    }
    let trace_id = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?.to_be_bytes();
    let span_id = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?.to_be_bytes();
    Some(TraceContext { trace_id, span_id, flags: u8::from_str_radix(flags, 16).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_from_the_name_and_rubbish_is_none() {
        let call = Call {
            id: "7 a".to_owned(),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            ..Call::default()
        };
        let context = item_parents()("requests", &name_of(&call)).unwrap();
        assert_eq!((context.trace_id[0], context.span_id[7], context.flags), (0x0a, 0x31, 1));
        for rubbish in [
            "",
            "7",
            "00-0-0-01",
            "00-zz-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        ] {
            assert!(item_parents()("requests", rubbish).is_none(), "{rubbish}");
        }
    }
}
