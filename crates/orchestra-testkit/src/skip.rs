//! Every test that a missing tool keeps from its work is skipped here, so that no skip looks like a pass. It installs nothing.
//!
//! With `ORCHESTRA_TESTS=strict` a skip fails the test. Otherwise it is said on standard error and kept as a line of `skipped-tests`, beside
//! the folder `deps` in which cargo puts tests; `.ci/run` lists that file.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::Location;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// `strict` makes a skip a failure; unset or empty allows skips.
pub const VARIABLE: &str = "ORCHESTRA_TESTS";

/// The test that calls cannot run, because of what is `missing`. It returns at once after this; `remedy` is what to do so that it can run.
#[track_caller]
pub fn skip(missing: &str, remedy: &str) {
    let value = std::env::var_os(VARIABLE).unwrap_or_default();
    assert!(value.is_empty() || value == "strict", "`{VARIABLE}` is `strict` or unset, not {value:?}");
    assert!(value.is_empty(), "`{VARIABLE}=strict` allows no skip: {missing}; {remedy}");
    note(missing, remedy);
}

/// Says that the test that runs is skipped, and adds it to the list.
#[track_caller]
fn note(missing: &str, remedy: &str) {
    let thread = std::thread::current();
    let line = format!("{} ({}): {missing}; {remedy}", thread.name().unwrap_or("?"), Location::caller());
    // Not `eprintln`, which libtest keeps to itself where a test passes.
    let mut stderr = std::io::stderr();
    // The line is kept in the file, too.
    let _ = writeln!(stderr, "skipped: {line}");
    let path = list();
    // One write of one line: other test processes append to the same file.
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .unwrap_or_else(|error| panic!("`{}` cannot take a skipped test: {error}", path.display()));
}

/// Whether tests of this part of `scripts/deep-check.sh` run: they do at their full size only. If not, the test is skipped, which strict mode allows,
/// because the deep check runs it.
#[track_caller]
pub fn is_deep_check(part: &str) -> bool {
    let is_deep = crate::size::scaled(true, false);
    if !is_deep {
        note("slow", &format!("`scripts/deep-check.sh {part}` runs it"));
    }
    is_deep
}

/// Whether all these programs run; if not, the test is skipped.
#[track_caller]
pub fn has_programs(programs: &[&str], remedy: &str) -> bool {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !runs(program)).collect();
    if !missing.is_empty() {
        skip(&format!("no {}", missing.join(", no ")), remedy);
    }
    missing.is_empty()
}

/// The file of skipped tests: beside `deps`, where the running test lies.
fn list() -> PathBuf {
    let me = std::env::current_exe().expect("a running program on Linux has a path");
    let folder = me.parent().and_then(|deps| deps.parent()).expect("cargo runs tests from a folder `deps`");
    folder.join("skipped-tests")
}
