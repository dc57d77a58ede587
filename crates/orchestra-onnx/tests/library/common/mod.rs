//! A small world for these tests: folders, libraries that are only headers, packages made on the spot, and a `python3` that is a
//! shell script. Nothing here touches the network or the user's own cache.
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use orchestra_onnx::library::{Env, Flavor, LibraryRequest, Pin, Progress};

/// What the wheels of these tests claim to be.
pub const VERSION: &str = "1.31.7";

/// A `python3` that answers our question from the file `answer`, and whose pip copies the package from its own folder. It counts
/// its calls in `calls`; a file `complaint` makes it fail with that text, a pipe `gate` makes it wait until a test
/// opens its other end. A line of pip's own leads every call.
const PYTHON: &str = r#"#!/bin/sh
here=$(dirname "$0")
if [ "$1" = "-c" ]; then cat "$here/answer"; exit 0; fi
echo "$@" >> "$here/calls"
while [ $# -gt 0 ]; do
    [ "$1" = "--target" ] && target=$2
    [ "$1" = "--requirement" ] && cp "$2" "$here/requirements"
    shift
done
echo "WARNING: this is pip" >&2
if [ -e "$here/gate" ]; then : < "$here/gate"; fi
if [ -e "$here/complaint" ]; then cat "$here/complaint" >&2; exit 1; fi
package=$(cut -d= -f1 "$here/requirements")
cp -R "$here/$package/." "$target/"
"#;

pub struct World {
    pub folder: tempfile::TempDir,
    pub env: Env,
}

impl World {
    /// No library anywhere, no Python, and a cache folder of its own.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        for name in ["bin", "system", "cache", "work"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let variables = [("PATH", root.join("bin")), ("ORCHESTRA_CACHE", root.join("cache"))];
        let env = Env {
            variables: variables.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            current_folder: root.join("work"),
            system_folders: vec![root.join("system")],
            pins: Vec::new(),
            root: root.join("root"),
        };
        Self { folder, env }
    }

    /// As `new`, with a Python that can fetch a good package for the CPU.
    pub fn with_pip() -> Self {
        let mut world = Self::new();
        world.add_python("{\"pip\": true, \"runtime\": null}");
        world.add_package(Flavor::Cpu, &package_files(Flavor::Cpu));
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap().join(name)
    }

    pub fn set(&mut self, name: &str, value: impl Into<std::ffi::OsString>) {
        self.env.variables.insert(name.into(), value.into());
    }

    pub fn add_python(&mut self, answer: &str) {
        write_program(&self.path("bin/python3"), PYTHON);
        fs::write(self.path("bin/answer"), answer).unwrap();
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        self.set("PATH", path);
    }

    /// Makes a package that the Python of this world fetches, and pins it.
    pub fn add_package(&mut self, flavor: Flavor, files: &[(&str, Vec<u8>)]) {
        let folder = self.path("bin").join(package(flavor));
        for (name, bytes) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        self.env.pins.retain(|pin| pin.flavor != flavor);
        self.env.pins.push(pin(flavor));
    }

    /// How often pip was run.
    pub fn downloads(&self) -> usize {
        fs::read_to_string(self.path("bin/calls")).unwrap_or_default().lines().count()
    }

    /// Where the fetched library of a flavour lies.
    pub fn cached(&self, flavor: Flavor) -> PathBuf {
        let folder = self.path("cache/onnxruntime").join(format!("{}-{VERSION}", package(flavor)));
        folder.join(format!("libonnxruntime.so.{VERSION}"))
    }

    /// Makes pip wait until `open_gate`.
    pub fn close_gate(&self) {
        assert!(Command::new("mkfifo").arg(self.path("bin/gate")).status().unwrap().success());
    }

    /// What the cache folder holds, hidden files too, without lock files.
    pub fn cache_entries(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("cache/onnxruntime")) else { return Vec::new() };
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with(".lock"));
        names.sort();
        names
    }
}

/// Lets a pip that waits at the gate go on.
pub fn open_gate(gate: &Path) {
    fs::OpenOptions::new().write(true).open(gate).unwrap();
}

pub fn request(flavor: Flavor) -> LibraryRequest {
    LibraryRequest { flavor, explicit: None, offline: false }
}

/// Remembers what it was told, and calls back on every note.
pub struct Notes<F: FnMut(&str)> {
    pub lines: Vec<String>,
    pub last_bytes: Option<(u64, Option<u64>)>,
    pub on_note: F,
}

impl<F: FnMut(&str)> Notes<F> {
    pub fn new(on_note: F) -> Self {
        Self { lines: Vec::new(), last_bytes: None, on_note }
    }
}

impl<F: FnMut(&str)> Progress for Notes<F> {
    fn note(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        (self.on_note)(line);
    }

    fn bytes(&mut self, done: u64, total: Option<u64>) {
        self.last_bytes = Some((done, total));
    }
}

/// A file that passes for a shared library of this processor, `extra` behind its header.
pub fn library_bytes(extra: &[u8]) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0".to_vec();
    bytes.extend(machine.to_le_bytes());
    bytes.resize(64, 0);
    bytes.extend(extra);
    bytes.extend([0; 64]);
    bytes
}

pub fn write_library(path: &Path) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, library_bytes(b"")).unwrap();
    path.to_owned()
}

/// What a good package holds: what is wanted, and what is not.
pub fn package_files(flavor: Flavor) -> Vec<(&'static str, Vec<u8>)> {
    let noise: Vec<u8> = (0..100_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut entries = vec![
        ("onnxruntime/__init__.py", b"import nothing".to_vec()),
        ("onnxruntime/capi/libonnxruntime.so.1.31.7", library_bytes(&noise)),
        ("onnxruntime/capi/libonnxruntime_providers_shared.so", library_bytes(b"shared")),
        ("onnxruntime/capi/libonnxruntime_providers_tensorrt.so", library_bytes(b"tensorrt")),
        ("onnxruntime/LICENSE", b"do what you like".to_vec()),
    ];
    if flavor == Flavor::Gpu {
        entries.push(("onnxruntime/capi/libonnxruntime_providers_cuda.so", library_bytes(b"cuda")));
    }
    entries
}

pub fn pin(flavor: Flavor) -> Pin {
    Pin {
        flavor,
        arch: std::env::consts::ARCH.into(),
        package: package(flavor).into(),
        version: VERSION.into(),
        platform: format!("manylinux_2_28_{}", std::env::consts::ARCH),
        sha256: "5a".repeat(32),
        wheel_bytes: 100_000,
        unpacked_bytes: 1_000_000,
    }
}

pub fn package(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::Cpu => "onnxruntime",
        Flavor::Gpu => "onnxruntime-gpu",
    }
}

/// Written by a child of its own: a program that this process had open for writing could not be run while another thread
/// starts one.
pub fn write_program(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}
