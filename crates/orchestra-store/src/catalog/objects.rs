//! Entries of `paths` that are URLs: which objects of a store each stands for, in the order of their URLs. What speaks to the store is handed
//! in; nothing here knows a protocol.
//!
//! An entry is an object, a prefix (every object below it) or a glob, as an entry for files is. A key stands in a URL as the store calls it,
//! without escapes, so that what a store prints can be copied. Objects are asked for a page at a time and as they are needed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::item_name::escape;
use super::pattern::{GLOB_CHARACTERS, Glob};
use super::{ItemEntry, ListError, MANIFEST, PassedOver, is_hidden};

/// Takes the name and the URL of an object.
pub(super) type Push<'a> = &'a mut dyn FnMut(&str, &Path) -> Result<(), ListError>;

/// Takes why an object that an entry matches is no item.
pub(super) type Pass<'a> = &'a mut dyn FnMut(PassedOver);

/// Speaks to stores of objects.
pub trait ObjectStore: fmt::Debug + Send + Sync {
    /// Whether the store of `url` can say which objects it has. Of one that cannot, each object is named by an entry.
    fn can_list(&self, url: &str) -> bool;

    /// Whether there is an object of exactly this URL. Blocks.
    fn has(&self, url: &str) -> Result<bool, ListError>;

    /// The objects whose URLs begin with `prefix`, in the order of the store. The iterator blocks.
    fn objects(&self, prefix: &str) -> Result<Objects, ListError>;

    /// The bytes of an object, in order. Reading blocks; where it fails, the error holds a [`ListError`].
    fn open(&self, url: &str) -> Result<Box<dyn Read>, ListError>;
}

/// Objects of a store as they are found, a page at a time. Behind an error there are none.
pub type Objects = Box<dyn Iterator<Item = Result<ObjectPage, ListError>>>;

/// What a store gives at once, which may be nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPage {
    pub objects: Vec<Object>,
    /// No other page follows.
    pub is_last: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its URL, with its key as the store calls it.
    pub url: String,
    pub bytes: u64,
}

/// Objects one after the other, whatever page they come in.
pub fn one_by_one(pages: Objects) -> impl Iterator<Item = Result<Object, ListError>> {
    pages.flat_map(|page| match page {
        Ok(page) => page.objects.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    })
}

/// A [`ObjectStore`] as a part of a plan.
#[derive(Debug, Clone)]
pub struct SourceStore(pub Arc<dyn ObjectStore>);

/// Which object answers is no part of what a source names.
impl PartialEq for SourceStore {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SourceStore {}

/// Whether an entry of `paths` is a URL: letters, digits, `+`, `-` and `.`, and `://` behind them.
pub fn is_url(entry: &str) -> bool {
    entry.split_once("://").is_some_and(|(scheme, _)| {
        let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_of_scheme)
    })
}

pub(super) struct ObjectsEntry {
    url: String,
    /// What names are relative to, as far as this entry decides: the URL up to a slash.
    root: String,
    kind: UrlKind,
}

enum UrlKind {
    Object,
    /// Everything below the root.
    Prefix,
    Glob {
        glob: Glob,
        /// What the URLs of all matches begin with.
        prefix: String,
    },
}

impl ObjectsEntry {
    /// `ask`: whether an object of that name is looked for where the store need not be asked to list it.
    fn resolve(url: &str, store: &dyn ObjectStore, ask: bool) -> Result<Self, ListError> {
        let bad = |reason: &str| ListError::BadPattern { pattern: url.into(), reason: reason.into() };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it is no URL"))?;
        if url.contains(|c: char| c.is_ascii_control()) {
            return Err(bad("a URL holds no control characters"));
        }
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || bucket.contains(GLOB_CHARACTERS) {
            return Err(bad(&format!("it names no bucket or host; expected `{scheme}://name/..`")));
        }
        let key_at = scheme.len() + 3 + bucket.len() + 1;
        let parent = |url: &str| url[..url.rfind('/').map_or(0, |slash| slash + 1)].to_owned();
        if !store.can_list(url) {
            let object = || Self { url: url.into(), root: parent(url), kind: UrlKind::Object };
            return match () {
                () if key.is_empty() || key.ends_with('/') => {
                    Err(bad("a web server cannot be asked what it has; name each object"))
                }
                () if !ask || store.has(url)? => Ok(object()),
                () => Err(ListError::NoObject { url: url.into(), under: None }),
            };
        }
        let below = |folder: String| Self { url: url.into(), root: folder, kind: UrlKind::Prefix };
        if let Some(at) = key.find(GLOB_CHARACTERS) {
            let root = key_at + key[..at].rfind('/').map_or(0, |slash| slash + 1);
            let plain = key.find(|c| c == '\\' || GLOB_CHARACTERS.contains(&c)).unwrap_or(at);
            let glob = Glob::parse(url, &url[root..])?;
            let prefix = url[..key_at + plain].to_owned();
            return Ok(Self {
                url: url.into(),
                root: url[..root].into(),
                kind: UrlKind::Glob { glob, prefix },
            });
        }
        if key.is_empty() {
            return Ok(below(format!("{scheme}://{bucket}/")));
        }
        if !key.ends_with('/') && store.has(url)? {
            return Ok(Self { url: url.into(), root: parent(url), kind: UrlKind::Object });
        }
        Ok(below(format!("{}/", url.trim_end_matches('/'))))
    }

    fn objects(&self, store: &dyn ObjectStore) -> Result<Objects, ListError> {
        match &self.kind {
            UrlKind::Object => {
                let objects = vec![Object { url: self.url.clone(), bytes: 1 }];
                Ok(Box::new(std::iter::once(Ok(ObjectPage { objects, is_last: true }))))
            }
            UrlKind::Prefix => store.objects(&self.root),
            UrlKind::Glob { prefix, .. } => store.objects(prefix),
        }
    }

    fn matches(&self, object: &Object) -> bool {
        let Some(key) = object.url.strip_prefix(&self.root) else { return false };
        match &self.kind {
            UrlKind::Glob { glob, .. } => glob.takes(key.as_bytes()),
            UrlKind::Object | UrlKind::Prefix => true,
        }
    }

    /// Why an object that it matches is no item, if it is none.
    fn passed_over(&self, object: &Object) -> Option<PassedOver> {
        let takes_hidden = match &self.kind {
            UrlKind::Object => return None,
            UrlKind::Prefix => false,
            UrlKind::Glob { glob, .. } => glob.takes_hidden,
        };
        let key = object.url.strip_prefix(&self.root).unwrap_or_default();
        let last = key.rsplit('/').next().unwrap_or_default();
        // What stores keep so that a folder without objects can be shown.
        if object.bytes == 0 && !last.contains('.') {
            return Some(PassedOver::Folder);
        }
        if last == MANIFEST {
            return Some(PassedOver::OfRun);
        }
        (!takes_hidden && is_hidden(key.as_bytes())).then_some(PassedOver::Hidden)
    }

    fn no_match(&self) -> ListError {
        ListError::NoObject { url: self.url.clone(), under: Some(self.root.clone()) }
    }
}

struct EntryObjects<'e> {
    entry: &'e ObjectsEntry,
    pages: Objects,
    /// Those of the page at hand that were not looked at yet.
    objects: std::vec::IntoIter<Object>,
    place: PagePosition,
    last: String,
}

/// Of the page at hand.
#[derive(PartialEq)]
enum PagePosition {
    /// There is none yet.
    Start,
    Middle,
    End,
}

impl<'e> EntryObjects<'e> {
    fn start(entry: &'e ObjectsEntry, store: &'e dyn ObjectStore) -> Result<Self, ListError> {
        let (pages, objects) = (entry.objects(store)?, Vec::new().into_iter());
        Ok(Self { entry, pages, objects, place: PagePosition::Start, last: String::new() })
    }

    /// `idle` is called where another page has to be waited for, and all that was given comes of the pages before it.
    fn next(
        &mut self,
        idle: &dyn Fn() -> Result<(), ListError>,
        pass: Pass<'_>,
    ) -> Result<Option<String>, ListError> {
        loop {
            for object in self.objects.by_ref() {
                if !self.entry.matches(&object) {
                    continue;
                }
                match self.entry.passed_over(&object) {
                    Some(reason) => pass(reason),
                    None => return Ok(Some(object.url)),
                }
            }
            match self.place {
                PagePosition::Start => {}
                PagePosition::Middle => idle()?,
                PagePosition::End => return Ok(None),
            }
            let Some(page) = self.pages.next() else { return Ok(None) };
            let ObjectPage { objects, is_last } = page?;
            self.place = if is_last { PagePosition::End } else { PagePosition::Middle };
            self.objects = objects.into_iter();
        }
    }
}

/// Gives the objects of all entries, each once: those of one in the order of its store, those of several in the order of the bytes of their
/// URLs. `idle` is called before each page but the first of an entry.
pub(super) fn list(
    urls: &[String],
    store: &dyn ObjectStore,
    idle: &dyn Fn() -> Result<(), ListError>,
    push: Push<'_>,
    pass: Pass<'_>,
) -> Result<(), ListError> {
    let entries =
        urls.iter().map(|url| ObjectsEntry::resolve(url, store, false)).collect::<Result<Vec<_>, _>>()?;
    let root = common_root(&entries);
    let (mut walks, mut heads) = (Vec::new(), BinaryHeap::new());
    for (at, entry) in entries.iter().enumerate() {
        let mut walk = EntryObjects::start(entry, store)?;
        let first = walk.next(idle, pass)?.ok_or_else(|| entry.no_match())?;
        heads.push(Reverse((first, at)));
        walks.push(walk);
    }
    let mut last = String::new();
    while let Some(Reverse((url, at))) = heads.pop() {
        if url != last {
            // Before the next page is waited for, which may be long in coming.
            push(&name_below(&root, &url), Path::new(&url))?;
        }
        let walk = &mut walks[at];
        if entries.len() > 1 && url < walk.last {
            return Err(ListError::Unordered { url: walk.entry.url.clone(), behind: url });
        }
        walk.last.clone_from(&url);
        last = url;
        heads.extend(walk.next(idle, pass)?.map(|url| Reverse((url, at))));
    }
    Ok(())
}

/// Some object of an entry, in the order of the entries.
pub(super) fn first(urls: &[String], store: &dyn ObjectStore) -> Result<Option<ItemEntry>, ListError> {
    for url in urls {
        let entry = ObjectsEntry::resolve(url, store, true)?;
        let mut objects = EntryObjects::start(&entry, store)?;
        if let Some(url) = objects.next(&|| Ok(()), &mut |_| ())? {
            return Ok(Some(ItemEntry { name: name_below(&entry.root, &url), locator: url.into() }));
        }
    }
    Ok(None)
}

/// What records call an object.
pub(super) fn name_below(root: &str, url: &str) -> String {
    escape(Path::new(url.strip_prefix(root).unwrap_or(url)))
}

/// The item of a row of a list: a key below `root`, or a URL of its store.
pub(super) fn of_row(root: &str, row: &[u8]) -> Result<ItemEntry, String> {
    let row = std::str::from_utf8(row).map_err(|_| "it is not in UTF-8, as keys are".to_owned())?;
    let row = row.trim_start_matches("./");
    if row.contains(|c: char| c.is_ascii_control()) {
        return Err("a key holds no control characters".to_owned());
    }
    // As in `paths`; it is not repeated in the message.
    if root.starts_with("http") && [root, row].iter().any(|part| part.contains(['?', '#'])) {
        return Err("a web address with `?` or `#` is not read: what stands behind it, as a signature, would be written into records and logs".to_owned());
    }
    if !is_url(row) {
        return Ok(ItemEntry {
            name: escape(Path::new(row)),
            locator: PathBuf::from(format!("{root}{row}")),
        });
    }
    let scheme = root.find("://").map_or(0, |at| at + 3);
    let store = root[scheme..].find('/').map_or(root, |slash| &root[..scheme + slash + 1]);
    match row.starts_with(store) {
        true => Ok(ItemEntry { name: name_below(root, row), locator: row.into() }),
        false => Err(format!("`{row}` lies elsewhere than in `{store}`, the store of `root`")),
    }
}

/// What all roots begin with, up to a slash.
fn common_root(entries: &[ObjectsEntry]) -> String {
    let mut roots = entries.iter().map(|entry| entry.root.as_str());
    let first = roots.next().unwrap_or_default();
    let len = roots.fold(first.len(), |len, root| {
        let same = first[..len].bytes().zip(root.bytes()).take_while(|(a, b)| a == b).count();
        first.as_bytes()[..same].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)
    });
    first[..len].to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Mutex;

    use super::*;

    /// A bucket `s3://b/` with these keys, which are given by hundreds, though not all of a hundred are there: a store may give fewer than it could, and none
    /// at all. Those that end in a slash are marks, and given without it.
    #[derive(Debug, Default)]
    struct Bucket {
        keys: Vec<String>,
        pages: Arc<Mutex<u64>>,
    }

    impl Bucket {
        fn of(keys: &[&str]) -> Self {
            Self { keys: keys.iter().map(|key| (*key).to_owned()).collect(), ..Self::default() }
        }
    }

    impl ObjectStore for Bucket {
        fn can_list(&self, url: &str) -> bool {
            !url.starts_with("http")
        }

        fn has(&self, url: &str) -> Result<bool, ListError> {
            Ok(self.keys.iter().any(|key| format!("s3://b/{key}") == url))
        }

        fn objects(&self, prefix: &str) -> Result<Objects, ListError> {
            let object = |key: &String| Object {
                url: format!("s3://b/{}", key.trim_end_matches('/')),
                bytes: u64::from(!key.ends_with('/')),
            };
            let mut pages: Vec<Vec<Object>> = Vec::new();
            for keys in self.keys.chunks(100) {
                pages.push(keys.iter().map(object).filter(|object| object.url.starts_with(prefix)).collect());
            }
            let (n, asked) = (pages.len(), Arc::clone(&self.pages));
            let paged = pages.into_iter().enumerate().map(move |(at, objects)| {
                *asked.lock().unwrap() += 1;
                Ok(ObjectPage { objects, is_last: at + 1 == n })
            });
            Ok(Box::new(paged))
        }

        fn open(&self, url: &str) -> Result<Box<dyn Read>, ListError> {
            Err(ListError::NoObject { url: url.into(), under: None })
        }
    }

    #[test]
    fn a_row_of_a_list_is_a_key_below_the_root_or_a_url_of_its_store() {
        let of = |row: &str| {
            of_row("s3://b/p/", row.as_bytes())
                .map(|item| format!("{} {}", item.name, item.locator.display()))
        };
        assert_eq!(of("./q/a b.png").unwrap(), "q/a b.png s3://b/p/q/a b.png");
        assert_eq!(of("s3://b/p/1.png").unwrap(), "1.png s3://b/p/1.png");
        assert_eq!(of("s3://b/other/1.png").unwrap(), "s3://b/other/1.png s3://b/other/1.png");
        for elsewhere in ["s3://b2/p/1.png", "gs://b/p/1.png", "https://b/p/1.png"] {
            assert!(of(elsewhere).unwrap_err().contains("elsewhere than in `s3://b/`"), "{elsewhere}");
        }
        assert!(of_row("s3://b/", b"a\xff.png").unwrap_err().contains("UTF-8"));
        assert!(of_row("s3://b/", b"a\tb").unwrap_err().contains("control characters"));
        let signed = of_row("https://h/", b"a.png?signature=secret").unwrap_err();
        assert!(signed.contains("records and logs") && !signed.contains("secret"), "{signed}");
    }

    fn listed(keys: &[&str], urls: &[&str]) -> Result<Vec<String>, ListError> {
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        let mut names = Vec::new();
        list(
            &urls,
            &Bucket::of(keys),
            &|| Ok(()),
            &mut |name, url| {
                names.push(format!("{name} {}", url.display()));
                Ok(())
            },
            &mut |_| (),
        )?;
        Ok(names)
    }

    #[test]
    fn an_entry_is_an_object_a_prefix_or_a_glob_and_each_object_is_listed_once() {
        let keys =
            ["a b+%.png", "p/", "p/.x/1.png", "p/1.png", "p/2.jpg", "p/q/3.png", "p/ü.png", "p2/4.png"];
        let names = |urls: &[&str]| -> Vec<String> {
            let of = |line: String| line.split_once(" s3://").unwrap().0.to_owned();
            listed(&keys, urls).unwrap().into_iter().map(of).collect()
        };
        assert_eq!(
            names(&["s3://b/p"]),
            ["1.png", "2.jpg", "q/3.png", "ü.png"],
            "not `p2`, nor what is hidden"
        );
        assert_eq!(names(&["s3://b/p/*.png"]), ["1.png", "ü.png"]);
        assert_eq!(names(&["s3://b/p/**/*.png"]), ["1.png", "q/3.png", "ü.png"]);
        assert_eq!(names(&["s3://b/p/.x/*"]), ["1.png"]);
        assert_eq!(names(&["s3://b/a b+%.png"]), ["a b+%.png"]);
        assert_eq!(names(&["s3://b/p/q", "s3://b/p/*.png", "s3://b/p/1.png"]), ["1.png", "q/3.png", "ü.png"]);
        assert_eq!(names(&["s3://b", "s3://b/p2/"]).len(), 6);
        assert_eq!(
            listed(&[], &["https://h/x/1.png", "http://h/2.png"]).unwrap(),
            ["http://h/2.png http://h/2.png", "https://h/x/1.png https://h/x/1.png"]
        );
    }

    #[test]
    fn what_names_nothing_is_told_by_name() {
        let error = |url: &str| listed(&["p/1.png"], &[url]).unwrap_err().to_string();
        assert_eq!(error("s3://b/no"), "`s3://b/no` names no object, and none begins with `s3://b/no/`");
        assert_eq!(error("s3://b/*.gif"), "`s3://b/*.gif` matches no object below `s3://b/`");
        for url in ["s3://", "s3:///x", "s3://*/x", "s3://b/[", "s3://b/\n", "http://h/", "http://h"] {
            assert!(error(url).contains("no valid pattern"), "{url}: {}", error(url));
        }
        for text in ["a.png", "/a://b", "://x", "a b://c", "1://x", "s3:/b/x"] {
            assert!(!is_url(text), "{text}");
        }
    }

    #[test]
    fn all_of_a_page_is_given_before_the_next_one_is_asked_for() {
        // Of the third page there is nothing below the prefix.
        let folder = |n: u64| if n / 100 == 2 { "b" } else { "a" };
        let keys: Vec<String> = (0..450).map(|n| format!("{}/{n:05}", folder(n))).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let bucket = Bucket::of(&keys);
        let (given, at_idle) = (RefCell::new(0), RefCell::new(Vec::new()));
        let idle = || {
            at_idle.borrow_mut().push((*given.borrow(), *bucket.pages.lock().unwrap()));
            Ok(())
        };
        list(
            &["s3://b/a".to_owned()],
            &bucket,
            &idle,
            &mut |_, _| {
                *given.borrow_mut() += 1;
                Ok(())
            },
            &mut |_| (),
        )
        .unwrap();
        assert_eq!(*at_idle.borrow(), [(100, 1), (200, 2), (200, 3), (300, 4)]);
        assert_eq!((*given.borrow(), *bucket.pages.lock().unwrap()), (350, 5));
    }

    #[test]
    fn of_several_entries_a_store_without_order_is_refused() {
        let unordered = ["b", "a", "c"];
        assert_eq!(listed(&unordered, &["s3://b"]).unwrap().len(), 3);
        let error = listed(&unordered, &["s3://b", "s3://b/c"]).unwrap_err();
        assert!(matches!(error, ListError::Unordered { .. }), "{error}");
    }
}
