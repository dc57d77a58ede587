//! Requests to the page of metrics: what a client sends, and what it gets. No socket is opened.

use orchestra_telemetry::metrics::{Reading, answer_to};

use crate::memory::measured;

/// What one client may take, whatever it sends.
const MOST: usize = 1 << 20;

/// Whatever a client sends, it gets an answer of HTTP or none, in bounded memory.
pub fn metrics_page(bytes: &[u8]) {
    let (answer, taken) = measured(|| answer_to(bytes, Reading::new).expect("a runtime can be made"));
    assert!(taken.peak <= MOST, "{taken:?} for a request of {} bytes", bytes.len());
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", answer.escape_ascii());
}
