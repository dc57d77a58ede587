//! `kind = "tar"`: samples of tar archives (WebDataset), one item each.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{Refusal, Value};
use orchestra_core::shapes::{Fetch, FetchRun, LoaderSpec, Network, Opens};
use orchestra_core::{DType, FailureKind};
use orchestra_plan::{Key, SourceConnected, SourceContext, SourceKind, key};
use orchestra_store::{Expand, ListError, ObjectStore, PushItem, escape, is_url};

use super::columns::{Cell, Field, FieldType, LARGEST_TENSOR, LARGEST_TEXT, Row, decoders, schema, settings};
use super::locator::{file_of, locator, parts};
use super::npy::{HEAD, Header};
use super::objects::{self, Protocol, ReadObject};
use super::read_file::{LARGEST_FILE_BYTES, open_regular, read_part};
use super::tar_members::{Member, Members};

pub struct Tar;

const KEYS: [Key; 1] = [key(
    "columns",
    "list",
    "those of the first sample",
    "the extensions whose members an item has, each a column of that name: pictures (`jpg`, `png`, `webp`, ...), `cls` (a number, i64), \
     `txt`, `text`, `caption` and `json` (text), `npy` (a tensor of the first sample's shape); any other is bytes",
)];

/// Members that one sample may have.
const MOST_COLUMNS: usize = 256;

/// In place of where a member lies: the sample has none, or two of them.
const MISSING: [u64; 2] = [0, 0];
const TWICE: [u64; 2] = [0, 1];

impl SourceKind for Tar {
    fn name(&self) -> &'static str {
        "tar"
    }

    fn about(&self) -> &'static str {
        "The samples of uncompressed tar archives, as WebDataset writes them: members that follow one another and share their path up to the first \
         dot of the file name. An item is called `shard.tar/key`. `paths` may name [objects](../guide/workflow-file.md#objects), of which headers and \
         the members of `columns` are read: `s3://bucket/shards/*.tar`."
    }

    fn objects(&self) -> Result<Arc<dyn ObjectStore>, String> {
        objects::store()
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let names = match source.fields.entry("columns") {
            Some(entry) => {
                let names = source.fields.strings("columns")?;
                let mut unique: Vec<String> = Vec::new();
                for name in names {
                    let extension = name.value.trim_start_matches('.').to_ascii_lowercase();
                    if extension.is_empty() || unique.contains(&extension) {
                        source.fields.bad(
                            "columns",
                            name.span,
                            "must name each extension once, such as \"jpg\"",
                        );
                        return None;
                    }
                    unique.push(extension);
                }
                if unique.is_empty() || unique.len() > MOST_COLUMNS {
                    source.fields.bad(
                        "columns",
                        entry.node.span,
                        &format!("must name 1 to {MOST_COLUMNS} extensions"),
                    );
                    return None;
                }
                Some(unique)
            }
            None => None,
        };
        let columns = match names {
            Some(names) if !names.iter().any(|name| is_npy(name)) => {
                names.into_iter().map(|name| Field { ty: type_of(&name), name }).collect()
            }
            names => first_sample(source, names)?,
        };
        let protocols = objects::protocols(source.urls);
        let shards = Arc::new(Shards { columns, max_pixels: source.limits.max_pixels, protocols });
        Some(SourceConnected {
            gives: schema(&shards.columns),
            fetch: Arc::clone(&shards) as Arc<dyn Fetch>,
            settings: settings(self.name(), &shards.columns),
            decoders: decoders(&shards.columns),
            expand: Some(shards),
            names_repeat: true,
        })
    }

    fn revive(&self, spec: &LoaderSpec) -> Option<Arc<dyn Fetch>> {
        Some(Arc::new(spec.read::<Shards>()?))
    }
}

/// The last part of an extension says what it is: `seg.png` is a picture.
fn end_of(extension: &str) -> &str {
    extension.rsplit('.').next().unwrap_or(extension)
}

fn is_npy(extension: &str) -> bool {
    end_of(extension) == "npy"
}

/// The type of a column that is no tensor of a file.
fn type_of(extension: &str) -> FieldType {
    match end_of(extension) {
        "jpg" | "jpeg" | "png" | "webp" | "bmp" | "tif" | "tiff" | "gif" => FieldType::Picture,
        "cls" => FieldType::scalar(DType::I64),
        "txt" | "text" | "caption" | "json" => FieldType::Text,
        other => FieldType::Bytes(other.to_owned()),
    }
}

/// The columns as the first sample of the first file has them: all, or those that are named.
fn first_sample(source: &mut SourceContext<'_, '_>, names: Option<Vec<String>>) -> Option<Vec<Field>> {
    let span = source.fields.span;
    let what = source.fields.what.clone();
    let Some(first) = source.first else {
        let message = format!("{what} needs a file to look at: its columns are not known");
        let help = "name the archives with `paths`, or with a manifest that is a file; or name `columns`, without `npy`";
        source.fields.diags.error(span, message).help(help);
        return None;
    };
    let columns = match first.path.to_str().filter(|_| !source.urls.is_empty()) {
        Some(url) => objects::read_pieces(url, |pieces| Ok(look(pieces, names)))
            .unwrap_or_else(|error| Err(error.to_string())),
        None => source
            .host
            .open(&first.path)
            .map_err(|error| error.to_string())
            .and_then(|mut file| look(&mut file, names)),
    };
    columns
        .map_err(|why| {
            let message =
                format!("{what}: `{}` cannot be read as a tar archive of samples: {why}", first.name);
            source
                .fields
                .diags
                .error(span, message)
                .help("a sample is members such as `0001.jpg` and `0001.cls`, one behind the other");
        })
        .ok()
}

/// The columns of the first sample of an archive: all, or those that are named.
fn look(mut archive: impl Read + Seek, names: Option<Vec<String>>) -> Result<Vec<Field>, String> {
    let mut sample: Option<(String, Vec<(String, Member)>)> = None;
    let mut members = Members::new(BufReader::new(&mut archive)).map_err(|error| error.to_string())?;
    while let Some(member) = members.next()? {
        let Some((key, extension)) = key_of(&member.name) else { continue };
        let (first, found) = sample.get_or_insert_with(|| (key.clone(), Vec::new()));
        if *first != key || found.len() > MOST_COLUMNS {
            break;
        }
        if found.iter().all(|(known, _)| *known != extension) {
            found.push((extension, member));
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
            return Ok(Field { ty: type_of(&name), name });
        }
        let member = found.iter().find(|(extension, _)| *extension == name);
        let (_, member) = member.ok_or_else(|| format!("its first sample, `{key}`, has no `.{name}`"))?;
        let mut head = Vec::new();
        archive.seek(SeekFrom::Start(member.at)).map_err(|error| error.to_string())?;
        (&mut archive)
            .take(member.len.min(HEAD as u64))
            .read_to_end(&mut head)
            .map_err(|error| error.to_string())?;
        let header = Header::parse_any(&head).map_err(|why| format!("`{key}.{name}`: {why}"))?;
        if header.bytes() > LARGEST_TENSOR {
            return Err(format!("`{key}.{name}` has {} bytes, and a tensor at most 1 GiB", header.bytes()));
        }
        Ok(Field { name, ty: FieldType::Tensor { dtype: header.dtype, shape: header.shape } })
    };
    names.into_iter().map(column).collect()
}

/// The key of a member, as text, and its extension. `None` for a name without a dot, and for a hidden file.
fn key_of(name: &[u8]) -> Option<(String, String)> {
    let mut name = name;
    while let Some(rest) = name.strip_prefix(b"./") {
        name = rest;
    }
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let dot = name[base..].iter().position(|byte| *byte == b'.')?;
    let (key, extension) = (&name[..base + dot], &name[base + dot + 1..]);
    if dot == 0 || extension.is_empty() || name.contains(&0) {
        return None;
    }
    let text = |bytes: &[u8]| escape(Path::new(OsStr::from_bytes(bytes)));
    Some((text(key), text(extension).to_ascii_lowercase()))
}

#[derive(Debug, Clone, Encode, Decode)]
struct Shards {
    columns: Vec<Field>,
    max_pixels: u64,
    /// How its objects are read; empty: it has files.
    protocols: Vec<Protocol>,
}

impl Expand for Shards {
    fn expand(&self, path: &Path, push: PushItem<'_>) -> Result<(), ListError> {
        match path.to_str().filter(|_| !self.protocols.is_empty()) {
            Some(url) if is_url(url) => {
                objects::read_pieces(url, |pieces| self.samples(path, BufReader::new(pieces), push))
            }
            _ => {
                let (file, _) = open_regular(path).map_err(|error| ListError::bad_file(path, error))?;
                self.samples(path, BufReader::with_capacity(16 << 10, file), push)
            }
        }
    }
}

impl Shards {
    /// Names the samples of an archive.
    fn samples(&self, path: &Path, archive: impl Read + Seek, push: PushItem<'_>) -> Result<(), ListError> {
        let mut push = |key: &str, places: &[u64]| push(&format!("/{key}"), &locator(path, places));
        let unreadable = |why: String| ListError::bad_file(path, why);
        let mut members = Members::new(archive).map_err(|error| unreadable(error.to_string()))?;
        let mut sample: Option<(String, Vec<u64>)> = None;
        let mut is_empty = true;
        while let Some(member) = members.next().map_err(unreadable)? {
            is_empty = false;
            let Some((key, extension)) = key_of(&member.name) else { continue };
            if let Some((before, places)) = sample.take_if(|(before, _)| *before != key) {
                push(&before, &places)?;
            }
            let (_, places) = sample.get_or_insert_with(|| (key, MISSING.repeat(self.columns.len())));
            if let Some(at) = self.columns.iter().position(|column| column.name == extension) {
                let place = &mut places[at * 2..][..2];
                let found = if *place == MISSING { [member.at, member.len] } else { TWICE };
                place.copy_from_slice(&found);
            }
        }
        match sample {
            Some((key, places)) => push(&key, &places),
            None if is_empty => Ok(()),
            None => Err(unreadable("it holds no sample: no member is called `key.extension`".into())),
        }
    }
}

impl Fetch for Shards {
    fn start(&self) -> Box<dyn FetchRun> {
        let archive = match self.protocols.is_empty() {
            true => Archive::File(None),
            false => Archive::Object { objects: objects::reader(), near: Vec::new(), from: 0 },
        };
        let row = Row::new(&self.columns, self.max_pixels);
        Box::new(Sample { n: self.columns.len(), archive, buffer: Vec::new(), row })
    }

    fn network(&self) -> Option<Network> {
        objects::network(&self.protocols)
    }

    fn in_loader(&self) -> Option<LoaderSpec> {
        LoaderSpec::of(Tar.name(), self)
    }

    fn opens(&self) -> Opens {
        match self.protocols.is_empty() {
            true => Opens::OfItems(file_of),
            false => Opens::Any,
        }
    }
}

struct Sample {
    /// How many columns there are.
    n: usize,
    archive: Archive,
    buffer: Vec<u8>,
    row: Row,
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
        let (path, places) = parts(locator, self.n * 2)?;
        let refuse = |kind: FailureKind, error: String| Refusal { kind, error };
        let (places, _) = places.as_chunks::<2>();
        for ((field, _), place) in self.row.cells().zip(places) {
            let name = &field.name;
            if [MISSING, TWICE].contains(place) {
                let what = if *place == MISSING { "no member" } else { "two members" };
                let error = format!("the sample has {what} `.{name}`, and one is expected");
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
        let mut read = 0;
        for ((field, cell), [at, len]) in self.row.cells().zip(places) {
            let buffer = match cell {
                Cell::Bytes(bytes) if matches!(field.ty, FieldType::Bytes(_)) => bytes,
                Cell::Picture(picture) => picture.bytes_mut(),
                Cell::Text(_) | Cell::Bytes(_) => &mut self.buffer,
            };
            self.archive.read(path, *at, *len, buffer)?;
            read += len;
            take(field, cell, &self.buffer)
                .map_err(|why| refuse(FailureKind::Decode, format!("`.{}` {why}", field.name)))?;
        }
        Ok(read)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        self.row.show(show);
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
            let elements = bytes.get(header.data..header.data + header.bytes()).ok_or("is cut short")?;
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

#[cfg(test)]
mod tests {
    use super::super::tar_members::tests::archive;
    use super::*;

    fn items(shards: &Shards, path: &Path) -> Vec<(String, Vec<u8>)> {
        let mut items = Vec::new();
        shards
            .expand(path, &mut |name, locator| {
                items.push((name.to_owned(), locator.to_vec()));
                Ok(())
            })
            .unwrap();
        items
    }

    #[test]
    fn members_with_one_key_are_a_sample_and_a_bad_sample_fails_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        let members: [(&str, &[u8]); 12] = [
            ("./d.x/1.cls", b" 7\n"),
            ("./d.x/1.seg.JSON", b"{}"),
            ("README", b"no sample"),
            (".hidden", b""),
            ("d.x/2.cls", b"8"),
            ("d.x/3.cls", b"x"),
            ("d.x/3.seg.json", b"{}"),
            ("4.cls", b"1"),
            ("4.cls", b"2"),
            ("4.seg.json", b""),
            ("5.seg.json", b"\xff"),
            ("5.cls", b"1"),
        ];
        std::fs::write(&path, archive(&members)).unwrap();
        let columns = ["cls", "seg.json"].map(|name| Field { name: name.into(), ty: type_of(name) }).into();
        let shards = Shards { columns, max_pixels: 1, protocols: Vec::new() };
        let items = items(&shards, &path);
        let names: Vec<&str> = items.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["/d.x/1", "/d.x/2", "/d.x/3", "/4", "/5"]);
        let mut run = shards.start();
        let whys =
            ["no member `.seg.json`", "`.cls` is no whole number", "two members `.cls`", "is no UTF-8"];
        for ((_, locator), why) in items[1..].iter().zip(whys) {
            let error = run.fetch(locator).unwrap_err().error;
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(run.fetch(&items[0].1).unwrap(), 5);
        run.with_row(&mut |row| {
            let [Value::Tensor(cls), Value::Text(json)] = row else { panic!("other values") };
            assert_eq!((cls.data, *json), (&7_i64.to_ne_bytes()[..], "{}"));
        });
        std::fs::write(&path, archive(&members[..1])).unwrap();
        assert!(run.fetch(&items[4].1).is_err());
    }
}
