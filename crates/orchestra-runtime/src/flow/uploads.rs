//! Part files on their way to a store, and the manifest of those that are there. It makes no part, and decides nothing about rows.
//!
//! ```text
//! note      a line of `.orchestra/uploads-SINK` says what the part will be      of several lines with one number the last counts
//! sealed    the journal has the part, durably, and its file lies in the folder
//! files     where each record is one: all objects of the part are there          then the part is the index of them
//! created   the object is there, whole                                           one that was there before must have the same bytes
//! removed   the file is gone: a sealed part without a file is in the store
//! manifest  created, once all parts are there                                     what readers trust
//! finished  the journal has the end of the run
//! ```
//!
//! A start goes on wherever a killed run was: it creates the objects of all files that it finds. The store is asked by a thread of its own; the
//! committer waits for it only where [`MOST_WAITING`] parts wait, which bounds the disk.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use orchestra_plan::{BucketPlan, PartFilesPlan, SinkPlan};
use orchestra_store::{ListError, MANIFEST, OutputFolder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::flow::file_rows::{FileRow, files_in};

/// Parts that wait for the store.
const MOST_WAITING: usize = 2;

/// Files of a part that are on their way at once: each waits for the answer of the store.
const FILES_AT_ONCE: usize = 16;

/// All that a sink has written to a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Of this description: 1.
    pub version: u32,
    pub run_id: String,
    pub sink: String,
    pub kind: String,
    pub rows: u64,
    /// In their order.
    pub parts: Vec<ManifestPart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestPart {
    /// Its name behind the prefix.
    pub name: String,
    /// How many rows it holds.
    pub rows: u64,
    pub bytes: u64,
    /// Of its bytes, in hexadecimal digits.
    pub sha256: String,
}

/// The SHA-256 of bytes, in hexadecimal digits.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // A text takes all that is written to it.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What is wrong with a store, and what to do.
pub fn store_error(error: &ListError) -> String {
    match error {
        ListError::Store { help, .. } => format!("{error}; {help}"),
        other => other.to_string(),
    }
}

/// What a part will be, before it is sealed.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    number: u64,
    rows: u64,
    bytes: u64,
    sha256: String,
}

/// The parts of one sink.
pub struct Upload {
    sink: String,
    kind: String,
    run_id: String,
    files: UploadedFiles,
    notes: BTreeMap<u64, Note>,
    note_file: File,
    queue: Option<SyncSender<u64>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

/// Where parts lie, and where they go.
#[derive(Debug, Clone)]
struct UploadedFiles {
    output: PathBuf,
    parts: PartFilesPlan,
    bucket: BucketPlan,
    /// Each row is a file; the object of a part is the index of its files.
    holds_files: bool,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("sink", &self.sink).field("files", &self.files).finish_non_exhaustive()
    }
}

impl Upload {
    /// Goes on with the parts that an earlier start has left, `sealed` of them; `None`: the sink writes to the output folder.
    pub fn open(sink: &SinkPlan, output: &Path, run_id: &str, sealed: u64) -> Result<Option<Self>, String> {
        let Some((bucket, parts)) = sink.bucket.clone().zip(sink.part_files.clone()) else { return Ok(None) };
        let path = output.join(OutputFolder::private_file(&format!("uploads-{}", sink.name)));
        let failed = |error: io::Error| format!("cannot use `{}`: {error}", path.display());
        let (note_file, mut notes) = read_notes(&path).map_err(failed)?;
        notes.retain(|number, _| *number < sealed);
        if let Some(lost) = (0..sealed).find(|number| !notes.contains_key(number)) {
            return Err(format!(
                "`{}` does not say what part {lost} is: start over with `--fresh`",
                path.display()
            ));
        }
        let holds_files = sink.files.is_some();
        let files = UploadedFiles { output: output.to_owned(), parts, bucket, holds_files };
        let left: Vec<u64> = (0..sealed).filter(|number| files.path(*number).exists()).collect();
        let (queue, waiting) = sync_channel(MOST_WAITING);
        let is_over = Arc::new(AtomicBool::new(false));
        let (theirs, over) = (files.clone(), Arc::clone(&is_over));
        let thread = std::thread::Builder::new()
            .name("uploads".into())
            .spawn(move || theirs.create_all(left, &waiting, &over))
            .map_err(|error| error.to_string())?;
        Ok(Some(Self {
            sink: sink.name.clone(),
            kind: sink.kind.clone(),
            run_id: run_id.to_owned(),
            files,
            notes,
            note_file,
            queue: Some(queue),
            is_over,
            thread: Some(thread),
        }))
    }

    /// Says what the next part will be, durably. It is sealed next.
    pub fn note(&mut self, number: u64, rows: u64, bytes: &[u8]) -> io::Result<()> {
        let index = match self.files.holds_files {
            true => Some(index_of(&files_in(bytes).ok_or_else(|| io::Error::other(TORN))?)),
            false => None,
        };
        let object = index.as_deref().unwrap_or(bytes);
        let note = Note { number, rows, bytes: object.len() as u64, sha256: digest(object) };
        let mut line = serde_json::to_vec(&note)?;
        line.push(b'\n');
        self.note_file.write_all(&line)?;
        self.note_file.sync_data()?;
        self.notes.insert(number, note);
        Ok(())
    }

    /// Hands over a part that is sealed. Waits while others wait.
    pub fn send(&mut self, number: u64) -> Result<(), String> {
        match self.queue.as_ref().is_some_and(|queue| queue.send(number).is_ok()) {
            true => Ok(()),
            false => self.join().and(Err("no part is written any more".to_owned())),
        }
    }

    /// Ends; of a run that is complete all parts and the manifest are in the store then. Otherwise parts may be left, for the next start.
    ///
    /// # Errors
    /// A part or the manifest of a complete run cannot be written.
    pub fn finish(&mut self, is_complete: bool) -> Result<(), String> {
        self.is_over.store(!is_complete, Ordering::Release);
        let joined = self.join();
        if !is_complete {
            if let Err(error) = joined {
                tracing::warn!(sink = %self.sink, %error, "part files wait in the output folder");
            }
            return Ok(());
        }
        joined?;
        self.write_manifest()?;
        // Empty by now, unless another sink has parts there.
        drop(self.files.path(0).parent().map(fs::remove_dir));
        Ok(())
    }

    fn join(&mut self) -> Result<(), String> {
        self.queue = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(PANICKED.to_owned()))
    }

    fn write_manifest(&self) -> Result<(), String> {
        let BucketPlan { url, store } = &self.files.bucket;
        let part = |note: &Note| ManifestPart {
            name: self.files.name(note.number),
            rows: note.rows,
            bytes: note.bytes,
            sha256: note.sha256.clone(),
        };
        let parts: Vec<ManifestPart> = self.notes.values().map(part).collect();
        let mut missing: BTreeMap<String, u64> =
            parts.iter().map(|part| (format!("{url}{}", part.name), part.bytes)).collect();
        for object in store.objects(url).map_err(|error| store_error(&error))? {
            let object = object.map_err(|error| store_error(&error))?;
            if missing.get(&object.url) == Some(&object.bytes) {
                missing.remove(&object.url);
            }
        }
        if let Some(part) = missing.keys().next() {
            return Err(format!("`{part}` is not there as it was written: start over with `--fresh`"));
        }
        let manifest = Manifest {
            version: 1,
            run_id: self.run_id.clone(),
            sink: self.sink.clone(),
            kind: self.kind.clone(),
            rows: parts.iter().map(|part| part.rows).sum(),
            parts,
        };
        let mut bytes = serde_json::to_vec_pretty(&manifest).map_err(|error| error.to_string())?;
        bytes.push(b'\n');
        let url = format!("{url}{MANIFEST}");
        let create = || -> Result<bool, ListError> {
            if store.create(&url, bytes.clone())? {
                return Ok(true);
            }
            match store.read(&url)? {
                Some(before) if before.bytes == bytes => Ok(true),
                // Items that had failed, or were added, were done since.
                Some(before) if is_of_run(&before.bytes, &self.run_id) => {
                    store.replace(&url, bytes.clone(), &before)
                }
                _ => Ok(false),
            }
        };
        match create() {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("`{url}` is that of another run: choose another prefix")),
            Err(error) => Err(store_error(&error)),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // What went wrong was said, or does not matter: the next start goes on with what is left.
        drop(self.join());
    }
}

fn is_of_run(manifest: &[u8], run_id: &str) -> bool {
    serde_json::from_slice::<Manifest>(manifest).is_ok_and(|manifest| manifest.run_id == run_id)
}

/// Whether the prefix of a sink may be written to by this run; of a new run nothing is there that it could write.
pub fn is_free(sink: &SinkPlan, run_id: &str, is_new: bool) -> Result<bool, ListError> {
    let Some((BucketPlan { url, store }, parts)) = sink.bucket.as_ref().zip(sink.part_files.as_ref()) else {
        return Ok(true);
    };
    if let Some(manifest) = store.read(&format!("{url}{MANIFEST}"))? {
        return Ok(!is_new && is_of_run(&manifest.bytes, run_id));
    }
    if !is_new {
        return Ok(true);
    }
    for object in store.objects(url)? {
        let object = object?;
        let name = object.url.strip_prefix(url.as_str()).unwrap_or_default();
        // A file could be called as any object.
        if sink.files.is_some() || parts.number_of(name.as_ref()).is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// All notes, and the file for more: a line that was cut off is ended.
fn read_notes(path: &Path) -> io::Result<(File, BTreeMap<u64, Note>)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    if text.last().is_some_and(|last| *last != b'\n') {
        file.write_all(b"\n")?;
    }
    let lines = text.split(|byte| *byte == b'\n');
    let notes = lines.filter_map(|line| serde_json::from_slice::<Note>(line).ok());
    Ok((file, notes.map(|note| (note.number, note)).collect()))
}

impl UploadedFiles {
    fn path(&self, number: u64) -> PathBuf {
        self.output.join(self.parts.file(number))
    }

    fn name(&self, number: u64) -> String {
        if self.holds_files {
            return format!("_index-{number:05}.jsonl");
        }
        self.parts
            .file(number)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    fn create_all(
        &self,
        left: Vec<u64>,
        waiting: &Receiver<u64>,
        is_over: &AtomicBool,
    ) -> Result<(), String> {
        for number in left.into_iter().chain(waiting.iter()) {
            if is_over.load(Ordering::Acquire) {
                break;
            }
            self.create(number, is_over)?;
        }
        Ok(())
    }

    /// Creates all objects of a part. One that is not whole when it `is_over` stays in the output folder.
    fn create(&self, number: u64, is_over: &AtomicBool) -> Result<(), String> {
        let path = self.path(number);
        let mut bytes =
            fs::read(&path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
        if self.holds_files {
            let files = files_in(&bytes).ok_or_else(|| format!("`{}`: {TORN}", path.display()))?;
            self.create_files(&files, is_over)?;
            if is_over.load(Ordering::Acquire) {
                return Ok(());
            }
            bytes = index_of(&files);
        }
        self.create_object(&self.name(number), &bytes)?;
        fs::remove_file(&path).map_err(|error| format!("cannot remove `{}`: {error}", path.display()))
    }

    fn create_files(&self, files: &[FileRow<'_>], is_over: &AtomicBool) -> Result<(), String> {
        let next = AtomicUsize::new(0);
        let create = || -> Result<(), String> {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed))
                && !is_over.load(Ordering::Acquire)
            {
                self.create_object(&file.name, file.bytes)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..FILES_AT_ONCE.min(files.len())).map(|_| scope.spawn(create)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(PANICKED.into())))
        })
    }

    fn create_object(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let BucketPlan { url, store } = &self.bucket;
        let url = format!("{url}{name}");
        if store.create(&url, bytes.to_vec()).map_err(|error| store_error(&error))? {
            return Ok(());
        }
        let there = store.read(&url).map_err(|error| store_error(&error))?;
        match there.is_some_and(|there| there.bytes == bytes) {
            true => Ok(()),
            false => Err(format!(
                "`{url}` is there already and was not written by this run: choose another prefix"
            )),
        }
    }
}

const TORN: &str = "it does not hold whole files; this is a bug";
const PANICKED: &str = "a thread panicked; this is a bug";

/// What is said of the files of a part, a line each.
fn index_of(files: &[FileRow<'_>]) -> Vec<u8> {
    files.iter().flat_map(|file| file.line).copied().collect()
}
