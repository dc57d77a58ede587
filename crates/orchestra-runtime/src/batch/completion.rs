//! What a batcher tells of its rows: the processor of the stage hears it.

use orchestra_core::Failure;
use orchestra_worker::frames::RunErrorKind;

use crate::flow::token::Token;
use crate::messages::CompletedBatch;

/// Receives the reports of one batcher. Each published row is in exactly one call of `completed` or `failed`, unless `no_device` was called or
/// the batcher has stopped. Called from the batcher's handler, so it must not block.
pub trait Completion: Send + Sync {
    fn serving(&self) {}

    /// A worker has completed these rows. Their slot is not reused before the batch is dropped.
    fn completed(&self, batch: CompletedBatch);

    fn failed(&self, token: &Token, failure: Failure);

    /// After `BatcherMsg::Drained`: every row has been reported.
    fn drained(&self);

    /// The model of the stage gives what is no row of an item, for this reason. Rows that were not reported yet will never be.
    fn unusable(&self, why: String, kind: RunErrorKind);

    /// No device is left for the stage, for this reason. Rows that were not reported yet will never be.
    fn no_device(&self, why: String);
}
