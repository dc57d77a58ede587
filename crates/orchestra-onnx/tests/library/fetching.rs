//! What a fetch does and refuses, with a pip that is a shell script.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{Notes, VERSION, World, package_files, request};
use orchestra_onnx::library::{
    Flavor, LibraryError, LibraryOrigin, LibraryRequest, Progress, Silent, find, find_or_fetch,
};

fn fetch(world: &World, flavor: Flavor) -> Result<orchestra_onnx::library::Library, LibraryError> {
    find_or_fetch(&request(flavor), &world.env, &mut Silent)
}

/// A failed fetch says why and leaves nothing that could be taken for a library.
fn refused(world: &World) -> LibraryError {
    let error = fetch(world, Flavor::Cpu).unwrap_err();
    assert_eq!(world.cache_entries(), [] as [&str; 0], "{error}");
    assert_eq!(find(&request(Flavor::Cpu), &world.env).0, None);
    error
}

#[test]
fn a_library_is_fetched_once_and_found_ever_after() {
    let world = World::with_pip();
    let mut notes = Notes::new(|_| {});
    let library = find_or_fetch(&request(Flavor::Cpu), &world.env, &mut notes).unwrap();
    assert_eq!((library.origin, &library.path), (LibraryOrigin::Fetched, &world.cached(Flavor::Cpu)));
    assert_eq!(library.version.as_deref(), Some(VERSION));
    assert!(notes.lines[0].starts_with(&format!("fetching onnxruntime {VERSION}")), "{:?}", notes.lines);
    assert!(notes.lines.iter().any(|line| line == "pip: WARNING: this is pip"));
    let size = world.env.pins[0].wheel_bytes;
    assert_eq!(notes.last_bytes, Some((size, Some(size))));
    let again = fetch(&world, Flavor::Cpu).unwrap();
    assert_eq!((again.origin, &again.path), (LibraryOrigin::Cache, &library.path));
    assert_eq!(world.downloads(), 1);
    assert_eq!(world.cache_entries(), [format!("onnxruntime-{VERSION}")]);
}

#[test]
fn only_what_is_needed_is_kept() {
    let mut world = World::with_pip();
    world.add_package(Flavor::Gpu, &package_files(Flavor::Gpu));
    let library = fetch(&world, Flavor::Gpu).unwrap();
    let mut names: Vec<_> = fs::read_dir(library.path.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "LICENSE",
        "libonnxruntime.so.1.31.7",
        "libonnxruntime_providers_cuda.so",
        "libonnxruntime_providers_shared.so",
        "libonnxruntime_providers_tensorrt.so",
        "orchestra.json",
    ];
    assert_eq!(names, expected);
    assert_eq!(fs::read(&library.path).unwrap(), package_files(Flavor::Gpu)[1].1);
}

#[test]
fn a_package_that_lacks_the_library_or_the_provider_of_gpus_is_refused() {
    let mut world = World::new();
    world.add_python("{\"pip\": true, \"runtime\": null}");
    world.add_package(Flavor::Cpu, &[("onnxruntime/capi/other.so", vec![])]);
    let error = refused(&world);
    assert!(matches!(error, LibraryError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("holds no `libonnxruntime.so`"), "{error}");
    // As one for the CPU under the name of the other.
    world.add_package(Flavor::Gpu, &package_files(Flavor::Cpu));
    let error = fetch(&world, Flavor::Gpu).unwrap_err().to_string();
    assert!(error.contains("`libonnxruntime_providers_cuda.so` is not beside it"), "{error}");
    assert_eq!(world.cache_entries(), [] as [&str; 0]);
}

#[test]
fn offline_nothing_is_fetched_and_all_that_was_searched_is_named() {
    let world = World::with_pip();
    let request = LibraryRequest { offline: true, ..request(Flavor::Cpu) };
    let error = find_or_fetch(&request, &world.env, &mut Silent).unwrap_err().to_string();
    let python = world.path("bin/python3").display().to_string();
    for part in ["offline", "ORT_DYLIB_PATH", "library folders", python.as_str()] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!(world.downloads(), 0);
}

#[test]
fn without_python_or_pip_the_error_says_how_to_get_them() {
    let mut world = World::with_pip();
    fs::write(world.path("bin/answer"), "{\"pip\": false, \"runtime\": null}").unwrap();
    world.set("PATH", format!("{}:/nowhere", world.path("bin").display()));
    // The script needs `cat` and `dirname`.
    for tool in ["cat", "dirname"] {
        let found =
            ["/usr/bin", "/bin"].iter().map(|f| format!("{f}/{tool}")).find(|p| fs::exists(p).unwrap());
        std::os::unix::fs::symlink(found.unwrap(), world.path("bin").join(tool)).unwrap();
    }
    let error = refused(&world);
    assert!(matches!(error, LibraryError::NoPip { .. }), "{error}");
    assert!(error.to_string().contains("apt install python3-pip") && error.to_string().contains("ensurepip"));

    fs::set_permissions(world.path("bin/python3"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = refused(&world);
    assert!(matches!(error, LibraryError::NoPython { .. }), "{error}");
    assert!(error.to_string().contains("apt install python3 "), "{error}");
}

#[test]
fn pips_own_words_reach_the_user() {
    let world = World::with_pip();
    for said in [
        "ERROR: NewConnectionError: Temporary failure in name resolution",
        "ERROR: No matching distribution found for onnxruntime",
        "ERROR: the moon is full",
    ] {
        fs::write(world.path("bin/complaint"), format!("{said}\n")).unwrap();
        let error = refused(&world);
        assert!(error.to_string().contains(&format!("pip: {said}")), "{error}");
        assert!(matches!(error, LibraryError::Pip { has_stalled: false, .. }), "{error}");
        assert!(error.to_string().contains("check the network"), "{error}");
    }
    fs::write(world.path("bin/complaint"), "ERROR: [Errno 28] No space left on device\n").unwrap();
    let error = refused(&world);
    assert!(matches!(error, LibraryError::DiskFull { .. }), "{error}");
}

#[test]
fn too_little_room_is_said_before_anything_is_downloaded() {
    let mut world = World::with_pip();
    world.env.pins[0].unpacked_bytes = u64::MAX / 4;
    let error = refused(&world);
    assert!(matches!(error, LibraryError::DiskFull { free_mb: Some(_), .. }), "{error}");
    assert!(error.to_string().contains("ORCHESTRA_CACHE"));
    assert_eq!(world.downloads(), 0);
}

#[test]
fn a_cache_that_cannot_be_written_is_named_with_the_way_out() {
    let mut world = World::with_pip();
    let file = crate::common::write_library(&world.path("a-file"));
    world.set("ORCHESTRA_CACHE", &file);
    let error = fetch(&world, Flavor::Cpu).unwrap_err();
    assert!(matches!(error, LibraryError::Io { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&file.display().to_string()) && text.contains("set `ORCHESTRA_CACHE`"), "{text}");
}

#[test]
fn a_machine_that_no_wheel_is_for_and_a_user_without_a_home_are_told_so() {
    let mut world = World::with_pip();
    let error = fetch(&world, Flavor::Gpu).unwrap_err();
    assert!(matches!(error, LibraryError::NoPin { .. }), "{error}");
    world.env.variables.remove(std::ffi::OsStr::new("ORCHESTRA_CACHE"));
    let error = fetch(&world, Flavor::Cpu).unwrap_err();
    assert!(matches!(error, LibraryError::NoCacheFolder), "{error}");
}

#[test]
fn a_damaged_cache_is_never_used_and_is_fetched_again() {
    let world = World::with_pip();
    let library = fetch(&world, Flavor::Cpu).unwrap();
    let good = fs::read(&library.path).unwrap();
    let flipped = good.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == good.len() / 2));
    let flipped: Vec<u8> = flipped.collect();
    for damage in 0..5 {
        let folder = library.path.parent().unwrap();
        match damage {
            0 => fs::write(&library.path, &good[..100]).unwrap(),
            1 => fs::remove_file(folder.join("libonnxruntime_providers_shared.so")).unwrap(),
            2 => fs::write(&library.path, &flipped).unwrap(),
            3 => fs::write(folder.join("orchestra.json"), "{").unwrap(),
            _ => fs::remove_file(folder.join("orchestra.json")).unwrap(),
        }
        let (found, tried) = find(&request(Flavor::Cpu), &world.env);
        assert_eq!(found, None);
        assert_eq!(tried[0].origin, LibraryOrigin::Cache);
        assert_eq!(fetch(&world, Flavor::Cpu).unwrap().origin, LibraryOrigin::Fetched);
        assert_eq!(fs::read(&library.path).unwrap(), good);
        assert_eq!(world.cache_entries(), [format!("onnxruntime-{VERSION}")]);
    }
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let world = World::with_pip();
    let cache = world.path("cache/onnxruntime");
    let stale = cache.join(format!(".staging-onnxruntime-{VERSION}--a1b2c3/installed"));
    let others = cache.join(".staging-onnxruntime-gpu-1.31.7--a1b2c3");
    fs::create_dir_all(&stale).unwrap();
    fs::create_dir_all(&others).unwrap();
    fetch(&world, Flavor::Cpu).unwrap();
    assert!(!stale.exists() && others.exists());
}

#[test]
fn a_fetch_that_is_given_up_kills_pip_and_leaves_nothing() {
    struct GiveUp(Cell<bool>);
    impl Progress for GiveUp {
        fn note(&mut self, line: &str) {
            // pip now waits at its gate, which is never opened.
            self.0.set(self.0.get() || line.starts_with("pip:"));
        }
        fn bytes(&mut self, _: u64, _: Option<u64>) {}
        fn cancelled(&self) -> bool {
            self.0.get()
        }
    }
    let world = World::with_pip();
    world.close_gate();
    let error = find_or_fetch(&request(Flavor::Cpu), &world.env, &mut GiveUp(Cell::new(false))).unwrap_err();
    assert!(matches!(error, LibraryError::Cancelled), "{error}");
    assert_eq!(world.cache_entries(), [] as [&str; 0]);
    fs::remove_file(world.path("bin/gate")).unwrap();
    assert_eq!(fetch(&world, Flavor::Cpu).unwrap().origin, LibraryOrigin::Fetched);
}
