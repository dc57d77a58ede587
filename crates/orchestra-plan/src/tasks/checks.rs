//! What no command could use: names and folders that the system or a text cannot hold, and paths that hold more than a task reads or makes.

use std::path::{Path, PathBuf};

use super::raw::RawTask;
use super::{Expander, Surroundings};
use crate::build::resolve;
use crate::diagnostics::{Diagnostics, Span};

/// The longest name of a table, in bytes: it is that of a folder.
const MAX_TABLE: usize = 255;

/// Reports names that are too long for a folder, and folders that no command can be told of; whether there are none.
pub(super) fn are_names_fine(raws: &[RawTask], around: &Surroundings<'_>, diags: &mut Diagnostics) -> bool {
    let mut is_fine = true;
    for raw in raws.iter().filter(|raw| raw.name.value.len() > MAX_TABLE) {
        let bytes = raw.name.value.len();
        diags
            .error(
                raw.name.span,
                format!("the name of a task has {bytes} bytes, and {MAX_TABLE} is the most"),
            )
            .label("it is the name of a folder, too");
        is_fine = false;
    }
    for (what, folder) in [("of the workflow file", around.folder), ("`output`", around.output)] {
        if let Some(first) = raws.first().filter(|_| folder.to_str().is_none()) {
            diags
                .error(first.name.span, format!("the folder {what}, `{}`, is no UTF-8", folder.display()))
                .label("commands are told of it in texts")
                .help("give it another name, or another `output`");
            is_fine = false;
        }
    }
    is_fine
}

impl Expander<'_> {
    /// A path of `inputs` or `outputs`.
    pub(super) fn path(
        &self,
        key: &str,
        span: Span,
        cwd: &Path,
        written: &str,
        diags: &mut Diagnostics,
    ) -> Option<PathBuf> {
        let path = resolve(cwd, written, self.around.host);
        let why = match () {
            () if written.is_empty() => "is empty".to_owned(),
            // What every start of the run changes can be the same as before in no start.
            () if self.around.output.starts_with(&path) => {
                format!("has `{}`, which holds the output folder of the run", path.display())
            }
            () => return Some(path),
        };
        diags
            .error(span, format!("`{key}` {why}"))
            .help("name files, or folders that hold nothing else: inputs = [\"train.py\", \"data\"]");
        None
    }
}
