//! What all passes of the planner share: the world, the folder of the file, and where mistakes and reasons go.

use std::path::PathBuf;

use crate::diagnostics::{Diagnostic, Diagnostics, Span};
use crate::host::Host;

pub(crate) struct Cx<'a> {
    pub host: &'a dyn Host,
    /// The folder of the workflow file.
    pub folder: PathBuf,
    /// Where results go: `--output`, else `out/` beside the file.
    pub output: PathBuf,
    pub diags: Diagnostics,
    /// Why the plan is what it is: one sentence per decision.
    pub reasons: Vec<String>,
}

impl Cx<'_> {
    /// Reports what rules out a plan.
    pub fn error(&mut self, span: impl Into<Option<Span>>, message: impl Into<String>) -> &mut Diagnostic {
        self.diags.error(span, message)
    }

    /// Reports what a plan can do with.
    pub fn warning(&mut self, span: impl Into<Option<Span>>, message: impl Into<String>) -> &mut Diagnostic {
        self.diags.warning(span, message)
    }

    /// The absolute, clean path of something that the file names.
    pub fn resolve(&self, written: &str) -> PathBuf {
        self.host.resolve(&self.folder.join(written))
    }
}
