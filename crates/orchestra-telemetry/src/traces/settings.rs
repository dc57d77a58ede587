//! Where traces go and how many, from the workflow's settings and the `OTEL_*` variables. Pure: variables come in as a function.

use std::time::Duration;

use super::ItemSampling;
use super::sampling::USUAL_SHARE;
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
/// Spans of a request. A span is 6 KiB at most, nearly all of it the words of an error and the name of a file, and collectors take
/// 4 MiB over gRPC.
const REQUEST: usize = 512;
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

    /// What the command line or the workflow file say, and the variables that `docs/tracing.md` lists. What the SDK and its exporter look up
    /// themselves (limits of spans, compression) is not among the settings.
    ///
    /// # Errors
    /// An address or a protocol that cannot be used.
    pub fn resolve(
        configured: ConfiguredTraces<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ResolvedTraces, TelemetryError> {
        let mut variables = Variables::new(&variable);
        let address = Configured { endpoint: configured.endpoint, protocol: configured.protocol };
        let mut settings = None;
        if let Some(otlp) = OtlpSettings::resolve(Signal::Traces, address, &mut variables)? {
            let read = Self::over(otlp).read(&mut variables);
            settings = sampler(&mut variables).map(|(ratio, follow_parent)| {
                let ratio = configured.items.unwrap_or(ratio);
                let sampling = ItemSampling { ratio, follow_parent, slow: configured.slow };
                Self { sampling, patience: configured.flush_timeout.unwrap_or(PATIENCE), ..read }
            });
            if settings.is_none() && configured.endpoint.is_some() {
                let name = variables.text(SAMPLER).unwrap_or_default();
                variables.warn(format!("no traces are sent, because `{SAMPLER}` is `{name}`"));
            }
        }
        Ok(ResolvedTraces { settings, warnings: variables.warnings })
    }

    /// What the variables say of the program and of the queue.
    fn read(mut self, variables: &mut Variables<'_>) -> Self {
        let (name, resource) = variables.resource();
        self.service_name = name.unwrap_or(self.service_name);
        self.resource = resource;
        self.queue =
            variables.count(variables.one("OTEL_BSP_MAX_QUEUE_SIZE"), LARGEST_QUEUE).unwrap_or(QUEUE);
        let request = variables
            .count(variables.one("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), LARGEST_QUEUE)
            .unwrap_or(REQUEST);
        self.request = request.min(self.queue);
        self.delay = variables.milliseconds(variables.one("OTEL_BSP_SCHEDULE_DELAY")).unwrap_or(DELAY);
        if let Some(limit) = variables.milliseconds(variables.one("OTEL_BSP_EXPORT_TIMEOUT")) {
            self.otlp.timeout = self.otlp.timeout.min(limit);
        }
        self
    }
}

const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SHARE: &str = "OTEL_TRACES_SAMPLER_ARG";

/// The share of the items, and whether an item follows its parent, as `OTEL_TRACES_SAMPLER` says for a program that makes the first span
/// of each of its traces. `None`: nothing is traced.
fn sampler(variables: &mut Variables<'_>) -> Option<(f64, bool)> {
    let expected = "sampler; they are `always_on`, `always_off`, `traceidratio`, `parentbased_always_on`, `parentbased_always_off` and \
                    `parentbased_traceidratio`";
    let known = |name: &str| {
        let (name, follows) = name.strip_prefix("parentbased_").map_or((name, false), |rest| (rest, true));
        ["always_on", "always_off", "traceidratio"].into_iter().find(|n| *n == name).map(|n| (n, follows))
    };
    let share = |value: &str| value.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    match variables.read(variables.one(SAMPLER), expected, known) {
        None => Some((USUAL_SHARE, true)),
        Some(("always_off", _)) => None,
        Some(("traceidratio", follows)) => Some((
            variables.read(variables.one(SHARE), "share from 0.0 to 1.0", share).unwrap_or(1.0),
            follows,
        )),
        Some((_, follows)) => Some((1.0, follows)),
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
    fn nobody_asks_and_nothing_is_sent() {
        assert_eq!(resolve(ConfiguredTraces::default(), &[]), ResolvedTraces::default());
    }

    #[test]
    fn one_item_in_a_hundred_is_traced_unless_the_sampler_variables_say_otherwise() {
        assert_eq!((resolved(&[]).sampling.ratio, resolved(&[]).sampling.follow_parent), (0.01, true));
        let sampling = |name, arg| {
            let settings = resolved(&[(SAMPLER, name), (SHARE, arg)]);
            (settings.sampling.ratio, settings.sampling.follow_parent)
        };
        assert_eq!(sampling("always_on", ""), (1.0, false));
        assert_eq!(sampling("parentbased_always_on", "0.5"), (1.0, true));
        assert_eq!(sampling("traceidratio", "0.25"), (0.25, false));
        assert_eq!(sampling("parentbased_traceidratio", "0"), (0.0, true));
        assert_eq!(sampling("traceidratio", ""), (1.0, false));
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
        assert_eq!((settings.queue, settings.request, r.warnings.len()), (QUEUE, REQUEST, 2));
    }
}
