//! Reads the inputs that are kept for a check from their archive, `fuzz/corpus/CHECK.tar.gz`. It writes none: `scripts/fuzz.sh --pack` does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use flate2::bufread::GzDecoder;
use tar::Archive;

/// The bytes of each input that is kept for a check, by its name.
pub fn kept_inputs(check: &str) -> BTreeMap<String, Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fuzz/corpus/{check}.tar.gz"));
    let inputs = read(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    assert!(!inputs.is_empty(), "`{}` holds no input", path.display());
    inputs
}

fn read(path: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let packed = fs::read(path)?;
    let mut inputs = BTreeMap::new();
    for entry in Archive::new(GzDecoder::new(packed.as_slice())).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        inputs.insert(name, bytes);
    }
    Ok(inputs)
}
