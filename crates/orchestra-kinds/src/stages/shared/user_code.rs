//! What stages have in common that run code of the user: the keys of their workers, and the outputs that a file declares. It reads no code.

use orchestra_core::{Dim, MAX_RANK, TensorSpec};
use orchestra_plan::keys::WORKERS;
use orchestra_plan::tree::{Node, Value};
use orchestra_plan::{Fields, Key, key};

use crate::elements::DTYPES;

/// A table in `outputs`.
const OUTPUT: [Key; 2] = [
    key("dtype", "text", "required", "the type of its numbers").one_of(&DTYPES.words),
    key(
        "shape",
        "list of integers",
        "required",
        "the shape of one row; -1 stands for a size that is known after the call",
    ),
];

/// Keys of a kind, then those of its workers but the one that it does not have.
pub const fn beside_workers<const OWN: usize, const ALL: usize>(
    own: [Key; OWN],
    without: Option<&str>,
) -> [Key; ALL] {
    let mut all = [WORKERS[0]; ALL];
    let (mut to, mut from) = (0, 0);
    while to < OWN {
        all[to] = own[to];
        to += 1;
    }
    while from < WORKERS.len() {
        let is_left_out = match without {
            Some(name) => is_equal(name.as_bytes(), WORKERS[from].name.as_bytes()),
            None => false,
        };
        if !is_left_out {
            all[to] = WORKERS[from];
            to += 1;
        }
        from += 1;
    }
    assert!(to == ALL, "the number of keys is not the length of the array");
    all
}

const fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// `outputs` of the file; `None` after an error.
pub fn outputs(f: &mut Fields<'_, '_>, node: &Node) -> Option<Vec<TensorSpec>> {
    let Value::Table(table) = &node.value else {
        f.wrong("outputs", node, "a table: outputs = { mean = { dtype = \"f32\", shape = [3] } }");
        return None;
    };
    if table.entries.is_empty() {
        f.bad("outputs", node.span, "names nothing");
        return None;
    }
    let mut found = Some(Vec::new());
    for entry in &table.entries {
        let Value::Table(output) = &entry.node.value else {
            f.wrong(
                &format!("outputs.{}", entry.key),
                &entry.node,
                "a table: { dtype = \"f32\", shape = [3] }",
            );
            found = None;
            continue;
        };
        let what = format!("output `{}` of {}", entry.key, f.what);
        let mut of = Fields::new(what, entry.key_span, output, &OUTPUT, f.diags);
        let dtype = of.word("dtype", &DTYPES);
        if of.entry("dtype").is_none() {
            of.missing("dtype", "for example dtype = \"f32\"");
        }
        let row = shape(&mut of);
        match (dtype, row, &mut found) {
            (Some(dtype), Some(row), Some(found)) => {
                found.push(TensorSpec {
                    name: entry.key.clone(),
                    dtype: dtype.value,
                    row,
                    batch: Dim::Dynamic,
                });
            }
            _ => found = None,
        }
    }
    found
}

fn shape(f: &mut Fields<'_, '_>) -> Option<Vec<Dim>> {
    let Some(entry) = f.entry("shape") else {
        f.missing(
            "shape",
            "the shape of one row, without the rows themselves: shape = [3], or [] for one number",
        );
        return None;
    };
    let dim = |node: &Node| match node.value {
        Value::Integer(-1) => Some(Dim::Dynamic),
        Value::Integer(n) => Some(Dim::Fixed(usize::try_from(n).ok()?)),
        _ => None,
    };
    let dims = match &entry.node.value {
        Value::Array(dims) if dims.len() <= MAX_RANK => dims.iter().map(dim).collect(),
        _ => None,
    };
    if dims.is_none() {
        let expected =
            format!("a list of at most {MAX_RANK} sizes; -1 stands for one that is known after the call");
        f.wrong("shape", &entry.node, &expected);
    }
    dims
}
