//! Which events and spans are seen. Text in, filters out; reads no environment.

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};

use crate::TelemetryError;

/// Others' targets that would drown ours: the actor framework keeps every actor in an endless span, the transport below the
/// exporter would describe itself for ever, and ONNX Runtime tells of every node it moves.
pub(crate) const NOISE: [(&str, LevelFilter); 7] = [
    ("ractor", LevelFilter::OFF),
    ("h2", LevelFilter::OFF),
    ("hyper", LevelFilter::OFF),
    ("tonic", LevelFilter::OFF),
    ("tower", LevelFilter::OFF),
    ("opentelemetry", LevelFilter::OFF),
    ("ort", LevelFilter::WARN),
];

/// A filter of `level` for our own targets, overridden by `user` (the text of `RUST_LOG`), which may also open the noise again.
pub(crate) fn log_filter(level: LevelFilter, user: Option<&str>) -> Result<Targets, TelemetryError> {
    let mut text = level.to_string();
    for (target, level) in NOISE {
        text.push_str(&format!(",{target}={level}"));
    }
    let user = user.map(str::trim).filter(|u| !u.is_empty());
    if let Some(user) = user {
        text.push(',');
        text.push_str(user);
    }
    text.parse().map_err(|error: ParseError| TelemetryError::Filter {
        value: user.unwrap_or_default().to_owned(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_is_off_unless_the_user_asks_for_it() {
        let filter = log_filter(LevelFilter::INFO, Some("debug,h2=trace")).unwrap().to_string();
        assert!(filter.contains("ractor=off"), "{filter}");
        assert!(filter.contains("h2=trace"), "{filter}");
        assert!(!filter.contains("h2=off"), "{filter}");
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_quoted_in_the_error() {
        let error = log_filter(LevelFilter::INFO, Some("a=b=c")).unwrap_err().to_string();
        assert!(error.contains("`RUST_LOG` is `a=b=c`"), "{error}");
    }

    #[test]
    fn an_empty_filter_is_no_filter() {
        assert!(log_filter(LevelFilter::WARN, Some("  ")).is_ok());
    }
}
