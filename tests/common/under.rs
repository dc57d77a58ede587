//! A test that needs other rights than it was started with, or a part of the machine of its own.

use std::process::Command;

use orchestra_testkit::skip::skip;

/// Set in a test that [`runs_under`] another command.
const UNDER: &str = "ORCHESTRA_TEST_UNDER";

/// Runs this test of the same binary again as a child of `command`, which gives or takes what a process may do; `true` there, where the
/// test goes on. Where the command is missing or refused the test is skipped.
#[track_caller]
pub fn runs_under(command: &[&str], test: &str) -> bool {
    if std::env::var_os(UNDER).is_some() {
        return true;
    }
    let (program, arguments) = command.split_first().unwrap();
    let may = Command::new(program).args(arguments).arg("true").output();
    if !may.is_ok_and(|ended| ended.status.success()) {
        let remedy = "install util-linux, and allow user namespaces and changes of capabilities";
        skip(&format!("`{}` is missing or refused here", command.join(" ")), remedy);
        return false;
    }
    let again = std::env::current_exe().unwrap();
    let mut child = Command::new(program);
    child.args(arguments).arg(again).args([test, "--exact", "--nocapture"]).env(UNDER, "1");
    let ended = child.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
    false
}
