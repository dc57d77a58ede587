//! Expressions of `filter` and `select`. The check itself is `orchestra_fuzz_checks::expression`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::expression(bytes));
