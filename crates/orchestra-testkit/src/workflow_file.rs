//! Workflow files of tests, a table after the other. It knows the tables that many tests have; all others have their keys as a file has them.

use std::fmt::{Debug, Display};
use std::ops::Deref;

/// A workflow file. The names that a table reads from are one text, or a list of them.
#[derive(Debug, Clone)]
pub struct WorkflowFile(String);

impl WorkflowFile {
    /// One without a table.
    #[expect(clippy::new_without_default, reason = "no file is empty: this one says its version")]
    pub fn new() -> Self {
        Self("version = 1\n".to_owned())
    }

    /// One whose runs have this name.
    pub fn named(name: &str) -> Self {
        Self(format!("version = 1\nname = \"{name}\"\n"))
    }

    /// One that reads the pictures in the folder `images`.
    pub fn of_pictures(source: &str) -> Self {
        Self::new().source(source, "images", "paths = ['images']")
    }

    pub fn table(self, name: impl Display, lines: impl Display) -> Self {
        Self(format!("{}[{name}]\n{}\n", self.0, lines.to_string().trim_end()))
    }

    pub fn source(self, name: &str, kind: &str, keys: impl Display) -> Self {
        self.table(format_args!("sources.{name}"), format_args!("kind = \"{kind}\"\n{keys}"))
    }

    pub fn model(self, name: &str, path: impl Debug) -> Self {
        self.table(format_args!("models.{name}"), format_args!("path = {path:?}"))
    }

    pub fn stage(self, name: &str, kind: &str, from: impl Debug, keys: impl Display) -> Self {
        let keys = format_args!("kind = \"{kind}\"\nfrom = {from:?}\n{keys}");
        self.table(format_args!("stages.{name}"), keys)
    }

    /// Gray pictures of this height and width.
    pub fn gray(self, name: &str, from: &str, size: [u32; 2], keys: impl Display) -> Self {
        self.stage(name, "image", from, format_args!("size = {size:?}\ncolor = \"gray\"\n{keys}"))
    }

    pub fn infer(self, name: &str, from: impl Debug, model: &str) -> Self {
        self.stage(name, "infer", from, format_args!("model = \"{model}\""))
    }

    /// Records of the file that is named after the sink.
    pub fn sink(self, name: &str, kind: &str, from: impl Debug) -> Self {
        self.table(format_args!("sinks.{name}"), format_args!("kind = \"{kind}\"\nfrom = {from:?}"))
    }

    /// A line for each record, in `results.jsonl`.
    pub fn results(self, from: impl Debug) -> Self {
        self.sink("results", "jsonl", from)
    }

    /// On one CPU, whatever there is.
    pub fn on_cpu(self) -> Self {
        self.table("devices", "use = [\"cpu\"]")
    }
}

impl AsRef<[u8]> for WorkflowFile {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Deref for WorkflowFile {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}
