//! Files and objects that are listed as they appear, each once, and when they are whole. Looks at the folders or buckets from time to time: that works on
//! every file system and store, and nothing is missed between two looks.
//!
//! An object of a store is whole once it is there. A file is whole when its size and its time of change were the same for [`Watch::settle`], or when it
//! is older than that by a minute: it was moved in, or lay there before. A path is taken once in the life of a list, whatever becomes of the file. What is
//! remembered of a path are 16 bytes.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::folder_walk::{FolderWalk, Walking};
use super::growth::Growth;
use super::item_name::name_under;
use super::kept_files::key;
use super::lister::{Lister, list};
use super::listing_file::{ListingWriter, folder_of};
use super::listing_reader::ListEntry;
use super::objects::{self, ObjectStore, SourceStore};
use super::pattern::{self, common_root};
use super::{Expand, ListError, ListingReader, ListingSpec, ListingSummary, PassedOverCounts};

/// A file that was not changed for so long is whole, whenever it was first seen. Clocks of file servers may differ by less.
const OLD: Duration = Duration::from_secs(60);

/// Time between two looks at folders: half of what a file takes to settle, within these bounds. Buckets are looked at as often as files settle, since stores
/// may ask money for each look.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Looking takes at most this part of the time, however many files there are.
const LOOKING: u32 = 10;

/// How a source is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Watch {
    /// For so long, size and time of change of a new file are the same before it is taken; of a bucket, the time between two looks.
    pub settle: Duration,
    /// After so long without a new file, the list is complete; `None`: never.
    pub idle: Option<Duration>,
}

/// What was seen of a file that is not whole yet.
struct Pending {
    look: Look,
    /// Since when it looks so.
    since: Instant,
}

/// What changes when a file is written. `None`: a link that leads nowhere.
type Look = Option<(u64, u64, i64, i64)>;

impl Pending {
    /// What is known of a file that looks so now.
    fn seen(before: Option<Self>, look: Look, now: Instant) -> Self {
        before.filter(|before| before.look == look).unwrap_or(Self { look, since: now })
    }

    fn is_settled(&self, now: Instant, settle: Duration) -> bool {
        now.duration_since(self.since) >= settle
    }
}

/// What the list of an earlier start has.
#[derive(Default)]
pub(crate) struct Taken {
    files: HashSet<[u8; 16]>,
    /// The file of its last items, and how many of them there are: the list may end in the middle of them.
    last: Option<(Vec<u8>, u64)>,
}

impl Taken {
    /// Reads what the list has, which may be unfinished.
    pub fn of(mut reader: ListingReader, expand: Option<&dyn Expand>) -> Result<Self, ListError> {
        let mut taken = Self::default();
        while let Some(entry) = reader.read_entry()? {
            let file = match entry {
                ListEntry::Item(locator) => {
                    let locator = Path::new(OsStr::from_bytes(locator));
                    expand.map_or(locator, |expand| expand.file_of(locator)).as_os_str().as_bytes()
                }
                // With all of its items, which may be none.
                ListEntry::File(_, path, _) => {
                    taken.files.insert(key(path.as_os_str().as_bytes()));
                    taken.last = None;
                    continue;
                }
            };
            match &mut taken.last {
                Some((last, n)) if last == file => *n += 1,
                last => {
                    taken.files.insert(key(file));
                    *last = Some((file.to_owned(), 1));
                }
            }
        }
        Ok(taken)
    }
}

/// Lists what is there and what comes, until the growth is stopped or, where [`Watch::idle`] says so, nothing comes any more.
pub(crate) fn watch(
    spec: &ListingSpec,
    watch: Watch,
    expand: Option<&dyn Expand>,
    most: u64,
    writer: ListingWriter,
    taken: Taken,
    growth: &Growth,
) -> Result<ListingSummary, ListError> {
    let (places, look_every) = match spec {
        ListingSpec::Objects { urls, store: SourceStore(store), .. } => {
            let (entries, root) = objects::ObjectsEntry::all(urls, &**store)?;
            (Places::Buckets { entries, root, store: &**store }, watch.settle.max(LOOK_EVERY.0))
        }
        ListingSpec::Paths { base, patterns } | ListingSpec::Watched { base, patterns, .. } => {
            let entries = patterns
                .iter()
                .map(|p| pattern::PathsEntry::resolve(base, p))
                .collect::<Result<Vec<_>, _>>()?;
            let root = common_root(entries.iter().map(|e| e.root.as_path()));
            (Places::Folders { entries, root }, (watch.settle / 2).clamp(LOOK_EVERY.0, LOOK_EVERY.1))
        }
        ListingSpec::Manifest { .. } | ListingSpec::ObjectManifest { .. } | ListingSpec::Generated => {
            return list(spec, Lister::new(writer, expand, most, &|| !growth.is_stopped()));
        }
    };
    let go_on = || !growth.is_stopped();
    let mut watcher = Watcher {
        places: &places,
        settle: watch.settle,
        lister: Lister::new(writer, expand, most, &go_on),
        taken: taken.files,
        pending: HashMap::new(),
        last_new: Instant::now(),
    };
    watcher.finish_last(taken.last)?;
    watcher.lister.writer.begin()?;
    loop {
        let begun = Instant::now();
        watcher.look()?;
        watcher.lister.writer.publish()?;
        let mut pause = look_every.max(begun.elapsed() * LOOKING);
        if let Some(idle) = watch.idle {
            // A file that was first seen in this look counts, however long ago that is by now.
            let left = idle.saturating_sub(begun.saturating_duration_since(watcher.last_new));
            if left.is_zero() {
                return watcher.lister.writer.finish();
            }
            pause = pause.min(left);
        }
        if growth.is_stopped_within(pause) {
            return Err(ListError::Stopped);
        }
    }
}

/// What is watched, and what the names of items are relative to.
enum Places<'a> {
    Folders { entries: Vec<pattern::PathsEntry>, root: PathBuf },
    Buckets { entries: Vec<objects::ObjectsEntry>, root: String, store: &'a dyn ObjectStore },
}

struct Watcher<'a> {
    places: &'a Places<'a>,
    settle: Duration,
    lister: Lister<'a>,
    taken: HashSet<[u8; 16]>,
    pending: HashMap<[u8; 16], Pending>,
    /// When a file was seen for the first time or taken.
    last_new: Instant,
}

impl Watcher<'_> {
    /// Lists the other items of a file in whose middle the list ends. One that is gone had no others that could be read.
    fn finish_last(&mut self, last: Option<(Vec<u8>, u64)>) -> Result<(), ListError> {
        let (Some((file, n)), true) = (last, self.lister.expand.is_some()) else { return Ok(()) };
        let file = Path::new(OsStr::from_bytes(&file));
        let (is_there, name) = match self.places {
            Places::Folders { root, .. } => (file.exists(), name_under(root, file)),
            Places::Buckets { root, store, .. } => {
                let url = file.to_string_lossy();
                (store.has(&url)?, objects::name_below(root, &url))
            }
        };
        if !is_there {
            return Ok(());
        }
        self.lister.push_from(n, &name, file)
    }

    fn look(&mut self) -> Result<(), ListError> {
        match self.places {
            Places::Folders { entries, root } => self.look_at_folders(entries, root),
            Places::Buckets { entries, root, store } => self.look_at_buckets(entries, root, *store),
        }
    }

    fn look_at_buckets(
        &mut self,
        entries: &[objects::ObjectsEntry],
        root: &str,
        store: &dyn ObjectStore,
    ) -> Result<(), ListError> {
        let go_on = self.lister.go_on;
        let idle = || if go_on() { Ok(()) } else { Err(ListError::Stopped) };
        let mut passed_over = PassedOverCounts::default();
        for entry in entries {
            entry.each(store, &idle, &mut |reason| passed_over.add(reason, 1), &mut |url| {
                if self.taken.insert(key(url.as_bytes())) {
                    self.lister.push(&objects::name_below(root, url), Path::new(url))?;
                    self.last_new = Instant::now();
                }
                Ok(())
            })?;
        }
        self.lister.pass_over(passed_over);
        Ok(())
    }

    /// Takes all new files that are whole.
    fn look_at_folders(&mut self, entries: &[pattern::PathsEntry], root: &Path) -> Result<(), ListError> {
        let spill_folder = folder_of(self.lister.writer.target());
        let go_on = self.lister.go_on;
        let mut step = || if go_on() { Ok(()) } else { Err(ListError::Stopped) };
        let mut passed_over = PassedOverCounts::default();
        let mut walking =
            Walking { spill_folder: &spill_folder, step: &mut step, passed_over: &mut passed_over };
        let mut walk = FolderWalk::begin(entries, &mut walking)?;
        let mut pending = HashMap::new();
        while let Some(path) = walk.next(&mut walking)? {
            let key = key(path.as_os_str().as_bytes());
            if self.taken.contains(&key) {
                continue;
            }
            let Some(look) = look_at(&path) else { continue };
            let (before, now) = (self.pending.remove(&key), Instant::now());
            if before.is_none() {
                self.last_new = now;
            }
            let seen = Pending::seen(before, look, now);
            if seen.is_settled(now, self.settle) || is_old(&path, self.settle.saturating_add(OLD)) {
                self.lister.push(&name_under(root, &path), &path)?;
                self.taken.insert(key);
                self.last_new = Instant::now();
            } else {
                pending.insert(key, seen);
            }
        }
        // Those that are gone are forgotten.
        self.pending = pending;
        self.lister.pass_over(passed_over);
        Ok(())
    }
}

/// How a file looks; `None` where it is gone.
fn look_at(path: &Path) -> Option<Look> {
    match path.metadata() {
        Ok(m) => Some(Some((m.ino(), m.len(), m.mtime(), m.mtime_nsec()))),
        // As in every list: it fails by its name.
        Err(_) => path.symlink_metadata().is_ok().then_some(None),
    }
}

fn is_old(path: &Path, age: Duration) -> bool {
    let modified = path.metadata().and_then(|m| m.modified());
    modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|passed| passed >= age))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_once_it_looked_the_same_for_long_enough() {
        let (settle, start) = (Duration::from_secs(2), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let look = |size: u64, changed: i64| Some((7, size, changed, 0));
        // Seconds, how it looks, and whether it is whole.
        let looks = [
            (0, look(1, 0), false),
            (1, look(1, 0), false),
            (2, look(2, 2), false),
            (3, look(2, 3), false),
            (4, look(2, 3), false),
            (5, look(2, 3), true),
        ];
        let mut seen = None;
        for (seconds, look, is_whole) in looks {
            let now = Pending::seen(seen, look, at(seconds));
            assert_eq!(now.is_settled(at(seconds), settle), is_whole, "after {seconds} s");
            seen = Some(now);
        }
        assert!(Pending::seen(None, None, start).is_settled(start, Duration::ZERO));
    }
}
