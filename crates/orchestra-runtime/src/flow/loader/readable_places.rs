//! The files that the loader processes of a source may read: those in the places that it names, and where links and manifests lead from there.
//! It looks where items lie, and opens none: a path that an item holds leads nowhere.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use orchestra_core::locked;

use orchestra_core::shapes::FileAccess;
use orchestra_store::ListingSpec;

/// After so many places that items led to, the next one is a folder higher, and so on: the number of processes that end for want of a place is
/// bounded, however many folders the items lie in.
const BEFORE_HIGHER: usize = 16;

/// Places that processes may read, as they are known so far. It only grows.
#[derive(Debug)]
pub struct ReadablePlaces {
    opens: FileAccess,
    /// How many of them the source names itself.
    n_named: usize,
    places: Mutex<Vec<PathBuf>>,
}

impl ReadablePlaces {
    /// `named` are places beside those of the list.
    pub fn new(opens: FileAccess, listing: &ListingSpec, named: &[PathBuf]) -> Self {
        let folder_of = |root: PathBuf| match root.parent() {
            Some(folder) if !root.is_dir() => folder.to_owned(),
            _ => root,
        };
        let roots: Vec<PathBuf> = match opens {
            FileAccess::Any => vec!["/".into()],
            FileAccess::OfItems(_) => listing.roots(),
            FileAccess::Beside(_) => listing.roots().into_iter().map(folder_of).collect(),
        };
        let places: Vec<PathBuf> =
            roots.iter().chain(named).filter_map(|place| place.canonicalize().ok()).collect();
        Self { opens, n_named: places.len(), places: Mutex::new(places) }
    }

    /// For a process that starts now: the places, as bytes of their paths.
    pub fn as_bytes(&self) -> Vec<Vec<u8>> {
        locked(&self.places).iter().map(|place| place.as_os_str().as_bytes().to_vec()).collect()
    }

    /// Adds the place of an item that lies in none. Whether a process that starts now may read the item, and one with the first `known` places
    /// could not. What an item names decides, and nothing that a process says.
    pub fn add_for(&self, locator: &[u8], known: usize) -> bool {
        let (FileAccess::OfItems(file_of) | FileAccess::Beside(file_of)) = self.opens else { return false };
        file_of(locator).is_some_and(|file| self.add_for_file(file, known))
    }

    /// The same of a file that holds items.
    pub fn add_for_file(&self, file: &Path, known: usize) -> bool {
        let Ok(file) = file.canonicalize() else { return false };
        let mut places = locked(&self.places);
        let (before, since) = places.split_at(known.min(places.len()));
        let holds = |place: &PathBuf| file.starts_with(place);
        if before.iter().any(holds) {
            return false;
        }
        if !since.iter().any(holds) {
            let higher = (places.len() - self.n_named) / BEFORE_HIGHER;
            let place = file.ancestors().nth(1 + higher).unwrap_or(Path::new("/"));
            places.push(place.to_owned());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn whole(locator: &[u8]) -> Option<&Path> {
        Some(Path::new(OsStr::from_bytes(locator)))
    }

    fn of_named(folder: &Path) -> ReadablePlaces {
        let listing = ListingSpec::Paths { base: folder.to_owned(), patterns: vec!["named/*.png".into()] };
        ReadablePlaces::new(FileAccess::OfItems(whole), &listing, &[])
    }

    #[test]
    fn what_items_name_is_read_beside_them_and_where_the_source_allows_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        for name in ["lists", "pictures", "private"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("lists/a.jsonl"), "").unwrap();
        let listing = |pattern: &str| ListingSpec::Paths {
            base: folder.path().to_owned(),
            patterns: vec![pattern.into()],
        };
        for pattern in ["lists/a.jsonl", "lists/*.jsonl", "lists"] {
            let named = [at("pictures"), at("missing")];
            let readable = ReadablePlaces::new(FileAccess::Beside(whole), &listing(pattern), &named);
            assert_eq!(*locked(&readable.places), [at("lists"), at("pictures")], "{pattern}");
            let of_items = ReadablePlaces::new(FileAccess::OfItems(whole), &listing("lists/a.jsonl"), &[]);
            assert_eq!(*locked(&of_items.places), [at("lists/a.jsonl")], "no more than the file");
        }
    }

    #[test]
    fn a_link_leads_once_to_the_folder_of_its_file_and_to_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        for name in ["named", "store", "private"] {
            fs::create_dir(at(name)).unwrap();
        }
        for name in ["named/own.png", "store/far.png", "private/key"] {
            fs::write(at(name), "").unwrap();
        }
        symlink(at("store/far.png"), at("named/far.png")).unwrap();
        let readable = of_named(folder.path());
        assert_eq!(*locked(&readable.places), [at("named")]);
        let leads = |name: &str, known| readable.add_for(at(name).as_os_str().as_bytes(), known);
        assert!(!leads("named/own.png", 1), "it may be read already");
        assert!(!leads("named/missing.png", 1), "there is nothing");
        assert!(leads("named/far.png", 1));
        assert!(leads("named/far.png", 1), "another process has not got the place yet");
        assert!(!leads("named/far.png", 2), "this one has");
        assert_eq!(*locked(&readable.places), [at("named"), at("store")]);
    }

    #[test]
    fn items_that_lie_all_over_the_place_end_few_processes() {
        let folder = tempfile::tempdir().unwrap();
        let readable = of_named(folder.path());
        let mut ended = 0;
        for n in 0..1_000 {
            let lies_in = folder.path().join(format!("store/{n}"));
            fs::create_dir_all(&lies_in).unwrap();
            let file = lies_in.join("item.png");
            fs::write(&file, "").unwrap();
            let known = locked(&readable.places).len();
            ended += usize::from(readable.add_for(file.as_os_str().as_bytes(), known));
        }
        assert_eq!(ended, BEFORE_HIGHER + 1, "{:?}", locked(&readable.places));
    }
}
