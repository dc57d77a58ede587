//! Members of a tar archive, in memory: ustar, and a pax header in front of a name that ustar cannot hold. Owner, time and mode are the same in all,
//! so that the same members are the same bytes.

use std::io::Write as _;

/// Bytes of a header, and what all sizes are rounded up to.
const BLOCK: usize = 512;
/// Bytes of a name, and of the folders in front of it, that a header of ustar has room for.
const NAME: usize = 100;
const PREFIX: usize = 155;

/// Appends a file; its content is shorter than 8 GiB, and its name has no NUL.
pub fn append(archive: &mut Vec<u8>, name: &str, content: &[u8]) {
    match split(name) {
        Some((prefix, name)) => header(archive, prefix, name, b'0', content.len()),
        None => {
            let record = path_record(name);
            header(archive, "", "pax_header", b'x', record.len());
            fill(archive, &record);
            header(archive, "", "long_name", b'0', content.len());
        }
    }
    fill(archive, content);
}

pub fn end(archive: &mut Vec<u8>) {
    archive.resize(archive.len() + 2 * BLOCK, 0);
}

/// Folders and name as ustar has them; `None` for names that are too long, or whose characters ustar says nothing of.
fn split(name: &str) -> Option<(&str, &str)> {
    match () {
        () if !name.is_ascii() => None,
        () if name.len() <= NAME => Some(("", name)),
        () => {
            let at = name.match_indices('/').map(|(at, _)| at).take_while(|at| *at <= PREFIX).last()?;
            let (prefix, rest) = (&name[..at], &name[at + 1..]);
            (rest.len() <= NAME && !rest.is_empty()).then_some((prefix, rest))
        }
    }
}

/// `LENGTH path=NAME\n`, where the length is that of all of it.
fn path_record(name: &str) -> Vec<u8> {
    let rest = " path=\n".len() + name.len();
    let digits = |n: usize| n.to_string().len();
    // One more digit may be needed to count the digits.
    let len = rest + digits(rest + digits(rest));
    format!("{len} path={name}\n").into_bytes()
}

fn header(archive: &mut Vec<u8>, prefix: &str, name: &str, kind: u8, len: usize) {
    let mut header = [0; BLOCK];
    let mut field = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    field(0, name.as_bytes());
    field(100, b"0000644\x000000000\x000000000\x00");
    field(124, format!("{len:011o}\0").as_bytes());
    field(136, b"00000000000\0        ");
    field(156, &[kind]);
    field(257, b"ustar\x0000");
    field(345, prefix.as_bytes());
    // It was summed up with blanks in the place of the sum.
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    let mut place = &mut header[148..156];
    write!(place, "{sum:06o}\0 ").expect("a sum of 512 bytes has six octal digits at most");
    archive.extend_from_slice(&header);
}

fn fill(archive: &mut Vec<u8>, content: &[u8]) {
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::sources::reading::archive::Member;
    use crate::sources::reading::tar_members;

    #[test]
    fn names_of_any_length_come_out_as_they_were() {
        let long = |n: usize| "x".repeat(n);
        let mut names = vec![
            "a.txt".to_owned(),
            "ä/ü.txt".to_owned(),
            "d/".repeat(77) + &long(100),
            "d/".repeat(78) + &long(100),
            long(155) + "/" + &long(100),
        ];
        // Around each length at which a digit comes to the length of the record, or the form of the name changes.
        names.extend([80..110, 250..262, 980..1000, 9_980..10_000].into_iter().flatten().map(long));
        let mut archive = Vec::new();
        for name in &names {
            append(&mut archive, name, name.as_bytes());
        }
        end(&mut archive);
        let mut members = tar_members::members(Cursor::new(&archive)).unwrap();
        let mut found = Vec::new();
        while let Some(member) = members.next().unwrap() {
            let Member::File { name, place: Ok([at, len]) } = member else { panic!("{member:?}") };
            assert_eq!(&archive[at as usize..][..len as usize], &name);
            found.push(String::from_utf8(name).unwrap());
        }
        assert_eq!(found, names);
    }
}
