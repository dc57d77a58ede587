//! Reads the members of one sample after the other, and makes the values of its columns of them.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::FetchRun;
use orchestra_core::{FailureKind, LeftOut};

use super::sample_columns::is_npy;
use crate::objects::{self, Protocol, ReadObject};
use crate::sources::reading::archive_links::Astray;
use crate::sources::reading::field_type::{Field, FieldType};
use crate::sources::reading::file_version::{FileVersion, Seen};
use crate::sources::reading::input::changed;
use crate::sources::reading::limits::{LARGEST_FILE_BYTES, LARGEST_TENSOR, LARGEST_TEXT};
use crate::sources::reading::locator::parts;
use crate::sources::reading::npy_header::{HEAD, Header};
use crate::sources::reading::read_file::{open_regular, read_part};
use crate::sources::reading::row::{Cell, Row, Taken};
use crate::sources::reading::tar_members::{FoundPlace, Place};

/// In place of where a member lies: the sample has none, or two of them, or its bytes cannot be found. No member lies at byte 0.
pub const MISSING: Place = [0, 0];
pub const TWICE: Place = [0, 1];
const ASTRAY: u64 = 2;

/// As locators have it.
pub fn place_or(place: FoundPlace) -> Place {
    place.unwrap_or_else(|astray| [0, ASTRAY + astray as u64])
}

/// Why the bytes of a column are not to be had, if they are not.
fn trouble(place: Place, column: &str) -> Option<String> {
    let [0, what] = place else { return None };
    let astray = what.checked_sub(ASTRAY).and_then(|n| Astray::ALL.get(n as usize));
    Some(match astray {
        Some(astray) => format!("`.{column}` {}", astray.why()),
        None => {
            let how_many = if place == MISSING { "no member" } else { "two members" };
            format!("the sample has {how_many} `.{column}`, and one is expected")
        }
    })
}

/// The sample at hand.
pub struct Sample {
    /// How many columns there are.
    n: usize,
    archive: Archive,
    buffer: Vec<u8>,
    row: Row,
}

impl Sample {
    /// Of an archive that is a file, or an object where there are `protocols`.
    pub fn new(columns: &[Field], max_pixels: u64, protocols: &[Protocol]) -> Self {
        let archive = match protocols.is_empty() {
            true => Archive::File(None),
            false => Archive::Object { objects: objects::reader(), near: Vec::new(), from: 0 },
        };
        Self { n: columns.len(), archive, buffer: Vec::new(), row: Row::new(columns, max_pixels) }
    }
}

/// Where members are read from.
enum Archive {
    /// That of the last item: the next one is most likely in it, too.
    File(Option<(PathBuf, File)>),
    /// `near` is what lies in the object from byte `from` on: all members of a sample, where they are small, by one request.
    Object { objects: Box<dyn ReadObject>, near: Vec<u8>, from: u64 },
}

/// Members that lie within so many bytes are read by one request.
const NEAR: u64 = 4 << 20;

impl Archive {
    /// Whether a file is still the one that was listed.
    fn is_as_listed(&self, listed: Option<u64>) -> bool {
        let Archive::File(Some((_, file))) = self else { return true };
        let version = file.metadata().map(|file| FileVersion::of([&Seen::File(file)]));
        version.is_ok_and(|version| listed.is_some_and(|listed| version.is_as_listed(listed)))
    }

    /// Another sample begins: its members lie here.
    fn begin(&mut self, path: &Path, places: &[u64]) -> Result<(), Refusal> {
        match self {
            Archive::File(open) => {
                if open.as_ref().is_none_or(|(last, _)| last != path) {
                    *open = None;
                    let file = open_regular(path).map_err(|error| cannot_read(path, &error))?.0;
                    *open = Some((path.to_owned(), file));
                }
            }
            Archive::Object { objects, near, from } => {
                near.clear();
                let members = || places.as_chunks::<2>().0.iter().filter(|[_, len]| *len > 0);
                let begin = members().map(|[at, _]| *at).min();
                let end = members().map(|[at, len]| at.saturating_add(*len)).max();
                let (Some(begin), Some(end)) = (begin, end) else { return Ok(()) };
                if members().count() > 1 && end - begin <= NEAR {
                    objects.read_part(path.as_os_str().as_bytes(), begin, end - begin, near)?;
                    *from = begin;
                }
            }
        }
        Ok(())
    }

    /// Reads a member of the sample. The caller has checked `len`.
    fn read(&mut self, path: &Path, at: u64, len: u64, buffer: &mut Vec<u8>) -> Result<(), Refusal> {
        match self {
            Archive::File(Some((_, file))) => {
                read_part(file, at, len, buffer).map_err(|error| cannot_read(path, &error))
            }
            Archive::File(None) => {
                Err(cannot_read(path, &std::io::Error::other("it is not open; this is a bug")))
            }
            Archive::Object { objects, near, from } => {
                buffer.clear();
                let begin = at.checked_sub(*from).and_then(|begin| usize::try_from(begin).ok());
                let here = begin.and_then(|begin| near.get(begin..)?.get(..usize::try_from(len).ok()?));
                match here {
                    _ if len == 0 => Ok(()),
                    Some(here) => {
                        buffer.extend_from_slice(here);
                        Ok(())
                    }
                    None => objects.read_part(path.as_os_str().as_bytes(), at, len, buffer),
                }
            }
        }
    }
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal { kind: FailureKind::Read, error: format!("cannot read `{}`: {error}", path.display()) }
}

impl FetchRun for Sample {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, Refusal> {
        let (path, mut places) = parts(locator, self.n * 2 + 1)?;
        let listed = places.pop();
        let refuse = |kind: FailureKind, error: String| Refusal { kind, error };
        let (places, _) = places.as_chunks::<2>();
        for (field, place) in self.row.fields().iter().zip(places) {
            let name = &field.name;
            if let Some(error) = trouble(*place, name) {
                return Err(refuse(FailureKind::Read, error));
            }
            let most = match &field.ty {
                FieldType::Text | FieldType::Json => LARGEST_TEXT,
                FieldType::Tensor { .. } => LARGEST_TENSOR as u64 + HEAD as u64,
                FieldType::Bytes(_) | FieldType::Picture => LARGEST_FILE_BYTES,
            };
            if place[1] > most {
                let error =
                    format!("`.{name}` has {} bytes, and at most {} MiB are read", place[1], most >> 20);
                return Err(refuse(FailureKind::TooLarge, error));
            }
        }
        self.archive.begin(path, places.as_flattened())?;
        let Self { archive, buffer: texts, row, .. } = self;
        let filled = row.fill(|n, field, cell| {
            let [at, len] = places[n];
            let buffer = match cell {
                Cell::Bytes(bytes) if matches!(field.ty, FieldType::Bytes(_)) => bytes,
                Cell::Picture(picture) => picture.bytes_mut(),
                Cell::Text(_) | Cell::Bytes(_) => &mut *texts,
            };
            archive.read(path, at, len, buffer)?;
            take(field, cell, texts)
                .map_err(|why| refuse(FailureKind::Decode, format!("`.{}` {why}", field.name)))?;
            Ok(Taken::Bytes(len))
        });
        // What is no sample any more may be wrong in any way.
        match archive.is_as_listed(listed) {
            true => filled,
            false => Err(changed(path)),
        }
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        self.row.show(show);
    }

    fn left_out(&self) -> Vec<(LeftOut, u64)> {
        self.row.left_out()
    }
}

/// Makes a text or a tensor of the bytes of a member.
fn take(field: &Field, cell: &mut Cell, bytes: &[u8]) -> Result<(), String> {
    match (cell, &field.ty) {
        (Cell::Text(text), _) => {
            text.clear();
            text.push_str(std::str::from_utf8(bytes).map_err(|_| "is no UTF-8 text")?);
        }
        (Cell::Bytes(data), FieldType::Tensor { dtype, shape }) if is_npy(&field.name) => {
            let header = Header::parse_any(&bytes[..bytes.len().min(HEAD)])
                .map_err(|why| format!("is no array: {why}"))?;
            if (header.dtype, &header.shape) != (*dtype, shape) {
                return Err(format!(
                    "is {}{:?}, and that of the first sample {}",
                    header.dtype, header.shape, field.ty
                ));
            }
            header.must_end_with(bytes.len() as u64)?;
            let elements = &bytes[header.data..];
            data.clear();
            data.extend_from_slice(elements);
            header.to_native(data);
        }
        (Cell::Bytes(data), FieldType::Tensor { .. }) => {
            let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<i64>().ok());
            let number = number.ok_or("is no whole number")?;
            data.clear();
            data.extend_from_slice(&number.to_ne_bytes());
        }
        (Cell::Bytes(_) | Cell::Picture(_), _) => {}
    }
    Ok(())
}
