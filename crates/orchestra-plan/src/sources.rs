//! `[sources.*]`: reading the tables, and checking that each names something. Lists nothing beyond a first item.

use std::path::Path;
use std::time::Duration;

use orchestra_store::{ListError, ListingSpec, SourceStore, Watch, is_url};

use crate::build::resolve;
use crate::diagnostics::Diagnostics;
use crate::fields::{At, Fields};
use crate::host::{FileKind, Host};
use crate::keys;
use crate::kind::{Kinds, SourceConnected, SourceContext};
use crate::plan::{KnownItems, Limits};
use crate::raw::{RawListing, RawSource, declared, kind};
use crate::tree::Table;

pub(crate) fn read(name: At<String>, table: &Table, kinds: &Kinds, diags: &mut Diagnostics) -> RawSource {
    let what = format!("source `{}`", name.value);
    let names = kinds.sources.iter().map(|kind| kind.name());
    let Some(kind) = kind(&what, table, name.span, names, |name| kinds.source(name), diags) else {
        return RawSource {
            name,
            kind: None,
            table: table.clone(),
            listing: None,
            watch: None,
            sandbox_read: Vec::new(),
        };
    };
    let common = if kind.has_files() { &keys::SOURCE[..] } else { &[] };
    let keys = declared(common, kind.keys());
    let mut f = Fields::new(what, name.span, table, &keys, diags);
    if !kind.has_files() {
        return RawSource {
            name,
            kind: Some(kind),
            table: table.clone(),
            listing: Some(RawListing::Generated),
            watch: None,
            sandbox_read: Vec::new(),
        };
    }
    let listing = match (f.entry("paths"), f.entry("manifest")) {
        (None, None) => {
            f.missing("paths", "paths = [\"images/*.png\"], or manifest = \"list.csv\"");
            None
        }
        (Some(_), Some(second)) => {
            f.bad("manifest", second.key_span, "stands beside `paths`")
                .help("a source has one or the other; make two sources of it");
            None
        }
        (Some(entry), None) => {
            if let Some(root) = f.entry("root") {
                f.bad("root", root.key_span, "belongs to a manifest, but this source has `paths`");
            }
            let paths = f.strings("paths");
            if paths.as_ref().is_some_and(Vec::is_empty) {
                f.bad("paths", entry.node.span, "is empty").help("name a file, a folder or a glob");
            }
            paths.filter(|p| !p.is_empty()).map(RawListing::Paths)
        }
        (None, Some(_)) => {
            let root = f.string("root");
            f.string("manifest").map(|path| RawListing::Manifest { path, root })
        }
    };
    let watch = read_watch(&mut f);
    let sandbox_read = f.strings("sandbox_read").unwrap_or_default();
    RawSource { name, kind: Some(kind), table: table.clone(), listing, watch, sandbox_read }
}

/// How long a file has to stay the same, where nothing is said.
const SETTLE: Duration = Duration::from_secs(2);

/// How the source is watched, if it is.
fn read_watch(f: &mut Fields<'_, '_>) -> Option<At<Watch>> {
    let is_watched = f.entry("watch").is_some() && f.boolean("watch")?;
    let without = |key: &&&str| f.entry(key).is_some() && (!is_watched || f.entry("manifest").is_some());
    let keys = ["watch", "watch_settle", "watch_idle"];
    if let Some(key) = keys[usize::from(!is_watched)..].iter().find(without) {
        let (key, span) = (*key, f.entry(key)?.key_span);
        let (reason, help) = match is_watched {
            true => (
                "needs `paths`",
                "a manifest cannot be watched: name the folder, for example paths = [\"inbox\"]",
            ),
            false => ("has no effect without `watch`", "add watch = true, or leave it out"),
        };
        f.bad(key, span, reason).help(help);
        return None;
    }
    if !is_watched {
        return None;
    }
    let settle = match f.entry("watch_settle") {
        Some(_) => f.duration("watch_settle")?,
        None => SETTLE,
    };
    let idle = f.duration("watch_idle");
    if let Some(entry) = f.entry("watch_idle")
        && idle.is_some_and(|idle| idle < settle.saturating_mul(2))
    {
        let twice = humantime::format_duration(settle.saturating_mul(2));
        let help = format!("write \"{twice}\" or more, or a shorter `watch_settle`");
        f.bad(
            "watch_idle",
            entry.node.span,
            "is less than twice `watch_settle`: a file could be left out that is there",
        )
        .help(help);
        return None;
    }
    Some(At::new(Watch { settle, idle }, f.entry("watch")?.key_span))
}

/// What a manifest may be.
const FORMATS: &str = "a manifest lists one file per line, as .csv, .tsv, .jsonl or plain paths, in UTF-8";

/// What to list, once every entry is known to name something; `None` after an error.
pub(crate) fn resolve_listing(
    source: &RawSource,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<ListingSpec> {
    match source.listing.as_ref()? {
        RawListing::Paths(patterns) => {
            let url = patterns.iter().find(|p| is_url(&p.value));
            let store = match url {
                Some(url) => Some(store(source, url, patterns, diags)?),
                None => None,
            };
            if let (Some(watch), Some(SourceStore(store))) = (&source.watch, &store)
                && let Some(single) = patterns.iter().find(|url| !store.can_list(&url.value))
            {
                let message = format!("source `{}` cannot watch `{}`", source.name.value, single.value);
                diags
                    .error(watch.span, message)
                    .label("a web server cannot be asked what it has")
                    .help("leave `watch` out, or name a bucket: \"s3://bucket/inbox/\"");
                return None;
            }
            let watch = source.watch.as_ref().map(|watch| watch.value);
            let spec = |patterns: Vec<String>| match (&store, watch) {
                (Some(store), watch) => ListingSpec::Objects { urls: patterns, store: store.clone(), watch },
                (None, Some(watch)) => ListingSpec::Watched { base: folder.into(), patterns, watch },
                (None, None) => ListingSpec::Paths { base: folder.into(), patterns },
            };
            let mut fine = true;
            for pattern in patterns {
                fine &= check_pattern(pattern, &spec(vec![pattern.value.clone()]), folder, host, diags);
            }
            fine.then(|| spec(patterns.iter().map(|p| p.value.clone()).collect()))
        }
        RawListing::Manifest { path, root } => {
            match std::iter::once(path).chain(root).find(|written| is_url(&written.value)) {
                Some(url) => {
                    let store = store_of(source, url, diags)?;
                    object_manifest(path, root.as_ref(), store, folder, host, diags)
                }
                None => manifest(path, root.as_ref(), folder, host, diags),
            }
        }
        RawListing::Generated => Some(ListingSpec::Generated),
    }
}

/// What the items of a source are; `None` after an error, or where its list has one.
pub(crate) fn connect(
    source: &RawSource,
    listing: Option<&ListingSpec>,
    limits: &Limits,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<(SourceConnected, Option<KnownItems>)> {
    let kind = source.kind.as_ref()?;
    let what = format!("source `{}`", source.name.value);
    let keys = declared(&keys::SOURCE, kind.keys());
    let Some(listing) = listing else {
        // Its list has an error, which is reported; what its items are may be known all the same.
        let mut unseen = Diagnostics::new("", "");
        let fields = Fields::again(what, source.name.span, &source.table, &keys, &mut unseen);
        let mut context = SourceContext { fields, first: None, urls: &[], limits, host, n_items: None };
        return Some((kind.connect(&mut context)?, None));
    };
    let urls = match listing {
        ListingSpec::Objects { urls, .. } => &urls[..],
        ListingSpec::ObjectManifest { root, .. } => std::slice::from_ref(root),
        _ => &[],
    };
    // Pipes are read once, by the run.
    let has_no_first = match listing {
        ListingSpec::Manifest { path: Some(path), .. }
        | ListingSpec::ObjectManifest { list: Some(path), .. } => {
            !path.to_str().is_some_and(is_url) && host.file_kind(path) == FileKind::Other
        }
        ListingSpec::Manifest { path: None, .. }
        | ListingSpec::ObjectManifest { list: None, .. }
        | ListingSpec::Generated => true,
        ListingSpec::Paths { .. } | ListingSpec::Watched { .. } | ListingSpec::Objects { .. } => false,
    };
    let first = if has_no_first { None } else { host.first_item(listing).ok().flatten() };
    let fields = Fields::again(what, source.name.span, &source.table, &keys, diags);
    let mut context = SourceContext { fields, first: first.as_ref(), urls, limits, host, n_items: None };
    let connected = kind.connect(&mut context)?;
    let known = context
        .n_items
        .map(|n| if is_one(listing, host) { KnownItems::All(n) } else { KnownItems::OfFirst(n) });
    Some((connected, known))
}

/// Whether the source names one file, or has none.
fn is_one(listing: &ListingSpec, host: &dyn Host) -> bool {
    match listing {
        ListingSpec::Generated => true,
        ListingSpec::Paths { base, patterns } => {
            matches!(&patterns[..], [one] if host.file_kind(&base.join(one)) == FileKind::Regular)
        }
        _ => false,
    }
}

/// A folder of pictures cannot be the output folder too: results and logs would be listed as items.
pub(crate) fn check_apart(
    sources: &[RawSource],
    folder: &Path,
    output: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) {
    let stdin = sources.iter().filter_map(|source| match &source.listing {
        Some(RawListing::Manifest { path, .. }) if path.value == "-" => Some(path),
        _ => None,
    });
    for path in stdin.skip(1) {
        diags
            .error(path.span, "two sources cannot both read their lists from standard input")
            .help("each line would go to one of them: give one of them a file");
    }
    for source in sources {
        let Some(RawListing::Paths(patterns)) = &source.listing else { continue };
        for pattern in patterns.iter().filter(|p| resolve(folder, &p.value, host) == output) {
            diags
                .error(pattern.span, format!("`{}` is also the output folder", pattern.value))
                .help("results would be listed as items: choose another folder with --output, or list files, for example with `*.png`");
        }
    }
}

/// What speaks to the stores of a source that names `url`; `None` after an error.
fn store(
    source: &RawSource,
    url: &At<String>,
    patterns: &[At<String>],
    diags: &mut Diagnostics,
) -> Option<SourceStore> {
    if let Some(file) = patterns.iter().find(|p| !is_url(&p.value)) {
        diags
            .error(file.span, format!("`{}` is a file and `{}` is none", file.value, url.value))
            .help("a source has files or URLs; make two sources of it");
        return None;
    }
    store_of(source, url, diags)
}

/// What speaks to the store of `url`; `None` after an error.
fn store_of(source: &RawSource, url: &At<String>, diags: &mut Diagnostics) -> Option<SourceStore> {
    let kind = source.kind.as_ref()?;
    match kind.objects() {
        Ok(store) => Some(SourceStore(store)),
        Err(help) => {
            let (what, url_is) = (format!("source `{}`", source.name.value), format!("`{}`", url.value));
            let message = format!("{what} of kind `{}` cannot read {url_is}", kind.name());
            diags.error(url.span, message).help(help);
            None
        }
    }
}

fn check_pattern(
    pattern: &At<String>,
    spec: &ListingSpec,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> bool {
    let relative =
        || format!("paths are relative to the folder of the workflow file, `{}`", folder.display());
    let found = host.first_item(spec);
    let may_pass = found.as_ref().is_err_and(ListError::may_pass);
    let (message, help) = match found {
        Ok(Some(_)) => return true,
        // It has no file yet.
        Ok(None) if spec.watch().is_some() => return true,
        Err(ListError::NoMatch { under, .. }) if matches!(spec, ListingSpec::Watched { .. }) => (
            format!("`{}` cannot be watched: there is no folder `{}`", pattern.value, under.display()),
            "make it first; it may be empty".to_owned(),
        ),
        Ok(None) if is_url(&pattern.value) => (
            format!("`{}` names no object", pattern.value),
            "a glob knows `*`, `?`, `[..]`, `{a,b}` and `**`; keys are written as the store calls them"
                .to_owned(),
        ),
        Err(ListError::Store { url, reason, help, .. }) => (format!("cannot list `{url}`: {reason}"), help),
        Err(error @ ListError::BadPattern { .. }) if is_url(&pattern.value) => {
            (format!("cannot list: {error}"), "for example \"s3://bucket/pages/*.jpg\"".to_owned())
        }
        Err(error @ ListError::NoObject { .. }) => {
            (error.to_string(), "keys are written as the store calls them, without escapes".to_owned())
        }
        Ok(None) => (
            format!("`{}` matches no file", pattern.value),
            format!("{}; hidden files, such as those that begin with a dot, are passed over", relative()),
        ),
        Err(error @ ListError::NoSuchFile { .. }) => (error.to_string(), relative()),
        Err(error @ ListError::Unreadable { .. }) => (
            format!("cannot list: {error}"),
            "give this user the right to read it, or name only what can be read".to_owned(),
        ),
        Err(error) => (format!("cannot list: {error}"), relative()),
    };
    diags.error(pattern.span, message).help(help).outside(may_pass);
    false
}

/// A list of objects: the list, or what its rows are relative to, is a URL.
fn object_manifest(
    path: &At<String>,
    root: Option<&At<String>>,
    store: SourceStore,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<ListingSpec> {
    if let Some(root) = root.filter(|root| !is_url(&root.value)) {
        diags
            .error(root.span, format!("`{}` is a folder, and the manifest an object", root.value))
            .help("a list of objects names objects; copy it to this machine first where it names files");
        return None;
    }
    let list = match &path.value[..] {
        "-" => None,
        url if is_url(url) => Some(url.into()),
        file => Some(resolve(folder, file, host)),
    };
    let root = match root {
        Some(root) => format!("{}/", root.value.trim_end_matches('/')),
        None => path.value[..path.value.rfind('/').map_or(0, |slash| slash + 1)].to_owned(),
    };
    let is_pipe =
        list.as_deref().is_some_and(|list| !is_url(&path.value) && host.file_kind(list) == FileKind::Other);
    let spec = ListingSpec::ObjectManifest { list, root, store };
    if path.value == "-" || is_pipe {
        return Some(spec);
    }
    let found = host.first_item(&spec);
    let may_pass = found.as_ref().is_err_and(ListError::may_pass);
    let (message, help) = match found {
        Ok(Some(_)) => return Some(spec),
        Ok(None) => (format!("manifest `{}` names no item", path.value), FORMATS.to_owned()),
        Err(ListError::Store { url, reason, help, .. }) => (format!("cannot read `{url}`: {reason}"), help),
        Err(error) => (format!("cannot list: {error}"), FORMATS.to_owned()),
    };
    diags.error(path.span, message).help(help).outside(may_pass);
    None
}

fn manifest(
    path: &At<String>,
    root: Option<&At<String>>,
    folder: &Path,
    host: &dyn Host,
    diags: &mut Diagnostics,
) -> Option<ListingSpec> {
    let root_folder = root.map(|r| resolve(folder, &r.value, host));
    if path.value == "-" {
        return Some(ListingSpec::Manifest {
            path: None,
            base: root_folder.unwrap_or_else(|| folder.into()),
        });
    }
    let file = resolve(folder, &path.value, host);
    let base = root_folder.unwrap_or_else(|| file.parent().unwrap_or(folder).into());
    let spec = ListingSpec::Manifest { path: Some(file.clone()), base };
    let (message, help) = match host.file_kind(&file) {
        FileKind::Missing => (
            format!("manifest `{}` does not exist (looked for `{}`)", path.value, file.display()),
            format!("paths are relative to the folder of the workflow file, `{}`", folder.display()),
        ),
        FileKind::Folder => (
            format!("manifest `{}` is a folder", path.value),
            "a folder of pictures is named with `paths` instead of `manifest`".to_owned(),
        ),
        // A pipe can be read only once: the run does that.
        FileKind::Other => return Some(spec),
        FileKind::Regular => match host.first_item(&spec) {
            Ok(Some(_)) => return Some(spec),
            Ok(None) => (format!("manifest `{}` names no item", path.value), FORMATS.to_owned()),
            Err(error) => (format!("cannot list: {error}"), FORMATS.to_owned()),
        },
    };
    diags.error(path.span, message).help(help);
    None
}
