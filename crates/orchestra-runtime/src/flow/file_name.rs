//! The name of a file that is a record: that of its item, made fit for the disk. Different records never share a name. And what the index of
//! its sink says of it.

use std::fmt::Write;

use orchestra_core::data::ItemError;
use orchestra_plan::FilesPlan;
use serde::Deserialize;

use super::token::Token;

/// Longest name of a folder or file that all usual file systems take, in bytes.
const LONGEST_PART: usize = 255;

/// Longest path below the output folder: the kernel takes 4,096 bytes, and the folder has a path, too.
const LONGEST: usize = 3072;

/// `a/b.png.npy`; of a part `a/b.png.3.npy`. Fails where it would be too long for a disk.
///
/// `%` stands for what a name on the disk cannot be, or must not be: a folder is never called as a file or as what else lies there.
pub fn file_name(files: &FilesPlan, token: &Token) -> Result<Box<str>, ItemError> {
    let item = token.ticket.name();
    let mut name = String::with_capacity(item.len() + files.extension.len() + 8);
    let parts: Vec<&str> = item.split('/').collect();
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            name.push('/');
        }
        match *part {
            "" => name.push('%'),
            "." | ".." => part.bytes().for_each(|_| name.push_str("%2E")),
            _ => name.push_str(&part.replace('%', "%25")),
        }
        let extension = part.rsplit('.').next();
        let is_file_like = extension.is_some_and(|e| [&files.extension, "jsonl", "tmp"].contains(&e));
        if at + 1 < parts.len() && is_file_like {
            name.push('%');
        }
    }
    let numbers = files.numbered.then_some(token.ticket.id().index);
    for number in numbers.into_iter().chain(token.path().iter().map(|part| u64::from(part.index))) {
        write!(name, ".{number}").expect("a string takes any text");
    }
    name.push('.');
    name.push_str(&files.extension);
    if name.contains('\0') {
        return Err(ItemError::result("the name of the item has a zero byte, which no file's name may have"));
    }
    let too_long = |bytes: usize, most: usize| {
        let error = format!(
            "a file named after the item would need a name of {bytes} bytes, and a disk takes {most}"
        );
        Err(ItemError::result(error))
    };
    match name.split('/').map(str::len).find(|len| *len > LONGEST_PART) {
        Some(len) => too_long(len, LONGEST_PART),
        None if name.len() > LONGEST => too_long(name.len(), LONGEST),
        None => Ok(name.into_boxed_str()),
    }
}

/// What readers of an index want of a line: the file, and its bytes.
#[derive(Debug, Deserialize)]
pub struct IndexLine {
    pub file: String,
    pub bytes: u64,
}

/// What the index of a sink says of a file.
pub fn index_line(item: &str, index: u64, source: &str, file: &str, bytes: usize) -> Vec<u8> {
    let line = serde_json::json!({
        "item": item, "index": index, "source": source, "file": file, "bytes": bytes,
    });
    format!("{line}\n").into_bytes()
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

    fn name(item: &str, numbered: bool, path: &[u32]) -> Result<Box<str>, ItemError> {
        let files = FilesPlan { folder: "out".into(), extension: "npy".into(), numbered };
        let path = path.iter().map(|index| Part { index: *index, of: 9 }).collect();
        let mut tickets = TicketsBuilder::with_capacity(SourceId(0), 0, 1, false);
        tickets.add(17, item, b"");
        let ticket = tickets.build().next().unwrap();
        file_name(&files, &Token::new(ticket, Share::WHOLE, path))
    }

    #[test]
    fn names_stay_below_the_folder_and_never_meet() {
        assert_eq!(&*name("a/b.png", false, &[]).unwrap(), "a/b.png.npy");
        assert_eq!(&*name("a/b.png", true, &[3, 0]).unwrap(), "a/b.png.17.3.0.npy");
        let items = [
            "..",
            "../x",
            "a/../x",
            "/x",
            "x",
            "//x",
            "%2E%2E/x",
            "%/x",
            ".",
            "",
            "%",
            "%25",
            "a/",
            "a",
            "a.npy",
            "a.npy/b",
            "a.npy%/b",
            "index.jsonl/b",
        ];
        let names: HashSet<_> = items.iter().map(|item| name(item, false, &[]).unwrap()).collect();
        assert_eq!(names.len(), items.len(), "{names:?}");
        assert!(
            names.iter().all(|name| name.split('/').all(|part| !part.is_empty() && !part.starts_with("..")))
        );
        assert!(name(&"./".repeat(1500), false, &[]).unwrap_err().error.contains("3072"));
        // No file is called as a folder of another.
        let folders = names.iter().flat_map(|name| Path::new(&**name).ancestors().skip(1));
        assert!(folders.clone().all(|folder| names.iter().all(|name| Path::new(&**name) != folder)));
        assert!(name(&"x".repeat(300), false, &[]).unwrap_err().error.contains("255"));
        assert!(name("a\0b", false, &[]).is_err());
    }
}
