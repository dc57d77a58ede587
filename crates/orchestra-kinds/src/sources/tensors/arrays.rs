//! The arrays of a `.npy` or `.npz` file: their names and headers, and where they lie. Reads no elements.

use std::io::{self, BufReader, Read};

use bincode::{Decode, Encode};
use orchestra_store::PassedOverCounts;

use crate::sources::reading::archive::Member;
use crate::sources::reading::field_type::{Field, FieldType};
use crate::sources::reading::input::ReadSeek;
use crate::sources::reading::limits::LARGEST_TENSOR;
use crate::sources::reading::npy_header::Header;
use crate::sources::reading::zip_members::{self, ZipPlace, head_of};

/// Arrays of a `.npz` file.
const MOST_ARRAYS: usize = 4096;

#[derive(Debug, Clone, Encode, Decode)]
pub struct SourceArray {
    /// `x` for the only one of a `.npy` file.
    pub name: String,
    /// Why it cannot be read, where it is not asked for.
    pub header: Result<Header, String>,
    /// Its member of a `.npz` file.
    pub place: Option<ZipPlace>,
}

impl SourceArray {
    /// The column of it, whose values are a row or so many of them.
    pub fn field(&self, chunk: Option<u64>) -> Result<Field, String> {
        let header = self.header.as_ref().map_err(|why| format!("array `{}`: {why}", self.name))?;
        let (_, row) =
            header.rows().ok_or_else(|| format!("array `{}` has no first dimension", self.name))?;
        let mut shape = row.to_vec();
        if let Some(chunk) = chunk {
            shape.insert(0, chunk as usize); // No more than bytes of a tensor.
        }
        let bytes = shape.iter().try_fold(header.dtype.size_bytes(), |n, side| n.checked_mul(*side));
        if bytes.is_none_or(|bytes| bytes > LARGEST_TENSOR) {
            return Err(format!(
                "an item of `{}` would be {}{shape:?}, more than 1 GiB",
                self.name, header.dtype
            ));
        }
        Ok(Field::new(&*self.name, FieldType::Tensor { dtype: header.dtype, shape }))
    }
}

#[derive(Debug, Encode, Decode)]
pub struct Arrays {
    pub is_npz: bool,
    /// Those that cannot be read are among them, if there are several.
    pub arrays: Vec<SourceArray>,
    /// Members of a `.npz` file that are no arrays.
    pub passed_over: PassedOverCounts,
}

pub fn arrays(file: &mut dyn ReadSeek) -> Result<Arrays, String> {
    let text = |error: io::Error| error.to_string();
    let mut start = [0; 4];
    let n = read_up_to(file, &mut start).map_err(text)?;
    if !start[..n].starts_with(b"PK\x03\x04") {
        let header = Header::read(|n| {
            let mut head = Vec::new();
            file.rewind().map_err(text)?;
            (&mut *file).take(n as u64).read_to_end(&mut head).map_err(text)?;
            Ok(head)
        })?;
        let arrays = vec![SourceArray { name: "x".into(), header: Ok(header), place: None }];
        return Ok(Arrays { is_npz: false, arrays, passed_over: PassedOverCounts::default() });
    }
    let (mut places, mut passed_over) = (Vec::new(), PassedOverCounts::default());
    let mut members = zip_members::members(BufReader::new(&mut *file))?;
    while let Some(member) = members.next()? {
        let (name, place) = match member {
            Member::File { name, place } => (name, place.unwrap_or_else(ZipPlace::astray)),
            Member::PassedOver(reason) => {
                passed_over.add(reason, 1);
                continue;
            }
        };
        let name = String::from_utf8(name).map_err(|_| "the name of an array is no UTF-8")?;
        let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
        if places.len() == MOST_ARRAYS {
            return Err(format!("it has more than {MOST_ARRAYS} arrays"));
        }
        if places.iter().any(|(other, _)| *other == name) {
            return Err(format!("it holds the array `{name}` twice"));
        }
        places.push((name, place));
    }
    if places.is_empty() {
        return Err("it holds no array".into());
    }
    let mut all = Vec::new();
    for (name, place) in places {
        let header = Header::read(|n| head_of(file, &place, n as u64));
        all.push(SourceArray { name, header, place: Some(place) });
    }
    Ok(Arrays { is_npz: true, arrays: all, passed_over })
}

fn read_up_to(file: &mut dyn ReadSeek, to: &mut [u8]) -> io::Result<usize> {
    let mut bytes = Vec::new();
    file.take(to.len() as u64).read_to_end(&mut bytes)?;
    to[..bytes.len()].copy_from_slice(&bytes);
    Ok(bytes.len())
}
