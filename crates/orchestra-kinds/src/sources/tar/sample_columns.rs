//! The columns of the samples of an archive: what the extensions of members say, and those of a first sample.

use std::ffi::OsStr;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use orchestra_core::DType;
use orchestra_store::escape;

use crate::sources::reading::archive::{Member, Placed};
use crate::sources::reading::field_type::{Field, FieldType};
use crate::sources::reading::limits::LARGEST_TENSOR;
use crate::sources::reading::npy_header::{HEAD, Header};
use crate::sources::reading::tar_members::{self, TarPlace};

/// Members that one sample may have.
pub const MOST_COLUMNS: usize = 256;

/// The last part of an extension says what it is: `seg.png` is a picture.
fn end_of(extension: &str) -> &str {
    extension.rsplit('.').next().unwrap_or(extension)
}

pub fn is_npy(extension: &str) -> bool {
    end_of(extension) == "npy"
}

/// The type of a column that is no tensor of a file.
pub fn type_of(extension: &str) -> FieldType {
    match end_of(extension) {
        "jpg" | "jpeg" | "png" | "webp" | "bmp" | "tif" | "tiff" | "gif" => FieldType::Picture,
        "cls" => FieldType::scalar(DType::I64),
        "txt" | "text" | "caption" | "json" => FieldType::Text,
        other => FieldType::Bytes(other.to_owned()),
    }
}

/// The columns of the first sample of an archive: all, or those that are named.
pub fn columns_of(mut archive: impl Read + Seek, names: Option<Vec<String>>) -> Result<Vec<Field>, String> {
    let mut sample = None;
    let mut members =
        tar_members::members(BufReader::new(&mut archive)).map_err(|error| error.to_string())?;
    while let Some(member) = members.next()? {
        let Member::File { name, place } = member else { continue };
        let Some((key, extension)) = key_of(&name) else { continue };
        let (first, found) =
            sample.get_or_insert_with(|| (key.clone(), Vec::<(String, Placed<TarPlace>)>::new()));
        if *first != key || found.len() > MOST_COLUMNS {
            break;
        }
        if found.iter().all(|(known, _)| *known != extension) {
            found.push((extension, place));
        }
    }
    drop(members);
    let (key, found) = sample.ok_or("it holds no sample: no member is called `key.extension`")?;
    if found.len() > MOST_COLUMNS {
        return Err(format!("its sample `{key}` has more than {MOST_COLUMNS} members"));
    }
    let names = names.unwrap_or_else(|| found.iter().map(|(extension, _)| extension.clone()).collect());
    let column = |name: String| {
        if !is_npy(&name) {
            return Ok(Field::new(&*name, type_of(&name)));
        }
        let member = found.iter().find(|(extension, _)| *extension == name);
        let (_, place) = member.ok_or_else(|| format!("its first sample, `{key}`, has no `.{name}`"))?;
        let [at, len] = place.map_err(|astray| format!("`{key}.{name}` {}", astray.why()))?;
        let mut head = Vec::new();
        archive.seek(SeekFrom::Start(at)).map_err(|error| error.to_string())?;
        (&mut archive)
            .take(len.min(HEAD as u64))
            .read_to_end(&mut head)
            .map_err(|error| error.to_string())?;
        let header = Header::parse_any(&head).map_err(|why| format!("`{key}.{name}`: {why}"))?;
        if header.bytes() > LARGEST_TENSOR {
            return Err(format!("`{key}.{name}` has {} bytes, and a tensor at most 1 GiB", header.bytes()));
        }
        Ok(Field::new(name, FieldType::Tensor { dtype: header.dtype, shape: header.shape }))
    };
    names.into_iter().map(column).collect()
}

/// The key of a member, as text, and its extension. `None` for a name without one.
pub fn key_of(name: &[u8]) -> Option<(String, String)> {
    let mut name = name;
    while let Some(rest) = name.strip_prefix(b"./") {
        name = rest;
    }
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let dot = name[base..].iter().position(|byte| *byte == b'.')?;
    let (key, extension) = (&name[..base + dot], &name[base + dot + 1..]);
    if dot == 0 || extension.is_empty() {
        return None;
    }
    let text = |bytes: &[u8]| escape(Path::new(OsStr::from_bytes(bytes)));
    Some((text(key), text(extension).to_ascii_lowercase()))
}
