//! `[sinks.*]`: what each writes, and where.

use super::SinkNode;
use super::tables::{declared, keys_of_sink, kind};
use crate::diagnostics::Diagnostics;
use crate::fields::{Fields, Spanned};
use crate::kind::{Kinds, Writes};
use crate::tree::Table;

pub(super) fn read(name: Spanned<String>, table: &Table, kinds: &Kinds, diags: &mut Diagnostics) -> SinkNode {
    let what = format!("sink `{}`", name.value);
    let mut node = SinkNode { name, table: table.clone(), ..SinkNode::default() };
    let names = kinds.sinks.iter().map(|kind| kind.name());
    let Some(kind) = kind(&what, table, node.name.span, names, |name| kinds.sink(name), diags) else {
        return node;
    };
    let keys = declared(keys_of_sink(&*kind), kind.keys());
    let mut f = Fields::new(what, node.name.span, table, &keys, diags);
    node.from = f.names("from", "name the stage whose results are written");
    let name = &node.name;
    node.path = match (f.entry("path"), kind.writes()) {
        (Some(_), _) => f.string("path"),
        (None, Writes::Append | Writes::PartFiles) => {
            Some(Spanned::new(format!("{}.{}", name.value, kind.extension()), name.span))
        }
        (None, Writes::FileEach) => Some(name.clone()),
        (None, Writes::Reply) => None,
    };
    if kind.writes() != Writes::Reply {
        node.ordered = f.value("ordered");
    }
    // A kind that makes parts of its own reads it itself.
    if matches!(kind.writes(), Writes::Append | Writes::FileEach) {
        node.rows_per_file = f.integer("rows_per_file");
    }
    SinkNode { kind: Some(kind), ..node }
}
