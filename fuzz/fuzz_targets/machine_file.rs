//! Descriptions of machines to plan for. The check itself is `orchestra_fuzz_checks::machine_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::machine_file(bytes));
