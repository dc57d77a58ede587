//! Members of a tar archive, in memory: ustar, and a pax header in front of a name that ustar cannot hold. Owner, time and mode are the same in all,
//! so that the same members are the same bytes.

use std::io;

use tar::{Builder, EntryType, Header};

/// Appends a file; its name has no NUL, and no part that is empty or dots.
pub fn append(archive: &mut Builder<Vec<u8>>, name: &str, content: &[u8]) -> io::Result<()> {
    let mut header = Header::new_ustar();
    // Of other characters, ustar says nothing.
    if !name.is_ascii() || header.set_path(name).is_err() {
        archive.append_pax_extensions([("path", name.as_bytes())])?;
        header = Header::new_ustar();
        header.set_path("long_name")?;
    }
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(content.len() as u64);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    archive.append(&header, content)
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
        let mut archive = Builder::new(Vec::new());
        for name in &names {
            append(&mut archive, name, name.as_bytes()).unwrap();
        }
        let archive = archive.into_inner().unwrap();
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
