//! Parquet files of one column `x` of whole numbers, that say what they like.

/// A page of it, and what its header claims.
#[derive(Clone)]
pub struct Page {
    pub is_dictionary: bool,
    pub unpacked: i32,
    pub packed: i32,
    pub values: i32,
    pub bytes: Vec<u8>,
}

impl Page {
    pub fn plain(values: &[i64]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let len = bytes.len() as i32;
        Self { is_dictionary: false, unpacked: len, packed: len, values: values.len() as i32, bytes }
    }

    /// So many zeros, packed by Snappy: one of them, and copies of it.
    pub fn snappy_bomb(len: u32) -> Self {
        let mut bytes = varint(len.into());
        bytes.extend([0, 0]);
        let mut left = len - 1;
        while left > 0 {
            let n = left.min(64);
            bytes.extend([((n - 1) << 2) as u8 | 2, 1, 0]);
            left -= n;
        }
        let packed = bytes.len() as i32;
        Self { is_dictionary: false, unpacked: len as i32, packed, values: (len / 8) as i32, bytes }
    }

    fn file(&self) -> Vec<u8> {
        let values = int(1, 5, self.values.into());
        let (kind, header) = match self.is_dictionary {
            true => (2, field(7, 12, &fields(&[values, int(2, 5, 0)]))),
            false => (0, field(5, 12, &fields(&[values, int(2, 5, 0), int(3, 5, 3), int(4, 5, 3)]))),
        };
        let head = [int(1, 5, kind), int(2, 5, self.unpacked.into()), int(3, 5, self.packed.into()), header];
        [fields(&head), self.bytes.clone()].concat()
    }
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n > 127 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// A field of a struct in the Thrift compact protocol: its number, and its type with its value.
type Field = (u8, Vec<u8>);

fn field(id: u8, kind: u8, value: &[u8]) -> Field {
    (id, [&[kind], value].concat())
}

fn int(id: u8, kind: u8, n: i64) -> Field {
    field(id, kind, &varint((n << 1 ^ n >> 63).cast_unsigned()))
}

fn text(id: u8, text: &str) -> Field {
    field(id, 8, &[&[text.len() as u8], text.as_bytes()].concat())
}

fn list(id: u8, kind: u8, elements: &[Vec<u8>]) -> Field {
    field(id, 9, &[&[0xf0 | kind][..], &varint(elements.len() as u64), &elements.concat()].concat())
}

fn fields(all: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut before = 0;
    for (id, value) in all {
        bytes.push((id - before) << 4 | value[0]);
        bytes.extend(&value[1..]);
        before = *id;
    }
    bytes.push(0);
    bytes
}

fn group(children: i64) -> Vec<u8> {
    fields(&[int(3, 5, 0), text(4, "g"), int(5, 5, children)])
}

fn leaf() -> Vec<u8> {
    fields(&[int(1, 5, 2), int(3, 5, 0), text(4, "x")])
}

fn file(schema: &[Vec<u8>], rows: i64, groups: &[Vec<u8>], pages: &[u8]) -> Vec<u8> {
    let footer = fields(&[int(1, 5, 1), list(2, 12, schema), int(3, 6, rows), list(4, 12, groups)]);
    [&b"PAR1"[..], pages, &footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

/// A row group that claims so many rows, of these pages; codec 0 is none, and 1 Snappy.
pub fn table(rows: i64, codec: i64, pages: &[Page]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = pages.iter().map(Page::file).collect();
    let (len, last) = (bytes.concat().len() as i64, bytes[bytes.len() - 1].len() as i64);
    let mut column = vec![
        int(1, 5, 2),
        list(2, 5, &[vec![0]]),
        list(3, 8, &[vec![1, b'x']]),
        int(4, 5, codec),
        int(5, 6, rows),
        int(6, 6, len),
        int(7, 6, len),
        int(9, 6, 4 + len - last),
    ];
    if pages.len() > 1 {
        column.push(int(11, 6, 4));
    }
    let chunk = fields(&[int(2, 6, 4), field(3, 12, &fields(&column))]);
    let of_rows = fields(&[list(1, 12, &[chunk]), int(2, 6, len), int(3, 6, rows)]);
    file(&[group(1), leaf()], rows, &[of_rows], &bytes.concat())
}

/// A column in groups in groups.
pub fn nested(depth: usize) -> Vec<u8> {
    file(&[vec![group(1); depth], vec![leaf()]].concat(), 0, &[], &[])
}

/// Columns in groups in groups.
pub fn deep(depth: usize, columns: usize) -> Vec<u8> {
    file(&[vec![group(1); depth], vec![group(columns as i64)], vec![leaf(); columns]].concat(), 0, &[], &[])
}

pub fn wide(columns: usize) -> Vec<u8> {
    file(&[vec![group(columns as i64)], vec![leaf(); columns]].concat(), 0, &[], &[])
}
