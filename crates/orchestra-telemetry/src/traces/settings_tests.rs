use super::*;

const GENERAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:4318/base/");
const TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/own");

fn try_resolve(
    configured: &TelemetryPlan,
    variables: &[(&str, &str)],
) -> Result<ResolvedTraces, TelemetryError> {
    let of = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    TraceSettings::resolve(configured, of)
}

fn to(endpoint: &str) -> TelemetryPlan {
    TelemetryPlan { otlp: Some(endpoint.to_owned()), ..TelemetryPlan::default() }
}

fn resolved(configured: &TelemetryPlan, variables: &[(&str, &str)]) -> TraceSettings {
    let resolved = try_resolve(configured, variables).unwrap();
    assert!(resolved.warnings.is_empty(), "{:?}", resolved.warnings);
    resolved.settings.unwrap()
}

#[test]
fn the_file_goes_before_the_variable_of_traces_and_that_before_the_general_one() {
    let all = [GENERAL, TRACES];
    assert_eq!(resolved(&to("http://file:4318"), &all).endpoint, "http://file:4318/v1/traces");
    assert_eq!(resolved(&TelemetryPlan::default(), &all).endpoint, "http://traces:4318/own", "verbatim");
    assert_eq!(resolved(&TelemetryPlan::default(), &all[..1]).endpoint, "http://general:4318/base/v1/traces");
    for nothing in [&[][..], &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")][..]] {
        assert_eq!(try_resolve(&TelemetryPlan::default(), nothing).unwrap(), ResolvedTraces::default());
    }
    let second = Some(Duration::from_secs(1));
    let configured = TelemetryPlan { slow: second, flush_timeout: second, ..to("http://c:1") };
    let settings = resolved(&configured, &[]);
    assert_eq!((settings.slow, Some(settings.patience)), (second, second));
}

#[test]
fn the_protocol_is_http_unless_a_variable_names_another_one_or_the_port_is_that_of_grpc() {
    let protocol = |endpoint, variables: &[_]| {
        let settings = resolved(&to(endpoint), variables);
        (settings.protocol, settings.endpoint)
    };
    let http = |endpoint: &str| (Protocol::HttpProtobuf, endpoint.to_owned());
    assert_eq!(protocol("http://c", &[]), http("http://c/v1/traces"));
    assert_eq!(protocol("http://[::1]:4318", &[]), http("http://[::1]:4318/v1/traces"));
    assert_eq!(protocol("http://c:1/v1/traces", &[]), http("http://c:1/v1/traces"));
    let named = [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")];
    assert_eq!(protocol("http://c:4317", &named), http("http://c:4317/v1/traces"));
    let by_grpc = [named[0], ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")];
    for (endpoint, variables) in [("http://c:4317/", &[][..]), ("http://c:4318", &by_grpc)] {
        let resolved = try_resolve(&to(endpoint), variables);
        if HAS_GRPC {
            let settings = resolved.unwrap().settings.unwrap();
            assert_eq!(settings.protocol, Protocol::Grpc);
            assert_eq!(settings.endpoint, endpoint.trim_end_matches('/'));
        } else {
            let error = resolved.unwrap_err().to_string();
            assert!(error.contains("write") && error.contains("`http://c:4318`"), "{error}");
        }
    }
}

#[test]
fn variables_that_ask_for_grpc_where_there_is_none_stop_no_run() {
    let resolved =
        try_resolve(&TelemetryPlan::default(), &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1]:4317")])
            .unwrap();
    assert_eq!(resolved.settings.is_some(), HAS_GRPC);
    let told = |warning: &String| warning.contains("port 4317 is for gRPC; write `http://[::1]:4318`");
    assert_eq!(resolved.warnings.iter().filter(|w| told(w)).count(), usize::from(!HAS_GRPC));
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
        let error = try_resolve(&to(bad), &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("`{bad}`")) && error.contains("`telemetry.otlp`"), "{error}");
    }
    let error = try_resolve(&TelemetryPlan::default(), &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317")])
        .unwrap_err()
        .to_string();
    assert!(error.contains("`OTEL_EXPORTER_OTLP_ENDPOINT`") && error.contains("http://HOST:PORT"), "{error}");
}

#[test]
fn a_protocol_that_is_not_known_is_an_error_that_names_the_choices() {
    let variables = [GENERAL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
    let error = try_resolve(&TelemetryPlan::default(), &variables).unwrap_err().to_string();
    for part in ["`OTEL_EXPORTER_OTLP_PROTOCOL`", "`http/json`", "`grpc`", "`http/protobuf`"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_is_declared_as_a_default_is_the_default() {
    let declared = |name: &str| {
        orchestra_plan::keys::TELEMETRY.iter().find(|key| key.name == name).map(|key| key.default)
    };
    let settings = resolved(&to("http://c:1"), &[]);
    assert_eq!((declared("slow"), settings.slow), (Some("none"), None));
    assert_eq!(declared("flush_timeout"), Some(&*format!("\"{:?}\"", settings.patience)));
}

#[test]
fn the_switches_turn_traces_off_and_say_so_when_they_were_asked_for() {
    for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let resolved = try_resolve(&to("http://c:1"), &[off]).unwrap();
        assert!(resolved.settings.is_none() && resolved.warnings[0].contains(off.0), "{resolved:?}");
        assert_eq!(
            try_resolve(&TelemetryPlan::default(), &[off, GENERAL]).unwrap(),
            ResolvedTraces::default()
        );
    }
}

#[test]
fn asking_for_otlp_without_an_address_means_the_collector_of_this_machine() {
    let asked = ("OTEL_TRACES_EXPORTER", "otlp");
    assert_eq!(resolved(&TelemetryPlan::default(), &[asked]).endpoint, "http://localhost:4318/v1/traces");
    let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
    assert_eq!(try_resolve(&TelemetryPlan::default(), &[http]).unwrap(), ResolvedTraces::default());
}
