//! What gRPC adds to HTTP/2 for one request and one answer: a frame of five bytes, and a status behind the answer. Sends nothing.

use std::time::Duration;

use http::HeaderMap;
use prost::Message as _;

use super::variables::percent_decoded;

/// Before each message: whether it is compressed, and how long it is.
const PREFIX: usize = 5;

/// A message in its frame.
pub(super) fn framed(message: &[u8], compressed: bool) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(PREFIX + message.len());
    frame.push(u8::from(compressed));
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

/// The one message of an answer; `None` if it is compressed, which was not asked for, or not whole. No frame is an empty message.
pub(super) fn unframed(body: &[u8]) -> Option<&[u8]> {
    match body {
        [] => Some(&[]),
        [0, a, b, c, d, message @ ..] => {
            let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).ok()?;
            message.get(..length)
        }
        _ => None,
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: u32,
    pub(super) message: String,
    /// When to try again, if the collector says so.
    retry_after: Option<Duration>,
}

/// `RESOURCE_EXHAUSTED`
const EXHAUSTED: u32 = 8;

impl Status {
    /// From the trailers of an answer, or from its headers if it has nothing else.
    pub(super) fn of(map: &HeaderMap) -> Option<Self> {
        let text = |name: &str| map.get(name).and_then(|value| value.to_str().ok());
        let code = text("grpc-status")?.parse().ok()?;
        let message = text("grpc-message").unwrap_or_default();
        let message = percent_decoded(message).unwrap_or_else(|| message.to_owned());
        let retry_after = text("grpc-status-details-bin").and_then(retry_after);
        Some(Self { code, message, retry_after })
    }

    pub(super) fn is_ok(&self) -> bool {
        self.code == 0
    }

    /// Whether the specification of OTLP lets the same request be sent again, and after which pause, if the collector names one.
    pub(super) fn again(&self) -> Option<Option<Duration>> {
        match self.code {
            // Without a time the collector does not expect to recover.
            EXHAUSTED => self.retry_after.map(Some),
            // cancelled, deadline exceeded, aborted, out of range, unavailable, data loss
            1 | 4 | 10 | 11 | 14 | 15 => Some(self.retry_after),
            _ => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        const NAMES: [&str; 17] = [
            "ok",
            "cancelled",
            "unknown",
            "invalid argument",
            "deadline exceeded",
            "not found",
            "already exists",
            "permission denied",
            "resource exhausted",
            "failed precondition",
            "aborted",
            "out of range",
            "unimplemented",
            "internal",
            "unavailable",
            "data loss",
            "unauthenticated",
        ];
        usize::try_from(self.code).ok().and_then(|code| NAMES.get(code).copied()).unwrap_or("unknown")
    }
}

/// `google.rpc.Status`, as far as it says when to try again.
#[derive(Clone, PartialEq, prost::Message)]
struct Details {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, prost::Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Pause>,
}

/// `google.protobuf.Duration`
#[derive(Clone, PartialEq, prost::Message)]
struct Pause {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The pause that the details of a status ask for. What cannot be read asks for none.
fn retry_after(details: &str) -> Option<Duration> {
    let details = Details::decode(&base64_decoded(details)?[..]).ok()?.details;
    let info = details.iter().find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let pause = RetryInfo::decode(&info.value[..]).ok()?.retry_delay.unwrap_or_default();
    let (seconds, nanos) = (u64::try_from(pause.seconds).ok()?, u32::try_from(pause.nanos).ok()?);
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos.into())))
}

/// Bytes of a header whose name ends with `-bin`: base64, with or without the signs at its end.
fn base64_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
            bits &= (1 << n_bits) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_its_frame() {
        for message in [&b""[..], b"spans"] {
            assert_eq!(unframed(&framed(message, false)), Some(message));
        }
        assert_eq!(framed(b"ab", true), [1, 0, 0, 0, 2, b'a', b'b']);
    }

    #[test]
    fn half_a_frame_and_a_compressed_one_are_no_answer() {
        assert_eq!(unframed(b""), Some(&b""[..]));
        for bad in
            [&[0][..], &[0, 0, 0, 0], &[0, 0, 0, 0, 2, 1], &[1, 0, 0, 0, 1, 7], &[0, 255, 255, 255, 255]]
        {
            assert_eq!(unframed(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_status_is_read_with_its_message() {
        let mut map = HeaderMap::new();
        assert_eq!(Status::of(&map), None);
        map.insert("grpc-status", "8".parse().unwrap());
        map.insert("grpc-message", "try%20later".parse().unwrap());
        let status = Status::of(&map).unwrap();
        assert_eq!((status.name(), status.message.as_str()), ("resource exhausted", "try later"));
        assert!(!status.is_ok());
        map.insert("grpc-status", "99".parse().unwrap());
        assert_eq!(Status::of(&map).unwrap().name(), "unknown");
    }

    /// Status 8 with a `RetryInfo` of 1.5 seconds, as Go's library writes it, and one of another detail.
    fn details(type_url: &str) -> String {
        let pause = Some(Pause { seconds: 1, nanos: 500_000_000 });
        let value = RetryInfo { retry_delay: pause }.encode_to_vec();
        let detail = Detail { type_url: type_url.to_owned(), value };
        base64(&Details { details: vec![detail] }.encode_to_vec())
    }

    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digits = bytes.chunks(3).flat_map(|three| {
            let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - three.len()));
            (0..=three.len()).map(move |n| char::from(DIGITS[(bits >> (18 - 6 * n)) as usize & 63]))
        });
        digits.collect()
    }

    #[test]
    fn base64_is_read_with_and_without_its_end() {
        for (text, bytes) in
            [("", &b""[..]), ("YQ", b"a"), ("YWI=", b"ab"), ("YWJj", b"abc"), ("/+8", b"\xff\xef")]
        {
            assert_eq!(base64_decoded(text).as_deref(), Some(bytes), "{text}");
            assert_eq!(base64(bytes), text.trim_end_matches('='));
        }
        assert_eq!(base64_decoded("Y Q"), None);
    }

    #[test]
    fn a_collector_without_room_is_asked_again_only_if_it_says_when() {
        let status = |code: &str, details: Option<String>| {
            let mut map = HeaderMap::new();
            map.insert("grpc-status", code.parse().unwrap());
            details.map(|details| map.insert("grpc-status-details-bin", details.parse().unwrap()));
            Status::of(&map).unwrap().again()
        };
        let info = || Some(details("type.googleapis.com/google.rpc.RetryInfo"));
        let pause = Some(Duration::from_millis(1500));
        assert_eq!(status("8", None), None);
        assert_eq!(status("8", Some(details("type.googleapis.com/google.rpc.QuotaFailure"))), None);
        assert_eq!(status("8", Some("no base64!".to_owned())), None);
        assert_eq!(status("8", info()), Some(pause));
        assert_eq!((status("14", None), status("14", info())), (Some(None), Some(pause)));
        assert_eq!((status("3", None), status("3", info())), (None, None));
    }
}
