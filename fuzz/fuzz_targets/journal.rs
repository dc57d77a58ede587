//! The journal beside the files of a run: recovery after any damage. The check itself is `orchestra_fuzz_checks::journal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::journal(bytes));
