//! A reading as a message of OTLP, field by field as the protocol numbers them (opentelemetry/proto/metrics/v1/metrics.proto). It sends
//! nothing. The published messages would bring the whole machinery of the SDK's metrics into the build, for eight structures.

use std::time::SystemTime;

use prost::{Message, Oneof};

use super::names::{Instrument, Kind};
use super::reading::{Buckets, Point, Reading, Value};
use crate::names::SERVICE;

/// Every value is one since the start.
const CUMULATIVE: i32 = 2;

/// What all requests of a run have in common.
#[derive(Debug)]
pub(super) struct Header {
    resource: Resource,
    start: u64,
}

impl Header {
    /// `resource`: what the numbers are of. `start`: when everything was counted from.
    pub(super) fn new(resource: &[(String, String)], start: SystemTime) -> Self {
        let mut attributes: Vec<KeyValue> =
            resource.iter().map(|(key, value)| KeyValue::text(key, value)).collect();
        for (key, value) in [("service.name", SERVICE), ("service.version", env!("CARGO_PKG_VERSION"))] {
            if !attributes.iter().any(|a| a.key == key) {
                attributes.push(KeyValue::text(key, value));
            }
        }
        Self { resource: Resource { attributes }, start: nanos(start) }
    }

    /// An encoded `ExportMetricsServiceRequest`.
    pub(super) fn request(&self, reading: &Reading, now: SystemTime) -> Vec<u8> {
        let times = Times { start: self.start, now: nanos(now) };
        let metrics =
            reading.families().map(|(instrument, points)| metric(instrument, points, times)).collect();
        let scope = Scope { name: SERVICE.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
        let resource = Some(self.resource.clone());
        Request { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }.encode_to_vec()
    }
}

/// What a collector says of the values that it did not take.
pub(super) fn rejection(answer: &[u8]) -> Option<String> {
    // What cannot be read is no rejection: the status of the answer said that it was taken.
    let partial = Response::decode(answer).ok()?.partial_success?;
    (partial.rejected > 0).then(|| format!("{} values were rejected: {}", partial.rejected, partial.words))
}

#[derive(Clone, Copy)]
struct Times {
    start: u64,
    now: u64,
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn metric(instrument: &'static Instrument, points: &[Point], times: Times) -> Metric {
    let numbers = || points.iter().filter_map(|point| number(instrument, point, times)).collect();
    let data = match instrument.kind {
        Kind::Gauge => Data::Gauge(Gauge { points: numbers() }),
        Kind::Counter => Data::Sum(Sum { points: numbers(), temporality: CUMULATIVE, is_monotonic: true }),
        Kind::Histogram => Data::Histogram(Histogram {
            points: points.iter().filter_map(|point| histogram(instrument, point, times)).collect(),
            temporality: CUMULATIVE,
        }),
    };
    Metric {
        name: instrument.name.to_owned(),
        description: instrument.help.to_owned(),
        unit: instrument.unit.to_owned(),
        data: Some(data),
    }
}

fn number(instrument: &Instrument, point: &Point, times: Times) -> Option<NumberPoint> {
    let Value::Number(value) = point.value else { return None };
    let (start, now) = (times.start, times.now);
    Some(NumberPoint { start, now, value: Some(value), attributes: attributes(instrument, point) })
}

fn histogram(instrument: &Instrument, point: &Point, times: Times) -> Option<HistogramPoint> {
    let Value::Buckets(Buckets { bounds, counts, sum }) = &point.value else { return None };
    Some(HistogramPoint {
        start: times.start,
        now: times.now,
        count: counts.iter().sum(),
        sum: Some(*sum),
        counts: counts.clone(),
        bounds: bounds.clone(),
        attributes: attributes(instrument, point),
    })
}

fn attributes(instrument: &Instrument, point: &Point) -> Vec<KeyValue> {
    instrument.labels.iter().zip(&point.labels).map(|(name, value)| KeyValue::text(name, value)).collect()
}

impl KeyValue {
    fn text(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { text: Some(value.to_owned()) }) }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct NumberPoint {
    #[prost(fixed64, tag = "2")]
    start: u64,
    #[prost(fixed64, tag = "3")]
    now: u64,
    #[prost(double, optional, tag = "4")]
    value: Option<f64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramPoint {
    #[prost(fixed64, tag = "2")]
    start: u64,
    #[prost(fixed64, tag = "3")]
    now: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    words: String,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::metrics::v1::metric::Data as WireData;
    use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as WireValue;

    use super::super::names::{BATCH_SIZE, ITEMS_DONE, SLOTS};
    use super::*;

    #[test]
    fn the_published_messages_read_what_is_written_here() {
        let mut reading = Reading::new();
        reading.add(&ITEMS_DONE, &["p"], 7_u64);
        reading.add(&SLOTS, &["p", "s", "free"], 3_u64);
        reading.add(
            &BATCH_SIZE,
            &["p", "s", "m"],
            Buckets { bounds: vec![1.0, 2.0], counts: vec![4, 0, 5], sum: 29.0 },
        );
        let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(17);
        let header = Header::new(&[("team".to_owned(), "vision".to_owned())], start);
        let bytes = header.request(&reading, start + Duration::from_nanos(3));
        let request = ExportMetricsServiceRequest::decode(bytes.as_slice()).unwrap();

        let of_resource = &request.resource_metrics[0];
        let resource: Vec<_> =
            of_resource.resource.as_ref().unwrap().attributes.iter().map(|a| a.key.as_str()).collect();
        assert_eq!(resource, ["team", "service.name", "service.version"]);
        let metrics = &of_resource.scope_metrics[0].metrics;
        let names: Vec<_> = metrics.iter().map(|m| (m.name.as_str(), m.unit.as_str())).collect();
        assert_eq!(names, [(ITEMS_DONE.name, "{item}"), (BATCH_SIZE.name, "{item}"), (SLOTS.name, "{slot}")]);
        let Some(WireData::Sum(sum)) = &metrics[0].data else { panic!("{:?}", metrics[0]) };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        let point = &sum.data_points[0];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (17, 20));
        assert_eq!(point.value, Some(WireValue::AsDouble(7.0)));
        assert_eq!(point.attributes[0].key, "pipeline");
        let Some(WireData::Histogram(histogram)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (9, Some(29.0)));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[4, 0, 5][..], &[1.0, 2.0][..]));
        assert_eq!(point.attributes.len(), 3);
        let Some(WireData::Gauge(gauge)) = &metrics[2].data else { panic!("{:?}", metrics[2]) };
        assert_eq!(gauge.data_points[0].value, Some(WireValue::AsDouble(3.0)));
    }

    #[test]
    fn a_rejection_is_told_and_anything_else_is_none() {
        let partial = PartialSuccess { rejected: 3, words: "too old".to_owned() };
        let answer = Response { partial_success: Some(partial) }.encode_to_vec();
        assert_eq!(rejection(&answer).unwrap(), "3 values were rejected: too old");
        assert_eq!(rejection(&[]), None);
        assert_eq!(rejection(b"\xff\xff"), None);
    }
}
