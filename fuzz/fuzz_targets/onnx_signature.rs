//! Model files: what an ONNX file says of its inputs and outputs. The check itself is `orchestra_fuzz_checks::onnx_signature`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| orchestra_fuzz_checks::onnx_signature(bytes));
