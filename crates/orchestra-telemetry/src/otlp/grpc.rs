//! What gRPC adds to HTTP/2 for one request and one answer: a frame of five bytes, and a status behind the answer. Sends nothing.

use http::HeaderMap;

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
}

impl Status {
    /// From the trailers of an answer, or from its headers if it has nothing else.
    pub(super) fn of(map: &HeaderMap) -> Option<Self> {
        let text = |name: &str| map.get(name).and_then(|value| value.to_str().ok());
        let code = text("grpc-status")?.parse().ok()?;
        let message = text("grpc-message").unwrap_or_default();
        Some(Self { code, message: percent_decoded(message).unwrap_or_else(|| message.to_owned()) })
    }

    pub(super) fn is_ok(&self) -> bool {
        self.code == 0
    }

    /// Whether the specification of OTLP lets the same request be sent again.
    pub(super) fn may_be_sent_again(&self) -> bool {
        // cancelled, deadline exceeded, resource exhausted, aborted, out of range, unavailable, data loss
        matches!(self.code, 1 | 4 | 8 | 10 | 11 | 14 | 15)
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
        assert!(status.may_be_sent_again() && !status.is_ok());
        map.insert("grpc-status", "99".parse().unwrap());
        assert_eq!(Status::of(&map).unwrap().name(), "unknown");
    }
}
