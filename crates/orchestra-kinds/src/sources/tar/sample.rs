//! Reads the members of one sample after the other, and makes the values of its columns of them.

use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;
use orchestra_core::shapes::FetchRun;
use orchestra_plan::ReadOptions;

use super::sample_columns::is_npy;
use crate::sources::reading::archive::Placed;
use crate::sources::reading::archive_links::Astray;
use crate::sources::reading::fetch::fetch_into;
use crate::sources::reading::field_type::{Field, FieldType};
use crate::sources::reading::file_version::FileVersion;
use crate::sources::reading::input::{FileLike, Last, Opener, cannot_read, changed};
use crate::sources::reading::limits::{LARGEST_FILE_BYTES, LARGEST_TENSOR, LARGEST_TEXT};
use crate::sources::reading::locator::parts;
use crate::sources::reading::npy_header::{HEAD, Header};
use crate::sources::reading::row::{FieldBuffer, FieldRow, Taken};
use crate::sources::reading::tar_members::TarPlace;

/// In place of where a member lies: the sample has none, or two of them, or its bytes cannot be found. No member lies at byte 0.
pub const MISSING: TarPlace = [0, 0];
pub const TWICE: TarPlace = [0, 1];
const ASTRAY: u64 = 2;

/// As locators have it.
pub fn place_or(place: Placed<TarPlace>) -> TarPlace {
    place.unwrap_or_else(|astray| [0, ASTRAY + astray as u64])
}

/// Why the bytes of a column are not to be had, if they are not.
fn trouble(place: TarPlace, column: &str) -> Option<String> {
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

/// Has the members of a sample of an object read by one request, where they lie near each other.
fn expect(archive: &FileLike, places: &[TarPlace]) -> std::io::Result<()> {
    let members = || places.iter().filter(|[_, len]| *len > 0);
    let begin = members().map(|[at, _]| *at).min().unwrap_or(0);
    let end = members().map(|[at, len]| at.saturating_add(*len)).max().unwrap_or(0);
    if (1..=NEAR).contains(&(end - begin)) { archive.expect(begin, end - begin) } else { Ok(()) }
}

/// Members that lie within so many bytes are read by one request.
const NEAR: u64 = 4 << 20;

pub fn start(columns: &[Field], options: &ReadOptions) -> Box<dyn FetchRun> {
    let (row, n, opener) = (FieldRow::new(columns, options.max_pixels), columns.len(), Opener::new(options));
    let (mut open, mut texts) = (Last::default(), Vec::new());
    fetch_into(row, move |row, locator| {
        let (path, mut places) = parts(locator, n * 2 + 1)?;
        let listed = places.pop();
        let refuse = |kind: FailureKind, error: String| ItemError { kind, error };
        let (places, _) = places.as_chunks::<2>();
        for (field, place) in row.fields().iter().zip(places) {
            let name = &field.name;
            if let Some(error) = trouble(*place, name) {
                return Err(refuse(FailureKind::Read, error));
            }
            let most = match &field.ty {
                FieldType::Text | FieldType::Texts(_) | FieldType::Json => LARGEST_TEXT,
                FieldType::Tensor { .. } => LARGEST_TENSOR as u64 + HEAD as u64,
                FieldType::Bytes(_) | FieldType::Picture => LARGEST_FILE_BYTES,
            };
            if place[1] > most {
                let error =
                    format!("`.{name}` has {} bytes, and at most {} MiB are read", place[1], most >> 20);
                return Err(refuse(FailureKind::TooLarge, error));
            }
        }
        let archive = open.get(path, || opener.open(path))?;
        let failed = |error: std::io::Error| archive.item_error(cannot_read(path, &error.to_string()));
        expect(archive, places).map_err(failed)?;
        let filled = row.fill(|n, field, cell| {
            let [at, len] = places[n];
            let buffer = match cell {
                FieldBuffer::Bytes(bytes) if matches!(field.ty, FieldType::Bytes(_)) => bytes,
                FieldBuffer::Picture(picture) => picture.bytes_mut(),
                FieldBuffer::Text(_) | FieldBuffer::Bytes(_) => &mut texts,
            };
            buffer.resize(len as usize, 0); // No more than fits: `len` was checked.
            archive.read_exact_at(buffer, at).map_err(failed)?;
            take(field, cell, &texts)
                .map_err(|why| refuse(FailureKind::Decode, format!("`.{}` {why}", field.name)))?;
            Ok(Taken::Bytes(len))
        });
        // What is no sample any more may be wrong in any way.
        match listed.is_some_and(|listed| FileVersion::are_as_listed([&*archive], listed)) {
            true => filled,
            false => Err(changed(path)),
        }
    })
}

/// Makes a text or a tensor of the bytes of a member.
fn take(field: &Field, cell: &mut FieldBuffer, bytes: &[u8]) -> Result<(), String> {
    match (cell, &field.ty) {
        (FieldBuffer::Text(text), _) => {
            text.clear();
            text.push_str(std::str::from_utf8(bytes).map_err(|_| "is no UTF-8 text")?);
        }
        (FieldBuffer::Bytes(data), FieldType::Tensor { dtype, shape }) if is_npy(&field.name) => {
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
        (FieldBuffer::Bytes(data), FieldType::Tensor { .. }) => {
            let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<i64>().ok());
            let number = number.ok_or("is no whole number")?;
            data.clear();
            data.extend_from_slice(&number.to_ne_bytes());
        }
        (FieldBuffer::Bytes(_) | FieldBuffer::Picture(_), _) => {}
    }
    Ok(())
}
