//! Traces reach a real OTLP receiver, and one that is down or deaf costs nothing but the traces.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span as WireSpan;
use orchestra_telemetry::names::{attribute, span};
use orchestra_telemetry::traces::context::{self, FinishedSpan, Value};
use orchestra_telemetry::{LogSettings, Telemetry, TelemetryGuard, TraceSettings};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tracing::Dispatch;

/// Unbounded: a test sends a handful of requests.
struct Receiver(UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector on a port and a runtime of its own.
struct Collector {
    runtime: Option<Runtime>,
    address: SocketAddr,
    requests: UnboundedReceiver<ExportTraceServiceRequest>,
}

impl Collector {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, requests) = unbounded_channel();
        let entered = runtime.enter();
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = incoming.local_addr().unwrap();
        let server = Server::builder().add_service(TraceServiceServer::new(Receiver(sender)));
        runtime.spawn(server.serve_with_incoming(incoming));
        drop(entered);
        Self { runtime: Some(runtime), address, requests }
    }

    /// Everything that has arrived: service names and spans.
    fn received(&mut self) -> (Vec<String>, Vec<WireSpan>) {
        let (mut services, mut spans) = (Vec::new(), Vec::new());
        while let Ok(request) = self.requests.try_recv() {
            for group in request.resource_spans {
                let attributes = group.resource.unwrap().attributes;
                let service = attributes.iter().find(|a| a.key == "service.name").unwrap();
                match service.value.clone().unwrap().value.unwrap() {
                    AnyValue::StringValue(name) => services.push(name),
                    other => panic!("{other:?}"),
                }
                spans.extend(group.scope_spans.into_iter().flat_map(|s| s.spans));
            }
        }
        (services, spans)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // Also allowed where the collector is dropped inside another runtime.
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// Patient, so that a busy machine fails no test.
fn settings(address: SocketAddr) -> TraceSettings {
    let settings = TraceSettings::new(&format!("http://{address}"), "a test").unwrap();
    TraceSettings { patience: Duration::from_secs(60), ..settings }
}

fn telemetry(settings: &TraceSettings) -> (Dispatch, TelemetryGuard) {
    Telemetry::build(&LogSettings::default(), Some(settings)).unwrap().into_parts()
}

#[test]
fn a_collector_gets_the_spans_with_service_parent_and_attributes() {
    let mut collector = Collector::start();
    let (dispatch, guard) = telemetry(&settings(collector.address));
    let parts = tracing::dispatcher::with_default(&dispatch, || {
        let run = tracing::info_span!(span::RUN, { attribute::RUN_ID } = "r1");
        let noise = tracing::info_span!(target: "ractor::actor", parent: &run, "Actor");
        let batch = tracing::info_span!(parent: &run, span::BATCH, { attribute::BATCH_SIZE } = 8);
        noise.in_scope(|| ());
        run.in_scope(context::current).map(|run| (run, context::of_span(&batch).unwrap()))
    });
    let (run, batch) = parts.unwrap();
    let report = guard.shutdown().spans.unwrap();
    assert_eq!((report.ended, report.delivered, report.lost()), (2, 2, 0));

    let (services, spans) = collector.received();
    assert!(services.iter().all(|s| s == "orchestra") && !services.is_empty(), "{services:?}");
    let find = |name: &str| spans.iter().find(|s| s.name == name).unwrap();
    assert_eq!(spans.len(), 2);
    assert_eq!(
        (find(span::RUN).trace_id.as_slice(), find(span::RUN).span_id.as_slice()),
        (&run.0[..], &run.1[..])
    );
    assert_eq!(find(span::BATCH).parent_span_id, run.1);
    assert_eq!(find(span::BATCH).span_id, batch.1);
    assert!(find(span::RUN).attributes.iter().any(|a| a.key == attribute::RUN_ID));
}

#[test]
fn a_span_follows_the_context_that_came_as_bytes() {
    let mut collector = Collector::start();
    let (dispatch, guard) = telemetry(&settings(collector.address));
    let sent = ([7; 16], [9; 8], 1);
    let unsampled = ([5; 16], [9; 8], 0);
    tracing::dispatcher::with_default(&dispatch, || {
        let followed = tracing::info_span!("followed");
        context::set_parent(&followed, sent);
        assert_eq!(followed.in_scope(context::current).unwrap().0, sent.0);
        let dropped = tracing::info_span!("dropped");
        context::set_parent(&dropped, unsampled);
        assert_eq!(dropped.in_scope(context::current).unwrap().2, 0);
    });
    let report = guard.shutdown().spans.unwrap();
    assert_eq!((report.ended, report.delivered), (1, 1));
    let (_, spans) = collector.received();
    assert_eq!(spans[0].trace_id, sent.0);
    assert_eq!(spans[0].parent_span_id, sent.1);
}

#[test]
fn the_installed_exporter_sends_what_workers_reported() {
    // The only test of this file that installs: a process can do that once.
    let mut collector = Collector::start();
    let guard = Telemetry::build(&LogSettings::default(), Some(&settings(collector.address)))
        .unwrap()
        .install()
        .unwrap();
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    let run = |parent| {
        context::record_finished(&FinishedSpan {
            name: span::WORKER_RUN,
            parent,
            start,
            end: start + Duration::from_millis(5),
            attributes: &[(attribute::DEVICE, Value::Text("cuda:0")), (attribute::WORKER, Value::Integer(3))],
        });
    };
    run(([7; 16], [9; 8], 1));
    run(([7; 16], [9; 8], 0));
    let again = Telemetry::build(&LogSettings::default(), None).unwrap().install();
    assert!(again.unwrap_err().to_string().contains("already"));
    assert_eq!(guard.shutdown().spans.unwrap().delivered, 1);
    let (_, spans) = collector.received();
    assert_eq!(spans.len(), 1, "an unsampled parent has no sampled part");
    assert_eq!(spans[0].parent_span_id, [9; 8]);
    assert_eq!(spans[0].end_time_unix_nano - spans[0].start_time_unix_nano, 5_000_000);
    assert_eq!(spans[0].attributes.len(), 2);
}

#[test]
fn a_collector_that_is_down_costs_the_spans_and_nothing_else() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (dispatch, guard) = telemetry(&settings(address));
    tracing::dispatcher::with_default(&dispatch, || {
        for _ in 0..100 {
            tracing::info_span!(span::BATCH).in_scope(|| ());
        }
    });
    let report = guard.shutdown().spans.unwrap();
    assert_eq!((report.ended, report.delivered, report.lost()), (100, 0, 100));
}

#[test]
fn a_collector_that_never_answers_does_not_keep_the_run_from_ending() {
    // It accepts connections (the system does, for the backlog) and stays silent.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings =
        TraceSettings { patience: Duration::from_millis(200), ..settings(deaf.local_addr().unwrap()) };
    let (dispatch, guard) = telemetry(&settings);
    tracing::dispatcher::with_default(&dispatch, || tracing::info_span!(span::RUN).in_scope(|| ()));
    assert_eq!(guard.shutdown().spans.unwrap().lost(), 1);
}

#[tokio::test]
async fn the_end_may_be_awaited_inside_a_runtime_of_one_thread() {
    let mut collector = Collector::start();
    let (dispatch, guard) = telemetry(&settings(collector.address));
    tracing::dispatcher::with_default(&dispatch, || tracing::info_span!(span::RUN).in_scope(|| ()));
    assert_eq!(guard.shutdown().spans.unwrap().delivered, 1);
    assert_eq!(collector.received().1.len(), 1);
}
