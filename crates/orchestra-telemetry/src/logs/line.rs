//! One log event as data, and how it is written down. Knows neither files nor terminals.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Level, Metadata};

use crate::names::field;

/// An event with its own fields and those of the spans around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) target: String,
    pub(crate) message: String,
    /// Names without `orchestra.`; each name once, the innermost value.
    pub(crate) fields: Vec<(&'static str, String)>,
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
            push(&mut out, format_args!(" {name}={}", Value(value)));
        }
        out.push('\n');
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
            push(&mut out, format_args!("{name}={}", Value(value)));
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

/// Collects the fields of an event or a span.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub(crate) message: String,
    pub(crate) pairs: Vec<(&'static str, String)>,
}

impl Fields {
    /// Adds what is not there yet: an event's own value hides that of its span, an inner span's that of an outer one.
    pub(crate) fn inherit(&mut self, outer: &Fields) {
        for (name, value) in &outer.pairs {
            if !self.pairs.iter().any(|(n, _)| n == name) {
                self.pairs.push((name, value.clone()));
            }
        }
    }

    fn set(&mut self, name: &'static str, value: String) {
        if name == "message" {
            self.message = value;
            return;
        }
        // They steer the exporter and say nothing to a reader.
        if name.starts_with("otel.") {
            return;
        }
        let name = name.strip_prefix("orchestra.").unwrap_or(name);
        match self.pairs.iter_mut().find(|(n, _)| *n == name) {
            Some(pair) => pair.1 = value,
            None => self.pairs.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), format!("{value:?}"));
    }
}

/// Text in which no control character is left, so that nothing in a file name can forge a line or steer a terminal.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// A field's value: quoted where it would not end at the next space.
struct Value<'a>(&'a str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0;
        let quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
        let needs_quotes =
            text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '=');
        if needs_quotes && !quoted { write!(f, "{text:?}") } else { write!(f, "{}", Escaped(text)) }
    }
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
            fields: fields.iter().map(|(n, v)| (*n, (*v).to_owned())).collect(),
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
    fn an_inner_value_hides_an_outer_one() {
        let mut inner = Fields::default();
        inner.set("orchestra.stage", "b".into());
        let mut outer = Fields::default();
        outer.set("stage", "a".into());
        outer.set("pipeline", "p".into());
        inner.inherit(&outer);
        assert_eq!(inner.pairs, [("stage", "b".to_owned()), ("pipeline", "p".to_owned())]);
    }
}
