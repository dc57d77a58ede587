//! Requests to the page of metrics. The check itself is `orchestra_fuzz_checks::metrics_page`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::metrics_page(bytes));
