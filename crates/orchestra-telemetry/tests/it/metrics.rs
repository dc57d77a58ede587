//! Metrics reach a collector, and one that hangs, is down or knows no metrics delays no end.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use orchestra_telemetry::metrics::{MetricExport, MetricReport, MetricSettings, Metrics, Reading, names};
use orchestra_telemetry::otlp::{OtlpSettings, Protocol, Signal};
use prost::Message as _;
use tokio::net::TcpSocket;

/// A collector that answers all requests with this status and message, and keeps them.
struct Collector {
    address: SocketAddr,
    requests: Receiver<ExportMetricsServiceRequest>,
}

impl Collector {
    fn start(status: &'static str, partial_success: Option<ExportMetricsPartialSuccess>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = ExportMetricsServiceResponse { partial_success }.encode_to_vec();
        // Unbounded: a test sends a handful of requests.
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                serve(client, status, &answer, &sender);
            }
        });
        Self { address, requests }
    }
}

/// Until the client has hung up, or the test is over.
fn serve(mut client: TcpStream, status: &str, answer: &[u8], sender: &Sender<ExportMetricsServiceRequest>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if client.read_exact(&mut byte).is_err() {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("post /v1/metrics ") && head.contains("application/x-protobuf"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        client.read_exact(&mut body).unwrap();
        let told = sender.send(ExportMetricsServiceRequest::decode(&body[..]).unwrap());
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", answer.len());
        let answered = client.write_all(&[head.as_bytes(), answer].concat());
        if told.is_err() || answered.is_err() {
            return;
        }
    }
}

fn metrics(to: SocketAddr, every: Duration) -> Metrics {
    over(Protocol::HttpProtobuf, to, every)
}

fn over(protocol: Protocol, to: SocketAddr, every: Duration) -> Metrics {
    let to = OtlpSettings::new(Signal::Metrics, &format!("http://{to}"), "a test", Some(protocol)).unwrap();
    let otlp = Some(MetricExport { to, every, resource: Vec::new() });
    let metrics = Metrics::start(&MetricSettings { page: None, otlp }).unwrap();
    metrics.observe(Arc::new(|| {
        let mut reading = Reading::new();
        reading.add(&names::ITEMS_DONE, &["scans"], 7_u64);
        reading
    }));
    metrics
}

const NEVER: Duration = Duration::from_secs(3600);
/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(180);

#[test]
fn the_last_request_is_sent_at_the_end_and_names_what_it_is_of() {
    let collector = Collector::start("200 OK", None);
    let report = metrics(collector.address, NEVER).shutdown().unwrap();
    assert_eq!(report, MetricReport { delivered: 1, ..MetricReport::default() });
    let request = collector.requests.try_recv().unwrap();
    let of = &request.resource_metrics[0];
    assert!(of.resource.as_ref().unwrap().attributes.iter().any(|a| a.key == "service.name"));
    let names: Vec<&str> = of.scope_metrics[0].metrics.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, [names::BUILD_INFO.name, names::ITEMS_DONE.name]);
    assert!(collector.requests.try_recv().is_err(), "one request, and no other");
}

#[test]
fn requests_are_sent_at_every_interval() {
    let collector = Collector::start("200 OK", None);
    let metrics = metrics(collector.address, Duration::from_millis(5));
    for _ in 0..3 {
        collector.requests.recv_timeout(LONG).unwrap();
    }
    assert!(metrics.shutdown().unwrap().delivered >= 4);
}

#[test]
fn what_the_collector_rejects_is_counted_with_its_words() {
    let partial =
        ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "too many".to_owned() };
    let collector = Collector::start("200 OK", Some(partial));
    let report = metrics(collector.address, NEVER).shutdown().unwrap();
    assert_eq!((report.delivered, report.lost), (0, 1));
    assert!(report.words.unwrap().contains("too many"));
}

#[test]
fn a_collector_without_metrics_is_asked_once() {
    let collector = Collector::start("404 Not Found", None);
    let metrics = metrics(collector.address, Duration::from_millis(5));
    collector.requests.recv_timeout(LONG).unwrap();
    let report = metrics.shutdown().unwrap();
    assert_eq!((report.lost, report.unsupported), (0, true));
    assert!(collector.requests.try_recv().is_err());
}

#[test]
fn a_collector_that_is_down_costs_the_last_request() {
    let closed_port = TcpSocket::new_v4().unwrap();
    // It has the port and does not listen either.
    closed_port.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let report = metrics(closed_port.local_addr().unwrap(), NEVER).shutdown().unwrap();
    assert_eq!((report.delivered, report.lost), (0, 1));
}

#[test]
fn a_collector_that_never_answers_does_not_keep_the_run_from_ending() {
    // It accepts connections (the system does, for the backlog) and stays silent.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let report = metrics(deaf.local_addr().unwrap(), NEVER).shutdown().unwrap();
    assert_eq!((report.delivered, report.lost), (0, 1));
    assert!(report.words.unwrap().contains("no answer"));
}

#[cfg(feature = "grpc")]
mod grpc {
    use hyper::server::conn::http2;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::service::TowerToHyperService;
    use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
        MetricsService, MetricsServiceServer,
    };
    use tonic::{Request, Response, Status};

    use super::*;

    /// Answers its first request with the first of these, and all others with the last. Tells of each that it was asked.
    #[derive(Clone)]
    struct Answers(Arc<[Result<i64, Status>]>, Arc<std::sync::atomic::AtomicUsize>, Sender<()>);

    #[tonic::async_trait]
    impl MetricsService for Answers {
        async fn export(
            &self,
            request: Request<ExportMetricsServiceRequest>,
        ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
            assert_eq!(request.get_ref().resource_metrics.len(), 1);
            let at = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(self.0.len() - 1);
            // The test waits for the first one only.
            self.2.send(()).ok();
            let rejected_data_points = self.0[at].clone()?;
            let partial = ExportMetricsPartialSuccess { rejected_data_points, ..Default::default() };
            Ok(Response::new(ExportMetricsServiceResponse { partial_success: Some(partial) }))
        }
    }

    /// What is reported of two requests, of which the second is the last.
    fn report(answers: &[Result<i64, Status>]) -> MetricReport {
        // Unbounded: a test sends a handful of requests.
        let (tells, asked) = channel();
        let answers = Answers(answers.into(), Arc::default(), tells);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                let service = TowerToHyperService::new(MetricsServiceServer::new(answers.clone()));
                let server = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(client), service));
            }
        });
        let metrics = over(Protocol::Grpc, address, Duration::from_millis(5));
        asked.recv_timeout(LONG).unwrap();
        let report = metrics.shutdown().unwrap();
        runtime.shutdown_background();
        report
    }

    #[test]
    fn what_comes_of_requests_over_grpc_is_told_as_over_http() {
        assert!(report(&[Ok(0)]).delivered >= 2);
        let rejected = report(&[Ok(2), Ok(0)]);
        assert_eq!(rejected.lost, 1);
        assert!(rejected.words.unwrap().contains("2 values were rejected"));
        let refused = report(&[Err(Status::permission_denied("no key")), Ok(0)]);
        assert!(refused.lost == 1 && refused.words.unwrap().contains("no key"));
        let traces_only = report(&[Err(Status::unimplemented("traces only"))]);
        assert_eq!((traces_only.lost, traces_only.unsupported), (0, true));
    }
}
