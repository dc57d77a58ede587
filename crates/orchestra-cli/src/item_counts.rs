//! How many items the sources of a plan have, for `check` and `plan`: lists those of which the planner does not know it, for as long as one waits for
//! that. What cannot be listed, the run will say.

use std::time::{Duration, Instant};

use orchestra::plan::KnownItems;
use orchestra::{Plan, ProcessLauncher, expand_of};
use orchestra_store::{ListingSpec, write_items};

/// For all sources together. A folder of a million files takes about a second.
const WITHIN: Duration = Duration::from_secs(3);

/// Writes down how many items each source has, where that can be told in time.
pub fn count(plan: &mut Plan) {
    let until = Instant::now() + WITHIN;
    let (Ok(launcher), Ok(folder)) = (ProcessLauncher::this_executable(), tempfile::tempdir()) else {
        return;
    };
    let Plan { sources, pipelines, .. } = plan;
    for source in sources.iter_mut().filter(|source| is_listed_soon(&source.listing)) {
        if matches!(source.n_items, Some(KnownItems::All(_))) {
            continue;
        }
        let limits = &pipelines[source.pipeline.index()].limits;
        let expand = expand_of(source, limits, Some(&launcher));
        let (list, go_on) = (folder.path().join("items"), || Instant::now() < until);
        if let Ok(listed) = write_items(&source.listing, expand.as_deref(), limits.max_items, &list, &go_on) {
            source.n_items = Some(KnownItems::All(listed.count));
        }
    }
}

/// Files on a disk. A pipe gives its rows once, a store charges for its pages, and a watched folder has no number.
fn is_listed_soon(listing: &ListingSpec) -> bool {
    match listing {
        ListingSpec::Paths { .. } => true,
        ListingSpec::Manifest { path, .. } => path.as_ref().is_some_and(|path| path.is_file()),
        ListingSpec::Watched { .. }
        | ListingSpec::Objects { .. }
        | ListingSpec::ObjectManifest { .. }
        | ListingSpec::Generated => false,
    }
}
