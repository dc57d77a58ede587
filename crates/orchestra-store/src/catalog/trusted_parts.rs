//! `_manifest.json`, which a finished run has put beside its part files: files like these that it does not name are left over from a killed start,
//! and are no items. What reads it is handed in.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::Deserialize;

use super::ListError;

/// Its name, in the folder of the parts.
pub const MANIFEST: &str = "_manifest.json";
/// The kinds of sinks whose parts hold rows; those of other kinds are an index, and hold none.
const KINDS: [&str; 4] = ["csv", "jsonl", "parquet", "tar"];
/// A larger file is none of ours: it would name a million parts.
const LARGEST: u64 = 256 << 20;

#[derive(Deserialize)]
struct Manifest {
    kind: String,
    parts: Vec<Part>,
    #[serde(rename = "run_id")]
    _run_id: String,
}

#[derive(Deserialize)]
struct Part {
    name: String,
}

/// What the manifest of a folder says.
struct Named {
    kind: &'static str,
    names: HashSet<Vec<u8>>,
}

/// The folders on the way down to the file that was asked for last: files come folder by folder.
#[derive(Default)]
pub(super) struct TrustedParts {
    folders: Vec<(Vec<u8>, Option<Named>)>,
}

impl TrustedParts {
    /// Whether a file is an item, as far as a manifest beside it decides. `open` is called once for each folder of files that could be parts; it gives
    /// `None` where there is no manifest of this path.
    pub fn takes(
        &mut self,
        path: &[u8],
        open: impl FnOnce(&[u8]) -> Result<Option<Box<dyn Read>>, ListError>,
    ) -> Result<bool, ListError> {
        let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (folder, name) = path.split_at(at);
        let is_manifest = name == MANIFEST.as_bytes();
        let extension = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
        if !is_manifest && !KINDS.iter().any(|kind| kind.as_bytes() == extension) {
            return Ok(true);
        }
        while self.folders.last().is_some_and(|(above, _)| !folder.starts_with(above)) {
            self.folders.pop();
        }
        if self.folders.last().is_none_or(|(known, _)| known != folder) {
            let manifest = [folder, MANIFEST.as_bytes()].concat();
            let named = match open(&manifest)? {
                Some(file) => read(file).map_err(|error| failed(&manifest, error))?,
                None => None,
            };
            self.folders.push((folder.to_vec(), named));
        }
        let named = self.folders.last().and_then(|(_, named)| named.as_ref());
        Ok(named.is_none_or(|named| {
            !is_manifest && (extension != named.kind.as_bytes() || named.names.contains(name))
        }))
    }
}

/// `None`: it is not one of ours.
fn read(file: Box<dyn Read>) -> io::Result<Option<Named>> {
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    let Ok(Manifest { kind, parts, .. }) = serde_json::from_slice(&bytes) else { return Ok(None) };
    let kind = KINDS.into_iter().find(|known| *known == kind);
    let names = || parts.into_iter().map(|part| part.name.into_bytes()).collect();
    Ok(kind.map(|kind| Named { kind, names: names() }))
}

fn failed(manifest: &[u8], error: io::Error) -> ListError {
    let of_file = |error| ListError::bad_file(Path::new(OsStr::from_bytes(manifest)), error);
    error.downcast::<ListError>().unwrap_or_else(of_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_their_manifest_does_not_name_are_left_out_and_nothing_else_is() {
        let ours = r#"{"version":1,"run_id":"r","sink":"s","kind":"csv","rows":2,"parts":[{"name":"s-00000.csv","rows":2,"bytes":9,"sha256":""}]}"#;
        let mut opened = Vec::new();
        let mut trusted = TrustedParts::default();
        let mut takes = |path: &str| {
            trusted
                .takes(path.as_bytes(), |path| {
                    let path = String::from_utf8(path.to_vec()).unwrap();
                    opened.push(path.clone());
                    let text = match &*path {
                        "a/_manifest.json" => ours,
                        "b/_manifest.json" => "{\"parts\": 3}",
                        _ => return Ok(None),
                    };
                    Ok(Some(Box::new(text.as_bytes())))
                })
                .unwrap()
        };
        assert!(!takes("a/_manifest.json"));
        assert!(takes("a/c/s-00001.csv"), "another folder");
        assert!(takes("a/notes.jsonl") && takes("a/1.png"));
        assert!(takes("a/s-00000.csv") && !takes("a/s-00001.csv"));
        assert!(takes("b/1.csv") && takes("b/_manifest.json"), "a manifest of another program");
        assert!(takes("p/1.png") && takes("p/2.json"));
        assert_eq!(opened, ["a/_manifest.json", "a/c/_manifest.json", "b/_manifest.json"]);
    }
}
