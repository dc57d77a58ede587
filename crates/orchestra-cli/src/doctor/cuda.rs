//! What the doctor says about the libraries of CUDA: for each product where it was found and which version it is, or how to get it.

use orchestra_launch::library::{
    CUDA_LIBRARIES_VARIABLE, CudaLibraries, CudaLibrary, FoundLibrary, Need, Tried,
};

use super::Finding;

/// One finding for each product. A machine without a GPU (`required` is false) lacks nothing, so what it does not have is one finding.
pub fn findings(libraries: &CudaLibraries, required: bool) -> Vec<Finding> {
    let products = libraries.products();
    let is_whole = |parts: &[&CudaLibrary]| parts.iter().all(|l| l.found.is_some());
    let (whole, lacking): (Vec<_>, Vec<_>) = products.into_iter().partition(|(_, parts)| is_whole(parts));
    let mut findings: Vec<Finding> =
        whole.iter().filter_map(|(product, parts)| found_in_words(product, parts)).collect();
    if required {
        findings.extend(lacking.iter().map(|(product, parts)| lacking_in_words(product, parts)));
    } else if !lacking.is_empty() {
        let names: Vec<&str> = lacking.iter().map(|(product, _)| *product).collect();
        findings.push(Finding::good(
            "cuda",
            format!("not needed without a GPU; not found: {}", names.join(", ")),
        ));
    }
    // What to do is the same for all that is missing, so it is said once.
    if let Some(last) = findings.last_mut().filter(|_| !lacking.is_empty()) {
        last.help = Some(what_to_do(libraries));
    }
    if let Some(why) = &libraries.provider_problem {
        let help = "set ORT_DYLIB_PATH to the `libonnxruntime.so` of another GPU build, or nothing at all to have one fetched";
        findings.push(Finding {
            subject: "cuda provider",
            ok: !required,
            text: format!("it cannot be used: {why}"),
            help: Some(help.to_owned()),
        });
    }
    findings
}

fn what_to_do(libraries: &CudaLibraries) -> String {
    let mut lines: Vec<String> = libraries.how_to_get().into_iter().collect();
    lines.push(format!("or set {CUDA_LIBRARIES_VARIABLE} to the folder that holds what is missing"));
    lines.extend(libraries.tried.iter().map(Tried::to_string));
    lines.join("\n")
}

fn found_in_words(product: &'static str, parts: &[&CudaLibrary]) -> Option<Finding> {
    let FoundLibrary { path, version, origin } = parts.last()?.found.as_ref()?;
    Some(Finding::found(product, version.as_deref(), origin, path))
}

fn lacking_in_words(product: &'static str, parts: &[&CudaLibrary]) -> Finding {
    let missing: Vec<&str> = parts.iter().filter(|l| l.found.is_none()).map(|l| l.name).collect();
    let who = match parts.iter().any(|l| l.need == Need::Always) {
        true => "no model runs on a GPU without it",
        false => "models that need it do not run on a GPU",
    };
    let text = format!("not found: {}; {who}", missing.join(", "));
    Finding { subject: product, ok: false, text, help: None }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::library::LibraryOrigin;

    use super::*;

    fn library(name: &'static str, product: &'static str, need: Need, found: bool) -> CudaLibrary {
        let found = found.then(|| FoundLibrary {
            path: format!("/nv/{name}").into(),
            version: Some("13.2".into()),
            origin: LibraryOrigin::System,
        });
        CudaLibrary { name, product, need, package: product, found }
    }

    #[test]
    fn each_product_is_one_finding_and_what_to_do_is_said_once() {
        let libraries = CudaLibraries {
            libraries: vec![
                library("libcudart.so.13", "cudart", Need::Always, true),
                library("libcublasLt.so.13", "cublas", Need::Always, true),
                library("libcublas.so.13", "cublas", Need::Always, false),
                library("libcudnn.so.9", "cudnn", Need::SomeModels, false),
            ],
            ..CudaLibraries::default()
        };
        let findings = super::findings(&libraries, true);
        let texts: Vec<(bool, &str)> = findings.iter().map(|f| (f.ok, f.text.as_str())).collect();
        assert_eq!(
            texts,
            [
                (true, "13.2, system: /nv/libcudart.so.13"),
                (false, "not found: libcublas.so.13; no model runs on a GPU without it"),
                (false, "not found: libcudnn.so.9; models that need it do not run on a GPU"),
            ]
        );
        let help = findings[2].help.as_deref().unwrap();
        assert!(help.contains("python3 -m pip install cublas cudnn"), "{help}");
        assert_eq!(findings[1].help, None);
        let without_gpu = super::findings(&libraries, false);
        assert!(without_gpu.iter().all(|f| f.ok), "a machine without a GPU lacks nothing");
        assert_eq!(without_gpu[1].text, "not needed without a GPU; not found: cublas, cudnn");
        assert!(without_gpu[1].help.is_some());
    }
}
