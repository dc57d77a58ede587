//! `kind = "tensors"`: the rows of NumPy arrays in `.npy` and `.npz` files, one item each, or many rows together.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::FailureKind;
use orchestra_core::data::{Refusal, TensorView, Value};
use orchestra_core::shapes::{Fetch, FetchRun, Opens, RemoteSpec};
use orchestra_plan::tree::Value as Toml;
use orchestra_plan::{At, Fields, Host, Key, ReadSeek, SourceConnected, SourceContext, SourceKind, key};
use orchestra_store::{Expand, ListError, PushItem};

use super::columns::{Field, FieldType, LARGEST_TENSOR, schema};
use super::locator::{file_of, locator, parts};
use super::npy::{HEAD, Header};
use super::read_file::open_regular;
use super::zip_members::{Content, Directory, LOCAL, Method, Place, data_at};

/// The kind `tensors`.
pub struct Tensors;

/// Arrays of a `.npz` file.
const MOST_ARRAYS: usize = 4096;

const KEYS: [Key; 4] = [
    key(
        "column",
        "text",
        "\"x\"",
        "only for `.npy`: the name of the tensor, for `from = \"source.name\"` and in records",
    ),
    key("columns", "list", "all", "only for `.npz`: the arrays that items have, each a column of its name"),
    key(
        "beside",
        "table",
        "none",
        "only for `.npy`: more columns of the same rows, each out of a file of its own: `beside = { b = \"b.npy\" }`. The path is relative to the file of `paths`; a \
         `*` in it stands for the name of that file, as in `\"../masks/*\"`",
    ),
    key(
        "rows",
        "integer",
        "one row",
        "an item is so many rows together, called `file.npy[from:to]`, with them as its first dimension; the rows of each file must be a multiple of it",
    ),
];

impl SourceKind for Tensors {
    fn name(&self) -> &'static str {
        "tensors"
    }

    fn about(&self) -> &'static str {
        "The rows (first dimension) of arrays in `.npy` files of one shape and element type, in C order; an item is called `file.npy[row]`. With `beside`, the rows of several such files of equal length together. Or those of \
         `.npz` files, with a column per array and the same number of rows in each; a deflated array is unpacked from its beginning, as a stream."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let column = source.fields.string("column");
        let beside = read_beside(&mut source.fields)?;
        let columns = match source.fields.entry("columns") {
            Some(_) => Some(source.fields.strings("columns")?),
            None => None,
        };
        let chunk = match source.fields.entry("rows") {
            Some(_) => Some(source.fields.integer("rows", 1..=LARGEST_TENSOR as u64)?),
            None => None,
        };
        let span = source.fields.span;
        let what = source.fields.what.clone();
        let Some(first) = source.first else {
            source
                .fields
                .diags
                .error(span, format!("{what} needs a file to look at: the shape of its tensors is not known"))
                .help("name the files with `paths`, or with a manifest that is a file");
            return None;
        };
        let opened = source.host.open(&first.path).map_err(|error| error.to_string());
        let found = opened.and_then(|mut file| arrays(&mut file));
        let (is_npz, found) = match found {
            Ok(found) => found,
            Err(why) => {
                source
                    .fields
                    .diags
                    .error(span, format!("{what}: `{}` is no array that can be read: {why}", first.name))
                    .help(
                        "write it with numpy.save or numpy.savez, with the items along the first dimension",
                    );
                return None;
            }
        };
        let (name, extension) = if is_npz { ("column", ".npz") } else { ("columns", ".npy") };
        if let Some(entry) = source.fields.entry(name) {
            let reason = format!("does not belong here: `{}` is a {extension} file", first.name);
            let help = if is_npz {
                "use `columns`, a list of arrays"
            } else {
                "use `column`, a name for the tensor"
            };
            source.fields.bad(name, entry.key_span, &reason).help(help);
            return None;
        }
        if let (true, Some(entry)) = (is_npz, source.fields.entry("beside")) {
            let reason = format!("does not belong here: `{}` is a .npz file", first.name);
            source
                .fields
                .bad("beside", entry.key_span, &reason)
                .help("put all arrays into it with numpy.savez");
            return None;
        }
        let mut chosen: Vec<Array> = match (&columns, column) {
            (Some(columns), _) => {
                let mut chosen: Vec<Array> = Vec::new();
                for column in columns {
                    let array = found.iter().find(|array| array.name == column.value);
                    let (Some(array), None) = (array, chosen.iter().find(|array| array.name == column.value))
                    else {
                        let names: Vec<_> = found.iter().map(|array| array.name.as_str()).collect();
                        source
                            .fields
                            .bad("columns", column.span, &format!("cannot name `{}`", column.value))
                            .help(format!("each array of `{}` once: `{}`", first.name, names.join("`, `")));
                        return None;
                    };
                    chosen.push(array.clone());
                }
                chosen
            }
            (None, Some(column)) => {
                found.into_iter().map(|array| Array { name: column.value.clone(), ..array }).collect()
            }
            (None, None) => found,
        };
        for (name, written) in &beside {
            let path = path_beside(&first.path, &written.value);
            match array_beside(name, &path, source.host) {
                Ok(_) if chosen.iter().any(|array| array.name == *name) => {
                    let help = "columns have names of their own; `column` is that of the file of `paths`";
                    source.fields.bad("beside", written.span, &format!("has `{name}` twice")).help(help);
                    return None;
                }
                Ok(array) => chosen.push(array),
                Err(why) => {
                    let reason = format!("names `{}`, which cannot be read: {why}", path.display());
                    let help = "the path is relative to the file of `paths`; `*` stands for that file's name";
                    source.fields.bad("beside", written.span, &reason).help(help);
                    return None;
                }
            }
        }
        let fields = match chosen
            .iter()
            .map(|array| array.field(chunk.as_ref().map(|chunk| chunk.value)))
            .collect()
        {
            Ok(fields) => fields,
            Err(why) => {
                let place = chunk.as_ref().map_or(span, |chunk| chunk.span);
                source
                    .fields
                    .diags
                    .error(place, format!("{what}: `{}` has no items of this kind: {why}", first.name))
                    .help("numeric arrays, with the items along the first dimension, are read; `columns` says which ones of a .npz file");
                return None;
            }
        };
        let beside = beside.into_iter().map(|(_, written)| written.value).collect();
        let rows = Arc::new(Rows { is_npz, fields, beside, chunk: chunk.map(|chunk| chunk.value) });
        let headers: Result<Vec<_>, String> = chosen.into_iter().map(|array| array.header).collect();
        if let Err(why) = headers.and_then(|headers| rows.count(headers.iter().collect())) {
            let place = source.fields.entry("rows").map_or(span, |entry| entry.node.span);
            let message = format!("{what}: `{}` cannot be cut into items: {why}", first.name);
            source
                .fields
                .diags
                .error(place, message)
                .help("an item has all its rows, and no row is left out");
            return None;
        }
        let settings = match &*rows {
            // As it was before there was more to say, so that earlier runs go on.
            Rows { is_npz: false, chunk: None, fields, beside } if beside.is_empty() => {
                serde_json::json!({ "kind": "tensors", "column": fields[0].name })
            }
            Rows { fields, chunk, beside, .. } => {
                let names: Vec<_> = fields.iter().map(|field| &field.name).collect();
                let mut settings = serde_json::json!({ "kind": "tensors", "columns": names, "rows": chunk });
                if !beside.is_empty() {
                    settings["beside"] = beside.as_slice().into();
                }
                settings
            }
        };
        Some(SourceConnected {
            gives: schema(&rows.fields),
            fetch: Arc::clone(&rows) as Arc<dyn Fetch>,
            expand: Some(rows),
            names_repeat: false,
            settings,
            decoders: None,
        })
    }

    fn revive(&self, spec: &RemoteSpec) -> Option<Arc<dyn Fetch>> {
        Some(Arc::new(spec.read::<Rows>()?))
    }
}

/// Names of columns, and where their files lie.
fn read_beside(fields: &mut Fields<'_, '_>) -> Option<Vec<(String, At<String>)>> {
    let Some(entry) = fields.entry("beside") else { return Some(Vec::new()) };
    let Toml::Table(table) = &entry.node.value else {
        fields.wrong("beside", &entry.node, "a table: beside = { b = \"b.npy\" }");
        return None;
    };
    let mut beside = Vec::new();
    for entry in &table.entries {
        match &entry.node.value {
            Toml::String(path) if !entry.key.trim().is_empty() && !path.trim().is_empty() => {
                beside.push((entry.key.clone(), At::new(path.clone(), entry.node.span)));
            }
            _ => {
                fields.wrong(&format!("beside.{}", entry.key), &entry.node, "the path of a file, in quotes");
                return None;
            }
        }
    }
    Some(beside)
}

/// Where a file beside another one lies.
fn path_beside(file: &Path, written: &str) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name("").join(written.replace('*', &name))
}

fn array_beside(name: &str, path: &Path, host: &dyn Host) -> Result<Array, String> {
    let mut file = host.open(path).map_err(|error| error.to_string())?;
    match arrays(&mut file)? {
        (false, mut arrays) => {
            let array = arrays.pop().ok_or("it holds no array")?;
            Ok(Array { name: name.to_owned(), ..array })
        }
        (true, _) => Err("it is a .npz file".to_owned()),
    }
}

/// An array of a file.
#[derive(Debug, Clone)]
struct Array {
    /// `x` for the only one of a `.npy` file.
    name: String,
    /// Why it cannot be read, where it is not asked for.
    header: Result<Header, String>,
    /// Its member of a `.npz` file.
    place: Option<Place>,
}

impl Array {
    /// The column of it, whose values are a row or so many of them.
    fn field(&self, chunk: Option<u64>) -> Result<Field, String> {
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
        Ok(Field { name: self.name.clone(), ty: FieldType::Tensor { dtype: header.dtype, shape } })
    }
}

/// Whether it is a `.npz` file, and its arrays. Those that cannot be read are among them, if it has several.
fn arrays(file: &mut dyn ReadSeek) -> Result<(bool, Vec<Array>), String> {
    let text = |error: io::Error| error.to_string();
    let mut start = [0; 4];
    let n = read_up_to(file, &mut start).map_err(text)?;
    if !start[..n].starts_with(b"PK\x03\x04") {
        file.rewind().map_err(text)?;
        let mut head = Vec::new();
        file.take(HEAD as u64).read_to_end(&mut head).map_err(text)?;
        let header = Header::parse(&head)?;
        return Ok((false, vec![Array { name: "x".into(), header: Ok(header), place: None }]));
    }
    let mut places = Vec::new();
    let mut directory = Directory::new(BufReader::new(&mut *file))?;
    while let Some(member) = directory.next()? {
        let name = String::from_utf8(member.name).map_err(|_| "the name of an array is no UTF-8")?;
        let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
        if places.len() == MOST_ARRAYS {
            return Err(format!("it has more than {MOST_ARRAYS} arrays"));
        }
        places.push((name, member.place));
    }
    if places.is_empty() {
        return Err("it holds no array".into());
    }
    let mut all = Vec::new();
    for (name, place) in places {
        let header = member_head(file, &place).and_then(|head| Header::parse(&head));
        all.push(Array { name, header, place: Some(place) });
    }
    Ok((true, all))
}

/// The first bytes of the content of a member.
fn member_head(file: &mut dyn ReadSeek, place: &Place) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| error.to_string();
    let mut local = [0; LOCAL];
    file.seek(io::SeekFrom::Start(place.header)).map_err(text)?;
    file.read_exact(&mut local).map_err(text)?;
    file.seek(io::SeekFrom::Start(data_at(place.header, &local)?)).map_err(text)?;
    let packed = file.take(place.packed);
    let mut head = Vec::new();
    match place.method {
        Method::Stored => packed.take(HEAD as u64).read_to_end(&mut head),
        Method::Deflated => {
            flate2::read::DeflateDecoder::new(packed).take(HEAD as u64).read_to_end(&mut head)
        }
        Method::Other(_) => return Err("it is encrypted, or neither stored nor deflated".into()),
    }
    .map_err(text)?;
    Ok(head)
}

fn read_up_to(file: &mut dyn ReadSeek, to: &mut [u8]) -> io::Result<usize> {
    let mut bytes = Vec::new();
    file.take(to.len() as u64).read_to_end(&mut bytes)?;
    to[..bytes.len()].copy_from_slice(&bytes);
    Ok(bytes.len())
}

/// What all files of the source have in common.
#[derive(Debug, Clone, Encode, Decode)]
struct Rows {
    is_npz: bool,
    /// Tensors, as items have them: those of the file, then one for each of `beside`.
    fields: Vec<Field>,
    /// Files that have more columns, as they are written.
    beside: Vec<String>,
    /// Rows of an item, where they are its first dimension.
    chunk: Option<u64>,
}

/// An array of a file that is open.
struct OpenArray {
    file: Arc<File>,
    header: Header,
    /// Where its elements begin in the file, where they are not deflated.
    at: u64,
    deflated: Option<Deflated>,
}

/// An array that is unpacked as a stream: where it stands says which row comes next.
struct Deflated {
    place: Place,
    content: Option<Content>,
    /// Bytes of the content that are read.
    at: u64,
}

impl Rows {
    /// How many rows an array of this column has, which must be like those of all files.
    fn n_rows(&self, field: &Field, header: &Header) -> Result<u64, String> {
        let (n, row) = header.rows().ok_or_else(|| format!("`{}` has no first dimension", field.name))?;
        match &field.ty {
            FieldType::Tensor { dtype, shape } => {
                let expected = &shape[usize::from(self.chunk.is_some())..];
                if header.dtype != *dtype || row != expected {
                    return Err(format!(
                        "it holds {} rows of {row:?}, and the first file of the source {dtype} rows of {expected:?}",
                        header.dtype
                    ));
                }
            }
            _ => return Err(format!("`{}` is no tensor", field.name)),
        }
        Ok(n)
    }

    /// How many items files with these arrays have.
    fn count(&self, headers: Vec<&Header>) -> Result<u64, String> {
        let mut rows = None;
        for (field, header) in self.fields.iter().zip(headers) {
            let n = self.n_rows(field, header)?;
            match rows {
                None => rows = Some((n, &field.name)),
                Some((other, name)) if other != n => {
                    return Err(format!("`{name}` has {other} rows, and `{}` {n}", field.name));
                }
                Some(_) => {}
            }
        }
        let (rows, _) = rows.ok_or("it holds no array")?;
        let chunk = self.chunk.unwrap_or(1);
        if !rows.is_multiple_of(chunk) {
            // The largest divisor that is no more. Each pair of divisors has one up to the root.
            let pairs = (1..=rows.isqrt()).filter(|divisor| rows.is_multiple_of(*divisor));
            let divisors = pairs.flat_map(|divisor| [divisor, rows / divisor]);
            let fitting = divisors.filter(|divisor| *divisor <= chunk).max().unwrap_or(1);
            return Err(format!(
                "it has {rows} rows, which is no multiple of `rows = {chunk}`: for this file use `rows = {fitting}`"
            ));
        }
        Ok(rows / chunk)
    }

    /// Opens a file, which must have the shape of all others, and those beside it: the arrays, in the order of the columns, and the items.
    fn open(&self, path: &Path) -> Result<(Vec<OpenArray>, u64), String> {
        let (own, others) = self.fields.split_at(self.fields.len() - self.beside.len());
        let mut open = self.open_file(path, own)?;
        for (field, written) in others.iter().zip(&self.beside) {
            let other = path_beside(path, written);
            let arrays = self.open_file(&other, std::slice::from_ref(field));
            open.extend(arrays.map_err(|why| format!("`{}` beside it: {why}", other.display()))?);
        }
        let items = self.count(open.iter().map(|array| &array.header).collect())?;
        Ok((open, items))
    }

    /// The arrays of these columns.
    fn open_file(&self, path: &Path, fields: &[Field]) -> Result<Vec<OpenArray>, String> {
        let (mut file, meta) = open_regular(path).map_err(|error| error.to_string())?;
        let (is_npz, mut found) = arrays(&mut file)?;
        if is_npz != self.is_npz {
            let (is, first) = if is_npz { (".npz", ".npy") } else { (".npy", ".npz") };
            return Err(format!("it is a {is} file, and the first file of the source a {first} file"));
        }
        let file = Arc::new(file);
        let mut open = Vec::new();
        for field in fields {
            let at = if is_npz { found.iter().position(|array| array.name == field.name) } else { Some(0) };
            let array = found.swap_remove(at.ok_or_else(|| format!("it has no array `{}`", field.name))?);
            let header = array.header.map_err(|why| format!("array `{}`: {why}", field.name))?;
            self.n_rows(field, &header)?;
            let needed = (header.bytes() as u64).checked_add(header.data as u64);
            let (at, len) = match array.place {
                None => (0, meta.len()),
                Some(place) => {
                    let mut local = [0; LOCAL];
                    file.read_exact_at(&mut local, place.header).map_err(|error| error.to_string())?;
                    (data_at(place.header, &local)?, place.len)
                }
            };
            let is_stored = array.place.is_none_or(|place| place.method == Method::Stored);
            let end = needed.and_then(|needed| at.checked_add(needed));
            let is_whole = !is_stored || end.is_some_and(|end| end <= meta.len());
            if !is_whole || needed.is_none_or(|needed| len < needed) {
                return Err(format!("it is cut short: its header says {} rows", header.shape[0]));
            }
            let deflated =
                array.place.filter(|_| !is_stored).map(|place| Deflated { place, content: None, at: 0 });
            open.push(OpenArray { file: Arc::clone(&file), at: at + header.data as u64, header, deflated });
        }
        Ok(open)
    }
}

impl Expand for Rows {
    fn expand(&self, path: &Path, push: PushItem<'_>) -> Result<(), ListError> {
        let unreadable = |why: String| ListError::bad_file(path, why);
        let (_, items) = self.open(path).map_err(unreadable)?;
        (0..items).try_for_each(|item| {
            let name = match self.chunk {
                None => format!("[{item}]"),
                Some(chunk) => format!("[{}:{}]", item * chunk, (item + 1) * chunk),
            };
            push(&name, &locator(path, &[item]))
        })
    }
}

impl Fetch for Rows {
    fn start(&self) -> Box<dyn FetchRun> {
        Box::new(RowReader { rows: self.clone(), open: None, data: vec![Vec::new(); self.fields.len()] })
    }

    fn remote(&self) -> Option<RemoteSpec> {
        RemoteSpec::of(Tensors.name(), self)
    }

    fn opens(&self) -> Opens {
        match self.beside.is_empty() {
            true => Opens::OfItems(file_of),
            false => Opens::Any,
        }
    }
}

struct RowReader {
    rows: Rows,
    /// The file of the last item, with its arrays and how many items it has: the next one is most likely in it, too.
    open: Option<(PathBuf, Vec<OpenArray>, u64)>,
    /// Per column.
    data: Vec<Vec<u8>>,
}

impl FetchRun for RowReader {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, Refusal> {
        let (path, item) = parts(locator, 1)?;
        let item = item[0];
        let failed = |why: String| Refusal {
            kind: FailureKind::Read,
            error: format!("cannot read `{}`: {why}", path.display()),
        };
        let (_, arrays, items) = match &mut self.open {
            Some(open) if open.0 == path => open,
            open => {
                *open = None;
                let (arrays, items) = self.rows.open(path).map_err(failed)?;
                open.insert((path.to_owned(), arrays, items))
            }
        };
        if item >= *items {
            return Err(failed(format!("it has {items} items by now, and no item {item}")));
        }
        let mut read = 0;
        for ((array, data), field) in arrays.iter_mut().zip(&mut self.data).zip(&self.rows.fields) {
            let FieldType::Tensor { dtype, shape } = &field.ty else { continue };
            data.resize(shape.iter().product::<usize>() * dtype.size_bytes(), 0);
            let begin = item * data.len() as u64;
            match &mut array.deflated {
                None => {
                    let read = array.file.read_exact_at(data, array.at + begin);
                    read.map_err(|error| failed(error.to_string()))?;
                }
                Some(deflated) => {
                    deflated.read(&array.file, array.header.data as u64 + begin, data).map_err(failed)?;
                }
            }
            array.header.to_native(data);
            read += data.len() as u64;
        }
        Ok(read)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        let mut values = Vec::with_capacity(self.data.len());
        for (field, data) in self.rows.fields.iter().zip(&self.data) {
            if let FieldType::Tensor { dtype, shape } = &field.ty {
                values.push(Value::Tensor(TensorView { name: &field.name, dtype: *dtype, shape, data }));
            }
        }
        show(&values);
    }
}

impl Deflated {
    /// Reads what stands from `at` on: by going on from where the last item ended, or else from the beginning.
    fn read(&mut self, file: &Arc<File>, at: u64, to: &mut [u8]) -> Result<(), String> {
        let mut content = match self.content.take().filter(|_| self.at <= at) {
            Some(content) => content,
            None => {
                self.at = 0;
                Content::open(file, &self.place)?
            }
        };
        let damaged = |error: io::Error| format!("its array is damaged: {error}");
        let skip = at - self.at;
        if io::copy(&mut (&mut content).take(skip), &mut io::sink()).map_err(damaged)? != skip {
            return Err("its array is damaged: it ends before this row".into());
        }
        content.read_exact(to).map_err(damaged)?;
        self.at = at + to.len() as u64;
        self.content = Some(content);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::DType;

    use super::*;

    /// A file as numpy.save writes it.
    fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        while (10 + text.len() + 1) % 64 != 0 {
            text.push(' ');
        }
        text.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn rows(shape: &[usize]) -> Rows {
        let ty = FieldType::Tensor { dtype: DType::F32, shape: shape.into() };
        Rows { is_npz: false, fields: vec![Field { name: "x".into(), ty }], beside: Vec::new(), chunk: None }
    }

    #[test]
    fn every_row_is_an_item_and_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let values: Vec<f32> = (0..12).map(|n| n as f32 / 2.0).collect();
        for (descr, order) in [("<f4", f32::to_le_bytes as fn(f32) -> [u8; 4]), (">f4", f32::to_be_bytes)] {
            let data: Vec<u8> = values.iter().flat_map(|v| order(*v)).collect();
            let path = folder.path().join("a.npy");
            std::fs::write(&path, npy(descr, "(3, 2, 2)", &data)).unwrap();
            let rows = rows(&[2, 2]);
            let mut items = Vec::new();
            rows.expand(&path, &mut |name, locator| {
                items.push((name.to_owned(), locator.to_vec()));
                Ok(())
            })
            .unwrap();
            assert_eq!(items.iter().map(|i| i.0.as_str()).collect::<Vec<_>>(), ["[0]", "[1]", "[2]"]);
            let mut reader = rows.start();
            for (n, (_, locator)) in items.iter().enumerate().rev() {
                assert_eq!(reader.fetch(locator).unwrap(), 16);
                reader.with_row(&mut |row| {
                    let [Value::Tensor(view)] = row else { panic!("not a tensor") };
                    let expected: Vec<u8> =
                        values[n * 4..][..4].iter().flat_map(|v| v.to_ne_bytes()).collect();
                    assert_eq!((view.data, view.shape), (&expected[..], &[2, 2][..]));
                });
            }
            assert_eq!(reader.fetch(&locator(&path, &[3])).unwrap_err().kind, FailureKind::Read);
        }
    }

    #[test]
    fn no_header_is_believed_that_is_cut_short_or_claims_too_much() {
        let whole = npy("<f4", "(3, 2)", &[0; 24]);
        assert_eq!(Header::parse(&whole).unwrap().shape, [3, 2]);
        for len in 0..whole.len() - 24 {
            assert!(Header::parse(&whole[..len]).is_err(), "{len} bytes");
        }
        for (descr, shape) in [
            ("<f8", "(3, 2)"),
            ("<f4", "()"),
            ("<f4", "(9999999999, 9999999999)"),
            ("<f4", "(-1,)"),
            ("<f4", "(99, 0)"),
        ] {
            assert!(Header::parse(&npy(descr, shape, &[])).is_err(), "{descr} {shape}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short.npy");
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let error = rows(&[2]).expand(&path, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{error}");
        let error = rows(&[4]).expand(&path, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("the first file of the source"), "{error}");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("pipe.npy");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        let error = rows(&[2]).expand(&fifo, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("it is a pipe"), "{error}");
        let refusal = rows(&[2]).start().fetch(&locator(&fifo, &[0])).unwrap_err();
        assert!(refusal.error.contains("it is a pipe"), "{}", refusal.error);
    }

    fn items(rows: &Rows, path: &Path) -> Vec<(String, Vec<u8>)> {
        let mut items = Vec::new();
        rows.expand(path, &mut |name, locator| {
            items.push((name.to_owned(), locator.to_vec()));
            Ok(())
        })
        .unwrap();
        items
    }

    fn floats(run: &dyn FetchRun) -> Vec<Vec<f32>> {
        let mut all = Vec::new();
        run.with_row(&mut |row| {
            for value in row {
                let Value::Tensor(view) = value else { panic!("not a tensor") };
                all.push(view.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect());
            }
        });
        all
    }

    #[test]
    fn chunks_hold_all_rows_or_the_file_is_refused_with_a_size_that_fits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let data: Vec<u8> = (0..12).flat_map(|n| (n as f32).to_le_bytes()).collect();
        std::fs::write(&path, npy("<f4", "(6, 2)", &data)).unwrap();
        let chunks = Rows { chunk: Some(3), ..rows(&[3, 2]) };
        let items = items(&chunks, &path);
        assert_eq!(items.iter().map(|item| item.0.as_str()).collect::<Vec<_>>(), ["[0:3]", "[3:6]"]);
        let mut run = chunks.start();
        run.fetch(&items[1].1).unwrap();
        assert_eq!(floats(&*run), [(6..12).map(|n| n as f32).collect::<Vec<_>>()]);
        let uneven = Rows { chunk: Some(4), ..rows(&[4, 2]) };
        let error = uneven.expand(&path, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("6 rows") && error.contains("use `rows = 3`"), "{error}");
    }

    #[test]
    fn files_beside_each_other_are_read_row_by_row_and_must_be_of_one_length() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a/1.npy"), folder.path().join("b/1.npy"));
        let data: Vec<u8> = (0..12).flat_map(|n| (n as f32).to_le_bytes()).collect();
        for (path, shape) in [(&path, "(6, 2)"), (&other, "(6,)")] {
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            std::fs::write(path, npy("<f4", shape, &data)).unwrap();
        }
        let other_field = Field { name: "y".into(), ..rows(&[]).fields.remove(0) };
        let pair = Rows {
            fields: vec![rows(&[2]).fields.remove(0), other_field],
            beside: vec!["../b/*".into()],
            ..rows(&[2])
        };
        let items = items(&pair, &path);
        assert_eq!(items.len(), 6);
        let mut run = pair.start();
        for at in [5_usize, 0, 3] {
            run.fetch(&items[at].1).unwrap();
            assert_eq!(floats(&*run), [vec![at as f32 * 2.0, at as f32 * 2.0 + 1.0], vec![at as f32]]);
        }
        let refused = |bytes: &[u8]| {
            std::fs::write(&other, bytes).unwrap();
            pair.expand(&path, &mut |_, _| Ok(())).unwrap_err().to_string()
        };
        let error = refused(&npy("<f4", "(5,)", &data));
        assert!(error.contains("`x` has 6 rows, and `y` 5"), "{error}");
        let error = refused(&npy("<f4", "(6,)", &data)[..90]);
        assert!(error.contains("b/1.npy` beside it: "), "{error}");
        std::fs::remove_file(&other).unwrap();
        let error = pair.expand(&path, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("b/1.npy` beside it: "), "{error}");
    }

    #[test]
    fn arrays_of_an_archive_are_read_in_any_order_whether_stored_or_deflated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let data: Vec<u8> = (0..400).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let (a, b) = (npy("<f4", "(100, 4)", &data), npy("<f4", "(100,)", &data[..400]));
        let names = npy("<f4", "()", &data[..4]);
        let members: [(&str, &[u8]); 3] = [("a.npy", &a), ("names.npy", &names), ("b.npy", &b)];
        let tensor =
            |name: &str, shape: &[usize]| Field { name: name.into(), ..rows(shape).fields.remove(0) };
        let fields = vec![tensor("b", &[]), tensor("a", &[4])];
        let source = Rows { is_npz: true, fields, beside: Vec::new(), chunk: None };
        for method in [::zip::CompressionMethod::Stored, ::zip::CompressionMethod::Deflated] {
            let bytes = super::super::zip_members::tests::archive(&members, method, true);
            std::fs::write(&path, &bytes).unwrap();
            let items = items(&source, &path);
            assert_eq!(items.len(), 100);
            let mut run = source.start();
            for at in [3_usize, 4, 99, 0, 50] {
                run.fetch(&items[at].1).unwrap();
                let row = (at * 4..at * 4 + 4).map(|n| n as f32).collect();
                assert_eq!(floats(&*run), [vec![at as f32], row]);
            }
            std::fs::write(&path, &bytes[..bytes.len() - 30]).unwrap();
            let error = source.expand(&path, &mut |_, _| Ok(())).unwrap_err().to_string();
            assert!(error.contains("cut short"), "{error}");
        }
        let error = Rows { fields: vec![tensor("names", &[])], ..source.clone() };
        std::fs::write(
            &path,
            super::super::zip_members::tests::archive(&members, ::zip::CompressionMethod::Stored, false),
        )
        .unwrap();
        let error = error.expand(&path, &mut |_, _| Ok(())).unwrap_err().to_string();
        assert!(error.contains("array `names`: its shape is []"), "{error}");
    }
}
