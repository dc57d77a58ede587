//! `kind = "python"`: the rows that a function in Python yields, one item each. Its process lists them, and each row is kept in the list of items, so
//! an item is read from its locator: the path of the script, where rows name pictures, then `#` and the row as JSON.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bincode::{Decode, Encode};
use orchestra_core::data::ItemError;
use orchestra_core::shapes::{FetchRun, FileAccess};
use orchestra_core::{FailureKind, SandboxMode, ScriptProgram};
use orchestra_plan::{
    ItemSchema, Items, ProgramContext, ReadOptions, Reported, SourceContext, Spanned, TypedSource, settings,
};
use serde::Deserialize;

use super::jsonl::fill;
use super::reading::columns::{
    DeclaredColumns, DeclaresColumns, field_of, item_schema, opens_of, types_help,
};
use super::reading::fetch::fetch_into;
use super::reading::field_type::Field;
use super::reading::input::Opener;
use super::reading::limits::MOST_COLUMNS;
use super::reading::row::FieldRow;
use crate::python_script::{PythonScript, ScriptKeys, ScriptSandbox};

settings! {
    pub struct PythonSource {
        /// the file with the function below `@orchestra.source`; it may read its folder
        #[missing("name the file with the function: script = \"rows.py\"")]
        script: Spanned<String>,
        /// which of several sources of the script
        function: Option<Spanned<String>> => "the only one",
        /// the interpreter: a path, or a name that is looked for in `PATH`. Without it that of the active virtual environment, or of `.venv` beside the script or this file, else `python3`
        python: Option<Spanned<String>> => "see right",
        /// names of columns with their types, as for `jsonl`
        columns: Option<DeclaredColumns<PythonSource>> => "those of the decorator",
        /// whether the script is confined to what it needs; a database or an API takes `"off"`. See [security](../security.md)
        sandbox: Option<SandboxMode> => "that of `[limits]`",
        /// files and folders that the script reads besides its own folder; also those of pictures that its rows name
        sandbox_read: Vec<Spanned<String>> => "none",
        /// files and folders that the script writes
        sandbox_write: Vec<Spanned<String>> => "none",
        /// variables of the environment that the script needs
        sandbox_env: Vec<Spanned<String>> => "none",
    }
}

impl DeclaresColumns for PythonSource {
    const TYPES: &'static [&'static str] = &["text", "json", "picture"];
}

/// What the client prints of a source.
#[derive(Deserialize)]
struct DescribedSource {
    name: String,
    /// Their types as a workflow file has them.
    columns: Option<Vec<(String, String)>>,
}

impl DescribedSource {
    fn fields(&self) -> Result<Option<Vec<Field>>, String> {
        let Some(columns) = &self.columns else { return Ok(None) };
        if !(1..=MOST_COLUMNS).contains(&columns.len()) {
            return Err(format!("`columns` must name 1 to {MOST_COLUMNS} columns"));
        }
        let field = |(name, ty): &(String, String)| {
            let no_type = || format!("`{name}` cannot be {ty:?}; {}", types_help(PythonSource::TYPES));
            field_of(name, ty, PythonSource::TYPES).ok_or_else(no_type)
        };
        columns.iter().map(field).collect::<Result<_, _>>().map(Some)
    }
}

impl TypedSource for PythonSource {
    const NAME: &'static str = "python";
    const ABOUT: &'static str = "The rows that a function in Python yields, dicts of at most 64 KiB, such as those of a database or an API. An item is called by its number, or by the \
         `key` of the decorator. See [Python](../guide/python.md#sources).";
    const HAS_FILES: bool = false;
    const NAMES_REPEAT: bool = true;
    type Items = PythonRows;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, PythonRows), Reported> {
        let (host, folder) = (source.host, source.folder);
        let sandbox = ScriptSandbox {
            mode: self.sandbox,
            read: &self.sandbox_read,
            write: &self.sandbox_write,
            env: &self.sandbox_env,
        };
        let rules = sandbox.rules(source.limits, (host, folder), &mut source.fields);
        let mut context = ProgramContext {
            what: &source.fields.what,
            span: source.fields.span,
            host,
            folder,
            rules: &rules,
            diags: source.fields.diags,
        };
        let keys = ScriptKeys {
            script: &self.script,
            function: self.function.as_ref(),
            python: self.python.as_ref(),
        };
        let script = PythonScript::find(keys, &mut context)?;
        let check = |described: &DescribedSource| described.fields().map(drop);
        let described = script.described("describe-source", check, &mut context)?;
        let declared = described.fields().ok().flatten();
        let Some(fields) = self.columns.map(|columns| columns.0).or(declared) else {
            return context
                .error(self.script.span, format!("`{}` does not say what its rows hold", described.name))
                .help("write it into the script, @orchestra.source(columns={\"id\": \"i64\", \"title\": \"text\"}), or here: columns = { id = \"i64\", title = \"text\" }")
                .fail();
        };
        let program = script.program(host, "list");
        source.lister = Some(ScriptProgram { program, rules, script: script.path, told: String::new() });
        Ok((item_schema::<Self>(&fields), PythonRows { fields }))
    }
}

#[derive(Debug, Encode, Decode)]
pub struct PythonRows {
    fields: Vec<Field>,
}

impl Items for PythonRows {
    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        row_of(before.as_os_str().as_bytes()).1 != row_of(now.as_os_str().as_bytes()).1
    }

    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        let row = FieldRow::new(&self.fields, options.max_pixels);
        let opener = Opener::new(options);
        fetch_into(row, move |row, locator| {
            let (path, json) = row_of(locator);
            // What is wrong with a row the client says in its place, as a text.
            match serde_json::from_slice::<String>(json) {
                Ok(error) => Err(ItemError { kind: FailureKind::Decode, error }),
                Err(_) => fill(row, json, path, &opener),
            }
        })
    }

    fn opens(&self) -> FileAccess {
        opens_of(&self.fields)
    }
}

fn row_of(locator: &[u8]) -> (&Path, &[u8]) {
    let at = locator.iter().rposition(|byte| *byte == b'#').unwrap_or(0);
    (Path::new(OsStr::from_bytes(&locator[..at])), locator.get(at + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use orchestra_core::DType;
    use orchestra_core::data::Value;

    use super::super::reading::field_type::FieldType;
    use super::*;

    #[test]
    fn a_row_is_read_from_its_locator_and_one_that_is_wrong_fails_with_the_words_of_the_client() {
        let fields = vec![Field::new("n", FieldType::scalar(DType::I64)), Field::new("t", FieldType::Text)];
        let rows = PythonRows { fields };
        let mut run = rows.start(&ReadOptions::default());
        run.fetch(b"/a#1/rows.py#{\"n\": 7, \"t\": \"\\u0023\"}").unwrap();
        run.with_row(&mut |row| {
            let [Value::Tensor(view), Value::Text(text)] = row else { panic!("other values") };
            assert_eq!((view.data, *text), (&7_i64.to_ne_bytes()[..], "#"));
        });
        for (locator, why) in [
            (&b"#\"it gives no dict\""[..], "it gives no dict"),
            (b"#{\"n\": 1.5, \"t\": \"\"}", "1.5"),
            (b"#{\"n\": 1}", "no field `t`"),
            (b"", "no JSON object"),
        ] {
            let ItemError { kind, error } = run.fetch(locator).unwrap_err();
            assert!(kind == FailureKind::Decode && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_row_has_changed_where_it_holds_something_else_and_not_where_the_script_has_moved() {
        let rows = PythonRows { fields: Vec::new() };
        let changed = |a: &str, b: &str| rows.has_changed(Path::new(a), Path::new(b));
        assert!(changed("/a.py#{\"n\": 1}", "/a.py#{\"n\": 2}"));
        assert!(!changed("/a.py#{\"n\": 1}", "/b.py#{\"n\": 1}"));
    }
}
