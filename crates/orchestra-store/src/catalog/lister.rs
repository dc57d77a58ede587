//! Listing a source: from a spec to the list on disk, or to its first item. Opens no item.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::expand::{Expand, Found};
use super::folder_walk::{FolderWalk, Walking, any_file};
use super::item_name::{escape, name_under};
use super::kept_files::KeptFiles;
use super::listed_file::ListedFile;
use super::listing_file::{ListingWriter, folder_of};
use super::objects::is_url;
use super::pattern::{PathsEntry, common_root};
use super::{
    ItemEntry, ListError, ListingSpec, ListingSummary, ObjectStore, PassedOver, PassedOverCounts, manifest,
    objects,
};

/// Names and items that are looked at between two questions whether to go on.
const CHECK_EVERY: u64 = 256;
/// After so many names, what was found among them is published, however little it is.
const PUBLISH_AFTER: u64 = 1 << 16;

/// Lists the source into the file `out`, which appears complete or not at all; its folder is made if need be.
///
/// # Errors
/// An entry that names nothing, a folder that cannot be read, a row of the manifest that makes no sense, or a list that cannot
/// be written.
pub fn write_listing(spec: &ListingSpec, out: &Path) -> Result<ListingSummary, ListError> {
    write_items(spec, None, u64::MAX, out, &|| true)
}

/// Like [`write_listing`], with the items that `expand` makes of the files, `most` of them; and asks every now and then whether to go on.
///
/// # Errors
/// As [`write_listing`], those of `expand`, [`ListError::TooMany`], and [`ListError::Stopped`] once `go_on` says no.
pub fn write_items(
    spec: &ListingSpec,
    expand: Option<&dyn Expand>,
    most: u64,
    out: &Path,
    go_on: &dyn Fn() -> bool,
) -> Result<ListingSummary, ListError> {
    list(spec, Lister::new(ListingWriter::create(out, None)?, expand, most, go_on))
}

pub(crate) fn list(spec: &ListingSpec, lister: Lister<'_>) -> Result<ListingSummary, ListError> {
    let lister = RefCell::new(lister);
    match spec {
        ListingSpec::Paths { base, patterns } => list_paths(base, patterns, &lister)?,
        ListingSpec::Objects { urls, store, .. } => {
            let idle = || lister.borrow_mut().idle();
            let mut passed_over = PassedOverCounts::default();
            let push: objects::Push<'_> = &mut |name, url| lister.borrow_mut().push(name, url);
            objects::list(urls, &*store.0, &idle, push, &mut |reason| passed_over.add(reason, 1))?;
            lister.borrow_mut().pass_over(passed_over);
        }
        ListingSpec::Generated => lister.borrow_mut().push("", Path::new(""))?,
        ListingSpec::Manifest { path, base } => {
            let mut any = false;
            let idle = || lister.borrow_mut().idle();
            let n_blank = manifest::rows(path.as_deref(), &idle, &mut |_, row| {
                any = true;
                let item = manifest_item(base, row);
                lister.borrow_mut().push(&item.name, &item.locator).map(|()| true)
            })?;
            lister.borrow_mut().pass_over(PassedOverCounts::one(PassedOver::BlankLine, n_blank));
            if !any {
                return Err(ListError::EmptyManifest { manifest: manifest::label(path.as_deref()) });
            }
        }
        ListingSpec::ObjectManifest { list, root, store } => {
            let mut any = false;
            let idle = || lister.borrow_mut().idle();
            let n_blank = object_rows(list.as_deref(), root, &*store.0, &idle, &mut |item| {
                any = true;
                lister.borrow_mut().push(&item.name, &item.locator).map(|()| true)
            })?;
            lister.borrow_mut().pass_over(PassedOverCounts::one(PassedOver::BlankLine, n_blank));
            if !any {
                return Err(ListError::EmptyManifest { manifest: manifest::label(list.as_deref()) });
            }
        }
    }
    lister.into_inner().writer.finish()
}

fn list_paths(base: &Path, patterns: &[String], lister: &RefCell<Lister<'_>>) -> Result<(), ListError> {
    let entries = patterns.iter().map(|p| PathsEntry::resolve(base, p)).collect::<Result<Vec<_>, _>>()?;
    let root = common_root(entries.iter().map(|e| e.root.as_path()));
    let spill_folder = folder_of(lister.borrow().writer.target());
    let mut passed_over = PassedOverCounts::default();
    let mut walking = Walking {
        spill_folder: &spill_folder,
        step: &mut || lister.borrow_mut().step(),
        passed_over: &mut passed_over,
    };
    let mut walk = FolderWalk::start(&entries, &mut walking)?;
    while let Some(path) = walk.next(&mut walking)? {
        lister.borrow_mut().push(&name_under(&root, &path), &path)?;
    }
    lister.borrow_mut().pass_over(passed_over);
    Ok(())
}

/// Writes the items of each file.
pub(crate) struct Lister<'a> {
    pub writer: ListingWriter,
    pub expand: Option<&'a dyn Expand>,
    /// So many items the source may have.
    most: u64,
    pub go_on: &'a dyn Fn() -> bool,
    seen: u64,
    /// What files hold that is no item.
    in_files: PassedOverCounts,
    /// Files of an earlier list: those that are as they were are not listed again.
    pub kept: Option<&'a mut KeptFiles>,
}

impl<'a> Lister<'a> {
    pub fn new(
        writer: ListingWriter,
        expand: Option<&'a dyn Expand>,
        most: u64,
        go_on: &'a dyn Fn() -> bool,
    ) -> Self {
        Self { writer, expand, most, go_on, seen: 0, in_files: PassedOverCounts::default(), kept: None }
    }

    pub fn push(&mut self, name: &str, path: &Path) -> Result<(), ListError> {
        let Some(expand) = self.expand else {
            return self.write(name, path, path);
        };
        let known = self.kept.as_deref().and_then(|kept| kept.version_of(name, path));
        let (mut at, mut in_file) = (0, PassedOverCounts::default());
        let (mut version, mut is_steady) = (None, true);
        expand.expand_unless(known, path, &mut |found| {
            let (suffix, locator) = match found {
                Found::Item(suffix, locator) => (suffix, locator),
                Found::PassedOver(reason, n) => {
                    in_file.add(reason, n);
                    return self.pass_over_in_file(reason, n);
                }
                Found::Nothing => return self.idle(),
                Found::Version(found) => {
                    is_steady &= version.replace(found).is_none_or(|before| before == found);
                    return Ok(());
                }
            };
            at += 1;
            self.write(&format!("{name}{suffix}"), Path::new(OsStr::from_bytes(locator)), path)
        })?;
        match version.filter(|_| is_steady) {
            Some(_) if version == known && at == 0 => self.keep(path),
            Some(version) => {
                let file = ListedFile { version, n_items: at, passed_over: in_file, digest: 0 };
                self.writer.push_file(name, path, file)
            }
            None => Ok(()),
        }
    }

    /// The items of a file stay as the earlier list has them.
    fn keep(&mut self, path: &Path) -> Result<(), ListError> {
        self.step()?;
        if let Some(kept) = &mut self.kept {
            let passed_over = kept.keep(path);
            self.in_files = self.in_files.and(passed_over);
        }
        if self.n_items() > self.most {
            return Err(ListError::TooMany { most: self.most, path: path.to_owned() });
        }
        Ok(())
    }

    fn n_items(&self) -> u64 {
        self.writer.count().saturating_add(self.kept.as_deref().map_or(0, KeptFiles::n_items))
    }

    fn pass_over_in_file(&mut self, reason: PassedOver, n: u64) -> Result<(), ListError> {
        self.step()?;
        self.in_files.add(reason, n);
        self.writer.passed_over.add(reason, n);
        Ok(())
    }

    /// Files that are no items, of a whole look at the source.
    pub fn pass_over(&mut self, files: PassedOverCounts) {
        self.writer.passed_over = self.in_files.and(files);
    }

    /// Writes an item of `file`.
    fn write(&mut self, name: &str, locator: &Path, file: &Path) -> Result<(), ListError> {
        self.step()?;
        if self.n_items() >= self.most {
            // What is generated lies in no file.
            let path = if file.as_os_str().is_empty() { PathBuf::from(name) } else { file.to_owned() };
            return Err(ListError::TooMany { most: self.most, path });
        }
        self.writer.push(name, locator)
    }

    fn step(&mut self) -> Result<(), ListError> {
        self.seen += 1;
        if self.seen.is_multiple_of(CHECK_EVERY) && !(self.go_on)() {
            return Err(ListError::Stopped);
        }
        if self.seen.is_multiple_of(PUBLISH_AFTER) { self.writer.publish() } else { Ok(()) }
    }

    /// No further row can be read now.
    fn idle(&mut self) -> Result<(), ListError> {
        if (self.go_on)() { self.writer.publish() } else { Err(ListError::Stopped) }
    }
}

/// Some item of the source, found without listing all of them; `None` where there is none. Of a manifest: its first row.
///
/// Standard input is not touched: the answer is `None`.
///
/// # Errors
/// As [`write_listing`], but a glob or folder without files is `Ok(None)`.
pub fn first_item(spec: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
    let mut first = None;
    match spec {
        ListingSpec::Paths { base, patterns } => {
            for pattern in patterns {
                let entry = match PathsEntry::resolve(base, pattern) {
                    Err(ListError::NoMatch { .. }) => continue,
                    other => other?,
                };
                if let Some(path) = any_file(&entry)? {
                    first = Some(ItemEntry { name: name_under(&entry.root, &path), locator: path });
                    break;
                }
            }
        }
        ListingSpec::Objects { urls, store, .. } => first = objects::first(urls, &*store.0)?,
        ListingSpec::Manifest { path: None, .. }
        | ListingSpec::ObjectManifest { list: None, .. }
        | ListingSpec::Generated => {}
        ListingSpec::ObjectManifest { list, root, store } => {
            object_rows(list.as_deref(), root, &*store.0, &|| Ok(()), &mut |item| {
                first = Some(item);
                Ok(false)
            })?;
        }
        ListingSpec::Manifest { path, base } => {
            manifest::rows(path.as_deref(), &|| Ok(()), &mut |_, row| {
                first = Some(manifest_item(base, row));
                Ok(false)
            })?;
        }
    }
    Ok(first)
}

/// Gives the items of a list of objects in order, until `visit` says no; says how many of its lines are blank.
fn object_rows(
    list: Option<&Path>,
    root: &str,
    store: &dyn ObjectStore,
    idle: manifest::Idle<'_>,
    visit: &mut dyn FnMut(ItemEntry) -> Result<bool, ListError>,
) -> Result<u64, ListError> {
    let visit: manifest::VisitRow<'_> = &mut |line, row| {
        let bad = |reason: String| manifest::bad_row(&manifest::label(list), line, &reason);
        visit(objects::of_row(root, row).map_err(bad)?)
    };
    match list.and_then(Path::to_str).filter(|list| is_url(list)) {
        Some(url) => manifest::rows_in(store.open(url)?, list, visit),
        None => manifest::rows(list, idle, visit),
    }
}

fn manifest_item(base: &Path, row: &[u8]) -> ItemEntry {
    let mut row = row;
    while let Some(rest) = row.strip_prefix(b"./") {
        row = rest;
    }
    let written = Path::new(OsStr::from_bytes(row));
    let locator = base.join(written);
    let name = if written.is_absolute() { name_under(base, written) } else { escape(written) };
    ItemEntry { name, locator }
}
