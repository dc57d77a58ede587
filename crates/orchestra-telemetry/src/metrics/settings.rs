//! Where metrics go, from the command line, the workflow file and the `OTEL_*` variables. Pure: variables come in as a function.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use crate::TelemetryError;
use crate::otlp::variables::Variables;
use crate::otlp::{Configured, OtlpSettings, Signal};

/// How often metrics are sent, as the specification has it.
const INTERVAL: Duration = Duration::from_secs(60);
/// The port that OpenTelemetry gives to such a page.
const USUAL_PORT: u16 = 9464;

/// Where metrics go. The default: nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricSettings {
    pub page: Option<PageAddress>,
    pub otlp: Option<MetricExport>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricExport {
    pub to: OtlpSettings,
    /// How often; once more at the end.
    pub every: Duration,
    /// What the numbers say they are of, besides the program's name and version: pairs of an attribute and its value.
    pub resource: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageAddress {
    /// Port 0: any that is free.
    pub address: SocketAddr,
    /// Where it was given, for messages.
    pub origin: &'static str,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedMetrics {
    pub settings: MetricSettings,
    /// What was ignored and why, as sentences for the log.
    pub warnings: Vec<String>,
}

impl PageAddress {
    /// Reads `HOST:PORT`, or a port of this machine alone. Names are looked up.
    ///
    /// # Errors
    /// It is neither, or the name is unknown.
    pub fn read(text: &str, origin: &'static str) -> Result<Self, TelemetryError> {
        let text = text.trim();
        let found = match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
            Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
            // No name has a `/`: an address such as `http://localhost:9464` is not looked up.
            Err(_) if text.contains('/') => Err("it is no socket address".to_owned()),
            Err(_) => text
                .to_socket_addrs()
                .map_err(|error| error.to_string())
                .and_then(|mut found| found.next().ok_or_else(|| "the host has no address".to_owned())),
        };
        found.map(|address| Self { address, origin }).map_err(|why| TelemetryError::Page {
            address: text.to_owned(),
            origin,
            reason: format!(
                "expected `HOST:PORT` to listen on, such as `127.0.0.1:{USUAL_PORT}`, or a port ({why})"
            ),
        })
    }
}

impl MetricSettings {
    /// `page` is the address from the command line or the workflow file. Without one, `OTEL_METRICS_EXPORTER=prometheus` asks for a page
    /// at `OTEL_EXPORTER_PROMETHEUS_HOST` and `_PORT`. `otlp` is what they say of the collector.
    pub fn resolve(
        page: Option<&str>,
        otlp: Configured<'_>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<ResolvedMetrics, TelemetryError> {
        let mut variables = Variables::new(variable);
        let exporters = variables.exporters(Signal::Metrics);
        let asks_for_page = exporters.iter().any(|name| name == "prometheus");
        let page = match page {
            Some(page) => Some(PageAddress::read(page, "`telemetry.metrics` or `--metrics`")?),
            None if asks_for_page && !variables.is_disabled() => {
                let of_page = |name: &str| variables.text(&format!("OTEL_EXPORTER_PROMETHEUS_{name}"));
                let host = of_page("HOST").unwrap_or_else(|| "127.0.0.1".to_owned());
                let port = of_page("PORT").unwrap_or_else(|| USUAL_PORT.to_string());
                let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
                let host = if is_bare_ipv6 { format!("[{host}]") } else { host };
                Some(PageAddress::read(&format!("{host}:{port}"), "`OTEL_METRICS_EXPORTER`")?)
            }
            None => None,
        };
        // Where a page alone is asked for, nothing is sent.
        let to = match asks_for_page && exporters.iter().all(|name| name == "prometheus") {
            true => None,
            false => OtlpSettings::resolve(Signal::Metrics, otlp, &mut variables)?,
        };
        let otlp = to.map(|to| {
            let limit =
                variables.milliseconds(variables.one("OTEL_METRIC_EXPORT_TIMEOUT")).unwrap_or(to.timeout);
            let (name, mut resource) = variables.resource();
            resource.extend(name.map(|name| ("service.name".to_owned(), name)));
            MetricExport {
                to: OtlpSettings { timeout: to.timeout.min(limit), ..to },
                every: variables
                    .milliseconds(variables.one("OTEL_METRIC_EXPORT_INTERVAL"))
                    .unwrap_or(INTERVAL),
                resource,
            }
        });
        Ok(ResolvedMetrics { settings: MetricSettings { page, otlp }, warnings: variables.warnings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(page: Option<&str>, endpoint: Option<&str>, variables: &[(&str, &str)]) -> ResolvedMetrics {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        MetricSettings::resolve(page, Configured { endpoint, protocol: None }, &variable).unwrap()
    }

    #[test]
    fn nothing_is_served_or_sent_without_settings() {
        assert_eq!(resolve(None, None, &[]), ResolvedMetrics::default());
    }

    #[test]
    fn a_port_alone_is_one_of_this_machine_alone() {
        for text in ["9464", ":9464", "127.0.0.1:9464", " 127.0.0.1:9464 "] {
            let page = PageAddress::read(text, "a test").unwrap();
            assert_eq!(page.address, SocketAddr::from(([127, 0, 0, 1], 9464)), "{text}");
        }
        assert!(PageAddress::read("0.0.0.0:0", "a test").unwrap().address.ip().is_unspecified());
        assert!(PageAddress::read("localhost:9464", "a test").unwrap().address.ip().is_loopback());
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_origin() {
        for text in ["", "127.0.0.1", "http://localhost:9464", "localhost:", ":99999", "a b:1:2:3x"] {
            let error = PageAddress::read(text, "`--metrics`").unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("`--metrics`"), "{error}");
        }
    }

    #[test]
    fn the_usual_variables_ask_for_a_page() {
        let asked = [("OTEL_METRICS_EXPORTER", "prometheus"), ("OTEL_EXPORTER_PROMETHEUS_PORT", "9999")];
        let resolved = resolve(None, None, &asked);
        assert_eq!(resolved.settings.page.unwrap().address.to_string(), "127.0.0.1:9999");
        assert!(resolved.settings.otlp.is_none() && resolved.warnings.is_empty(), "{resolved:?}");
        let alone = resolve(None, Some("http://c:4318"), &asked);
        assert!(
            alone.settings.otlp.is_none() && alone.warnings.is_empty(),
            "a page alone is asked for: {alone:?}"
        );
        let host = [("OTEL_METRICS_EXPORTER", "prometheus"), ("OTEL_EXPORTER_PROMETHEUS_HOST", "::1")];
        assert_eq!(resolve(None, None, &host).settings.page.unwrap().address.to_string(), "[::1]:9464");
        let given = resolve(Some("127.0.0.1:1"), None, &asked);
        assert_eq!(given.settings.page.unwrap().address.port(), 1, "what is given goes before the variables");
    }

    #[test]
    fn metrics_go_to_the_collector_of_the_traces_at_the_interval_of_the_variables() {
        let resolved = resolve(None, Some("http://c:4318"), &[("OTEL_METRIC_EXPORT_INTERVAL", "250")]);
        let otlp = resolved.settings.otlp.unwrap();
        assert_eq!(
            (otlp.to.endpoint.as_str(), otlp.every),
            ("http://c:4318/v1/metrics", Duration::from_millis(250))
        );
        let wrong = resolve(None, Some("http://c:4318"), &[("OTEL_METRIC_EXPORT_INTERVAL", "soon")]);
        assert!(wrong.warnings[0].contains("`soon`"), "{wrong:?}");
        assert_eq!(wrong.settings.otlp.unwrap().every, INTERVAL);
        let hasty = resolve(None, Some("http://c:4318"), &[("OTEL_METRIC_EXPORT_TIMEOUT", "70")]);
        assert_eq!(hasty.settings.otlp.unwrap().to.timeout, Duration::from_millis(70));
        let none = resolve(None, Some("http://c:4318"), &[("OTEL_METRICS_EXPORTER", "none")]);
        assert!(none.settings.otlp.is_none());
        let both = resolve(None, Some("http://c:4318"), &[("OTEL_METRICS_EXPORTER", "otlp,prometheus")]);
        assert!(both.settings.otlp.is_some() && both.settings.page.is_some());
    }

    #[test]
    fn the_usual_variables_say_what_the_numbers_are_of() {
        let variables =
            [("OTEL_RESOURCE_ATTRIBUTES", "team=vision,service.name=a"), ("OTEL_SERVICE_NAME", "b")];
        let resource = resolve(None, Some("http://c:4318"), &variables).settings.otlp.unwrap().resource;
        let pairs: Vec<_> = resource.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("team", "vision"), ("service.name", "b")]);
    }
}
