//! Footers of Parquet files. The check itself is `orchestra_fuzz_checks::parquet_footer`.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: orchestra_fuzz::let_decoders_panic(),
    |bytes: &[u8]| orchestra_fuzz_checks::parquet_footer(bytes)
);
