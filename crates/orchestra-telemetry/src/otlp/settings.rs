//! Where a signal is sent and how, from the workflow's setting and the `OTEL_*` variables. Pure: variables come in as a function.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::Signal;
use super::variables::{Variables, exporter_variable};
use crate::TelemetryError;

/// How long one request may take with its retries, as the specification has it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The port on which collectors take OTLP over gRPC, which is not spoken here.
const GRPC_PORT: u16 = 4317;

#[derive(Clone, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The whole address, with its path.
    pub endpoint: String,
    pub origin: String,
    /// Headers of each request, for example a key.
    pub headers: Vec<(String, String)>,
    /// How long one request may take. A failed one is sent again only within this time.
    pub timeout: Duration,
}

impl OtlpSettings {
    /// For an address that a person gave.
    pub fn new(signal: Signal, endpoint: &str, origin: &str) -> Result<Self, TelemetryError> {
        let address = address(endpoint).map_err(|reason| refused(endpoint, origin, reason))?;
        let path = address.path().trim_end_matches('/');
        if address.port_u16() == Some(GRPC_PORT) && path.is_empty() {
            let host = address.host().unwrap_or_default().to_owned();
            let (endpoint, origin) = (endpoint.to_owned(), origin.to_owned());
            return Err(TelemetryError::PortOfGrpc { endpoint, origin, host });
        }
        // The path of the signal is appended, in place of another signal's.
        let signals = [Signal::Traces, Signal::Metrics];
        let base = signals.iter().find_map(|s| path.strip_suffix(&s.http_path())).unwrap_or(path);
        let authority = address.authority().map_or("", |authority| authority.as_str());
        let endpoint = format!("http://{authority}{base}{}", signal.http_path());
        Ok(Self { endpoint, origin: origin.to_owned(), headers: Vec::new(), timeout: TIMEOUT })
    }

    /// `configured`, the address from the command line or the workflow file, goes before the variables of the signal
    /// (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`), and they before the general ones (`OTEL_EXPORTER_OTLP_ENDPOINT`). `None`: no setting asks for
    /// this signal, or `OTEL_SDK_DISABLED` or its exporter variable switches it off; where it was asked for in the file or the command, a
    /// warning says so. What is wrong in a variable is ignored with a warning, but for an address that is none: there is no good guess for it.
    /// Variables that name the port of gRPC are no mistake: a warning says what to write instead, and nothing is sent.
    pub(crate) fn resolve(
        signal: Signal,
        configured: Option<&str>,
        variables: &mut Variables<'_>,
    ) -> Result<Option<Self>, TelemetryError> {
        let exporter = exporter(signal, variables);
        // The address for one signal is taken as it is.
        let (endpoint, origin, is_whole) = match (configured, variables.of_exporter(signal, "ENDPOINT")) {
            (Some(endpoint), _) => {
                (endpoint.trim().to_owned(), "`telemetry.otlp` or `--otlp`".to_owned(), false)
            }
            (None, Some((name, endpoint))) => {
                (endpoint, format!("`{name}`"), name != "OTEL_EXPORTER_OTLP_ENDPOINT")
            }
            (None, None) if exporter == Exporter::Otlp => {
                ("http://localhost:4318".to_owned(), format!("`{}`", exporter_variable(signal)), false)
            }
            (None, None) => return Ok(None),
        };
        let switch = match exporter {
            _ if variables.is_disabled() => Some("`OTEL_SDK_DISABLED` is `true`".to_owned()),
            Exporter::None => Some(format!("`{}` is `none`", exporter_variable(signal))),
            Exporter::Unset | Exporter::Otlp => None,
        };
        if let Some(switch) = switch {
            if configured.is_some() {
                variables.warn(format!("no {} are sent, because {switch}", signal.name()));
            }
            return Ok(None);
        }
        let mut settings = match Self::new(signal, &endpoint, &origin) {
            Err(error @ TelemetryError::PortOfGrpc { .. }) if configured.is_none() => {
                variables.warn(format!("nothing is sent: {error}"));
                return Ok(None);
            }
            settings => settings?,
        };
        if is_whole {
            settings.endpoint = endpoint;
        }
        let protocol = variables.of_exporter(signal, "PROTOCOL");
        variables.read(protocol, "protocol that is spoken here (`http/protobuf` is)", |p| {
            (p == "http/protobuf").then_some(())
        });
        settings.headers = headers(signal, variables);
        let timeout = variables.of_exporter(signal, "TIMEOUT");
        settings.timeout = variables.milliseconds(timeout).unwrap_or(TIMEOUT);
        Ok(Some(settings))
    }

    pub(crate) fn header_map(&self) -> Result<HeaderMap, TelemetryError> {
        let header = |(name, value): &(String, String)| {
            header(name, value).ok_or_else(|| self.refused(&format!("`{name}` cannot be a header")))
        };
        self.headers.iter().map(header).collect()
    }

    pub(crate) fn refused(&self, reason: &str) -> TelemetryError {
        refused(&self.endpoint, &self.origin, reason)
    }
}

impl std::fmt::Debug for OtlpSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values of headers are secrets.
        let Self { endpoint, origin, headers, timeout } = self;
        let headers: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "OtlpSettings({endpoint} of {origin}, {headers:?}, {timeout:?})")
    }
}

fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    HeaderName::try_from(name).ok().zip(HeaderValue::from_str(value).ok())
}

/// Pairs that can be headers of a request.
fn headers(signal: Signal, variables: &mut Variables<'_>) -> Vec<(String, String)> {
    let set = variables.of_exporter(signal, "HEADERS");
    let variable = set.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
    let mut headers = variables.pairs(set);
    headers.retain(|(key, value)| {
        let is_good = header(key, value).is_some();
        if !is_good {
            let warning = format!(
                "the header `{key}` of `{variable}` is left out: its name or its value has characters that no header has"
            );
            variables.warn(warning);
        }
        is_good
    });
    headers
}

/// What `OTEL_TRACES_EXPORTER` and its like say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exporter {
    Unset,
    Otlp,
    None,
}

fn exporter(signal: Signal, variables: &mut Variables<'_>) -> Exporter {
    let mut names = variables.exporters(signal);
    // The page of metrics is another matter.
    names.retain(|name| signal == Signal::Traces || name != "prometheus");
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("none") {
        return Exporter::None;
    }
    if has("otlp") {
        return Exporter::Otlp;
    }
    if !names.is_empty() {
        let (name, value) = (exporter_variable(signal), names.join(","));
        variables.warn(format!(
            "`{name}` is `{value}`: only `otlp` and `none` mean something here; it is ignored"
        ));
    }
    Exporter::Unset
}

/// An address of the form `http://HOST[:PORT][/PATH]`. The error is what is wrong, and what to write instead.
fn address(endpoint: &str) -> Result<Uri, &'static str> {
    const WRONG: &str = "expected `http://HOST:PORT` of a collector, for example `http://localhost:4318`";
    if endpoint.starts_with("https://") {
        return Err(
            "it is sent without encryption only; run a collector on this machine, write `http://localhost:4318`, \
             and let it forward them",
        );
    }
    let address: Uri = endpoint.parse().map_err(|_| WRONG)?;
    let (host, authority) = address.host().zip(address.authority()).ok_or(WRONG)?;
    if authority.as_str().contains('@') || endpoint.contains(['?', '#']) {
        return Err(
            "expected an address without a name, a password or a query; keys go into `OTEL_EXPORTER_OTLP_HEADERS`",
        );
    }
    let is_port = authority.as_str() == host || address.port_u16().is_some();
    let is_good = address.scheme_str() == Some("http") && !host.is_empty() && is_port;
    if is_good { Ok(address) } else { Err(WRONG) }
}

fn refused(endpoint: &str, origin: &str, reason: &str) -> TelemetryError {
    TelemetryError::Endpoint {
        endpoint: endpoint.to_owned(),
        origin: origin.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
