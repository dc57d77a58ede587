//! `ORCHESTRA_JPEG` names the JPEG decoder: a word that is none stops a run before it does anything, and `doctor` shows the choice.

use std::process::{Command, Output};

mod common;

use common::{Blocks, Workplace, write_pictures};

fn orchestra(arguments: &[&str], decoder: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orchestra"))
        .args(arguments)
        .env("ORCHESTRA_JPEG", decoder)
        .output()
        .expect("the command was built with this test")
}

#[test]
fn a_decoder_that_does_not_exist_stops_a_run_before_it_does_anything() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), 3);
    let file = place.workflow();
    let ended = orchestra(&["run", file.to_str().expect("a path of ours")], "mozjpeg");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(69), "{said}");
    assert!(said.contains("ORCHESTRA_JPEG is `mozjpeg`, expected `libjpeg-turbo` or `rust`"), "{said}");
    assert!(!place.out().join("results.jsonl").exists(), "something ran");
    place.nothing_is_left();
}

#[test]
fn the_rust_decoder_runs_on_every_machine_and_doctor_says_which_it_is() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), 3);
    let file = place.workflow();
    let ended = orchestra(&["run", file.to_str().expect("a path of ours")], "rust");
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    let doctor = orchestra(&["doctor"], "rust");
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("jpeg decoder") && said.contains("rust (zune-jpeg)"), "{said}");
    let doctor = orchestra(&["doctor"], "mozjpeg");
    assert_eq!(doctor.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("`mozjpeg`"));
}
