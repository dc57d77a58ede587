//! What the planner knows of a stage that runs a program instead of a model.

use std::fmt;
use std::path::{Path, PathBuf};

use orchestra_core::data::Column;
use orchestra_core::{Code, SandboxRules, TensorSpec};

use crate::diagnostics::{Diagnostic, Diagnostics, Reported, Span};
use crate::files::Files;

/// A program that a stage runs instead of a model, waiting to be asked what it takes and gives.
pub trait ProgramDraft: fmt::Debug + Send + Sync {
    /// What it takes and gives.
    fn resolve(&self, context: &mut ProgramContext<'_>) -> Result<ResolvedProgram, Reported>;
}

/// What a stage, a source or a sink that runs a program may ask while it is planned.
pub struct ProgramContext<'a> {
    /// What runs it, for messages: ``stage `find` ``.
    pub what: &'a str,
    /// Where that stands.
    pub span: Span,
    /// Files and variables, and answers of programs.
    pub host: &'a dyn Files,
    /// The folder of the workflow file.
    pub folder: &'a Path,
    /// What the file allows its processes.
    pub rules: &'a SandboxRules,
    /// Where errors go.
    pub diags: &'a mut Diagnostics,
}

impl ProgramContext<'_> {
    /// Reports an error of what runs it.
    pub fn error(&mut self, span: Span, why: impl fmt::Display) -> &mut Diagnostic {
        self.diags.error(span, format!("{}: {why}", self.what))
    }

    /// Reports that what it names is not at `path`, or cannot be read there.
    pub fn no_file(&mut self, span: Span, path: &Path, why: impl fmt::Display) -> &mut Diagnostic {
        self.error(span, why)
            .label(format!("looked for `{}`", path.display()))
            .help("paths are relative to the folder of the workflow file")
            .unavailable()
    }
}

/// Code of the user, and what is known of it.
#[derive(Debug, Clone)]
pub struct ResolvedProgram {
    /// The file that users know it by, absolute.
    pub path: PathBuf,
    /// All that makes its results, as a text: a run is not resumed with another.
    pub identity: String,
    /// What it takes, in its order; a name alone takes any tensor of fixed shape, and of a program any column.
    pub inputs: Vec<(String, Option<TensorSpec>)>,
    /// Tensors, texts, and lists of both.
    pub outputs: Vec<Column>,
    /// Rows of a batch, where the stage does not say it.
    pub max_batch: Option<u64>,
    /// Whether it runs on GPUs. One that does not is placed on the cores.
    pub gpu: bool,
    /// Whether it may drop rows.
    pub drops: bool,
    pub code: Code,
}
