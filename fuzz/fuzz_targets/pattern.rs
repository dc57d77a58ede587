//! Patterns of `paths`: globs, folders and files. The check itself is `orchestra_fuzz_checks::pattern`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::pattern(bytes));
