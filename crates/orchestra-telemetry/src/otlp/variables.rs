//! Reads values of `OTEL_*` variables. A value that cannot be read is ignored with a warning that names the variable, and never an error:
//! the environment is shared with other programs, and must not stop a run.

use std::borrow::Cow;
use std::time::Duration;

/// Looks up variables, and gathers what is to be said about them.
pub(crate) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    warnings: &'a mut Vec<String>,
}

impl<'a> Variables<'a> {
    pub(crate) fn new(lookup: &'a dyn Fn(&str) -> Option<String>, warnings: &'a mut Vec<String>) -> Self {
        Self { lookup, warnings }
    }

    /// A variable that is set to more than spaces, without those around it.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// The first of these variables that is set, and its name.
    pub(crate) fn first<'n>(&self, names: &'n [String]) -> Option<(&'n str, String)> {
        names.iter().find_map(|name| self.text(name).map(|value| (name.as_str(), value)))
    }

    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Milliseconds, more than none.
    pub(crate) fn milliseconds(&mut self, names: &[String]) -> Option<Duration> {
        let (name, value) = self.first(names)?;
        match value.parse::<u64>() {
            Ok(ms) if ms > 0 => Some(Duration::from_millis(ms)),
            _ => {
                self.warn(format!(
                    "`{name}` is `{value}`, which is no number of milliseconds from 1 on: it is ignored"
                ));
                None
            }
        }
    }

    /// A number of things within bounds.
    pub(crate) fn count(&mut self, name: &str, most: usize) -> Option<usize> {
        let value = self.text(name)?;
        match value.parse::<usize>() {
            Ok(n) if (1..=most).contains(&n) => Some(n),
            _ => {
                self.warn(format!(
                    "`{name}` is `{value}`, which is no whole number from 1 to {most}: it is ignored"
                ));
                None
            }
        }
    }

    /// `key=value,key=value`, percent-encoded. Values may be secrets, so no message shows one.
    pub(crate) fn pairs(&mut self, names: &[String]) -> Vec<(String, String)> {
        let Some((name, value)) = self.first(names) else { return Vec::new() };
        match pairs(&value) {
            Some(pairs) => pairs,
            None => {
                self.warn(format!(
                    "`{name}` is ignored: expected `key=value` pairs with commas between them, such as `team=vision,site=berlin`, and what is \
                     no letter or digit as `%` and two hexadecimal digits"
                ));
                Vec::new()
            }
        }
    }
}

fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    text.split(',').filter(|pair| !pair.trim().is_empty()).map(pair).collect()
}

fn pair(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    let key = percent_decoded(key.trim()).filter(|key| !key.is_empty())?;
    Some((key, percent_decoded(value.trim())?))
}

/// Text with its `%XX` replaced; `None` if that is no text.
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
        let mut warnings = Vec::new();
        let lookup = |name: &str| Some(if name == "HEADERS" { "key:secret" } else { "-3" }.to_owned());
        let mut variables = Variables::new(&lookup, &mut warnings);
        assert_eq!(variables.milliseconds(&["TIMEOUT".to_owned()]), None);
        assert_eq!(variables.count("SIZE", 10), None);
        assert_eq!(variables.pairs(&["HEADERS".to_owned()]), Vec::new());
        for (warning, name) in warnings.iter().zip(["`TIMEOUT`", "`SIZE`", "`HEADERS`"]) {
            assert!(warning.contains(name) && !warning.contains("secret"), "{warning}");
        }
        assert_eq!(warnings.len(), 3);
    }
}
