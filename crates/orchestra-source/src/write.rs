//! Listing a source: from a spec to the list on disk, or to its first item. Opens no item.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::expand::Expand;
use crate::item_name::{escape, name_under};
use crate::listing_file::{ListingWriter, folder_of};
use crate::pattern::{Entry, common_root};
use crate::sorter::Sorter;
use crate::{ItemEntry, ListError, ListingSpec, ListingSummary, manifest};

/// Items between two questions whether to go on.
const CHECK_EVERY: u64 = 256;

/// Lists the source into the file `out`, which appears complete or not at all; its folder is made if need be.
///
/// # Errors
/// An entry that names nothing, a folder that cannot be read, a row of the manifest that makes no sense, or a list that cannot
/// be written.
pub fn write_listing(spec: &ListingSpec, out: &Path) -> Result<ListingSummary, ListError> {
    write_listing_while(spec, out, &|| true)
}

/// Like [`write_listing`], but asks every now and then whether to go on.
///
/// # Errors
/// As [`write_listing`], and [`ListError::Stopped`] once `go_on` says no.
pub fn write_listing_while(
    spec: &ListingSpec,
    out: &Path,
    go_on: &dyn Fn() -> bool,
) -> Result<ListingSummary, ListError> {
    write_items(spec, None, out, go_on)
}

/// Like [`write_listing_while`], with the items that `expand` makes of the files.
///
/// # Errors
/// As [`write_listing_while`], and those of `expand`.
pub fn write_items(
    spec: &ListingSpec,
    expand: Option<&dyn Expand>,
    out: &Path,
    go_on: &dyn Fn() -> bool,
) -> Result<ListingSummary, ListError> {
    let mut writer = ItemWriter { writer: ListingWriter::create(out)?, expand };
    let mut pace = Pace { go_on, seen: 0 };
    match spec {
        ListingSpec::Paths { base, patterns } => write_paths(base, patterns, out, &mut writer, &mut pace)?,
        ListingSpec::Manifest { path, base } => {
            let mut any = false;
            manifest::rows(path.as_deref(), &mut |_, row| {
                any = true;
                pace.step()?;
                let item = manifest_item(base, row);
                writer.push(&item.name, &item.path).map(|()| true)
            })?;
            if !any {
                return Err(ListError::EmptyManifest { manifest: manifest::label(path.as_deref()) });
            }
        }
    }
    writer.writer.finish()
}

/// Writes the items of each file.
struct ItemWriter<'a> {
    writer: ListingWriter,
    expand: Option<&'a dyn Expand>,
}

impl ItemWriter<'_> {
    fn push(&mut self, name: &str, path: &Path) -> Result<(), ListError> {
        let Some(expand) = self.expand else { return self.writer.push(name, path) };
        expand.expand(path, &mut |suffix, locator| {
            self.writer.push(&format!("{name}{suffix}"), Path::new(OsStr::from_bytes(locator)))
        })
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
                let entry = match Entry::resolve(base, pattern) {
                    Err(ListError::NoMatch { .. }) => continue,
                    other => other?,
                };
                entry.walk(&mut |path| {
                    first = Some(ItemEntry { name: name_under(&entry.root, &path), path });
                    Ok(false)
                })?;
                if first.is_some() {
                    break;
                }
            }
        }
        ListingSpec::Manifest { path: None, .. } => {}
        ListingSpec::Manifest { path, base } => manifest::rows(path.as_deref(), &mut |_, row| {
            first = Some(manifest_item(base, row));
            Ok(false)
        })?,
    }
    Ok(first)
}

struct Pace<'a> {
    go_on: &'a dyn Fn() -> bool,
    seen: u64,
}

impl Pace<'_> {
    fn step(&mut self) -> Result<(), ListError> {
        self.seen += 1;
        if self.seen.is_multiple_of(CHECK_EVERY) && !(self.go_on)() {
            return Err(ListError::Stopped);
        }
        Ok(())
    }
}

fn write_paths(
    base: &Path,
    patterns: &[String],
    out: &Path,
    writer: &mut ItemWriter<'_>,
    pace: &mut Pace<'_>,
) -> Result<(), ListError> {
    let wrap = |error: io::Error| ListError::ListFile { path: out.into(), doing: "write", error };
    let entries = patterns.iter().map(|p| Entry::resolve(base, p)).collect::<Result<Vec<_>, _>>()?;
    let root = common_root(entries.iter().map(|e| e.root.as_path()));
    let mut sorter = Sorter::new(&folder_of(out));
    for entry in &entries {
        let found = entry.walk(&mut |path| {
            pace.step()?;
            sorter.push(path.as_os_str().as_bytes()).map_err(wrap).map(|()| true)
        })?;
        if !found {
            return Err(ListError::NoMatch { pattern: entry.pattern.clone(), under: entry.root.clone() });
        }
    }
    let mut last = None;
    for path in sorter.finish().map_err(wrap)? {
        let path = path.map_err(wrap)?;
        if last.as_ref() == Some(&path) {
            continue;
        }
        pace.step()?;
        let as_path = Path::new(OsStr::from_bytes(&path));
        writer.push(&name_under(&root, as_path), as_path)?;
        last = Some(path);
    }
    Ok(())
}

fn manifest_item(base: &Path, row: &[u8]) -> ItemEntry {
    let mut row = row;
    while let Some(rest) = row.strip_prefix(b"./") {
        row = rest;
    }
    let written = Path::new(OsStr::from_bytes(row));
    let path: PathBuf = base.join(written);
    let name = if written.is_absolute() { name_under(base, written) } else { escape(written) };
    ItemEntry { name, path }
}
