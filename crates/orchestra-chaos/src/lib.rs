//! Runs a workflow while its workers are killed and stopped, and audits exactly what came out.
//!
//! It prints nothing, touches no file of the user, strikes no process but workers of its own runs, and leaves nothing behind but what it
//! returns. Nothing here is part of a run: a run is told to report what happens to its workers, and knows of nothing else.
//!
//! # What is done
//! In each round the workflow runs twice over the same list of items, as `orchestra run` does it, into folders of its own: once left in
//! peace and once while a thread strikes its workers, SIGKILL and SIGSTOP, each at a rate of its own and at uneven intervals. Then both
//! output folders are read as a user would read them and compared with the list, item by item, and with each other.
//!
//! # Whom it strikes
//! Workers that serve, each with the same chance, and once each. A process is held by a descriptor from the moment it is started, so an id
//! that the system gives to somebody else meanwhile cannot be hit. A worker that has taken the place of one which was struck before it had
//! finished a batch is spared until it has finished one itself: so each place gets on, however long its model takes to load and however
//! often somebody strikes. A strike that finds nobody is counted (`missed`) and not made up for.
//!
//! # Recovery
//! The time from a strike to the next batch that is completed **in the same place**: by the worker that took it, or by whoever took it from
//! that one. `stall` is the time to the next batch that **any** other worker of the stage completes. A stopped process first has to be taken for
//! dead, so kills and stops are counted apart. A strike after which no batch of its place is completed, because there is no more work or the
//! place was given up, is `unmeasured`. Of an heir that dies before it serves nobody is told whose place it was to take; whoever comes after
//! it gets the place of that stage and device which has been empty for longest.
//!
//! # Leaks
//! What this process holds after a run under faults and did not hold before it: child processes, memory files, sockets and other
//! descriptors; and files that lie in the output folder, or in the folder for temporary files that its workers are given, and that are not
//! there after the run that was left in peace.

mod account;
mod audit;
mod chaos;
mod compare;
mod error;
mod leaks;
mod one_run;
mod quantiles;
mod random;
mod report;
mod scene;
mod striker;
mod tracker;

pub use audit::{Audit, Finding, Flaw};
pub use chaos::{Chaos, Options, Progress, Tell};
pub use error::ChaosError;
pub use quantiles::Quantiles;
pub use report::Report;
pub use striker::Strikes;
