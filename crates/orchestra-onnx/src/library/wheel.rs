//! Checks a wheel against its pin and takes the library out of it. Unpacks nothing before the digest is right, and nothing that
//! is not asked for.

use std::fs::File;
use std::io::{self, BufReader, Seek};
use std::path::Path;

use zip::ZipArchive;

use crate::library::cache::{RecordedFile, sha256};
use crate::library::candidate::{CUDA_PROVIDER, LIBRARY, is_library_name};
use crate::library::error::LibraryError;
use crate::library::found::Flavor;
use crate::library::pins::Pin;

const FOLDER: &str = "onnxruntime/capi/";
const LICENSE: &str = "onnxruntime/LICENSE";
const TRY_AGAIN: &str = "it was not used; try again";

/// Checks the wheel and writes its library, with all that must lie beside it, into `target`. What was checked is what is
/// unpacked: the file is opened once.
pub(crate) fn unpack(wheel: &Path, pin: &Pin, target: &Path) -> Result<Vec<RecordedFile>, LibraryError> {
    let mut file = File::open(wheel).map_err(LibraryError::io("open", wheel))?;
    check(wheel, &mut file, pin)?;
    file.rewind().map_err(LibraryError::io("read", wheel))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| damaged(wheel, error))?;
    let mut entries: Vec<String> =
        archive.file_names().filter(|name| is_wanted(name)).map(str::to_owned).collect();
    entries.sort();
    check_complete(wheel, &entries, pin.flavor)?;
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.rsplit('/').next().unwrap_or(&entry);
        let mut input = archive.by_name(&entry).map_err(|error| damaged(wheel, error))?;
        let path = target.join(name);
        let written = File::create_new(&path).and_then(|mut file| io::copy(&mut input, &mut file));
        let bytes = written.map_err(LibraryError::io("unpack", &path))?;
        files.push(RecordedFile { name: name.to_owned(), bytes });
    }
    Ok(files)
}

fn check(wheel: &Path, file: &mut File, pin: &Pin) -> Result<(), LibraryError> {
    let bytes = file.metadata().map_err(LibraryError::io("read", wheel))?.len();
    if bytes < pin.wheel_bytes {
        let why = format!("it ends after {bytes} of {} bytes", pin.wheel_bytes);
        return Err(damaged(wheel, why));
    }
    let found = sha256(file).map_err(LibraryError::io("read", wheel))?;
    if found == pin.sha256 {
        return Ok(());
    }
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(LibraryError::Checksum { file: name, expected: pin.sha256.clone(), found })
}

/// ONNX Runtime's library, its providers, and what they may be used for.
fn is_wanted(entry: &str) -> bool {
    let of_runtime = |name: &str| name.starts_with("libonnxruntime") && !name.contains('/');
    entry == LICENSE || entry.strip_prefix(FOLDER).is_some_and(of_runtime)
}

fn check_complete(wheel: &Path, entries: &[String], flavor: Flavor) -> Result<(), LibraryError> {
    let has = |wanted: fn(&str) -> bool| entries.iter().filter_map(|e| e.strip_prefix(FOLDER)).any(wanted);
    let missing = match flavor {
        _ if !has(is_library_name) => LIBRARY,
        Flavor::Gpu if !has(|name| name == CUDA_PROVIDER) => CUDA_PROVIDER,
        _ => return Ok(()),
    };
    let why = format!("it holds no `{FOLDER}{missing}`");
    Err(damaged(wheel, why))
}

/// The folder is gone when the error is read, so the wheel's own name has to do.
fn damaged(wheel: &Path, why: impl ToString) -> LibraryError {
    let file = wheel.file_name().unwrap_or_default().into();
    LibraryError::Damaged { file, why: why.to_string(), help: TRY_AGAIN }
}
