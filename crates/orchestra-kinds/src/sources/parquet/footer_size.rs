//! Bounds what the footer of a Parquet file takes once it is decoded, before it is: the decoder follows groups in groups by calling itself, and
//! keeps hundreds of bytes of what takes seven. Walks over the Thrift compact protocol, and keeps nothing.

/// Groups in groups. The path of each column is kept.
const MOST_DEPTH: usize = 32;
/// Columns and groups of the schema.
const MOST_COLUMNS: usize = 1 << 14;
/// Bytes of all that is kept: of strings only those that are kept again and again, the names of groups.
const MOST_BYTES: usize = 128 << 20;
/// What is kept of a struct, and of another element of a list.
const STRUCT: usize = 256;
const ELEMENT: usize = 8;
/// Structs in structs; the format has fewer.
const MOST_NESTED: usize = 16;

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCTURE: u8 = 12;
const UUID: u8 = 13;

/// Of the footer.
const VERSION: i16 = 1;
const SCHEMA: i16 = 2;
/// Of an element of the schema.
const NAME: i16 = 4;
const CHILDREN: i16 = 5;

/// # Errors
/// It is too large, or no footer.
pub fn check(footer: &[u8]) -> Result<(), String> {
    let mut walk = Walk { rest: footer, bytes: 0 };
    let mut has_schema = false;
    walk.fields(0, &mut |walk, id, kind| match (id, kind) {
        // The decoder takes the first one.
        (SCHEMA, LIST) if !has_schema => {
            has_schema = true;
            walk.schema()
        }
        (VERSION, I32) => walk.value(kind, 1),
        _ if has_schema => walk.value(kind, 1),
        _ => Err("it is damaged: its footer does not begin with a schema".into()),
    })
}

/// What the decoder takes a struct for. It reads a field as it knows it, whatever type the field says: where that differs, what follows would
/// be something else than was looked at here.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Element,
    LogicalType,
    Variant(i16),
    Unit,
    /// It decides nothing about the schema.
    Other,
}

impl Shape {
    /// The type of a field that the decoder knows.
    fn expects(self, id: i16) -> Option<u8> {
        match (self, id) {
            (Shape::Element, 1..=3 | 5..=9) => Some(I32),
            (Shape::Element, 4) => Some(BINARY),
            (Shape::Element, 10) | (Shape::LogicalType | Shape::Unit, _) => Some(STRUCTURE),
            (Shape::Variant(5), 1 | 2) | (Shape::Variant(18), 2) => Some(I32),
            (Shape::Variant(7 | 8), 1) | (Shape::Variant(10), 2) => Some(TRUE),
            (Shape::Variant(7 | 8), 2) => Some(STRUCTURE),
            (Shape::Variant(10 | 16), 1) => Some(BYTE),
            (Shape::Variant(17 | 18), 1) => Some(BINARY),
            _ => None,
        }
    }

    fn of_field(self, id: i16) -> Self {
        match (self, id) {
            (Shape::Element, 10) => Shape::LogicalType,
            (Shape::LogicalType, variant) => Shape::Variant(variant),
            (Shape::Variant(7 | 8), 2) => Shape::Unit,
            _ => Shape::Other,
        }
    }
}

struct Walk<'a> {
    rest: &'a [u8],
    /// Of what was seen.
    bytes: usize,
}

type Visit<'v, 'a> = &'v mut dyn FnMut(&mut Walk<'a>, i16, u8) -> Result<(), String>;

impl<'a> Walk<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or("it is damaged: its footer is cut short")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("it is damaged: its footer has a number without an end".into())
    }

    fn signed(&mut self) -> Result<i64, String> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn keep(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes += bytes;
        match self.bytes <= MOST_BYTES {
            true => Ok(()),
            false => Err(format!("its footer would take more than {} MiB", MOST_BYTES >> 20)),
        }
    }

    /// Calls `visit` at the value of each field of a struct.
    fn fields(&mut self, depth: usize, visit: Visit<'_, 'a>) -> Result<(), String> {
        if depth > MOST_NESTED {
            return Err("it is damaged: its footer is nested too deeply".into());
        }
        self.keep(STRUCT)?;
        let mut id = 0_i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            id = match head >> 4 {
                // The decoder cuts it off, too.
                0 => self.signed()? as i16,
                step => id
                    .checked_add(step.into())
                    .ok_or("it is damaged: its footer has a field without number")?,
            };
            visit(self, id, head & 15)?;
        }
    }

    /// The type of its elements, and how many it has.
    fn list(&mut self) -> Result<(u8, u64), String> {
        let head = self.byte()?;
        let n = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // Each takes a byte at least.
        match n <= self.rest.len() as u64 {
            true => Ok((head & 15, n)),
            false => Err(format!("it is damaged: its footer claims a list of {n}, and ends before that")),
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<(), String> {
        match kind {
            TRUE | FALSE => {}
            BYTE => drop(self.byte()?),
            I16 | I32 | I64 => drop(self.varint()?),
            DOUBLE => drop(self.take(8)?),
            UUID => drop(self.take(16)?),
            BINARY => {
                let len = self.varint()?;
                self.take(usize::try_from(len).unwrap_or(usize::MAX))?;
            }
            LIST | SET => {
                let (kind, n) = self.list()?;
                (0..n).try_for_each(|_| self.element(kind, depth))?;
            }
            MAP => {
                let n = self.varint()?;
                let kinds = if n > 0 { self.byte()? } else { 0 };
                for _ in 0..n {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 15, depth)?;
                }
            }
            STRUCTURE => self.structure(Shape::Other, depth)?,
            kind => return Err(format!("it is damaged: its footer has a value of type {kind}")),
        }
        Ok(())
    }

    fn element(&mut self, kind: u8, depth: usize) -> Result<(), String> {
        self.keep(ELEMENT)?;
        match kind {
            // No footer has lists of them, and decoders do not agree about their length.
            TRUE | FALSE => Err("it is damaged: its footer has a list of booleans".into()),
            _ if depth >= MOST_NESTED => Err("it is damaged: its footer is nested too deeply".into()),
            kind => self.value(kind, depth + 1),
        }
    }

    fn structure(&mut self, shape: Shape, depth: usize) -> Result<(), String> {
        self.fields(depth, &mut |walk, id, kind| walk.field(shape, (id, kind), depth))
    }

    fn field(&mut self, shape: Shape, (id, kind): (i16, u8), depth: usize) -> Result<(), String> {
        let said = if kind == FALSE { TRUE } else { kind };
        match shape.expects(id) {
            Some(expected) if expected != said => {
                Err(format!("it is damaged: its schema has a field {id} of type {kind}"))
            }
            _ if kind == STRUCTURE => self.structure(shape.of_field(id), depth + 1),
            _ => self.value(kind, depth + 1),
        }
    }

    fn schema(&mut self) -> Result<(), String> {
        let (kind, n) = self.list()?;
        if n > MOST_COLUMNS as u64 || kind != STRUCTURE {
            return Err(format!(
                "its schema has {n} columns and groups, and at most {MOST_COLUMNS} are read"
            ));
        }
        // Children of the open groups that are still to come, and the bytes of their names, which each column keeps; not of the first group.
        let mut open: Vec<(i32, usize)> = Vec::new();
        for _ in 0..n {
            let (mut children, mut name) = (0, 0);
            self.fields(1, &mut |walk, id, kind| match (id, kind) {
                (CHILDREN, I32) => walk.signed().map(|n| children = n as i32),
                field => {
                    let before = walk.rest.len();
                    walk.field(Shape::Element, field, 1)?;
                    if id == NAME {
                        name = before - walk.rest.len();
                    }
                    Ok(())
                }
            })?;
            while open.pop_if(|(left, _)| *left <= 0).is_some() {}
            if let Some((left, _)) = open.last_mut() {
                *left -= 1;
            }
            self.keep(open.iter().skip(1).map(|(_, name)| name).sum())?;
            if children > 0 {
                open.push((children, name));
            }
            if open.len() > MOST_DEPTH {
                return Err(format!("its schema has groups in more than {MOST_DEPTH} groups"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footer with this schema: of each element the number of its children.
    fn schema(children: &[u8]) -> Vec<u8> {
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        let mut n = children.len();
        while n > 127 {
            footer.push(n as u8 | 0x80);
            n >>= 7;
        }
        footer.push(n as u8);
        for children in children {
            footer.extend([0x48, 1, b'x']);
            if *children > 0 {
                footer.extend([0x15, children * 2]);
            }
            footer.push(0);
        }
        footer.push(0);
        footer
    }

    #[test]
    fn groups_in_groups_and_columns_without_number_are_refused() {
        let deep = |n: usize| [vec![1; n], vec![0]].concat();
        assert_eq!(check(&schema(&deep(30))), Ok(()));
        assert!(check(&schema(&deep(10_000))).unwrap_err().contains("groups in more than 32 groups"));
        // The same depth again and again is no depth.
        let wide = [vec![40], deep(2).repeat(40)].concat();
        assert_eq!(check(&schema(&wide)), Ok(()));
        assert!(check(&schema(&vec![0; 20_000])).unwrap_err().contains("at most 16384"));
    }

    #[test]
    fn names_of_groups_count_once_for_each_column_in_them() {
        // The root, and in it one group of so many columns, whose own name is as long.
        let footer = |name: usize, columns: usize| {
            let varint = |n: usize| [n as u8 | 0x80, (n >> 7) as u8 | 0x80, (n >> 14) as u8];
            let mut footer = vec![0x15, 2, 0x19, 0xfc];
            footer.extend(varint(columns + 2));
            footer.extend([0x48, 1, b'r', 0x15, 2, 0, 0x48]);
            footer.extend(varint(name));
            footer.extend(vec![b'x'; name]);
            footer.push(0x15);
            footer.extend(varint(2 * columns));
            footer.push(0);
            footer.extend([0x48, 1, b'x', 0].repeat(columns));
            footer.push(0);
            footer
        };
        assert_eq!(check(&footer(1_000, 10_000)), Ok(()));
        assert_eq!(check(&footer(1_000_000, 10)), Ok(()));
        // 190 kB that would take 1.5 GB.
        assert!(check(&footer(150_000, 10_000)).unwrap_err().contains("128 MiB"));
    }

    #[test]
    fn a_field_of_another_type_than_the_decoder_takes_it_for_is_refused() {
        // Of the only column: its name as a number, and so the number of its children as a text.
        for bent in [&[0x45, 1, b'x', 0][..], &[0x48, 1, b'x', 0x18, 1, 0, 0], &[0x48, 1, b'x', 0x61, 0]] {
            let footer = [&[0x15, 2, 0x19, 0x1c][..], bent, &[0]].concat();
            assert!(check(&footer).unwrap_err().contains("damaged"), "{bent:?}");
        }
        let of_logical_type = |inner: &[u8]| {
            check(&[&[0x15, 2, 0x19, 0x1c, 0x48, 1, b'x', 0x6c][..], inner, &[0, 0, 0]].concat())
        };
        // A text; a number of 8 bits without sign; one whose sign is a number.
        assert_eq!(of_logical_type(&[0x1c, 0]), Ok(()));
        assert_eq!(of_logical_type(&[0xac, 0x13, 8, 0x12, 0]), Ok(()));
        assert!(of_logical_type(&[0xac, 0x13, 8, 0x15, 2, 0]).is_err());
        // Nor may there be anything before the schema but the version, or lists of booleans.
        assert!(check(&[0x36, 2, 0]).unwrap_err().contains("does not begin with a schema"));
        let whole = schema(&[0]);
        let booleans = [&whole[..whole.len() - 1], &[0x39, 0x21, 1, 1, 0]].concat();
        assert!(check(&booleans).unwrap_err().contains("booleans"));
    }

    #[test]
    fn what_would_take_much_memory_is_refused_and_no_count_is_believed() {
        let whole = schema(&[0]);
        let begin = &whole[..whole.len() - 1];
        // Pairs without a value.
        let n = 1 << 20;
        let pairs = [begin, &[0x39, 0xfc, 0x80, 0x80, 0x40][..], &[0x18, 0, 0].repeat(n), &[0]].concat();
        assert!(check(&pairs).unwrap_err().contains("128 MiB"));
        let numbers = [begin, &[0x39, 0xf6, 0x80, 0x80, 0x80, 0x10][..], &vec![0; 1 << 25]].concat();
        assert!(check(&numbers).unwrap_err().contains("128 MiB"));
        assert!(check(&[0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 7]).unwrap_err().contains("2147483647"));
        assert!(check(&[begin, &[0x1c; 100_000]].concat()).unwrap_err().contains("nested"));
        assert!(check(&[begin, &[0x19; 100_000]].concat()).unwrap_err().contains("nested"));
        for len in 0..begin.len() {
            assert!(check(&begin[..len]).is_err(), "{len}");
        }
    }
}
