//! The objects of part files: created of the files in the output folder, which are removed then.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use orchestra_plan::{BucketPlan, PartFilesPlan};
use orchestra_store::INDEX;

use super::script_parts::ScriptParts;
use super::store_error;
use crate::flow::file_rows::{FileRow, files_in};

/// Files of a part file that are on their way at once: each waits for the answer of the store.
const FILES_AT_ONCE: usize = 16;

pub const TORN: &str = "it does not hold whole files; this is a bug";
pub const PANICKED: &str = "a thread panicked; this is a bug";

/// Where part files go.
#[derive(Debug, Clone)]
pub enum PartTarget {
    Bucket(BucketPlan),
    Script(Arc<ScriptParts>),
}

/// Where part files lie, and where they go.
#[derive(Debug, Clone)]
pub struct UploadedFiles {
    pub output: PathBuf,
    pub parts: PartFilesPlan,
    pub target: PartTarget,
    /// Each row is a file; the object of a part file is the index of its files.
    pub holds_files: bool,
}

impl UploadedFiles {
    pub fn path(&self, number: u64) -> PathBuf {
        self.output.join(self.parts.file(number))
    }

    pub fn name(&self, number: u64) -> String {
        if self.holds_files {
            return format!("{INDEX}{number:05}.jsonl");
        }
        self.parts
            .file(number)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    pub fn create_all(
        &self,
        left: Vec<u64>,
        waiting: &Receiver<u64>,
        is_over: &AtomicBool,
    ) -> Result<(), String> {
        let mut process = None;
        for number in left.into_iter().chain(waiting.iter()) {
            if is_over.load(Ordering::Acquire) {
                break;
            }
            match &self.target {
                PartTarget::Bucket(bucket) => self.create(bucket, number, is_over)?,
                PartTarget::Script(script) => {
                    script.take(&mut process, (number, &self.path(number)), is_over)?;
                }
            }
        }
        ScriptParts::end(&mut process);
        Ok(())
    }

    /// Creates all objects of a part file. One that is not whole when it `is_over` stays in the output folder.
    pub fn create(&self, bucket: &BucketPlan, number: u64, is_over: &AtomicBool) -> Result<(), String> {
        let path = self.path(number);
        let mut bytes =
            fs::read(&path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
        if self.holds_files {
            let files = files_in(&bytes).ok_or_else(|| format!("`{}`: {TORN}", path.display()))?;
            self.create_files(bucket, &files, is_over)?;
            if is_over.load(Ordering::Acquire) {
                return Ok(());
            }
            bytes = index_of(&files);
        }
        create_object(bucket, &self.name(number), &bytes)?;
        fs::remove_file(&path).map_err(|error| format!("cannot remove `{}`: {error}", path.display()))
    }

    fn create_files(
        &self,
        bucket: &BucketPlan,
        files: &[FileRow<'_>],
        is_over: &AtomicBool,
    ) -> Result<(), String> {
        let next = AtomicUsize::new(0);
        let create = || -> Result<(), String> {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed))
                && !is_over.load(Ordering::Acquire)
            {
                create_object(bucket, &file.name, file.bytes)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..FILES_AT_ONCE.min(files.len())).map(|_| scope.spawn(create)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(PANICKED.into())))
        })
    }
}

fn create_object(bucket: &BucketPlan, name: &str, bytes: &[u8]) -> Result<(), String> {
    let BucketPlan { url, store } = bucket;
    let url = format!("{url}{name}");
    if store.create(&url, bytes.to_vec()).map_err(|error| store_error(&error))? {
        return Ok(());
    }
    let there = store.read(&url).map_err(|error| store_error(&error))?;
    match there.is_some_and(|there| there.bytes == bytes) {
        true => Ok(()),
        false => {
            Err(format!("`{url}` is there already and was not written by this run: choose another prefix"))
        }
    }
}

/// What is said of the files of a part file, a line each.
pub fn index_of(files: &[FileRow<'_>]) -> Vec<u8> {
    files.iter().flat_map(|file| file.line).copied().collect()
}
