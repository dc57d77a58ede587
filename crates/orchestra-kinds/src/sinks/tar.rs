//! `kind = "tar"`: tar archives of many samples each, as WebDataset reads them: a record is a few members with one key.

use std::collections::HashMap;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, ItemError, Schema, Value};
use orchestra_core::shapes::{Encoder, ItemInfo, PartFiles};
use orchestra_core::{DType, Element};
use orchestra_plan::{
    Bytes, Fields, Input, ReadBack, ReadOptions, ReadRecord, Reported, Spanned, TypedSink, Writes,
    format_bytes, settings,
};
use orchestra_store::{ObjectOutput, RecordHead};
use serde::Serialize;

use super::shared::cannot_write;
use super::shared::npy_file::write_array;
use super::shared::record::{RowJson, can_be_written};
use crate::elements::JsonNumber;
use crate::objects;
use crate::picture_encoders::png;
use crate::sources::reading::archive::Member;
use crate::sources::reading::input::Opener;
use crate::sources::reading::limits::LARGEST_FILE_BYTES;
use crate::sources::reading::tar_members;

mod archive;

const ROWS_PER_FILE: u64 = 10_000;
/// A part is made in memory, beside its records.
const MOST_BYTES_PER_FILE: u64 = 1 << 30;

settings! {
    pub struct TarSink {
        /// a part is written once so many bytes of rows wait for it, up to 1 GiB; it needs twice as much memory while it is written
        bytes_per_file: Spanned<Bytes> = "64MiB",
    }
}

/// The member that each sample has.
const RECORD: &str = "json";

impl TypedSink for TarSink {
    const NAME: &'static str = "tar";
    const ABOUT: &'static str = "Tar archives of many samples, as WebDataset and the source `tar` read them: `path = \"pages.tar\"` gives `pages-00000.tar`, `pages-00001.tar`, \
         ..., each there once it is whole. A record is a sample. Its key is the name of its item, with `_` for each dot of the file name, and `-3` behind \
         it for part 3; one that is in the archive already gets a number, too. Its members: `json` (`{\"item\", \"index\", \"source\"}`, and as `result` \
         classes, numbers and lists), `npy` for a tensor, `png` for a picture, `txt` for a text, and bytes under their format. Of several columns of \
         one type each is called `column.npy`, and a column whose name ends so already keeps it, as texts called `caption` and whole numbers called `cls` do.";
    const WRITES: Writes = Writes::PartFiles;
    const READ_BACK: Option<ReadBack> = Some(read_samples);
    const OBJECTS: fn() -> Result<Arc<dyn ObjectOutput>, String> = objects::output;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        let rows_per_file = fields.integer("rows_per_file").map_or(ROWS_PER_FILE, |rows| rows.value);
        let Spanned { value: Bytes(bytes_per_file), span } = self.bytes_per_file;
        if !(1..=MOST_BYTES_PER_FILE).contains(&bytes_per_file) {
            let reason = format!("is {}, and must be 1 byte to 1 GiB", format_bytes(bytes_per_file));
            return fields.bad("bytes_per_file", span, &reason).help("a part is made in memory").fail();
        }
        let columns = &input.gives.0;
        let is_unfit = |column: &&Column| member_of(column).is_none() && !can_be_written(&column.ty);
        if let Some(column) = columns.iter().find(is_unfit) {
            let help =
                "it writes tensors, pictures, texts, bytes, classes, and lists of tensors, texts and classes";
            return cannot_write(column, input, fields, help);
        }
        Ok(Arc::new(SampleEncoder::new(columns, rows_per_file, bytes_per_file)))
    }
}

/// How a column becomes the bytes of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberContent {
    Text,
    Array,
    /// A whole number, in decimal.
    Number,
    Picture,
    Bytes,
}

/// What the member of a column is, and the extensions that fit it, the usual one first. `None`: it is a part of the record.
fn member_of(column: &Column) -> Option<(MemberContent, Vec<&str>)> {
    Some(match &column.ty {
        ColumnType::Text => (MemberContent::Text, vec!["txt", "text", "caption", RECORD]),
        ColumnType::Bytes(format) => {
            (MemberContent::Bytes, vec![if format.is_empty() { "bin" } else { format }])
        }
        ColumnType::Picture => (MemberContent::Picture, vec!["png"]),
        ColumnType::Tensor(spec) | ColumnType::Pixels { stored: spec, .. } if !spec.row.is_empty() => {
            (MemberContent::Array, vec!["npy"])
        }
        ColumnType::Tensor(spec) if is_integer(spec.dtype) && last(&column.name) == "cls" => {
            (MemberContent::Number, vec!["cls"])
        }
        _ => return None,
    })
}

fn is_integer(dtype: DType) -> bool {
    !dtype.is_float() && dtype != DType::Bool
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// What may stand behind a key; the source `tar` reads it in lower case.
fn extension(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.to_lowercase().chars().map(plain).collect::<String>().trim_matches('.').to_owned()
}

#[derive(Debug)]
struct SampleEncoder {
    /// The column of each member, what it is, and its extension.
    members: Vec<(usize, MemberContent, String)>,
    /// The columns that are parts of the record, and where they stand in the row.
    schema: Schema,
    in_record: Vec<usize>,
    rows_per_file: u64,
    bytes_per_file: u64,
}

impl SampleEncoder {
    fn new(columns: &[Column], rows_per_file: u64, bytes_per_file: u64) -> Self {
        let usual = |column: &Column| member_of(column).map(|(_, fitting)| fitting[0].to_owned());
        let (mut members, mut in_record) = (Vec::<(usize, MemberContent, String)>::new(), Vec::new());
        for (at, column) in columns.iter().enumerate() {
            let Some((content, fitting)) = member_of(column) else {
                in_record.push(at);
                continue;
            };
            let is_only = columns.iter().filter(|other| usual(other) == usual(column)).count() == 1;
            let mut called = match () {
                () if fitting.contains(&last(&column.name)) => extension(&column.name),
                () if is_only => extension(fitting[0]),
                () => extension(&format!("{}.{}", column.name, fitting[0])),
            };
            while called == RECORD || members.iter().any(|(_, _, taken)| *taken == called) {
                called.insert_str(0, "result.");
            }
            members.push((at, content, called));
        }
        let schema = Schema(in_record.iter().map(|at| columns[*at].clone()).collect());
        Self { members, schema, in_record, rows_per_file, bytes_per_file }
    }
}

/// The name of the item, fit for an archive that is unpacked in any folder: no dot in the last part, where the extension begins, and no part that
/// leads elsewhere.
fn key_of(item: &ItemInfo<'_>) -> String {
    let parts: Vec<&str> = item.name.split('/').collect();
    let (file, folders) = parts.split_last().expect("a text that is split has a part");
    let mut key = String::with_capacity(item.name.len() + 8);
    for folder in folders.iter().filter(|folder| !folder.is_empty()) {
        match *folder {
            "." | ".." => key.push_str(&folder.replace('.', "_")),
            _ => key.push_str(&folder.replace('\0', "_")),
        }
        key.push('/');
    }
    match *file {
        "" => key.push('_'),
        _ => key.push_str(&file.replace(['.', '\0'], "_")),
    }
    for part in item.parts {
        key.push('-');
        key.push_str(&part.index.to_string());
    }
    key
}

/// Appends what `write` does, and its length in front of it.
fn piece(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), ItemError>,
) -> Result<(), ItemError> {
    let begin = out.len();
    out.extend_from_slice(&[0; size_of::<u32>()]);
    write(out)?;
    let len = u32::try_from(out.len() - begin - size_of::<u32>());
    let len =
        len.map_err(|_| ItemError::result("the record has more than 4 GiB, which no part file takes"))?;
    out[begin..begin + size_of::<u32>()].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

impl Encoder for SampleEncoder {
    /// Key, record and members, each with its length.
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        #[derive(Serialize)]
        struct SampleRecord<'a> {
            item: &'a str,
            index: u64,
            source: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            result: Option<RowJson<'a>>,
        }
        let value = |at: usize| {
            let missing =
                || ItemError::result("internal error: a column of the record is missing; this is a bug");
            row.get(at).copied().ok_or_else(missing)
        };
        piece(out, |out| {
            out.extend_from_slice(key_of(item).as_bytes());
            Ok(())
        })?;
        let values: Vec<Value<'_>> = self.in_record.iter().map(|at| value(*at)).collect::<Result<_, _>>()?;
        let result = (!values.is_empty()).then_some(RowJson { schema: &self.schema, row: &values });
        let record = SampleRecord { item: item.name, index: item.id.index, source: item.source, result };
        let no_json = |error: serde_json::Error| ItemError::result(error.to_string());
        piece(out, |out| serde_json::to_writer(out, &record).map_err(no_json))?;
        for (at, content, _) in &self.members {
            let value = value(*at)?;
            piece(out, |out| content.write(&value, out))?;
        }
        Ok(())
    }

    fn part_files(&self) -> Option<&dyn PartFiles> {
        Some(self)
    }
}

impl MemberContent {
    fn write(self, value: &Value<'_>, out: &mut Vec<u8>) -> Result<(), ItemError> {
        match (self, value) {
            (MemberContent::Text, Value::Text(text)) => out.extend_from_slice(text.as_bytes()),
            (MemberContent::Bytes, Value::Bytes(bytes)) => out.extend_from_slice(bytes),
            (MemberContent::Picture, Value::Picture(picture)) => picture.with_pixels(&mut |pixels| {
                out.extend_from_slice(&png(&pixels)?);
                Ok(())
            })?,
            (MemberContent::Array, value) => value.with_tensor(|tensor| write_array(tensor, out))?,
            (MemberContent::Number, value) => value.with_tensor(|tensor| {
                let number = serde_json::to_vec(&JsonNumber(Element::read(tensor.dtype, tensor.data)));
                out.extend_from_slice(&number.map_err(|error| ItemError::result(error.to_string()))?);
                Ok(())
            })?,
            _ => return Err(ItemError::result("internal error: a column has another type; this is a bug")),
        }
        Ok(())
    }
}

impl PartFiles for SampleEncoder {
    fn rows_per_file(&self) -> u64 {
        self.rows_per_file
    }

    fn bytes_per_file(&self) -> u64 {
        self.bytes_per_file
    }

    fn file(&self, records: &[&[u8]]) -> Result<Vec<u8>, ItemError> {
        let damaged = || ItemError::result("a row that waited for its part is damaged");
        let bytes: usize = records.iter().map(|record| record.len()).sum();
        let room = bytes + records.len() * (self.members.len() + 1) * 1024;
        let mut archive = tar::Builder::new(Vec::with_capacity(room));
        let refused = |error: std::io::Error| ItemError::result(error.to_string());
        let mut keys: HashMap<String, u64> = HashMap::new();
        for record in records {
            let mut rest = *record;
            let mut next = || {
                let (len, behind) = rest.split_first_chunk().ok_or_else(damaged)?;
                let (piece, behind) =
                    behind.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(damaged)?;
                rest = behind;
                Ok::<&[u8], ItemError>(piece)
            };
            let key = std::str::from_utf8(next()?).map_err(|_| damaged())?;
            let key = unique(&mut keys, key);
            archive::append(&mut archive, &format!("{key}.{RECORD}"), next()?).map_err(refused)?;
            for (_, _, extension) in &self.members {
                archive::append(&mut archive, &format!("{key}.{extension}"), next()?).map_err(refused)?;
            }
        }
        archive.into_inner().map_err(refused)
    }
}

/// The key, or the first of `key-1`, `key-2`, ... that is free. `taken` has for each key the last number that was tried.
fn unique(taken: &mut HashMap<String, u64>, key: &str) -> String {
    let mut called = key.to_owned();
    while taken.contains_key(&called) {
        let number = taken.entry(key.to_owned()).or_default();
        *number += 1;
        called = format!("{key}-{number}");
    }
    taken.insert(called.clone(), 0);
    called
}

/// Reads the records of an archive back.
fn read_samples(file: &Path, each: &mut dyn FnMut(ReadRecord<'_>)) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let archive = Opener::new(&ReadOptions::default()).open(file).map_err(|item_error| item_error.error)?;
    let headers = BufReader::with_capacity(16 << 10, archive.from(0));
    let mut members = tar_members::members(headers).map_err(text)?.with_hidden(true);
    let mut record = Vec::new();
    while let Some(member) = members.next()? {
        let Member::File { name: whole_name, place } = member else { continue };
        let name = whole_name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let dot = name.iter().position(|byte| *byte == b'.').map_or(name.len(), |dot| dot + 1);
        if name[dot..] != *RECORD.as_bytes() {
            continue;
        }
        let name = String::from_utf8_lossy(&whole_name).into_owned();
        let [at, len] = place.map_err(|astray| format!("`{name}` {}", astray.why()))?;
        if len > LARGEST_FILE_BYTES {
            return Err(format!("`{name}` is no record: it has {len} bytes"));
        }
        record.resize(len as usize, 0); // No more than fits: `len` was checked.
        archive.read_exact_at(&mut record, at).map_err(text)?;
        let read: RecordHead<'_> =
            serde_json::from_slice(&record).map_err(|error| format!("`{name}` is no record: {error}"))?;
        each(ReadRecord { source: &read.source, index: read.index, item: &read.item });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use orchestra_core::collect::Part;
    use orchestra_core::data::{TensorView, fixed_tensor};
    use orchestra_core::{ItemId, SourceId};

    use super::*;

    fn named(name: &str, ty: ColumnType) -> Column {
        Column { name: name.into(), ty }
    }

    fn tensor(name: &str, dtype: DType, row: &[usize]) -> Column {
        named(name, ColumnType::Tensor(fixed_tensor(name, dtype, row)))
    }

    #[test]
    fn a_member_is_called_by_its_type_and_by_its_column_where_several_have_it() {
        let extensions = |columns: &[Column]| -> Vec<String> {
            SampleEncoder::new(columns, 1, 1).members.into_iter().map(|(_, _, extension)| extension).collect()
        };
        let (text, bytes) = (ColumnType::Text, |format: &str| ColumnType::Bytes(format.into()));
        let x = |name: &str| tensor(name, DType::F32, &[2]);
        assert_eq!(
            extensions(&[x("logits"), named("says", text.clone()), named("p", ColumnType::Picture)]),
            ["npy", "txt", "png"]
        );
        assert_eq!(extensions(&[x("A b"), x("s.B"), x("npy")]), ["a_b.npy", "s.b.npy", "npy"]);
        assert_eq!(extensions(&[x("a"), x("A")]), ["a.npy", "result.a.npy"]);
        let read = [
            tensor("cls", DType::I64, &[]),
            named("json", text.clone()),
            named("caption", text),
            named("mp3", bytes("mp3")),
        ];
        assert_eq!(
            extensions(&read),
            ["cls", "result.json", "caption", "mp3"],
            "as the source `tar` gives them"
        );
        let in_record =
            [tensor("n", DType::I64, &[]), tensor("cls", DType::F32, &[]), named("c", ColumnType::Labels)];
        assert_eq!(SampleEncoder::new(&in_record, 1, 1).in_record, [0, 1, 2]);
        assert_eq!(extensions(&[named("x", bytes("")), named("y", bytes("a/b"))]), ["bin", "a_b"]);
    }

    #[test]
    fn keys_have_no_dot_lead_nowhere_else_and_never_meet() {
        let key = |name: &str, parts: &[u32]| {
            let parts: Vec<Part> = parts.iter().map(|index| Part { index: *index, of: 9 }).collect();
            key_of(&ItemInfo {
                name,
                id: ItemId { source: SourceId(0), index: 0 },
                source: "s",
                parts: &parts,
            })
        };
        let keys = [
            ("a.tar/d.x/1", &[][..]),
            ("d/p.1.png", &[3, 0]),
            ("/abs", &[]),
            ("../../x", &[]),
            ("a/..", &[]),
            ("a/", &[]),
            ("", &[]),
        ];
        let keys: Vec<String> = keys.iter().map(|(name, parts)| key(name, parts)).collect();
        assert_eq!(keys, ["a.tar/d.x/1", "d/p_1_png-3-0", "abs", "__/__/x", "a/__", "a/_", "_"]);
        let mut taken = HashMap::new();
        let called: Vec<String> =
            ["a", "a-1", "a", "a", "b", "a-1"].iter().map(|key| unique(&mut taken, key)).collect();
        assert_eq!(called, ["a", "a-1", "a-2", "a-3", "b", "a-1-1"]);
    }

    #[test]
    fn records_are_read_back_and_neither_cut_archives_nor_cut_rows_are_taken() {
        let samples = SampleEncoder::new(&[tensor("x", DType::U8, &[3]), tensor("n", DType::I64, &[])], 1, 1);
        let n = 7_i64.to_ne_bytes();
        let view = |dtype, shape, data| Value::Tensor(TensorView { name: "x", dtype, shape, data });
        let row = [view(DType::U8, &[3][..], &[1, 2, 3][..]), view(DType::I64, &[], &n)];
        let records: Vec<Vec<u8>> = (0..3)
            .map(|index| {
                let id = ItemId { source: SourceId(0), index };
                let mut out = Vec::new();
                samples
                    .encode(&ItemInfo { name: "a.json", id, source: "s", parts: &[] }, &row, &mut out)
                    .unwrap();
                out
            })
            .collect();
        let rows: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let bytes = samples.file(&rows).unwrap();
        assert_eq!(samples.file(&rows).unwrap(), bytes, "the same rows are the same file");
        for len in 0..rows[0].len() {
            assert!(samples.file(&[&rows[0][..len]]).is_err(), "{len}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let mut found = Vec::new();
            let read = read_samples(&path, &mut |read| found.push((read.source.to_owned(), read.index)));
            read.map(|()| found)
        };
        assert_eq!(read(&bytes).unwrap(), [0, 1, 2].map(|index| ("s".to_owned(), index)));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(r#"{"item":"a.json","index":2,"source":"s","result":{"n":7}}"#), "{text}");
        for len in (0..bytes.len() - 1024).step_by(7) {
            assert!(read(&bytes[..len]).is_err(), "{len}");
        }
        let mut bent = bytes.clone();
        let at = bent.windows(9).rposition(|nine| nine == b"\"index\":2").unwrap();
        bent[at + 8] = b'x';
        assert!(read(&bent).unwrap_err().contains("`a_json-2.json` is no record"));
    }
}
