//! From a log event to lines on the terminal and in the files of the pipelines. Decides no level: filters do (`filter`).
//!
//! An event belongs to the pipeline that its field `pipeline` names, else to the pipeline of the innermost span around it that
//! has such a field (or the attribute `orchestra.pipeline`), else to the run as a whole.

mod files;
pub(crate) mod filter;
mod layer;
mod line;
mod terminal;

pub use files::{LogFiles, LogReport, RUN_LOG};
pub use line::json_line;
pub use terminal::Terminal;

pub(crate) use layer::LineLayer;
pub(crate) use line::Style;
pub(crate) use terminal::TerminalOutput;
