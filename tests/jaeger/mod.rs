//! A real Jaeger for tests: started on free ports of loopback where `scripts/jaeger.sh` has built one, asked through its query API, and
//! ended with the test. It judges no trace.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use orchestra_testkit::skip::{is_deep_check, skip};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::until;
use crate::spans::{Link, Span, Trace};

/// Names the program, for machines where it was built elsewhere.
const VARIABLE: &str = "ORCHESTRA_JAEGER";
/// Starts that may find a port taken by another process.
const STARTS: usize = 5;

/// A running Jaeger.
pub struct Jaeger {
    child: Child,
    ports: Ports,
    _dir: TempDir,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    grpc: u16,
    http: u16,
    query: u16,
    query_grpc: u16,
    health: u16,
}

impl Jaeger {
    /// A fresh one; `None` where there is none to start, and the test is skipped.
    #[track_caller]
    pub fn start() -> Option<Self> {
        if !is_deep_check("jaeger") {
            return None;
        }
        let program = match program() {
            Ok(program) => program,
            Err(why) => {
                skip(
                    &format!("no Jaeger ({why})"),
                    &format!("`scripts/jaeger.sh build`, or name one in `{VARIABLE}`"),
                );
                return None;
            }
        };
        (0..STARTS).find_map(|_| Self::start_once(&program)).or_else(|| panic!("Jaeger does not start"))
    }

    fn start_once(program: &Path) -> Option<Self> {
        let (dir, ports) = (tempfile::tempdir().unwrap(), Ports::free());
        let said = dir.path().join("jaeger.log");
        let child = Command::new(program)
            .arg("--config")
            .arg(top().join("tools/jaeger/config.yaml"))
            .args(ports.arguments())
            .stdin(Stdio::null())
            .stdout(File::create(dir.path().join("stdout")).unwrap())
            .stderr(File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let mut jaeger = Self { child, ports, _dir: dir };
        let mut ended = false;
        until("Jaeger is ready", || {
            ended = jaeger.child.try_wait().unwrap().is_some();
            ended || get(ports.health, "/status").is_ok_and(|status| status.contains("StatusOK"))
        });
        if ended {
            println!("Jaeger has ended: {}", std::fs::read_to_string(said).unwrap());
        }
        (!ended).then_some(jaeger)
    }

    /// Where it takes OTLP over HTTP.
    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.http)
    }

    /// Ids of the traces of a service that have a span of this name with this tag.
    pub fn find(&self, service: &str, operation: &str, tag: (&str, &str)) -> Vec<String> {
        let tags = encoded(&format!("{{\"{}\":\"{}\"}}", tag.0, tag.1));
        let path = format!("/api/traces?service={service}&operation={operation}&tags={tags}&limit=100000");
        let answer: Value = serde_json::from_str(&get(self.ports.query, &path).unwrap()).unwrap();
        assert!(answer["errors"].is_null(), "{path}: {answer}");
        let traces = answer["data"].as_array().cloned().unwrap_or_default();
        traces.iter().map(|trace| trace["traceID"].as_str().unwrap().to_owned()).collect()
    }

    /// The spans of a trace, as they were sent.
    pub fn trace(&self, id: &str) -> Trace {
        let text = get(self.ports.query, &format!("/api/v3/traces/{id}")).unwrap();
        let mut spans = Vec::new();
        // A large trace comes in several parts.
        for part in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            for resource in list(&part.unwrap()["result"]["resourceSpans"]) {
                for scope in list(&resource["scopeSpans"]) {
                    spans.extend(list(&scope["spans"]).iter().map(span));
                }
            }
        }
        Trace { spans }
    }
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn span(span: &Value) -> Span {
    let number = |key: &str| span[key].as_str().unwrap().parse().unwrap();
    let link = |link: &Value| Link {
        trace: text(&link["traceId"]),
        span: text(&link["spanId"]),
        attributes: attributes(link),
    };
    Span {
        name: text(&span["name"]),
        trace: text(&span["traceId"]),
        id: text(&span["spanId"]),
        parent: text(&span["parentSpanId"]),
        start: number("startTimeUnixNano"),
        end: number("endTimeUnixNano"),
        attributes: attributes(span),
        links: list(&span["links"]).iter().map(link).collect(),
        events: list(&span["events"]).iter().map(|e| (text(&e["name"]), attributes(e))).collect(),
        // The name of the value, or its number.
        failed: span["status"]["code"] == "STATUS_CODE_ERROR" || span["status"]["code"] == 2,
    }
}

fn attributes(of: &Value) -> BTreeMap<String, Value> {
    let value = |value: &Value| match value.as_object().unwrap().iter().next().unwrap() {
        // 64 bits are text in JSON.
        (kind, Value::String(number)) if kind == "intValue" => Value::from(number.parse::<i64>().unwrap()),
        (_, plain) => plain.clone(),
    };
    list(&of["attributes"]).iter().map(|a| (text(&a["key"]), value(&a["value"]))).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Ports {
    fn free() -> Self {
        // All are bound at once, so that they differ.
        let bound = [(); 5].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [grpc, http, query, query_grpc, health] = bound.map(|b| b.local_addr().unwrap().port());
        Self { grpc, http, query, query_grpc, health }
    }

    fn arguments(&self) -> Vec<String> {
        [
            ("receivers.otlp.protocols.grpc", self.grpc),
            ("receivers.otlp.protocols.http", self.http),
            ("extensions.jaeger_query.http", self.query),
            ("extensions.jaeger_query.grpc", self.query_grpc),
            ("extensions.healthcheckv2.http", self.health),
        ]
        .into_iter()
        .flat_map(|(what, port)| ["--set".to_owned(), format!("{what}.endpoint=127.0.0.1:{port}")])
        .collect()
    }
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The program, or why there is none. A path that was named and holds none is no reason to skip.
fn program() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        assert!(named.is_file(), "`{VARIABLE}` names `{}`, which is no program", named.display());
        return Ok(named);
    }
    let output =
        Command::new(top().join("scripts/jaeger.sh")).arg("path").stdin(Stdio::null()).output().unwrap();
    let path = String::from_utf8(output.stdout).unwrap();
    match output.status.success() {
        true => Ok(PathBuf::from(path.trim_end())),
        false => Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()),
    }
}

/// The body of an answer. With HTTP/1.0 it ends with the connection, and is in one piece.
fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(body.to_owned())
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}
