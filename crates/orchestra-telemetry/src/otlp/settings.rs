//! Where a signal is sent and how, from the workflow's setting and the `OTEL_*` variables. Pure: variables come in as a function.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::variables::Variables;
use super::{Protocol, Signal};
use crate::TelemetryError;

/// How long one request may take with its retries, as the specification has it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The ports on which collectors take OTLP over HTTP and over gRPC.
const HTTP_PORT: u16 = 4318;
const GRPC_PORT: u16 = 4317;
/// Whether this build can send over gRPC.
const HAS_GRPC: bool = cfg!(feature = "grpc");
/// Where an address comes from that a person gave.
const CONFIGURED: &str = "`telemetry.otlp` or `--otlp`";

/// Where one signal is sent, and how.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The whole address: over HTTP with its path, over gRPC without one.
    pub endpoint: String,
    /// Where the address was given, for messages.
    pub origin: &'static str,
    /// How it is sent.
    pub protocol: Protocol,
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
    /// How to send.
    pub protocol: Option<Protocol>,
}

impl OtlpSettings {
    /// For an address that somebody gave. Without a `protocol`, port 4317 means gRPC, all else HTTP.
    pub fn new(
        signal: Signal,
        endpoint: &str,
        origin: &'static str,
        protocol: Option<Protocol>,
    ) -> Result<Self, TelemetryError> {
        let address = Address::read(endpoint, origin)?;
        let protocol = protocol.unwrap_or_else(|| address.usual_protocol());
        if protocol == Protocol::Grpc && !HAS_GRPC {
            return Err(address.without_grpc());
        }
        let endpoint = match protocol {
            Protocol::Grpc => address.for_grpc()?,
            Protocol::HttpProtobuf => address.for_http(signal),
        };
        Ok(Self { endpoint, origin, protocol, headers: Vec::new(), timeout: TIMEOUT })
    }

    /// `configured` goes before the variables of the signal (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`), and they before the general ones
    /// (`OTEL_EXPORTER_OTLP_ENDPOINT`). `None`: nobody asks for this signal, or `OTEL_SDK_DISABLED` or its exporter variable switches it
    /// off; where it was asked for in the file or the command, a warning says so. What is wrong in a variable is ignored with a warning,
    /// but for the address and the protocol: there is no good guess for those. Variables that ask for gRPC, where this build has none, are
    /// no mistake: a warning says what to write instead, and nothing is sent.
    pub fn resolve(
        signal: Signal,
        configured: Configured<'_>,
        variable: &dyn Fn(&str) -> Option<String>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Self>, TelemetryError> {
        let mut variables = Variables::new(variable, warnings);
        let exporter = exporter(signal, &mut variables);
        let protocol = match configured.protocol {
            Some(protocol) => Some(protocol),
            None => protocol(signal, &variables)?,
        };
        let Some(given) = endpoint(signal, configured, protocol, exporter, &variables) else {
            return Ok(None);
        };
        if let Some(switch) = switched_off(signal, exporter, &variables) {
            if configured.endpoint.is_some() {
                variables.warn(format!("no {} are sent, because {switch}", signal.name()));
            }
            return Ok(None);
        }
        let mut settings = match Self::new(signal, &given.endpoint, given.origin, protocol) {
            Err(error @ TelemetryError::NoGrpc { .. }) if configured.endpoint.is_none() => {
                variables.warn(format!("nothing is sent: {error}"));
                return Ok(None);
            }
            settings => settings?,
        };
        if given.verbatim && settings.protocol == Protocol::HttpProtobuf {
            settings.endpoint = given.endpoint;
        }
        settings.headers = headers(signal, &mut variables);
        settings.timeout = variables.milliseconds(&names(signal, "TIMEOUT")).unwrap_or(TIMEOUT);
        Ok(Some(settings))
    }

    /// The headers as requests have them.
    pub(crate) fn header_map(&self) -> Result<HeaderMap, TelemetryError> {
        let mut map = HeaderMap::new();
        for (name, value) in &self.headers {
            let pair = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            let (key, value) = pair.ok_or_else(|| self.refused(&format!("`{name}` cannot be a header")))?;
            map.append(key, value);
        }
        Ok(map)
    }

    /// The address cannot be used, for this reason.
    pub(crate) fn refused(&self, reason: &str) -> TelemetryError {
        refused(&self.endpoint, self.origin, reason)
    }
}

impl std::fmt::Debug for OtlpSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values of headers are secrets.
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OtlpSettings")
            .field("endpoint", &self.endpoint)
            .field("origin", &self.origin)
            .field("protocol", &self.protocol)
            .field("headers", &headers)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// The variables of a setting, the signal's own first.
fn names(signal: Signal, setting: &str) -> [String; 2] {
    [
        format!("OTEL_EXPORTER_OTLP_{}_{setting}", signal.variable_part()),
        format!("OTEL_EXPORTER_OTLP_{setting}"),
    ]
}

/// Pairs that can be headers of a request.
fn headers(signal: Signal, variables: &mut Variables<'_>) -> Vec<(String, String)> {
    let names = names(signal, "HEADERS");
    let mut headers = variables.pairs(&names);
    let name_byte = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    headers.retain(|(key, value)| {
        let good = key.bytes().all(name_byte) && value.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        if !good {
            let variable = variables.first(&names).map_or("", |(name, _)| name);
            let warning = format!("the header `{key}` of `{variable}` is left out: its name or its value has characters that no header has");
            variables.warn(warning);
        }
        good
    });
    headers
}

/// An address, and what is known of it.
struct Given {
    endpoint: String,
    origin: &'static str,
    /// Over HTTP nothing is appended.
    verbatim: bool,
}

fn endpoint(
    signal: Signal,
    configured: Configured<'_>,
    protocol: Option<Protocol>,
    exporter: Exporter,
    variables: &Variables<'_>,
) -> Option<Given> {
    if let Some(endpoint) = configured.endpoint {
        return Some(Given { endpoint: endpoint.trim().to_owned(), origin: CONFIGURED, verbatim: false });
    }
    let origins = match signal {
        Signal::Traces => ["`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`", "`OTEL_EXPORTER_OTLP_ENDPOINT`"],
        Signal::Metrics => ["`OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`", "`OTEL_EXPORTER_OTLP_ENDPOINT`"],
    };
    for (name, origin, verbatim) in
        names(signal, "ENDPOINT").iter().zip(origins).zip([true, false]).map(|((n, o), v)| (n, o, v))
    {
        if let Some(endpoint) = variables.text(name) {
            return Some(Given { endpoint, origin, verbatim });
        }
    }
    let asked = exporter == Exporter::Otlp;
    let endpoint = protocol.unwrap_or(Protocol::HttpProtobuf).usual_endpoint().to_owned();
    let origin = match signal {
        Signal::Traces => "`OTEL_TRACES_EXPORTER`",
        Signal::Metrics => "`OTEL_METRICS_EXPORTER`",
    };
    asked.then_some(Given { endpoint, origin, verbatim: false })
}

fn protocol(signal: Signal, variables: &Variables<'_>) -> Result<Option<Protocol>, TelemetryError> {
    let names = names(signal, "PROTOCOL");
    let Some((name, value)) = variables.first(&names) else { return Ok(None) };
    match Protocol::from_name(&value) {
        Some(protocol) => Ok(Some(protocol)),
        None => Err(TelemetryError::Protocol { variable: name.to_owned(), value }),
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
    let name = format!("OTEL_{}_EXPORTER", signal.variable_part());
    let Some(value) = variables.text(&name) else { return Exporter::Unset };
    let has = |wanted: &str| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted));
    if has("none") {
        return Exporter::None;
    }
    if has("otlp") {
        return Exporter::Otlp;
    }
    // A host's `prometheus` is no mistake, but not ours to serve.
    variables
        .warn(format!("`{name}` is `{value}`: only `otlp` and `none` mean something here; it is ignored"));
    Exporter::Unset
}

fn switched_off(signal: Signal, exporter: Exporter, variables: &Variables<'_>) -> Option<String> {
    if variables.text("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
        return Some("`OTEL_SDK_DISABLED` is `true`".to_owned());
    }
    (exporter == Exporter::None).then(|| format!("`OTEL_{}_EXPORTER` is `none`", signal.variable_part()))
}

/// An address of the form `http://HOST[:PORT][/PATH]`.
struct Address<'a> {
    whole: &'a str,
    origin: &'static str,
    authority: &'a str,
    /// Without the `/` at its end.
    path: &'a str,
}

impl<'a> Address<'a> {
    fn read(endpoint: &'a str, origin: &'static str) -> Result<Self, TelemetryError> {
        let refused = |reason: &str| refused(endpoint, origin, reason);
        if endpoint.starts_with("https://") {
            return Err(refused(
                "this build sends without encryption only; run a collector on this machine, write `http://localhost:4318`, \
                 and let it forward them",
            ));
        }
        let wrong = "expected `http://HOST:PORT` of a collector, for example `http://localhost:4318`";
        let rest = endpoint.strip_prefix("http://").ok_or_else(|| refused(wrong))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let printable = endpoint.bytes().all(|b| b.is_ascii_graphic());
        let port = port(authority);
        if authority.is_empty() || authority.starts_with(':') || !printable || port == Err(()) {
            return Err(refused(wrong));
        }
        if authority.contains('@') || rest.contains(['?', '#']) {
            return Err(refused(
                "expected an address without a name, a password or a query; keys go into `OTEL_EXPORTER_OTLP_HEADERS`",
            ));
        }
        Ok(Self { whole: endpoint, origin, authority, path: path.trim_end_matches('/') })
    }

    fn usual_protocol(&self) -> Protocol {
        let is_grpc = port(self.authority) == Ok(Some(GRPC_PORT)) && self.path.is_empty();
        if is_grpc { Protocol::Grpc } else { Protocol::HttpProtobuf }
    }

    fn without_grpc(&self) -> TelemetryError {
        let (host, port) = (host(self.authority), port(self.authority));
        let instead = match port {
            Ok(Some(GRPC_PORT)) => format!("port {GRPC_PORT} is for gRPC; write `http://{host}:{HTTP_PORT}`"),
            _ => format!(
                "the protocol `grpc` is asked for; leave it out, and write the address for HTTP, usually `http://{host}:{HTTP_PORT}`"
            ),
        };
        TelemetryError::NoGrpc { endpoint: self.whole.to_owned(), origin: self.origin, instead }
    }

    fn for_grpc(&self) -> Result<String, TelemetryError> {
        if self.path.is_empty() {
            return Ok(format!("http://{}", self.authority));
        }
        Err(refused(
            self.whole,
            self.origin,
            "over gRPC an address has no path; leave it out, or send over HTTP with `protocol = \"http/protobuf\"` or \
             `OTEL_EXPORTER_OTLP_PROTOCOL`",
        ))
    }

    /// A general address: the path of the signal is appended, in place of another signal's.
    fn for_http(&self, signal: Signal) -> String {
        let base = [Signal::Traces, Signal::Metrics]
            .iter()
            .find_map(|s| self.path.strip_suffix(s.http_path()))
            .unwrap_or(self.path);
        format!("http://{}{base}{}", self.authority, signal.http_path())
    }
}

fn refused(endpoint: &str, origin: &'static str, reason: &str) -> TelemetryError {
    TelemetryError::Endpoint { endpoint: endpoint.to_owned(), origin, reason: reason.to_owned() }
}

/// The authority without its port.
fn host(authority: &str) -> &str {
    match port(authority) {
        Ok(Some(_)) => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
        _ => authority,
    }
}

/// The port, if the authority has one; an error if it is none.
fn port(authority: &str) -> Result<Option<u16>, ()> {
    // `[::1]:4317`: the last colon is behind the bracket.
    let after_host = authority.rfind(']').map_or(authority, |end| &authority[end..]);
    match after_host.rsplit_once(':') {
        None => Ok(None),
        Some((_, port)) => port.parse().map(Some).map_err(drop),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
