//! Manifests: lists of paths in CSV, TSV, JSON lines or plain lines. The check itself is `orchestra_fuzz_checks::manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::manifest(bytes));
