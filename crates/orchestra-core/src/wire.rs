//! Values as bytes: the one form in which frames, journals, settings and kept rows hold them. It knows none of these.

use std::io::Write;

use bincode::config::{self, Configuration};
pub use bincode::error::{DecodeError, EncodeError};
use bincode::{BorrowDecode, Decode, Encode};
use thiserror::Error;

/// Journals of earlier starts have this form.
pub const FORM: Configuration = config::standard();

/// Why bytes are not the value that they are taken for.
#[derive(Debug, Error)]
pub enum WireError {
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    #[error("{used} of {len} bytes are used")]
    Trailing { used: usize, len: usize },
}

pub fn encode(value: &impl Encode) -> Result<Vec<u8>, EncodeError> {
    bincode::encode_to_vec(value, FORM)
}

/// Appends the bytes of a value; on an error some of them may be there.
pub fn encode_into(value: &impl Encode, out: &mut impl Write) -> Result<(), EncodeError> {
    bincode::encode_into_std_write(value, out, FORM).map(drop)
}

/// The value of which these are all bytes. They come from this program: what a list claims to hold is allocated.
pub fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, WireError> {
    decode_within::<T, { usize::MAX }>(bytes)
}

/// As [`decode`], of bytes that may be damaged: what lists claim to hold is allocated up to `LIMIT` bytes.
pub fn decode_within<T: Decode<()>, const LIMIT: usize>(bytes: &[u8]) -> Result<T, WireError> {
    let (value, used) = bincode::decode_from_slice(bytes, FORM.with_limit::<LIMIT>())?;
    let len = bytes.len();
    if used == len { Ok(value) } else { Err(WireError::Trailing { used, len }) }
}

/// The value at the beginning of these bytes, and how many of them it has.
pub fn decode_first<'a, T: BorrowDecode<'a, ()>>(bytes: &'a [u8]) -> Result<(T, usize), DecodeError> {
    bincode::borrow_decode_from_slice(bytes, FORM)
}
