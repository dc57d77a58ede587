//! Lets pip fetch one pinned wheel, check its digest and unpack it into a folder of ours. Changes no environment.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::child::{self, Event, TICK};
use crate::library::env::Env;
use crate::library::error::LibraryError;
use crate::library::found::Progress;
use crate::library::pins::{PYTHON_ABI, PYTHON_VERSION, Pin};
use crate::library::python;
use crate::library::staging::Staging;

/// A download that brings neither a byte nor a line for this many ticks is given up: ten minutes.
const PATIENCE_TICKS: u128 = 600_000 / TICK.as_millis();
/// How many of pip's last words go into an error.
const LAST_LINES: usize = 12;

/// An interpreter whose pip can fetch `pin`.
pub(crate) fn interpreter(env: &Env, pin: &Pin) -> Result<PathBuf, LibraryError> {
    let package = pin.package.clone();
    let mut without_pip = None;
    let mut tried = Vec::new();
    for program in python::interpreters(env) {
        match python::ask(&program, env) {
            Ok(answer) if answer.pip => return Ok(program),
            Ok(_) => without_pip = without_pip.or(Some(program)),
            Err(why) => tried.push(format!("`{}`: {why}", program.display())),
        }
    }
    Err(match without_pip {
        Some(python) => LibraryError::NoPip { python, package },
        None => LibraryError::NoPython { package, tried },
    })
}

/// Fetches the package into `staging`: pip refuses a wheel of another digest.
pub(crate) fn install(
    program: &Path,
    pin: &Pin,
    staging: &Staging,
    env: &Env,
    progress: &mut dyn Progress,
) -> Result<(), LibraryError> {
    let requirements = staging.requirements();
    let text = format!("{}=={} --hash=sha256:{}\n", pin.package, pin.version, pin.sha256);
    fs::write(&requirements, text).map_err(LibraryError::io("write", &requirements))?;
    let mut said = Words::default();
    let mut quiet_ticks = 0;
    let mut bytes = 0;
    let mut command = command(program, pin, staging, env);
    tracing::debug!(?command, "fetching the runtime library");
    let status = child::run(&mut command, |event| {
        match event {
            Event::Stdout(line) => tracing::debug!(line, "pip"),
            Event::Stderr(line) => said.hear(line, progress),
            Event::Quiet if staging.downloaded_bytes() == bytes => quiet_ticks += 1,
            Event::Quiet => {
                quiet_ticks = 0;
                bytes = staging.downloaded_bytes();
                progress.bytes(bytes.min(pin.wheel_bytes), Some(pin.wheel_bytes));
            }
        }
        match quiet_ticks > PATIENCE_TICKS || progress.cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    match status {
        Ok(Some(status)) if status.success() => {
            progress.bytes(pin.wheel_bytes, Some(pin.wheel_bytes));
            Ok(())
        }
        Ok(Some(_)) if said.disk_is_full() => Err(disk_full(&staging.root, pin, None)),
        Ok(Some(_)) => Err(said.error(pin, false)),
        Ok(None) if quiet_ticks <= PATIENCE_TICKS => Err(LibraryError::Cancelled),
        Ok(None) => Err(said.error(pin, true)),
        Err(error) => {
            said.lines.push(format!("`{}` cannot be started: {error}", program.display()));
            Err(said.error(pin, false))
        }
    }
}

/// Room for the wheel, and twice for what is unpacked.
pub(crate) fn needed_bytes(pin: &Pin) -> u64 {
    pin.wheel_bytes + 2 * pin.unpacked_bytes
}

pub(crate) fn disk_full(root: &Path, pin: &Pin, free_mb: Option<u64>) -> LibraryError {
    let needed_mb = needed_bytes(pin).div_ceil(1_000_000);
    LibraryError::DiskFull { folder: root.to_owned(), needed_mb, free_mb }
}

fn command(program: &Path, pin: &Pin, staging: &Staging, env: &Env) -> Command {
    let mut command = python::command(program, env);
    command
        .args(["-m", "pip", "install", "--require-hashes", "--no-deps", "--only-binary=:all:"])
        .args(["--implementation", "cp", "--python-version", PYTHON_VERSION, "--abi", PYTHON_ABI])
        .args(["--platform", &pin.platform])
        // What is kept is the library; a second copy of the wheel in pip's own cache has no use.
        .args(["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"])
        // The index and the proxy of the user's own configuration count. What it says of places does not.
        .args(["--no-compile", "--no-user", "--prefix=", "--root=/"])
        .arg("--target")
        .arg(&staging.installed)
        .arg("--requirement")
        .arg(staging.requirements())
        .env("TMPDIR", &staging.temporary)
        // No environment is changed, so a rule against installing outside virtual environments is not broken.
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        // `-m` would take a `pip.py` from the current folder.
        .current_dir(&staging.temporary);
    command
}

/// What pip complained about.
#[derive(Default)]
struct Words {
    lines: Vec<String>,
}

impl Words {
    fn hear(&mut self, line: String, progress: &mut dyn Progress) {
        if line.trim().is_empty() {
            return;
        }
        progress.note(&format!("pip: {line}"));
        if self.lines.len() == LAST_LINES {
            self.lines.remove(0);
        }
        self.lines.push(line);
    }

    fn disk_is_full(&self) -> bool {
        let says = |words| self.lines.iter().any(|line| line.contains(words));
        says("No space left on device") || says("Disk quota exceeded")
    }

    fn error(&self, pin: &Pin, has_stalled: bool) -> LibraryError {
        let package = format!("{}=={}", pin.package, pin.version);
        LibraryError::Pip { package, has_stalled, lines: self.lines.clone() }
    }
}
