//! What a source was given and makes no item of, counted by reason. It decides about no file or member but whether its name is hidden.

use std::fmt;

use bincode::{Decode, Encode};
use orchestra_core::named_enum;

named_enum! {
    /// Why something that a source was given is no item. The number of each reason is a part of the format of lists: new ones come last.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PassedOver {
        /// Its name, or that of a folder above it, is hidden: see [`is_hidden`]. A hidden folder on a disk counts once.
        Hidden = "hidden",
        /// A folder where files are asked for: a member of an archive, or what a glob matches.
        Folder = "folder",
        /// A device, a pipe or a socket.
        Special = "special",
        /// A link to a folder, in an archive.
        FolderLink = "folder_link",
        /// An entry of an archive that holds no file, such as the label of a volume.
        OtherEntry = "other_entry",
        /// A member without the extension that says which column it is.
        NoExtension = "no_extension",
        /// A member whose sample is an item, and whose extension is no column of it.
        NoColumn = "no_column",
        /// A member that the source does not ask for.
        NotTaken = "not_taken",
        /// A line without a record.
        BlankLine = "blank_line",
        /// A folder that is also one above it, by a link on the way: its files are items already.
        LinkLoop = "link_loop",
        /// A file or folder that a run has made for itself: its output folder, a manifest of parts.
        OfRun = "of_run",
    }
}

/// How much was passed over, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct PassedOverCounts([u64; PassedOver::ALL.len()]);

impl PassedOverCounts {
    pub fn one(reason: PassedOver, n: u64) -> Self {
        let mut counts = Self::default();
        counts.add(reason, n);
        counts
    }

    pub fn add(&mut self, reason: PassedOver, n: u64) {
        let count = &mut self.0[reason as usize];
        *count = count.saturating_add(n);
    }

    pub fn of(&self, reason: PassedOver) -> u64 {
        self.0[reason as usize]
    }

    /// Those of both.
    pub fn and(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(n, more)| *n = n.saturating_add(more));
        self
    }

    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// The reasons that there are, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (PassedOver, u64)> {
        PassedOver::ALL.into_iter().zip(self.0).filter(|(_, n)| *n > 0)
    }

    /// As lists on disk hold it; an older one has fewer reasons.
    pub(crate) fn from_list(counts: impl Iterator<Item = u64>) -> Self {
        let mut found = Self::default();
        found.0.iter_mut().zip(counts).for_each(|(n, count)| *n = count);
        found
    }

    pub(crate) fn to_list(self) -> impl Iterator<Item = u64> {
        self.0.into_iter()
    }
}

/// `hidden 3, folder 1`
impl fmt::Display for PassedOverCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (reason, n)) in self.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{} {n}", reason.as_str())?;
        }
        Ok(())
    }
}

/// Whether one part of a path is hidden: it begins with a dot, or it is the folder in which macOS keeps what its archives hold beside the files.
pub fn is_hidden_part(part: &[u8]) -> bool {
    (part.starts_with(b".") && part != b"." && part != b"..") || part == b"__MACOSX"
}

/// Whether a path is hidden, for files, members of archives and objects alike: one of its parts is.
pub fn is_hidden(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(is_hidden_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_hidden_wherever_it_stands_in_a_path() {
        for hidden in [".a", "a/.b", ".a/b", "./.a", "__MACOSX/a", "x/__MACOSX/a", "..a", "a/._b.png"] {
            assert!(is_hidden(hidden.as_bytes()), "{hidden}");
        }
        for shown in ["a", "./a", "../a", "a.b", "a/b.", "MACOSX", "__MACOSX.png", "a..b/c"] {
            assert!(!is_hidden(shown.as_bytes()), "{shown}");
        }
    }

    #[test]
    fn each_reason_has_a_count_and_a_name_of_its_own() {
        let mut counts = PassedOverCounts::default();
        for (n, reason) in (1..).zip(PassedOver::ALL) {
            counts.add(reason, n);
        }
        assert!(counts.iter().eq(PassedOver::ALL.into_iter().zip(1..)));
        assert_eq!(PassedOverCounts::from_list(counts.to_list()), counts);
        let names: std::collections::BTreeSet<_> = PassedOver::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(names.len(), PassedOver::ALL.len());
        assert!(counts.to_string().starts_with("hidden 1, folder 2, special 3"), "{counts}");
        assert_eq!(counts.and(counts).total(), 2 * counts.total());
    }
}
