//! Headers of pictures: no decoder takes memory for a picture that is too large. The check itself is `orchestra_fuzz_checks::image_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(init: orchestra_fuzz::let_decoders_panic(), |bytes: &[u8]| orchestra_fuzz_checks::image_header(bytes));
