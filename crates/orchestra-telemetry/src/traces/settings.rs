//! Where traces go and how many, from the workflow's setting and the `OTEL_*` variables. Pure: variables come in as a function.

use std::time::Duration;

use crate::TelemetryError;
use crate::names::SERVICE;

/// How long sending one batch of spans, and the end of the run, may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where traces go.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    /// Address of the collector's gRPC port: `http://host:4317`.
    pub endpoint: String,
    /// Where the address was given, for messages.
    pub origin: &'static str,
    /// Which traces are kept.
    pub sampling: Sampling,
    /// What the traces call this program.
    pub service_name: String,
    /// Bound on sending one batch of spans and on the shutdown.
    pub patience: Duration,
}

/// Which traces are kept. The `Parent` kinds follow the sender's decision where there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampling {
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// This share, 0.0 to 1.0.
    Ratio(f64),
    /// All that have no parent.
    ParentAlwaysOn,
    /// None that has no parent.
    ParentAlwaysOff,
    /// This share of those without a parent, 0.0 to 1.0.
    ParentRatio(f64),
}

/// What the settings come to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResolvedTraces {
    /// `None`: no traces.
    pub settings: Option<TraceSettings>,
    /// What was ignored and why, as sentences for the log: wrong variables of an environment that we share with others must not
    /// stop a run.
    pub warnings: Vec<String>,
}

impl TraceSettings {
    /// Traces to `endpoint`, all of them, unless a parent says otherwise. `origin` says where the address was given.
    pub fn new(endpoint: &str, origin: &'static str) -> Result<Self, TelemetryError> {
        check(endpoint, origin)?;
        Ok(Self {
            endpoint: endpoint.to_owned(),
            origin,
            sampling: Sampling::ParentAlwaysOn,
            service_name: SERVICE.to_owned(),
            patience: PATIENCE,
        })
    }

    /// `configured` is the address from the command line or the workflow file; it goes before
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, and that before `OTEL_EXPORTER_OTLP_ENDPOINT`. `variable` looks up the environment.
    pub fn resolve(
        configured: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ResolvedTraces, TelemetryError> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let mut resolved = ResolvedTraces::default();
        let given = configured
            .map(|e| (e.to_owned(), "`telemetry.otlp` or `--otlp`"))
            .or_else(|| {
                variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
                    .map(|e| (e, "`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`"))
            })
            .or_else(|| {
                variable("OTEL_EXPORTER_OTLP_ENDPOINT").map(|e| (e, "`OTEL_EXPORTER_OTLP_ENDPOINT`"))
            });
        let Some((endpoint, origin)) = given else { return Ok(resolved) };
        if let Some(switch) = switched_off(&variable) {
            if configured.is_some() {
                resolved.warnings.push(format!("no traces are sent, because {switch}"));
            }
            return Ok(resolved);
        }
        let mut settings = Self::new(endpoint.trim(), origin)?;
        if let Some(name) = variable("OTEL_SERVICE_NAME") {
            settings.service_name = name;
        }
        warn_of_protocol(&variable, &mut resolved.warnings);
        settings.sampling = sampling(&variable, &mut resolved.warnings);
        if settings.sampling != Sampling::AlwaysOff {
            resolved.settings = Some(settings);
        }
        Ok(resolved)
    }
}

fn check(endpoint: &str, origin: &'static str) -> Result<(), TelemetryError> {
    let refused = |reason: &str| {
        Err(TelemetryError::Endpoint { endpoint: endpoint.to_owned(), origin, reason: reason.to_owned() })
    };
    if endpoint.starts_with("https://") {
        return refused(
            "this build sends traces without encryption only; run a collector on this machine, write \
             `http://localhost:4317`, and let it forward them",
        );
    }
    match endpoint.strip_prefix("http://") {
        Some(rest) if !rest.is_empty() && !rest.starts_with(['/', ':']) => Ok(()),
        _ => refused(
            "expected `http://HOST:PORT` of a collector's gRPC port, for example `http://localhost:4317`",
        ),
    }
}

fn switched_off(variable: &impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let is = |name: &str, value: &str| variable(name).is_some_and(|v| v.trim().eq_ignore_ascii_case(value));
    if is("OTEL_SDK_DISABLED", "true") {
        Some("`OTEL_SDK_DISABLED` is `true`")
    } else if is("OTEL_TRACES_EXPORTER", "none") {
        Some("`OTEL_TRACES_EXPORTER` is `none`")
    } else if is("OTEL_TRACES_SAMPLER", "always_off") {
        Some("`OTEL_TRACES_SAMPLER` is `always_off`")
    } else {
        None
    }
}

fn warn_of_protocol(variable: &impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) {
    let names = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
    let found = names.iter().find_map(|name| variable(name).map(|value| (name, value)));
    if let Some((name, value)) = found.filter(|(_, value)| value.trim() != "grpc") {
        warnings.push(format!(
            "`{name}` is `{value}`, but traces are sent over gRPC: the address must be the collector's gRPC port, usually 4317"
        ));
    }
}

fn sampling(variable: &impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> Sampling {
    let Some(name) = variable("OTEL_TRACES_SAMPLER") else { return Sampling::ParentAlwaysOn };
    match name.trim() {
        "always_on" => Sampling::AlwaysOn,
        "always_off" => Sampling::AlwaysOff,
        "traceidratio" => Sampling::Ratio(ratio(variable, warnings)),
        "parentbased_always_on" => Sampling::ParentAlwaysOn,
        "parentbased_always_off" => Sampling::ParentAlwaysOff,
        "parentbased_traceidratio" => Sampling::ParentRatio(ratio(variable, warnings)),
        other => {
            warnings.push(format!(
                "`OTEL_TRACES_SAMPLER` is `{other}`, which is none of `always_on`, `always_off`, `traceidratio`, \
                 `parentbased_always_on`, `parentbased_always_off` and `parentbased_traceidratio`: every trace is kept"
            ));
            Sampling::ParentAlwaysOn
        }
    }
}

fn ratio(variable: &impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> f64 {
    let Some(text) = variable("OTEL_TRACES_SAMPLER_ARG") else { return 1.0 };
    match text.trim().parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
        _ => {
            warnings.push(format!(
                "`OTEL_TRACES_SAMPLER_ARG` is `{text}`, which is no share from 0.0 to 1.0: every trace is kept"
            ));
            1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(configured: Option<&str>, variables: &[(&str, &str)]) -> ResolvedTraces {
        TraceSettings::resolve(configured, |name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
        .unwrap()
    }

    #[test]
    fn the_file_goes_before_the_signal_variable_and_that_before_the_general_one() {
        let all = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:1"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:1"),
        ];
        let endpoint = |r: ResolvedTraces| r.settings.unwrap().endpoint;
        assert_eq!(endpoint(resolve(Some("http://file:1"), &all)), "http://file:1");
        assert_eq!(endpoint(resolve(None, &all)), "http://traces:1");
        assert_eq!(endpoint(resolve(None, &all[..1])), "http://general:1");
        assert_eq!(resolve(None, &[]), ResolvedTraces::default());
        assert_eq!(resolve(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), ResolvedTraces::default());
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_with_its_origin() {
        for bad in
            ["localhost:4317", "http://", "http:///x", "http://:4317", "https://collector:4317", "ftp://x"]
        {
            let error = TraceSettings::resolve(Some(bad), |_| None).unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")) && error.contains("`telemetry.otlp`"), "{error}");
        }
    }

    #[test]
    fn the_sampler_variables_are_honoured() {
        let sampling = |name, arg| {
            let r = resolve(
                Some("http://c:1"),
                &[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", arg)],
            );
            assert!(r.warnings.is_empty(), "{:?}", r.warnings);
            r.settings.unwrap().sampling
        };
        assert_eq!(sampling("always_on", ""), Sampling::AlwaysOn);
        assert_eq!(sampling("traceidratio", "0.25"), Sampling::Ratio(0.25));
        assert_eq!(sampling("parentbased_always_off", ""), Sampling::ParentAlwaysOff);
        assert_eq!(sampling("parentbased_traceidratio", "0.5"), Sampling::ParentRatio(0.5));
        assert_eq!(sampling("parentbased_always_on", ""), Sampling::ParentAlwaysOn);
    }

    #[test]
    fn a_wrong_sampler_or_share_is_ignored_with_a_warning() {
        let r = resolve(Some("http://c:1"), &[("OTEL_TRACES_SAMPLER", "xray")]);
        assert_eq!(r.settings.unwrap().sampling, Sampling::ParentAlwaysOn);
        assert!(r.warnings[0].contains("`xray`"));
        for bad in ["2", "-0.1", "NaN", "half"] {
            let variables = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", bad)];
            let r = resolve(Some("http://c:1"), &variables);
            assert_eq!(r.settings.unwrap().sampling, Sampling::Ratio(1.0));
            assert_eq!(r.warnings.len(), 1);
        }
    }

    #[test]
    fn the_switches_turn_traces_off_and_say_so_when_they_were_asked_for() {
        for off in [
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_TRACES_SAMPLER", "always_off"),
        ] {
            let r = resolve(Some("http://c:1"), &[off]);
            assert!(r.settings.is_none() && r.warnings[0].contains(off.0), "{r:?}");
            let r = resolve(None, &[off, ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1")]);
            assert_eq!(r, ResolvedTraces::default());
        }
    }

    #[test]
    fn another_protocol_is_warned_of() {
        let r = resolve(Some("http://c:4318"), &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]);
        assert!(r.warnings[0].contains("gRPC port"), "{r:?}");
        let r = resolve(Some("http://c:4317"), &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert!(r.warnings.is_empty());
    }
}
