//! How many items the sources of a plan have, for `check` and `plan`: lists those of which the planner does not know it, for as long as one waits for
//! that. A file that is not there yet, the run will miss; one that is there and cannot be listed is an error here, too.

use std::time::{Duration, Instant};

use orchestra_launch::plan::KnownItems;
use orchestra_launch::{Plan, ProcessLauncher, expand_of};
use orchestra_store::{ListError, ListingSpec, write_items};

use crate::Failed;
use crate::lab::item_lists::not_listed;

/// For all sources together. A folder of a million files takes about a second.
const WITHIN: Duration = Duration::from_secs(3);

/// Writes down how many items each source has, where that can be told in time.
pub fn count(plan: &mut Plan) -> Result<(), Failed> {
    let until = Instant::now() + WITHIN;
    let (Ok(launcher), Ok(folder)) = (ProcessLauncher::this_executable(), tempfile::tempdir()) else {
        return Ok(());
    };
    let Plan { sources, pipelines, .. } = plan;
    for source in sources.iter_mut().filter(|source| is_listed_soon(&source.listing)) {
        let limits = &pipelines[source.pipeline.index()].limits;
        let expand = expand_of(source, limits, Some(&launcher));
        let (list, go_on) = (folder.path().join("items"), || Instant::now() < until);
        match write_items(&source.listing, expand.as_deref(), limits.max_items, &list, &go_on) {
            Ok(listed) => source.n_items = Some(KnownItems::All(listed.count)),
            Err(error @ (ListError::BadFile { .. } | ListError::AllPassedOver { .. })) => {
                return Err(not_listed(&source.name)(error));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Files on a disk. A pipe gives its rows once, and a store charges for its pages.
fn is_listed_soon(listing: &ListingSpec) -> bool {
    match listing {
        ListingSpec::Paths { .. } => true,
        ListingSpec::Manifest { path, .. } => path.as_ref().is_some_and(|path| path.is_file()),
        ListingSpec::Objects { .. } | ListingSpec::ObjectManifest { .. } | ListingSpec::Generated => false,
    }
}
