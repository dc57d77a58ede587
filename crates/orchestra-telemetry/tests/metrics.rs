//! Metrics reach a collector of another make over gRPC, and one that hangs, is down or knows no metrics delays no end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use orchestra_telemetry::metrics::{MetricExport, MetricReport, MetricSettings, Metrics, Reading, names};
use orchestra_telemetry::otlp::{OtlpSettings, Signal};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Unbounded: a test sends a handful of requests.
struct Receiver {
    requests: UnboundedSender<ExportMetricsServiceRequest>,
    answer: Result<Option<ExportMetricsPartialSuccess>, Status>,
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        // A test that is over listens no more.
        let _ = self.requests.send(request.into_inner());
        let partial_success = self.answer.clone()?;
        Ok(Response::new(ExportMetricsServiceResponse { partial_success }))
    }
}

/// A collector on a port and a runtime of its own.
struct Collector {
    runtime: Option<Runtime>,
    address: SocketAddr,
    requests: UnboundedReceiver<ExportMetricsServiceRequest>,
}

impl Collector {
    fn start(answer: Result<Option<ExportMetricsPartialSuccess>, Status>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, requests) = unbounded_channel();
        let entered = runtime.enter();
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = incoming.local_addr().unwrap();
        let service = MetricsServiceServer::new(Receiver { requests: sender, answer });
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        drop(entered);
        Self { runtime: Some(runtime), address, requests }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

fn metrics(to: SocketAddr, every: Duration) -> Metrics {
    let to = OtlpSettings::new(Signal::Metrics, &format!("http://{to}"), "a test", None).unwrap();
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

#[test]
fn the_last_request_is_sent_at_the_end_and_names_what_it_is_of() {
    let mut collector = Collector::start(Ok(None));
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
    let mut collector = Collector::start(Ok(None));
    let metrics = metrics(collector.address, Duration::from_millis(5));
    for _ in 0..3 {
        collector.requests.blocking_recv().unwrap();
    }
    assert!(metrics.shutdown().unwrap().delivered >= 4);
}

#[test]
fn what_the_collector_rejects_is_counted_with_its_words() {
    let partial =
        ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "too many".to_owned() };
    let collector = Collector::start(Ok(Some(partial)));
    let report = metrics(collector.address, NEVER).shutdown().unwrap();
    assert_eq!((report.delivered, report.lost), (0, 1));
    assert!(report.words.unwrap().contains("too many"));
}

#[test]
fn a_collector_without_metrics_is_asked_once() {
    let mut collector = Collector::start(Err(Status::unimplemented("traces only")));
    let metrics = metrics(collector.address, Duration::from_millis(5));
    collector.requests.blocking_recv().unwrap();
    let report = metrics.shutdown().unwrap();
    assert_eq!((report.lost, report.unsupported), (0, true));
    assert!(collector.requests.try_recv().is_err());
}

#[test]
fn a_collector_that_is_down_costs_the_last_request() {
    let nobody = TcpSocket::new_v4().unwrap();
    // It has the port and does not listen either.
    nobody.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let report = metrics(nobody.local_addr().unwrap(), NEVER).shutdown().unwrap();
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
