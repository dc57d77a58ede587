//! `[sources.*]`: what each lists.

use super::tables::{declared, kind};
use super::{RawListing, SourceNode};
use crate::diagnostics::Diagnostics;
use crate::fields::{Fields, Spanned};
use crate::keys;
use crate::kind::Kinds;
use crate::tree::Table;

pub(super) fn read(
    name: Spanned<String>,
    table: &Table,
    kinds: &Kinds,
    diags: &mut Diagnostics,
) -> SourceNode {
    let what = format!("source `{}`", name.value);
    let mut node = SourceNode { name, table: table.clone(), ..SourceNode::default() };
    let names = kinds.sources.iter().map(|kind| kind.name());
    let Some(kind) = kind(&what, table, node.name.span, names, |name| kinds.source(name), diags) else {
        return node;
    };
    let has_files = kind.has_files();
    let keys = declared(if has_files { keys::SOURCE } else { &[] }, kind.keys());
    node.kind = Some(kind);
    let mut f = Fields::new(what, node.name.span, table, &keys, diags);
    node.listing = if has_files { listing(&mut f) } else { Some(RawListing::Generated) };
    if keys.iter().any(|key| key.name == "sandbox_read") {
        node.sandbox_read = f.strings("sandbox_read").unwrap_or_default();
    }
    node
}

/// What is listed; `None` was reported.
fn listing(f: &mut Fields<'_, '_>) -> Option<RawListing> {
    match (f.entry("paths"), f.entry("manifest")) {
        (None, None) => {
            f.missing("paths", "paths = [\"images/*.png\"], or manifest = \"list.csv\"");
            None
        }
        (Some(_), Some(second)) => f
            .bad("manifest", second.key_span, "stands beside `paths`")
            .help("a source has one or the other; make two sources of it")
            .none(),
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
    }
}
