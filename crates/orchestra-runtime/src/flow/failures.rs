//! The lines of `failures.jsonl`, and the records of failures in sinks. Writes no file.

use orchestra_core::data::{ItemError, TensorView, Value};
use orchestra_core::shapes::ItemInfo;
use orchestra_core::{DType, Failure};
use orchestra_plan::SinkPlan;
use serde::Serialize;

use crate::flow::row_lengths::{begin_row, end_row};
use crate::flow::ticket::Ticket;

/// The record of a failure for a sink: its columns are those of `orchestra_plan::failure_schema`.
pub fn failure_record(
    sink: &SinkPlan,
    ticket: &Ticket,
    source: &str,
    failure: &Failure,
) -> Result<Vec<u8>, ItemError> {
    let item = ItemInfo { name: ticket.name(), id: ticket.id(), source, parts: &[] };
    let attempts = i64::from(failure.attempts).to_ne_bytes();
    let attempts = TensorView { name: "attempts", dtype: DType::I64, shape: &[], data: &attempts };
    let texts = [&*failure.stage, failure.kind.as_str(), &failure.error].map(Value::Text);
    let [stage, kind, error] = texts;
    let mut record = Vec::new();
    let row = sink.part_files.is_some().then(|| begin_row(&mut record));
    sink.encoder.encode(&item, &[stage, kind, error, Value::Tensor(attempts)], &mut record)?;
    if let Some(row) = row {
        end_row(&mut record, row)?;
    }
    Ok(record)
}

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
