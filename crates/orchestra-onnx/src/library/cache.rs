//! A cached library and the record of what was put there. Reads and checks; what writes is `fetch`.
//!
//! A folder counts only when its record is there, names the pinned wheel, and every file has the recorded size and checksum. The record is
//! written before the folder gets its final name, so a folder that lacks it was not made by us.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use crate::library::candidate::LIBRARY;
use crate::library::pins::Pin;

pub(crate) const RECORD: &str = "orchestra.json";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CacheRecord {
    pub(crate) wheel_sha256: String,
    pub(crate) files: Vec<RecordedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordedFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// CRC-32. What was downloaded is checked by its SHA-256; this finds what happened to it since, in a tenth of the time, at each start.
    pub(crate) crc32: u32,
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
        let checked = check_size(&path, file.bytes).and_then(|()| check_bytes(&path, file.crc32));
        checked.map_err(|why| format!("`{}`: {why}", file.name))?;
    }
    let library = record.files.iter().find(|file| file.name.starts_with(LIBRARY));
    library.map(|file| folder.join(&file.name)).ok_or_else(|| format!("its record names no `{LIBRARY}`"))
}

fn read_record(path: &Path) -> Result<CacheRecord, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("its record `{RECORD}` cannot be read: {error}"))?;
    let record: CacheRecord =
        serde_json::from_str(&text).map_err(|error| format!("its record `{RECORD}` is damaged: {error}"))?;
    // A record names files beside it and nothing else.
    match record.files.iter().find(|file| file.name.contains('/')) {
        Some(file) => Err(format!("its record names `{}`, which is no file beside it", file.name)),
        None => Ok(record),
    }
}

pub(crate) fn checksum_of(path: &Path) -> io::Result<u32> {
    let (mut file, mut checksum, mut buffer) = (File::open(path)?, Hasher::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(checksum.finalize()),
            n => checksum.update(&buffer[..n]),
        }
    }
}

/// Code is loaded from it: a bit that flipped on the disk runs in every worker.
fn check_bytes(path: &Path, expected: u32) -> Result<(), String> {
    match checksum_of(path) {
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
