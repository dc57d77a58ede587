//! SHA-256 of values, as texts.

use std::fmt::Write;

use serde::Serialize;
use sha2::{Digest, Sha256};

pub(crate) fn digest(value: &impl Serialize) -> String {
    let text = serde_json::to_vec(value).expect("maps with text keys, and numbers that are finite");
    format!("{:x}", Sha256::digest(text))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}
