//! Counts what a sink has written to a store, by its manifest. It changes nothing there.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use orchestra_runtime::{Manifest, digest};
use orchestra_store::{ListError, MANIFEST, ObjectOutput, one_by_one};

use super::{Count, FaultKind, files_of};

impl Count<'_> {
    /// Reads the parts that the manifest of a prefix names; `read` gets the URL of each, and a file with its bytes. Parts of a sink that
    /// `holds_files` are indexes of them, and of those the store says the sizes.
    pub(super) fn bucket(
        &mut self,
        url: &str,
        store: &dyn ObjectOutput,
        run_id: &str,
        holds_files: bool,
        read: &mut dyn FnMut(&mut Self, &str, &Path),
    ) -> Result<(), String> {
        let Some(manifest) = self.manifest(url, store, run_id)? else { return Ok(()) };
        // By name: the bytes of each object as the manifest says, or an index of files that it names.
        let mut known: BTreeMap<String, u64> =
            manifest.parts.iter().map(|part| (part.name.clone(), part.bytes)).collect();
        for part in &manifest.parts {
            let part_url = format!("{url}{}", part.name);
            let Some(object) = store.read(&part_url).map_err(text)? else {
                self.fault(FaultKind::Damaged, |_| {
                    format!("`{part_url}`, which its manifest names, is not there")
                });
                continue;
            };
            if object.bytes.len() as u64 != part.bytes || digest(&object.bytes) != part.sha256 {
                self.fault(FaultKind::Damaged, |_| {
                    format!("`{part_url}` has other bytes than its manifest says")
                });
            }
            if holds_files {
                known.extend(files_of(&object.bytes));
            }
            let mut file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
            file.write_all(&object.bytes).map_err(|error| error.to_string())?;
            read(self, &part_url, file.path());
        }
        for object in one_by_one(store.objects(url).map_err(text)?) {
            let object = object.map_err(text)?;
            let name = object.url.strip_prefix(url).unwrap_or_default();
            match known.remove(name) {
                None if name == MANIFEST => {}
                None => {
                    self.fault(FaultKind::Stray, |_| format!("`{}` is in no manifest", object.url));
                }
                Some(bytes) if bytes != object.bytes => {
                    self.fault(FaultKind::Damaged, |_| {
                        format!("`{}` has {} bytes, and its index says {bytes}", object.url, object.bytes)
                    });
                }
                Some(_) => {}
            }
        }
        // That a part is missing was said.
        let is_file = |name: &&String| manifest.parts.iter().all(|part| part.name != **name);
        for name in known.keys().filter(is_file) {
            self.fault(FaultKind::Lost, |_| format!("`{url}{name}`, which its index names, is not there"));
        }
        Ok(())
    }

    /// The manifest of a prefix; `None`: there is none of this run, which is a fault.
    fn manifest(
        &mut self,
        url: &str,
        store: &dyn ObjectOutput,
        run_id: &str,
    ) -> Result<Option<Manifest>, String> {
        let url = format!("{url}{MANIFEST}");
        let manifest = store.read(&url).map_err(text)?;
        let what = match manifest.map(|manifest| serde_json::from_slice::<Manifest>(&manifest.bytes)) {
            Some(Ok(manifest)) if manifest.run_id == run_id => return Ok(Some(manifest)),
            None => "is not there".to_owned(),
            Some(Ok(other)) => format!("is that of run {}, and this is run {run_id}", other.run_id),
            Some(Err(error)) => format!("is no manifest: {error}"),
        };
        self.fault(FaultKind::Damaged, |_| format!("`{url}` {what}"));
        Ok(None)
    }
}

fn text(error: ListError) -> String {
    match error {
        ListError::Store { ref help, .. } => format!("{error}; {help}"),
        other => other.to_string(),
    }
}
