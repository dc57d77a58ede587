//! Workflow files: a plan or diagnostics, and all that is shown of either. The check itself is `orchestra_fuzz_checks::workflow_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::workflow_file(bytes));
