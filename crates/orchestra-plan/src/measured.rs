//! What earlier runs found out about the memory that a worker takes on a GPU: one small file for each model, kind of GPU and batch size.
//! Measures nothing, and a file that is damaged counts as none.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a worker's memory depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasureKey<'a> {
    /// SHA-256 of the model, weights included.
    pub model: &'a [u8; 32],
    /// The product name of the GPU.
    pub device: &'a str,
    /// The largest batch that it is warmed up with.
    pub max_batch: usize,
    /// What else its sessions are told that changes it: `SessionTuning::memory_words`.
    pub tuning: &'a str,
}

/// A folder of measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurements {
    folder: PathBuf,
}

/// A file of it. All but `bytes` says what it is about, to whoever opens it and to us: a file that was renamed is not believed.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    model: String,
    device: String,
    max_batch: usize,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    tuning: String,
    /// Of orchestra, which chooses ONNX Runtime's version and settings.
    version: String,
    bytes: u64,
}

impl Measurements {
    /// Those in `folder`, which need not exist.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Bytes of one worker.
    #[must_use]
    pub fn look_up(&self, key: &MeasureKey<'_>) -> Option<u64> {
        let record: Record = serde_json::from_slice(&fs::read(self.file(key)).ok()?).ok()?;
        let expected = record_of(key, record.bytes);
        let is_about_it = (&record.model, &record.device, record.max_batch, &record.tuning, &record.version)
            == (&expected.model, &expected.device, expected.max_batch, &expected.tuning, &expected.version);
        (is_about_it && record.bytes > 0).then_some(record.bytes)
    }

    /// Keeps a measurement, instead of one that is there. A reader sees the old one or the new one, whole.
    ///
    /// # Errors
    /// The folder cannot be made or written to.
    pub fn keep(&self, key: &MeasureKey<'_>, bytes: u64) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let file = self.file(key);
        let mut text = serde_json::to_vec_pretty(&record_of(key, bytes))?;
        text.push(b'\n');
        let unfinished = file.with_extension(format!("{}.new", std::process::id()));
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, file)
    }

    fn file(&self, key: &MeasureKey<'_>) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(key.model);
        hash.update(key.max_batch.to_le_bytes());
        hash.update(key.device);
        // Nothing where nothing was asked for: what was measured before there was anything to ask for still counts.
        hash.update(key.tuning);
        let digest: [u8; 32] = hash.finalize().into();
        self.folder.join(format!("{}.json", &hex(&digest)[..32]))
    }
}

fn record_of(key: &MeasureKey<'_>, bytes: u64) -> Record {
    Record {
        model: hex(key.model),
        device: key.device.to_owned(),
        max_batch: key.max_batch,
        tuning: key.tuning.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        bytes,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MeasureKey<'static> =
        MeasureKey { model: &[7; 32], device: "NVIDIA L4", max_batch: 32, tuning: "" };

    #[test]
    fn what_is_kept_is_found_by_all_of_its_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let measurements = Measurements::new(&folder.path().join("not/yet/there"));
        assert_eq!(measurements.look_up(&KEY), None);
        measurements.keep(&KEY, 5 << 30).unwrap();
        measurements.keep(&KEY, 6 << 30).unwrap();
        assert_eq!(measurements.look_up(&KEY), Some(6 << 30));
        for other in [
            MeasureKey { model: &[8; 32], ..KEY },
            MeasureKey { device: "NVIDIA L40", ..KEY },
            MeasureKey { max_batch: 64, ..KEY },
            MeasureKey { tuning: "tensorrt", ..KEY },
        ] {
            assert_eq!(measurements.look_up(&other), None, "{other:?}");
        }
        assert_eq!(fs::read_dir(&measurements.folder).unwrap().count(), 1);
    }

    #[test]
    fn damaged_and_renamed_files_count_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let measurements = Measurements::new(folder.path());
        measurements.keep(&KEY, 5 << 30).unwrap();
        let other = MeasureKey { max_batch: 64, ..KEY };
        fs::copy(measurements.file(&KEY), measurements.file(&other)).unwrap();
        assert_eq!(measurements.look_up(&other), None);
        let whole = fs::read(measurements.file(&KEY)).unwrap();
        for damaged in [&whole[..whole.len() / 2], b"", b"{}", b"[1]"] {
            fs::write(measurements.file(&KEY), damaged).unwrap();
            assert_eq!(measurements.look_up(&KEY), None);
        }
        measurements.keep(&KEY, 0).unwrap();
        assert_eq!(measurements.look_up(&KEY), None);
    }
}
