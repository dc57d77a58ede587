//! `kind = "tensors"`: the rows of NumPy arrays in `.npy` and `.npz` files, one item each, or many rows together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::shapes::{Fetch, KindSettings};
use orchestra_plan::tree::Value as Toml;
use orchestra_plan::{At, Fields, Key, SourceConnected, SourceContext, SourceKind, keys};
use orchestra_store::{Expand, ListError, ObjectStore, is_url};

use self::arrays::{Array, Arrays, arrays};
use self::rows::Rows;
use super::reading::columns::schema;
use super::reading::input::{describe, look};
use super::reading::limits::LARGEST_TENSOR;
use crate::objects;

mod arrays;
mod rows;

pub struct Tensors;

keys! {
    const KEYS {
        /// only for `.npy`: the name of the tensor, for `from = "source.name"` and in records
        column: "text" = "\"x\"",
        /// only for `.npz`: the arrays that items have, each a column of its name
        columns: "list" = "all",
        /// only for `.npy`: more columns of the same rows, each out of a file of its own: `beside = { b = "b.npy" }`. The path is relative to the file of `paths`; a `*` in it stands for the name of that file, as in `"../masks/*"`
        beside: "table" = "none",
        /// an item is so many rows together, called `file.npy[from:to]`, with them as its first dimension; the rows of each file must be a multiple of it
        #[range(1, LARGEST_TENSOR as u64)]
        rows: "integer" = "one row",
    }
}

impl SourceKind for Tensors {
    fn name(&self) -> &'static str {
        "tensors"
    }

    fn about(&self) -> &'static str {
        "The rows (first dimension) of arrays in `.npy` files of one shape and element type, in C order; an item is called `file.npy[row]`. With `beside`, the rows of several such files of equal length together. Or those of \
         `.npz` files, with a column per array and the same number of rows in each; a deflated array is unpacked from its beginning, as a stream."
    }

    fn objects(&self) -> Result<Arc<dyn ObjectStore>, String> {
        objects::store()
    }

    fn keys(&self) -> &'static [Key] {
        KEYS
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let column = source.fields.string("column");
        let beside = read_beside(&mut source.fields)?;
        let columns = match source.fields.entry("columns") {
            Some(_) => Some(source.fields.strings("columns")?),
            None => None,
        };
        let chunk = match source.fields.entry("rows") {
            Some(_) => Some(source.fields.integer("rows")?),
            None => None,
        };
        let span = source.fields.span;
        let what = source.fields.what.clone();
        let Some(first) = source.first else {
            source
                .fields
                .diags
                .error(span, format!("{what} needs a file to look at: the shape of its tensors is not known"))
                .help("name the files with `paths`, or with a manifest that is a file");
            return None;
        };
        let found = look::<Arrays>(source, &first.locator, &any_arrays()?, None)?;
        let (is_npz, found) = match found {
            Ok(Arrays { is_npz, arrays, .. }) => (is_npz, arrays),
            Err(why) => {
                source
                    .fields
                    .diags
                    .error(span, format!("{what}: `{}` is no array that can be read: {why}", first.name))
                    .help(
                        "write it with numpy.save or numpy.savez, with the items along the first dimension",
                    );
                return None;
            }
        };
        let (name, extension) = if is_npz { ("column", ".npz") } else { ("columns", ".npy") };
        if let Some(entry) = source.fields.entry(name) {
            let reason = format!("does not belong here: `{}` is a {extension} file", first.name);
            let help = if is_npz {
                "use `columns`, a list of arrays"
            } else {
                "use `column`, a name for the tensor"
            };
            source.fields.bad(name, entry.key_span, &reason).help(help);
            return None;
        }
        if let (true, Some(entry)) = (is_npz, source.fields.entry("beside")) {
            let reason = format!("does not belong here: `{}` is a .npz file", first.name);
            source
                .fields
                .bad("beside", entry.key_span, &reason)
                .help("put all arrays into it with numpy.savez");
            return None;
        }
        let mut chosen: Vec<Array> = match (&columns, column) {
            (Some(columns), _) => {
                let mut chosen: Vec<Array> = Vec::new();
                for column in columns {
                    let array = found.iter().find(|array| array.name == column.value);
                    let (Some(array), None) = (array, chosen.iter().find(|array| array.name == column.value))
                    else {
                        let names: Vec<_> = found.iter().map(|array| array.name.as_str()).collect();
                        source
                            .fields
                            .bad("columns", column.span, &format!("cannot name `{}`", column.value))
                            .help(format!("each array of `{}` once: `{}`", first.name, names.join("`, `")));
                        return None;
                    };
                    chosen.push(array.clone());
                }
                chosen
            }
            (None, Some(column)) => {
                found.into_iter().map(|array| Array { name: column.value.clone(), ..array }).collect()
            }
            (None, None) => found,
        };
        for (name, written) in &beside {
            let path = path_beside(&first.locator, &written.value);
            match array_beside(name, &path, source)? {
                Ok(_) if chosen.iter().any(|array| array.name == *name) => {
                    let help = "columns have names of their own; `column` is that of the file of `paths`";
                    source.fields.bad("beside", written.span, &format!("has `{name}` twice")).help(help);
                    return None;
                }
                Ok(array) => chosen.push(array),
                Err(why) => {
                    let reason = format!("names `{}`, which cannot be read: {why}", path.display());
                    let help = "the path is relative to the file of `paths`; `*` stands for that file's name";
                    source.fields.bad("beside", written.span, &reason).help(help);
                    return None;
                }
            }
        }
        let fields = match chosen
            .iter()
            .map(|array| array.field(chunk.as_ref().map(|chunk| chunk.value)))
            .collect()
        {
            Ok(fields) => fields,
            Err(why) => {
                let place = chunk.as_ref().map_or(span, |chunk| chunk.span);
                source
                    .fields
                    .diags
                    .error(place, format!("{what}: `{}` has no items of this kind: {why}", first.name))
                    .help("numeric arrays, with the items along the first dimension, are read; `columns` says which ones of a .npz file");
                return None;
            }
        };
        let beside = beside.into_iter().map(|(_, written)| written.value).collect();
        let protocols = objects::protocols(source.urls);
        let max_items = source.limits.max_items;
        let rows = Arc::new(Rows {
            is_npz,
            fields,
            beside,
            chunk: chunk.map(|chunk| chunk.value),
            max_items,
            protocols,
        });
        let headers: Result<Vec<_>, String> = chosen.into_iter().map(|array| array.header).collect();
        let counted = headers.and_then(|headers| rows.count(headers.iter().collect()));
        source.n_items = counted.as_ref().ok().copied();
        if let Err(why) = counted {
            let place = source.fields.entry("rows").map_or(span, |entry| entry.node.span);
            let message = format!("{what}: `{}` cannot be cut into items: {why}", first.name);
            source
                .fields
                .diags
                .error(place, message)
                .help("an item has all its rows, and no row is left out");
            return None;
        }
        let settings = match &*rows {
            // As it was before there was more to say, so that earlier runs go on.
            Rows { is_npz: false, chunk: None, fields, beside, .. } if beside.is_empty() => {
                serde_json::json!({ "kind": "tensors", "column": fields[0].name })
            }
            Rows { fields, chunk, beside, .. } => {
                let names: Vec<_> = fields.iter().map(|field| &field.name).collect();
                let mut settings = serde_json::json!({ "kind": "tensors", "columns": names, "rows": chunk });
                if !beside.is_empty() {
                    settings["beside"] = beside.as_slice().into();
                }
                settings
            }
        };
        Some(SourceConnected {
            gives: schema(&rows.fields),
            fetch: Arc::clone(&rows) as Arc<dyn Fetch>,
            expand: Some(rows),
            names_repeat: false,
            settings,
            decoders: None,
        })
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>> {
        Some(Arc::new(settings.read::<Rows>()?))
    }

    fn revive_expand(&self, settings: &KindSettings) -> Option<Arc<dyn Expand>> {
        Some(Arc::new(settings.read::<Rows>()?))
    }

    fn describe(&self, _: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        describe(file, arrays)
    }
}

/// Asks for the arrays of a file.
fn any_arrays() -> Option<KindSettings> {
    KindSettings::of(Tensors.name(), &())
}

/// Names of columns, and where their files lie.
fn read_beside(fields: &mut Fields<'_, '_>) -> Option<Vec<(String, At<String>)>> {
    let Some(entry) = fields.entry("beside") else { return Some(Vec::new()) };
    let Toml::Table(table) = &entry.node.value else {
        fields.wrong("beside", &entry.node, "a table: beside = { b = \"b.npy\" }");
        return None;
    };
    let mut beside = Vec::new();
    for entry in &table.entries {
        match &entry.node.value {
            Toml::String(path) if !entry.key.trim().is_empty() && !path.trim().is_empty() => {
                beside.push((entry.key.clone(), At::new(path.clone(), entry.node.span)));
            }
            _ => {
                fields.wrong(&format!("beside.{}", entry.key), &entry.node, "the path of a file, in quotes");
                return None;
            }
        }
    }
    Some(beside)
}

/// Where a file beside another one lies.
fn path_beside(file: &Path, written: &str) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let (mut folder, mut written) = (file.parent().unwrap_or(Path::new("")), written);
    // A store knows no `..`.
    while let Some(rest) = written.strip_prefix("../").filter(|_| file.to_str().is_some_and(is_url)) {
        (folder, written) = (folder.parent().unwrap_or(folder), rest);
    }
    folder.join(written.replace('*', &name))
}

/// As [`look`]: `None` is reported.
fn array_beside(
    name: &str,
    path: &Path,
    source: &mut SourceContext<'_, '_>,
) -> Option<Result<Array, String>> {
    let found = look::<Arrays>(source, path, &any_arrays()?, None)?;
    Some(found.and_then(|Arrays { is_npz, mut arrays, .. }| match is_npz {
        false => {
            let array = arrays.pop().ok_or("it holds no array")?;
            Ok(Array { name: name.to_owned(), ..array })
        }
        true => Err("it is a .npz file".to_owned()),
    }))
}

#[cfg(test)]
mod tests;
