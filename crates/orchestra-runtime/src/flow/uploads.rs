//! Part files on their way to a store, with the manifest of those that are there, or to a script. It makes no part file, and decides nothing about rows.
//!
//! ```text
//! sealed    the journal has the part file and what its object will be, durably, and its file lies in the folder
//! files     where each record is one: all objects of the part file are there     then the part file is the index of them
//! created   the object is there, whole                                           one that was there before must have the same bytes
//! removed   the file is gone: a sealed part file without a file is in the store
//! manifest  created, once all part files are there                                what readers trust
//! finished  the journal has the end of the run         later than the manifest: other pipelines and commands may go on
//! ```
//!
//! A start goes on wherever a killed run was: it creates the objects of all files that it finds. The store is asked by a thread of its own; the
//! committer waits for it only where [`MOST_WAITING`] part files wait, which bounds the disk. For a script far more may wait.

mod part_objects;
mod script_parts;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use orchestra_plan::{BucketPlan, Limits, SinkPlan};
use orchestra_store::{ListError, MANIFEST, one_by_one};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::part_objects::TORN;
use self::part_objects::{PANICKED, PartTarget, UploadedFiles, index_of};
use self::script_parts::ScriptParts;
use crate::child::spawn::ProcessLauncher;
use crate::flow::file_rows::files_in;
use crate::look::patience_of;

/// Parts that wait for the store.
const MOST_WAITING: usize = 2;
/// Parts that wait for a script, which may be slower than the models and hold up no interrupt: as many as come, on the disk as other results are.
const MOST_WAITING_FOR_SCRIPT: usize = 1 << 14;

/// All that a sink has written to a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Of this description: 1.
    pub version: u32,
    pub run_id: String,
    pub sink: String,
    pub kind: String,
    /// What the names of its part files end with, without the dot. `None`: each row is a file, and these are indexes of them; or an older program
    /// has written this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<String>,
    pub rows: u64,
    pub parts: Vec<ManifestPart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestPart {
    /// Its name behind the prefix.
    pub name: String,
    pub rows: u64,
    pub bytes: u64,
    /// Of its bytes, in hexadecimal digits.
    pub sha256: String,
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// What is wrong with a store, and what to do.
pub fn store_error(error: &ListError) -> String {
    match error {
        ListError::Store { help, .. } => format!("{error}; {help}"),
        other => other.to_string(),
    }
}

/// What the object of a part file is: the journal keeps it with the part file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ObjectNote {
    rows: u64,
    bytes: u64,
    sha256: String,
}

/// The part files of one sink.
pub struct Upload {
    sink: String,
    kind: String,
    run_id: String,
    files: UploadedFiles,
    /// By the numbers of the part files.
    notes: Vec<ObjectNote>,
    queue: Option<SyncSender<u64>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), String>>>,
    /// All is in the store.
    has_manifest: bool,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("sink", &self.sink).field("files", &self.files).finish_non_exhaustive()
    }
}

impl Upload {
    /// Goes on with the part files that an earlier start has left, of which the journal has these notes; `None`: the sink writes to the output folder.
    pub fn open(
        sink: &SinkPlan,
        (output, limits): (&Path, &Limits),
        run_id: &str,
        notes: &[Vec<u8>],
        launcher: Option<&ProcessLauncher>,
    ) -> Result<Option<Self>, String> {
        let Some(parts) = sink.part_files.clone() else { return Ok(None) };
        let target = match (&sink.bucket, &sink.script, launcher) {
            (Some(bucket), ..) => PartTarget::Bucket(bucket.clone()),
            (None, None, _) => return Ok(None),
            (None, Some(_), None) => {
                return Err("this program starts no processes, and a script takes them".to_owned());
            }
            (None, Some(script), Some(launcher)) => {
                let (script, launcher) = (script.clone(), launcher.clone());
                let patience = patience_of(limits);
                PartTarget::Script(Arc::new(ScriptParts { script, launcher, patience }))
            }
        };
        let notes =
            notes.iter().map(|note| serde_json::from_slice(note)).collect::<Result<Vec<ObjectNote>, _>>();
        let notes = notes.map_err(|error| format!("the journal does not say what a part is: {error}"))?;
        let (queue, waiting) = sync_channel(match target {
            PartTarget::Bucket(_) => MOST_WAITING,
            PartTarget::Script(_) => MOST_WAITING_FOR_SCRIPT,
        });
        let holds_files = sink.files.is_some();
        let files = UploadedFiles { output: output.to_owned(), parts, target, holds_files };
        let left: Vec<u64> = (0..notes.len() as u64).filter(|number| files.path(*number).exists()).collect();
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
            queue: Some(queue),
            is_over,
            thread: Some(thread),
            has_manifest: false,
        }))
    }

    /// What the journal shall keep of the next part file; `None`: its files are not whole.
    pub fn note(&self, rows: u64, bytes: &[u8]) -> Option<Vec<u8>> {
        let index = match self.files.holds_files {
            true => Some(index_of(&files_in(bytes)?)),
            false => None,
        };
        let object = index.as_deref().unwrap_or(bytes);
        serde_json::to_vec(&ObjectNote { rows, bytes: object.len() as u64, sha256: digest(object) }).ok()
    }

    /// Hands over the part file that was sealed last, with its note. Waits while others wait.
    pub fn send(&mut self, note: &[u8]) -> Result<(), String> {
        let number = self.notes.len() as u64;
        self.notes.push(serde_json::from_slice(note).map_err(|error| error.to_string())?);
        match self.queue.as_ref().is_some_and(|queue| queue.send(number).is_ok()) {
            true => Ok(()),
            false => self.join().and(Err("no part is written any more".to_owned())),
        }
    }

    /// Ends; where all rows of the sink `is_complete` all part files and the manifest are in the store then. Otherwise some may be left, for the
    /// next start. What has ended before stays as it is.
    pub fn finish(&mut self, is_complete: bool) -> Result<(), String> {
        if self.has_manifest {
            return Ok(());
        }
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
        self.has_manifest = true;
        // Empty by now, unless another sink has part files there.
        drop(self.files.path(0).parent().map(fs::remove_dir));
        Ok(())
    }

    fn join(&mut self) -> Result<(), String> {
        self.queue = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(PANICKED.to_owned()))
    }

    fn write_manifest(&self) -> Result<(), String> {
        let PartTarget::Bucket(BucketPlan { url, store }) = &self.files.target else { return Ok(()) };
        let part = |(number, note): (u64, &ObjectNote)| ManifestPart {
            name: self.files.name(number),
            rows: note.rows,
            bytes: note.bytes,
            sha256: note.sha256.clone(),
        };
        let parts: Vec<ManifestPart> = (0..).zip(&self.notes).map(part).collect();
        let mut missing: BTreeMap<String, u64> =
            parts.iter().map(|part| (format!("{url}{}", part.name), part.bytes)).collect();
        for object in one_by_one(store.objects(url).map_err(|error| store_error(&error))?) {
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
            extension: (!self.files.holds_files).then(|| self.files.parts.extension.to_owned()),
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
    for object in one_by_one(store.objects(url)?) {
        let object = object?;
        let name = object.url.strip_prefix(url.as_str()).unwrap_or_default();
        // A file could be called as any object.
        if sink.files.is_some() || parts.number_of(name.as_ref()).is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use orchestra_plan::PartFilesPlan;
    use orchestra_store::ObjectOutput;

    use super::*;
    use crate::fault_tests::memory_store::MemoryStore;

    const URL: &str = "s3://b/p/";

    /// A part of some kind of a host goes to this store, and its manifest beside it.
    fn upload(store: &Arc<MemoryStore>) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFilesPlan { stem: "rows".into(), extension: "txt" };
        let bucket = BucketPlan { url: URL.to_owned(), store: store.clone() };
        let target = PartTarget::Bucket(bucket.clone());
        let files = UploadedFiles { output: folder.path().to_owned(), parts, target, holds_files: false };
        fs::write(files.path(0), "1\n2\n").unwrap();
        files.create(&bucket, 0, &AtomicBool::new(false)).unwrap();
        let mut upload = Upload {
            sink: "rows".to_owned(),
            kind: "lines".to_owned(),
            run_id: "r".to_owned(),
            files,
            notes: Vec::new(),
            has_manifest: false,
            queue: None,
            is_over: Arc::default(),
            thread: None,
        };
        let note = upload.note(2, b"1\n2\n").unwrap();
        upload.notes.push(serde_json::from_slice(&note).unwrap());
        upload.write_manifest()
    }

    #[test]
    fn a_source_takes_the_parts_and_not_their_manifest() {
        let store = Arc::new(MemoryStore::default());
        upload(&store).unwrap();
        let listed = |store: &Arc<MemoryStore>| {
            let (out, urls) = (tempfile::tempdir().unwrap(), vec![URL.to_owned()]);
            let out = out.path().join("items");
            let source = orchestra_store::SourceStore(store.clone());
            let spec = orchestra_store::ListingSpec::Objects { urls, store: source };
            orchestra_store::write_listing(&spec, &out).unwrap();
            let items = orchestra_store::ListingReader::open(&out).unwrap();
            items.map(|item| item.unwrap().name).collect::<Vec<_>>()
        };
        assert_eq!(listed(&store), ["rows-00000.txt"]);
    }

    #[test]
    fn a_manifest_of_this_run_without_an_extension_is_written_anew() {
        let (store, url) = (Arc::new(MemoryStore::default()), format!("{URL}{MANIFEST}"));
        let old = br#"{"version":1,"run_id":"r","sink":"rows","kind":"lines","rows":0,"parts":[]}"#;
        store.create(&url, old.to_vec()).unwrap();
        upload(&store).unwrap();
        let now: Manifest = serde_json::from_slice(&store.read(&url).unwrap().unwrap().bytes).unwrap();
        assert_eq!((now.extension.as_deref(), now.rows), (Some("txt"), 2));
    }
}
