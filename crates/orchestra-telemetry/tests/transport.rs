//! Messages reach collectors of another make over both protocols, and whatever a collector does instead of taking one ends in words that say
//! so, and in time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::TcpListener;
use std::time::Duration;

use common::{Collector, Do, nobody};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use orchestra_telemetry::otlp::{Client, OtlpSettings, Protocol, SendError, Signal};
use prost::Message as _;
use tokio::sync::watch;

const BOTH: [Protocol; 2] = [Protocol::Grpc, Protocol::HttpProtobuf];

fn collector(protocol: Protocol, first: &[Do]) -> Collector {
    match protocol {
        Protocol::Grpc => Collector::grpc(first),
        Protocol::HttpProtobuf => Collector::http(first),
    }
}

/// Patient, so that a busy machine fails no test.
fn settings(url: &str, protocol: Protocol) -> OtlpSettings {
    let settings = OtlpSettings::new(Signal::Traces, url, "a test", Some(protocol)).unwrap();
    OtlpSettings { timeout: Duration::from_secs(120), ..settings }
}

fn message(name: &str) -> Vec<u8> {
    let span = Span { name: name.to_owned(), ..Span::default() };
    let scope_spans = vec![ScopeSpans { spans: vec![span], ..ScopeSpans::default() }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }],
    }
    .encode_to_vec()
}

async fn send(client: &mut Client, name: &str) -> Result<ExportTraceServiceResponse, SendError> {
    let (_keep, mut never) = watch::channel(false);
    let answer = client.send(message(name), &mut never).await?;
    Ok(ExportTraceServiceResponse::decode(answer).unwrap())
}

#[tokio::test]
async fn messages_arrive_whole_with_the_headers_that_were_asked_for() {
    for (protocol, gzip) in [(BOTH[0], false), (BOTH[0], true), (BOTH[1], false), (BOTH[1], true)] {
        let collector = collector(protocol, &[]);
        let headers = vec![("api-key".to_owned(), "secret".to_owned())];
        let settings = OtlpSettings { headers, gzip, ..settings(&collector.url(), protocol) };
        let mut client = Client::new(&settings, Signal::Traces).unwrap();
        for name in ["one", "two", "three"] {
            assert_eq!(send(&mut client, name).await.unwrap().partial_success, None);
        }
        let names: Vec<String> = collector.spans().into_iter().map(|span| span.name).collect();
        assert_eq!(names, ["one", "two", "three"], "{protocol:?}, gzip {gzip}");
        for got in collector.got() {
            assert_eq!(got.headers["api-key"], "secret");
            assert!(protocol == Protocol::Grpc || got.path == "/v1/traces", "{}", got.path);
        }
        assert!(!format!("{client:?}").contains("secret"));
    }
}

#[tokio::test]
async fn a_partial_success_is_given_back_as_it_is() {
    for protocol in BOTH {
        let collector = collector(protocol, &[Do::Reject(1, "too old")]);
        let mut client = Client::new(&settings(&collector.url(), protocol), Signal::Traces).unwrap();
        let partial = send(&mut client, "old").await.unwrap().partial_success.unwrap();
        assert_eq!((partial.rejected_spans, partial.error_message.as_str()), (1, "too old"));
    }
}

#[tokio::test]
async fn what_the_collector_may_take_later_is_sent_again() {
    let cases = [
        (Protocol::HttpProtobuf, Do::Refuse(503, "busy", None)),
        (Protocol::HttpProtobuf, Do::Refuse(429, "slower", Some(0))),
        (Protocol::HttpProtobuf, Do::HangUp),
        (Protocol::Grpc, Do::Refuse(14, "busy", None)),
        (Protocol::Grpc, Do::Refuse(14, "busy", Some(0))),
        (Protocol::Grpc, Do::Refuse(8, "slower", Some(0))),
    ];
    for (protocol, once) in cases {
        let collector = collector(protocol, &[once.clone(), once]);
        let mut client = Client::new(&settings(&collector.url(), protocol), Signal::Traces).unwrap();
        send(&mut client, "again").await.unwrap();
        assert_eq!(collector.got().len(), 3);
    }
}

#[tokio::test]
async fn what_the_collector_will_never_take_is_sent_once_and_told_with_its_words() {
    let cases = [
        (Protocol::HttpProtobuf, Do::Refuse(401, "no key", None), "`401 Unauthorized`: no key"),
        (Protocol::HttpProtobuf, Do::Refuse(404, "", None), "`404 Not Found`"),
        (Protocol::HttpProtobuf, Do::Refuse(400, "\n\u{b}bad \u{1} message", None), ": bad message"),
        (Protocol::Grpc, Do::Refuse(16, "no key: 100%", None), "`unauthenticated`: no key: 100%"),
        (Protocol::Grpc, Do::Refuse(12, "", None), "`unimplemented`"),
        (Protocol::Grpc, Do::Refuse(8, "no room", None), "`resource exhausted`: no room"),
    ];
    for (protocol, answer, words) in cases {
        let collector = collector(protocol, &[answer]);
        let mut client = Client::new(&settings(&collector.url(), protocol), Signal::Traces).unwrap();
        let error = send(&mut client, "never").await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.is_silence());
        assert_eq!(collector.got().len(), 1);
    }
}

#[tokio::test]
async fn a_collector_that_never_answers_costs_the_timeout() {
    for protocol in BOTH {
        let collector = collector(protocol, &[Do::Ignore]);
        let settings =
            OtlpSettings { timeout: Duration::from_millis(300), ..settings(&collector.url(), protocol) };
        // On a busy machine the time may be over before the request has left.
        while collector.got().is_empty() {
            let mut client = Client::new(&settings, Signal::Traces).unwrap();
            let error = send(&mut client, "unheard").await.unwrap_err();
            assert!(matches!(error, SendError::TimedOut { .. }) && error.is_silence(), "{error}");
        }
        // The next one has a connection of its own.
        let settings = OtlpSettings { timeout: Duration::from_secs(120), ..settings };
        let mut client = Client::new(&settings, Signal::Traces).unwrap();
        send(&mut client, "heard").await.unwrap();
    }
}

#[tokio::test]
async fn where_nobody_listens_it_is_tried_until_the_time_is_over_or_the_end_has_come() {
    for protocol in BOTH {
        let nobody = nobody();
        let url = nobody.url();
        let short = OtlpSettings { timeout: Duration::from_millis(300), ..settings(&url, protocol) };
        let error =
            send(&mut Client::new(&short, Signal::Traces).unwrap(), "lost").await.unwrap_err().to_string();
        assert!(error.contains("no answer within 300ms") && error.contains("no connection"), "{error}");
        let (_keep, mut at_the_end) = watch::channel(true);
        let mut patient = Client::new(&settings(&url, protocol), Signal::Traces).unwrap();
        let error = patient.send(message("lost"), &mut at_the_end).await.unwrap_err();
        assert!(matches!(error, SendError::Unreachable(_)), "{error}");
    }
}

#[tokio::test]
async fn the_end_cuts_the_pause_before_the_next_try_short() {
    let nobody = nobody();
    let url = nobody.url();
    let mut client = Client::new(&settings(&url, Protocol::Grpc), Signal::Traces).unwrap();
    let (end, mut stop) = watch::channel(false);
    let sending = client.send(message("lost"), &mut stop);
    let (result, ()) = tokio::join!(sending, async { end.send(true).unwrap() });
    assert!(matches!(result.unwrap_err(), SendError::Unreachable(_)));
}

#[tokio::test]
async fn the_other_protocol_is_recognised_and_its_port_named() {
    let http = Collector::http(&[]);
    let short =
        |url: &str, protocol| OtlpSettings { timeout: Duration::from_secs(2), ..settings(url, protocol) };
    let mut client = Client::new(&short(&http.url(), Protocol::Grpc), Signal::Traces).unwrap();
    let error = send(&mut client, "lost").await.unwrap_err().to_string();
    assert!(error.contains("gRPC is usually on port 4317"), "{error}");
    let grpc = Collector::grpc(&[]);
    let mut client = Client::new(&short(&grpc.url(), Protocol::HttpProtobuf), Signal::Traces).unwrap();
    let error = send(&mut client, "lost").await.unwrap_err().to_string();
    assert!(error.contains("HTTP on 4318"), "{error}");
}

#[tokio::test]
async fn a_name_that_is_not_known_is_an_error_and_no_panic() {
    let short = OtlpSettings {
        timeout: Duration::from_millis(500),
        ..settings("http://no-such-host.invalid:4317", Protocol::Grpc)
    };
    assert!(send(&mut Client::new(&short, Signal::Traces).unwrap(), "lost").await.is_err());
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let endless = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = endless.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = endless.accept().unwrap();
        // An answer before the request would be none.
        let _ = stream.read(&mut [0; 4_096]).unwrap();
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n"));
        // Until the other side has had enough.
        while stream.write_all(&[0; 65_536]).is_ok() {}
    });
    let mut client =
        Client::new(&settings(&format!("http://{address}"), Protocol::HttpProtobuf), Signal::Traces).unwrap();
    let error = send(&mut client, "lost").await.unwrap_err();
    assert!(matches!(error, SendError::Answer(_)), "{error}");
    drop(client);
    // The connection closes on this thread, which must not wait for it.
    tokio::task::spawn_blocking(move || server.join().unwrap()).await.unwrap();
}
