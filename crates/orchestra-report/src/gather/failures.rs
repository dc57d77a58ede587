//! Failed items by their causes, with the first few of each.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use orchestra_launch::{FAILURE_RECORDS, FailureCause, failure_causes};
use orchestra_store::each_record;
use serde::Deserialize;

use super::pictures::{PictureFinder, Thumbnail};

/// Causes in the page; the commonest come first.
const MOST_CAUSES: usize = 40;
/// PictureFinder of a cause.
const MOST_PICTURES: usize = 4;
const MOST_CHARS: usize = 1500;

#[derive(Debug, Clone)]
pub struct FailedGroup {
    pub cause: FailureCause,
    /// Of the first items that failed at this stage in this way.
    pub pictures: Vec<Thumbnail>,
}

#[derive(Deserialize)]
struct FailedItem<'a> {
    #[serde(borrow)]
    item: Cow<'a, str>,
    index: u64,
    #[serde(borrow)]
    source: Cow<'a, str>,
    #[serde(borrow)]
    stage: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

pub fn read(folder: &Path, pictures: &mut PictureFinder) -> io::Result<Vec<FailedGroup>> {
    let path = folder.join(FAILURE_RECORDS);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let mut groups: Vec<FailedGroup> = failure_causes(folder)
        .into_iter()
        .take(MOST_CAUSES)
        .map(|cause| FailedGroup { cause, pictures: Vec::new() })
        .collect();
    for group in &mut groups {
        let error = &mut group.cause.error;
        if let Some((end, _)) = error.char_indices().nth(MOST_CHARS) {
            error.truncate(end);
            error.push('…');
        }
    }
    each_record(&path, |_, line, _| {
        let Ok(failed) = serde_json::from_slice::<FailedItem<'_>>(line) else { return Ok(()) };
        let is_of = |group: &&mut FailedGroup| {
            group.pictures.len() < MOST_PICTURES
                && group.cause.stage == failed.stage
                && group.cause.kind == failed.kind
        };
        if let Some(group) = groups.iter_mut().find(is_of)
            && let Some(picture) = pictures.of_item(&failed.source, failed.index, &failed.item)
        {
            group.pictures.push(picture);
        }
        Ok::<_, io::Error>(())
    })?;
    Ok(groups)
}
