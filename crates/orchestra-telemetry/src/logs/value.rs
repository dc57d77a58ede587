//! The fields of an event or a span as they are collected, and text made safe. Knows no line.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FieldValue {
    /// Text.
    Text(String),
    /// A number or a truth value, as JSON writes it.
    Plain(String),
}

impl FieldValue {
    /// Its text.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Plain(text) => text,
        }
    }
}

/// Collects the fields of an event or a span.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub(crate) message: String,
    /// Names without `orchestra.`; each name once.
    pub(crate) pairs: Vec<(&'static str, FieldValue)>,
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

    fn set(&mut self, name: &'static str, value: FieldValue) {
        if name == "message" {
            self.message = value.as_str().to_owned();
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

    fn set_plain(&mut self, field: &Field, value: impl fmt::Display) {
        self.set(field.name(), FieldValue::Plain(value.to_string()));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), FieldValue::Text(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set_plain(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set_plain(field, value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.set_plain(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.set_plain(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set_plain(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match value.is_finite() {
            true => self.set_plain(field, value),
            // JSON has no number for it.
            false => self.set(field.name(), FieldValue::Text(value.to_string())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), FieldValue::Text(format!("{value:?}")));
    }
}

/// Text in which no control character is left, so that nothing in a file name can forge a line or steer a terminal.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// A field's value in a line for people: quoted where it would not end at the next space.
pub(crate) struct Readable<'a>(pub(crate) &'a str);

impl fmt::Display for Readable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0;
        let quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
        let needs_quotes =
            text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '=');
        if needs_quotes && !quoted { write!(f, "{text:?}") } else { write!(f, "{}", Escaped(text)) }
    }
}

/// A text as JSON writes it, in its quotes. Every control character is escaped, also those that JSON allows.
pub(crate) struct JsonText<'a>(pub(crate) &'a str);

impl fmt::Display for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                // All of them are below U+00A0.
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_value_hides_an_outer_one() {
        let text = |text: &str| FieldValue::Text(text.into());
        let mut inner = Fields::default();
        inner.set("orchestra.stage", text("b"));
        let mut outer = Fields::default();
        outer.set("stage", text("a"));
        outer.set("pipeline", text("p"));
        inner.inherit(&outer);
        assert_eq!(inner.pairs, [("stage", text("b")), ("pipeline", text("p"))]);
    }

    #[test]
    fn json_text_holds_no_control_character() {
        let text = JsonText("a\"b\\c\nd\te\u{1b}\u{7f}\u{9b}é").to_string();
        assert_eq!(text, r#""a\"b\\c\nd\te\u001b\u007f\u009bé""#);
    }
}
