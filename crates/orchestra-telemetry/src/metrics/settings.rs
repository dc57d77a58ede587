//! Where the page of metrics is served, from the command line, the workflow file and the `OTEL_*` variables. Pure: variables come in as a function.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};

use crate::TelemetryError;

/// The port that OpenTelemetry gives to such a page.
const USUAL_PORT: u16 = 9464;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageAddress {
    /// Port 0: any that is free.
    pub address: SocketAddr,
    /// Where it was given, for messages.
    pub origin: &'static str,
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

    /// `page` is the address from the command line or the workflow file. Without one, `OTEL_METRICS_EXPORTER=prometheus` asks for a page
    /// at `OTEL_EXPORTER_PROMETHEUS_HOST` and `_PORT`. `None`: nothing asks for it.
    ///
    /// # Errors
    /// As [`PageAddress::read`].
    pub fn resolve(
        page: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TelemetryError> {
        let text = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        if let Some(page) = page {
            return Self::read(page, "`telemetry.metrics` or `--metrics`").map(Some);
        }
        let exporters = text("OTEL_METRICS_EXPORTER").unwrap_or_default().to_lowercase();
        let is_disabled = text("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if is_disabled || !exporters.split(',').any(|name| name.trim() == "prometheus") {
            return Ok(None);
        }
        let host = text("OTEL_EXPORTER_PROMETHEUS_HOST").unwrap_or_else(|| "127.0.0.1".to_owned());
        let port = text("OTEL_EXPORTER_PROMETHEUS_PORT").unwrap_or_else(|| USUAL_PORT.to_string());
        let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
        let host = if is_bare_ipv6 { format!("[{host}]") } else { host };
        Self::read(&format!("{host}:{port}"), "`OTEL_METRICS_EXPORTER`").map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(page: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        PageAddress::resolve(page, &variable).unwrap().map(|page| page.address.to_string())
    }

    #[test]
    fn nothing_is_served_without_settings() {
        assert_eq!(resolve(None, &[]), None);
        assert_eq!(resolve(None, &[("OTEL_METRICS_EXPORTER", "otlp")]), None);
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
        let asked =
            [("OTEL_METRICS_EXPORTER", "otlp, prometheus"), ("OTEL_EXPORTER_PROMETHEUS_PORT", "9999")];
        assert_eq!(resolve(None, &asked).as_deref(), Some("127.0.0.1:9999"));
        let host = [("OTEL_METRICS_EXPORTER", "prometheus"), ("OTEL_EXPORTER_PROMETHEUS_HOST", "::1")];
        assert_eq!(resolve(None, &host).as_deref(), Some("[::1]:9464"));
        let given = resolve(Some("127.0.0.1:1"), &asked);
        assert_eq!(given.as_deref(), Some("127.0.0.1:1"), "the command goes before the variables");
        assert_eq!(resolve(None, &[asked[0], ("OTEL_SDK_DISABLED", "true")]), None);
    }
}
