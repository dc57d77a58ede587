//! Errors and warnings about a workflow file, each with its place, and how they are shown. Finds nothing itself.

use std::borrow::Cow;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use orchestra_core::visible;
use serde::Serialize;

/// Stops the plan, or only deserves a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// There is no plan.
    Error,
    /// There is a plan, but probably not the one that was meant.
    Warning,
}

/// What has to change before an error goes away, what is to be mended first before what comes later. The command line takes its exit code from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// The workflow file (or a `--set` or `--devices`) is wrong.
    File,
    /// A device or model that the file names is not available here.
    Unavailable,
    /// A store that has to be asked does not answer now. Another time it may.
    Outside,
}

/// A place in the workflow file or in an option of the command line: bytes from `start` to before `end`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub(crate) text: u16,
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
}

impl Span {
    pub(crate) fn new(text: u16, range: Range<usize>) -> Self {
        Self { text, start: range.start, end: range.end }
    }
}

/// Errors and warnings that are shown in a text: files that others made can have any number.
const MAX_SHOWN: usize = 1000;

/// One error or warning.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    pub severity: Severity,
    pub cause: Cause,
    /// Where, if it is at one place.
    pub span: Option<Span>,
    pub message: String,
    /// What stands at the caret; may be empty.
    pub label: String,
    /// What to do, one sentence each.
    pub help: Vec<String>,
}

impl Diagnostic {
    /// Adds what stands at the place itself.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        self.label = label.into();
        self
    }

    /// Adds what to do.
    pub fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.help.push(help.into());
        self
    }

    /// The fault is not that of the file: something that it names is not there.
    pub fn unavailable(&mut self) -> &mut Self {
        self.cause = Cause::Unavailable;
        self
    }

    /// The fault is that of a store which does not answer now, if it `may_pass`.
    pub fn outside(&mut self, may_pass: bool) -> &mut Self {
        if may_pass {
            self.cause = Cause::Outside;
        }
        self
    }

    /// The end of a function that found this error.
    pub fn fail<T>(&self) -> Result<T, Reported> {
        Err(Reported)
    }

    /// As [`Diagnostic::fail`], where a value that was reported is absent.
    pub fn none<T>(&self) -> Option<T> {
        None
    }
}

/// An error was reported, so there will be no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported;

/// Who reads the messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Audience {
    /// Options are those of the command line.
    #[default]
    Command,
    /// Options are methods of the library, and a workflow without text has no file.
    Program,
}

/// All errors and warnings about one workflow file, in the order of the file; those without a place come last.
#[derive(Debug, Clone)]
pub struct Diagnostics {
    /// The workflow file first, then the options: what to call it, and its text.
    texts: Vec<(String, String)>,
    entries: Vec<Diagnostic>,
    audience: Audience,
    /// See [`Diagnostics::leave_open`].
    is_open: bool,
}

impl Diagnostics {
    pub(crate) fn new(file: &str, text: &str, audience: Audience) -> Self {
        Self { texts: vec![(file.into(), text.into())], entries: Vec::new(), audience, is_open: false }
    }

    /// What an option is called, such as `set`.
    pub(crate) fn option(&self, name: &str) -> String {
        match self.audience {
            Audience::Command => format!("--{name}"),
            Audience::Program => name.to_owned(),
        }
    }

    /// Adds the text of an option, to point into.
    pub(crate) fn add_option(&mut self, name: &str, text: &str) -> u16 {
        self.texts.push((self.option(name), text.into()));
        u16::try_from(self.texts.len() - 1).unwrap_or(u16::MAX)
    }

    /// Reports what rules out a plan.
    pub fn error(&mut self, span: impl Into<Option<Span>>, message: impl Into<String>) -> &mut Diagnostic {
        self.add(Severity::Error, span.into(), message.into())
    }

    /// Reports what a plan can do with.
    pub fn warning(&mut self, span: impl Into<Option<Span>>, message: impl Into<String>) -> &mut Diagnostic {
        self.add(Severity::Warning, span.into(), message.into())
    }

    fn add(&mut self, severity: Severity, span: Option<Span>, message: String) -> &mut Diagnostic {
        let cause = Cause::File;
        let at = self.entries.len();
        self.entries.push(Diagnostic {
            severity,
            cause,
            span,
            message,
            label: String::new(),
            help: Vec::new(),
        });
        &mut self.entries[at]
    }

    /// Says that the file cannot be planned here although nothing is wrong with it: a warning says what was not looked at.
    pub fn leave_open(&mut self) {
        self.is_open = true;
    }

    /// Whether a part of the file was not looked at, so that there is no plan.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Puts the entries into the order of the file.
    pub(crate) fn sort(&mut self) {
        self.entries.sort_by_key(|d| d.span.map_or((u16::MAX, usize::MAX), |s| (s.text, s.start)));
    }

    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }

    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.entries.iter().filter(|d| d.severity == Severity::Error)
    }

    /// Takes back the warnings behind the first `n` entries.
    pub(crate) fn forget_warnings(&mut self, n: usize) {
        let mut at = 0..;
        self.entries.retain(|d| at.next().is_some_and(|at| at < n) || d.severity != Severity::Warning);
    }

    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.entries.iter().filter(|d| d.severity == Severity::Warning)
    }

    /// Everything, errors and warnings.
    pub fn all(&self) -> &[Diagnostic] {
        &self.entries
    }

    /// What has to change first: `File` if any error is the file's, else `Unavailable` if any is, else `Outside`; `None` without errors.
    pub fn cause(&self) -> Option<Cause> {
        self.errors().map(|d| d.cause).min()
    }

    /// Line and column of a byte of the text that `span` points into, both from 1; columns count characters.
    pub fn line_and_column(&self, span: Span) -> (usize, usize) {
        let text = self.text_of(span).1;
        let before = &text[..floor_char(text, span.start)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// The text that `span` points into, the workflow file or an option, and before it what that text is called.
    pub fn text_of(&self, span: Span) -> (&str, &str) {
        let (name, text) = &self.texts[self.text_index(span)];
        (name, text)
    }

    /// The place of an entry. `None` where a program built the workflow: then there is no text with lines.
    fn place(&self, entry: &Diagnostic) -> Option<Span> {
        let is_written =
            |span: &Span| self.audience == Audience::Command || !self.text_of(*span).1.is_empty();
        entry.span.filter(is_written)
    }

    fn text_index(&self, span: Span) -> usize {
        usize::from(span.text).min(self.texts.len() - 1)
    }

    /// Text for people: per entry the message, the place with a caret, and the help; then the sum. Ends with a line end unless it
    /// is empty.
    pub fn render(&self, style: RenderStyle) -> String {
        let renderer = match style {
            RenderStyle::Plain => Renderer::plain(),
            RenderStyle::Coloured => Renderer::styled(),
        };
        let begins = |text: &str| text.match_indices('\n').map(|(at, _)| at + 1).collect();
        let lines: Vec<Vec<usize>> = self.texts.iter().map(|(_, text)| begins(text)).collect();
        let mut text = String::new();
        let left_out = self.entries.len().saturating_sub(MAX_SHOWN);
        // Where not all are shown, warnings push no error out.
        let all: Vec<&Diagnostic> = match left_out {
            0 => self.entries.iter().collect(),
            _ => self.errors().chain(self.warnings()).take(MAX_SHOWN).collect(),
        };
        for entry in all {
            text.push_str(&renderer.render(&[self.group(entry, &lines)]));
            text.push_str("\n\n");
        }
        if left_out > 0 {
            text.push_str(&format!("{left_out} more are not shown\n\n"));
        }
        let has_file = self.audience == Audience::Command || !self.texts[0].1.is_empty();
        if let Some(sum) = self.sum().filter(|_| has_file) {
            text.push_str(&format!("{}: {sum}\n", self.texts[0].0));
        }
        text
    }

    /// `lines` are the places where the lines of each text but the first begin.
    fn group<'a>(&'a self, entry: &'a Diagnostic, lines: &[Vec<usize>]) -> Group<'a> {
        let level = match entry.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = Group::with_title(level.primary_title(visible(&entry.message)));
        if let Some(span) = self.place(entry) {
            let (name, text) = self.text_of(span);
            let start = floor_char(text, span.start);
            let end = floor_char(text, span.end.max(start));
            // The lines of the span alone: with all of a long text for each of many, the time grows with the square of its length.
            let before = lines[self.text_index(span)].partition_point(|begin| *begin <= start);
            let from = before.checked_sub(1).map_or(0, |line| lines[self.text_index(span)][line]);
            let to = text[end..].find('\n').map_or(text.len(), |at| end + at);
            let mut annotation = AnnotationKind::Primary.span(start - from..end - from);
            if !entry.label.is_empty() {
                annotation = annotation.label(visible(&entry.label));
            }
            let excerpt = Snippet::source(printable(&text[from..to])).line_start(before + 1).path(name);
            group = group.element(excerpt.annotation(annotation));
        } else if !entry.label.is_empty() {
            group = group.element(Level::NOTE.message(visible(&entry.label)));
        }
        for help in &entry.help {
            group = group.element(Level::HELP.message(visible(help)));
        }
        group
    }

    fn sum(&self) -> Option<String> {
        let count = |n: usize, what: &str| match n {
            0 => None,
            1 => Some(format!("1 {what}")),
            n => Some(format!("{n} {what}s")),
        };
        let parts: Vec<_> =
            [count(self.errors().count(), "error"), count(self.warnings().count(), "warning")]
                .into_iter()
                .flatten()
                .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// `{"file", "errors": [..], "warnings": [..]}`; each entry has `message`, `label`, `help`, `cause` and, where it has a place,
    /// `in` (the file or option), `line`, `column`, `end_line`, `end_column` (from 1, characters).
    pub fn to_json(&self) -> serde_json::Value {
        let entry = |d: &Diagnostic| {
            let mut json = serde_json::json!({
                "message": d.message, "label": d.label, "help": d.help, "cause": d.cause,
            });
            if let Some(span) = self.place(d) {
                let (line, column) = self.line_and_column(span);
                let (end_line, end_column) = self.line_and_column(Span { start: span.end, ..span });
                json["in"] = self.text_of(span).0.into();
                json["line"] = line.into();
                json["column"] = column.into();
                json["end_line"] = end_line.into();
                json["end_column"] = end_column.into();
            }
            json
        };
        serde_json::json!({
            "file": self.texts[0].0,
            "errors": self.errors().map(entry).collect::<Vec<_>>(),
            "warnings": self.warnings().map(entry).collect::<Vec<_>>(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderStyle {
    /// For files and pipes.
    Plain,
    /// With ANSI colours, for terminals.
    Coloured,
}

/// An excerpt's text without the control characters that the renderer leaves in: those of two bytes. Every byte keeps its place.
fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| ('\u{80}'..='\u{9f}').contains(&c);
    if text.contains(steers) { text.replace(steers, "\u{bf}").into() } else { text.into() }
}

fn floor_char(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at.min(text.len()))
}
