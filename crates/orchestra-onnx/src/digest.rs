//! The digest that says which model file a plan was made for. It reads the file and nothing that the file refers to.

use std::fs::File;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

/// SHA-256 of the file at `path`: what `ModelPlan::file_digest` and `OnnxSpec::digest` hold. External data files do not count: they have digests of their own.
pub fn model_digest(path: &Path) -> io::Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().into())
}

/// The first 12 hexadecimal digits: enough to tell two digests apart in a message.
pub fn short(digest: &[u8; 32]) -> String {
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_sha_256_of_the_bytes() {
        let path = std::env::temp_dir().join(format!("orchestra-digest-{}", std::process::id()));
        std::fs::write(&path, b"abc").unwrap();
        let digest = model_digest(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(short(&digest), "ba7816bf8f01");
        assert_eq!(digest[31], 0xad);
        assert!(model_digest(&path).is_err());
    }
}
