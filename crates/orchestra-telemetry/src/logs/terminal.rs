//! Log lines on the terminal. Knows nothing of progress bars: whoever draws one redirects the lines around it.

use std::fmt;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layer::LineOutput;
use super::line::{Line, Style};

type Sink = Box<dyn FnMut(&str) + Send>;

/// Where terminal lines go: standard error, until they are redirected. Clones share the target.
#[derive(Clone)]
pub struct Terminal(Arc<Mutex<Sink>>);

impl Terminal {
    /// Lines go to standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self(Arc::new(Mutex::new(Box::new(to_stderr))))
    }

    /// From now on `sink` gets each line, without its line end: a progress display prints it above itself. `sink` must not log.
    pub fn redirect(&self, sink: impl FnMut(&str) + Send + 'static) {
        *self.lock() = Box::new(sink);
    }

    /// Back to standard error.
    pub fn restore(&self) {
        *self.lock() = Box::new(to_stderr);
    }

    fn lock(&self) -> MutexGuard<'_, Sink> {
        // A sink that panicked has at worst lost its line.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Terminal")
    }
}

/// The terminal as the output of a layer.
pub(crate) struct TerminalOutput {
    pub(crate) terminal: Terminal,
    pub(crate) style: Style,
}

impl LineOutput for TerminalOutput {
    fn write(&self, line: &Line) {
        let text = line.for_terminal(self.style);
        (self.terminal.lock())(&text);
    }
}

fn to_stderr(line: &str) {
    // Standard error may be closed; then nobody wants the line.
    let _ = writeln!(std::io::stderr(), "{line}");
}
