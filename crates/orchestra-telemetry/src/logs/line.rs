//! One log event as data, and how it is written down. Knows neither files nor terminals.

use std::fmt::{self, Write as _};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use super::value::{Escaped, FieldValue, Fields, JsonText, Readable};
use crate::names::field;

/// What a log line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object.
    Json,
}

/// What [`Format::Json`] itself writes; a field of such a name gets another one.
const RESERVED: [&str; 4] = ["timestamp", "level", "target", "message"];

/// A line of [`Format::Json`] that is no event, for a command that has more to say than its log: without its line end.
#[must_use]
pub fn json_line(level: Level, message: &str, run: Option<&str>) -> String {
    let line =
        Line { level, target: "orchestra".to_owned(), message: message.to_owned(), fields: Vec::new() };
    line.for_json(&now(), run)
}

/// RFC 3339 in UTC, to the microsecond.
pub(crate) fn now() -> String {
    let mut text = String::with_capacity(27);
    SystemTime.format_time(&mut Writer::new(&mut text)).expect("writing to a string cannot fail");
    text
}

/// An event with its own fields and those of the spans around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) target: String,
    pub(crate) message: String,
    /// Names without `orchestra.`; each name once, the innermost value.
    pub(crate) fields: Vec<(&'static str, FieldValue)>,
}

impl Line {
    pub(crate) fn new(metadata: &Metadata<'_>, fields: Fields) -> Self {
        Self {
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            message: fields.message,
            fields: fields.pairs,
        }
    }

    /// The pipeline that the line belongs to.
    pub(crate) fn pipeline(&self) -> Option<&str> {
        self.fields.iter().find(|(name, _)| *name == field::PIPELINE).map(|(_, value)| value.as_str())
    }

    /// `2026-01-31T12:00:00.000000Z  WARN orchestra_runtime: worker died and is replaced device=cuda:0`, with its line end.
    pub(crate) fn for_file(&self, time: &str) -> String {
        let mut out = format!("{time} {:>5} {}: {}", self.level, self.target, Escaped(&self.message));
        for (name, value) in &self.fields {
            push(&mut out, format_args!(" {name}={}", Readable(value.as_str())));
        }
        out.push('\n');
        out
    }

    /// One JSON object, without a line end: the fields of the event beside time, level, target, message and the run.
    pub(crate) fn for_json(&self, time: &str, run: Option<&str>) -> String {
        let mut out = format!(
            "{{\"timestamp\":{},\"level\":\"{}\",\"target\":{},\"message\":{}",
            JsonText(time),
            self.level,
            JsonText(&self.target),
            JsonText(&self.message)
        );
        if let Some(run) = run.filter(|_| !self.fields.iter().any(|(name, _)| *name == field::RUN)) {
            push(&mut out, format_args!(",\"{}\":{}", field::RUN, JsonText(run)));
        }
        for (name, value) in &self.fields {
            let prefix = if RESERVED.contains(name) { "field." } else { "" };
            push(&mut out, format_args!(",{}:", JsonText(&format!("{prefix}{name}"))));
            match value {
                FieldValue::Text(text) => push(&mut out, format_args!("{}", JsonText(text))),
                FieldValue::Plain(text) => out.push_str(text),
            }
        }
        out.push('}');
        out
    }

    /// `warning: worker died and is replaced (device=cuda:0)`, without a line end.
    pub(crate) fn for_terminal(&self, style: Style) -> String {
        let (word, color) = match self.level {
            Level::ERROR => ("error", "\x1b[1;31m"),
            Level::WARN => ("warning", "\x1b[1;33m"),
            Level::INFO => ("info", "\x1b[32m"),
            Level::DEBUG => ("debug", "\x1b[34m"),
            Level::TRACE => ("trace", "\x1b[2m"),
        };
        let mut out = match style {
            Style::Plain => format!("{word}: {}", Escaped(&self.message)),
            Style::Color => format!("{color}{word}\x1b[0m: {}", Escaped(&self.message)),
        };
        for (i, (name, value)) in self.fields.iter().enumerate() {
            out.push_str(if i == 0 { " (" } else { ", " });
            push(&mut out, format_args!("{name}={}", Readable(value.as_str())));
        }
        if !self.fields.is_empty() {
            out.push(')');
        }
        out
    }
}

/// Whether lines on the terminal bear colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Color,
}

fn push(out: &mut String, what: fmt::Arguments<'_>) {
    out.write_fmt(what).expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str, fields: &[(&'static str, &str)]) -> Line {
        Line {
            level: Level::WARN,
            target: "orchestra_runtime".into(),
            message: message.into(),
            fields: fields.iter().map(|(n, v)| (*n, FieldValue::Text((*v).to_owned()))).collect(),
        }
    }

    #[test]
    fn a_file_line_holds_time_level_target_message_and_fields() {
        let line = line("worker died", &[("device", "cuda:0"), ("exit", "killed by SIGSEGV")]);
        assert_eq!(
            line.for_file("T"),
            "T  WARN orchestra_runtime: worker died device=cuda:0 exit=\"killed by SIGSEGV\"\n"
        );
    }

    #[test]
    fn a_terminal_line_reads_like_a_sentence() {
        let line = line("worker died", &[("device", "cuda:0"), ("exit", "killed by SIGSEGV")]);
        assert_eq!(
            line.for_terminal(Style::Plain),
            "warning: worker died (device=cuda:0, exit=\"killed by SIGSEGV\")"
        );
        assert!(line.for_terminal(Style::Color).starts_with("\x1b[1;33mwarning\x1b[0m: "));
    }

    #[test]
    fn no_value_can_forge_a_line_or_steer_the_terminal() {
        let line =
            line("read\nerror: forged", &[("path", "a\n\x1b[2Jb"), ("bare", "\x07"), ("q", "\"\x1b\"")]);
        for text in [line.for_file("T"), line.for_terminal(Style::Plain)] {
            assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn a_json_line_is_one_object_with_numbers_as_numbers() {
        let line = Line {
            fields: vec![
                ("batch", FieldValue::Plain("17".into())),
                ("pipeline", FieldValue::Text("scans".into())),
                ("level", FieldValue::Text("a field of that name".into())),
            ],
            ..line("two\nlines \u{1b}[2J", &[])
        };
        assert_eq!(
            line.for_json("T", Some("r1")),
            "{\"timestamp\":\"T\",\"level\":\"WARN\",\"target\":\"orchestra_runtime\",\"message\":\"two\\nlines \\u001b[2J\",\
             \"run\":\"r1\",\"batch\":17,\"pipeline\":\"scans\",\"field.level\":\"a field of that name\"}"
        );
    }

    #[test]
    fn the_runs_own_field_is_not_said_twice() {
        let line = line("m", &[("run", "r2")]);
        assert_eq!(line.for_json("T", Some("r1")).matches("\"run\"").count(), 1);
    }
}
