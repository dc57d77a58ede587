//! Checks that each source names something, and asks its kind what its items are. Lists nothing beyond a first item.

use orchestra_store::{ListError, ListingSpec, SourceStore, is_url};

use crate::cx::Cx;
use crate::diagnostics::{Audience, Diagnostics, Reported};
use crate::fields::{Fields, Spanned};
use crate::files::FileKind;
use crate::host::Host;
use crate::keys;
use crate::kind::SourceContext;
use crate::models::allowed_paths;
use crate::plan::{KnownItems, Limits, SourcePlan};
use crate::workflow::{RawListing, SourceNode, declared};
use orchestra_core::{PipelineId, SandboxMode};

/// What a manifest may be.
const FORMATS: &str = "a manifest lists one file per line, as .csv, .tsv, .jsonl or plain paths, in UTF-8";

/// What the items of a source are. Its list may have an error, which is reported, and its items be known all the same.
pub(crate) fn connect(source: &SourceNode, limits: &Limits, cx: &mut Cx<'_>) -> Result<SourcePlan, Reported> {
    let (what, is_off) = (format!("source `{}`", source.name.value), limits.sandbox == SandboxMode::Off);
    let sandbox_read = allowed_paths((&what, "sandbox_read", is_off), &source.sandbox_read, cx);
    let listing = listing(source, cx);
    let kind = source.kind.as_ref().ok_or(Reported)?;
    let first = match &listing {
        Ok(listing) if !is_read_once(listing, cx.host) => cx.host.first_item(listing).ok().flatten(),
        _ => None,
    };
    let mut unseen = Diagnostics::new("", "", Audience::default());
    let diags = if listing.is_ok() { &mut cx.diags } else { &mut unseen };
    let keys = declared(keys::SOURCE, kind.keys());
    let fields = Fields::again(what, source.name.span, &source.table, &keys, diags);
    let mut context = SourceContext {
        fields,
        first: first.as_ref(),
        urls: listing.as_ref().map_or(&[], listed_urls),
        limits,
        host: cx.host,
        folder: &cx.folder,
        n_items: None,
        request: None,
        lister: None,
    };
    let connected = kind.connect(&mut context).ok_or(Reported)?;
    let SourceContext { n_items, request, lister, .. } = context;
    let listing = listing.unwrap_or(ListingSpec::Generated);
    let is_one = match &listing {
        ListingSpec::Generated => true,
        ListingSpec::Paths { base, patterns } => {
            matches!(&patterns[..], [one] if cx.host.file_kind(&base.join(one)) == FileKind::Regular)
        }
        _ => false,
    };
    Ok(SourcePlan {
        name: source.name.value.clone(),
        pipeline: PipelineId(0),
        kind: kind.name().to_owned(),
        listing,
        expand: connected.expand,
        reduced: None,
        lister,
        names_repeat: connected.names_repeat,
        n_items: n_items.map(|n| if is_one { KnownItems::All(n) } else { KnownItems::OfFirst(n) }),
        request,
        gives: connected.gives,
        fetch: connected.fetch,
        sandbox_read,
        settings: connected.settings,
        decoders: connected.decoders,
    })
}

fn listed_urls(listing: &ListingSpec) -> &[String] {
    match listing {
        ListingSpec::Objects { urls, .. } => urls,
        ListingSpec::ObjectManifest { root, .. } => std::slice::from_ref(root),
        _ => &[],
    }
}

/// Whether only the run may read the list: pipes and the standard input are read once.
fn is_read_once(listing: &ListingSpec, host: &dyn Host) -> bool {
    match listing {
        ListingSpec::Manifest { path: Some(path), .. }
        | ListingSpec::ObjectManifest { list: Some(path), .. } => {
            !path.to_str().is_some_and(is_url) && host.file_kind(path) == FileKind::Other
        }
        ListingSpec::Paths { .. } | ListingSpec::Objects { .. } => false,
        _ => true,
    }
}

/// What to list, once every entry is known to name something.
fn listing(source: &SourceNode, cx: &mut Cx<'_>) -> Result<ListingSpec, Reported> {
    match source.listing.as_ref().ok_or(Reported)? {
        RawListing::Paths(patterns) => {
            let url = patterns.iter().find(|p| is_url(&p.value));
            let store = url.map(|url| store(source, url, patterns, cx)).transpose()?;
            let base = cx.folder.clone();
            let spec = |patterns: Vec<String>| match &store {
                Some(store) => ListingSpec::Objects { urls: patterns, store: store.clone() },
                None => ListingSpec::Paths { base: base.clone(), patterns },
            };
            let check =
                |pattern: &Spanned<String>| check_pattern(pattern, &spec(vec![pattern.value.clone()]), cx);
            let all_match = patterns.iter().map(check).fold(Ok(()), Result::and);
            all_match.map(|()| spec(patterns.iter().map(|p| p.value.clone()).collect()))
        }
        RawListing::Manifest { path, root } => {
            match std::iter::once(path).chain(root).find(|written| is_url(&written.value)) {
                Some(url) => object_manifest(path, root.as_ref(), store_of(source, url, cx)?, cx),
                None => manifest(path, root.as_ref(), cx),
            }
        }
        RawListing::Generated => Ok(ListingSpec::Generated),
    }
}

/// A folder of pictures cannot be the output folder too: results and logs would be listed as items.
pub(crate) fn check_apart(sources: &[SourceNode], cx: &mut Cx<'_>) {
    let stdin = sources.iter().filter_map(|source| match &source.listing {
        Some(RawListing::Manifest { path, .. }) if path.value == "-" => Some(path),
        _ => None,
    });
    for path in stdin.skip(1) {
        cx.error(path.span, "two sources cannot both read their lists from standard input")
            .help("each line would go to one of them: give one of them a file");
    }
    for source in sources {
        let Some(RawListing::Paths(patterns)) = &source.listing else { continue };
        for pattern in patterns {
            if cx.resolve(&pattern.value) == cx.output {
                let help = format!(
                    "results would be listed as items: choose another folder with {}, or list files, for example with `*.png`",
                    cx.diags.option("output")
                );
                cx.error(pattern.span, format!("`{}` is also the output folder", pattern.value)).help(help);
            }
        }
    }
}

/// What speaks to the stores of a source that names `url`.
fn store(
    source: &SourceNode,
    url: &Spanned<String>,
    patterns: &[Spanned<String>],
    cx: &mut Cx<'_>,
) -> Result<SourceStore, Reported> {
    if let Some(file) = patterns.iter().find(|p| !is_url(&p.value)) {
        return cx
            .error(file.span, format!("`{}` is a file and `{}` is none", file.value, url.value))
            .help("a source has files or URLs; make two sources of it")
            .fail();
    }
    store_of(source, url, cx)
}

fn store_of(source: &SourceNode, url: &Spanned<String>, cx: &mut Cx<'_>) -> Result<SourceStore, Reported> {
    let kind = source.kind.as_ref().ok_or(Reported)?;
    kind.objects().map(SourceStore).or_else(|help| {
        let (name, kind) = (&source.name.value, kind.name());
        let message = format!("source `{name}` of kind `{kind}` cannot read `{}`", url.value);
        cx.error(url.span, message).help(help).fail()
    })
}

fn check_pattern(pattern: &Spanned<String>, spec: &ListingSpec, cx: &mut Cx<'_>) -> Result<(), Reported> {
    let relative =
        format!("paths are relative to the folder of the workflow file, `{}`", cx.folder.display());
    let found = cx.host.first_item(spec);
    let may_pass = found.as_ref().is_err_and(ListError::may_pass);
    let (message, help) = match found {
        Ok(Some(_)) => return Ok(()),
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
            format!("{relative}; hidden files, such as those that begin with a dot, are passed over"),
        ),
        Err(error @ ListError::NoSuchFile { .. }) => (error.to_string(), relative),
        Err(error @ ListError::Unreadable { .. }) => (
            format!("cannot list: {error}"),
            "give this user the right to read it, or name only what can be read".to_owned(),
        ),
        Err(error) => (format!("cannot list: {error}"), relative),
    };
    cx.error(pattern.span, message).help(help).outside(may_pass).fail()
}

/// A list of objects: the list, or what its rows are relative to, is a URL.
fn object_manifest(
    path: &Spanned<String>,
    root: Option<&Spanned<String>>,
    store: SourceStore,
    cx: &mut Cx<'_>,
) -> Result<ListingSpec, Reported> {
    if let Some(root) = root.filter(|root| !is_url(&root.value)) {
        return cx
            .error(root.span, format!("`{}` is a folder, and the manifest an object", root.value))
            .help("a list of objects names objects; copy it to this machine first where it names files")
            .fail();
    }
    let list = match &path.value[..] {
        "-" => None,
        url if is_url(url) => Some(url.into()),
        file => Some(cx.resolve(file)),
    };
    let root = match root {
        Some(root) => format!("{}/", root.value.trim_end_matches('/')),
        None => path.value[..path.value.rfind('/').map_or(0, |slash| slash + 1)].to_owned(),
    };
    let is_file = |list: &std::path::Path| !is_url(&path.value) && cx.host.file_kind(list) == FileKind::Other;
    let is_pipe = list.as_deref().is_some_and(is_file);
    let spec = ListingSpec::ObjectManifest { list, root, store };
    if path.value == "-" || is_pipe {
        return Ok(spec);
    }
    first_of_manifest(path, spec, cx)
}

fn manifest(
    path: &Spanned<String>,
    root: Option<&Spanned<String>>,
    cx: &mut Cx<'_>,
) -> Result<ListingSpec, Reported> {
    let root = root.map(|root| cx.resolve(&root.value));
    if path.value == "-" {
        return Ok(ListingSpec::Manifest { path: None, base: root.unwrap_or_else(|| cx.folder.clone()) });
    }
    let file = cx.resolve(&path.value);
    let base = root.unwrap_or_else(|| file.parent().unwrap_or(&cx.folder).into());
    let spec = ListingSpec::Manifest { path: Some(file.clone()), base };
    let (message, help) = match cx.host.file_kind(&file) {
        FileKind::Missing => (
            format!("manifest `{}` does not exist (looked for `{}`)", path.value, file.display()),
            format!("paths are relative to the folder of the workflow file, `{}`", cx.folder.display()),
        ),
        FileKind::Folder => (
            format!("manifest `{}` is a folder", path.value),
            "a folder of pictures is named with `paths` instead of `manifest`".to_owned(),
        ),
        // A pipe can be read only once: the run does that.
        FileKind::Other => return Ok(spec),
        FileKind::Regular => return first_of_manifest(path, spec, cx),
    };
    cx.error(path.span, message).help(help).fail()
}

/// The list, if it names an item.
fn first_of_manifest(
    path: &Spanned<String>,
    spec: ListingSpec,
    cx: &mut Cx<'_>,
) -> Result<ListingSpec, Reported> {
    let found = cx.host.first_item(&spec);
    let may_pass = found.as_ref().is_err_and(ListError::may_pass);
    let (message, help) = match found {
        Ok(Some(_)) => return Ok(spec),
        Ok(None) => (format!("manifest `{}` names no item", path.value), FORMATS.to_owned()),
        Err(ListError::Store { url, reason, help, .. }) => (format!("cannot read `{url}`: {reason}"), help),
        Err(error) => (format!("cannot list: {error}"), FORMATS.to_owned()),
    };
    cx.error(path.span, message).help(help).outside(may_pass).fail()
}
