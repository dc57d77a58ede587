//! Failed items by their causes, with pictures of the first few of each.

use std::path::Path;

use orchestra_launch::{FAILURE_RECORDS, FailureCause, failure_causes};

use super::pictures::{PictureFinder, Thumbnail};

/// Causes in the page; the commonest come first.
const MOST_CAUSES: usize = 40;
const MOST_CHARS: usize = 1500;

#[derive(Debug, Clone)]
pub struct FailedGroup {
    pub cause: FailureCause,
    /// Of its first items.
    pub pictures: Vec<Thumbnail>,
}

pub fn read(folder: &Path, pictures: &mut PictureFinder) -> Vec<FailedGroup> {
    if !folder.join(FAILURE_RECORDS).is_file() {
        return Vec::new();
    }
    let group = |mut cause: FailureCause| {
        if let Some((end, _)) = cause.error.char_indices().nth(MOST_CHARS) {
            cause.error.truncate(end);
            cause.error.push('…');
        }
        let first = cause.first.iter();
        let pictures = first.filter_map(|(source, index, name)| pictures.of_item(source, *index, name));
        FailedGroup { pictures: pictures.collect(), cause }
    };
    failure_causes(folder).into_iter().take(MOST_CAUSES).map(group).collect()
}
