//! The lines of `failures.jsonl`. Writes no file.

use orchestra_core::Failure;
use serde::Serialize;

use crate::flow::ticket::Ticket;

/// The line of an item that has failed, with its newline.
pub fn failure_line(ticket: &Ticket, source: &str, failure: &Failure) -> Vec<u8> {
    #[derive(Serialize)]
    struct FailureLine<'a> {
        item: &'a str,
        index: u64,
        source: &'a str,
        stage: &'a str,
        kind: &'a str,
        error: &'a str,
        attempts: u32,
    }
    let failure = FailureLine {
        item: ticket.name(),
        index: ticket.id().index,
        source,
        stage: &failure.stage,
        kind: failure.kind.as_str(),
        error: &failure.error,
        attempts: failure.attempts,
    };
    let mut line = serde_json::to_vec(&failure).expect("strings and numbers always serialise");
    line.push(b'\n');
    line
}
