//! What no command could use: names and folders that the system or a text cannot hold, and paths that hold more than a task reads or makes.

use std::path::{Path, PathBuf};

use super::Expander;
use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::workflow::RawTask;

/// The longest name of a table, in bytes: it is that of a folder.
const MAX_TABLE: usize = 255;

/// Reports names that are too long for a folder, and folders that no command can be told of.
pub(super) fn check_names(raws: &[RawTask], cx: &mut Cx<'_>) -> Result<(), Reported> {
    let mut is_fine = Ok(());
    for raw in raws.iter().filter(|raw| raw.name.value.len() > MAX_TABLE) {
        let bytes = raw.name.value.len();
        let message = format!("the name of a task has {bytes} bytes, and {MAX_TABLE} is the most");
        is_fine = cx.error(raw.name.span, message).label("it is the name of a folder, too").fail();
    }
    for (what, folder) in [("of the workflow file", cx.folder.clone()), ("`output`", cx.output.clone())] {
        if let Some(first) = raws.first().filter(|_| folder.to_str().is_none()) {
            is_fine = cx
                .error(first.name.span, format!("the folder {what}, `{}`, is no UTF-8", folder.display()))
                .label("commands are told of it in texts")
                .help("give it another name, or another `output`")
                .fail();
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
        cx: &mut Cx<'_>,
    ) -> Result<PathBuf, Reported> {
        let path = cx.host.resolve(&cwd.join(written));
        let why = match () {
            () if written.is_empty() => "is empty".to_owned(),
            // What every start of the run changes can be the same as before in no start.
            () if cx.output.starts_with(&path) => {
                format!("has `{}`, which holds the output folder of the run", path.display())
            }
            () => return Ok(path),
        };
        cx.error(span, format!("`{key}` {why}"))
            .help("name files, or folders that hold nothing else: inputs = [\"train.py\", \"data\"]")
            .fail()
    }
}
