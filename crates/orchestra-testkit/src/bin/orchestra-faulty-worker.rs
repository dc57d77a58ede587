//! A worker process that misbehaves as `ORCHESTRA_FAULT` says. All of it is in `orchestra_testkit::faulty`.

use std::process::ExitCode;

fn main() -> ExitCode {
    orchestra_testkit::faulty::main()
}
