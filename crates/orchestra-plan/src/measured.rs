//! What earlier runs found out about the memory that a worker takes on a GPU: one small file for each model, kind of GPU, batch size and
//! whatever else that depends on.
//! Measures nothing, and a file that is damaged counts as none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use orchestra_core::{PixelInput, TensorSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fingerprint::hex;
use crate::raw::RawModel;

/// What a worker's memory depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasureKey<'a> {
    /// SHA-256 of the model, weights included.
    pub model: &'a [u8; 32],
    /// The product name of the GPU.
    pub device: &'a str,
    /// The largest batch that it is warmed up with.
    pub max_batch: usize,
    /// Digest of everything else, as [`settings`] makes it.
    pub settings: &'a [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of one worker.
    pub bytes: u64,
    /// The version of ONNX Runtime that took them. A plan does not know which one it will run with; a run does, and measures anew.
    pub runtime: String,
}

/// Digest of what decides, beside the model, the GPU and the largest batch, how much memory a session takes: the rows that it is given and
/// the options that it is opened with. An option that is new belongs here, unless it can change no memory.
pub(crate) fn settings(
    model: &RawModel,
    inputs: &[TensorSpec],
    pixels: &[Option<PixelInput>],
    loops: bool,
) -> [u8; 32] {
    let RawModel { memory_limit, tf32, tuning, .. } = model;
    let rows: Vec<_> = inputs.iter().map(|input| (&input.dtype, &input.row, &input.batch)).collect();
    let limit = memory_limit.as_ref().map(|limit| limit.value);
    Sha256::digest(format!(
        "{rows:?} {pixels:?} limit {limit:?} tf32 {tf32} streams {} {}{}",
        model.streams(),
        tuning.wanted.memory_words(),
        // It keeps inputs and outputs on the device.
        if loops { " loop" } else { "" }
    ))
    .into()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurements {
    folder: PathBuf,
}

/// A file of it. All but `bytes` and `runtime` says what it is about, to a reader and to us: a file that was renamed is not believed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    model: String,
    device: String,
    max_batch: usize,
    settings: String,
    /// Of orchestra, which chooses settings that no file names.
    version: String,
    runtime: String,
    bytes: u64,
}

impl Measurements {
    /// Those in `folder`, which need not exist.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub fn look_up(&self, key: &MeasureKey<'_>) -> Option<Measured> {
        let record: Record = serde_json::from_slice(&fs::read(self.file(key)).ok()?).ok()?;
        let measured = Measured { bytes: record.bytes, runtime: record.runtime.clone() };
        (record == record_of(key, &measured) && record.bytes > 0).then_some(measured)
    }

    /// What is known of any kind of GPU, the most of it: for one that is not here, and was not measured.
    pub fn look_up_on_any(&self, key: &MeasureKey<'_>) -> Option<Measured> {
        let files = fs::read_dir(&self.folder).ok()?.flatten();
        let records = files.filter_map(|f| serde_json::from_slice::<Record>(&fs::read(f.path()).ok()?).ok());
        let known = records.filter_map(|record| self.look_up(&MeasureKey { device: &record.device, ..*key }));
        known.max_by_key(|measured| measured.bytes)
    }

    /// Keeps a measurement, instead of one that is there. A reader sees the old one or the new one, whole.
    pub fn keep(&self, key: &MeasureKey<'_>, measured: &Measured) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let file = self.file(key);
        let mut text = serde_json::to_vec_pretty(&record_of(key, measured))?;
        text.push(b'\n');
        let unfinished = file.with_extension(format!("{}.new", std::process::id()));
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, file)
    }

    /// Forgets a measurement that has turned out to be wrong.
    pub fn forget(&self, key: &MeasureKey<'_>) -> io::Result<()> {
        match fs::remove_file(self.file(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn file(&self, key: &MeasureKey<'_>) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(key.model);
        hash.update(key.max_batch.to_le_bytes());
        hash.update(key.settings);
        hash.update(key.device);
        let digest: [u8; 32] = hash.finalize().into();
        self.folder.join(format!("{}.json", &hex(&digest)[..32]))
    }
}

fn record_of(key: &MeasureKey<'_>, measured: &Measured) -> Record {
    Record {
        model: hex(key.model),
        device: key.device.to_owned(),
        max_batch: key.max_batch,
        settings: hex(key.settings),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        runtime: measured.runtime.clone(),
        bytes: measured.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MeasureKey<'static> =
        MeasureKey { model: &[7; 32], device: "NVIDIA L4", max_batch: 32, settings: &[1; 32] };

    fn gib(n: u64) -> Measured {
        Measured { bytes: n << 30, runtime: "1.24.1".into() }
    }

    #[test]
    fn what_is_kept_is_found_by_all_of_its_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let measurements = Measurements::new(&folder.path().join("not/yet/there"));
        assert_eq!(measurements.look_up(&KEY), None);
        measurements.keep(&KEY, &gib(5)).unwrap();
        measurements.keep(&KEY, &gib(6)).unwrap();
        assert_eq!(measurements.look_up(&KEY), Some(gib(6)));
        for other in [
            MeasureKey { model: &[8; 32], ..KEY },
            MeasureKey { device: "NVIDIA L40", ..KEY },
            MeasureKey { max_batch: 64, ..KEY },
            MeasureKey { settings: &[2; 32], ..KEY },
        ] {
            assert_eq!(measurements.look_up(&other), None, "{other:?}");
        }
        assert_eq!(fs::read_dir(&measurements.folder).unwrap().count(), 1);
        for _ in 0..2 {
            measurements.forget(&KEY).unwrap();
            assert_eq!(measurements.look_up(&KEY), None);
        }
    }

    #[test]
    fn of_a_gpu_that_was_not_measured_the_most_on_any_other_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let measurements = Measurements::new(&folder.path().join("memory"));
        let asked = MeasureKey { device: "a GPU of 24 GB", ..KEY };
        assert_eq!(measurements.look_up_on_any(&asked), None);
        measurements.keep(&KEY, &gib(5)).unwrap();
        measurements.keep(&MeasureKey { device: "NVIDIA L40", ..KEY }, &gib(6)).unwrap();
        measurements.keep(&MeasureKey { max_batch: 64, ..KEY }, &gib(7)).unwrap();
        measurements.keep(&MeasureKey { settings: &[2; 32], ..KEY }, &gib(8)).unwrap();
        fs::write(measurements.folder.join("other.json"), b"{}").unwrap();
        assert_eq!(measurements.look_up_on_any(&asked), Some(gib(6)));
    }

    #[test]
    fn damaged_and_renamed_files_count_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let measurements = Measurements::new(folder.path());
        measurements.keep(&KEY, &gib(5)).unwrap();
        let other = MeasureKey { max_batch: 64, ..KEY };
        fs::copy(measurements.file(&KEY), measurements.file(&other)).unwrap();
        assert_eq!(measurements.look_up(&other), None);
        let whole = fs::read(measurements.file(&KEY)).unwrap();
        for damaged in [&whole[..whole.len() / 2], b"", b"{}", b"[1]"] {
            fs::write(measurements.file(&KEY), damaged).unwrap();
            assert_eq!(measurements.look_up(&KEY), None);
        }
        measurements.keep(&KEY, &gib(0)).unwrap();
        assert_eq!(measurements.look_up(&KEY), None);
    }
}
