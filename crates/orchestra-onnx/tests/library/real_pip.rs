//! The real pip and the real wheel. The library goes to this user's own cache, so it is downloaded once per machine.

use std::ffi::OsStr;

use orchestra_onnx::library::{Env, Flavor, Request, Silent, find, find_or_fetch};

#[test]
fn the_pinned_wheel_gives_a_library_that_is_found_again() {
    let mut env = Env::from_process();
    // Only the cache and the fetch are meant here.
    env.system_folders.clear();
    env.variables.remove(OsStr::new("ORT_DYLIB_PATH"));
    env.variables.remove(OsStr::new("LD_LIBRARY_PATH"));
    let request = Request { flavor: Flavor::Cpu, explicit: None, offline: false };
    let library = find_or_fetch(&request, &env, &mut Silent).unwrap();
    assert!(library.version.as_deref().is_some_and(|version| version.starts_with("1.")), "{library:?}");
    let (again, tried) = find(&Request { offline: true, ..request }, &env);
    assert_eq!(again.map(|l| l.path), Some(library.path), "{tried:?}");
}
