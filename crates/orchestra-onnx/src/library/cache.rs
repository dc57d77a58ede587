//! A cached library and the record of what was put there. Reads and checks; what writes is `fetch`.
//!
//! A folder counts only when its record is there, names the pinned wheel, and every file has the recorded size and digest. The record is
//! written before the folder gets its final name, so a folder that lacks it was not made by us.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::library::candidate::LIBRARY;
use crate::library::pins::Pin;

pub(crate) const RECORD: &str = "orchestra.json";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) wheel_sha256: String,
    pub(crate) files: Vec<RecordedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordedFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// In lowercase hexadecimal; records of older programs have none.
    #[serde(default)]
    pub(crate) sha256: Option<String>,
}

/// The library in a folder of our cache. The error completes "it cannot be used: ".
pub(crate) fn lookup(folder: &Path, pin: &Pin) -> Result<PathBuf, String> {
    if !folder.is_dir() {
        return Err("nothing was fetched yet".into());
    }
    let record = read_record(&folder.join(RECORD))?;
    if record.wheel_sha256 != pin.sha256 {
        return Err("it was made from another wheel than this orchestra knows".into());
    }
    for file in &record.files {
        let path = folder.join(&file.name);
        let checked =
            check_size(&path, file.bytes).and_then(|()| check_digest(&path, file.sha256.as_deref()));
        checked.map_err(|why| format!("`{}`: {why}", file.name))?;
    }
    let library = record.files.iter().find(|file| file.name.starts_with(LIBRARY));
    library.map(|file| folder.join(&file.name)).ok_or_else(|| format!("its record names no `{LIBRARY}`"))
}

fn read_record(path: &Path) -> Result<Record, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("its record `{RECORD}` cannot be read: {error}"))?;
    let record: Record =
        serde_json::from_str(&text).map_err(|error| format!("its record `{RECORD}` is damaged: {error}"))?;
    // A record names files beside it and nothing else.
    match record.files.iter().find(|file| file.name.contains('/')) {
        Some(file) => Err(format!("its record names `{}`, which is no file beside it", file.name)),
        None => Ok(record),
    }
}

/// SHA-256 of a file, in lowercase hexadecimal.
pub(crate) fn digest_of(path: &Path) -> io::Result<String> {
    let mut digest = Sha256::new();
    io::copy(&mut fs::File::open(path)?, &mut digest)?;
    Ok(digest.finalize().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}")))
}

/// Code is loaded from it: a bit that flipped on the disk runs in every worker.
fn check_digest(path: &Path, expected: Option<&str>) -> Result<(), String> {
    let Some(expected) = expected else { return Ok(()) };
    match digest_of(path) {
        Ok(found) if found == expected => Ok(()),
        Ok(_) => Err("it has other bytes than were put there".to_owned()),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

fn check_size(path: &Path, expected: u64) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(data) if data.len() == expected => Ok(()),
        Ok(data) => Err(format!("it has {} bytes, expected {expected}", data.len())),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}
