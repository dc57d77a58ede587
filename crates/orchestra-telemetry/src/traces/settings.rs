//! Where traces go and how many, from the workflow's settings and the `OTEL_*` variables. Pure: variables come in as a function. What the SDK reads of
//! them itself (headers, compression, the delay of a batch, the resource) is not here.

use std::time::Duration;

use http::Uri;
use orchestra_plan::Choice as _;
pub use orchestra_plan::OtlpProtocol as Protocol;
use orchestra_plan::TelemetryPlan;

use crate::TelemetryError;

/// How long the end of a run waits for spans that are still to be sent.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long one request may take with its retries, as the specification has it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Spans that may wait. The 2,048 of the specification overflow in bursts; a span is about a KiB.
const QUEUE: usize = 65_536;
/// The ports on which collectors take OTLP over HTTP and over gRPC.
const HTTP_PORT: u16 = 4318;
const GRPC_PORT: u16 = 4317;
/// Whether this build can send over gRPC.
const HAS_GRPC: bool = cfg!(feature = "grpc");
/// What follows a general address over HTTP.
const HTTP_PATH: &str = "/v1/traces";

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
    /// The whole address: over HTTP with its path, over gRPC without one.
    pub endpoint: String,
    /// Where the address was given, for messages.
    pub origin: String,
    pub protocol: Protocol,
    /// How long one request may take. A failed one is sent again only within this time.
    pub timeout: Duration,
    /// Items that take so long are traced. The run and its first batches always are, and what failed or was tried again.
    pub slow: Option<Duration>,
    /// Spans that may wait.
    pub queue: usize,
    /// Spans of a request.
    pub request: usize,
    /// How long the shutdown may wait for spans that are not made yet, and again for those that are not sent.
    pub patience: Duration,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResolvedTraces {
    /// `None`: no traces.
    pub settings: Option<TraceSettings>,
    /// What was ignored and why, as sentences for the log.
    pub warnings: Vec<String>,
}

impl TraceSettings {
    /// Traces to `endpoint`, an address that a person gave. `origin` says where. Without a `protocol`, port 4317 means
    /// gRPC, all else HTTP.
    pub fn new(endpoint: &str, origin: &str, protocol: Option<Protocol>) -> Result<Self, TelemetryError> {
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
            Protocol::HttpProtobuf => {
                let base = path.strip_suffix(HTTP_PATH).unwrap_or(path);
                format!("http://{authority}{base}{HTTP_PATH}")
            }
        };
        Ok(Self {
            endpoint: whole,
            origin: origin.to_owned(),
            protocol,
            timeout: TIMEOUT,
            slow: None,
            queue: QUEUE,
            request: usual_request(protocol),
            patience: PATIENCE,
        })
    }

    /// What the command line or the workflow file say in `configured`, and the variables that `docs/tracing.md` lists: those of traces before the general ones. No
    /// settings: nothing asks for traces, or a variable switches them off; where they were asked for in the file or the command, a warning says so.
    ///
    /// # Errors
    /// An address or a protocol that cannot be used: there is no good guess for those. Variables that ask for gRPC, where this build has none, are a
    /// warning.
    pub fn resolve(
        configured: &TelemetryPlan,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ResolvedTraces, TelemetryError> {
        let text = |name: &str| {
            variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let of_exporter = |setting: &str| {
            ["TRACES_", ""].into_iter().find_map(|of| {
                let name = format!("OTEL_EXPORTER_OTLP_{of}{setting}");
                Some((text(&name)?, name))
            })
        };
        let exporter = text("OTEL_TRACES_EXPORTER").unwrap_or_default().to_lowercase();
        let asks_for = |wanted: &str| exporter.split(',').any(|name| name.trim() == wanted);
        let protocol = match (configured.protocol, of_exporter("PROTOCOL")) {
            (None, Some((value, variable))) => match Protocol::named(&value) {
                None => return Err(TelemetryError::Protocol { variable, value }),
                known => known,
            },
            (configured, _) => configured,
        };
        let (endpoint, origin, is_whole) = match (&configured.otlp, of_exporter("ENDPOINT")) {
            (Some(endpoint), _) => {
                (endpoint.trim().to_owned(), "`telemetry.otlp` or `--otlp`".to_owned(), false)
            }
            (None, Some((endpoint, name))) => {
                (endpoint, format!("`{name}`"), name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            }
            (None, None) if asks_for("otlp") => {
                let port = if protocol == Some(Protocol::Grpc) { GRPC_PORT } else { HTTP_PORT };
                (format!("http://localhost:{port}"), "`OTEL_TRACES_EXPORTER`".to_owned(), false)
            }
            (None, None) => return Ok(ResolvedTraces::default()),
        };
        let disabled = text("OTEL_SDK_DISABLED").filter(|value| value.eq_ignore_ascii_case("true"));
        let disabled = disabled.map(|_| "`OTEL_SDK_DISABLED` is `true`");
        if let Some(switch) = disabled.or(asks_for("none").then_some("`OTEL_TRACES_EXPORTER` is `none`")) {
            let warning = configured.otlp.as_ref().map(|_| format!("no traces are sent, because {switch}"));
            return Ok(ResolvedTraces { settings: None, warnings: warning.into_iter().collect() });
        }
        let settings = match Self::new(&endpoint, &origin, protocol) {
            // The environment is shared with other programs, which can send so.
            Err(error @ TelemetryError::NoGrpc { .. }) if configured.otlp.is_none() => {
                return Ok(ResolvedTraces { settings: None, warnings: vec![error.to_string()] });
            }
            settings => settings?,
        };
        let milliseconds =
            of_exporter("TIMEOUT").and_then(|(value, _)| value.parse().ok()).filter(|ms| *ms > 0);
        Ok(ResolvedTraces {
            settings: Some(Self {
                // An address for traces alone is taken as it is.
                endpoint: if is_whole { endpoint } else { settings.endpoint },
                timeout: milliseconds.map_or(TIMEOUT, Duration::from_millis),
                slow: configured.slow,
                patience: configured.flush_timeout.unwrap_or(PATIENCE),
                ..settings
            }),
            warnings: Vec::new(),
        })
    }

    pub(super) fn refused(&self, reason: &str) -> TelemetryError {
        refused(&self.endpoint, &self.origin, reason)
    }
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
