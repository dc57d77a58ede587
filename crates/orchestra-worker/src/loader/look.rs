//! The loop of a loader process that looks into files: lists what each holds, or answers what its kind asks of it. It decides nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orchestra_core::ErrorClass;
use orchestra_store::{Expand, FileKinds, Found, ListError};

use super::events::{FoundBlock, FromLoader, LookError, LookSpec, ToLoader};
use crate::codec::{FrameReader, FrameWriter};
use crate::exit_codes::EXIT_LOAD_FAILED;
use crate::link::ServingEnd;
use crate::load_error::LoadError;
use crate::sandbox::Sandbox;

/// A block is sent with so many bytes of names and locators, or so long after the one before it.
const FULL_BLOCK: usize = 64 << 10;
const SEND_EVERY: Duration = Duration::from_millis(100);

/// Looks into files until the parent hangs up.
pub(super) fn serve(
    spec: &LookSpec,
    reader: &mut FrameReader<UnixStream, ToLoader>,
    writer: &mut FrameWriter<UnixStream, FromLoader>,
    kinds: &dyn FileKinds,
) -> Result<(), ServingEnd> {
    if let Err(LoadError { class, error }) = confine(spec) {
        writer.write(&FromLoader::Refused { class, error })?;
        return Err(ServingEnd::Code(EXIT_LOAD_FAILED));
    }
    writer.write(&FromLoader::Ready)?;
    let lister = kinds.expand(&spec.look);
    loop {
        match reader.read()? {
            Some(ToLoader::List { file, known }) => {
                let file = Path::new(OsStr::from_bytes(&file));
                let Some(lister) = lister.as_deref() else {
                    let error =
                        format!("the program of the loader knows no files of kind `{}`", spec.look.kind);
                    writer.write(&FromLoader::Refused { class: ErrorClass::Permanent, error })?;
                    return Err(ServingEnd::Code(EXIT_LOAD_FAILED));
                };
                let listed = list(lister, known, file, writer)?;
                writer.write(&FromLoader::Listed(listed))?;
            }
            Some(ToLoader::Describe { file }) => {
                let file = Path::new(OsStr::from_bytes(&file));
                let answer = kinds.describe(&spec.look, file).map_err(LookError::from);
                writer.write(&FromLoader::Described(answer))?;
            }
            Some(ToLoader::Load(_) | ToLoader::Look(_) | ToLoader::Items { .. }) => {
                return Err(ServingEnd::protocol("a frame for a loader of items"));
            }
            None => return Err(ServingEnd::Gone),
        }
    }
}

fn confine(spec: &LookSpec) -> Result<(), LoadError> {
    let refused = |error: String| LoadError::permanent(error);
    crate::limits::confine(spec.memory).map_err(|e| refused(format!("its limits cannot be set: {e}")))?;
    Sandbox {
        mode: spec.sandbox,
        read: spec.readable.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))).collect(),
        network: spec.network,
        decodes: true,
        ..Sandbox::default()
    }
    .enter()
}

/// Sends what a file holds, block by block: the socket bounds what is on its way.
fn list(
    lister: &dyn Expand,
    known: Option<u64>,
    file: &Path,
    writer: &mut FrameWriter<UnixStream, FromLoader>,
) -> Result<Result<(), LookError>, ServingEnd> {
    let (mut block, mut sent_at, mut end) = (FoundBlock::default(), Instant::now(), None);
    let listed = lister.expand_unless(known, file, &mut |found| {
        block.add(file, found)?;
        if block.text.len() < FULL_BLOCK && sent_at.elapsed() < SEND_EVERY {
            return Ok(());
        }
        sent_at = Instant::now();
        writer.write(&FromLoader::Found(std::mem::take(&mut block))).map_err(|error| {
            end = Some(error.into());
            ListError::Stopped
        })
    });
    if let Some(end) = end {
        return Err(end);
    }
    writer.write(&FromLoader::Found(block))?;
    Ok(listed.map_err(LookError::from))
}

impl FoundBlock {
    fn add(&mut self, file: &Path, found: Found<'_>) -> Result<(), ListError> {
        let (name, locator) = match found {
            Found::Item(name, locator) => (name, locator),
            Found::PassedOver(reason, n) => {
                self.passed_over.add(reason, n);
                return Ok(());
            }
            Found::Nothing => return Ok(()),
            Found::Version(version) => {
                self.version = Some(version);
                return Ok(());
            }
        };
        let place = locator.strip_prefix(file.as_os_str().as_bytes());
        let place =
            place.ok_or_else(|| ListError::bad_file(file, "an item of it lies elsewhere; this is a bug"))?;
        let end = |text: &Vec<u8>| u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.text.extend_from_slice(name.as_bytes());
        let name_end = end(&self.text);
        self.text.extend_from_slice(place);
        self.ends.push((name_end, end(&self.text)));
        Ok(())
    }

    /// Shows the items, for a file of this path. What a process sends that ran wild ends that with `None`.
    pub fn each<E>(
        &self,
        file: &Path,
        mut push: impl FnMut(&str, &[u8]) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let mut locator = file.as_os_str().as_bytes().to_vec();
        let (path_len, mut begin) = (locator.len(), 0);
        for (name_end, end) in &self.ends {
            let (name_end, end) = (*name_end as usize, *end as usize);
            let name = std::str::from_utf8(self.text.get(begin..name_end)?).ok()?;
            let place = self.text.get(name_end..end)?;
            // No more than one place in this file, whatever the process says: a loader may read where an item lies.
            if !place.starts_with(b"#")
                || place[1..].contains(&b'#')
                || place.len() + name.len() > LONGEST_ITEM
            {
                return None;
            }
            if name.contains('\0') || place.contains(&0) {
                return None;
            }
            locator.truncate(path_len);
            locator.extend_from_slice(place);
            if let Err(error) = push(name, &locator) {
                return Some(Err(error));
            }
            begin = end;
        }
        Some(Ok(()))
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Bytes of the name of an item behind that of its file, and of its place in the file.
const LONGEST_ITEM: usize = 2 << 20;

impl From<ListError> for LookError {
    fn from(error: ListError) -> Self {
        match error {
            ListError::BadFile { reason, .. } => LookError::BadFile { reason },
            ListError::AllPassedOver { passed_over, help, .. } => {
                LookError::AllPassedOver { passed_over: *passed_over, help }
            }
            ListError::Store { url, reason, help, trouble } => {
                LookError::Store { url, reason, help, trouble }
            }
            other => LookError::BadFile { reason: other.to_string() },
        }
    }
}

impl LookError {
    /// Of a file of this path.
    pub fn of(self, file: &Path) -> ListError {
        match self {
            LookError::BadFile { reason } => ListError::bad_file(file, reason),
            LookError::AllPassedOver { passed_over, help } => {
                ListError::AllPassedOver { path: file.to_owned(), passed_over: passed_over.into(), help }
            }
            LookError::Store { url, reason, help, trouble } => {
                ListError::Store { url, reason, help, trouble }
            }
        }
    }
}
