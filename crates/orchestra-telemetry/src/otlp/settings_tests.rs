use super::*;

const GENERAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:4318/base/");
const TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/own");

fn resolve(
    configured: Option<&str>,
    variables: &[(&str, &str)],
) -> (Result<Option<OtlpSettings>, TelemetryError>, Vec<String>) {
    let lookup =
        |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    let mut variables = Variables::new(&lookup);
    let configured = Configured { endpoint: configured, protocol: None };
    let settings = OtlpSettings::resolve(Signal::Traces, configured, &mut variables);
    (settings, variables.warnings)
}

fn resolved(configured: Option<&str>, variables: &[(&str, &str)]) -> OtlpSettings {
    let (settings, warnings) = resolve(configured, variables);
    assert!(warnings.is_empty(), "{warnings:?}");
    settings.unwrap().unwrap()
}

#[test]
fn the_file_goes_before_the_signal_variable_and_that_before_the_general_one() {
    let all = [GENERAL, TRACES];
    assert_eq!(resolved(Some("http://file:4318"), &all).endpoint, "http://file:4318/v1/traces");
    assert_eq!(resolved(None, &all).endpoint, "http://traces:4318/own", "verbatim");
    assert_eq!(resolved(None, &all[..1]).endpoint, "http://general:4318/base/v1/traces");
    for nothing in [&[][..], &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")][..]] {
        assert_eq!(resolve(None, nothing).0.unwrap(), None);
    }
}

#[test]
fn the_protocol_is_http_unless_a_variable_names_another_one_or_the_port_is_that_of_grpc() {
    let protocol = |endpoint, variables: &[_]| {
        let settings = resolved(Some(endpoint), variables);
        (settings.protocol, settings.endpoint)
    };
    let http = |endpoint: &str| (Protocol::HttpProtobuf, endpoint.to_owned());
    assert_eq!(protocol("http://c", &[]), http("http://c/v1/traces"));
    assert_eq!(protocol("http://[::1]:4318", &[]), http("http://[::1]:4318/v1/traces"));
    assert_eq!(protocol("http://c:1/v1/traces", &[]), http("http://c:1/v1/traces"));
    assert_eq!(protocol("http://c:1/v1/metrics", &[]), http("http://c:1/v1/traces"));
    let named = [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")];
    assert_eq!(protocol("http://c:4317", &named), http("http://c:4317/v1/traces"));
    let by_grpc = [named[0], ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")];
    for (endpoint, variables) in [("http://c:4317/", &[][..]), ("http://c:4318", &by_grpc)] {
        let (settings, _) = resolve(Some(endpoint), variables);
        if HAS_GRPC {
            let settings = settings.unwrap().unwrap();
            assert_eq!(settings.protocol, Protocol::Grpc);
            assert_eq!(settings.endpoint, endpoint.trim_end_matches('/'));
        } else {
            let error = settings.unwrap_err().to_string();
            assert!(error.contains("write") && error.contains("`http://c:4318`"), "{error}");
        }
    }
}

#[test]
fn variables_that_ask_for_grpc_where_there_is_none_stop_no_run() {
    let (settings, warnings) = resolve(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1]:4317")]);
    assert_eq!(settings.unwrap().is_some(), HAS_GRPC);
    let told = |warning: &String| warning.contains("port 4317 is for gRPC; write `http://[::1]:4318`");
    assert_eq!(warnings.iter().filter(|w| told(w)).count(), usize::from(!HAS_GRPC), "{warnings:?}");
}

#[test]
fn an_address_that_cannot_work_is_refused_with_its_origin() {
    let bad = [
        "localhost:4317",
        "http://",
        "http:///x",
        "http://:4317",
        "http://c:port",
        "http://c:99999",
        "http://a b:1",
        "https://collector:4317",
        "ftp://x",
        "http://me:secret@c:4317",
        "http://c:4318/v1/traces?key=1",
    ];
    for bad in bad {
        let error = resolve(Some(bad), &[]).0.unwrap_err().to_string();
        assert!(error.contains(&format!("`{bad}`")) && error.contains("`telemetry.otlp`"), "{error}");
    }
    let error = resolve(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317")]).0.unwrap_err().to_string();
    assert!(error.contains("`OTEL_EXPORTER_OTLP_ENDPOINT`") && error.contains("http://HOST:PORT"), "{error}");
}

#[test]
fn a_protocol_that_is_not_known_is_an_error_that_names_the_choices() {
    let variables = [GENERAL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
    let error = resolve(None, &variables).0.unwrap_err().to_string();
    for part in ["`OTEL_EXPORTER_OTLP_PROTOCOL`", "`http/json`", "`grpc`", "`http/protobuf`"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn headers_and_timeout_are_the_signals_own_or_the_general_ones() {
    let settings = resolved(
        Some("http://c:4318"),
        &[
            ("OTEL_EXPORTER_OTLP_HEADERS", "general=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "api-key=a%20b,x-team=vision"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
        ],
    );
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(settings.headers, [pair("api-key", "a b"), pair("x-team", "vision")]);
    assert_eq!(settings.timeout, Duration::from_millis(1500));
    assert!(!format!("{settings:?}").contains("a b"), "a key is a secret");
    assert_eq!(resolved(Some("http://c:4318"), &[]).timeout, TIMEOUT);
}

#[test]
fn values_that_cannot_be_read_are_ignored_with_a_warning() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_HEADERS", "no pair"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ] {
        let (settings, warnings) = resolve(Some("http://c:4318"), &[(name, value)]);
        assert_eq!(settings.unwrap(), Some(resolved(Some("http://c:4318"), &[])), "{name}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(&format!("`{name}`")), "{warnings:?}");
    }
}

#[test]
fn the_switches_turn_a_signal_off_and_say_so_when_it_was_asked_for() {
    for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let (settings, warnings) = resolve(Some("http://c:1"), &[off]);
        assert!(settings.unwrap().is_none() && warnings[0].contains(off.0), "{warnings:?}");
        let (settings, warnings) = resolve(None, &[off, GENERAL]);
        assert!(settings.unwrap().is_none() && warnings.is_empty(), "{warnings:?}");
    }
    let (metrics_off, _) = resolve(None, &[("OTEL_METRICS_EXPORTER", "none"), GENERAL]);
    assert!(metrics_off.unwrap().is_some());
}

#[test]
fn asking_for_otlp_without_an_address_means_the_collector_of_this_machine() {
    let asked = ("OTEL_TRACES_EXPORTER", "otlp");
    assert_eq!(resolved(None, &[asked]).endpoint, "http://localhost:4318/v1/traces");
    let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    assert_eq!(resolve(None, &[http]).0.unwrap(), None);
}
