use std::io::{Cursor, Write};

use zip::write::{SimpleFileOptions, ZipWriter};

use orchestra_plan::ReadOptions;

use super::super::archive::Member;
use super::super::input::Opener;
use super::*;

type Named = Vec<(Vec<u8>, Vec<u8>)>;

pub fn archive(members: &[(&str, &[u8])], method: zip::CompressionMethod, large: bool) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method).large_file(large);
    for (name, content) in members {
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn read(bytes: &[u8]) -> Result<Named, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zip");
    std::fs::write(&path, bytes).unwrap();
    let input = Opener::new(&ReadOptions::default()).open(&path).unwrap();
    let mut members = members(Cursor::new(bytes))?;
    let mut all = Vec::new();
    while let Some(member) = members.next()? {
        let Member::File { name, place } = member else {
            return Err("a member is passed over, and counted".to_owned());
        };
        let place = place.unwrap_or_else(ZipPlace::astray);
        let mut content = Vec::new();
        read_member(&input, &place, &mut content)?;
        assert_eq!(ZipPlace::of_numbers(place.numbers()), Some(place));
        all.push((name, content));
    }
    Ok(all)
}

#[test]
fn members_are_read_as_they_were_written_and_no_damage_goes_unseen() {
    let long = b"abc".repeat(1000);
    let members: [(&str, &[u8]); 3] = [("a", b""), ("d/b", &long), ("c", b"x")];
    let expected: Vec<_> = members.iter().map(|(n, c)| (n.as_bytes().to_vec(), c.to_vec())).collect();
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        for large in [false, true] {
            let bytes = archive(&members, method, large);
            assert_eq!(read(&bytes).unwrap(), expected);
            for len in (0..bytes.len()).step_by(7) {
                assert!(read(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
            }
            for at in 0..bytes.len() {
                let mut bent = bytes.clone();
                bent[at] ^= 0x41;
                // Bytes that mean nothing to a reader of contents (dates, versions, names of local headers) may change.
                let found =
                    read(&bent).map(|all| all.into_iter().map(|(_, content)| content).collect::<Vec<_>>());
                let contents: Vec<_> = expected.iter().map(|(_, content)| content.clone()).collect();
                assert!(found.is_err() || found.as_ref() == Ok(&contents), "byte {at}");
            }
        }
    }
}

#[test]
fn every_byte_of_the_file_belongs_to_the_archive_or_it_is_refused_with_what_to_do() {
    for large in [false, true] {
        let bytes = archive(&[("a", b"1"), ("b", b"2")], zip::CompressionMethod::Stored, large);
        let refused = |bytes: &[u8]| read(bytes).unwrap_err();
        for other in [&b"#!/bin/sh\n"[..], &bytes] {
            let error = refused(&[other, &bytes].concat());
            assert!(
                error.contains(&format!("its first {} bytes belong to no member", other.len())),
                "{error}"
            );
            let error = refused(&[&bytes[..], b"x"].concat());
            assert!(error.contains(&format!("`head -c {} ", bytes.len())), "{error}");
        }
        // An end within the comment of another one.
        let end = bytes.len() - 22;
        let mut two = [&bytes[..], &bytes[end..]].concat();
        two[end + 20] = 22;
        assert!(refused(&two).contains("two ends"));
        let mut fewer = bytes.clone();
        fewer[end + 10] = 1;
        fewer[end + 8] = 1;
        assert!(refused(&fewer).contains("its end says 1 members, and its directory has 2"));
    }
}

#[test]
fn a_comment_is_no_member_and_links_and_passwords_fail_by_name() {
    let bytes = archive(&[("a", b"target")], zip::CompressionMethod::Stored, false);
    let mut commented = [&bytes[..], b"PK\x05\x06 comment"].concat();
    commented[bytes.len() - 2] = 12;
    assert_eq!(read(&commented).unwrap().len(), 1);
    let entry = bytes.windows(4).rposition(|at| at == b"PK\x01\x02").unwrap();
    let changed = |at: usize, value: &[u8]| {
        let mut changed = bytes.clone();
        changed[entry + at..][..value.len()].copy_from_slice(value);
        read(&changed)
    };
    assert!(changed(8, &[1]).unwrap_err().contains("without a password"));
    assert!(changed(10, &[93]).unwrap_err().contains("method 93"));
    assert!(changed(41, &[0o240]).unwrap_err().contains("a link to no member"));
}

#[test]
fn a_member_gives_no_more_than_its_entry_says_and_claims_no_more_than_it_can_hold() {
    let mut bytes = archive(&[("a", &[0; 100_000])], zip::CompressionMethod::Deflated, false);
    let entry = bytes.windows(4).rposition(|at| at == b"PK\x01\x02").unwrap();
    for (claimed, why) in [(99_u32, "does not have the 99 bytes"), (u32::MAX - 1, "cannot hold")] {
        bytes[entry + 24..entry + 28].copy_from_slice(&claimed.to_le_bytes());
        assert!(read(&bytes).unwrap_err().contains(why));
    }
}
