//! The examples do what they say, with real workers: each is run as its first lines show.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orchestra_testkit::programs::beside_this_program;

/// Beyond it, something hangs.
const BOUND: Duration = Duration::from_secs(60);

fn example(name: &str) -> Command {
    Command::new(beside_this_program(name).unwrap())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What it prints, where it ends well.
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn a_program_without_an_executor_asks_a_model() {
    let rounds = printed(example("blocking").arg("2"));
    let last: f32 = rounds.lines().last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((last - 2_f32.sqrt()).abs() < 1e-6, "{rounds}");
}

#[test]
fn kinds_of_a_program_read_work_and_write() {
    let folder = tempfile::tempdir().unwrap();
    let bars = printed(example("custom-stage").arg(folder.path().join("out")));
    let expected: String = (0..6)
        .map(|hour| {
            let height = (10.0 + 8.0 * (hour as f32).sin()) * 2.0;
            format!("{:>4} {}\n", format!("{hour}h"), "#".repeat(height as usize))
        })
        .collect();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&bars), sorted(&expected));
}

#[test]
fn a_supervisor_starts_its_run_again_and_each_item_has_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let said = printed(example("embed-actor").arg(folder.path().join("out")));
    assert!(said.contains("killed after start 1\n") && said.contains("400 done, 0 failed\n"), "{said}");
    let records = std::fs::read_to_string(folder.path().join("out/results.jsonl")).unwrap();
    let items: std::collections::BTreeSet<String> = records
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["item"].to_string())
        .collect();
    assert_eq!((items.len(), records.lines().count()), (400, 400));
}

/// A service, and where it listens.
struct Service(Child, String);

impl Service {
    fn start(arguments: &[&str]) -> Self {
        let mut service = example("embed-axum");
        service.arg("127.0.0.1:0").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut service = service.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(service.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").map(str::to_owned);
        Self(service, address.unwrap_or_else(|| panic!("it does not listen: {line}")))
    }

    /// The answer, with its head.
    fn ask(&self, method: &str, path: &str, header: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{header}\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Asks it to end, and gives what it has said on standard error.
    fn end(mut self) -> String {
        let kill = Command::new("kill").arg(self.0.id().to_string()).status().unwrap();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(kill.success() && self.0.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
    }
}

#[test]
fn a_service_labels_pictures_says_how_it_is_traces_requests_and_ends_in_order() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let service = Service::start(&[]);
    assert!(service.ask("GET", "/ready", "", b"").starts_with("HTTP/1.1 200"));
    let labels = std::fs::read_to_string(repository().join("examples/digits/labels.csv")).unwrap();
    let mut right = 0;
    for line in labels.lines().skip(1).take(10) {
        let (file, label) = line.split_once(',').unwrap();
        let picture = std::fs::read(repository().join("examples/digits/images").join(file)).unwrap();
        let trace = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n");
        let answer = service.ask("POST", "/label", &trace, &picture);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let answer: serde_json::Value =
            serde_json::from_str(answer.rsplit("\r\n\r\n").next().unwrap()).unwrap();
        right += usize::from(answer[0]["label"] == *label);
    }
    assert!(right >= 9, "{right} of 10");
    assert!(service.ask("POST", "/label", "", b"no picture").starts_with("HTTP/1.1 422"));
    // The counters are read a few times a second.
    let are_counted = || {
        let metrics = service.ask("GET", "/metrics", "", b"");
        metrics.contains("{end=\"done\"} 10\n") && metrics.contains("{end=\"failed\"} 1\n")
    };
    let begun = Instant::now();
    while !are_counted() {
        assert!(begun.elapsed() < BOUND, "11 requests are never counted");
    }
    let spans = service.end();
    let of_request = format!("{TRACE}/");
    let items = spans
        .lines()
        .filter(|span| span.starts_with(&of_request) && span.contains(" item below 00f067aa0ba902b7"));
    let linked: Vec<&str> = items.map(|item| item.split_once(", linked with ").unwrap().1).collect();
    assert_eq!(linked.len(), 10, "{spans}");
    let is_batch = |span: &str| spans.contains(&format!("/{span} batch below "));
    assert!(linked.iter().all(|spans| spans.split(' ').any(is_batch)), "{spans}");
}

#[test]
fn a_service_that_has_too_much_to_do_says_when_to_come_again() {
    let service = Service::start(&["1"]);
    let picture = std::fs::read(repository().join("tests/photo.jpg")).unwrap();
    let (refused, begun) = (AtomicBool::new(false), Instant::now());
    // Of several that ask at once, one is answered.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !refused.load(Ordering::Relaxed) {
                    assert!(begun.elapsed() < BOUND, "8 that ask at once are never too many");
                    let answer = service.ask("POST", "/label", "", &picture).to_lowercase();
                    let is_refused =
                        answer.starts_with("http/1.1 503") && answer.contains("\r\nretry-after: 1\r\n");
                    assert!(is_refused || answer.starts_with("http/1.1 200"), "{answer}");
                    refused.fetch_or(is_refused, Ordering::Relaxed);
                }
            });
        }
    });
    service.end();
}
