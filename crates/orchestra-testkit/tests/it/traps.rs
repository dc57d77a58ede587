//! The deadly elements end a process as they say. Each runs in a process of its own: this test binary with one test.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use orchestra_testkit::{Trap, models, trap_library};

const VALUE: &str = "ORCHESTRA_TESTKIT_TRAP_VALUE";

/// The process that dies; does nothing in an ordinary run.
#[test]
fn victim_process() {
    let Ok(value) = std::env::var(VALUE) else { return };
    let dir = tempfile::tempdir().unwrap();
    let library = trap_library().unwrap();
    let mut model = crate::common::session(&models::trap(dir.path(), &[2]).unwrap(), Some(&library)).unwrap();
    crate::common::run(&mut model, &[1, 2], &[0.0, 1.0]).unwrap();
    drop(dir);
    println!("\nready");
    let value: f32 = value.parse().unwrap();
    crate::common::run(&mut model, &[1, 2], &[0.0, value]).unwrap();
    println!("survived");
}

fn victim(trap: Trap) -> Child {
    // The library is fetched, if need be, before a process dies with it.
    crate::common::environment();
    Command::new(std::env::current_exe().unwrap())
        .args(["traps::victim_process", "--exact", "--nocapture"])
        .env(VALUE, trap.value().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_for_ready(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|l| l == "ready"));
    lines
}

#[test]
fn deadly_elements_end_the_process_as_they_say() {
    for (trap, signal, code) in
        [(Trap::Abort, Some(6), None), (Trap::Segfault, Some(11), None), (Trap::Exit, None, Some(0))]
    {
        let mut child = victim(trap);
        let mut rest = wait_for_ready(&mut child);
        assert!(!rest.any(|l| l.contains("survived")), "{trap:?}");
        let status = child.wait().unwrap();
        assert_eq!((status.signal(), status.code()), (signal, code), "{trap:?}");
    }
}

#[test]
fn the_hanging_element_never_comes_back() {
    let mut child = victim(Trap::Hang);
    let mut rest = wait_for_ready(&mut child);
    child.kill().unwrap();
    assert!(!rest.any(|l| l.contains("survived")));
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}
