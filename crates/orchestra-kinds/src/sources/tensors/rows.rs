//! The rows of arrays, each an item or many of them together: how many a file has, and the elements of one.

use std::io::{self, Read, SeekFrom};
use std::path::{Path, PathBuf};

use bincode::{Decode, Encode};
use orchestra_core::data::{ItemError, TensorView, Value};
use orchestra_core::shapes::{FetchRun, FileAccess};
use orchestra_plan::{Items, ReadOptions, file_of};
use orchestra_store::{Found as Listed, ListError, PassedOverCounts, PushFound};

use super::arrays::{Arrays, arrays};
use super::path_beside;
use crate::sources::reading::field_type::{Field, FieldType};
use crate::sources::reading::file_version::{FileStat, FileVersion, has_changed};
use crate::sources::reading::input::{
    FileLike, Last, Opener, ReadSeek, cannot_read, changed, open_seen, read_listed,
};
use crate::sources::reading::limits::check_items;
use crate::sources::reading::locator::{locator, parts};
use crate::sources::reading::npy_header::Header;
use crate::sources::reading::zip_members::{
    LOCAL, MOST_PER_BYTE, Method, ZipContent, ZipPlace, check_content, data_at, open_content,
};

/// What all files of the source have in common.
#[derive(Debug, Clone, Encode, Decode)]
pub struct TensorItems {
    pub is_npz: bool,
    /// TensorFiles, as items have them: those of the file, then one for each of `beside`.
    pub fields: Vec<Field>,
    /// Files that have more columns, as they are written.
    pub beside: Vec<String>,
    /// Rows of an item, where they are its first dimension.
    pub chunk: Option<u64>,
    pub max_items: u64,
}

/// An array of a file, and where it lies.
struct FoundArray {
    header: Header,
    /// Where its elements begin in the file, where they are not deflated.
    at: u64,
    /// Its member of a `.npz` file.
    place: Option<ZipPlace>,
}

/// A file and those beside it.
struct OpenFiles {
    files: Vec<FileLike>,
    /// In the order of the columns.
    arrays: Vec<OpenArray>,
    /// Those that they have together.
    items: u64,
}

struct OpenArray {
    input: FileLike,
    header: Header,
    /// Where its elements begin in the file, where they are not deflated.
    at: u64,
    deflated: Option<Deflated>,
}

/// An array that is unpacked as a stream: where it stands says which row comes next.
struct Deflated {
    place: ZipPlace,
    content: Option<ZipContent>,
    /// Bytes of the content that are read.
    at: u64,
}

impl TensorItems {
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
    pub fn count(&self, headers: Vec<&Header>) -> Result<u64, String> {
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
        check_items(rows / chunk, self.max_items)
    }

    /// The files of a file's items: itself and those beside it, each with the columns that it has.
    fn files(&self, path: &Path) -> Vec<(PathBuf, &[Field])> {
        let (own, others) = self.fields.split_at(self.fields.len() - self.beside.len());
        let others = others.iter().zip(&self.beside);
        let others = others.map(|(field, written)| (path_beside(path, written), std::slice::from_ref(field)));
        std::iter::once((path.to_owned(), own)).chain(others).collect()
    }

    /// The arrays of these columns in a file, which must have the shape of all others.
    fn find(
        &self,
        file: &mut dyn ReadSeek,
        fields: &[Field],
    ) -> Result<(Vec<FoundArray>, PassedOverCounts), String> {
        let text = |error: io::Error| error.to_string();
        let bytes = file.seek(SeekFrom::End(0)).map_err(text)?;
        file.rewind().map_err(text)?;
        let Arrays { is_npz, arrays: mut all, passed_over } = arrays(file)?;
        if is_npz != self.is_npz {
            let (is, first) = if is_npz { (".npz", ".npy") } else { (".npy", ".npz") };
            return Err(format!("it is a {is} file, and the first file of the source a {first} file"));
        }
        let mut found = Vec::new();
        for field in fields {
            let at = if is_npz { all.iter().position(|array| array.name == field.name) } else { Some(0) };
            let array = all.swap_remove(at.ok_or_else(|| format!("it has no array `{}`", field.name))?);
            let header = array.header.map_err(|why| format!("array `{}`: {why}", field.name))?;
            self.n_rows(field, &header)?;
            let (at, len) = match array.place {
                None => (0, bytes),
                Some(place) => {
                    let mut local = [0; LOCAL];
                    file.seek(SeekFrom::Start(place.header)).map_err(text)?;
                    file.read_exact(&mut local).map_err(text)?;
                    (data_at(place.header, &local)?, place.len)
                }
            };
            let is_stored = array.place.is_none_or(|place| place.method == Method::Stored);
            header.must_end_with(len).map_err(|why| match is_npz {
                true => format!("its array `{}` {why}", field.name),
                false => format!("it {why}"),
            })?;
            let holds = |place: ZipPlace| place.len <= place.packed.saturating_mul(MOST_PER_BYTE);
            let is_whole = match is_stored {
                true => at.checked_add(len).is_some_and(|end| end <= bytes),
                false => array.place.is_none_or(holds),
            };
            if !is_whole {
                return Err(format!("it is cut short: its header says {} rows", header.shape[0]));
            }
            let at = at + header.data as u64;
            found.push(FoundArray { header, at, place: array.place });
        }
        Ok((found, passed_over))
    }

    /// Opens a file and those beside it.
    fn open(&self, opener: &Opener, path: &Path) -> Result<OpenFiles, ItemError> {
        let (mut open, mut files) = (Vec::new(), Vec::new());
        for (file, fields) in self.files(path) {
            let input = opener.open(&file)?;
            let found = self.find(&mut input.from(0), fields);
            let (found, _) = found.map_err(|why| input.item_error(cannot_read(&file, &why)))?;
            open.extend(found.into_iter().map(|FoundArray { header, at, place }| {
                let deflated = place.filter(|place| place.method == Method::Deflated);
                let deflated = deflated.map(|place| Deflated { place, content: None, at: 0 });
                OpenArray { input: input.clone(), header, at, deflated }
            }));
            files.push(input);
        }
        let items = self.count(open.iter().map(|array| &array.header).collect());
        Ok(OpenFiles { files, arrays: open, items: items.map_err(|why| cannot_read(path, &why))? })
    }
}

impl Items for TensorItems {
    fn list(&self, path: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let files = self.files(path);
        let of_path = |file: &Path, why: String| match file == path {
            true => ListError::bad_file(path, why),
            false => ListError::bad_file(path, format!("`{}` beside it: {why}", file.display())),
        };
        let refused = |file: &Path, error: ListError| match error {
            error @ ListError::Store { .. } => error,
            error if file == path => error,
            error => of_path(file, error.to_string()),
        };
        let open = |(file, _): &(PathBuf, _)| open_seen(file).map_err(|error| refused(file, error));
        let opened = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let (inputs, seen): (Vec<FileLike>, Vec<FileStat>) = opened.into_iter().unzip();
        let version = FileVersion::say(&seen, push)?;
        let mut found = Vec::new();
        for ((file, fields), input) in files.into_iter().zip(inputs) {
            let find = |reader: &mut dyn ReadSeek| {
                let (found, passed_over) = self.find(reader, fields)?;
                for (array, field) in found.iter().zip(fields) {
                    let of_array = |why| format!("its array `{}` {why}", field.name);
                    // Rows are read one by one, so that nothing but this sees a member whole.
                    array.place.map_or(Ok(()), |place| check_content(reader, &place)).map_err(of_array)?;
                }
                Ok((found, passed_over))
            };
            let read = read_listed(&input, &file, |reader| Ok(find(reader)))?;
            let (arrays, passed_over) = read.map_err(|why| of_path(&file, why))?;
            found.extend(arrays);
            passed_over.iter().try_for_each(|(reason, n)| push(Listed::PassedOver(reason, n)))?;
        }
        let items = self.count(found.iter().map(|array| &array.header).collect());
        let items = items.map_err(|why| ListError::bad_file(path, why))?;
        (0..items).try_for_each(|item| {
            let name = match self.chunk {
                None => format!("[{item}]"),
                Some(chunk) => format!("[{}:{}]", item * chunk, (item + 1) * chunk),
            };
            push(Listed::Item(&name, &locator(path, &[item, version.0])))
        })
    }

    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        has_changed(before, now, 2)
    }

    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        let (opener, data) = (Opener::new(options), vec![Vec::new(); self.fields.len()]);
        Box::new(TensorFetch { rows: self.clone(), opener, open: Last::default(), data })
    }

    fn opens(&self) -> FileAccess {
        if self.beside.is_empty() { FileAccess::OfItems(file_of) } else { FileAccess::Any }
    }
}

struct TensorFetch {
    rows: TensorItems,
    opener: Opener,
    open: Last<OpenFiles>,
    data: Vec<Vec<u8>>,
}

impl FetchRun for TensorFetch {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, ItemError> {
        let (path, numbers) = parts(locator, 2)?;
        let (item, listed) = (numbers[0], numbers[1]);
        let open = self.open.get(path, || self.rows.open(&self.opener, path))?;
        let OpenFiles { arrays, items, .. } = open;
        if item >= *items {
            return Err(cannot_read(path, &format!("it has {items} items by now, and no item {item}")));
        }
        let mut read = 0;
        for ((array, data), field) in arrays.iter_mut().zip(&mut self.data).zip(&self.rows.fields) {
            let FieldType::Tensor { dtype, shape } = &field.ty else { continue };
            data.resize(shape.iter().product::<usize>() * dtype.size_bytes(), 0);
            let begin = item * data.len() as u64;
            let filled = match &mut array.deflated {
                None => array.input.read_exact_at(data, array.at + begin).map_err(|error| error.to_string()),
                Some(deflated) => deflated.read(&array.input, array.header.data as u64 + begin, data),
            };
            filled.map_err(|why| array.input.item_error(cannot_read(path, &why)))?;
            array.header.to_native(data);
            read += data.len() as u64;
        }
        match FileVersion::are_as_listed(&open.files, listed) {
            true => Ok(read),
            false => Err(changed(path)),
        }
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
    fn read(&mut self, input: &FileLike, at: u64, to: &mut [u8]) -> Result<(), String> {
        let mut content = match self.content.take().filter(|_| self.at <= at) {
            Some(content) => content,
            None => {
                self.at = 0;
                open_content(input, &self.place)?
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
