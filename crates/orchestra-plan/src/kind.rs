//! What a kind of source, stage or sink is to the planner: its keys, declared once, and what follows from them and from what it reads. The
//! planner knows these traits and no kind; hosts hand their kinds in through a [`Kinds`].

mod input;
mod program;
mod registry;
mod typed;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{Column, Schema};
use orchestra_core::shapes::{Encoder, FanOut, Fetch, Fold, KindSettings, Map, Reduce, RequestItem, map_of};
use orchestra_core::{ImageSpec, ScriptProgram, TensorSpec};
use orchestra_store::{Expand, ItemEntry, ListError, ObjectOutput, ObjectStore};
use serde_json::Value as Json;

use crate::diagnostics::{Diagnostic, Diagnostics, Reported, Span};
use crate::fields::{Fields, Spanned, Upstreams};
use crate::files::Files;
use crate::key::Key;
use crate::plan::Limits;
use crate::tree::TomlNode;

pub(crate) use self::input::whole_row;
pub use self::input::{Input, InputColumns};
pub use self::program::{ProgramContext, ProgramDraft, ResolvedProgram};
pub use self::registry::Kinds;
pub use self::typed::{
    Drafted, ItemSchema, Items, ObjectAccess, ReadOptions, Typed, TypedSink, TypedSource, TypedStage, file_of,
};

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
        no_objects()
    }
    /// What its items are, known from the first of the files that it names. `None` after an error, which is in `source.diags`.
    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected>;
    /// Makes a fetch of this kind again, in a loader process: of what its [`Fetch::to_wire`] gave.
    fn fetch_from_wire(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>> {
        let _ = settings;
        None
    }
    /// Makes again what lists its files, in a loader process: of what its [`Expand::to_wire`] gave.
    fn expand_from_wire(&self, settings: &KindSettings) -> Option<Arc<dyn Expand>> {
        let _ = settings;
        None
    }
    /// Answers, in a loader process, what `connect` has asked of a file by [`Files::look`].
    fn describe(&self, question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        asks_nothing(question, file)
    }
}

fn no_objects() -> Result<Arc<dyn ObjectStore>, String> {
    Err("sources of this kind read files: copy the objects to a folder first".to_owned())
}

fn asks_nothing(_: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
    Err(ListError::bad_file(file, "its kind asks nothing of it; this is a bug"))
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
    pub host: &'a dyn Files,
    /// The folder of the workflow file.
    pub folder: &'a Path,
    /// A kind that knows it says how many items the first file has, or the source where it has no files.
    pub n_items: Option<u64>,
    /// A kind whose items are requests, and none of a list, says what each brings. Such a kind has no files.
    pub request: Option<RequestItem>,
    /// A kind whose items come from a program says what that is. Such a kind has no files.
    pub lister: Option<ScriptProgram>,
}

impl SourceContext<'_, '_> {
    /// Reports what is wrong with the source as a whole.
    pub fn error(&mut self, why: impl fmt::Display) -> &mut Diagnostic {
        let message = format!("{}: {why}", self.fields.what);
        self.fields.diags.error(self.fields.span, message)
    }
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
    fn keys(&self) -> &'static [Key] {
        &[]
    }
    /// Where its upstream is named otherwise than by `from` alone: an entry for each table, with the name of the input.
    fn upstreams(&self, fields: &mut Fields<'_, '_>) -> Upstreams {
        fields.upstreams()
    }
    /// Reads its settings; `None` after an error.
    fn read(&self, fields: &mut Fields<'_, '_>) -> Option<Draft>;
    /// Makes a map of this kind again, in a loader process: of what its [`Map::to_wire`] gave.
    fn map_from_wire(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        let _ = settings;
        None
    }
}

/// A stage whose settings are read.
#[derive(Debug)]
pub enum Draft {
    /// It runs a model, or code of the user, in worker processes.
    Batch(BatchDraft),
    /// Anything else.
    Stage(Box<dyn Connect>),
}

/// The settings of a stage whose rows go to worker processes.
#[derive(Debug, Clone)]
pub struct BatchDraft {
    /// The name of the model.
    pub model: Spanned<String>,
    /// What the stage runs instead of one of the models of the file. It stands for a model of its own, whose name is `model`; the table of the
    /// stage has the keys of [`WORKERS`](crate::keys::WORKERS).
    pub program: Option<Arc<dyn ProgramDraft>>,
    /// `batch.max`
    pub max_batch: Option<Spanned<u64>>,
    /// `batch.wait`
    pub wait: std::time::Duration,
    /// Inputs of the model that are the same for all items, as written.
    pub constants: Vec<(Spanned<String>, TomlNode)>,
    /// The model runs on its own outputs.
    pub iteration: Option<Box<IterationDraft>>,
}

/// The settings of a loop, as written.
#[derive(Debug, Clone)]
pub struct IterationDraft {
    /// The most rounds of a row, at least 1.
    pub rounds: u32,
    /// The inputs that step through what the row has, and the outputs of which a row has those of all rounds.
    pub each: Vec<Spanned<String>>,
    pub collect: Vec<Spanned<String>>,
    /// The inputs of the next round, and the outputs that they take; `None` where the file leaves it to the model.
    pub feed: Option<Vec<(Spanned<String>, Spanned<String>)>>,
    /// What ends a row before that.
    pub until: Option<UntilDraft>,
}

/// A bound below which a row has ended, as written.
#[derive(Debug, Clone)]
pub struct UntilDraft {
    pub output: Spanned<String>,
    pub below: f64,
    /// Whether the bound itself is low enough.
    pub or_equal: bool,
}

/// The settings of a stage, waiting for what the stage reads.
pub trait Connect: fmt::Debug {
    /// What the stage gives and runs as.
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported>;
    /// It reads no more of a model's output than the largest number along its last dimension and where that stands, and takes a
    /// [`ColumnType::Largest`](orchestra_core::data::ColumnType::Largest) in its place: the model then gives no more than that.
    fn reads_largest(&self) -> bool {
        false
    }
    /// What its rows of pictures are, if it makes such rows. Where it has `trim`, a model computes no more of them than the width and height of
    /// [`Placement::row`](orchestra_core::Placement::row).
    fn pixels(&self) -> Option<&ImageSpec> {
        None
    }

    /// Settings of this stage that would make what it gives fit `want`, as a sentence; for the message that it does not.
    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        let _ = (name, want);
        None
    }
}

/// What a kind of stage may ask while it is planned.
pub struct StageContext<'a> {
    pub name: &'a str,
    /// Where that stands.
    pub span: Span,
    /// The keys that its table has, and where they stand.
    pub written: &'a [Spanned<String>],
    /// What it reads, in the order of `from`.
    pub inputs: &'a [Input],
    pub limits: &'a Limits,
    pub host: &'a dyn Files,
    /// The folder of the workflow file.
    pub folder: &'a Path,
    /// Where errors go.
    pub diags: &'a mut Diagnostics,
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
    /// Once all items of its pipeline have ended.
    Reduce(Arc<dyn Reduce>),
}

impl Runs {
    /// The work of a kind on a row. `cost`: in elements that are read or numbers that are printed, where a bound is known.
    pub fn map<K: TypedStage>(work: K::Work, cost: Option<usize>) -> Self {
        Runs::Map(map_of(K::NAME, work, cost))
    }

    /// Whether each row becomes several.
    pub fn fan(&self) -> FanOut {
        match self {
            Runs::Map(map) => map.fan(),
            Runs::Fold(_) | Runs::Reduce(_) => FanOut::One,
        }
    }
}

impl<'a> StageContext<'a> {
    /// Reports what rules out a plan.
    pub fn error(&mut self, span: Span, message: impl Into<String>) -> &mut Diagnostic {
        self.diags.error(span, message)
    }

    /// All that the stage reads, as one row: a single input's columns as they are, those of several under the names of their stages.
    pub fn whole_row(&mut self) -> Result<(Input, InputColumns), Reported> {
        whole_row(&format!("stage `{}`", self.name), self.inputs, self.diags)
    }

    /// The same of the first input alone.
    pub fn whole_first(&mut self) -> Result<(Input, InputColumns), Reported> {
        whole_row(&format!("stage `{}`", self.name), self.inputs.get(..1).ok_or(Reported)?, self.diags)
    }

    /// What it reads, which must be one thing, and a column of that where one is named. `what` completes "takes ..", `help` says what to write in place of
    /// several.
    pub fn only_input(&mut self, what: &str, help: &str) -> Result<&'a Input, Reported> {
        let [input, more @ ..] = self.inputs else { return Err(Reported) };
        if let Some(other) = more.first() {
            let message = format!("stage `{}` reads from one stage", self.name);
            return self.error(other.span, message).help(help).fail();
        }
        if let Some(column) = &input.column
            && input.gives.position(column).is_none()
        {
            self.column(0, what, |_| true)?; // It reports that there is none.
        }
        Ok(input)
    }

    /// Where a key stands, if the file has it.
    pub fn place_of(&self, key: &str) -> Option<Span> {
        self.written.iter().find(|written| written.value == key).map(|written| written.span)
    }

    /// Warns of a key that the file has for nothing: it has no effect, as `why` goes on.
    pub fn warn_of(&mut self, key: &str, why: &str) {
        if let Some(span) = self.place_of(key) {
            let message = format!("`{key}` of stage `{}` has no effect{why}", self.name);
            self.diags.warning(span, message).label("has no effect").help("leave it out");
        }
    }

    /// The column that input `at` means: the one that is named, or the only one that `fits`. `what` completes "takes ..", for the message
    /// that there is none.
    pub fn column(
        &mut self,
        at: usize,
        what: &str,
        fits: impl Fn(&Column) -> bool,
    ) -> Result<usize, Reported> {
        let Some(input) = self.inputs.get(at) else {
            let name = self.name;
            // Where nothing is named at all, that was reported.
            if at > 0 && !self.inputs.is_empty() {
                self.diags
                    .error(self.span, format!("stage `{name}` reads from too few: it takes {what}, too"))
                    .help("name all of them: from = [\"..\", \"..\"]");
            }
            return Err(Reported);
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
    /// None: each goes back to the one who asked for its item.
    Reply,
}

/// Reads a file of a sink, and calls `each` with source and index of each record, in their order. An error says what is wrong with the file.
pub type ReadBack = fn(file: &Path, each: &mut dyn FnMut(ReadRecord<'_>)) -> Result<(), String>;

/// The item of a record that was read back.
#[derive(Debug, Clone, Copy)]
pub struct ReadRecord<'a> {
    pub source: &'a str,
    pub index: u64,
    /// Its name.
    pub item: &'a str,
}

pub trait SinkKind: Send + Sync {
    /// As `kind = ".."` names it.
    fn name(&self) -> &'static str;
    /// What it writes, in a sentence.
    fn about(&self) -> &'static str;
    /// What the names of its files end with, without the dot; nothing where it writes none.
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
        no_output()
    }
    /// Reports what is wrong with its keys, where what it reads is not known.
    fn read(&self, fields: &mut Fields<'_, '_>) {
        let _ = fields;
    }
    /// Makes its encoder for rows of `input`; `None` after an error, which is in `fields.diags`.
    fn connect(&self, input: &Input, fields: &mut Fields<'_, '_>) -> Option<Arc<dyn Encoder>>;
    /// The program that its part files go to, where they are not what it writes.
    fn script(&self, sink: &mut SinkContext<'_, '_>) -> Result<Option<ScriptProgram>, Reported> {
        let _ = sink;
        Ok(None)
    }
}

/// What a kind of sink may ask while it is planned.
pub struct SinkContext<'a, 'd> {
    /// The keys of its table.
    pub fields: Fields<'a, 'd>,
    /// What it reads.
    pub input: &'a Input,
    pub limits: &'a Limits,
    pub host: &'a dyn Files,
    /// The folder of the workflow file.
    pub folder: &'a Path,
}

fn no_output() -> Result<Arc<dyn ObjectOutput>, String> {
    Err("sinks of this kind write to the output folder alone: name a file or folder in it, or take another kind"
        .to_owned())
}
