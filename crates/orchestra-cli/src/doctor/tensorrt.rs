//! What the doctor says about TensorRT: where its libraries are, or how to get them. Nothing needs it that does not ask for it.

use std::path::Path;

use orchestra_launch::library::{
    CudaLibraries, Env, FoundLibrary, Need, TENSORRT_PROVIDER, find_tensorrt, how_to_get_tensorrt,
    tensorrt_provider,
};

use super::Finding;

const SUBJECT: &str = "tensorrt";

/// Looks for it; `runtime` is ONNX Runtime's library, where there is one.
pub fn finding(runtime: Option<&Path>) -> Finding {
    let has_provider = runtime.is_some_and(|runtime| tensorrt_provider(runtime).is_some());
    in_words(&find_tensorrt(&Env::from_process(), runtime), has_provider)
}

fn in_words(libraries: &CudaLibraries, has_provider: bool) -> Finding {
    let missing: Vec<&str> = libraries.missing(Need::Always).map(|library| library.name).collect();
    let first = libraries.libraries.iter().find_map(|library| library.found.as_ref());
    match first.filter(|_| missing.is_empty()) {
        Some(FoundLibrary { path, version, origin }) => {
            let mut finding = Finding::found(SUBJECT, version.as_deref(), origin, path);
            if !has_provider {
                finding.help =
                    Some(format!("of no use yet: no ONNX Runtime with `{TENSORRT_PROVIDER}` was found"));
            }
            finding
        }
        None => {
            let text = format!("not found: {}; only `provider = \"tensorrt\"` needs it", missing.join(", "));
            let mut finding = Finding::good(SUBJECT, text);
            finding.help = Some(how_to_get_tensorrt().to_owned());
            finding
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::library::{CudaLibrary, LibraryOrigin};

    use super::*;

    fn libraries(found: bool) -> CudaLibraries {
        let found = found.then(|| FoundLibrary {
            path: "/site/tensorrt_libs/libnvinfer.so.10".into(),
            version: Some("10.16.1.11".into()),
            origin: LibraryOrigin::Python,
        });
        let library = CudaLibrary {
            name: "libnvinfer.so.10",
            product: SUBJECT,
            need: Need::Always,
            package: "tensorrt-cu13-libs",
            found,
        };
        CudaLibraries { libraries: vec![library], ..CudaLibraries::default() }
    }

    #[test]
    fn it_is_found_somewhere_or_can_be_had_and_is_never_missed() {
        let found = in_words(&libraries(true), true);
        assert_eq!(found.text, "10.16.1.11, Python package: /site/tensorrt_libs/libnvinfer.so.10");
        assert_eq!((found.ok, found.help), (true, None));
        let useless = in_words(&libraries(true), false);
        assert!(useless.ok && useless.help.is_some_and(|help| help.contains(TENSORRT_PROVIDER)));
        let absent = in_words(&libraries(false), true);
        assert_eq!(absent.text, "not found: libnvinfer.so.10; only `provider = \"tensorrt\"` needs it");
        assert!(absent.ok && absent.help.is_some_and(|help| help.starts_with("python3 -m pip install")));
    }
}
