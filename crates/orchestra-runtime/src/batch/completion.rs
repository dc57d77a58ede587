//! What a batch stage tells of the rows that were handed to it. A pipeline takes completed rows on to its next stages; a service answers who
//! asked.

use orchestra_core::Failure;

use crate::flow::token::Token;
use crate::messages::CompletedBatch;

/// Hears from one batcher what becomes of rows: each that was published is in exactly one call of `completed` or `failed`, unless `no_device`
/// was called or the batcher is gone. Called between two messages of the batcher, so it must not wait.
pub trait Completion: Send + Sync {
    /// A worker takes batches from now on.
    fn serving(&self) {}

    /// A worker has completed these rows. They lie in the slot until the batch is dropped, and so long nothing else is written there.
    fn completed(&self, batch: CompletedBatch);

    /// A row has no result and never will.
    fn failed(&self, token: &Token, failure: Failure);

    /// Every row has its end, and no further one comes: the answer to `BatcherMsg::Drained`.
    fn drained(&self);

    /// No device is left for the stage, for this reason. Rows without an end will have none.
    fn no_device(&self, why: String);
}
