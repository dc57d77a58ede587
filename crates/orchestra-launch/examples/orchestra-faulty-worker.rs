//! A worker that misbehaves as `ORCHESTRA_FAULT` says, for the tests of this crate: cargo builds examples with them. All of it is in
//! `orchestra_testkit::faulty`.

use std::process::ExitCode;

fn main() -> ExitCode {
    orchestra_testkit::faulty::main()
}
