//! Control frames between parent and worker, in both directions. The check itself is `orchestra_fuzz_checks::worker_frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::worker_frame(bytes));
