//! What the values of options may be. Checks forms only.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use orchestra_launch::plan::{Choice as _, LogFormat};

/// `--set KEY=VALUE`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetArg {
    pub key: String,
    /// TOML, or plain text; which of them, the planner finds out.
    pub value: String,
}

/// How often something is done; `None`: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every(pub Option<Duration>);

/// `table.key=value`
pub fn setting(text: &str) -> Result<SetArg, String> {
    let expected = "expected `table.key=value`, for example `stages.classify.batch.max=16`";
    let Some((key, value)) = text.split_once('=') else { return Err(format!("it has no `=`; {expected}")) };
    let key = key.trim();
    if key.split('.').any(|name| name.trim().is_empty()) {
        return Err(format!("`{key}` is no key; {expected}"));
    }
    Ok(SetArg { key: key.to_owned(), value: value.trim().to_owned() })
}

pub fn rounds(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=1000).contains(n));
    number.ok_or_else(|| "expected a whole number from 1 to 1000".to_owned())
}

pub fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (0.05..=3600.0).contains(s));
    number.ok_or_else(|| "expected seconds from 0.05 to 3600".to_owned())
}

pub fn every(text: &str) -> Result<Every, String> {
    let expected = "expected a time from 1ms to 1h such as `100ms` or `2s`, or `never`";
    match text.trim() {
        "0" | "never" => Ok(Every(None)),
        time => {
            let time = humantime::parse_duration(time).map_err(|e| format!("{e}; {expected}"))?;
            let range = Duration::from_millis(1)..=Duration::from_secs(3600);
            if range.contains(&time) { Ok(Every(Some(time))) } else { Err(expected.to_owned()) }
        }
    }
}

pub fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    let text = PossibleValue::new("text").help("For people");
    let json = PossibleValue::new("json").help("For programs: one JSON object per line");
    PossibleValuesParser::new([text, json]).map(|name| LogFormat::named(&name).unwrap_or_default())
}

pub fn device(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a device has no name; expected for example `cuda:0,cuda:1`, `cpu` or `auto`".to_owned()),
        name => Ok(name.to_owned()),
    }
}
