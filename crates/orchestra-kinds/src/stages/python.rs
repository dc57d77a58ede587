//! `kind = "python"`: runs a function or a class in Python over batches of rows, in worker processes that speak the worker protocol themselves,
//! with the help of the package in `clients/python`. What the script takes and gives it is asked while the workflow is planned.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{Code, DType, Dim, MAX_RANK, TensorSpec};
use orchestra_plan::keys::WORKERS;
use orchestra_plan::{
    Draft, Drafted, Fields, Key, MAX_BATCH, ProgramContext, ProgramDraft, Reported, ResolvedProgram,
    Settings, Spanned, TypedStage, Upstreams, joined, settings,
};
use serde::Deserialize;

use super::iterate::{FeedSetting, MAX_ROUNDS, UntilSetting, iteration};
use super::shared::batches::{BatchSettings, InputTable, upstreams_of_program};
use super::shared::user_code::{DeclaredOutputs, column_of, file_name};
use crate::python_script::{PythonScript, ScriptKeys};

settings! {
    #[derive(Debug)]
    pub struct Python {
        /// the file with the function or class below `@orchestra.stage`; workers may read its folder
        #[missing("name the file with the function: script = \"stage.py\"")]
        script: Spanned<String>,
        /// which of several stages of the script
        function: Option<Spanned<String>> => "the only one",
        /// the interpreter: a path, or a name that is looked for in `PATH`. Without it that of the active virtual environment, or of `.venv` beside the script or this file, else `python3`
        python: Option<Spanned<String>> => "see right",
        /// instead of `from`, for several arguments: `{ argument = "stage" }` or `"stage.tensor"`
        inputs: InputTable,
        /// `{ mean = { dtype = "f32", shape = [3] } }`: what it gives for a row; -1 stands for a dimension that is known after the call
        outputs: Option<DeclaredOutputs> => "those of the decorator",
        /// runs the function on its own outputs, up to so many rounds of each row; `rounds`, an i64, is then an output more, and says how many a row took
        #[range(1, MAX_ROUNDS)]
        rounds: Option<u32>,
        /// `{ argument = "output" }`: which output of a round is which argument of the next; the other arguments keep what the row brought
        feed: Option<FeedSetting> => "outputs with the names of arguments; else the only ones",
        /// `"output < number"` or `"output <= number"`, of an output with one number per row: a row that meets it has ended. What is no number never does
        until: Option<UntilSetting>,
        /// how rows become batches, of which each is a call
        batch: BatchSettings => "`max` of the decorator, else by device",
    }
}

const KEYS: [Key; <Python as Settings>::KEYS.len() + WORKERS.len()] =
    joined([<Python as Settings>::KEYS, WORKERS]);

impl TypedStage for Python {
    const NAME: &'static str = "python";
    const ABOUT: &'static str = "Runs a function or a class in Python over batches of rows, in workers like those of a model. It gives what the script declares. \
         See [Python](../guide/python.md).";
    type Work = ();
    const ALL_KEYS: &'static [Key] = &KEYS;

    fn upstreams(f: &mut Fields<'_, '_>) -> Upstreams {
        upstreams_of_program(f)
    }
}

impl Drafted for Python {
    fn draft(mut self, f: &mut Fields<'_, '_>) -> Option<Draft> {
        f.entry("outputs").is_none_or(|_| self.outputs.is_some()).then_some(())?;
        let mut draft = self.batch.of(file_name(&self.script));
        let (feed, until) = (self.feed.take(), self.until.take());
        match self.rounds {
            Some(rounds) => draft.iteration = Some(iteration(f, rounds, feed, until)?),
            None if f.entry("rounds").is_some() => return None,
            None if f.entry("feed").or(f.entry("until")).is_some() => {
                f.missing("rounds", "say how many rounds a row takes at most: rounds = 100");
                return None;
            }
            None => {}
        }
        draft.program = Some(Arc::new(self));
        Some(Draft::Batch(draft))
    }
}

/// What the client prints of a script.
#[derive(Deserialize)]
struct Described {
    name: String,
    inputs: Vec<PythonTensor>,
    outputs: Option<Vec<PythonTensor>>,
    batch: Option<u64>,
    gpu: bool,
    drops: bool,
    /// Files that make the results, with their digests.
    files: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct PythonTensor {
    name: String,
    dtype: Option<String>,
    shape: Option<Vec<Option<usize>>>,
    /// Of a list.
    columns: Option<Vec<PythonTensor>>,
    /// Of bytes: what the names of their files end with.
    format: Option<String>,
}

impl Described {
    fn check(&self) -> Result<(), String> {
        let mut declared = self.inputs.iter().chain(self.outputs.iter().flatten());
        let too_many =
            |tensor: &&PythonTensor| tensor.shape.as_ref().is_some_and(|shape| shape.len() > MAX_RANK);
        if let Some(tensor) = declared.find(too_many) {
            return Err(format!("`{}` is declared with more than {MAX_RANK} dimensions", tensor.name));
        }
        match self.batch {
            Some(rows) if !(1..=MAX_BATCH).contains(&rows) => {
                Err(format!("`batch` must be from 1 to {MAX_BATCH}, not {rows}"))
            }
            _ => Ok(()),
        }
    }
}

impl PythonTensor {
    /// What it gives, which need not be a tensor.
    fn output(&self) -> Option<Column> {
        let ty = match self.dtype.as_deref() {
            Some("text") => ColumnType::Text,
            Some("picture") => ColumnType::Picture,
            Some("labels") => ColumnType::Labels,
            Some("bytes") => ColumnType::Bytes(self.format.clone()?),
            Some("list") => {
                let columns = self.columns.iter().flatten().map(PythonTensor::output);
                ColumnType::List(Schema(columns.collect::<Option<_>>()?))
            }
            _ => ColumnType::Tensor(self.spec()?),
        };
        Some(Column { name: self.name.clone(), ty })
    }

    /// `None` where the script says nothing of it.
    fn spec(&self) -> Option<TensorSpec> {
        let (dtype, shape) = (self.dtype.as_ref()?, self.shape.as_ref()?);
        let dtype = DType::ALL.into_iter().find(|known| known.numpy_name() == dtype)?;
        let row = shape.iter().map(|dim| dim.map_or(Dim::Dynamic, Dim::Fixed)).collect();
        Some(TensorSpec { name: self.name.clone(), dtype, row, batch: Dim::Dynamic })
    }
}

impl ProgramDraft for Python {
    fn resolve(&self, context: &mut ProgramContext<'_>) -> Result<ResolvedProgram, Reported> {
        let keys = ScriptKeys {
            script: &self.script,
            function: self.function.as_ref(),
            python: self.python.as_ref(),
        };
        let script = PythonScript::find(keys, context)?;
        let described: Described = script.described("describe", Described::check, context)?;
        let declared = described
            .outputs
            .as_ref()
            .map(|outputs| outputs.iter().filter_map(PythonTensor::output).collect());
        let written = self.outputs.as_ref();
        let written = written.map(|DeclaredOutputs(outputs)| outputs.iter().map(column_of).collect());
        let Some(outputs) = written.or(declared).filter(|outputs: &Vec<Column>| !outputs.is_empty()) else {
            let name = &described.name;
            return context
                .error(self.script.span, format!("`{name}` does not say what it gives"))
                .help(format!(
                    "write it into the script, @orchestra.stage(outputs={{\"mean\": (\"float32\", [3])}}), or here: outputs = {{ mean = {{ dtype = \
                     \"f32\", shape = [3] }} }}; `python {} --check` tries it out",
                    self.script.value
                ))
                .fail();
        };
        Ok(ResolvedProgram {
            identity: serde_json::json!({ "files": described.files, "function": described.name, "outputs": outputs }).to_string(),
            inputs: described.inputs.iter().map(|input| (input.name.clone(), input.spec())).collect(),
            outputs,
            max_batch: described.batch,
            gpu: described.gpu,
            drops: described.drops,
            code: Code::Program(script.program(context.host, "worker")),
            path: script.path,
        })
    }
}
