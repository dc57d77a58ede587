//! The name of a file that is a record: that of its item, made fit for the disk. Different records never share a name.

use std::fmt::Write;

use orchestra_core::data::Refusal;
use orchestra_plan::FilesPlan;

use super::token::Token;

/// Longest name of a folder or file that all usual file systems take, in bytes.
const LONGEST: usize = 255;

/// `a/b.png.npy`; of a part `a/b.png.3.npy`. Fails where a part of the path is too long for a disk.
pub fn file_name(files: &FilesPlan, token: &Token) -> Result<Box<str>, Refusal> {
    let item = token.ticket.name();
    let mut name = String::with_capacity(item.len() + files.extension.len() + 8);
    for (at, part) in item.split('/').enumerate() {
        if at > 0 {
            name.push('/');
        }
        match part {
            // Names of items may lead anywhere; files lie below the folder of the sink.
            "" => name.push('%'),
            "." | ".." => part.bytes().for_each(|_| name.push_str("%2E")),
            _ if part.starts_with('%') => {
                name.push_str("%25");
                name.push_str(&part[1..]);
            }
            _ => name.push_str(part),
        }
    }
    let numbers = files.numbered.then_some(token.ticket.id().index);
    for number in numbers.into_iter().chain(token.path().iter().map(|part| u64::from(part.index))) {
        write!(name, ".{number}").expect("a string takes any text");
    }
    name.push('.');
    name.push_str(files.extension);
    if name.contains('\0') {
        return Err(Refusal::result("the name of the item has a zero byte, which no file's name may have"));
    }
    match name.split('/').find(|part| part.len() > LONGEST) {
        Some(part) => Err(Refusal::result(format!(
            "a file named after the item would need a name of {} bytes, and a disk takes {LONGEST}",
            part.len()
        ))),
        None => Ok(name.into_boxed_str()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use orchestra_core::SourceId;
    use orchestra_core::collect::Part;
    use orchestra_core::lineage::Share;

    use super::*;
    use crate::flow::ticket::TicketsBuilder;

    fn name(item: &str, numbered: bool, path: &[u32]) -> Result<Box<str>, Refusal> {
        let files = FilesPlan { folder: "out".into(), extension: "npy", numbered };
        let path = path.iter().map(|index| Part { index: *index, of: 9 }).collect();
        let mut tickets = TicketsBuilder::with_capacity(SourceId(0), 0, 1, false);
        tickets.add(17, item, Path::new(""));
        let ticket = tickets.build().next().unwrap();
        file_name(&files, &Token::new(ticket, Share::WHOLE, path, Vec::new()))
    }

    #[test]
    fn names_stay_below_the_folder_and_never_meet() {
        assert_eq!(&*name("a/b.png", false, &[]).unwrap(), "a/b.png.npy");
        assert_eq!(&*name("a/b.png", true, &[3, 0]).unwrap(), "a/b.png.17.3.0.npy");
        let items =
            ["..", "../x", "a/../x", "/x", "x", "//x", "%2E%2E/x", "%/x", ".", "", "%", "%25", "a/", "a"];
        let names: HashSet<_> = items.iter().map(|item| name(item, false, &[]).unwrap()).collect();
        assert_eq!(names.len(), items.len(), "{names:?}");
        assert!(
            names.iter().all(|name| name.split('/').all(|part| !part.is_empty() && !part.starts_with("..")))
        );
        assert!(name(&"x".repeat(300), false, &[]).unwrap_err().error.contains("255"));
        assert!(name("a\0b", false, &[]).is_err());
    }
}
