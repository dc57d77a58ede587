//! Shared libraries. The check itself is `orchestra_fuzz_checks::elf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::elf(bytes));
