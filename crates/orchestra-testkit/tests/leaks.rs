//! Leaks are named, and their absence is silence. One test, alone in its program: it looks at the whole process.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use orchestra_testkit::leaks::Holdings;
use rustix::fs::{MemfdFlags, memfd_create};

#[test]
fn what_is_left_open_or_running_is_named_until_it_is_gone() {
    let before = Holdings::now();
    assert_eq!(before.leaked_since(), [""; 0]);
    let memory = memfd_create("leaky", MemfdFlags::CLOEXEC).unwrap();
    let sockets = UnixStream::pair().unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let leaks = before.leaked_since();
    let named = |what: &str| leaks.iter().any(|l| l.contains(what));
    assert!(
        named("/memfd:leaky") && named("2 more open: socket") && named(&child.id().to_string()),
        "{leaks:?}"
    );
    let now = Holdings::now();
    assert_eq!(now.open_files(), before.open_files() + 3);
    drop((memory, sockets));
    child.kill().unwrap();
    assert_eq!(before.leaked_since().len(), 1, "dead, but not waited for");
    child.wait().unwrap();
    assert_eq!(before.leaked_since(), [""; 0]);

    let (begun, goes_on) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let work = || {
            begun.wait();
            goes_on.wait();
        };
        thread::Builder::new().name("loader".to_owned()).spawn_scoped(scope, work).unwrap();
        begun.wait(); // It has its name.
        assert_eq!(before.leaked_since(), ["1 more threads: loader"]);
        goes_on.wait();
    });
}
