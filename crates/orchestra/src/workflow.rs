//! A workflow: its text, and what a program changes about it. It is planned when it is started.

use std::io;
use std::path::{Path, PathBuf};

use orchestra_plan::{Audience, Diagnostics, PlanOptions, RenderStyle};
use thiserror::Error;

/// A workflow file, and what is changed about it.
#[derive(Debug, Clone)]
pub struct Workflow {
    pub(crate) file: PathBuf,
    pub(crate) text: String,
    pub(crate) options: PlanOptions,
    /// Else the text is of the program.
    is_of_file: bool,
}

impl Workflow {
    /// Reads a workflow file. Paths in it are relative to its folder.
    ///
    /// # Errors
    /// The file cannot be read. What is wrong with its text the start says.
    pub fn open(file: impl AsRef<Path>) -> io::Result<Self> {
        let file = std::path::absolute(file)?;
        Self { is_of_file: true, ..Self::in_memory(file, String::new()) }.read_again()
    }

    /// A workflow that a program has made. Paths in it are relative to this folder; messages call it `workflow.toml`.
    ///
    /// # Errors
    /// The folder is relative, and the current one is gone.
    pub fn parse(text: impl Into<String>, folder: impl AsRef<Path>) -> io::Result<Self> {
        let file = std::path::absolute(folder.as_ref().join("workflow.toml"))?;
        Ok(Self::in_memory(file, text.into()))
    }

    pub(crate) fn in_memory(file: PathBuf, text: String) -> Self {
        let options = PlanOptions { audience: Audience::Program, ..PlanOptions::default() };
        Self { file, text, options, is_of_file: false }
    }

    /// With the text that its file has now.
    pub(crate) fn read_again(mut self) -> io::Result<Self> {
        if self.is_of_file {
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.file.display()));
            self.text = std::fs::read_to_string(&self.file).map_err(named)?;
        }
        Ok(self)
    }

    /// Whether it has a graph: sources, and what reads from them. Else it has models alone, or commands.
    ///
    /// # Errors
    /// The text is no TOML.
    pub fn has_graph(&self) -> Result<bool, WorkflowError> {
        let tables = orchestra_plan::model_tables(&self.text, &self.file, &self.options);
        tables.map(|(_, has_sources)| has_sources).map_err(WorkflowError)
    }

    /// Where the results of a run go, instead of `out/` beside the file.
    #[must_use]
    pub fn output(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.output = Some(folder.into());
        self
    }

    /// The devices, instead of `devices.use`: `"cpu"`, `"cuda:0"`, the UUID of a GPU.
    #[must_use]
    pub fn devices(mut self, devices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.devices = Some(devices.into_iter().map(Into::into).collect());
        self
    }

    /// A key of the file, such as `"stages.read.batch.max"`, and its value.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<SettingValue>) -> Self {
        self.options.set.push((key.into(), value.into().0));
        self
    }
}

/// A value of a key, as TOML.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingValue(pub(crate) String);

impl SettingValue {
    /// A value that is written as in a workflow file: `"5ms"` is text in quotes, `[1, 2]` a list.
    #[must_use]
    pub fn toml(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

macro_rules! setting_values {
    ($($ty:ty),*) => {
        $(impl From<$ty> for SettingValue {
            fn from(value: $ty) -> Self {
                Self(value.to_string())
            }
        })*
    };
}

setting_values! { bool, u8, u16, u32, i32, i64 }

impl From<usize> for SettingValue {
    fn from(value: usize) -> Self {
        Self(value.to_string())
    }
}

impl From<f64> for SettingValue {
    fn from(value: f64) -> Self {
        // TOML tells floats by their point.
        Self(format!("{value:?}"))
    }
}

impl From<f32> for SettingValue {
    fn from(value: f32) -> Self {
        // As few digits as tell it from other floats of its type.
        Self(format!("{value:?}"))
    }
}

impl From<&str> for SettingValue {
    fn from(text: &str) -> Self {
        // A string of JSON is one of TOML.
        Self(serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f"))
    }
}

impl From<String> for SettingValue {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl<T: Into<SettingValue>> From<Vec<T>> for SettingValue {
    fn from(values: Vec<T>) -> Self {
        let values: Vec<String> = values.into_iter().map(|value| value.into().0).collect();
        Self(format!("[{}]", values.join(", ")))
    }
}

/// What is wrong with a workflow: all of its mistakes, with their places and what to do.
#[derive(Debug, Error)]
#[error("{}", .0.render(RenderStyle::Plain).trim_end())]
pub struct WorkflowError(pub(crate) Diagnostics);

impl WorkflowError {
    /// As `orchestra check --json` says it.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        self.0.to_json()
    }
}
