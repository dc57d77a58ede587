//! Reads values of `OTEL_*` variables. A value that cannot be read is ignored with a warning that names the variable, and never an error:
//! the environment is shared with other programs, and must not stop a run.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::Signal;

/// Looks up variables, and gathers what is to be said about them.
pub(crate) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    pub(crate) warnings: Vec<String>,
}

pub(crate) type Set = (String, String);

impl<'a> Variables<'a> {
    pub(crate) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup, warnings: Vec::new() }
    }

    /// A variable that is set to more than spaces, without those around it.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    pub(crate) fn one(&self, name: &str) -> Option<Set> {
        self.text(name).map(|value| (name.to_owned(), value))
    }

    /// The exporter's setting for this signal, else the one for all signals.
    pub(crate) fn of_exporter(&self, signal: Signal, setting: &str) -> Option<Set> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_{setting}", signal.name().to_uppercase());
        self.one(&own).or_else(|| self.one(&format!("OTEL_EXPORTER_OTLP_{setting}")))
    }

    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub(crate) fn read<T>(
        &mut self,
        set: Option<Set>,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let (name, value) = set?;
        let parsed = parse(&value);
        if parsed.is_none() {
            self.warn(format!("`{name}` is `{value}`, which is no {expected}: it is ignored"));
        }
        parsed
    }

    pub(crate) fn milliseconds(&mut self, set: Option<Set>) -> Option<Duration> {
        let parse = |value: &str| value.parse().ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        self.read(set, "number of milliseconds from 1 on", parse)
    }

    pub(crate) fn count(&mut self, set: Option<Set>, allowed: RangeInclusive<usize>) -> Option<usize> {
        let expected = format!("whole number from {} to {}", allowed.start(), allowed.end());
        self.read(set, &expected, |value| value.parse().ok().filter(|n| allowed.contains(n)))
    }

    /// `key=value,key=value`, percent-encoded. Values may be secrets, so no message shows one.
    pub(crate) fn pairs(&mut self, set: Option<Set>) -> Vec<(String, String)> {
        let Some((name, value)) = set else { return Vec::new() };
        pairs(&value).unwrap_or_else(|| {
            self.warn(format!(
                "`{name}` is ignored: expected `key=value` pairs with commas between them, such as `team=vision,site=berlin`, and what is \
                 no letter or digit as `%` and two hexadecimal digits"
            ));
            Vec::new()
        })
    }

    /// What the program is called in place of `orchestra`, and its other attributes.
    pub(crate) fn resource(&mut self) -> (Option<String>, Vec<(String, String)>) {
        let mut resource = self.pairs(self.one("OTEL_RESOURCE_ATTRIBUTES"));
        let named =
            resource.iter().rposition(|(key, _)| key == "service.name").map(|at| resource.remove(at).1);
        (self.text("OTEL_SERVICE_NAME").or(named), resource)
    }

    /// The names in `OTEL_TRACES_EXPORTER` and its like, in lower case.
    pub(crate) fn exporters(&self, signal: Signal) -> Vec<String> {
        let value = self.text(&exporter_variable(signal)).unwrap_or_default().to_lowercase();
        value.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    }

    pub(crate) fn is_disabled(&self) -> bool {
        self.text("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }
}

pub(crate) fn exporter_variable(signal: Signal) -> String {
    format!("OTEL_{}_EXPORTER", signal.name().to_uppercase())
}

fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    text.split(',').filter(|pair| !pair.trim().is_empty()).map(pair).collect()
}

fn pair(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    let key = percent_decoded(key.trim()).filter(|key| !key.is_empty())?;
    Some((key, percent_decoded(value.trim())?))
}

fn percent_decoded(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_and_decoded() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            pairs(" a=b , api-key = x%3Dy%2cz ,,e="),
            Some(vec![pair("a", "b"), pair("api-key", "x=y,z"), pair("e", "")])
        );
        for bad in ["a", "=b", "a=%ff", "a=b,c"] {
            assert_eq!(pairs(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_ignored_with_its_name_and_without_a_secret() {
        let lookup = |name: &str| Some(if name == "HEADERS" { "key:secret" } else { "-3" }.to_owned());
        let mut variables = Variables::new(&lookup);
        assert_eq!(variables.milliseconds(variables.one("TIMEOUT")), None);
        assert_eq!(variables.count(variables.one("SIZE"), 1..=10), None);
        assert_eq!(variables.pairs(variables.one("HEADERS")), Vec::new());
        for (warning, name) in variables.warnings.iter().zip(["`TIMEOUT`", "`SIZE`", "`HEADERS`"]) {
            assert!(warning.contains(name) && !warning.contains("secret"), "{warning}");
        }
        assert_eq!(variables.warnings.len(), 3);
    }
}
