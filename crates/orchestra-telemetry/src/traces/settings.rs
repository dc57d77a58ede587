//! Where traces go and how many, from the workflow's settings and the `OTEL_*` variables. Pure: variables come in as a function.

use std::time::Duration;

use super::ItemSampling;
use super::sampling::USUAL_SHARE;
use crate::TelemetryError;
use crate::names::SERVICE;
use crate::otlp::variables::Variables;
use crate::otlp::{OtlpSettings, Signal};

/// How long the end of a run waits for spans that are still to be sent.
const PATIENCE: Duration = Duration::from_secs(3);
/// Spans that may wait. The 2,048 of the specification overflow in bursts; a span is about a KiB.
const QUEUE: usize = 65_536;
/// Spans of a request. A span is 6 KiB at most, nearly all of it the words of an error and the name of a file, and collectors take
/// 20 MiB.
const REQUEST: usize = 2048;
/// How long a span waits for company, unless a request is full.
const DELAY: Duration = Duration::from_millis(500);

/// Where traces go, and which.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    pub otlp: OtlpSettings,
    /// Which items are traced. The run and its first batches always are.
    pub sampling: ItemSampling,
    pub service_name: String,
    /// More attributes of this program: name and value.
    pub resource: Vec<(String, String)>,
    pub queue: usize,
    pub request: usize,
    pub delay: Duration,
    /// How long the shutdown may wait for spans that are not made yet, and again for those that are not sent.
    pub patience: Duration,
}

/// What the workflow file and the command line say of traces. Each goes before the variables.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConfiguredTraces<'a> {
    pub endpoint: Option<&'a str>,
    /// [`ItemSampling::ratio`].
    pub items: Option<f64>,
    /// [`ItemSampling::slow`].
    pub slow: Option<Duration>,
    /// [`TraceSettings::patience`]; `None`: 3 seconds.
    pub flush_timeout: Option<Duration>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResolvedTraces {
    /// `None`: no traces.
    pub settings: Option<TraceSettings>,
    /// What was ignored and why, as sentences for the log.
    pub warnings: Vec<String>,
}

impl TraceSettings {
    /// Traces of the usual share of the items to `endpoint`. `origin` says where the address was given.
    pub fn new(endpoint: &str, origin: &str) -> Result<Self, TelemetryError> {
        OtlpSettings::new(Signal::Traces, endpoint, origin).map(Self::over)
    }

    fn over(otlp: OtlpSettings) -> Self {
        Self {
            otlp,
            sampling: ItemSampling::default(),
            service_name: SERVICE.to_owned(),
            resource: Vec::new(),
            queue: QUEUE,
            request: REQUEST,
            delay: DELAY,
            patience: PATIENCE,
        }
    }

    /// What the command line or the workflow file say, and the variables that `docs/tracing.md` lists. What the exporter looks up
    /// itself (compression) is not among the settings.
    ///
    /// # Errors
    /// An address that cannot be used.
    pub fn resolve(
        configured: ConfiguredTraces<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ResolvedTraces, TelemetryError> {
        let mut variables = Variables::new(&variable);
        let otlp = OtlpSettings::resolve(Signal::Traces, configured.endpoint, &mut variables)?;
        let settings = otlp.map(|otlp| {
            let (name, resource) = variables.resource();
            let ratio = configured.items.unwrap_or(USUAL_SHARE);
            Self {
                sampling: ItemSampling { ratio, slow: configured.slow },
                service_name: name.unwrap_or_else(|| SERVICE.to_owned()),
                resource,
                patience: configured.flush_timeout.unwrap_or(PATIENCE),
                ..Self::over(otlp)
            }
        });
        Ok(ResolvedTraces { settings, warnings: variables.warnings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: ConfiguredTraces<'static> =
        ConfiguredTraces { endpoint: Some("http://c:1"), items: None, slow: None, flush_timeout: None };

    fn resolve(configured: ConfiguredTraces<'_>, variables: &[(&str, &str)]) -> ResolvedTraces {
        TraceSettings::resolve(configured, |name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
        .unwrap()
    }

    fn resolved(variables: &[(&str, &str)]) -> TraceSettings {
        let r = resolve(TO, variables);
        assert!(r.warnings.is_empty(), "{:?}", r.warnings);
        r.settings.unwrap()
    }

    #[test]
    fn nobody_asks_and_nothing_is_sent() {
        assert_eq!(resolve(ConfiguredTraces::default(), &[]), ResolvedTraces::default());
    }

    #[test]
    fn one_item_in_a_hundred_is_traced_unless_the_file_says_otherwise() {
        assert_eq!(resolved(&[]).sampling, ItemSampling { ratio: 0.01, slow: None });
        let second = Some(Duration::from_secs(1));
        let configured = ConfiguredTraces { items: Some(0.5), slow: second, flush_timeout: second, ..TO };
        let settings = resolve(configured, &[]).settings.unwrap();
        assert_eq!(
            (settings.sampling.ratio, settings.sampling.slow, Some(settings.patience)),
            (0.5, second, second)
        );
    }

    #[test]
    fn the_program_has_the_name_and_the_attributes_that_the_variables_give_it() {
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=labels,deployment.environment.name=test");
        let settings = resolved(&[attributes]);
        assert_eq!(settings.service_name, "labels");
        assert_eq!(settings.resource, [("deployment.environment.name".to_owned(), "test".to_owned())]);
        assert_eq!(resolved(&[attributes, ("OTEL_SERVICE_NAME", "other")]).service_name, "other");
        assert_eq!(resolved(&[]).service_name, "orchestra");
    }
}
