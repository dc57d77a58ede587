//! Where the libraries of CUDA are found, in which order they are loaded, and what is said about those that are nowhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use orchestra_core::kernel::Compiler;

use crate::common::{World, package_files, request, write_library};
use orchestra_onnx::library::{
    CUDA_LIBRARIES_VARIABLE, CudaGeneration, CudaLibraries, Flavor, FoundLibrary, LibraryError,
    LibraryOrigin, Need, Silent, find_cuda, find_nvrtc, find_or_fetch_with_cuda, look_for_cuda,
};

const CUDA: [&str; 6] = [
    "libcudart.so.13",
    "libnvrtc.so.13",
    "libcublasLt.so.13",
    "libcublas.so.13",
    "libcurand.so.10",
    "libcufft.so.12",
];
const CUDNN: [&str; 8] = [
    "libcudnn_graph.so.9",
    "libcudnn_ops.so.9",
    "libcudnn_heuristic.so.9",
    "libcudnn_cnn.so.9",
    "libcudnn_adv.so.9",
    "libcudnn_engines_precompiled.so.9",
    "libcudnn_engines_runtime_compiled.so.9",
    "libcudnn.so.9",
];

fn fill(folder: &Path, names: &[&str]) {
    for name in names {
        write_library(&folder.join(name));
    }
}

/// All but curand in the packages of the Python of this world, as torch brings them.
fn python_packages(world: &mut World) -> PathBuf {
    let site = world.path("site");
    fill(
        &site.join("nvidia/cu13/lib"),
        &CUDA.map(|n| if n == "libcurand.so.10" { "libother.so" } else { n }),
    );
    fill(&site.join("nvidia/cudnn/lib"), &CUDNN);
    fs::create_dir_all(site.join("nvidia_cublas-13.4.1.3.dist-info")).unwrap();
    fs::create_dir_all(site.join("nvidia_cudnn_cu13-9.26.0.51.dist-info")).unwrap();
    world.add_python(&format!(
        "{{\"pip\": true, \"runtime\": null, \"nvidia\": [\"{}\"]}}",
        site.join("nvidia").display()
    ));
    site.join("nvidia")
}

fn one(libraries: &CudaLibraries, name: &str) -> FoundLibrary {
    libraries.libraries.iter().find(|l| l.name == name).unwrap().found.clone().unwrap()
}

fn names(libraries: &CudaLibraries) -> Vec<String> {
    let name = |p: PathBuf| p.file_name().unwrap().to_str().unwrap().to_owned();
    libraries.preload().into_iter().map(name).collect()
}

#[test]
fn nothing_anywhere_is_a_list_of_what_is_missing_and_how_to_get_it() {
    let world = World::new();
    let none = find_cuda(&world.env, None);
    assert_eq!(none.preload(), [] as [PathBuf; 0]);
    let always: Vec<_> = none.missing(Need::Always).map(|l| l.name).collect();
    assert_eq!(always, ["libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10"]);
    assert_eq!(none.missing(Need::SomeModels).count(), 10);
    let help = none.how_to_get().unwrap();
    assert_eq!(help.matches("nvidia-cublas").count(), 1, "{help}");
    assert_eq!(help.matches("nvidia-cudnn-cu13").count(), 1, "{help}");
}

#[test]
fn pythons_packages_are_found_with_their_versions_and_a_library_that_they_lack_comes_from_the_system() {
    let mut world = World::new();
    let nvidia = python_packages(&mut world);
    fill(&world.path("system"), &["libcurand.so.10"]);
    let found = find_cuda(&world.env, None);
    assert_eq!(found.how_to_get(), None, "{:?}", found.tried);
    let cublas = one(&found, "libcublas.so.13");
    assert_eq!(cublas.path, nvidia.join("cu13/lib/libcublas.so.13"));
    assert_eq!((cublas.version.as_deref(), cublas.origin), (Some("13.4.1.3"), LibraryOrigin::Python));
    assert_eq!(one(&found, "libcudnn.so.9").version.as_deref(), Some("9.26.0.51"));
    assert_eq!(one(&found, "libcudart.so.13").version, None);
    assert_eq!(one(&found, "libcurand.so.10").origin, LibraryOrigin::System);
}

#[test]
fn nvrtc_is_found_without_the_rest_newest_first_and_what_to_do_is_said_where_it_is_nowhere() {
    let mut world = World::new();
    let why = find_nvrtc(&world.env).unwrap_err();
    assert!(why.contains("pip install nvidia-cuda-nvrtc") && why.contains(CUDA_LIBRARIES_VARIABLE), "{why}");
    let nvidia = python_packages(&mut world);
    let compiler = |release, path| Compiler { release, path };
    let of_python = compiler(13, nvidia.join("cu13/lib/libnvrtc.so.13"));
    assert_eq!(find_nvrtc(&world.env), Ok(vec![of_python]));
    // What lies nearer hides it, and of two releases a worker takes the one that its driver runs.
    fill(&world.path("own"), &["libnvrtc.so.12"]);
    fill(&world.path("system"), &["libnvrtc.so.13"]);
    world.set(CUDA_LIBRARIES_VARIABLE, world.path("own"));
    let of_system = compiler(13, world.path("system/libnvrtc.so.13"));
    let own = compiler(12, world.path("own/libnvrtc.so.12"));
    assert_eq!(find_nvrtc(&world.env), Ok(vec![of_system, own]));
}

#[test]
fn a_product_that_only_some_releases_have_is_found_wherever_it_lies() {
    let mut world = World::new();
    fill(&world.path("ld"), &["libcudart.so.13"]);
    world.set("LD_LIBRARY_PATH", world.path("ld"));
    fill(&world.path("system"), &["libnvJitLink.so.13"]);
    assert_eq!(one(&find_cuda(&world.env, None), "libnvJitLink.so.13").origin, LibraryOrigin::System);
}

#[test]
fn libraries_are_loaded_after_those_that_they_need() {
    let mut world = World::new();
    python_packages(&mut world);
    fill(&world.path("site/nvidia/cudnn/lib"), &["libcudnn_ext.so.9"]);
    let order = names(&find_cuda(&world.env, None));
    let at = |name: &str| order.iter().position(|n| n == name).unwrap_or_else(|| panic!("{name}: {order:?}"));
    assert!(at("libcublasLt.so.13") < at("libcublas.so.13"));
    assert!(at("libcublas.so.13") < at("libcudnn_graph.so.9"));
    for part in ["ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled", "ext"] {
        let part = format!("libcudnn_{part}.so.9");
        assert!(at("libcudnn_graph.so.9") < at(&part) && at(&part) < at("libcudnn.so.9"), "{order:?}");
    }
}

#[test]
fn each_kind_of_place_hides_those_after_it_and_a_product_is_not_mixed_of_two_places() {
    let mut world = World::new();
    python_packages(&mut world);
    let runtime = write_library(&world.path("site/onnxruntime/capi/libonnxruntime.so.1.31.1"));
    let origin = |world: &World, name: &str| one(&find_cuda(&world.env, Some(&runtime)), name).origin;
    assert_eq!(origin(&world, "libcublas.so.13"), LibraryOrigin::BesideRuntime);

    world.set("LD_LIBRARY_PATH", world.path("ld"));
    fill(&world.path("ld"), &CUDA);
    assert_eq!(origin(&world, "libcublas.so.13"), LibraryOrigin::LoaderPath);
    assert_eq!(origin(&world, "libcudnn.so.9"), LibraryOrigin::BesideRuntime);

    // Half of cuBLAS, in a folder that comes first, is not combined with the other half from elsewhere.
    let own = world.path("own");
    world.set(CUDA_LIBRARIES_VARIABLE, &own);
    fill(&own.join("lib64"), &["libcublas.so.13", "libcudart.so.13"]);
    assert_eq!(origin(&world, "libcudart.so.13"), LibraryOrigin::Named);
    assert_eq!(origin(&world, "libcublas.so.13"), LibraryOrigin::LoaderPath);
    fill(&own.join("cublas/lib"), &["libcublasLt.so.13"]);
    assert_eq!(origin(&world, "libcublas.so.13"), LibraryOrigin::Named);
    assert_eq!(origin(&world, "libcublasLt.so.13"), LibraryOrigin::Named);
}

#[test]
fn a_full_name_behind_a_link_tells_the_version_and_the_link_is_what_is_loaded() {
    let mut world = World::new();
    write_library(&world.path("ld/libcudart.so.13.2.75"));
    std::os::unix::fs::symlink("libcudart.so.13.2.75", world.path("ld/libcudart.so.13")).unwrap();
    world.set("LD_LIBRARY_PATH", world.path("ld"));
    let cudart = one(&find_cuda(&world.env, None), "libcudart.so.13");
    assert_eq!(cudart.version.as_deref(), Some("13.2.75"));
    assert_eq!(cudart.path, world.path("ld/libcudart.so.13"));
}

#[test]
fn what_is_no_library_is_passed_over_and_named_once() {
    let mut world = World::new();
    fill(&world.path("system"), &["libcudart.so.13"]);
    fs::create_dir(world.path("ld")).unwrap();
    fs::write(world.path("ld/libcudart.so.13"), "a text").unwrap();
    world.set("LD_LIBRARY_PATH", world.path("ld"));
    world.set(CUDA_LIBRARIES_VARIABLE, world.path("not-there"));
    let found = find_cuda(&world.env, None);
    assert_eq!(one(&found, "libcudart.so.13").origin, LibraryOrigin::System);
    let notes: Vec<String> = found.tried.iter().map(ToString::to_string).collect();
    let about = |what: &str| notes.iter().filter(|n| n.contains(what)).count();
    assert_eq!(about("ELF"), 1, "{notes:?}");
    assert_eq!(about("it is no folder"), 1, "{notes:?}");
}

/// A library that is really linked against these names.
fn link(library: &Path, needed: &[&str]) -> PathBuf {
    let stubs = tempfile::tempdir().unwrap();
    fs::write(stubs.path().join("empty.c"), "").unwrap();
    let cc = |output: &str, soname: &str, against: &[&str]| {
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", "-o", output, "empty.c"]);
        command.arg(format!("-Wl,-soname,{soname}")).args(against).current_dir(stubs.path());
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    for name in needed {
        cc(name, name, &[]);
    }
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let paths: Vec<String> = needed.iter().map(|name| format!("./{name}")).collect();
    let name = library.file_name().unwrap().to_str().unwrap();
    cc(library.to_str().unwrap(), name, &paths.iter().map(String::as_str).collect::<Vec<_>>());
    library.to_owned()
}

const OF_12: [&str; 6] = [
    "libcudart.so.12",
    "libnvrtc.so.12",
    "libcublasLt.so.12",
    "libcublas.so.12",
    "libcurand.so.10",
    "libcufft.so.11",
];

/// A GPU build of ONNX Runtime that is linked against these, where `ORT_DYLIB_PATH` says.
fn runtime_that_needs(world: &mut World, needed: &[&str]) -> PathBuf {
    let runtime = write_library(&world.path("ort/libonnxruntime.so.1.31.1"));
    link(&world.path("ort/libonnxruntime_providers_cuda.so"), needed);
    world.set("ORT_DYLIB_PATH", &runtime);
    runtime
}

#[test]
fn a_build_for_cuda_12_gets_the_libraries_of_cuda_12() {
    let mut world = World::new();
    let runtime = runtime_that_needs(
        &mut world,
        &[
            "libcublasLt.so.12",
            "libcublas.so.12",
            "libcurand.so.10",
            "libcufft.so.11",
            "libcudart.so.12",
            "libcudnn.so.9",
        ],
    );
    fill(&world.path("system"), &CUDA);
    let nothing = look_for_cuda(&request(Flavor::Gpu), &world.env).unwrap_err().to_string();
    for part in ["`libcudart.so.12`", "built for CUDA 12", "nvidia-cublas-cu12", "`libcudnn.so.9`"] {
        assert!(nothing.contains(part), "{nothing}");
    }

    // Those of both generations, side by side, as a system may have them.
    fill(&world.path("system"), &OF_12);
    fill(&world.path("root/usr/local/cuda-12/lib64"), &CUDNN);
    let found = look_for_cuda(&request(Flavor::Gpu), &world.env).unwrap();
    assert_eq!(found.generation, CudaGeneration::Twelve);
    assert_eq!(names(&found)[..OF_12.len()], OF_12);
    // It is linked against cuDNN, so no model at all runs without.
    let need = |name: &str| found.libraries.iter().find(|l| l.name == name).unwrap().need;
    assert_eq!((need("libcudnn.so.9"), need("libcufft.so.11")), (Need::Always, Need::Always));
    assert_eq!((need("libcudnn_ops.so.9"), need("libnvrtc.so.12")), (Need::SomeModels, Need::SomeModels));
    let library = find_or_fetch_with_cuda(&request(Flavor::Gpu), &world.env, &mut Silent).unwrap();
    assert_eq!((library.path, library.cuda), (runtime, found));
}

#[test]
fn cudnn_of_another_generation_is_passed_over() {
    let mut world = World::new();
    runtime_that_needs(&mut world, &["libcudart.so.13", "libcublas.so.13"]);
    fill(&world.path("system"), &CUDA);
    fill(&world.path("system"), &CUDNN);
    let other = link(&world.path("ld/libcudnn_ops.so.9"), &["libcublasLt.so.12"]);
    fill(&world.path("ld"), &CUDNN.map(|n| if n == "libcudnn_ops.so.9" { "libother.so" } else { n }));
    world.set("LD_LIBRARY_PATH", world.path("ld"));
    let found = look_for_cuda(&request(Flavor::Gpu), &world.env).unwrap();
    assert_eq!(one(&found, "libcudnn_ops.so.9").origin, LibraryOrigin::System);
    assert_eq!(one(&found, "libcudnn.so.9").origin, LibraryOrigin::System, "not mixed of two places");
    let note = found.tried.iter().find(|t| Path::new(&t.place) == other).unwrap().to_string();
    assert!(note.contains("`libcublasLt.so.12`") && note.contains("CUDA 13"), "{note}");
}

#[test]
fn cudnn_from_the_package_of_another_generation_is_passed_over() {
    let mut world = World::new();
    python_packages(&mut world);
    let origin = |world: &World| one(&find_cuda(&world.env, None), "libcudnn.so.9").origin;
    assert_eq!(origin(&world), LibraryOrigin::Python);
    // Both releases in one place: it is unknown which of them owns a file.
    let site = world.path("site");
    fs::create_dir(site.join("nvidia_cudnn_cu12-9.26.0.51.dist-info")).unwrap();
    assert_eq!(origin(&world), LibraryOrigin::Python);
    fs::remove_dir(site.join("nvidia_cudnn_cu13-9.26.0.51.dist-info")).unwrap();
    let found = find_cuda(&world.env, None);
    assert!(found.missing(Need::SomeModels).any(|l| l.name == "libcudnn.so.9"), "{found:?}");
    let text = found.tried.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("package `nvidia-cudnn-cu12`, which is not for CUDA 13"), "{text}");
}

#[test]
fn a_build_for_an_unknown_cuda_or_a_provider_that_is_no_library_is_an_error_that_names_it() {
    let mut world = World::new();
    let runtime = runtime_that_needs(&mut world, &["libcublas.so.14", "libcudart.so.14", "libc.so.6"]);
    let error = look_for_cuda(&request(Flavor::Gpu), &world.env).unwrap_err();
    assert!(matches!(error, LibraryError::Provider { .. }), "{error}");
    let text = error.to_string();
    for part in [
        "`libcublas.so.14`, `libcudart.so.14`,",
        "CUDA 12 and of CUDA 13",
        "providers_cuda.so`",
        "ORT_DYLIB_PATH",
    ] {
        assert!(text.contains(part), "{text}");
    }
    fs::write(runtime.with_file_name("libonnxruntime_providers_cuda.so"), "version https://git-lfs").unwrap();
    let text = look_for_cuda(&request(Flavor::Gpu), &world.env).unwrap_err().to_string();
    assert!(text.contains("not a shared library"), "{text}");
}

#[test]
fn without_a_gpu_build_and_a_way_to_fetch_one_there_is_no_cuda() {
    let mut world = World::with_pip();
    fill(&world.path("system"), &CUDA);
    let why = |world: &World| look_for_cuda(&request(Flavor::Gpu), &world.env).unwrap_err().to_string();
    // There is no build for this processor.
    assert!(why(&world).contains("no ONNX Runtime for GPU can be fetched"), "{}", why(&world));
    world.add_package(Flavor::Gpu, &package_files(Flavor::Gpu));
    let found = look_for_cuda(&request(Flavor::Gpu), &world.env).unwrap();
    assert_eq!((found.generation, world.downloads()), (CudaGeneration::Thirteen, 0));
    let offline = orchestra_onnx::library::LibraryRequest { offline: true, ..request(Flavor::Gpu) };
    let text = look_for_cuda(&offline, &world.env).unwrap_err().to_string();
    assert!(text.contains("offline none is fetched"), "{text}");
    world.add_python("{\"pip\": false, \"runtime\": null}");
    assert!(why(&world).contains("has no pip"), "{}", why(&world));
    // One that the user named is used or an error, and this one is for the CPU only.
    world.set("ORT_DYLIB_PATH", write_library(&world.path("cpu/libonnxruntime.so.1.31.1")));
    assert!(why(&world).contains("built for the CPU only"), "{}", why(&world));
}

#[test]
fn the_drivers_library_is_seen_where_the_system_looks() {
    let world = World::new();
    assert!(!find_cuda(&world.env, None).has_driver_library);
    write_library(&world.path("system/libcuda.so.1"));
    assert!(find_cuda(&world.env, None).has_driver_library);
}

/// The linker itself judges: with these files loaded by full path, a program that is linked against a name alone finds it.
#[test]
fn a_library_that_was_loaded_by_full_path_is_found_by_its_name_without_a_search_path() {
    let mut world = World::new();
    let folder = world.path("own");
    fs::create_dir(&folder).unwrap();
    let cc = |arguments: &[&str]| {
        let ended = Command::new("cc").args(arguments).current_dir(&folder).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    fs::write(folder.join("lt.c"), "int lt(void) { return 41; }").unwrap();
    fs::write(folder.join("blas.c"), "int lt(void); int blas(void) { return lt() + 1; }").unwrap();
    cc(&["-shared", "-fPIC", "-Wl,-soname,libcublasLt.so.13", "-o", "libcublasLt.so.13", "lt.c"]);
    cc(&[
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcublas.so.13",
        "-o",
        "libcublas.so.13",
        "blas.c",
        "./libcublasLt.so.13",
    ]);
    // The name alone, as in NVIDIA's libraries: nothing says where it is.
    world.set(CUDA_LIBRARIES_VARIABLE, &folder);
    let found = find_cuda(&world.env, None);
    let order = names(&found);
    assert_eq!(order, ["libcublasLt.so.13", "libcublas.so.13"]);
    let program =
        "import ctypes, sys\nfor path in sys.argv[1:]: last = ctypes.CDLL(path)\nprint(last.blas())";
    let load =
        |paths: &[PathBuf]| Command::new("python3").args(["-c", program]).args(paths).output().unwrap();
    let in_order = load(&found.preload());
    assert_eq!(String::from_utf8_lossy(&in_order.stdout).trim(), "42", "{in_order:?}");
    let alone = load(&found.preload()[1..]);
    assert!(String::from_utf8_lossy(&alone.stderr).contains("libcublasLt.so.13"), "{alone:?}");
}

#[test]
fn nothing_is_fetched_for_a_gpu_whose_libraries_are_missing() {
    let mut world = World::with_pip();
    world.add_package(Flavor::Gpu, &package_files(Flavor::Gpu));
    let error = find_or_fetch_with_cuda(&request(Flavor::Gpu), &world.env, &mut Silent).unwrap_err();
    assert!(matches!(error, LibraryError::NoCuda { .. }), "{error}");
    let text = error.to_string();
    for part in [
        "`libcudart.so.13`",
        "`libcublas.so.13`",
        "built for CUDA 13",
        "pip install nvidia-cuda-runtime",
        CUDA_LIBRARIES_VARIABLE,
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(world.downloads(), 0);

    fill(&world.path("system"), &CUDA);
    let library = find_or_fetch_with_cuda(&request(Flavor::Gpu), &world.env, &mut Silent).unwrap();
    assert_eq!(library.cuda.preload().len(), CUDA.len());
    assert_eq!(library.cuda.missing(Need::SomeModels).count(), CUDNN.len());
    assert_eq!(world.downloads(), 1);
}
