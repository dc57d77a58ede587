//! The head of a `.npy` file: element type, order of bytes, shape. Believes no number that it cannot check; reads no elements.

use std::cmp::Ordering;

use bincode::{Decode, Encode};
use orchestra_core::{DType, MAX_RANK};

/// Bytes at the beginning of a file that hold its header, in all files that NumPy writes.
pub const HEAD: usize = 64 << 10;
/// Enough for nearly all headers.
const USUAL_HEAD: usize = 4 << 10;

/// What a `.npy` file says of itself (format versions 1 to 3).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Header {
    pub dtype: DType,
    /// The bytes of each element are in the other order than this machine's.
    pub is_swapped: bool,
    pub shape: Vec<usize>,
    pub data: usize,
}

/// How an array of another type, by NumPy's code for it, becomes one that is read, with the same numbers.
fn conversion(code: &str) -> String {
    let into = |dtype: &str| format!("convert it with .astype(\"{dtype}\")");
    match code {
        "i1" => into("int16"),
        "u2" => into("int32"),
        "u4" => into("int64"),
        "u8" => into("int64") + ", which changes numbers from 2**63 on",
        "f16" => into("float64") + ", which rounds",
        "c8" | "c16" | "c32" => "convert it with numpy.stack([x.real, x.imag], axis=-1)".into(),
        _ if code.starts_with(['M', 'm']) => into("int64"),
        _ if code.starts_with('V') => "write each field as an array of its own, with numpy.savez".into(),
        _ => "write texts and objects as lines of JSON, for a source of kind `jsonl`".into(),
    }
}

impl Header {
    /// As [`Self::parse`], of an array whose first bytes `read` gives, as many as it is asked for.
    pub fn read(mut read: impl FnMut(usize) -> Result<Vec<u8>, String>) -> Result<Self, String> {
        Self::parse(&read(USUAL_HEAD)?).or_else(|_| Self::parse(&read(HEAD)?))
    }

    /// The items along the first dimension, and the shape of one.
    pub fn rows(&self) -> Option<(u64, &[usize])> {
        self.shape.split_first().map(|(rows, row)| (*rows as u64, row))
    }

    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// Compares the length of the file with what it should be.
    ///
    /// # Errors
    /// It is shorter or longer, as the end of a sentence.
    pub fn must_end_with(&self, len: u64) -> Result<(), String> {
        let end = (self.bytes() as u64).saturating_add(self.data as u64);
        match len.cmp(&end) {
            Ordering::Equal => Ok(()),
            Ordering::Less => Err(format!(
                "is cut short: its header says {:?}, which is {end} bytes with the header, and it has {len}",
                self.shape
            )),
            Ordering::Greater => Err(format!(
                "has {} bytes behind the array that its header describes: write each array into a file of its own, or several into one file with numpy.savez",
                len - end
            )),
        }
    }

    /// Brings elements into the order of this machine.
    pub fn to_native(&self, data: &mut [u8]) {
        if self.is_swapped {
            data.chunks_exact_mut(self.dtype.size_bytes()).for_each(<[u8]>::reverse);
        }
    }

    /// That of an array whose first dimension counts items.
    pub fn parse(head: &[u8]) -> Result<Self, String> {
        let header = Self::parse_any(head)?;
        let shape = &header.shape;
        match shape.split_first() {
            None => Err("its shape is [], and items lie along the first dimension".into()),
            Some((_, row)) if row.contains(&0) => {
                Err(format!("its shape is {shape:?}, so that an item has no numbers"))
            }
            Some(_) => Ok(header),
        }
    }

    /// That of any array.
    pub fn parse_any(head: &[u8]) -> Result<Self, String> {
        let cut = || "it is cut short".to_owned();
        let rest = head.strip_prefix(b"\x93NUMPY").ok_or("it is no .npy file")?;
        let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
        let (len, start): (Option<usize>, usize) = match version[0] {
            1 => (rest.first_chunk::<2>().map(|n| usize::from(u16::from_le_bytes(*n))), 10),
            2 | 3 => (rest.first_chunk::<4>().map(|n| u32::from_le_bytes(*n) as usize), 12),
            n => return Err(format!("it is of version {n} of the format, and this program reads 1 to 3")),
        };
        let data = len.and_then(|len| start.checked_add(len)).ok_or_else(cut)?;
        let text = head.get(start..data).ok_or("its header is longer than 64 KiB, or it is cut short")?;
        let text = std::str::from_utf8(text).map_err(|_| "its header is no text")?;
        let value = |key: &str| {
            let (_, after) =
                text.split_once(&format!("'{key}':")).or(text.split_once(&format!("\"{key}\":")))?;
            Some(after.trim_start())
        };
        let descr =
            value("descr").and_then(|v| v.split(['\'', '"']).nth(1)).ok_or("its element type is missing")?;
        let (order, name) = descr.split_at_checked(1).ok_or("its element type is missing")?;
        let Some(dtype) = DType::ALL.into_iter().find(|dtype| dtype.npy_code() == name) else {
            let known = DType::ALL.map(DType::numpy_name).join(", ");
            let is_table = value("descr").is_some_and(|value| value.starts_with('['));
            let descr = if is_table { "rows of named fields" } else { descr };
            return Err(format!(
                "its elements are `{descr}`; {known} are read: {}",
                conversion(if is_table { "V" } else { name })
            ));
        };
        if value("fortran_order").is_some_and(|v| v.starts_with("True")) {
            return Err("it is in Fortran order; write it with numpy.ascontiguousarray".into());
        }
        let shape = value("shape")
            .and_then(|v| v.strip_prefix('(')?.split_once(')'))
            .ok_or("its shape is missing")?;
        let dims = shape.0.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        let shape: Vec<usize> = dims
            .map(|dim| dim.parse().map_err(|_| format!("its shape has the side `{dim}`")))
            .collect::<Result<_, _>>()?;
        if shape.len() > MAX_RANK {
            return Err(format!("it has {} dimensions, and at most {MAX_RANK} are read", shape.len()));
        }
        let bytes = shape.iter().try_fold(dtype.size_bytes(), |n, dim| n.checked_mul(*dim));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(format!("its shape is {shape:?}, which no memory holds"));
        }
        let is_swapped = order == if cfg!(target_endian = "little") { ">" } else { "<" };
        Ok(Self { dtype, is_swapped: is_swapped && dtype.size_bytes() > 1, shape, data })
    }
}
