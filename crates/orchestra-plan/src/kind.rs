//! What a kind of source, stage or sink is to the planner: its keys, declared once, and what follows from them and from what it reads. The
//! planner knows these traits and no kind; hosts hand their kinds in through a [`Kinds`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::shapes::{Encoder, Fan, Fetch, Fold, LoaderSpec, Map, Reduce, Registry};
use orchestra_core::{Code, SandboxRules, TensorSpec};
use orchestra_store::{Expand, ItemEntry, ObjectOutput, ObjectStore};
use serde_json::Value as Json;

use crate::diagnostics::{Diagnostics, Span};
use crate::fields::{At, Fields};
use crate::host::Host;
use crate::iterate::LoopDraft;
use crate::nearest::{list, suggestion};
use crate::plan::Limits;

/// A key of a table: parsing, `check` and the reference pages come from this declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// As written.
    pub name: &'static str,
    /// What its value is, in a word or two.
    pub ty: &'static str,
    /// What it is where it is left out: a value, `required`, or a phrase.
    pub default: &'static str,
    pub help: &'static str,
}

#[must_use]
pub const fn key(name: &'static str, ty: &'static str, default: &'static str, help: &'static str) -> Key {
    Key { name, ty, default, help }
}

/// The kinds that a workflow file may name.
#[derive(Clone, Default)]
pub struct Kinds {
    /// `[sources.*]`
    pub sources: Vec<Arc<dyn SourceKind>>,
    /// `[stages.*]`
    pub stages: Vec<Arc<dyn StageKind>>,
    /// `[sinks.*]`
    pub sinks: Vec<Arc<dyn SinkKind>>,
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kinds")
            .field("sources", &self.sources.iter().map(|k| k.name()).collect::<Vec<_>>())
            .field("stages", &self.stages.iter().map(|k| k.name()).collect::<Vec<_>>())
            .field("sinks", &self.sinks.iter().map(|k| k.name()).collect::<Vec<_>>())
            .finish()
    }
}

impl Kinds {
    /// These, and one more kind of source.
    #[must_use]
    pub fn with_source(mut self, kind: impl SourceKind + 'static) -> Self {
        self.sources.push(Arc::new(kind));
        self
    }

    /// These, and one more kind of stage.
    #[must_use]
    pub fn with_stage(mut self, kind: impl StageKind + 'static) -> Self {
        self.stages.push(Arc::new(kind));
        self
    }

    /// These, and one more kind of sink.
    #[must_use]
    pub fn with_sink(mut self, kind: impl SinkKind + 'static) -> Self {
        self.sinks.push(Arc::new(kind));
        self
    }
}

impl Registry for Kinds {
    fn fetch(&self, spec: &LoaderSpec) -> Option<Arc<dyn Fetch>> {
        self.sources.iter().find(|kind| kind.name() == spec.kind)?.revive(spec)
    }

    fn map(&self, spec: &LoaderSpec) -> Option<Arc<dyn Map>> {
        self.stages.iter().find(|kind| kind.name() == spec.kind)?.revive(spec)
    }
}

pub trait SourceKind: Send + Sync {
    /// As `kind = ".."` names it.
    fn name(&self) -> &'static str;
    /// What it gives, in a sentence.
    fn about(&self) -> &'static str;
    /// Its keys beside `kind`, and `paths`, `manifest` and `root`, which the planner reads.
    fn keys(&self) -> &'static [Key] {
        &[]
    }
    /// Whether its items lie in files, which `paths` or `manifest` name. Else [`SourceConnected::expand`] makes the items of nothing.
    fn has_files(&self) -> bool {
        true
    }
    /// What speaks to the stores of its items, where `paths` may name URLs.
    ///
    /// # Errors
    /// It reads files alone: what to do instead, for the message.
    fn objects(&self) -> Result<Arc<dyn ObjectStore>, String> {
        Err("sources of this kind read files: copy the objects to a folder first".to_owned())
    }
    /// What its items are, known from the first of the files that it names. `None` after an error, which is in `source.diags`.
    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected>;
    /// Makes a fetch of this kind again, in a loader process: of what its [`Fetch::in_loader`] gave.
    fn revive(&self, spec: &LoaderSpec) -> Option<Arc<dyn Fetch>> {
        let _ = spec;
        None
    }
}

/// What a kind of source may ask while it is planned.
pub struct SourceContext<'a, 'd> {
    /// The keys of its table.
    pub fields: Fields<'a, 'd>,
    /// The first file or object that it names; `None` where that is known only in the run.
    pub first: Option<&'a ItemEntry>,
    /// The URLs that it names; empty where it reads files.
    pub urls: &'a [String],
    pub limits: &'a Limits,
    pub host: &'a dyn Host,
}

#[derive(Debug, Clone)]
pub struct SourceConnected {
    /// The columns of an item.
    pub gives: Schema,
    /// Reads an item.
    pub fetch: Arc<dyn Fetch>,
    /// Makes items of files, where a file is not one item.
    pub expand: Option<Arc<dyn Expand>>,
    /// Two items of a file may have the same name.
    pub names_repeat: bool,
    /// What decides about results, for the fingerprint; `Null` where that is the list of files alone.
    pub settings: Json,
    /// The decoders of its files with their versions, where another version may give other values. A run is not resumed with others.
    pub decoders: Option<&'static str>,
}

pub trait StageKind: Send + Sync {
    /// As `kind = ".."` names it.
    fn name(&self) -> &'static str;
    /// What it does, in a sentence.
    fn about(&self) -> &'static str;
    /// Its keys beside `kind` and `from`.
    fn keys(&self) -> &'static [Key];
    /// Where its upstream is named otherwise than by `from` alone: an entry for each table, with the name of the input.
    fn reads(&self, fields: &mut Fields<'_, '_>) -> Reads {
        fields.reads()
    }
    /// Reads its settings; `None` after an error.
    fn read(&self, fields: &mut Fields<'_, '_>, limits: &Limits) -> Option<Draft>;
    /// Makes a map of this kind again, in a loader process: of what its [`Map::in_loader`] gave.
    fn revive(&self, spec: &LoaderSpec) -> Option<Arc<dyn Map>> {
        let _ = spec;
        None
    }
}

/// What a stage reads from, as written, in order; the first part names the input that is fed, where the file says it.
pub type Reads = Vec<(Option<At<String>>, At<String>)>;

/// A stage whose settings are read.
#[derive(Debug)]
pub enum Draft {
    /// It runs a model in worker processes.
    Batch(BatchDraft),
    /// Anything else.
    Stage(Box<dyn Connect>),
}

/// The settings of a stage that runs a model.
#[derive(Debug, Clone)]
pub struct BatchDraft {
    /// The name of the model; `None` was reported.
    pub model: Option<At<String>>,
    /// What the stage runs instead of one of the models of the file. It stands for a model of its own, whose name is `model`; the table of the
    /// stage has the keys of [`WORKERS`](crate::keys::WORKERS).
    pub program: Option<Arc<dyn ProgramDraft>>,
    /// `batch.max`
    pub max_batch: Option<At<u64>>,
    /// `batch.wait`
    pub wait: std::time::Duration,
    /// `batch.together`
    pub together: Option<usize>,
    /// `batch.sizes`
    pub sizes: Option<At<Vec<u64>>>,
    /// The model runs on its own outputs.
    pub iterate: Option<Box<LoopDraft>>,
}

/// A program that a stage runs instead of a model, waiting to be asked what it takes and gives.
pub trait ProgramDraft: fmt::Debug + Send + Sync {
    /// What it takes and gives. `None` after an error, which is in `context.diags`.
    fn connect(&self, context: &mut ProgramContext<'_>) -> Option<ProgramConnected>;
}

/// What a stage that runs a program may ask while it is planned.
pub struct ProgramContext<'a> {
    pub stage: &'a str,
    /// Where that stands.
    pub span: Span,
    /// Files and variables, and answers of programs.
    pub host: &'a dyn Host,
    /// The folder of the workflow file.
    pub folder: &'a Path,
    /// What the file allows its workers.
    pub rules: &'a SandboxRules,
    /// Where errors go.
    pub diags: &'a mut Diagnostics,
}

/// Code of the user, and what is known of it.
#[derive(Debug, Clone)]
pub struct ProgramConnected {
    /// The file that users know it by, absolute.
    pub path: PathBuf,
    /// All that makes its results, as a text: a run is not resumed with another.
    pub identity: String,
    /// What it takes, in its order; a name alone takes any tensor of fixed shape.
    pub inputs: Vec<(String, Option<TensorSpec>)>,
    pub outputs: Vec<TensorSpec>,
    /// Rows of a batch, where the stage does not say it.
    pub max_batch: Option<u64>,
    /// Whether it runs on GPUs. One that does not is placed on the cores.
    pub gpu: bool,
    pub code: Code,
}

/// The settings of a stage, waiting for what the stage reads.
pub trait Connect: fmt::Debug {
    /// What the stage gives and runs as. `None` after an error, which is in `stage.diags`.
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected>;
    /// It reads no more of a model's output than the largest number along its last dimension and where that stands, and takes a
    /// [`ColumnType::Largest`] in its place: the model then gives no more than that.
    fn reads_largest(&self) -> bool {
        false
    }
    /// Settings of this stage that would make what it gives fit `want`, as a sentence; for the message that it does not.
    fn advice(&self, name: &str, want: &orchestra_core::TensorSpec) -> Option<String> {
        let _ = (name, want);
        None
    }
}

/// What a kind of stage may ask while it is planned.
pub struct StageContext<'a> {
    pub name: &'a str,
    /// Where that stands.
    pub span: Span,
    /// What it reads, in the order of `from`.
    pub inputs: &'a [Input],
    pub host: &'a dyn Host,
    /// The folder of the workflow file.
    pub folder: &'a Path,
    /// Where errors go.
    pub diags: &'a mut Diagnostics,
}

/// A source or stage that is read.
#[derive(Debug, Clone)]
pub struct Input {
    pub name: String,
    pub kind: &'static str,
    pub is_source: bool,
    /// Where it is named.
    pub span: Span,
    /// `paths` of a source, as written; empty for a manifest and for a stage.
    pub paths: Vec<String>,
    /// All columns that it gives. Behind them, where its rows were made of a picture, a [`ColumnType::Placement`] that says how, even if an
    /// earlier stage gives it.
    pub gives: Schema,
    /// The one column that is meant, where the file says so (`from = "stage.column"`).
    pub column: Option<String>,
    /// The labels of its model, if it runs one that has some.
    pub labels: Option<At<Vec<String>>>,
    /// What the file of its model says about itself beside inputs and outputs; empty where it runs none.
    pub metadata: Arc<BTreeMap<String, String>>,
}

impl Input {
    /// "infer stage `boxes`"
    pub fn described(&self) -> String {
        match self.is_source {
            true => format!("source `{}`", self.name),
            false => format!("{} stage `{}`", self.kind, self.name),
        }
    }

    /// The place of a column; that there is none of that name is reported.
    fn place_of(&self, name: &str, diags: &mut Diagnostics) -> Option<usize> {
        let place = self.gives.position(name);
        if place.is_none() {
            let kind = if self.is_source { "source" } else { "stage" };
            diags
                .error(self.span, format!("{kind} `{}` has no output `{name}`", self.name))
                .help(suggestion("outputs", name, self.gives.names().collect::<Vec<_>>()));
        }
        place
    }

    /// The place of the column that is meant: the one that is named, or the only one that `fits`. `what` completes "takes ..".
    pub(crate) fn column(
        &self,
        reader: &str,
        what: &str,
        fits: impl Fn(&Column) -> bool,
        diags: &mut Diagnostics,
    ) -> Option<usize> {
        let columns = &self.gives.0;
        if let Some(name) = &self.column {
            let place = self.place_of(name, diags)?;
            if !fits(&columns[place]) {
                diags
                    .error(self.span, format!("{reader} cannot take `{}.{name}`", self.name))
                    .label(format!("it is {}", columns[place].ty))
                    .help(format!("it takes {what}"));
                return None;
            }
            return Some(place);
        }
        let fitting: Vec<usize> = (0..columns.len()).filter(|place| fits(&columns[*place])).collect();
        match fitting[..] {
            [only] => Some(only),
            [] => {
                diags
                    .error(self.span, format!("{reader} cannot read from {}", self.described()))
                    .label(format!("it gives {}", self.gives))
                    .help(format!("it takes {what}"));
                None
            }
            _ => {
                let names = list(fitting.iter().map(|place| columns[*place].name.as_str()));
                let which = self.described();
                diags
                    .error(self.span, format!("{reader} must say which of the outputs of {which} it reads"))
                    .help(format!("write \"{}.tensor\"; outputs: {names}", self.name));
                None
            }
        }
    }
}

/// Columns of inputs: which input, and which of its columns.
pub type InputColumns = Vec<(usize, usize)>;

/// What is read of all inputs, as one row. A single input gives its columns as they are named there; of several, a column is called as the
/// `from` that names it, or `stage`, or `stage.column` where the stage gives several. `None` after an error; `reader` is "stage `x`".
pub(crate) fn whole_row(
    reader: &str,
    inputs: &[Input],
    diags: &mut Diagnostics,
) -> Option<(Input, InputColumns)> {
    let (first, several) = (inputs.first()?, inputs.len() > 1);
    let mut columns: Vec<Column> = Vec::new();
    let mut reads = Vec::new();
    for (at, input) in inputs.iter().enumerate() {
        let all = &input.gives.0;
        let named = match &input.column {
            Some(name) => {
                let place = input.place_of(name, diags)?;
                place..place + 1
            }
            None => 0..all.len(),
        };
        let dotted = input.column.is_some() || input.gives.whole().count() > 1;
        for place in named.filter(|place| all[*place].ty != ColumnType::Placement) {
            let name = match (several, dotted) {
                (false, _) => all[place].name.clone(),
                (true, false) => input.name.clone(),
                (true, true) => format!("{}.{}", input.name, all[place].name),
            };
            if columns.iter().any(|column| column.name == name) {
                diags.error(input.span, format!("{reader} reads `{name}` twice")).help("name it once");
                return None;
            }
            columns.push(Column { name, ty: all[place].ty.clone() });
            reads.push((at, place));
        }
    }
    let name = inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join("`, `");
    let labels = first.labels.clone().filter(|_| !several);
    let metadata = if several { Arc::default() } else { Arc::clone(&first.metadata) };
    let whole = Input { name, gives: Schema(columns), column: None, labels, metadata, ..first.clone() };
    Some((whole, reads))
}

#[derive(Debug, Clone)]
pub struct StageConnected {
    /// The columns of a row.
    pub gives: Schema,
    pub reads: InputColumns,
    pub runs: Runs,
    /// What decides about results, for the fingerprint and for `plan --json`. An object.
    pub settings: Json,
    /// Its settings in a few words, one line each, for `graph`.
    pub details: Vec<String>,
    /// The same in a line, for `plan`.
    pub about: String,
}

/// What a stage without a model runs as.
#[derive(Debug, Clone)]
pub enum Runs {
    /// In the thread that made the row.
    Map(Arc<dyn Map>),
    /// Once all parts of a token are there.
    Fold(Arc<dyn Fold>),
    /// Once all items of the run have ended; only sinks read what it gives.
    Reduce(Arc<dyn Reduce>),
}

impl Runs {
    /// Whether each row becomes several.
    pub fn fan(&self) -> Fan {
        match self {
            Runs::Map(map) => map.fan(),
            Runs::Fold(_) | Runs::Reduce(_) => Fan::One,
        }
    }
}

impl StageContext<'_> {
    /// All that the stage reads, as one row: a single input's columns as they are, those of several under the names of their stages.
    pub fn whole_row(&mut self) -> Option<(Input, InputColumns)> {
        whole_row(&format!("stage `{}`", self.name), self.inputs, self.diags)
    }

    /// The same of the first input alone.
    pub fn whole_first(&mut self) -> Option<(Input, InputColumns)> {
        whole_row(&format!("stage `{}`", self.name), self.inputs.get(..1)?, self.diags)
    }

    /// The column that input `at` means: the one that is named, or the only one that `fits`. `what` completes "takes ..", for the message
    /// that there is none.
    pub fn column(&mut self, at: usize, what: &str, fits: impl Fn(&Column) -> bool) -> Option<usize> {
        let Some(input) = self.inputs.get(at) else {
            let name = self.name;
            // Where nothing is named at all, that was reported.
            if at > 0 && !self.inputs.is_empty() {
                self.diags
                    .error(self.span, format!("stage `{name}` reads from too few: it takes {what}, too"))
                    .help("name all of them: from = [\"..\", \"..\"]");
            }
            return None;
        };
        input.column(&format!("stage `{}`", self.name), what, fits, self.diags)
    }
}

/// How the records of a sink are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// One behind the other to a file.
    Append,
    /// Each to a file of its own, in a folder, beside an index of them all.
    FileEach,
    /// Many to a numbered file, which is there once it is whole: the encoder has [`Encoder::part_files`].
    PartFiles,
}

/// Reads a file of a sink, and calls `each` with source and index of each record, in their order. An error says what is wrong with the file.
pub type ReadBack = fn(file: &Path, each: &mut dyn FnMut(&str, u64)) -> Result<(), String>;

pub trait SinkKind: Send + Sync {
    /// As `kind = ".."` names it.
    fn name(&self) -> &'static str;
    /// What it writes, in a sentence.
    fn about(&self) -> &'static str;
    /// What the names of its files end with, without the dot.
    fn extension(&self) -> &'static str;
    /// How its records are written.
    fn writes(&self) -> Writes {
        Writes::Append
    }
    /// Its keys beside `kind`, `from`, `path` and `ordered`, which the planner reads.
    fn keys(&self) -> &'static [Key] {
        &[]
    }
    /// Reads its files back; `None`: nothing can.
    fn read_back(&self) -> Option<ReadBack> {
        None
    }
    /// What writes to a store, where `path` may be a URL. Kinds that append write parts there, and of those that give each record a file, each is
    /// an object; they need nothing for it.
    ///
    /// # Errors
    /// It writes files alone: what to do instead, for the message.
    fn objects(&self) -> Result<Arc<dyn ObjectOutput>, String> {
        Err("sinks of this kind write to the output folder alone: name a file or folder in it, or take another kind"
            .to_owned())
    }
    /// Makes its encoder for rows of `input`; `None` after an error, which is in `fields.diags`.
    fn connect(&self, input: &Input, fields: &mut Fields<'_, '_>) -> Option<Arc<dyn Encoder>>;
}
