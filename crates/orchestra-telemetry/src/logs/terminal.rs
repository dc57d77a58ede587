//! Log lines on the terminal. Knows nothing of progress bars: a command that draws one redirects the lines around it.

use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use orchestra_core::locked;
use orchestra_plan::LogFormat;
use tracing::Level;

use super::line::{LogLine, Style, json_line, now};

/// Lines with the same message that are shown.
const MAX_ALIKE: usize = 20;
/// Messages that are counted. They are a few fixed texts; this bounds what a strange one can cost.
const MAX_MESSAGES: usize = 200;

type TerminalSink = Box<dyn FnMut(&str) + Send>;

/// Where terminal lines go: standard error, until they are redirected. Clones share the target.
#[derive(Clone)]
pub struct Terminal(Arc<Mutex<TerminalState>>);

struct TerminalState {
    sink: TerminalSink,
    run: Option<String>,
}

impl Terminal {
    pub fn stderr() -> Self {
        Self(Arc::new(Mutex::new(TerminalState { sink: Box::new(to_stderr), run: None })))
    }

    /// From now on `sink` gets each line, without its line end: a progress display prints it above itself. `sink` must not log.
    pub fn redirect(&self, sink: impl FnMut(&str) + Send + 'static) {
        locked(&self.0).sink = Box::new(sink);
    }

    pub fn restore(&self) {
        locked(&self.0).sink = Box::new(to_stderr);
    }

    /// The run that the lines to come belong to. Lines of [`LogFormat::Json`] name it.
    pub fn set_run(&self, run_id: &str) {
        locked(&self.0).run = Some(run_id.to_owned());
    }
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Terminal")
    }
}

pub(crate) struct TerminalOutput {
    terminal: Terminal,
    style: Style,
    format: LogFormat,
    /// Lines with the same message, if their number is limited.
    said: Option<Mutex<HashMap<String, usize>>>,
}

impl TerminalOutput {
    /// Shows all lines, or with `limited` only the first ones of each message, and one for each cause that items fail for: ten thousand items that fail for one reason must not
    /// hide what else happens.
    pub(crate) fn new(terminal: Terminal, style: Style, format: LogFormat, limited: bool) -> Self {
        Self { terminal, style, format, said: limited.then(Mutex::default) }
    }

    /// Counts the line. `None` if there were enough like it; else whether it is the last one that is shown.
    fn count(&self, line: &LogLine) -> Option<bool> {
        let Some(said) = &self.said else { return Some(false) };
        let mut said = locked(said);
        if let Some(cause) = line.cause() {
            // So that the first lines are not of one cause: the summary of the run says how many are.
            if said.contains_key(&cause) {
                return None;
            }
            if said.len() < MAX_MESSAGES {
                said.insert(cause, 1);
            }
        }
        if said.len() >= MAX_MESSAGES && !said.contains_key(&line.fields.message) {
            return Some(false);
        }
        let n = said.entry(line.fields.message.clone()).or_default();
        *n += 1;
        (*n <= MAX_ALIKE).then_some(*n == MAX_ALIKE)
    }

    pub(crate) fn write(&self, line: &LogLine) {
        let Some(last) = self.count(line) else { return };
        let mut state = locked(&self.terminal.0);
        let TerminalState { sink, run } = &mut *state;
        match self.format {
            LogFormat::Text => sink(&line.for_terminal(self.style)),
            LogFormat::Json => sink(&line.for_json(&now(), run.as_deref())),
        }
        if last {
            let more =
                format!("(more lines `{}` are in the log files only)", line.fields.message.escape_debug());
            match self.format {
                LogFormat::Text => sink(&more),
                LogFormat::Json => sink(&json_line(Level::INFO, &more, run.as_deref())),
            }
        }
    }
}

fn to_stderr(line: &str) {
    // Standard error may be closed: the line is in the log files, too.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::super::line::LogFields;
    use super::*;

    fn shown(limited: bool, messages: &[(&str, usize)]) -> Vec<String> {
        let terminal = Terminal::stderr();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        terminal.redirect(move |line| sink.lock().unwrap().push(line.to_owned()));
        let output = TerminalOutput::new(terminal, Style::Plain, LogFormat::Text, limited);
        for (message, n) in messages {
            let line = LogLine {
                level: Level::WARN,
                target: String::new(),
                fields: LogFields { message: (*message).to_owned(), pairs: Vec::new() },
            };
            (0..*n).for_each(|_| output.write(&line));
        }
        lines.lock().unwrap().clone()
    }

    #[test]
    fn a_message_that_comes_again_and_again_does_not_hide_the_others() {
        let lines = shown(true, &[("item failed", 5000), ("worker lost", 2)]);
        assert_eq!(lines.len(), MAX_ALIKE + 1 + 2);
        assert_eq!(lines[MAX_ALIKE], "(more lines `item failed` are in the log files only)");
        assert_eq!(lines[MAX_ALIKE + 1], "warning: worker lost");
    }

    #[test]
    fn items_that_fail_for_one_cause_have_one_line() {
        let output = |limited| {
            let terminal = Terminal::stderr();
            let lines = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&lines);
            terminal.redirect(move |line| sink.lock().unwrap().push(line.to_owned()));
            let output = TerminalOutput::new(terminal, Style::Plain, LogFormat::Text, limited);
            for n in 0..50 {
                let error = if n == 30 { "no memory".to_owned() } else { format!("row {n} is bad") };
                let pairs =
                    vec![("item", format!("i{n}").into()), ("stage", "f".into()), ("error", error.into())];
                let fields = LogFields { message: "item failed".to_owned(), pairs };
                output.write(&LogLine { level: Level::WARN, target: String::new(), fields });
            }
            lines.lock().unwrap().clone()
        };
        let lines: Vec<String> = output(true);
        assert!(
            lines.len() == 2 && lines[0].contains("row 0") && lines[1].contains("no memory"),
            "{lines:?}"
        );
        assert_eq!(output(false).len(), 50);
    }

    #[test]
    fn without_a_limit_every_line_is_shown() {
        assert_eq!(shown(false, &[("item failed", 500)]).len(), 500);
    }
}
