//! `_manifest.json`, which a finished run has put beside its part files: files like these that it does not name are left over from a killed start,
//! and are no items. What reads it is handed in. It knows no kind of sink: the manifest says what its parts end with.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde::Deserialize;

use super::ListError;

/// Its name, in the folder of the parts.
pub const MANIFEST: &str = "_manifest.json";
/// What parts begin with that hold no rows: each line of them names a file.
pub const INDEX: &str = "_index-";
/// The digits of the number in the name of a part, at least: `STEM-00017.EXTENSION`.
const LEAST_DIGITS: usize = 5;
/// A larger file is none of ours: it would name a million parts.
const LARGEST: u64 = 256 << 20;

/// What makes a file a manifest of ours.
#[derive(Deserialize)]
struct Manifest {
    parts: Vec<Part>,
    /// Older programs wrote none.
    extension: Option<String>,
    kind: String,
    #[serde(rename = "run_id")]
    _run_id: String,
}

#[derive(Deserialize)]
struct Part {
    name: String,
}

/// What the manifest of a folder says.
struct Named {
    /// What the names of parts with rows end with; `None`: there are none.
    extension: Option<Vec<u8>>,
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
        let extension = extension_of_part(name);
        if !is_manifest && extension.is_none() {
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
        let Some(named) = self.folders.last().and_then(|(_, named)| named.as_ref()) else { return Ok(true) };
        let is_part = name.starts_with(INDEX.as_bytes()) || extension == named.extension.as_deref();
        Ok(!is_manifest && (!is_part || named.names.contains(name)))
    }
}

/// What stands behind the number of a file that is called as parts are.
fn extension_of_part(name: &[u8]) -> Option<&[u8]> {
    let numbered = |(at, byte): (usize, &u8)| {
        let behind = &name[at + 1..];
        let digits = behind.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_number = *byte == b'-' && digits >= LEAST_DIGITS;
        behind.get(digits..).filter(|_| is_number)?.strip_prefix(b".").filter(|rest| !rest.is_empty())
    };
    name.iter().enumerate().rev().find_map(numbered)
}

/// `None`: it is not one of ours.
fn read(file: Box<dyn Read>) -> io::Result<Option<Named>> {
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    let Ok(Manifest { parts, extension, kind, .. }) = serde_json::from_slice(&bytes) else { return Ok(None) };
    // All parts of a sink have the same. Without any, kinds whose manifests say nothing of it were called as it.
    let of_parts = || match parts.first() {
        Some(part) if part.name.starts_with(INDEX) => None,
        Some(part) => extension_of_part(part.name.as_bytes()).map(<[u8]>::to_vec),
        None => Some(kind.into_bytes()),
    };
    let extension = extension.map(String::into_bytes).or_else(of_parts);
    let names = parts.into_iter().map(|part| part.name.into_bytes()).collect();
    Ok(Some(Named { extension, names }))
}

fn failed(manifest: &[u8], error: io::Error) -> ListError {
    let of_file = |error| ListError::bad_file(Path::new(OsStr::from_bytes(manifest)), error);
    error.downcast::<ListError>().unwrap_or_else(of_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(kind: &str, more: &str, part: &str) -> String {
        format!(
            r#"{{"version":1,"run_id":"r","sink":"s","kind":"{kind}",{more}"rows":2,"parts":[{{"name":"{part}","rows":2,"bytes":9,"sha256":""}}]}}"#
        )
    }

    #[test]
    fn parts_that_their_manifest_does_not_name_are_left_out_and_nothing_else_is() {
        let ours = manifest("csv", r#""extension":"csv","#, "s-00000.csv");
        let mut opened = Vec::new();
        let mut trusted = TrustedParts::default();
        let mut takes = |path: &str| {
            trusted
                .takes(path.as_bytes(), |path| {
                    let path = String::from_utf8(path.to_vec()).unwrap();
                    opened.push(path.clone());
                    let text = match &*path {
                        "a/_manifest.json" => ours.clone(),
                        "b/_manifest.json" => "{\"parts\": 3}".to_owned(),
                        _ => return Ok(None),
                    };
                    Ok(Some(Box::new(io::Cursor::new(text.into_bytes()))))
                })
                .unwrap()
        };
        assert!(!takes("a/_manifest.json"));
        assert!(takes("a/c/s-00001.csv"), "another folder");
        assert!(takes("a/notes-00001.jsonl") && takes("a/1.png") && takes("a/notes.csv"));
        assert!(takes("a/s-00000.csv") && !takes("a/s-00001.csv") && !takes("a/other-00000.csv"));
        assert!(takes("b/1-00000.csv") && takes("b/_manifest.json"), "a manifest of another program");
        assert!(takes("p/1.png") && takes("p/2.json") && takes("p/3-0001.png"));
        assert_eq!(opened, ["a/_manifest.json", "a/c/_manifest.json", "b/_manifest.json"]);
    }

    /// Whether files beside this manifest are items.
    fn beside(manifest: &str, names: &[&str]) -> Vec<bool> {
        let mut trusted = TrustedParts::default();
        let mut takes = |name: &&str| {
            let open = |_: &[u8]| {
                Ok(Some(Box::new(io::Cursor::new(manifest.to_owned().into_bytes())) as Box<dyn Read>))
            };
            trusted.takes(format!("a/{name}").as_bytes(), open).unwrap()
        };
        names.iter().map(&mut takes).collect()
    }

    #[test]
    fn a_manifest_of_any_kind_is_trusted_and_is_no_item() {
        let names = ["_manifest.json", "rows-00000.tar.gz", "rows-00001.tar.gz", "a.gz", "b-00001.txt"];
        let ours = manifest("archive_of_a_host", r#""extension":"tar.gz","#, "rows-00000.tar.gz");
        assert_eq!(beside(&ours, &names), [false, true, false, true, true]);
        // Of a run without rows.
        let none =
            r#"{"version":1,"run_id":"r","sink":"s","kind":"x","extension":"txt","rows":0,"parts":[]}"#;
        assert_eq!(beside(none, &names), [false, true, true, true, false]);
    }

    #[test]
    fn indexes_that_their_manifest_does_not_name_are_left_out_and_no_file_of_a_record_is() {
        let names = ["_manifest.json", "_index-00000.jsonl", "_index-00001.jsonl", "1-00000.jsonl", "1.npy"];
        let ours = manifest("npy", "", "_index-00000.jsonl");
        assert_eq!(beside(&ours, &names), [false, true, false, true, true]);
    }

    #[test]
    fn a_manifest_without_an_extension_is_read_by_the_names_of_its_parts() {
        for kind in ["csv", "jsonl", "parquet", "tar"] {
            let part = |n: u32| format!("s-{n:05}.{kind}");
            let old = manifest(kind, "", &part(0));
            let names = [MANIFEST, &part(0), &part(1), "s-00001.png"];
            assert_eq!(beside(&old, &names), [false, true, false, true], "{kind}");
            let empty =
                format!(r#"{{"version":1,"run_id":"r","sink":"s","kind":"{kind}","rows":0,"parts":[]}}"#);
            assert_eq!(beside(&empty, &names), [false, false, false, true], "{kind}");
        }
    }
}
