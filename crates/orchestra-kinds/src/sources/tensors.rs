//! `kind = "tensors"`: the rows of NumPy arrays in `.npy` files, one item each.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Refusal, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Fetch, FetchRun, RemoteSpec};
use orchestra_core::{DType, FailureKind};
use orchestra_plan::{Key, SourceConnected, SourceContext, SourceKind, key};
use orchestra_store::{Expand, ListError, PushItem};

use super::read_file::open_regular;

/// The kind `tensors`.
pub struct Tensors;

/// Bytes at the beginning of a file that hold its header, in all files that NumPy writes.
const HEAD: usize = 64 << 10;

const KEYS: [Key; 1] =
    [key("column", "text", "\"x\"", "the name of the tensor, for `from = \"source.name\"` and in records")];

impl SourceKind for Tensors {
    fn name(&self) -> &'static str {
        "tensors"
    }

    fn about(&self) -> &'static str {
        "The rows (first dimension) of arrays in `.npy` files of one shape and element type, in C order; an item is called `file.npy[row]`."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let column = source.fields.string("column").map_or_else(|| "x".to_owned(), |c| c.value);
        let span = source.fields.span;
        let Some(first) = source.first else {
            let what = source.fields.what.clone();
            source
                .fields
                .diags
                .error(span, format!("{what} needs a file to look at: the shape of its tensors is not known"))
                .help("name the files with `paths`, or with a manifest that is a file");
            return None;
        };
        let head = source.host.head(&first.path, HEAD).map_err(|error| error.to_string());
        let header = match head.and_then(|head| Header::parse(&head)) {
            Ok(header) => header,
            Err(why) => {
                let what = source.fields.what.clone();
                source
                    .fields
                    .diags
                    .error(span, format!("{what}: `{}` is no array that can be read: {why}", first.name))
                    .help("write it with numpy.save, with the items along the first dimension");
                return None;
            }
        };
        let rows = Arc::new(Rows { column, dtype: header.dtype, shape: header.row().into() });
        let settings = serde_json::json!({ "kind": "tensors", "column": rows.column });
        Some(SourceConnected {
            gives: Schema::of(
                &rows.column,
                ColumnType::Tensor(fixed_tensor(&rows.column, rows.dtype, &rows.shape)),
            ),
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

/// What all files of the source have in common.
#[derive(Debug, Clone, Encode, Decode)]
struct Rows {
    column: String,
    dtype: DType,
    /// Of one item.
    shape: Arc<[usize]>,
}

impl Rows {
    fn row_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// Opens a file, which must have the shape of all others.
    fn open(&self, path: &Path) -> Result<(File, Header), String> {
        let (file, meta) = open_regular(path).map_err(|error| error.to_string())?;
        let mut head = Vec::new();
        (&file).take(HEAD as u64).read_to_end(&mut head).map_err(|error| error.to_string())?;
        let header = Header::parse(&head)?;
        if header.dtype != self.dtype || header.row() != &self.shape[..] {
            return Err(format!(
                "it holds {} rows of {:?}, and the first file of the source {} rows of {:?}",
                header.dtype,
                header.row(),
                self.dtype,
                self.shape
            ));
        }
        let needed = (header.rows() as u64).checked_mul(self.row_bytes() as u64);
        if needed.and_then(|n| n.checked_add(header.data as u64)).is_none_or(|needed| meta.len() < needed) {
            return Err(format!("it is cut short: its header says {} rows", header.rows()));
        }
        Ok((file, header))
    }
}

/// A locator: the path, `#`, and the number of the row.
fn locator(path: &Path, row: usize) -> Vec<u8> {
    let mut locator = path.as_os_str().as_bytes().to_vec();
    locator.push(b'#');
    locator.extend_from_slice(row.to_string().as_bytes());
    locator
}

impl Expand for Rows {
    fn expand(&self, path: &Path, push: PushItem<'_>) -> Result<(), ListError> {
        let pattern = path.display().to_string();
        let unreadable = |why: String| ListError::Unreadable {
            pattern: pattern.clone(),
            path: path.into(),
            error: std::io::Error::other(why),
        };
        let (_, header) = self.open(path).map_err(unreadable)?;
        (0..header.rows()).try_for_each(|row| push(&format!("[{row}]"), &locator(path, row)))
    }
}

impl Fetch for Rows {
    fn start(&self) -> Box<dyn FetchRun> {
        Box::new(RowReader { rows: self.clone(), open: None, data: vec![0; self.row_bytes()] })
    }

    fn remote(&self) -> Option<RemoteSpec> {
        RemoteSpec::of(Tensors.name(), self)
    }
}

struct RowReader {
    rows: Rows,
    /// The file of the last item: the next one is most likely in it, too.
    open: Option<(PathBuf, File, Header)>,
    data: Vec<u8>,
}

impl FetchRun for RowReader {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, Refusal> {
        let mut parts = locator.rsplitn(2, |byte| *byte == b'#');
        let row = parts.next().and_then(|row| std::str::from_utf8(row).ok()).and_then(|row| row.parse().ok());
        let (Some(row), Some(path)) = (row, parts.next()) else {
            return Err(read_refusal("the list of items does not say which row it is; this is a bug".into()));
        };
        let row: usize = row;
        let path = Path::new(OsStr::from_bytes(path));
        let failed = |why: String| read_refusal(format!("cannot read `{}`: {why}", path.display()));
        let (_, file, header) = match &mut self.open {
            Some(open) if open.0 == path => open,
            open => {
                *open = None;
                let (file, header) = self.rows.open(path).map_err(failed)?;
                open.insert((path.to_owned(), file, header))
            }
        };
        if row >= header.rows() {
            return Err(failed(format!("it has {} rows by now, and no row {row}", header.rows())));
        }
        let at = header.data as u64 + (row * self.data.len()) as u64;
        file.read_exact_at(&mut self.data, at).map_err(|error| failed(error.to_string()))?;
        if header.is_swapped {
            self.data.chunks_exact_mut(self.rows.dtype.size_bytes()).for_each(<[u8]>::reverse);
        }
        Ok(self.data.len() as u64)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        let Rows { column, dtype, shape } = &self.rows;
        show(&[Value::Tensor(TensorView { name: column, dtype: *dtype, shape, data: &self.data })]);
    }
}

fn read_refusal(error: String) -> Refusal {
    Refusal { kind: FailureKind::Read, error }
}

/// What a `.npy` file says of itself (format versions 1 to 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub dtype: DType,
    /// The bytes of each element are in the other order than this machine's.
    pub is_swapped: bool,
    pub shape: Vec<usize>,
    /// Where the elements begin.
    pub data: usize,
}

impl Header {
    fn rows(&self) -> usize {
        self.shape[0]
    }

    fn row(&self) -> &[usize] {
        &self.shape[1..]
    }

    pub fn parse(head: &[u8]) -> Result<Self, String> {
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
        let dtype = match name {
            "f4" => DType::F32,
            "f2" => DType::F16,
            "i8" => DType::I64,
            "i4" => DType::I32,
            "u1" => DType::U8,
            "b1" => DType::Bool,
            _ => {
                return Err(format!(
                    "its elements are `{descr}`; models take float32, float16, int64, int32, uint8 and bool"
                ));
            }
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
        let bytes = shape.iter().try_fold(dtype.size_bytes(), |n, dim| n.checked_mul(*dim));
        let is_empty_row = shape.iter().skip(1).any(|dim| *dim == 0);
        if shape.is_empty() || is_empty_row || bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(format!("its shape is {shape:?}, and items lie along the first dimension"));
        }
        let is_swapped = order == if cfg!(target_endian = "little") { ">" } else { "<" };
        Ok(Self { dtype, is_swapped: is_swapped && dtype.size_bytes() > 1, shape, data })
    }
}

#[cfg(test)]
mod tests {
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
        Rows { column: "x".into(), dtype: DType::F32, shape: shape.into() }
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
            assert_eq!(reader.fetch(&locator(&path, 3)).unwrap_err().kind, FailureKind::Read);
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
        let refusal = rows(&[2]).start().fetch(&locator(&fifo, 0)).unwrap_err();
        assert!(refusal.error.contains("it is a pipe"), "{}", refusal.error);
    }
}
