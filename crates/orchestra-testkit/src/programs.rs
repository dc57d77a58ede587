//! Where cargo puts the programs and libraries that tests start or load. Builds nothing.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

/// The library of the trap operator, for a workflow's or a `Load` frame's custom operators. It is this crate, which cargo builds as one, too.
pub fn trap_library() -> anyhow::Result<PathBuf> {
    beside_this_program("liborchestra_testkit.so")
}

/// The worker that misbehaves on purpose, `orchestra-faulty-worker`. Cargo builds it with the tests of this crate. Another crate that
/// wants it adds an example of that name whose `main` is [`crate::faulty::main`]: cargo builds examples with a crate's tests.
pub fn faulty_worker() -> anyhow::Result<PathBuf> {
    beside_this_program("orchestra-faulty-worker")
}

/// Finds a file that cargo built: beside the running program, in the folder above (a test lies in `deps`), or in one of their
/// `deps` and `examples`.
pub fn beside_this_program(name: &str) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe().context("this program does not know where it lies")?;
    for folder in me.ancestors().skip(1).take(2) {
        for candidate in
            [folder.join(name), folder.join("deps").join(name), folder.join("examples").join(name)]
        {
            if candidate.is_file() {
                return Ok(candidate);
            }
        }
    }
    bail!("`{name}` lies nowhere near `{}`: build the crate that it belongs to", me.display())
}
