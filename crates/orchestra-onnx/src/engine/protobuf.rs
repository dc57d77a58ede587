//! Fields of a protocol buffer message in memory, to be copied or written one by one. It knows no message type and decodes nothing.

use std::ops::Range;

/// A message that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes at `{0}` are no field of a protocol buffer message")]
pub struct Malformed(usize);

/// One field as it lies in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    pub number: u32,
    /// Key, length and value: what a copy takes.
    pub whole: &'a [u8],
    pub value: Value<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A number of fixed size, which is not looked at here.
    Fixed,
}

impl<'a> Value<'a> {
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            Value::Varint(_) | Value::Fixed => None,
        }
    }
}

/// The fields of a message in their order. Ends after the first that is none.
pub struct Fields<'a> {
    message: &'a [u8],
    at: usize,
    broken: bool,
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self { message, at: 0, broken: false }
    }

    fn field(&mut self) -> Option<Field<'a>> {
        let start = self.at;
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|n| *n > 0)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            5 => self.take(4).map(|_| Value::Fixed)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(&self.message[self.take(len)?])
            }
            _ => return None,
        };
        Some(Field { number, whole: &self.message[start..self.at], value })
    }

    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.message.len())?;
        let taken = self.at..end;
        self.at = end;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.message.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken || self.at == self.message.len() {
            return None;
        }
        let start = self.at;
        Some(self.field().ok_or_else(|| {
            self.broken = true;
            Malformed(start)
        }))
    }
}

#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Adds an integer; a negative one as its two's complement, as protocol buffers have it.
    pub fn integer(mut self, number: u32, value: i64) -> Self {
        self.varint(u64::from(number) << 3);
        self.varint(value.cast_unsigned());
        self
    }

    /// Adds text, bytes, or a message that is done.
    pub fn bytes(mut self, number: u32, value: &[u8]) -> Self {
        self.push_bytes(number, value);
        self
    }

    /// As `bytes`, in place.
    pub fn push_bytes(&mut self, number: u32, value: &[u8]) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    pub fn push_field(&mut self, field: &Field<'_>) {
        self.0.extend_from_slice(field.whole);
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_again() {
        let message = Message::default().integer(1, 300).bytes(7, b"ab").integer(3, -1).done();
        let fields: Vec<Field<'_>> = Fields::of(&message).map(Result::unwrap).collect();
        let found: Vec<_> = fields.iter().map(|f| (f.number, f.value)).collect();
        assert_eq!(found, [(1, Value::Varint(300)), (7, Value::Bytes(b"ab")), (3, Value::Varint(u64::MAX))]);
        let mut copy = Message::with_capacity(message.len());
        fields.iter().for_each(|f| copy.push_field(f));
        assert_eq!(copy.done(), message);
    }

    #[test]
    fn a_field_that_is_cut_off_is_no_field() {
        let message = Message::default().bytes(1, b"abc").bytes(2, b"defg").done();
        for end in 1..message.len() {
            let last = Fields::of(&message[..end]).last().unwrap();
            assert_eq!(last.is_ok(), end == 5, "{end}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_cut_into_fields_that_lie_one_after_another(bytes in vec(any::<u8>(), 0..64)) {
            let mut together = Vec::new();
            for field in Fields::of(&bytes).map_while(Result::ok) {
                together.extend_from_slice(field.whole);
            }
            prop_assert!(bytes.starts_with(&together));
        }
    }
}
