//! What stages have in common that run code of the user: the outputs that a file declares. It reads no code.

use std::path::Path;

use orchestra_core::data::{Column, ColumnType};
use orchestra_core::{DType, Dim, MAX_RANK, TensorSpec};
use orchestra_plan::tree::{Toml, TomlNode};
use orchestra_plan::{Fields, Key, Setting, Spanned, key};

/// A table in `outputs`.
const OUTPUT: [Key; 2] = [
    key("dtype", "text", "required", "the type of its numbers").one_of(DType::WORDS),
    key(
        "shape",
        "list of integers",
        "required",
        "the shape of one row; -1 stands for a size that is known after the call",
    ),
];

#[derive(Debug)]
pub struct DeclaredOutputs(pub Vec<TensorSpec>);

impl Setting for DeclaredOutputs {
    const TYPE: &'static str = "table";

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let node = &f.entry(key)?.node;
        outputs(f, node).map(Self)
    }
}

pub fn column_of(tensor: &TensorSpec) -> Column {
    Column { name: tensor.name.clone(), ty: ColumnType::Tensor(tensor.clone()) }
}

/// What a file with code is called: it stands for a model of that name.
pub fn file_name(file: &Spanned<String>) -> Spanned<String> {
    let name = Path::new(&file.value).file_name().unwrap_or_default().to_string_lossy();
    Spanned::new(name.into_owned(), file.span)
}

fn outputs(f: &mut Fields<'_, '_>, node: &TomlNode) -> Option<Vec<TensorSpec>> {
    let Toml::Table(table) = &node.value else {
        return f
            .wrong("outputs", node, "a table: outputs = { mean = { dtype = \"f32\", shape = [3] } }")
            .none();
    };
    if table.entries.is_empty() {
        return f.bad("outputs", node.span, "names nothing").none();
    }
    let mut found = Some(Vec::new());
    for entry in &table.entries {
        let Toml::Table(output) = &entry.node.value else {
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
        let dtype = of.setting("dtype", "for example dtype = \"f32\"");
        let row = shape(&mut of);
        match (dtype, row, &mut found) {
            (Some(dtype), Some(row), Some(found)) => {
                found.push(TensorSpec { name: entry.key.clone(), dtype, row, batch: Dim::Dynamic });
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
    let dim = |node: &TomlNode| match node.value {
        Toml::Integer(-1) => Some(Dim::Dynamic),
        Toml::Integer(n) => Some(Dim::Fixed(usize::try_from(n).ok()?)),
        _ => None,
    };
    let dims = match &entry.node.value {
        Toml::Array(dims) if dims.len() <= MAX_RANK => dims.iter().map(dim).collect(),
        _ => None,
    };
    if dims.is_none() {
        let expected =
            format!("a list of at most {MAX_RANK} sizes; -1 stands for one that is known after the call");
        f.wrong("shape", &entry.node, &expected);
    }
    dims
}
