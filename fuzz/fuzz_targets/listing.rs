//! Lists of items that an earlier run left. The check itself is `orchestra_fuzz_checks::listing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::listing(bytes));
