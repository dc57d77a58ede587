//! Where a signal is sent and how, from the workflow's setting and the `OTEL_*` variables. Pure: variables come in as a function.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::variables::{Variables, exporter_variable};
use super::{Protocol, Signal};
use crate::TelemetryError;

/// How long one request may take with its retries, as the specification has it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The ports on which collectors take OTLP over HTTP and over gRPC.
const HTTP_PORT: u16 = 4318;
const GRPC_PORT: u16 = 4317;
/// Whether this build can send over gRPC.
const HAS_GRPC: bool = cfg!(feature = "grpc");

#[derive(Clone, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The whole address: over HTTP with its path, over gRPC without one.
    pub endpoint: String,
    pub origin: String,
    pub(crate) protocol: Protocol,
    /// Headers of each request, for example a key.
    pub headers: Vec<(String, String)>,
    /// How long one request may take. A failed one is sent again only within this time.
    pub timeout: Duration,
}

/// What the workflow file and the command line say. Each goes before the variables.
#[derive(Debug, Clone, Copy, Default)]
pub struct Configured<'a> {
    /// The collector's general address: `http://HOST:PORT`.
    pub endpoint: Option<&'a str>,
    pub protocol: Option<Protocol>,
}

impl OtlpSettings {
    /// For an address that a person gave. Without a `protocol`, port 4317 means gRPC, all else HTTP.
    pub fn new(
        signal: Signal,
        endpoint: &str,
        origin: &str,
        protocol: Option<Protocol>,
    ) -> Result<Self, TelemetryError> {
        let refused = |reason: &str| refused(endpoint, origin, reason);
        let address = address(endpoint).map_err(refused)?;
        let path = address.path().trim_end_matches('/');
        let has_grpc_port = address.port_u16() == Some(GRPC_PORT);
        let of_port = if has_grpc_port && path.is_empty() { Protocol::Grpc } else { Protocol::HttpProtobuf };
        let protocol = protocol.unwrap_or(of_port);
        let authority = address.authority().map_or("", |authority| authority.as_str());
        let whole = match protocol {
            Protocol::Grpc if !HAS_GRPC => {
                let why = match has_grpc_port {
                    true => "port 4317 is for gRPC",
                    false => "the protocol `grpc` is asked for, which can be left out",
                };
                let host = address.host().unwrap_or_default().to_owned();
                let (endpoint, origin) = (endpoint.to_owned(), origin.to_owned());
                return Err(TelemetryError::NoGrpc { endpoint, origin, why, host });
            }
            Protocol::Grpc if path.is_empty() => format!("http://{authority}"),
            Protocol::Grpc => {
                return Err(refused(
                    "over gRPC an address has no path; leave it out, or send over HTTP with `protocol = \"http/protobuf\"` or \
                     `OTEL_EXPORTER_OTLP_PROTOCOL`",
                ));
            }
            // The path of the signal is appended, in place of another signal's.
            Protocol::HttpProtobuf => {
                let signals = [Signal::Traces, Signal::Metrics];
                let base = signals.iter().find_map(|s| path.strip_suffix(&s.http_path())).unwrap_or(path);
                format!("http://{authority}{base}{}", signal.http_path())
            }
        };
        let origin = origin.to_owned();
        Ok(Self { endpoint: whole, origin, protocol, headers: Vec::new(), timeout: TIMEOUT })
    }

    /// `configured` goes before the variables of the signal (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`), and they before the general ones
    /// (`OTEL_EXPORTER_OTLP_ENDPOINT`). `None`: no setting asks for this signal, or `OTEL_SDK_DISABLED` or its exporter variable switches it
    /// off; where it was asked for in the file or the command, a warning says so. What is wrong in a variable is ignored with a warning, but
    /// for the address and the protocol: there is no good guess for those. Variables that ask for gRPC, where this build has none, are no
    /// mistake: a warning says what to write instead, and nothing is sent.
    pub(crate) fn resolve(
        signal: Signal,
        configured: Configured<'_>,
        variables: &mut Variables<'_>,
    ) -> Result<Option<Self>, TelemetryError> {
        let exporter = exporter(signal, variables);
        let protocol = match configured.protocol {
            Some(protocol) => Some(protocol),
            None => protocol(signal, variables)?,
        };
        // The address for one signal is taken as it is.
        let (endpoint, origin, is_whole) =
            match (configured.endpoint, variables.of_exporter(signal, "ENDPOINT")) {
                (Some(endpoint), _) => {
                    (endpoint.trim().to_owned(), "`telemetry.otlp` or `--otlp`".to_owned(), false)
                }
                (None, Some((name, endpoint))) => {
                    (endpoint, format!("`{name}`"), name != "OTEL_EXPORTER_OTLP_ENDPOINT")
                }
                (None, None) if exporter == Exporter::Otlp => {
                    let port = if protocol == Some(Protocol::Grpc) { GRPC_PORT } else { HTTP_PORT };
                    (format!("http://localhost:{port}"), format!("`{}`", exporter_variable(signal)), false)
                }
                (None, None) => return Ok(None),
            };
        let switch = match exporter {
            _ if variables.is_disabled() => Some("`OTEL_SDK_DISABLED` is `true`".to_owned()),
            Exporter::None => Some(format!("`{}` is `none`", exporter_variable(signal))),
            Exporter::Unset | Exporter::Otlp => None,
        };
        if let Some(switch) = switch {
            if configured.endpoint.is_some() {
                variables.warn(format!("no {} are sent, because {switch}", signal.name()));
            }
            return Ok(None);
        }
        let mut settings = match Self::new(signal, &endpoint, &origin, protocol) {
            Err(error @ TelemetryError::NoGrpc { .. }) if configured.endpoint.is_none() => {
                variables.warn(format!("nothing is sent: {error}"));
                return Ok(None);
            }
            settings => settings?,
        };
        if is_whole && settings.protocol == Protocol::HttpProtobuf {
            settings.endpoint = endpoint;
        }
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
        let Self { endpoint, origin, protocol, headers, timeout } = self;
        let headers: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "OtlpSettings({endpoint} of {origin}, {protocol:?}, {headers:?}, {timeout:?})")
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

fn protocol(signal: Signal, variables: &Variables<'_>) -> Result<Option<Protocol>, TelemetryError> {
    let Some((variable, value)) = variables.of_exporter(signal, "PROTOCOL") else { return Ok(None) };
    match Protocol::from_name(&value) {
        None => Err(TelemetryError::Protocol { variable, value }),
        protocol => Ok(protocol),
    }
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
            "this build sends without encryption only; run a collector on this machine, write `http://localhost:4318`, \
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
