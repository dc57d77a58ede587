//! The worker as a program of its own, for tests and for parents that want a small worker executable. It adds nothing.

use std::process::ExitCode;

fn main() -> ExitCode {
    orchestra_onnx::main()
}
