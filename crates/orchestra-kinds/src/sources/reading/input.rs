//! The files and objects that items lie in, open to be read where the bytes lie. It never looks at what they hold.

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use bincode::{Decode, Encode};
use orchestra_core::data::ItemError;
use orchestra_core::shapes::KindSettings;
use orchestra_core::{FailureKind, locked, wire};
use orchestra_plan::{Items, LookRequest, ReadOptions, Reported, SourceContext, TypedSource};
use orchestra_store::{Found, ListError, PushFound, StoreTrouble, is_url};

use super::file_version::FileStat;
use super::read_file::{open_regular, read_file};
use crate::objects::{self, ReadObject, Trouble};

/// Bytes that are asked of a store at once, at most, which bounds what is in memory.
const MOST: u64 = 4 << 20;

/// Bytes that are asked for where little is read: at least, and at most where what follows is likely to be read, too. Each request is twice as large as
/// the one before it, if that was near: requests cost more than bytes.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    least: u64,
    most: u64,
}

/// Of items.
const OF_ITEMS: Ahead = Ahead { least: 64 << 10, most: 1 << 20 };
/// Of lists: some headers, or all of a file.
const OF_LISTS: Ahead = Ahead { least: 4 << 10, most: MOST };

/// Opens what items lie in, in a loader. Connections stay open from one object to the next.
#[derive(Clone)]
pub struct Opener {
    /// `None`: the source has files.
    objects: Option<Arc<Mutex<Box<dyn ReadObject>>>>,
}

impl Opener {
    pub fn new(options: &ReadOptions) -> Self {
        Self { objects: options.has_objects().then(|| Arc::new(Mutex::new(objects::reader()))) }
    }

    pub fn open(&self, path: &Path) -> Result<FileLike, ItemError> {
        match &self.objects {
            None => {
                let (file, _) = open_regular(path).map_err(|error| cannot_read(path, &error.to_string()))?;
                Ok(FileLike::File(Arc::new(file)))
            }
            Some(reader) => {
                let url = path.as_os_str().as_bytes();
                OpenObject::open(Arc::clone(reader), url, OF_ITEMS).map_err(|trouble| trouble.item_error(url))
            }
        }
    }

    /// Reads a picture that an item of `beside` names by its path or URL.
    pub fn read_picture(&self, beside: &Path, written: &str, buffer: &mut Vec<u8>) -> Result<(), ItemError> {
        let folder = beside.parent().unwrap_or(Path::new("/"));
        let path = if is_url(written) { PathBuf::from(written) } else { folder.join(written) };
        match &self.objects {
            None => read_file(&path, buffer).map_err(|item_error| with_hint(item_error, folder, &path)),
            Some(reader) => locked(reader).read(path.as_os_str().as_bytes(), buffer),
        }
    }
}

/// A loader reads beside the file that names a picture. Where it may not, the error says what to do.
fn with_hint(mut item_error: ItemError, folder: &Path, path: &Path) -> ItemError {
    let is_beside = path.starts_with(folder) && !path.components().any(|part| part == Component::ParentDir);
    let may_not = || File::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    if !is_beside && may_not() {
        item_error.error += "; a loader reads pictures below the folder of the file that names them, and elsewhere what \
            `sandbox_read` of the source names (see docs/security.md)";
    }
    item_error
}

/// The refusal of an item whose file was edited or replaced after it was listed: what stands in its place is of another one.
pub fn changed(path: &Path) -> ItemError {
    cannot_read(path, "it was changed after it was listed; start again when nothing writes to it")
}

pub fn cannot_read(path: &Path, why: &str) -> ItemError {
    ItemError { kind: FailureKind::Read, error: format!("cannot read `{}`: {why}", path.display()) }
}

/// A file or an object that is open.
#[derive(Debug, Clone)]
pub enum FileLike {
    File(Arc<File>),
    Object(Arc<Mutex<OpenObject>>),
}

/// An object, and the piece of it that was read last.
pub struct OpenObject {
    reader: Arc<Mutex<Box<dyn ReadObject>>>,
    url: Vec<u8>,
    len: u64,
    tag: u32,
    /// Bytes of the object from `from` on.
    piece: Vec<u8>,
    from: u64,
    bounds: Ahead,
    /// Bytes of the next request, if less is wanted.
    ahead: u64,
    /// Why the store did not give what was asked for last.
    trouble: Option<Trouble>,
}

impl std::fmt::Debug for OpenObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenObject").field("url", &String::from_utf8_lossy(&self.url)).finish_non_exhaustive()
    }
}

impl OpenObject {
    /// Asks for its length; no byte is read.
    fn open(reader: Arc<Mutex<Box<dyn ReadObject>>>, url: &[u8], bounds: Ahead) -> Result<FileLike, Trouble> {
        let (len, tag) = locked(&reader).head(url)?;
        let (url, piece, ahead) = (url.to_vec(), Vec::new(), bounds.least);
        let object = Self { reader, url, len, tag, piece, from: 0, bounds, ahead, trouble: None };
        Ok(FileLike::Object(Arc::new(Mutex::new(object))))
    }

    /// Asks for the bytes from `at` on: so many as are wanted, or more. What lies near the last piece is probably read as a stream.
    fn fetch(&mut self, at: u64, wanted: u64) -> io::Result<()> {
        let end = self.from + self.piece.len() as u64;
        let is_near = at >= self.from && at <= end.saturating_add(self.ahead);
        self.ahead = if is_near { (self.ahead * 2).min(self.bounds.most) } else { self.bounds.least };
        self.fetch_exactly(at, wanted.min(MOST).max(self.ahead))
    }

    fn fetch_exactly(&mut self, at: u64, len: u64) -> io::Result<()> {
        let len = len.min(self.len - at);
        self.from = at;
        let read = locked(&self.reader).read_part(&self.url, at, len, &mut self.piece);
        read.map_err(|trouble| {
            self.piece.clear();
            let error = io::Error::other(trouble.reason.clone());
            self.trouble = Some(trouble);
            error
        })
    }

    fn has(&self, at: u64) -> bool {
        (self.from..self.from + self.piece.len() as u64).contains(&at)
    }
}

impl FileLike {
    /// What the system says of the file; `None`: it is an object.
    pub fn metadata(&self) -> io::Result<Option<Metadata>> {
        match self {
            FileLike::File(file) => file.metadata().map(Some),
            FileLike::Object(_) => Ok(None),
        }
    }

    /// What is known of it before anything of it is read.
    fn seen(&self) -> io::Result<FileStat> {
        match self {
            FileLike::File(file) => file.metadata().map(FileStat::File),
            FileLike::Object(object) => {
                let object = locked(object);
                Ok(FileStat::Object { len: object.len, tag: object.tag })
            }
        }
    }

    pub fn size(&self) -> io::Result<u64> {
        match self {
            FileLike::File(file) => file.metadata().map(|meta| meta.len()),
            FileLike::Object(object) => Ok(locked(object).len),
        }
    }

    /// So many bytes from `at` on are read soon: they are asked for at once.
    pub fn expect(&self, at: u64, len: u64) -> io::Result<()> {
        let FileLike::Object(object) = self else { return Ok(()) };
        let mut object = locked(object);
        let last = at.saturating_add(len).min(object.len).saturating_sub(1);
        if at >= object.len || (object.has(at) && object.has(last)) {
            return Ok(());
        }
        object.fetch_exactly(at, len.min(MOST))
    }

    /// Reads what there is at `at`, up to the length of the buffer; 0 at its end.
    pub fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut object = match self {
            FileLike::File(file) => return file.read_at(buffer, at),
            FileLike::Object(object) => locked(object),
        };
        if buffer.is_empty() || at >= object.len {
            return Ok(0);
        }
        if !object.has(at) {
            object.fetch(at, buffer.len() as u64)?;
        }
        let piece = object.piece.get((at - object.from) as usize..).unwrap_or_default();
        let n = piece.len().min(buffer.len());
        buffer[..n].copy_from_slice(&piece[..n]);
        Ok(n)
    }

    pub fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.from(at).read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("it is shorter by now"),
            _ => error,
        })
    }

    /// A stream from `at` on, with a place of its own.
    pub fn from(&self, at: u64) -> InputStream {
        InputStream { input: self.clone(), at }
    }

    /// What the item ends with that could not be read for this reason: where the store could not be asked, that is why, whatever was made of it.
    pub fn item_error(&self, why: ItemError) -> ItemError {
        match (self, self.trouble()) {
            (FileLike::Object(object), Some(trouble)) => trouble.item_error(&locked(object).url),
            _ => why,
        }
    }

    /// Why the store did not give what was asked for last.
    pub fn trouble(&self) -> Option<Trouble> {
        match self {
            FileLike::File(_) => None,
            FileLike::Object(object) => locked(object).trouble.take(),
        }
    }
}

/// Reads from a place on.
#[derive(Debug, Clone)]
pub struct InputStream {
    input: FileLike,
    at: u64,
}

impl Read for InputStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read_at(buffer, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for InputStream {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.input.size()?.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

/// What was opened last: the next item is most likely in it, too.
pub struct Last<T>(Option<(PathBuf, T)>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Last<T> {
    /// What is open of this path, or what `open` gives.
    pub fn get<E>(&mut self, path: &Path, open: impl FnOnce() -> Result<T, E>) -> Result<&mut T, E> {
        // What was open is closed before the next is opened.
        let kept = self.0.take().filter(|(last, _)| last == path);
        let kept = kept.map_or_else(|| Ok((path.to_owned(), open()?)), Ok)?;
        Ok(&mut self.0.insert(kept).1)
    }
}

/// A file that is read in pieces.
pub trait ReadSeek: Read + Seek {}

impl<T: Read + Seek> ReadSeek for T {}

/// Reads a file or object to list or describe it, in a loader; `read` is told what was seen of it before.
pub fn open_to_list<T>(
    path: &Path,
    read: impl FnOnce(&mut dyn ReadSeek, &FileStat) -> Result<T, ListError>,
) -> Result<T, ListError> {
    let (input, seen) = open_seen(path)?;
    read_listed(&input, path, |file| read(file, &seen))
}

/// A file or object, and what is known of it before it is read.
///
/// # Errors
/// It cannot be opened.
pub fn open_seen(path: &Path) -> Result<(FileLike, FileStat), ListError> {
    let unreadable = |error: io::Error| ListError::bad_file(path, error);
    let input = match path.to_str().filter(|path| is_url(path)) {
        Some(url) => open_object(url)?,
        None => FileLike::File(Arc::new(open_regular(path).map_err(unreadable)?.0)),
    };
    let seen = input.seen().map_err(unreadable)?;
    Ok((input, seen))
}

/// Reads what [`open_seen`] gave.
///
/// # Errors
/// Those of `read`; where the store could not be asked, that, whatever `read` makes of it.
pub fn read_listed<T>(
    input: &FileLike,
    path: &Path,
    read: impl FnOnce(&mut dyn ReadSeek) -> Result<T, ListError>,
) -> Result<T, ListError> {
    let read = match input {
        FileLike::File(_) => read(&mut BufReader::new(input.from(0))),
        FileLike::Object(_) => read(&mut input.from(0)),
    };
    input.trouble().map_or(read, |trouble| Err(trouble.list_error(&path.to_string_lossy())))
}

/// An object that is read as a list, or as what holds the items of one.
pub fn open_object(url: &str) -> Result<FileLike, ListError> {
    let reader = Arc::new(Mutex::new(objects::reader()));
    OpenObject::open(reader, url.as_bytes(), OF_LISTS).map_err(|trouble| trouble.list_error(url))
}

/// As [`open_to_list`], for an answer to what a kind asks while its source is planned.
pub fn describe<T: Encode>(
    path: &Path,
    read: impl FnOnce(&mut dyn ReadSeek) -> Result<T, String>,
) -> Result<Vec<u8>, ListError> {
    answer(path, open_to_list(path, |file, _| Ok(read(file)))?)
}

/// An answer as [`look`] reads it.
pub fn answer<T: Encode>(path: &Path, found: Result<T, String>) -> Result<Vec<u8>, ListError> {
    let found = found.map_err(|why| ListError::bad_file(path, why))?;
    wire::encode(&found).map_err(|error| ListError::bad_file(path, error))
}

/// Bytes that are made of an answer, at most.
const LARGEST_ANSWER: usize = 64 << 20;

/// The help for CSV and JSON lines that are not looked into: with types in the file, no look is needed.
pub const NAME_TYPES: &str =
    "or name its columns with their types: columns = { id = \"i64\", caption = \"text\", more = \"json\" }";

/// As [`look`], of the first file that the source names, and its name. `help` is for a source whose files are not known while it is planned.
pub fn look_into_first<K: TypedSource, T: Decode<()>>(
    source: &mut SourceContext<'_, '_>,
    question: &impl Encode,
    instead: Option<&str>,
    help: &str,
) -> Result<(String, Result<T, String>), Reported> {
    let Some(first) = source.first else {
        let message = format!("{} needs a file to look at: its columns are not known", source.fields.what);
        return source.fields.diags.error(source.fields.span, message).help(help).fail();
    };
    Ok((first.name.clone(), look::<K, T>(source, &first.locator, question, instead)?))
}

/// Has a loader look into a file or object while its source is planned; `instead` is what makes it unneeded.
///
/// # Errors
/// Its store does not answer now, or no file is looked into here, and that is reported.
pub fn look<K: TypedSource, T: Decode<()>>(
    source: &mut SourceContext<'_, '_>,
    path: &Path,
    question: &impl Encode,
    instead: Option<&str>,
) -> Result<Result<T, String>, Reported> {
    let question = &KindSettings::of(K::NAME, question).ok_or(Reported)?;
    let network = ReadOptions::of(source).network::<K>();
    let sandbox = source.limits.sandbox;
    let looked = source.host.look(&LookRequest { question, file: path, network: network.as_ref(), sandbox });
    match looked {
        None => {
            let (span, what) = (source.fields.span, &source.fields.what);
            let message = format!("{what}: `{}` was not looked into", path.display());
            let d = source.fields.diags.warning(span, message);
            d.label("what its items are is not known, so what reads them is not checked")
                .help("`orchestra check` without `--offline` looks into it");
            if let Some(instead) = instead {
                d.help(instead);
            }
            source.fields.diags.leave_open();
            Err(Reported)
        }
        Some(Ok(answer)) => {
            let read = wire::decode_within::<T, LARGEST_ANSWER>(&answer);
            Ok(read.map_err(|error| format!("the loader that looked into it gave no answer: {error}")))
        }
        Some(Err(ListError::Store { url, reason, help, trouble: StoreTrouble::Passing })) => {
            source.error(format!("cannot read `{url}`: {reason}")).help(help).outside(true).fail()
        }
        Some(Err(error @ ListError::NoProcess { .. })) => source.error(error).outside(true).fail(),
        Some(Err(ListError::BadFile { reason, .. })) => Ok(Err(reason)),
        Some(Err(error)) => Ok(Err(error.to_string())),
    }
}

/// Why a list of the file would have no item although the file holds something. It is read up to its first item.
pub fn why_no_item(path: &Path, archives: &impl Items) -> Option<String> {
    let up_to_an_item: PushFound<'_> = &mut |found| match found {
        Found::Item(..) => Err(ListError::Stopped),
        Found::PassedOver(..) | Found::Nothing | Found::Version(_) => Ok(()),
    };
    match archives.list(path, up_to_an_item) {
        Err(error @ ListError::AllPassedOver { .. }) => Some(error.to_string()),
        _ => None,
    }
}

/// Warns where the first archive of a source holds something, and no item; `question` asks [`why_no_item`]. Of a store, the run asks.
pub fn warn_of_no_item<K: TypedSource>(source: &mut SourceContext<'_, '_>, question: &impl Encode) {
    let Some(first) = source.first.filter(|_| source.urls.is_empty()) else { return };
    if let Ok(Ok(Some(why))) = look::<K, Option<String>>(source, &first.locator, question, None) {
        let message = format!("{}: {why}", source.fields.what);
        source.fields.diags.warning(source.fields.span, message).help("a run ends with this error");
    }
}

/// Bytes of a head that are read first: mostly enough.
const LEAST_HEAD: u64 = 64 << 10;

/// The first bytes, with as many as it takes until they are enough: all where there are fewer, and `most` at most.
pub fn head(reader: &mut dyn ReadSeek, most: u64, is_enough: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    let (mut head, mut wanted) = (Vec::new(), LEAST_HEAD.min(most));
    loop {
        (&mut *reader).take(wanted - head.len() as u64).read_to_end(&mut head)?;
        if (head.len() as u64) < wanted || wanted == most || is_enough(&head) {
            return Ok(head);
        }
        wanted = (wanted * 2).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::TroubleKind;

    /// A store in memory, which counts what it is asked for.
    struct Fake {
        bytes: Vec<u8>,
        asked: Asked,
        is_away: bool,
    }

    impl ReadObject for Fake {
        fn head(&mut self, _: &[u8]) -> Result<(u64, u32), Trouble> {
            Ok((self.bytes.len() as u64, 0))
        }

        fn read(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), ItemError> {
            Ok(())
        }

        fn read_part(&mut self, _: &[u8], at: u64, len: u64, buffer: &mut Vec<u8>) -> Result<(), Trouble> {
            if self.is_away {
                return Err(Trouble { reason: "away".into(), help: String::new(), kind: TroubleKind::Store });
            }
            self.asked.lock().unwrap().push((at, len));
            *buffer = self.bytes[at as usize..(at + len) as usize].to_vec();
            Ok(())
        }
    }

    type Asked = Arc<Mutex<Vec<(u64, u64)>>>;

    fn object(len: usize, is_away: bool) -> (Vec<u8>, Asked, FileLike) {
        let bytes: Vec<u8> = (0..len).map(|n| (n / 7 + n / 1000) as u8).collect();
        let asked = Arc::default();
        let fake = Fake { bytes: bytes.clone(), asked: Arc::clone(&asked), is_away };
        let opener = Opener { objects: Some(Arc::new(Mutex::new(Box::new(fake)))) };
        (bytes, asked, opener.open(Path::new("s3://b/x")).unwrap())
    }

    #[test]
    fn a_stream_of_an_object_is_its_bytes_by_few_requests_and_none_is_larger_than_the_bound() {
        let (bytes, asked, input) = object(10 << 20, false);
        let mut read = Vec::new();
        input.from(3).read_to_end(&mut read).unwrap();
        assert!(read == bytes[3..]);
        let asked = std::mem::take(&mut *asked.lock().unwrap());
        assert!(asked.len() < 20 && asked.iter().all(|(_, len)| *len <= MOST), "{asked:?}");
    }

    #[test]
    fn what_is_expected_comes_by_one_request_and_far_places_bring_little() {
        let (bytes, asked, input) = object(8 << 20, false);
        let take = || std::mem::take(&mut *asked.lock().unwrap());
        let mut buffer = vec![0; 300_000];
        input.expect(1000, 300_100).unwrap();
        input.read_exact_at(&mut buffer[..30], 1000).unwrap();
        input.read_exact_at(&mut buffer, 1030).unwrap();
        assert!(buffer == bytes[1030..301_030]);
        assert_eq!(take(), [(1000, 300_100)]);
        input.read_exact_at(&mut buffer[..10], 7 << 20).unwrap();
        assert_eq!(take(), [(7 << 20, OF_ITEMS.least)]);
        input.read_exact_at(&mut buffer[..10], (8 << 20) - 10).unwrap();
        assert_eq!(take(), [((8 << 20) - 10, 10)]);
        let error = input.read_exact_at(&mut buffer[..11], (8 << 20) - 10).unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
    }

    #[test]
    fn a_store_that_is_away_is_the_reason_whatever_is_made_of_it() {
        let (_, _, input) = object(100, true);
        assert!(input.read_exact_at(&mut [0; 4], 0).is_err());
        let item_error = input.item_error(cannot_read(Path::new("x"), "it is damaged"));
        assert_eq!(
            (item_error.kind, &*item_error.error),
            (FailureKind::Unreachable, "cannot read `s3://b/x`: away")
        );
        assert_eq!(input.item_error(cannot_read(Path::new("x"), "it is damaged")).kind, FailureKind::Read);
    }
}
