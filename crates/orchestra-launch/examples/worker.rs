//! The worker executable of a service that embeds orchestra: the same program as `orchestra worker`, under a name of its own. It has no
//! work of its own, reads no arguments and prints nothing.
//!
//! A service that does not want to start copies of itself builds such a program, ships it beside its own, and names it:
//!
//! ```ignore
//! let program = std::env::current_exe()?.with_file_name("worker");
//! let launcher = orchestra_launch::ProcessLauncher { program, args: Vec::new(), env: Vec::new() };
//! let options = orchestra_launch::StartOptions { launcher: Some(Arc::new(launcher)), ..Default::default() };
//! ```

use std::process::ExitCode;

#[path = "../tests/it/common/invert.rs"]
mod invert;
#[path = "../tests/it/common/listed.rs"]
mod listed;
#[path = "../tests/it/common/replaced.rs"]
mod replaced;

/// A service without kinds of its own calls `orchestra::worker_main()`. Of the two kinds of one name, the last counts.
fn main() -> ExitCode {
    let kinds = orchestra_launch::kinds().with_stage(replaced::Replaced).with_typed_stage::<invert::Invert>();
    orchestra_launch::worker_main_with(&kinds.with_typed_stage::<listed::Listed>())
}
