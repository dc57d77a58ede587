//! Pictures: bytes of any format to rows of batches. The check itself is `orchestra_fuzz_checks::image`.
#![no_main]

libfuzzer_sys::fuzz_target!(init: orchestra_fuzz::let_decoders_panic(), |bytes: &[u8]| orchestra_fuzz_checks::image(bytes));
