use std::io::Cursor;

use super::super::archive::Member;
use super::*;

/// A header and the content behind it.
pub fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
    header[156] = kind;
    header[257..263].copy_from_slice(b"ustar\0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = header.to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes: Vec<u8> = members.iter().flat_map(|(name, content)| member(name, b'0', content)).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<Member<TarPlace>>, String> {
    let mut members = members(Cursor::new(bytes)).unwrap();
    let mut all = Vec::new();
    while let Some(member) = members.next()? {
        all.push(member);
    }
    Ok(all)
}

#[test]
fn long_names_are_read_in_each_form_and_what_is_no_file_is_passed_over() {
    let long = "d/".repeat(90) + "x.txt";
    let record = format!("path={long}\n");
    let pax = format!("{} {record}", record.len() + 4);
    let mut bytes = member("folder/", b'5', b"");
    let mut label = member("label", b'V', b"");
    label[124..136].fill(0);
    bytes.extend(with_its_sum(label));
    bytes.extend(member("././@LongLink", b'L', format!("{long}\0").as_bytes()));
    bytes.extend(member("cut", b'0', b"gnu"));
    bytes.extend(member("pax", b'x', pax.as_bytes()));
    bytes.extend(member("cut", b'0', b"pax!"));
    bytes.extend(member("short", 0, b""));
    bytes.resize(bytes.len() + 512, 0);
    let members = read(&bytes).unwrap();
    let found = files(&bytes, &members);
    assert_eq!(found, [(&*long, Ok(&b"gnu"[..])), (&*long, Ok(b"pax!")), ("short", Ok(b""))]);
    assert_eq!(members[..2], [PassedOver::Folder, PassedOver::OtherEntry].map(Member::PassedOver));
}

fn files<'a>(bytes: &'a [u8], members: &'a [Member<TarPlace>]) -> Vec<(&'a str, Result<&'a [u8], Astray>)> {
    let file = |member: &'a Member<TarPlace>| match member {
        Member::File { name, place } => {
            let content = place.map(|[at, len]| &bytes[at as usize..][..len as usize]);
            Some((std::str::from_utf8(name).unwrap(), content))
        }
        Member::PassedOver(_) => None,
    };
    members.iter().filter_map(file).collect()
}

fn with_its_sum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[148..156].fill(b' ');
    let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes
}

#[test]
fn archives_behind_one_another_are_read_on_and_other_bytes_there_are_refused() {
    let (a, b) = (archive(&[("a", b"1")]), archive(&[("b", b"2")]));
    let both = [&a[..], &b].concat();
    let names = |bytes: &[u8]| -> Vec<String> {
        files(bytes, &read(bytes).unwrap()).iter().map(|(name, _)| (*name).to_owned()).collect()
    };
    assert_eq!(names(&both), ["a", "b"]);
    assert_eq!(names(&[&both[..], &[0; 700]].concat()), ["a", "b"], "zeros fill up");
    for behind in [&b"x"[..], &[7; 512], &[&[0; 100][..], b"x"].concat()] {
        let error = read(&[&a[..], behind].concat()).unwrap_err();
        assert!(error.contains(&format!("`head -c {}", a.len())), "{error}");
    }
    assert!(read(&[0; 1024]).unwrap().is_empty());
}

#[test]
fn no_piece_of_an_archive_is_taken_for_a_whole_one_and_no_size_is_believed() {
    let bytes = archive(&[("a.txt", &[7; 700]), ("b.txt", b"b")]);
    assert_eq!(read(&bytes).unwrap().len(), 2);
    for len in 0..bytes.len() - 1024 {
        let error = read(&bytes[..len]).unwrap_err();
        assert!(error.contains(&format!("ends at byte {len}")), "{error}");
    }
    let mut huge = member("././@LongLink", b'L', b"");
    huge[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    assert!(read(&huge).unwrap_err().contains("no header"), "its sum is wrong by now");
    for at in [0, 100, 130, 150, 300] {
        let mut bent = bytes.clone();
        bent[1536 + at] ^= 0x55;
        let error = read(&bent).unwrap_err();
        assert!(error.contains("byte 1536"), "{error}");
    }
    assert!(read(b"\x1f").unwrap_err().contains("no tar"));
    for compressed in [&b"\x1f\x8b"[..], &b"\x1f\x8b".repeat(300)] {
        assert!(read(compressed).unwrap_err().contains("gunzip"));
    }
}
