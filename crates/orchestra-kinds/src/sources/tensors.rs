//! `kind = "tensors"`: the rows of NumPy arrays in `.npy` and `.npz` files, one item each, or many rows together.

use std::path::{Path, PathBuf};

use orchestra_core::shapes::KindSettings;
use orchestra_plan::{
    Diagnostic, Fields, ItemSchema, Json, NamedTexts, ObjectAccess, Reported, Setting, SourceContext, Span,
    Spanned, TypedSource, settings,
};
use orchestra_store::{ListError, is_url};

use self::arrays::{Arrays, SourceArray, arrays};
use self::rows::TensorItems;
use super::reading::columns::schema;
use super::reading::input::{describe, look, look_into_first};
use super::reading::limits::LARGEST_TENSOR;
use crate::objects;

mod arrays;
mod rows;

settings! {
    pub struct TensorFiles {
        /// only for `.npy`: the name of the tensor, for `from = "source.name"` and in records
        column: Option<String> => "\"x\"",
        /// only for `.npz`: the arrays that items have, each a column of its name
        columns: Option<Vec<Spanned<String>>> => "all",
        /// only for `.npy`: more columns of the same rows, each out of a file of its own: `beside = { b = "b.npy" }`. The path is relative to the file of `paths`; a `*` in it stands for the name of that file, as in `"../masks/*"`
        beside: Option<Beside>,
        /// an item is so many rows together, called `file.npy[from:to]`, with them as its first dimension; the rows of each file must be a multiple of it
        #[range(1, LARGEST_TENSOR as u64)]
        rows: Option<Spanned<u64>> => "one row",
    }
}

pub struct Beside(NamedTexts);

impl Setting for Beside {
    const TYPE: &'static str = NamedTexts::TYPE;

    fn read(fields: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let expected = ["a table: beside = { b = \"b.npy\" }", "is empty", "the path of a file, in quotes"];
        fields.texts(key, expected).map(Self)
    }
}

impl TypedSource for TensorFiles {
    const NAME: &'static str = "tensors";
    const ABOUT: &'static str = "The rows (first dimension) of arrays in `.npy` files of one shape and element type, in C order; an item is called `file.npy[row]`. With `beside`, the rows of several such files of equal length together. Or those of \
         `.npz` files, with a column per array and the same number of rows in each; a deflated array is unpacked from its beginning, as a stream.";
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    type Items = TensorItems;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, TensorItems), Reported> {
        let help = "name the files with `paths`, or with a manifest that is a file";
        let (name, found) = look_into_first::<Self, Arrays>(source, &(), None, help)?;
        let Arrays { is_npz, arrays, .. } = found.or_else(|why| {
            source
                .error(format!("`{name}` is no array that can be read: {why}"))
                .help("write it with numpy.save or numpy.savez, with the items along the first dimension")
                .fail()
        })?;
        self.refuse_others(is_npz, &name, source)?;
        let mut chosen = self.choose(arrays, &name, source)?;
        self.add_beside(&mut chosen, source)?;
        let chunk = self.rows.as_ref().map(|rows| rows.value);
        let fields = chosen.iter().map(|array| array.field(chunk)).collect::<Result<Vec<_>, _>>();
        let fields = fields.or_else(|why| {
            let why = format!("`{name}` has no items of this kind: {why}");
            self.error_at_rows(why, source)
                .help("numeric arrays, with the items along the first dimension, are read; `columns` says which ones of a .npz file")
                .fail()
        })?;
        let beside = self.beside.iter().flat_map(|Beside(NamedTexts(paths))| paths);
        let beside: Vec<String> = beside.map(|(_, path)| path.value.clone()).collect();
        let rows = TensorItems { is_npz, fields, beside, chunk, max_items: source.limits.max_items };
        let headers = chosen.into_iter().map(|array| array.header).collect::<Result<Vec<_>, String>>();
        let counted = headers.and_then(|headers| rows.count(headers.iter().collect()));
        source.n_items = counted.as_ref().ok().copied();
        counted.or_else(|why| {
            self.error_at_rows(format!("`{name}` cannot be cut into items: {why}"), source)
                .help("an item has all its rows, and no row is left out")
                .fail()
        })?;
        Ok((ItemSchema { gives: schema(&rows.fields), settings: settings_of(&rows), decoders: None }, rows))
    }

    fn describe(_: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        describe(file, arrays)
    }
}

impl TensorFiles {
    /// Reports keys for files of the other format.
    fn refuse_others(
        &self,
        is_npz: bool,
        file: &str,
        source: &mut SourceContext<'_, '_>,
    ) -> Result<(), Reported> {
        let others: &[(&str, &str)] = match is_npz {
            true => &[
                ("column", "use `columns`, a list of arrays"),
                ("beside", "put all arrays into it with numpy.savez"),
            ],
            false => &[("columns", "use `column`, a name for the tensor")],
        };
        let extension = if is_npz { ".npz" } else { ".npy" };
        for (key, help) in others {
            if let Some(entry) = source.fields.entry(key) {
                let reason = format!("does not belong here: `{file}` is a {extension} file");
                return source.fields.bad(key, entry.key_span, &reason).help(*help).fail();
            }
        }
        Ok(())
    }

    /// The arrays of the first file that items have, under their names.
    fn choose(
        &self,
        found: Vec<SourceArray>,
        file: &str,
        source: &mut SourceContext<'_, '_>,
    ) -> Result<Vec<SourceArray>, Reported> {
        let Some(columns) = &self.columns else {
            let named =
                |array: SourceArray| SourceArray { name: self.column.clone().unwrap_or(array.name), ..array };
            return Ok(found.into_iter().map(named).collect());
        };
        let mut chosen: Vec<SourceArray> = Vec::new();
        for column in columns {
            let array = found.iter().find(|array| array.name == column.value);
            let is_new = chosen.iter().all(|array| array.name != column.value);
            let Some(array) = array.filter(|_| is_new) else {
                let names: Vec<_> = found.iter().map(|array| array.name.as_str()).collect();
                return source
                    .fields
                    .bad("columns", column.span, &format!("cannot name `{}`", column.value))
                    .help(format!("each array of `{file}` once: `{}`", names.join("`, `")))
                    .fail();
            };
            chosen.push(array.clone());
        }
        Ok(chosen)
    }

    /// Adds the arrays of the files beside the first one.
    fn add_beside(
        &self,
        chosen: &mut Vec<SourceArray>,
        source: &mut SourceContext<'_, '_>,
    ) -> Result<(), Reported> {
        let Some(first) = source.first else { return Ok(()) };
        for (name, written) in self.beside.iter().flat_map(|Beside(NamedTexts(paths))| paths) {
            let path = path_beside(&first.locator, &written.value);
            let found = look::<Self, Arrays>(source, &path, &(), None)?;
            let array = found.and_then(|Arrays { is_npz, mut arrays, .. }| match is_npz {
                false => Ok(arrays.pop().ok_or("it holds no array")?),
                true => Err("it is a .npz file".to_owned()),
            });
            let (reason, help) = match array {
                Ok(_) if chosen.iter().any(|array| array.name == name.value) => (
                    format!("has `{}` twice", name.value),
                    "columns have names of their own; `column` is that of the file of `paths`",
                ),
                Ok(array) => {
                    chosen.push(SourceArray { name: name.value.clone(), ..array });
                    continue;
                }
                Err(why) => (
                    format!("names `{}`, which cannot be read: {why}", path.display()),
                    "the path is relative to the file of `paths`; `*` stands for that file's name",
                ),
            };
            return source.fields.bad("beside", written.span, &reason).help(help).fail();
        }
        Ok(())
    }

    /// Reports what is wrong, where `rows` stands if it is there.
    fn error_at_rows<'s>(&self, why: String, source: &'s mut SourceContext<'_, '_>) -> &'s mut Diagnostic {
        let rows: Option<Span> = self.rows.as_ref().map(|rows| rows.span);
        let d = source.error(why);
        d.span = rows.or(d.span);
        d
    }
}

/// What decides about results, for the fingerprint.
fn settings_of(rows: &TensorItems) -> Json {
    match rows {
        // As it was before there was more to say, so that earlier runs go on.
        TensorItems { is_npz: false, chunk: None, fields, beside, .. } if beside.is_empty() => {
            serde_json::json!({ "kind": TensorFiles::NAME, "column": fields[0].name })
        }
        TensorItems { fields, chunk, beside, .. } => {
            let names: Vec<_> = fields.iter().map(|field| &field.name).collect();
            let mut settings =
                serde_json::json!({ "kind": TensorFiles::NAME, "columns": names, "rows": chunk });
            if !beside.is_empty() {
                settings["beside"] = beside.as_slice().into();
            }
            settings
        }
    }
}

fn path_beside(file: &Path, written: &str) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let (mut folder, mut written) = (file.parent().unwrap_or(Path::new("")), written);
    // A store knows no `..`.
    while let Some(rest) = written.strip_prefix("../").filter(|_| file.to_str().is_some_and(is_url)) {
        (folder, written) = (folder.parent().unwrap_or(folder), rest);
    }
    folder.join(written.replace('*', &name))
}

#[cfg(test)]
mod tests;
