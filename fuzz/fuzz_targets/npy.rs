//! Headers of `.npy` and `.npz` files. The check itself is `orchestra_fuzz_checks::npy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::npy(bytes));
