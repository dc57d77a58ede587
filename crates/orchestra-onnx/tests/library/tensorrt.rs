//! Where the libraries of TensorRT are found, and what is said where they are not.

use std::fs;
use std::path::Path;

use crate::common::{World, write_library};
use orchestra_onnx::library::{
    CUDA_LIBRARIES_VARIABLE, CudaLibraries, Flavor, Library, LibraryError, LibraryOrigin, TENSORRT_PROVIDER,
    add_tensorrt, find_tensorrt,
};

const LIBRARIES: [&str; 3] = ["libnvinfer.so.10", "libnvonnxparser.so.10", "libnvinfer_plugin.so.10"];

fn fill(folder: &Path) {
    LIBRARIES.iter().for_each(|name| drop(write_library(&folder.join(name))));
}

/// ONNX Runtime in a folder of its own, with or without the provider.
fn runtime(world: &World, with_provider: bool) -> Library {
    let path = write_library(&world.path("ort/libonnxruntime.so.1.31.7"));
    if with_provider {
        write_library(&world.path("ort").join(TENSORRT_PROVIDER));
    }
    Library {
        path,
        version: None,
        origin: LibraryOrigin::Env,
        flavor: Flavor::Gpu,
        cuda: CudaLibraries::default(),
    }
}

#[test]
fn a_pythons_package_is_found_beside_its_nvidia_packages_with_its_version() {
    let mut world = World::new();
    let site = world.path("site");
    fill(&site.join("tensorrt_libs"));
    fs::create_dir_all(site.join("nvidia/cu13/lib")).unwrap();
    fs::create_dir_all(site.join("tensorrt_cu13_libs-10.16.1.11.dist-info")).unwrap();
    let nvidia = site.join("nvidia");
    world
        .add_python(&format!("{{\"pip\": true, \"runtime\": null, \"nvidia\": [\"{}\"]}}", nvidia.display()));
    let found = find_tensorrt(&world.env, None);
    let first = found.libraries[0].found.clone().unwrap();
    assert_eq!((first.version.as_deref(), first.origin), (Some("10.16.1.11"), LibraryOrigin::Python));
    assert_eq!(found.preload(), LIBRARIES.map(|name| site.join("tensorrt_libs").join(name)));
}

#[test]
fn the_folder_that_is_named_comes_before_the_package_beside_the_runtime_and_the_system() {
    let mut world = World::new();
    let package = world.path("site/onnxruntime/capi/libonnxruntime.so.1.31.7");
    fill(&world.path("system"));
    assert_eq!(find_tensorrt(&world.env, Some(&package)).preload()[0], world.path("system/libnvinfer.so.10"));
    fill(&world.path("site/tensorrt_libs"));
    fs::remove_file(world.path("system/libnvonnxparser.so.10")).unwrap();
    // One place that has all goes before an earlier one that lacks some.
    let found = find_tensorrt(&world.env, Some(&package));
    assert_eq!(found.preload(), LIBRARIES.map(|name| world.path("site/tensorrt_libs").join(name)));
    fill(&world.path("named/lib"));
    world.set(CUDA_LIBRARIES_VARIABLE, world.path("named"));
    let found = find_tensorrt(&world.env, Some(&package));
    assert_eq!(found.preload(), LIBRARIES.map(|name| world.path("named/lib").join(name)));
}

#[test]
fn what_is_missing_is_named_with_how_to_get_it() {
    let world = World::new();
    let error = add_tensorrt(runtime(&world, true), &world.env).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LibraryError::NoTensorRt { .. }), "{text}");
    assert!(text.contains("`libnvinfer.so.10`, `libnvonnxparser.so.10` are nowhere"), "{text}");
    // Newer packages hold libraries that the provider does not ask for.
    assert!(text.contains("python3 -m pip install 'tensorrt-cu13-libs<11'"), "{text}");
    assert!(text.contains(CUDA_LIBRARIES_VARIABLE) && text.contains("on CUDA alone"), "{text}");
}

#[test]
fn a_runtime_without_the_provider_is_said_to_be_one() {
    let world = World::new();
    fill(&world.path("system"));
    let error = add_tensorrt(runtime(&world, false), &world.env).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LibraryError::NoTensorRtProvider { .. }), "{text}");
    assert!(text.contains(TENSORRT_PROVIDER) && text.contains("libonnxruntime.so.1.31.7"), "{text}");
}

#[test]
fn its_libraries_are_loaded_after_those_of_cuda_and_plugins_may_be_missing() {
    let world = World::new();
    fill(&world.path("system"));
    fs::remove_file(world.path("system/libnvinfer_plugin.so.10")).unwrap();
    let mut library = runtime(&world, true);
    let cudart = orchestra_onnx::library::CudaLibrary {
        name: "libcudart.so.13",
        product: "cudart",
        need: orchestra_onnx::library::Need::Always,
        package: "nvidia-cuda-runtime",
        found: find_tensorrt(&world.env, None).libraries[0].found.clone(),
    };
    library.cuda.libraries.push(cudart);
    let ready = add_tensorrt(library, &world.env).unwrap();
    let names: Vec<_> = ready.cuda.libraries.iter().map(|l| l.name).collect();
    assert_eq!(names, ["libcudart.so.13", "libnvinfer.so.10", "libnvonnxparser.so.10"]);
    assert_eq!(ready.cuda.preload().len(), 3);
}
