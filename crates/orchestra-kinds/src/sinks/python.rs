//! `kind = "python"`: parts of the results go to a function in Python, such as one that writes to a database. A part is a file of lines of JSON until the
//! script has taken it: it is sealed before, so the rows of a number are always the same.

use std::sync::Arc;

use orchestra_core::data::{ColumnType, ItemError, Schema, Value};
use orchestra_core::shapes::{Encoder, ItemInfo, PartFiles};
use orchestra_core::{SandboxMode, ScriptProgram};
use orchestra_plan::{
    Fields, Input, Json, ProgramContext, Reported, SinkContext, Spanned, TypedSink, Writes, settings,
};
use serde::{Deserialize, Serialize};

use super::shared::record::{ValuesJson, can_be_written};
use super::shared::{cannot_write, column_names};
use crate::python_script::{PythonScript, ScriptKeys, ScriptSandbox};

const ROWS_PER_FILE: u64 = 1_000;
/// Rows of a part are objects in Python, all at once.
const BYTES_PER_FILE: u64 = 16 << 20;

settings! {
    pub struct PythonSink {
        /// the file with the function or class below `@orchestra.sink`; it may read its folder
        #[missing("name the file with the function: script = \"write.py\"")]
        script: Spanned<String>,
        /// which of several sinks of the script
        function: Option<Spanned<String>> => "the only one",
        /// the interpreter, as for stages
        python: Option<Spanned<String>> => "see `python` of stages",
        /// whether the script is confined to what it needs; a database or an API takes `"off"`. See [security](../security.md)
        sandbox: Option<SandboxMode> => "that of `[limits]`",
        /// files and folders that the script reads besides its own folder
        sandbox_read: Vec<Spanned<String>> => "none",
        /// files and folders that the script writes
        sandbox_write: Vec<Spanned<String>> => "none",
        /// variables of the environment that the script needs
        sandbox_env: Vec<Spanned<String>> => "none",
    }
}

/// What the client prints of a sink.
#[derive(Deserialize)]
struct DescribedSink {}

impl TypedSink for PythonSink {
    const NAME: &'static str = "python";
    const ABOUT: &'static str = "Parts of the results go to a function in Python, `write(rows, part)`, one after the other: rows are dicts with `item`, `index`, `source` and the columns. \
         They wait in `path` until the function has taken them. See [Python](../guide/python.md#sinks).";
    const EXTENSION: &'static str = "jsonl";
    const WRITES: Writes = Writes::PartFiles;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        let rows_per_file = fields.integer("rows_per_file").map_or(ROWS_PER_FILE, |rows| rows.value);
        match input.gives.0.iter().find(|column| !can_be_sent(&column.ty)) {
            Some(column) => {
                let help = "it takes bytes and all that stages give but pictures: decode those with kind = \"image\"";
                cannot_write(column, input, fields, help)
            }
            None => Ok(Arc::new(RowsForPython { schema: input.gives.clone(), rows_per_file })),
        }
    }

    fn script(self, sink: &mut SinkContext<'_, '_>) -> Result<Option<ScriptProgram>, Reported> {
        let Self { script, function, python, sandbox, sandbox_read, sandbox_write, sandbox_env } = &self;
        let keys = ScriptKeys { script, function: function.as_ref(), python: python.as_ref() };
        let sandbox =
            ScriptSandbox { mode: *sandbox, read: sandbox_read, write: sandbox_write, env: sandbox_env };
        let rules = sandbox.rules(sink.limits, (sink.host, sink.folder), &mut sink.fields);
        let mut context = ProgramContext {
            what: &sink.fields.what,
            span: sink.fields.span,
            host: sink.host,
            folder: sink.folder,
            rules: &rules,
            diags: sink.fields.diags,
        };
        let script = PythonScript::find(keys, &mut context)?;
        script.described::<DescribedSink>("describe-sink", |_| Ok(()), &mut context)?;
        let program = script.program(sink.host, "write");
        Ok(Some(ScriptProgram { program, rules, script: script.path, told: told(&sink.input.gives) }))
    }
}

/// The columns as the client is told of them, under the names that rows have for them.
fn told(schema: &Schema) -> String {
    let names = column_names::unique(schema, |_, called| vec![called.to_owned()]).concat();
    let column = |(name, column): (String, &orchestra_core::data::Column)| serde_json::json!({ "name": name, "ty": column.ty });
    let columns: Vec<Json> = names.into_iter().zip(&schema.0).map(column).collect();
    Json::from(columns).to_string()
}

/// Whether the client makes something of values of this type.
fn can_be_sent(ty: &ColumnType) -> bool {
    match ty {
        ColumnType::Bytes(_) => true,
        ColumnType::List(schema) => schema.0.iter().all(|column| can_be_sent(&column.ty)),
        ColumnType::Optional(of) => can_be_sent(of),
        ty => can_be_written(ty),
    }
}

#[derive(Debug)]
struct RowsForPython {
    schema: Schema,
    rows_per_file: u64,
}

impl Encoder for RowsForPython {
    fn encode(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        #[derive(Serialize)]
        struct SentRow<'a> {
            item: &'a str,
            index: u64,
            source: &'a str,
            values: ValuesJson<'a>,
        }
        let values = ValuesJson { schema: &self.schema, row };
        let sent = SentRow { item: item.name, index: item.id.index, source: item.source, values };
        serde_json::to_writer(&mut *out, &sent)
            .map_err(|error| ItemError::result(format!("cannot be written as JSON: {error}")))?;
        out.push(b'\n');
        Ok(())
    }

    fn part_files(&self) -> Option<&dyn PartFiles> {
        Some(self)
    }
}

impl PartFiles for RowsForPython {
    fn rows_per_file(&self) -> u64 {
        self.rows_per_file
    }

    fn bytes_per_file(&self) -> u64 {
        BYTES_PER_FILE
    }

    fn file(&self, records: &[&[u8]]) -> Result<Vec<u8>, ItemError> {
        Ok(records.concat())
    }
}
