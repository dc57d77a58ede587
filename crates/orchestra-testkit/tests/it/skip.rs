//! What a skipped test does: it is listed, or fails in strict mode. Each case is a process of its own, which runs a copy of this program.

use std::fs;
use std::process::{Command, Output};

use orchestra_testkit::skip::{VARIABLE, has_programs};

const ASKED: &str = "ORCHESTRA_TEST_ASKED";

/// The role that the copies play; by itself it has nothing to skip.
#[test]
fn asks_for_a_program() {
    if let Ok(program) = std::env::var(ASKED) {
        has_programs(&[&program], "install it");
    }
}

/// How a copy ends that asks for `program`, and the skipped tests that are listed then.
fn asking(program: &str, mode: &str) -> (Output, String) {
    let me = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(me.parent().unwrap()).unwrap();
    let copy = folder.path().join("deps/copy");
    fs::create_dir(copy.parent().unwrap()).unwrap();
    // A link: a file that is open for writing, in a child of another test, too, cannot be run.
    fs::hard_link(me, &copy).unwrap();
    let arguments = ["skip::asks_for_a_program", "--exact", "--test-threads=2"];
    let ended = Command::new(&copy).args(arguments).env(ASKED, program).env(VARIABLE, mode).output().unwrap();
    (ended, fs::read_to_string(folder.path().join("skipped-tests")).unwrap_or_default())
}

#[test]
fn a_skipped_test_is_listed_by_name_with_what_is_missing() {
    let (ended, listed) = asking("no-such-program", "");
    assert!(ended.status.success(), "{ended:?}");
    assert!(listed.starts_with("skip::asks_for_a_program (") && listed.lines().count() == 1, "{listed}");
    assert!(listed.ends_with("tests/it/skip.rs:14:9): no no-such-program; install it\n"), "{listed}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains(&format!("skipped: {listed}")), "{ended:?}");
}

#[test]
fn in_strict_mode_a_skip_is_a_failure_that_says_what_to_install() {
    let (ended, listed) = asking("no-such-program", "strict");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(!ended.status.success() && said.contains("no no-such-program; install it"), "{said}");
    assert_eq!(listed, "");
}

#[test]
fn a_mode_that_is_not_known_is_a_failure_and_a_program_that_is_there_is_no_skip() {
    assert!(!asking("no-such-program", "1").0.status.success());
    for mode in ["", "strict"] {
        let (ended, listed) = asking("cc", mode);
        assert!(ended.status.success() && listed.is_empty(), "{ended:?}");
    }
}
