//! Which library is taken when there are several, and what is said about those that are not.

use std::fs;
use std::path::Path;

use crate::common::{World, library_bytes, request, write_library};
use orchestra_onnx::library::{
    Flavor, Library, LibraryError, LibraryOrigin, LibraryRequest, Silent, Tried, find, find_or_fetch,
};

fn found(world: &World, flavor: Flavor) -> Library {
    let (library, tried) = find(&request(flavor), &world.env);
    library.unwrap_or_else(|| panic!("nothing found: {tried:?}"))
}

fn why_not(world: &World, flavor: Flavor) -> Vec<Tried> {
    let (library, tried) = find(&request(flavor), &world.env);
    assert_eq!(library, None);
    tried
}

fn answer(runtime: &Path) -> String {
    format!("{{\"pip\": false, \"runtime\": \"{}\"}}", runtime.display())
}

#[test]
fn each_place_hides_those_after_it() {
    let mut world = World::with_pip();
    let package = world.path("site/onnxruntime");
    let python = write_library(&package.join("capi/libonnxruntime.so.1.31.0"));
    world.add_python(&answer(&package));
    let taken = |world: &World| {
        let library = found(world, Flavor::Cpu);
        (library.origin, library.path)
    };
    assert_eq!(taken(&world), (LibraryOrigin::Python, python));

    let system = write_library(&world.path("system/libonnxruntime.so.1.31.2"));
    // An empty variable counts as unset.
    world.set("ORT_DYLIB_PATH", "");
    assert_eq!(taken(&world), (LibraryOrigin::System, system));

    let mut empty = world.env.clone();
    empty.system_folders.clear();
    fs::write(world.path("bin/answer"), "{\"pip\": true, \"runtime\": null}").unwrap();
    let fetched = find_or_fetch(&request(Flavor::Cpu), &empty, &mut Silent).unwrap();
    assert_eq!(fetched.origin, LibraryOrigin::Fetched);
    assert_eq!(taken(&world), (LibraryOrigin::Cache, world.cached(Flavor::Cpu)));

    let named = write_library(&world.path("named/libonnxruntime.so.1.32.0"));
    world.set("ORT_DYLIB_PATH", &named);
    assert_eq!(taken(&world), (LibraryOrigin::Env, named));

    let explicit = write_library(&world.path("work/own/libonnxruntime.so.1.33.0"));
    let request = LibraryRequest { flavor: Flavor::Cpu, explicit: Some("own".into()), offline: true };
    let library = find(&request, &world.env).0.unwrap();
    assert_eq!((library.origin, library.path), (LibraryOrigin::Explicit, explicit));
    assert_eq!(library.version.as_deref(), Some("1.33.0"));
}

#[test]
fn a_path_that_the_user_named_is_used_or_is_an_error() {
    let mut world = World::with_pip();
    write_library(&world.path("system/libonnxruntime.so.1.31.2"));
    let text = world.path("work/text.so");
    fs::write(&text, "not a library at all, but long enough to be one").unwrap();
    let old = write_library(&world.path("old/libonnxruntime.so.1.20.1"));
    for (path, why) in [
        (world.path("nowhere.so"), "there is no such file"),
        (text, "not a shared library"),
        (old, "version 1.20.1, but 1.31 or newer"),
        (world.path("work"), "holds no `libonnxruntime.so`"),
    ] {
        world.set("ORT_DYLIB_PATH", &path);
        let error = find_or_fetch(&request(Flavor::Cpu), &world.env, &mut Silent).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, LibraryError::Unusable { .. }), "{message}");
        assert!(message.contains(&format!("`{}`", path.display())), "{message}");
        assert!(message.contains("ORT_DYLIB_PATH") && message.contains(why), "{message}");
        let tried = why_not(&world, Flavor::Cpu);
        assert_eq!((tried.len(), tried[0].origin), (1, LibraryOrigin::Env));
    }
    assert_eq!(world.downloads(), 0);
}

#[test]
fn a_bare_name_is_looked_for_as_the_dynamic_linker_does() {
    let mut world = World::new();
    let library = write_library(&world.path("system/libonnxruntime.so"));
    world.set("ORT_DYLIB_PATH", "libonnxruntime.so");
    let taken = found(&world, Flavor::Cpu);
    assert_eq!((taken.origin, taken.path, taken.version), (LibraryOrigin::Env, library, None));
}

#[test]
fn the_linkers_own_path_comes_before_its_folders() {
    let mut world = World::new();
    write_library(&world.path("system/libonnxruntime.so.1.31.2"));
    let first = write_library(&world.path("mine/libonnxruntime.so.1.31.1"));
    world.set(
        "LD_LIBRARY_PATH",
        format!("{}:{}", world.path("missing").display(), world.path("mine").display()),
    );
    assert_eq!(found(&world, Flavor::Cpu).path, first);
}

#[test]
fn the_newest_library_of_a_folder_is_taken_and_links_are_followed() {
    let world = World::new();
    write_library(&world.path("system/libonnxruntime.so.1.9.0"));
    write_library(&world.path("system/libonnxruntime.so.1.31.1"));
    let newest = write_library(&world.path("elsewhere/libonnxruntime.so.1.100.0"));
    std::os::unix::fs::symlink(&newest, world.path("system/libonnxruntime.so.1.100.0")).unwrap();
    let taken = found(&world, Flavor::Cpu);
    assert_eq!((taken.path, taken.version.as_deref()), (newest, Some("1.100.0")));
}

#[test]
fn a_version_that_the_name_hides_is_read_from_the_symbols() {
    let world = World::new();
    let path = world.path("system/libonnxruntime.so");
    fs::write(&path, library_bytes(b"\0VERS_1.31.4\0")).unwrap();
    assert_eq!(found(&world, Flavor::Cpu).version.as_deref(), Some("1.31.4"));
    fs::write(&path, library_bytes(b"\0VERS_1.17.3\0")).unwrap();
    let tried = why_not(&world, Flavor::Cpu);
    let system = tried.iter().find(|t| t.origin == LibraryOrigin::System).unwrap();
    assert_eq!(system.place, world.path("system").display().to_string());
    assert!(system.why.contains("1.17.3") && system.why.contains("1.31 or newer"), "{system}");
}

#[test]
fn for_a_gpu_only_a_library_with_its_cuda_provider_counts() {
    let mut world = World::new();
    write_library(&world.path("system/libonnxruntime.so.1.31.2"));
    let tried = why_not(&world, Flavor::Gpu);
    assert!(
        tried.iter().any(|t| t.why.contains("`libonnxruntime_providers_cuda.so` is not beside it")),
        "{tried:?}"
    );
    let package = world.path("site/onnxruntime");
    let python = write_library(&package.join("capi/libonnxruntime.so.1.31.1"));
    write_library(&package.join("capi/libonnxruntime_providers_cuda.so"));
    world.add_python(&answer(&package));
    assert_eq!(found(&world, Flavor::Gpu).path, python);
    assert_eq!(found(&world, Flavor::Cpu).origin, LibraryOrigin::System);
}

#[test]
fn the_virtual_environment_is_asked_before_the_path() {
    let mut world = World::new();
    let (first, second) = (world.path("a/onnxruntime"), world.path("b/onnxruntime"));
    let library = write_library(&first.join("capi/libonnxruntime.so.1.31.1"));
    write_library(&second.join("capi/libonnxruntime.so.1.31.1"));
    world.add_python(&answer(&second));
    fs::create_dir_all(world.path("venv/bin")).unwrap();
    crate::common::write_program(
        &world.path("venv/bin/python3"),
        &format!("#!/bin/sh\necho 'a line of some start-up file'\necho '{}'\n", answer(&first)),
    );
    world.set("VIRTUAL_ENV", world.path("venv"));
    assert_eq!(found(&world, Flavor::Cpu).path, library);
}

#[test]
fn a_broken_python_is_named_with_what_it_says() {
    let mut world = World::new();
    world.add_python("");
    crate::common::write_program(&world.path("bin/python3"), "#!/bin/sh\necho 'no encodings' >&2\nexit 3\n");
    let tried = why_not(&world, Flavor::Cpu);
    let python = tried.iter().find(|t| t.origin == LibraryOrigin::Python).unwrap();
    assert!(python.why.contains("no encodings") && python.why.contains('3'), "{python}");
}
