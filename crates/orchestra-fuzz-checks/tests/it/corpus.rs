//! Every input that is kept, and its near neighbours, under the check that it is kept for. What a fuzzer found once is found here.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use orchestra_fuzz_checks::CHECKS;

use crate::kept_inputs::kept_inputs;

/// Neighbours of each input that are tried.
const NEIGHBOURS: u64 = 8;

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The same bytes with one small change; always the same one for the same number.
fn neighbour(bytes: &[u8], number: u64) -> Vec<u8> {
    // A step of a linear congruential generator: near enough to chance for this.
    let random =
        |n: u64| n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 33;
    let at = random(number ^ (bytes.len() as u64 * 977)) as usize % bytes.len().max(1);
    let mut changed = bytes.to_vec();
    match number % 4 {
        0 => changed.truncate(at),
        1 => changed.iter_mut().skip(at).take(1).for_each(|b| *b ^= 1 << (random(number + 7) % 8)),
        2 => changed.iter_mut().skip(at).take(1).for_each(|b| *b = random(number + 11) as u8),
        _ => drop(changed.drain(at..bytes.len().min(at + 1 + number as usize))),
    }
    changed
}

/// The check holds for all inputs that are kept for it.
fn holds(name: &str) {
    let (_, check) = CHECKS.iter().find(|(n, _)| *n == name).unwrap();
    for (input, bytes) in kept_inputs(name) {
        let tried = (0..NEIGHBOURS).map(|n| (Some(n), neighbour(&bytes, n)));
        for (number, bytes) in [(None, bytes.clone())].into_iter().chain(tried) {
            let held = catch_unwind(AssertUnwindSafe(|| check(&bytes)));
            assert!(held.is_ok(), "`{input}`, neighbour {number:?}: {}", bytes.escape_ascii());
        }
    }
}

macro_rules! replays {
    ($($test:ident: $check:literal,)*) => {
        $(#[test]
        fn $test() {
            holds($check);
        })*

        const TESTED: &[&str] = &[$($check),*];
    };
}

replays! {
    every_expression_is_read_or_explained: "expression",
    no_picture_breaks_a_decoder_or_shows_in_another: "image",
    no_header_of_a_picture_takes_memory: "image_header",
    no_damage_to_an_output_folder_makes_recovery_lie: "journal",
    no_damage_to_a_list_of_items_goes_unnoticed_or_spreads: "listing",
    every_machine_file_is_taken_or_explained: "machine_file",
    every_manifest_is_listed_or_explained: "manifest",
    every_client_of_the_page_gets_an_answer_or_none: "metrics_page",
    every_model_is_edited_or_refused: "model_edit",
    every_header_of_an_array_is_believed_as_far_as_the_file_goes: "npy",
    every_model_file_gives_a_signature_or_a_reason: "onnx_signature",
    every_pattern_names_files_below_its_folder_or_is_explained: "pattern",
    no_peer_breaks_the_codec: "worker_frame",
    every_workflow_file_is_planned_or_explained: "workflow_file",
}

#[test]
fn every_check_has_a_test_a_fuzz_target_and_kept_inputs() {
    let names: Vec<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, TESTED);
    let in_folder = |folder: &str, extension: &str| {
        let entries = fs::read_dir(fuzz_folder().join(folder)).unwrap();
        let files = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> =
            files.filter_map(|file| Some(file.strip_suffix(extension)?.to_owned())).collect();
        names.sort();
        names
    };
    assert_eq!(in_folder("fuzz_targets", ".rs"), names);
    assert_eq!(in_folder("corpus", ".tar.gz"), names);
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    let built =
        manifest.lines().filter_map(|l| l.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    assert_eq!(built.collect::<Vec<_>>(), names);
}

#[test]
fn the_kept_inputs_stay_small() {
    let size: usize =
        CHECKS.iter().flat_map(|(name, _)| kept_inputs(name).into_values()).map(|b| b.len()).sum();
    assert!(
        size < 300_000,
        "{size} bytes are kept, at most 300,000 are: `fuzz/README.md` says how to choose"
    );
}
