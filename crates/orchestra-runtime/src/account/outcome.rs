//! What a run comes to, as the one who started it is told.

use std::collections::BTreeMap;

use crate::account::status::RunStatus;
use crate::tasks::board::TaskStanding;

#[derive(Debug, Clone)]
pub struct RunOutcome {
    pub report: RunStatus,
    /// Where each task stands of which an attempt has ended, by its id.
    pub tasks: BTreeMap<String, TaskStanding>,
    /// Exit code of the command: 0, 65, 69, 70, 75 or 130.
    pub exit_code: i32,
    /// What stopped it, where it is not complete, in words.
    pub problems: Vec<String>,
    /// Where limits of failed items stopped it: the settings (`limits.first_failed=0`) with which a start goes on regardless.
    pub lifted_limits: Vec<String>,
    /// Its records may be wrong, or come to no result: no start goes on with them.
    pub must_start_over: bool,
    /// This was the first of two parts: the file is to be planned again, and started with this outcome as `RunOptions::first_part`. See
    /// `Plan::deferred`.
    pub goes_on: bool,
}
