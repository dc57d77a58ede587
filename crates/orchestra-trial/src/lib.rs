//! Runs of a workflow that are made to learn something from them: over a list of items of their own, into a folder of their own. What is
//! learned is the business of `orchestra-bench` and `orchestra-chaos`.
//!
//! It prints nothing, touches no file of the user, and leaves nothing behind.

mod cancel;
mod catalogue;
mod error;
mod plan;
mod scratch;
mod spread;
mod threads;

pub use cancel::Cancel;
pub use catalogue::{Catalogue, Sample, SourceList, SourceSample};
pub use error::{Cause, TrialError};
pub use plan::{plan_for, source_of};
pub use scratch::scratch_folder;
pub use spread::Spread;
pub use threads::{Ended, Threads};
