//! The wheels that may be fetched, each with its digest. Nothing that is not in this table is ever unpacked.

use crate::library::found::Flavor;

/// A wheel that is known byte for byte. The library inside does not depend on Python, so one wheel per package and processor
/// serves every user, whatever Python they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// What its library can do.
    pub flavor: Flavor,
    /// The processor, as `std::env::consts::ARCH` names it.
    pub arch: String,
    /// The package's name, as pip knows it.
    pub package: String,
    /// Its version.
    pub version: String,
    /// The platform tag of the wheel.
    pub platform: String,
    /// SHA-256 of the wheel, in lowercase hexadecimal.
    pub sha256: String,
    /// Size of the wheel.
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

/// All pinned wheels.
#[must_use]
pub fn pinned() -> Vec<Pin> {
    vec![
        Pin {
            flavor: Flavor::Cpu,
            arch: "x86_64".into(),
            package: "onnxruntime".into(),
            version: VERSION.into(),
            platform: "manylinux_2_28_x86_64".into(),
            sha256: "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536".into(),
            wheel_bytes: 23_760_988,
            unpacked_bytes: 30_000_000,
        },
        Pin {
            flavor: Flavor::Cpu,
            arch: "aarch64".into(),
            package: "onnxruntime".into(),
            version: VERSION.into(),
            platform: "manylinux_2_28_aarch64".into(),
            sha256: "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc".into(),
            wheel_bytes: 21420803,
            unpacked_bytes: 26_000_000,
        },
        Pin {
            flavor: Flavor::Gpu,
            arch: "x86_64".into(),
            package: "onnxruntime-gpu".into(),
            version: VERSION.into(),
            platform: "manylinux_2_28_x86_64".into(),
            sha256: "05d548956197b9d01f59b625de740e0d6be3593f874e241a12dc0362650ecdf7".into(),
            wheel_bytes: 255_569_273,
            unpacked_bytes: 314_000_000,
        },
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
