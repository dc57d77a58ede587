//! Models that a worker puts nodes into. The check itself is `orchestra_fuzz_checks::model_edit`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::model_edit(bytes));
