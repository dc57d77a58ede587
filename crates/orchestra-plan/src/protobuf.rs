//! Protocol buffers as a stream: fields one after another, large ones skipped. Knows no message type.
//!
//! A model file may hold gigabytes of weights. So the file is scanned, and only the small messages inside it are decoded.

use std::io::{self, Read};

/// Why scanning stopped.
#[derive(Debug)]
pub(crate) enum ScanError {
    Io(io::Error),
    /// The input ended inside a field.
    Truncated,
    /// No protocol buffers, or none that we accept.
    Malformed(String),
}

/// A field's value, or for a length-delimited one the position behind it: its bytes come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValue {
    Varint(u64),
    /// A fixed-size number, skipped.
    Fixed,
    /// Bytes that follow, up to this position.
    Bytes {
        end: u64,
    },
}

/// Reads fields and counts bytes.
pub(crate) struct Scanner<R> {
    input: R,
    at: u64,
}

impl<R: Read> Scanner<R> {
    pub fn new(input: R) -> Self {
        Self { input, at: 0 }
    }

    /// The next field of a message that ends at `end` (`u64::MAX`: with the input).
    pub fn field(&mut self, end: u64) -> Result<Option<(u32, FieldValue)>, ScanError> {
        if self.at == end {
            return Ok(None);
        }
        let first = match self.byte() {
            Err(ScanError::Truncated) if end == u64::MAX => return Ok(None),
            other => other?,
        };
        let key = self.varint_from(first)?;
        let number = u32::try_from(key >> 3).ok().filter(|n| (1..1 << 29).contains(n));
        let number = number.ok_or_else(|| self.malformed("a field number that cannot be"))?;
        let value = match key & 7 {
            0 => {
                let first = self.byte()?;
                FieldValue::Varint(self.varint_from(first)?)
            }
            1 => self.skip_bytes(8).map(|()| FieldValue::Fixed)?,
            5 => self.skip_bytes(4).map(|()| FieldValue::Fixed)?,
            2 => {
                let first = self.byte()?;
                let len = self.varint_from(first)?;
                match self.at.checked_add(len) {
                    Some(field_end) if field_end <= end => FieldValue::Bytes { end: field_end },
                    _ => return Err(self.malformed("a field longer than what holds it")),
                }
            }
            _ => return Err(self.malformed("a wire type that cannot be")),
        };
        if self.at > end {
            return Err(self.malformed("a field longer than what holds it"));
        }
        Ok(Some((number, value)))
    }

    /// Skips what follows of a field.
    pub fn skip(&mut self, value: FieldValue) -> Result<(), ScanError> {
        match value {
            FieldValue::Bytes { end } => self.skip_bytes(end - self.at),
            _ => Ok(()),
        }
    }

    /// Reads what follows of a field, if that is at most `limit` bytes.
    pub fn bytes(&mut self, end: u64, limit: u64) -> Result<Vec<u8>, ScanError> {
        let len = end - self.at;
        if len > limit {
            return Err(self.malformed("a name or a shape of an impossible length"));
        }
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, ScanError> {
        let mut byte = [0];
        self.fill(&mut byte)?;
        Ok(byte[0])
    }

    fn varint_from(&mut self, first: u8) -> Result<u64, ScanError> {
        let mut byte = first;
        let mut value = u64::from(byte & 0x7f);
        let mut shift = 7;
        while byte & 0x80 != 0 {
            if shift > 63 {
                return Err(self.malformed("a number that is too long"));
            }
            byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
        }
        Ok(value)
    }

    fn skip_bytes(&mut self, len: u64) -> Result<(), ScanError> {
        let copied = io::copy(&mut self.input.by_ref().take(len), &mut io::sink()).map_err(ScanError::Io)?;
        self.at += copied;
        if copied < len { Err(ScanError::Truncated) } else { Ok(()) }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ScanError> {
        match self.input.read_exact(buffer) {
            Ok(()) => {
                self.at += buffer.len() as u64;
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(ScanError::Truncated),
            Err(e) => Err(ScanError::Io(e)),
        }
    }

    fn malformed(&self, what: &str) -> ScanError {
        ScanError::Malformed(format!("{what}, near byte {}", self.at))
    }
}
