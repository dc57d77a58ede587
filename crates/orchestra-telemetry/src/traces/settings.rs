//! Where traces go and how many, from the workflow's settings and the `OTEL_*` variables. Pure: variables come in as a function.

use std::time::Duration;

use super::ItemSampling;
use super::sampling::USUAL_SHARE;
use super::span::SpanLimits;
use crate::TelemetryError;
use crate::names::SERVICE;
use crate::otlp::variables::Variables;
use crate::otlp::{Configured, OtlpSettings, Protocol, Signal};

/// How long the end of a run waits for spans that are still to be sent.
const PATIENCE: Duration = Duration::from_secs(3);
/// Spans that may wait. The 2,048 of the specification overflow in bursts; a span is about a KiB.
const QUEUE: usize = 65_536;
/// The most that a variable may ask for: some gigabytes.
const LARGEST_QUEUE: usize = 1 << 22;
/// How long a span waits for company, unless a request is full.
const DELAY: Duration = Duration::from_millis(500);

/// Spans of a request. A span is 6 KiB at most, nearly all of it the words of an error and the name of a file, and collectors take 20 MiB
/// over HTTP, and 4 MiB over gRPC.
pub(super) fn usual_request(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Grpc => 512,
        Protocol::HttpProtobuf => 2048,
    }
}

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
    pub limits: SpanLimits,
    /// How long the shutdown may wait for spans that are not made yet, and again for those that are not sent.
    pub patience: Duration,
}

/// What the workflow file and the command line say of traces. Each goes before the variables.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConfiguredTraces<'a> {
    pub endpoint: Option<&'a str>,
    /// How to send.
    pub protocol: Option<Protocol>,
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
        OtlpSettings::new(Signal::Traces, endpoint, origin, None).map(Self::over)
    }

    fn over(otlp: OtlpSettings) -> Self {
        let request = usual_request(otlp.protocol);
        Self {
            otlp,
            sampling: ItemSampling::default(),
            service_name: SERVICE.to_owned(),
            resource: Vec::new(),
            queue: QUEUE,
            request,
            delay: DELAY,
            limits: SpanLimits::default(),
            patience: PATIENCE,
        }
    }

    /// What the command line or the workflow file say, and the variables that `docs/tracing.md` lists. What the exporter looks up
    /// itself (compression) is not among the settings.
    pub fn resolve(
        configured: ConfiguredTraces<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ResolvedTraces, TelemetryError> {
        let mut variables = Variables::new(&variable);
        let address = Configured { endpoint: configured.endpoint, protocol: configured.protocol };
        let mut settings = None;
        if let Some(otlp) = OtlpSettings::resolve(Signal::Traces, address, &mut variables)? {
            let read = Self::over(otlp).read(&mut variables);
            settings = sampler(&mut variables).map(|ratio| Self {
                sampling: ItemSampling { ratio: configured.items.unwrap_or(ratio), slow: configured.slow },
                patience: configured.flush_timeout.unwrap_or(PATIENCE),
                ..read
            });
            if settings.is_none() && configured.endpoint.is_some() {
                let name = variables.text(SAMPLER).unwrap_or_default();
                variables.warn(format!("no traces are sent, because `{SAMPLER}` is `{name}`"));
            }
        }
        Ok(ResolvedTraces { settings, warnings: variables.warnings })
    }

    /// What the variables say of the program, the queue and the size of a span.
    fn read(mut self, variables: &mut Variables<'_>) -> Self {
        let (name, resource) = variables.resource();
        self.service_name = name.unwrap_or(self.service_name);
        self.resource = resource;
        let mut count = |name: &str, least: usize, usual: usize| {
            variables.count(variables.one(name), least..=LARGEST_QUEUE).unwrap_or(usual)
        };
        self.queue = count("OTEL_BSP_MAX_QUEUE_SIZE", 1, self.queue);
        self.request = count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, self.request).min(self.queue);
        self.limits = SpanLimits {
            attributes: count("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", 0, self.limits.attributes),
            events: count("OTEL_SPAN_EVENT_COUNT_LIMIT", 0, self.limits.events),
            links: count("OTEL_SPAN_LINK_COUNT_LIMIT", 0, self.limits.links),
        };
        self.delay = variables.milliseconds(variables.one("OTEL_BSP_SCHEDULE_DELAY")).unwrap_or(self.delay);
        if let Some(limit) = variables.milliseconds(variables.one("OTEL_BSP_EXPORT_TIMEOUT")) {
            self.otlp.timeout = self.otlp.timeout.min(limit);
        }
        for name in NOT_LIMITED {
            if variables.one(name).is_some() {
                variables.warn(format!(
                    "`{name}` is ignored: only the number of attributes, events and links of a span can be limited, by \
                     `OTEL_SPAN_..._COUNT_LIMIT`, and of the words of an error 1,024 bytes are kept"
                ));
            }
        }
        self
    }
}

const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SHARE: &str = "OTEL_TRACES_SAMPLER_ARG";
/// Variables of the specification for which there is nothing here that they could limit.
const NOT_LIMITED: [&str; 5] = [
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
];

/// The share of the items as `OTEL_TRACES_SAMPLER` says for a program that makes the first span of each of its traces, so that
/// `parentbased_` makes no difference. `None`: nothing is traced.
fn sampler(variables: &mut Variables<'_>) -> Option<f64> {
    let expected = "sampler; they are `always_on`, `always_off`, `traceidratio`, `parentbased_always_on`, `parentbased_always_off` and \
                    `parentbased_traceidratio`";
    let known = |name: &str| {
        let name = name.strip_prefix("parentbased_").unwrap_or(name);
        ["always_on", "always_off", "traceidratio"].into_iter().find(|known| *known == name)
    };
    let share = |value: &str| value.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    match variables.read(variables.one(SAMPLER), expected, known) {
        None => Some(USUAL_SHARE),
        Some("always_off") => None,
        Some("traceidratio") => {
            Some(variables.read(variables.one(SHARE), "share from 0.0 to 1.0", share).unwrap_or(1.0))
        }
        Some(_) => Some(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: ConfiguredTraces<'static> = ConfiguredTraces {
        endpoint: Some("http://c:1"),
        protocol: None,
        items: None,
        slow: None,
        flush_timeout: None,
    };

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
    fn nothing_is_sent_without_settings() {
        assert_eq!(resolve(ConfiguredTraces::default(), &[]), ResolvedTraces::default());
    }

    #[test]
    fn one_item_in_a_hundred_is_traced_unless_the_sampler_variables_say_otherwise() {
        assert_eq!(resolved(&[]).sampling, ItemSampling { ratio: 0.01, slow: None });
        let ratio = |name, arg| resolved(&[(SAMPLER, name), (SHARE, arg)]).sampling.ratio;
        assert_eq!(ratio("always_on", ""), 1.0);
        assert_eq!(ratio("parentbased_always_on", "0.5"), 1.0);
        assert_eq!(ratio("traceidratio", "0.25"), 0.25);
        assert_eq!(ratio("parentbased_traceidratio", "0"), 0.0);
        assert_eq!(ratio("traceidratio", ""), 1.0);
    }

    #[test]
    fn what_is_declared_as_a_default_is_the_default() {
        let declared = |name: &str| {
            orchestra_plan::keys::TELEMETRY.iter().find(|key| key.name == name).map(|key| key.default)
        };
        let settings = resolved(&[]);
        assert_eq!(declared("sample"), Some(&*settings.sampling.ratio.to_string()));
        assert_eq!(declared("flush_timeout"), Some(&*format!("\"{:?}\"", settings.patience)));
    }

    #[test]
    fn the_file_goes_before_the_variables() {
        let second = Some(Duration::from_secs(1));
        let configured = ConfiguredTraces { items: Some(0.01), slow: second, flush_timeout: second, ..TO };
        let settings = resolve(configured, &[(SAMPLER, "traceidratio"), (SHARE, "0.5")]).settings.unwrap();
        assert_eq!(
            (settings.sampling.ratio, settings.sampling.slow, Some(settings.patience)),
            (0.01, second, second)
        );
    }

    #[test]
    fn a_wrong_sampler_or_share_is_ignored_with_a_warning() {
        let r = resolve(TO, &[(SAMPLER, "xray")]);
        assert_eq!(r.settings.unwrap().sampling.ratio, USUAL_SHARE);
        assert!(r.warnings[0].contains("`xray`"));
        for bad in ["2", "-0.1", "NaN", "half"] {
            let r = resolve(TO, &[(SAMPLER, "traceidratio"), (SHARE, bad)]);
            assert_eq!(r.settings.unwrap().sampling.ratio, 1.0);
            assert_eq!(r.warnings.len(), 1);
        }
    }

    #[test]
    fn a_sampler_that_keeps_nothing_is_a_switch() {
        for off in ["always_off", "parentbased_always_off"] {
            let r = resolve(TO, &[(SAMPLER, off)]);
            assert!(r.settings.is_none() && r.warnings[0].contains(SAMPLER), "{r:?}");
            let address = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1");
            let r = resolve(ConfiguredTraces::default(), &[(SAMPLER, off), address]);
            assert_eq!(r, ResolvedTraces::default());
        }
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

    #[test]
    fn the_queue_is_as_the_variables_ask_within_bounds() {
        let settings = resolved(&[
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "700"),
        ]);
        assert_eq!((settings.queue, settings.request), (100, 100));
        assert_eq!(settings.delay, Duration::from_millis(50));
        assert_eq!(settings.otlp.timeout, Duration::from_millis(700));
        let r = resolve(TO, &[("OTEL_BSP_MAX_QUEUE_SIZE", "0"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many")]);
        let settings = r.settings.unwrap();
        let usual = usual_request(Protocol::HttpProtobuf);
        assert_eq!((settings.queue, settings.request, r.warnings.len()), (QUEUE, usual, 2));
    }

    #[test]
    fn a_span_is_limited_as_the_variables_say_and_a_limit_that_is_not_kept_is_told() {
        let limits = resolved(&[
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "8"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "0"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "2"),
        ])
        .limits;
        assert_eq!(limits, SpanLimits { attributes: 8, events: 0, links: 2 });
        assert_eq!(resolved(&[]).limits, SpanLimits { attributes: 128, events: 128, links: 128 });
        for name in NOT_LIMITED {
            let r = resolve(TO, &[(name, "10")]);
            assert_eq!(r.settings, Some(resolved(&[])));
            assert!(
                r.warnings.len() == 1 && r.warnings[0].contains(&format!("`{name}`")),
                "{:?}",
                r.warnings
            );
        }
    }
}
