//! The versions that a resumed run compares are those that are built.

#[test]
fn the_decoders_are_named_with_the_versions_that_are_locked() {
    let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
    for decoder in orchestra_media::DECODERS.split(", ") {
        let (name, version) = decoder.split_once(' ').unwrap();
        let package = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&package), "Cargo.lock has another version of {name}: see `DECODERS`");
    }
    assert_eq!(orchestra_media::DECODERS.split(", ").count(), 7);
}
