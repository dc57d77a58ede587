//! One log event as data, and how it is written down. Knows neither files nor terminals.

use std::borrow::Cow;
use std::fmt;

use orchestra_core::failure_causes::same_for_all;
use orchestra_core::visible_in_line;
use serde::Serializer as _;
use serde_json::{Number, Value};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use crate::names::field;

/// What [`LogFormat::Json`](orchestra_plan::LogFormat::Json) itself writes; a field of such a name gets another one.
const RESERVED: [&str; 4] = ["timestamp", "level", "target", "message"];

/// A line of [`LogFormat::Json`](orchestra_plan::LogFormat::Json) that is no event, for a command that has more to say than its log: without its line end.
pub fn json_line(level: Level, message: &str, run: Option<&str>) -> String {
    let fields = LogFields { message: message.to_owned(), pairs: Vec::new() };
    LogLine { level, target: "orchestra".to_owned(), fields }.for_json(&now(), run)
}

/// RFC 3339 in UTC, to the microsecond.
pub(crate) fn now() -> String {
    let mut text = String::with_capacity(27);
    SystemTime.format_time(&mut Writer::new(&mut text)).expect("writing to a string cannot fail");
    text
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogFields {
    pub(crate) message: String,
    /// Names without `orchestra.`; each name once.
    pub(crate) pairs: Vec<(&'static str, Value)>,
}

impl LogFields {
    /// Adds what is not there yet: an event's own value hides that of its span, an inner span's that of an outer one.
    pub(crate) fn inherit(&mut self, outer: &LogFields) {
        for (name, value) in &outer.pairs {
            if self.get(name).is_none() {
                self.pairs.push((name, value.clone()));
            }
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    fn set(&mut self, name: &'static str, value: Value) {
        if name == "message" {
            self.message = text_of(&value).into_owned();
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

/// A text as it is, and anything else as JSON writes it.
fn text_of(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Cow::from)
}

impl Visit for LogFields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no number for infinity and the like.
        let number = Number::from_f64(value);
        self.set(field.name(), number.map_or_else(|| value.to_string().into(), Value::Number));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), format!("{value:?}").into());
    }
}

/// An event with its own fields and those of the spans around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) level: Level,
    pub(crate) target: String,
    pub(crate) fields: LogFields,
}

impl LogLine {
    /// What the line has in common with those about other items that have failed in the same way; `None`: it is about no such item.
    pub(crate) fn cause(&self) -> Option<String> {
        let text = |name| self.fields.get(name).and_then(Value::as_str);
        let (item, error) = (text("item")?, text("error")?);
        let stage = text("stage").unwrap_or_default();
        Some(format!("{} {stage} {}", self.fields.message, same_for_all(error, item)))
    }

    pub(crate) fn new(metadata: &Metadata<'_>, fields: LogFields) -> Self {
        Self { level: *metadata.level(), target: metadata.target().to_owned(), fields }
    }

    pub(crate) fn pipeline(&self) -> Option<&str> {
        self.fields.get(field::PIPELINE).and_then(Value::as_str)
    }

    /// `2026-01-31T12:00:00.000000Z  WARN orchestra_runtime: worker died and is replaced device=cuda:0`, with its line end.
    pub(crate) fn for_file(&self, time: &str) -> String {
        let message = visible_in_line(&self.fields.message);
        let mut out = format!("{time} {:>5} {}: {message}", self.level, self.target);
        for (name, value) in &self.fields.pairs {
            out += &format!(" {name}={}", readable(&text_of(value)));
        }
        out + "\n"
    }

    /// One JSON object, without a line end: the fields of the event beside time, level, target, message and the run.
    pub(crate) fn for_json(&self, time: &str, run: Option<&str>) -> String {
        let Self { level, target, fields } = self;
        let mut pairs: Vec<(Cow<'_, str>, Cow<'_, Value>)> = Vec::new();
        let mut add = |name, text: &str| pairs.push((Cow::Borrowed(name), Cow::Owned(text.into())));
        add("timestamp", time);
        add("level", level.as_str());
        add("target", target);
        add("message", &fields.message);
        if let Some(run) = run.filter(|_| fields.get(field::RUN).is_none()) {
            add(field::RUN, run);
        }
        pairs.extend(fields.pairs.iter().map(|(name, value)| {
            let is_reserved = RESERVED.contains(name);
            let name = if is_reserved { format!("field.{name}").into() } else { Cow::Borrowed(*name) };
            (name, Cow::Borrowed(value))
        }));
        let mut line = Vec::new();
        let written = serde_json::Serializer::new(&mut line).collect_map(pairs);
        written.expect("texts and numbers can be written to memory");
        let line = String::from_utf8(line).expect("JSON is text");
        // JSON allows some control characters, which steer a terminal all the same.
        let escape = |c: char| match c.is_control() {
            true => format!("\\u{:04x}", u32::from(c)),
            false => c.to_string(),
        };
        if line.contains(char::is_control) { line.chars().map(escape).collect() } else { line }
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
        let message = visible_in_line(&self.fields.message);
        let pairs =
            self.fields.pairs.iter().map(|(name, value)| format!("{name}={}", readable(&text_of(value))));
        let fields = pairs.collect::<Vec<_>>().join(", ");
        let fields = if fields.is_empty() { fields } else { format!(" ({fields})") };
        match style {
            Style::Plain => format!("{word}: {message}{fields}"),
            Style::Color => format!("{color}{word}\x1b[0m: {message}{fields}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Color,
}

/// A field's value in a line for people: quoted where it would not end at the next space.
fn readable(text: &str) -> Cow<'_, str> {
    let is_quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    let needs_quotes =
        text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '=');
    if needs_quotes && !is_quoted {
        visible_in_line(&format!("{text:?}")).into_owned().into()
    } else {
        visible_in_line(text)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::steers;

    use super::*;

    fn line(message: &str, fields: &[(&'static str, &str)]) -> LogLine {
        LogLine {
            level: Level::WARN,
            target: "orchestra_runtime".into(),
            fields: LogFields {
                message: message.into(),
                pairs: fields.iter().map(|(n, v)| (*n, (*v).into())).collect(),
            },
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
        let lines = [
            line("read\nerror: forged", &[("path", "a\n\x1b[2Jb"), ("bare", "\x07"), ("q", "\"\x1b\"")]),
            line("a\u{202e}b", &[("path", "c\u{2066}d e"), ("bare", "\u{200f}")]),
        ];
        for text in lines.iter().flat_map(|line| [line.for_file("T"), line.for_terminal(Style::Plain)]) {
            assert!(!text.trim_end().chars().any(steers), "{text:?}");
        }
    }

    #[test]
    fn a_json_line_is_one_object_with_numbers_as_numbers() {
        let mut line = line("two\nlines \u{1b}[2J", &[]);
        line.fields.pairs = vec![
            ("batch", 17.into()),
            ("pipeline", "scans".into()),
            ("level", "a field of that name".into()),
        ];
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

    #[test]
    fn an_inner_value_hides_an_outer_one() {
        let text = |text: &str| Value::from(text);
        let mut inner = LogFields::default();
        inner.set("orchestra.stage", text("b"));
        let mut outer = LogFields::default();
        outer.set("stage", text("a"));
        outer.set("pipeline", text("p"));
        inner.inherit(&outer);
        assert_eq!(inner.pairs, [("stage", text("b")), ("pipeline", text("p"))]);
    }

    #[test]
    fn a_json_line_holds_no_control_character() {
        let line = line("a\"b\\c\nd\te\u{1b}\u{7f}\u{9b}é", &[]).for_json("T", None);
        assert!(line.contains(r#""a\"b\\c\nd\te\u001b\u007f\u009bé""#), "{line}");
    }
}
