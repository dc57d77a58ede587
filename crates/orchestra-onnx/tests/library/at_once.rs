//! Several who want the library at the same moment: one fetches, the others wait for it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{Notes, World, open_gate, request};
use orchestra_onnx::library::{Env, Flavor, find_or_fetch};

const WAITING: &str = "waiting for another orchestra to finish downloading";

/// The variables that turn a run of this test file into one of the two processes of the test below.
const CHILD: &str = "ORTLIB_TEST_CHILD";

#[test]
fn the_second_process_waits_and_then_finds_what_the_first_fetched() {
    let world = World::with_pip();
    world.close_gate();
    let start = || {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "at_once::one_process_of_two", "--nocapture"])
            .env(CHILD, world.path(""))
            .env("ORTLIB_TEST_PATH", &world.env.variables[std::ffi::OsStr::new("PATH")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        (child, lines)
    };
    let (mut first, mut first_says) = start();
    assert!(first_says.any(|line| line.starts_with("note fetching")));
    let (mut second, mut second_says) = start();
    assert!(second_says.any(|line| line == format!("note {WAITING}")));
    open_gate(&world.path("bin/gate"));
    assert!(first_says.any(|line| line == "origin fetched"));
    assert!(second_says.any(|line| line == "origin cache"));
    // To the end of what they say, so that neither meets a closed pipe.
    assert_eq!(first_says.chain(second_says).filter(|line| line.contains("panicked")).count(), 0);
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
    assert_eq!(world.downloads(), 1);
}

/// Only does something when the test above starts it.
#[test]
fn one_process_of_two() {
    let Some(root) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let text = |name: &str| std::env::var(name).unwrap();
    let env = Env {
        variables: [
            ("PATH".into(), text("ORTLIB_TEST_PATH").into()),
            ("ORCHESTRA_CACHE".into(), root.join("cache").into()),
        ]
        .into(),
        current_folder: root,
        system_folders: Vec::new(),
        root: "/nowhere".into(),
        pins: vec![crate::common::pin(Flavor::Cpu)],
    };
    let mut notes = Notes::new(|line| println!("\nnote {line}"));
    let library = find_or_fetch(&request(Flavor::Cpu), &env, &mut notes).unwrap();
    println!("\norigin {}", library.origin);
}
