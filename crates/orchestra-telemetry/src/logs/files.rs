//! The log files of a run: one per pipeline and `run.log` for the rest. Never fails a run: lost lines are counted instead.
//!
//! The folder is known only when the output folder is open, long after the first event. Until then lines wait in memory, up to
//! [`EARLY_BYTES`]; the first ones stay, because they tell how it began.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use orchestra_core::locked;
use orchestra_plan::LogFormat;

use super::line::{LogLine, now};
use crate::TelemetryError;

/// The file for what belongs to no pipeline.
pub const RUN_LOG: &str = "run.log";

/// How much is kept before the folder is known, in bytes.
const EARLY_BYTES: usize = 1 << 20;

/// A handle on the log files. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LogFiles(Arc<Mutex<LogFilesState>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogReport {
    /// Lines that reached no file: too many before the folder was known, or refused by the system.
    pub lines_lost: u64,
    pub error: Option<String>,
}

#[derive(Debug, Default)]
struct LogFilesState {
    format: LogFormat,
    /// Id of the run, once it is known.
    run: Option<String>,
    /// Lines that wait for the folder, with their times.
    early: Vec<(LogLine, String)>,
    early_bytes: usize,
    open: Option<OpenLogs>,
    report: LogReport,
}

#[derive(Debug)]
struct OpenLogs {
    run: File,
    pipelines: BTreeMap<String, File>,
}

impl LogFiles {
    /// Opens `folder/<pipeline>.log` for each pipeline and `folder/run.log`, makes the folder if it is missing, and writes what
    /// has waited. Existing files are continued. A second call changes the files for the lines to come.
    pub fn open(&self, folder: &Path, pipelines: &[&str]) -> Result<(), TelemetryError> {
        std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
        let run = append(&folder.join(RUN_LOG))?;
        let pipelines = pipelines
            .iter()
            .map(|name| Ok(((*name).to_owned(), append(&folder.join(file_name(name)))?)))
            .collect::<Result<_, TelemetryError>>()?;
        let mut state = locked(&self.0);
        state.open = Some(OpenLogs { run, pipelines });
        state.early_bytes = 0;
        for (line, time) in std::mem::take(&mut state.early) {
            state.write(&line, time);
        }
        Ok(())
    }

    pub fn set_format(&self, format: LogFormat) {
        locked(&self.0).format = format;
    }

    /// The run that the lines belong to, those that still wait included. Lines of [`LogFormat::Json`] name it.
    pub fn set_run(&self, run_id: &str) {
        locked(&self.0).run = Some(run_id.to_owned());
    }

    /// What was lost so far. Lines that still wait for a folder are not lost.
    pub fn report(&self) -> LogReport {
        locked(&self.0).report.clone()
    }

    pub(crate) fn write(&self, line: &LogLine) {
        locked(&self.0).write(line, now());
    }
}

impl LogFilesState {
    fn write(&mut self, line: &LogLine, time: String) {
        let text = match self.format {
            LogFormat::Text => line.for_file(&time),
            LogFormat::Json => line.for_json(&time, self.run.as_deref()) + "\n",
        };
        let Some(open) = &mut self.open else {
            self.early_bytes += text.len();
            if self.early_bytes <= EARLY_BYTES {
                self.early.push((line.clone(), time));
            } else {
                self.early_bytes -= text.len();
                self.report.lines_lost += 1;
            }
            return;
        };
        let file = line.pipeline().and_then(|p| open.pipelines.get_mut(p)).unwrap_or(&mut open.run);
        // Unbuffered and in one call: the line is in the file when this returns, and whole, because the file is in append mode.
        if let Err(error) = file.write_all(text.as_bytes()) {
            self.report.lines_lost += 1;
            self.report.error.get_or_insert_with(|| error.to_string());
        }
    }
}

/// `<pipeline>.log`, with everything that could leave the folder replaced.
fn file_name(pipeline: &str) -> PathBuf {
    let safe: String = pipeline
        .chars()
        .map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' })
        .collect();
    PathBuf::from(format!("{safe}.log"))
}

fn append(path: &Path) -> Result<File, TelemetryError> {
    OpenOptions::new().create(true).append(true).open(path).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: io::Error) -> TelemetryError {
    TelemetryError::LogFile { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::super::line::LogFields;
    use super::*;

    fn line(pipeline: Option<&str>, message: &str) -> LogLine {
        LogLine {
            level: Level::INFO,
            target: "t".into(),
            fields: LogFields {
                message: message.into(),
                pairs: pipeline.map(|p| ("pipeline", p.into())).into_iter().collect(),
            },
        }
    }

    fn read(folder: &Path, file: &str) -> String {
        std::fs::read_to_string(folder.join(file)).unwrap()
    }

    #[test]
    fn times_are_rfc_3339_in_utc() {
        let time = now();
        let digits: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(digits, "0000-00-00T00:00:00.000000Z");
    }

    #[test]
    fn a_pipeline_named_like_a_path_stays_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::default();
        files.open(&folder.path().join("logs"), &["../../a b", "/etc/x"]).unwrap();
        files.write(&line(Some("../../a b"), "one"));
        assert!(read(&folder.path().join("logs"), ".._.._a_b.log").contains("one"));
        assert!(folder.path().join("logs/_etc_x.log").exists());
    }

    #[test]
    fn a_pipeline_called_run_shares_the_file_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::default();
        files.open(folder.path(), &["run"]).unwrap();
        files.write(&line(Some("run"), "one"));
        files.write(&line(None, "two"));
        let text = read(folder.path(), RUN_LOG);
        assert!(text.contains("one") && text.contains("two"), "{text}");
    }

    #[test]
    fn early_lines_are_bounded_and_the_first_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::default();
        let big = "x".repeat(EARLY_BYTES / 4);
        files.write(&line(Some("p"), "first"));
        for _ in 0..10 {
            files.write(&line(Some("p"), &big));
        }
        assert_eq!(files.report().lines_lost, 7);
        files.open(folder.path(), &["p"]).unwrap();
        let text = read(folder.path(), "p.log");
        assert!(text.lines().next().unwrap().contains("first"));
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn lines_from_before_the_run_was_known_name_it_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let files = LogFiles::default();
        files.set_format(LogFormat::Json);
        files.write(&line(Some("p"), "early"));
        files.set_run("r1");
        files.open(folder.path(), &["p"]).unwrap();
        files.write(&line(Some("p"), "late"));
        let text = read(folder.path(), "p.log");
        assert_eq!(text.lines().filter(|l| l.contains("\"run\":\"r1\"")).count(), 2, "{text}");
    }

    #[test]
    fn lines_that_the_system_refuses_are_counted_and_explained() {
        let files = LogFiles::default();
        let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
        locked(&files.0).open = Some(OpenLogs { run: full(), pipelines: BTreeMap::new() });
        files.write(&line(None, "one"));
        files.write(&line(None, "two"));
        let report = files.report();
        assert_eq!(report.lines_lost, 2);
        assert!(report.error.unwrap().contains("space"));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("logs"), "a file").unwrap();
        let error = LogFiles::default().open(&folder.path().join("logs"), &[]).unwrap_err().to_string();
        assert!(error.contains("logs`"), "{error}");
    }
}
