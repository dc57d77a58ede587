//! Records that are files of their own: each is there whole, and named in the index, exactly if its item is done.

use std::collections::BTreeSet;
use std::fs;

use crate::common::number_stages::{SCATTER, n_parts};
use crate::common::{AS_IT_IS, Workplace};
use orchestra_testkit::models;

/// Pictures, past the gate, to the files `2 index + 1, 2 part + 1` of each part.
fn filing(items: u64) -> Workplace {
    let mut place = Workplace::with_pictures(items);
    let model = models::affine(&place.models(), &[2]).unwrap();
    place
        .model("affine", model, "workers = 2")
        .gated("slow", 2)
        .image("pixels", "scans", AS_IT_IS)
        .infer("seen", "pixels", "slow", 4)
        .add("[stages.parts]\nkind = \"scatter\"\nfrom = \"seen\"")
        .infer("read", "parts", "affine", 4)
        .add("[sinks.arrays]\nkind = \"npy\"\nfrom = \"read\"")
        .devices(1);
    place
}

fn must_be_whole(place: &Workplace, items: u64) {
    let folder = place.out().join("arrays");
    let mut seen = BTreeSet::new();
    for line in place.lines("arrays/index.jsonl") {
        let file = line["file"].as_str().unwrap().to_owned();
        let (_, part) = file.strip_suffix(".npy").unwrap().rsplit_once('.').unwrap();
        let (index, part) = (line["index"].as_u64().unwrap(), part.parse::<u64>().unwrap());
        let bytes = fs::read(folder.join(&file)).unwrap();
        assert_eq!(bytes.len() as u64, line["bytes"].as_u64().unwrap());
        let numbers: Vec<f32> =
            bytes[bytes.len() - 8..].as_chunks().0.iter().map(|n| f32::from_ne_bytes(*n)).collect();
        assert_eq!(numbers, [2.0 * index as f32 + 1.0, 2.0 * part as f32 + 1.0], "{file}");
        assert!(seen.insert((index, part)), "{file} comes twice");
    }
    let expected = (0..items).flat_map(|index| (0..n_parts(index)).map(move |part| (index, part)));
    assert_eq!(seen, expected.collect());
    let files = fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, seen.len() + 1, "nothing but the files and their index");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_files_of_the_user_is_not_written_to() {
    let place = filing(3);
    let folder = place.out().join("arrays");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("mine.npy"), b"mine").unwrap();
    place.write_workflow();
    let plan = place.plan_with(orchestra::kinds().with_stage(SCATTER));
    let refused = orchestra::start(plan, place.options()).await.err().map(|error| error.to_string());
    assert!(refused.as_deref().is_some_and(|why| why.contains("arrays")), "{refused:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);

    // What a start has left that was killed before it had a journal is not the user's.
    fs::remove_file(folder.join("mine.npy")).unwrap();
    fs::write(folder.join("index.jsonl"), b"").unwrap();
    let kinds = orchestra::kinds().with_stage(SCATTER);
    Workplace::must_end_with(&place.run_plan(place.plan_with(kinds)).await, 0);
    must_be_whole(&place, 3);
}
