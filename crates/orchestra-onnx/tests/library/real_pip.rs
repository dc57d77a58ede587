//! The real pip, and the real wheel. The library goes to this user's own cache, so it is downloaded once per machine.

use std::ffi::OsStr;
use std::process::Command;

use crate::common::{World, request, write_program};
use orchestra_onnx::library::{Env, Flavor, LibraryRequest, Silent, find, find_or_fetch};

#[test]
fn the_pinned_wheel_gives_a_library_that_is_found_again() {
    let mut env = Env::from_process();
    // Only the cache and the fetch are meant here.
    env.system_folders.clear();
    env.variables.remove(OsStr::new("ORT_DYLIB_PATH"));
    env.variables.remove(OsStr::new("LD_LIBRARY_PATH"));
    let request = LibraryRequest { flavor: Flavor::Cpu, explicit: None, offline: false };
    let library = find_or_fetch(&request, &env, &mut Silent).unwrap();
    assert!(library.version.as_deref().is_some_and(|version| version.starts_with("1.")), "{library:?}");
    let (again, tried) = find(&LibraryRequest { offline: true, ..request }, &env);
    assert_eq!(again.map(|l| l.path), Some(library.path), "{tried:?}");
}

/// A folder of wheels is an index for pip, and needs no network.
#[test]
fn pip_refuses_a_wheel_of_another_digest_and_takes_no_place_from_its_configuration() {
    let mut world = World::new();
    let index = world.path("index");
    let made = Command::new("python3").args(["-c", MAKE_WHEEL]).arg(&index).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        return orchestra_testkit::skip::skip("no `python3` that can write a wheel", "install Python");
    };
    let digest = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let elsewhere = world.path("elsewhere");
    world.add_python("{\"pip\": true, \"runtime\": null}");
    // Its packages are none of this world's; its pip is the real one.
    let [path, home] = ["PATH", "HOME"].map(|name| std::env::var(name).unwrap_or_default());
    let python = format!(
        "#!/bin/sh\nif [ \"$1\" = -c ]; then cat \"$(dirname \"$0\")/answer\"; exit 0; fi\nPATH='{path}' HOME='{home}' exec python3 \"$@\"\n"
    );
    write_program(&world.path("bin/python3"), &python);
    let links = index.display().to_string();
    for (name, value) in [("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", &links), ("PIP_USER", "1")] {
        world.set(name, value);
    }
    for name in ["PIP_PREFIX", "PIP_ROOT"] {
        world.set(name, &elsewhere);
    }
    world.env.pins = vec![crate::common::pin(Flavor::Cpu)];
    let error = find_or_fetch(&request(Flavor::Cpu), &world.env, &mut Silent).unwrap_err();
    assert!(error.to_string().contains("DO NOT MATCH THE HASHES"), "{error}");
    assert_eq!(world.cache_entries(), [] as [&str; 0]);
    world.env.pins[0].sha256 = digest;
    let library = find_or_fetch(&request(Flavor::Cpu), &world.env, &mut Silent).unwrap();
    assert_eq!(library.path, world.cached(Flavor::Cpu));
    assert!(!elsewhere.exists());
}

/// Writes a wheel of `VERSION` for this processor into the folder that it is told, and prints its digest.
const MAKE_WHEEL: &str = r#"
import hashlib, os, platform, sys, zipfile
os.mkdir(sys.argv[1])
tag = "cp312-cp312-manylinux_2_28_" + platform.machine()
about = "onnxruntime-1.31.7.dist-info/"
machine = 183 if platform.machine() == "aarch64" else 62
header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0" + machine.to_bytes(2, "little") + bytes(108)
files = {
    "onnxruntime/__init__.py": b"",
    "onnxruntime/LICENSE": b"do what you like",
    "onnxruntime/capi/libonnxruntime.so.1.31.7": header,
    about + "METADATA": b"Metadata-Version: 2.1\nName: onnxruntime\nVersion: 1.31.7\n",
    about + "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
}
files[about + "RECORD"] = "".join(f"{name},,\n" for name in [*files, about + "RECORD"]).encode()
wheel = os.path.join(sys.argv[1], f"onnxruntime-1.31.7-{tag}.whl")
with zipfile.ZipFile(wheel, "w") as archive:
    for name, data in files.items():
        archive.writestr(name, data)
print(hashlib.sha256(open(wheel, "rb").read()).hexdigest())
"#;
