//! Listings of real folders, globs and manifests, as a source of a workflow sees them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};

use orchestra_store::{
    Catalog, Expand, Extent, Found, ListError, ListingReader, ListingSpec, PassedOver, PushFound, first_item,
    relist, write_items, write_listing,
};
use proptest::prelude::*;
use tempfile::TempDir;

fn folder_with(files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }
    folder
}

fn paths(base: &Path, patterns: &[&str]) -> ListingSpec {
    ListingSpec::Paths { base: base.into(), patterns: patterns.iter().map(|p| (*p).into()).collect() }
}

fn list(spec: &ListingSpec) -> Result<Vec<String>, ListError> {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("deep/items");
    let summary = write_listing(spec, &file)?;
    let items: Vec<_> = ListingReader::open(&file)?.collect::<Result<_, _>>()?;
    assert_eq!(items.len() as u64, summary.count);
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing but the list may remain");
    Ok(items.into_iter().map(|i| i.name).collect())
}

fn names(base: &TempDir, patterns: &[&str]) -> Vec<String> {
    list(&paths(base.path(), patterns)).unwrap()
}

fn error(base: &TempDir, patterns: &[&str]) -> String {
    list(&paths(base.path(), patterns))
        .unwrap_err()
        .to_string()
        .replace(base.path().to_str().unwrap(), "BASE")
}

#[test]
fn a_path_a_folder_and_a_glob_name_files_in_byte_order() {
    type Listed<'a> = (&'a [&'a str], &'a [(&'a str, &'a [&'a str])]);
    let table: [Listed<'_>; 8] = [
        // All regular files below a folder.
        (
            &["in/b.png", "in/a/z.png", "in/a-b.png", "in/B.png", "other/x.png"],
            &[
                ("in", &["B.png", "a-b.png", "a/z.png", "b.png"]),
                ("./in", &["B.png", "a-b.png", "a/z.png", "b.png"]),
                ("in/", &["B.png", "a-b.png", "a/z.png", "b.png"]),
            ],
        ),
        // Hidden ones only where they are asked for.
        (
            &["in/.hidden.png", "in/.git/x.png", "in/a.png"],
            &[
                ("in", &["a.png"]),
                ("in/**/*.png", &["a.png"]),
                ("in/.*.png", &[".hidden.png"]),
                ("in/.git", &["x.png"]),
            ],
        ),
        // The output folder of a run only where it is named.
        (
            &["a.png", "out/.orchestra/journal", "out/results.jsonl", "out/logs/run.log", "z/b.png"],
            &[
                (".", &["a.png", "z/b.png"]),
                ("**/*", &["a.png", "z/b.png"]),
                ("out/*.jsonl", &["results.jsonl"]),
            ],
        ),
        // A star stays on its level, and two do not.
        (
            &["in/a.png", "in/a.jpg", "in/deep/b.png", "in/deep/er/c.png"],
            &[
                ("in/*.png", &["a.png"]),
                ("in/*/*.png", &["deep/b.png"]),
                ("in/**/*.png", &["a.png", "deep/b.png", "deep/er/c.png"]),
                ("in/*.{png,jpg}", &["a.jpg", "a.png"]),
                ("*/a.p?g", &["in/a.png"]),
            ],
        ),
        // A file that exists is no glob.
        (&["img[1].png", "img1.png"], &[("img[1].png", &["img[1].png"])]),
        (&["!a.png", "b.png", "!c.txt"], &[("!*.png", &["!a.png"])]),
        // Several entries share a root, and each file stands once.
        (
            &["in/a/1.png", "in/b/1.png"],
            &[("in/b in/a/1.png in/*/1.png in/../in/a", &["a/1.png", "b/1.png"]), ("in/a/1.png", &["1.png"])],
        ),
        // A manifest of parts is an item only where it is named.
        (
            &["rows/_manifest.json", "rows/rows-00000.csv"],
            &[
                ("rows", &["rows-00000.csv"]),
                ("rows/*", &["rows-00000.csv"]),
                ("rows/_manifest.json", &["_manifest.json"]),
            ],
        ),
    ];
    for (files, listed) in table {
        let base = folder_with(files);
        for (patterns, expected) in listed {
            assert_eq!(names(&base, &patterns.split(' ').collect::<Vec<_>>()), *expected, "{patterns}");
        }
    }
}

#[test]
fn a_folder_that_a_glob_matches_is_counted() {
    let base = folder_with(&["in/a.png", "in/cat/b.png", "in/dog/c.png"]);
    let passed_over = |pattern: &str| {
        let out = tempfile::tempdir().unwrap();
        let spec = paths(base.path(), &[pattern]);
        let catalog = Catalog::list(&spec, None, u64::MAX, &out.path().join("items")).unwrap();
        (catalog.growth().extent(), catalog.growth().passed_over().iter().collect::<Vec<_>>())
    };
    assert_eq!(passed_over("in/*"), (Extent::Known(1), vec![(PassedOver::Folder, 2)]));
    assert_eq!(passed_over("in/*.png"), (Extent::Known(1), vec![]));
    assert_eq!(passed_over("in/**"), (Extent::Known(3), vec![]));
    assert!(error(&base, &["in/*/"]).contains("write `in/*/**` for all files below them"));
}

#[test]
fn loops_of_links_end_and_broken_links_are_listed() {
    let base = folder_with(&["in/a.png", "far/b.png"]);
    let at = |name: &str| base.path().join(name);
    symlink(at("in"), at("in/loop")).unwrap();
    symlink(at("far"), at("in/far")).unwrap();
    symlink("nowhere", at("in/broken.png")).unwrap();
    symlink("self.png", at("in/self.png")).unwrap();
    symlink(at("in/a.png"), at("in/link.png")).unwrap();
    let all = ["a.png", "broken.png", "far/b.png", "link.png", "self.png"];
    assert_eq!(names(&base, &["in"]), all);
    assert_eq!(names(&base, &["in/**"]), all);
    // To the folder above the root, in which the root lies again.
    let base = folder_with(&["in/a.png", "b.png"]);
    symlink("..", base.path().join("in/up")).unwrap();
    assert_eq!(names(&base, &["in"]), ["a.png", "up/b.png"]);
}

#[test]
fn only_a_file_that_is_named_itself_may_be_something_else() {
    let base = folder_with(&["in/a.png"]);
    let fifo = base.path().join("in/pipe.png");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert_eq!(names(&base, &["in"]), ["a.png"]);
    assert_eq!(names(&base, &["in/*.png"]), ["a.png"]);
    assert_eq!(names(&base, &["in/pipe.png"]), ["pipe.png"]);
}

#[test]
fn names_that_are_no_text_keep_their_bytes_in_the_path() {
    let base = tempfile::tempdir().unwrap();
    let raw = base.path().join(OsStr::from_bytes(b"\xff.png"));
    fs::write(&raw, b"x").unwrap();
    let out = base.path().join("out/items");
    write_listing(&paths(base.path(), &["*.png"]), &out).unwrap();
    let item = ListingReader::open(&out).unwrap().next().unwrap().unwrap();
    assert_eq!(item.name, r"\xFF.png");
    assert_eq!(item.locator, raw);
}

#[test]
fn errors_name_the_entry() {
    let base = folder_with(&["in/a.png"]);
    fs::create_dir(base.path().join("empty")).unwrap();
    assert_eq!(error(&base, &["in", "no.png"]), "`no.png` does not exist (looked for `BASE/no.png`)");
    assert_eq!(error(&base, &["in/*.gif"]), "`in/*.gif` matches no file under `BASE/in`");
    assert_eq!(error(&base, &["none/*.gif"]), "`none/*.gif` matches no file under `BASE/none`");
    assert_eq!(error(&base, &["empty"]), "`empty` matches no file under `BASE/empty`");
    assert_eq!(error(&base, &[""]), "`` is no valid pattern: it is empty");
    assert!(
        error(&base, &["in/[.png"]).starts_with("`in/[.png` is no valid pattern: unclosed character class")
    );
}

#[test]
fn manifests_keep_their_order_and_their_missing_files() {
    let base = folder_with(&["a.png"]);
    let manifest = base.path().join("list.csv");
    let root = base.path().join("data");
    fs::write(&manifest, format!("id,file\n1,z/no.png\n2,./a.png\n3,{}/b.png\n4,/abs.png\n", root.display()))
        .unwrap();
    let spec = ListingSpec::Manifest { path: Some(manifest), base: root.clone() };
    assert_eq!(list(&spec).unwrap(), ["z/no.png", "a.png", "b.png", "/abs.png"]);
    let first = first_item(&spec).unwrap().unwrap();
    assert_eq!((first.name.as_str(), first.locator), ("z/no.png", root.join("z/no.png")));
}

#[test]
fn a_manifest_without_rows_is_an_error() {
    let base = folder_with(&[]);
    let manifest = base.path().join("list.jsonl");
    fs::write(&manifest, "\n").unwrap();
    let spec = ListingSpec::Manifest { path: Some(manifest.clone()), base: base.path().into() };
    assert!(list(&spec).unwrap_err().to_string().ends_with("names no item"));
    assert!(first_item(&spec).unwrap().is_none());
    fs::remove_file(manifest).unwrap();
    assert!(list(&spec).unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn the_first_item_of_an_empty_glob_is_none_and_of_a_missing_file_an_error() {
    let base = folder_with(&["in/a.png"]);
    let first = |pattern: &str| first_item(&paths(base.path(), &[pattern]));
    assert_eq!(first("in/*.png").unwrap().unwrap().name, "a.png");
    assert!(first("in/*.gif").unwrap().is_none());
    assert!(first("none/**").unwrap().is_none());
    assert!(matches!(first("none.png"), Err(ListError::NoSuchFile { .. })));
}

#[test]
fn the_digest_follows_the_items() {
    let base = folder_with(&["in/a.png", "in/b.png"]);
    let out = base.path().join("out/items");
    let spec = paths(base.path(), &["in"]);
    let one = write_listing(&spec, &out).unwrap();
    assert_eq!(write_listing(&spec, &out).unwrap(), one);
    fs::rename(base.path().join("in/b.png"), base.path().join("in/c.png")).unwrap();
    let two = write_listing(&spec, &out).unwrap();
    assert_eq!(two.count, one.count);
    assert_ne!(two.digest, one.digest);
}

/// Names that sort differently as names, as paths and as text.
fn any_name() -> impl Strategy<Value = String> {
    proptest::sample::select(vec!["a", "a-b", "a.b", "a0", "aa", "a b", "B", "ä", ".a", "-"])
        .prop_map(Into::into)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_walk_gives_what_sorting_all_paths_would(
        files in proptest::collection::vec(proptest::collection::vec(any_name(), 1..5), 1..30),
        entries in proptest::collection::vec(proptest::collection::vec(any_name(), 0..3), 1..4),
    ) {
        let base = tempfile::tempdir().unwrap();
        for file in &files {
            let path = base.path().join(file.join("/"));
            // Where a part of its path is a file already, or it is a folder, it cannot be made.
            let made = fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir();
            drop(made.then(|| fs::write(path, b"x")));
        }
        let entries: Vec<String> = entries.iter().map(|e| format!("./{}", e.join("/"))).collect();
        let mut expected = BTreeSet::new();
        let mut all_exist = true;
        for entry in &entries {
            let below = files_below(&base.path().join(entry), true);
            all_exist &= !below.is_empty();
            expected.extend(below);
        }
        let spec = ListingSpec::Paths { base: base.path().into(), patterns: entries };
        let out = tempfile::tempdir().unwrap();
        match write_listing(&spec, &out.path().join("items")) {
            Ok(_) => {
                let listed = ListingReader::open(&out.path().join("items")).unwrap().map(|i| i.unwrap().locator);
                let listed: Vec<Vec<u8>> = listed.map(|p| p.into_os_string().into_vec()).collect();
                prop_assert_eq!(listed, expected.into_iter().collect::<Vec<_>>());
            }
            Err(error) => prop_assert!(!all_exist, "{}", error),
        }
    }
}

/// The bytes of the paths of all files that an entry takes.
fn files_below(path: &Path, is_named: bool) -> Vec<Vec<u8>> {
    let is_hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
    if is_hidden && !is_named {
        return Vec::new();
    }
    if path.is_file() {
        return vec![path.components().collect::<std::path::PathBuf>().into_os_string().into_vec()];
    }
    let Ok(names) = fs::read_dir(path) else { return Vec::new() };
    names.flat_map(|name| files_below(&name.unwrap().path(), false)).collect()
}

/// A pipe as a manifest, with its writing end.
fn piped() -> (TempDir, ListingSpec, fs::File) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // Both ways, or the opening would wait for a reader.
    let writer = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (folder, ListingSpec::Manifest { path: Some(path), base: "/base".into() }, writer)
}

/// Waits until the list holds so many items, or its listing has ended.
fn wait_for(catalog: &Catalog, n: u64) {
    let ((tell, told), growth) = (std::sync::mpsc::channel(), catalog.growth());
    growth.watch(move || {
        let _ = tell.send(()); // An error: the receiver is gone.
    });
    let goes_on = || growth.extent().known().is_none() && growth.failure(|_| ()).is_none();
    while goes_on() && growth.extent().listed() < n {
        told.recv().unwrap();
    }
}

#[test]
fn items_are_read_as_they_are_named_and_keep_their_numbers() {
    let (folder, spec, mut writer) = piped();
    let out = folder.path().join("items");
    writer.write_all(b"file,label\na.png,1\n").unwrap();
    let catalog = Catalog::list(&spec, None, u64::MAX, &out).unwrap();
    let mut reader = catalog.reader().unwrap();
    let mut next = |catalog: &Catalog, n| {
        wait_for(catalog, n);
        (reader.next_index(), reader.next().map(|i| i.unwrap().name))
    };
    assert_eq!(next(&catalog, 1), (0, Some("a.png".into())));
    assert_eq!(catalog.growth().extent(), Extent::Growing(1));
    assert_eq!(next(&catalog, 1), (1, None), "there is no second one yet");
    writer.write_all(b"b.png,2\nc.png").unwrap();
    assert_eq!(next(&catalog, 2), (1, Some("b.png".into())));
    assert_eq!(next(&catalog, 2), (2, None), "half a row names nothing");
    // As the parent leaves it when it is killed now.
    let unfinished = ListingReader::open_unfinished(&out).unwrap();
    assert_eq!((unfinished.summary(), unfinished.n_items()), (None, 2));
    assert!(ListingReader::open(&out).is_err(), "an unfinished list is no complete one");
    drop(writer);
    assert_eq!(next(&catalog, 3), (2, Some("c.png".into())));
    wait_for(&catalog, u64::MAX);
    assert_eq!(catalog.growth().extent(), Extent::Known(3));
    assert_eq!(ListingReader::open(&out).unwrap().n_items(), 3);
}

#[test]
fn a_row_that_makes_no_sense_is_told_and_what_came_before_stays() {
    let (folder, spec, mut writer) = piped();
    let out = folder.path().join("items");
    writer.write_all(b"a.png\n").unwrap();
    let catalog = Catalog::list(&spec, None, u64::MAX, &out).unwrap();
    writer.write_all(b"./\n").unwrap();
    wait_for(&catalog, u64::MAX);
    let error = catalog.growth().failure(|e| (e.to_string(), e.is_of_source())).unwrap();
    assert!(error.0.ends_with("line 2: its path names a folder, expected a file") && error.1, "{error:?}");
    assert_eq!(catalog.growth().extent(), Extent::Growing(1));
    assert_eq!(ListingReader::open_unfinished(&out).unwrap().n_items(), 1);
}

#[test]
fn an_error_before_the_first_item_leaves_no_list() {
    let base = folder_with(&["list.txt"]);
    let out = base.path().join("out/items");
    fs::write(base.path().join("list.txt"), "a.png\n./\n").unwrap();
    let spec = ListingSpec::Manifest { path: Some(base.path().join("list.txt")), base: base.path().into() };
    assert!(matches!(Catalog::list(&spec, None, u64::MAX, &out), Err(ListError::BadRow { line: 2, .. })));
    assert!(matches!(
        Catalog::list(&paths(base.path(), &["list.txt", "no.png"]), None, u64::MAX, &out),
        Err(ListError::NoSuchFile { .. })
    ));
    assert!(!out.exists());
}

#[test]
fn a_listing_whose_catalog_is_dropped_ends_though_its_pipe_is_silent() {
    let (_folder, spec, mut writer) = piped();
    let ListingSpec::Manifest { path: Some(path), .. } = &spec else { unreachable!("it is a manifest") };
    writer.write_all(b"a.png\n").unwrap();
    let out = tempfile::tempdir().unwrap();
    let catalog = Catalog::list(&spec, None, u64::MAX, &out.path().join("items")).unwrap();
    let end = fs::OpenOptions::new().write(true).open(path).unwrap();
    drop(writer);
    drop(catalog);
    // Without any event asked for, only the last reader's going is told.
    let mut fds = [rustix::event::PollFd::new(&end, rustix::event::PollFlags::empty())];
    rustix::event::poll(&mut fds, None).unwrap();
    assert_eq!(fds[0].revents(), rustix::event::PollFlags::ERR);
}

#[test]
fn the_first_items_of_a_folder_are_read_while_its_last_file_is_still_to_be_listed() {
    const EACH: u64 = 4096;
    #[derive(Debug)]
    struct Rows(Barrier);
    impl Expand for Rows {
        fn expand(&self, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
            if file.ends_with("b.npy") {
                self.0.wait();
            }
            let path = file.as_os_str().as_bytes();
            (0..EACH).try_for_each(|row| {
                push(Found::Item(&format!("[{row}]"), &[path, format!("#{row}").as_bytes()].concat()))
            })
        }
    }
    let base = folder_with(&["in/a.npy", "in/b.npy"]);
    let rows = Arc::new(Rows(Barrier::new(2)));
    let spec = paths(base.path(), &["in"]);
    let expand = Arc::clone(&rows) as Arc<dyn Expand>;
    let catalog = Catalog::list(&spec, Some(expand), u64::MAX, &base.path().join("items")).unwrap();
    let mut reader = catalog.reader().unwrap();
    assert_eq!(reader.next().unwrap().unwrap().name, "a.npy[0]");
    assert!(matches!(catalog.growth().extent(), Extent::Growing(n) if (1..=EACH).contains(&n)));
    rows.0.wait();
    wait_for(&catalog, u64::MAX);
    assert_eq!(catalog.growth().extent(), Extent::Known(2 * EACH));
    reader.skip_to(EACH).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().name, "b.npy[0]");
    assert_eq!(reader.count() as u64, EACH - 1);
}

#[test]
fn items_of_one_large_file_do_not_hold_up_a_stop() {
    #[derive(Debug)]
    struct Endless;
    impl Expand for Endless {
        fn expand(&self, _: &Path, push: PushFound<'_>) -> Result<(), ListError> {
            (0u64..).try_for_each(|row| push(Found::Item(&format!("[{row}]"), &row.to_be_bytes())))
        }
    }
    let base = folder_with(&["in/a.npy"]);
    let (spec, out) = (paths(base.path(), &["in"]), base.path().join("out/items"));
    let stopped = write_items(&spec, Some(&Endless), u64::MAX, &out, &|| false);
    assert!(matches!(stopped, Err(ListError::Stopped)));
    assert_eq!(fs::read_dir(out.parent().unwrap()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_list_ends_with_the_first_item_beyond_those_that_it_may_have() {
    let base = folder_with(&["in/a", "in/b", "in/c"]);
    let (spec, out) = (paths(base.path(), &["in"]), base.path().join("items"));
    assert_eq!(write_items(&spec, None, 3, &out, &|| true).unwrap().count, 3);
    fs::remove_file(&out).unwrap();
    match write_items(&spec, None, 2, &out, &|| true) {
        Err(ListError::TooMany { most: 2, path }) => assert!(path.ends_with("in/c"), "{}", path.display()),
        other => panic!("{other:?}"),
    }
    assert!(!out.exists(), "it is no list");
}

/// Files of as many rows as they have bytes, whose version is what they hold; and those that were read.
#[derive(Debug, Default)]
struct Versions(Mutex<Vec<String>>);

impl Expand for Versions {
    fn expand(&self, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let bytes = fs::read(file).unwrap();
        push(Found::Version(bytes.iter().fold(7, |n, byte| n * 31 + u64::from(*byte))))?;
        self.0.lock().unwrap().push(file.file_name().unwrap().to_str().unwrap().to_owned());
        push(Found::PassedOver(PassedOver::BlankLine, 1))?;
        let path = file.as_os_str().as_bytes();
        bytes.iter().enumerate().try_for_each(|(row, byte)| {
            push(Found::Item(&format!("[{row}]"), &[path, format!("#{byte}").as_bytes()].concat()))
        })
    }

    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        before != now
    }
}

impl Versions {
    fn read(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn names_in(list: &Path) -> Vec<String> {
    ListingReader::open(list).unwrap().map(|item| item.unwrap().name).collect()
}

#[test]
fn files_that_are_as_they_were_are_not_listed_again_wherever_the_earlier_list_ends() {
    let base = folder_with(&["in/a", "in/b#1", "in/c"]);
    let write = |file: &str, text: &str| fs::write(base.path().join("in").join(file), text).unwrap();
    write("a", "xxx");
    write("b#1", "xy");
    write("c", "");
    let (spec, expand) = (paths(base.path(), &["in"]), Versions::default());
    let out = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| out.path().join(name));
    let again = |most| relist(&spec, Some(&expand), most, &old, &new);
    write_items(&spec, Some(&expand), u64::MAX, &old, &|| true).unwrap();
    let all = ["a[0]", "a[1]", "a[2]", "b#1[0]", "b#1[1]"];
    assert_eq!(names_in(&old), all);
    let whole = fs::read(&old).unwrap();
    fs::write(out.path().join("whole"), &whole).unwrap();
    let mut least = expand.read().len();
    for len in 8..=whole.len() {
        fs::write(&old, &whole[..len]).unwrap();
        let e = again(u64::MAX).unwrap();
        let (read, numbered) = (expand.read().len(), e.numbered as usize);
        assert!(read <= least, "a longer piece of {len} bytes has no fewer files");
        least = read;
        assert_eq!((e.missing_count, e.changed.is_empty()), (0, true));
        let mut items = names_in(&new);
        assert_eq!(items[..numbered], all[..numbered], "{len} of {} bytes", whole.len());
        items.sort();
        assert_eq!(items, all);
        let passed_over = Catalog::open(&new).unwrap().growth().passed_over();
        assert_eq!(passed_over.of(PassedOver::BlankLine), 3);
    }
    assert_eq!(least, 0);
    // No list is kept of which a bit has flipped: what is read of it names other items, or is healed.
    for bit in (0..whole.len()).map(|byte| byte * 8 + byte % 8) {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&old, flipped).unwrap();
        match again(u64::MAX) {
            Ok(e) if e.missing_count == 0 && e.appended == 0 => {
                let items = ListingReader::open(&new).unwrap().map(Result::unwrap);
                let healed = ListingReader::open(&out.path().join("whole")).unwrap().map(Result::unwrap);
                assert!(items.eq(healed), "bit {bit}");
            }
            Ok(_) | Err(ListError::Damaged { .. }) => {}
            Err(error) => panic!("bit {bit}: {error}"),
        }
    }
    expand.read();
    fs::write(&old, &whole).unwrap();
    assert!(matches!(again(4), Err(ListError::TooMany { most: 4, .. })), "what is kept counts");
    // One is edited and one is new. The list that comes of it has all of them, in whatever order.
    write("b#1", "yy");
    write("0", "x");
    let e = again(u64::MAX).unwrap();
    assert_eq!(expand.read(), ["0", "b#1"]);
    assert_eq!((e.appended, e.missing_count, e.changed.iter().collect::<Vec<_>>()), (1, 0, vec![3]));
    assert_eq!(names_in(&new)[..5], all);
    fs::rename(&new, &old).unwrap();
    let e = again(u64::MAX).unwrap();
    assert_eq!((e.appended, e.missing_count, expand.read().len()), (0, 0, 0));
    assert_eq!(names_in(&new), names_in(&old));
    fs::remove_file(base.path().join("in/a")).unwrap();
    let e = again(u64::MAX).unwrap();
    assert_eq!((e.missing_count, &*e.missing[0], expand.read().len()), (3, "a[0]", 0));
}

#[test]
fn a_file_that_is_named_more_or_less_often_than_before_loses_and_doubles_no_item() {
    let base = folder_with(&["a"]);
    fs::write(base.path().join("a"), "xy").unwrap();
    let out = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| out.path().join(name));
    for before in 1..4_u64 {
        for now in 1..4_u64 {
            let spec = |n: u64| {
                let rows = base.path().join("rows.txt");
                fs::write(&rows, "a\n".repeat(n as usize)).unwrap();
                ListingSpec::Manifest { path: Some(rows), base: base.path().into() }
            };
            let expand = Versions::default();
            write_items(&spec(before), Some(&expand), u64::MAX, &old, &|| true).unwrap();
            let e = relist(&spec(now), Some(&expand), u64::MAX, &old, &new).unwrap();
            let [more, fewer] = [now.saturating_sub(before), before.saturating_sub(now)].map(|n| n * 2);
            assert_eq!((e.appended, e.missing_count), (more, fewer), "{before} times, then {now}");
            assert_eq!(names_in(&new).len() as u64, 2 * before.max(now));
        }
    }
}
