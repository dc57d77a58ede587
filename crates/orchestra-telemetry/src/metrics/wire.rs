//! A reading as a message of OTLP. It sends nothing.
//!
//! The messages are OpenTelemetry's own, filled here: its SDK makes them of instruments that count for themselves, and here the run counts.

use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value as Any,
};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric::Data, number_data_point::Value as Number,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use super::names::{Instrument, Kind};
use super::reading::{Buckets, Point, Reading, Value};
use crate::names::SERVICE;

/// Every value is one since the start.
const SINCE_START: i32 = AggregationTemporality::Cumulative as i32;

/// What all requests of a run have in common.
#[derive(Debug)]
pub(super) struct Header {
    resource: Resource,
    start: u64,
}

impl Header {
    /// `resource`: what the numbers are of. `start`: when everything was counted from.
    pub(super) fn new(resource: &[(String, String)], start: SystemTime) -> Self {
        let mut attributes: Vec<KeyValue> = resource.iter().map(|(key, value)| text(key, value)).collect();
        for (key, value) in [("service.name", SERVICE), ("service.version", env!("CARGO_PKG_VERSION"))] {
            if !attributes.iter().any(|a| a.key == key) {
                attributes.push(text(key, value));
            }
        }
        Self { resource: Resource { attributes, ..Resource::default() }, start: nanos(start) }
    }

    pub(super) fn request(&self, reading: &Reading, now: SystemTime) -> ExportMetricsServiceRequest {
        let now = nanos(now);
        let metrics =
            reading.families().map(|(instrument, points)| self.metric(instrument, points, now)).collect();
        let (name, version) = (SERVICE.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let scope = Some(InstrumentationScope { name, version, ..InstrumentationScope::default() });
        let scope_metrics = vec![ScopeMetrics { scope, metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource.clone());
        let all = ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() };
        ExportMetricsServiceRequest { resource_metrics: vec![all] }
    }

    fn metric(&self, instrument: &'static Instrument, points: &[Point], now: u64) -> Metric {
        let (mut numbers, mut histograms) = (Vec::new(), Vec::new());
        for Point { labels, value } in points {
            let attributes =
                instrument.labels.iter().zip(labels).map(|(name, label)| text(name, label)).collect();
            match value {
                Value::Number(number) => numbers.push(NumberDataPoint {
                    start_time_unix_nano: self.start,
                    time_unix_nano: now,
                    value: Some(Number::AsDouble(*number)),
                    attributes,
                    ..NumberDataPoint::default()
                }),
                Value::Buckets(Buckets { bounds, counts, sum }) => histograms.push(HistogramDataPoint {
                    start_time_unix_nano: self.start,
                    time_unix_nano: now,
                    count: counts.iter().sum(),
                    sum: Some(*sum),
                    bucket_counts: counts.clone(),
                    explicit_bounds: bounds.clone(),
                    attributes,
                    ..HistogramDataPoint::default()
                }),
            }
        }
        let aggregation_temporality = SINCE_START;
        let data = match instrument.kind {
            Kind::Gauge => Data::Gauge(Gauge { data_points: numbers }),
            Kind::Counter => {
                Data::Sum(Sum { data_points: numbers, aggregation_temporality, is_monotonic: true })
            }
            Kind::Histogram => {
                Data::Histogram(Histogram { data_points: histograms, aggregation_temporality })
            }
        };
        Metric {
            name: instrument.name.to_owned(),
            description: instrument.help.to_owned(),
            unit: instrument.unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }
}

/// What a collector says of the values that it did not take.
pub(super) fn rejection(answer: &[u8]) -> Option<String> {
    // What cannot be read is no rejection: the status of the answer said that it was taken.
    let partial = ExportMetricsServiceResponse::decode(answer).ok()?.partial_success?;
    let (rejected, words) = (partial.rejected_data_points, partial.error_message);
    (rejected > 0).then(|| format!("{rejected} values were rejected: {words}"))
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Any::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsPartialSuccess;

    use super::super::names::{BATCH_SIZE, ITEMS_DONE, SLOTS};
    use super::*;

    #[test]
    fn each_kind_of_metric_is_sent_as_what_it_is_with_its_unit_labels_and_times() {
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
        let request = header.request(&reading, start + Duration::from_nanos(3));

        let of_resource = &request.resource_metrics[0];
        let resource: Vec<_> =
            of_resource.resource.as_ref().unwrap().attributes.iter().map(|a| a.key.as_str()).collect();
        assert_eq!(resource, ["team", "service.name", "service.version"]);
        let metrics = &of_resource.scope_metrics[0].metrics;
        let names: Vec<_> = metrics.iter().map(|m| (m.name.as_str(), m.unit.as_str())).collect();
        assert_eq!(names, [(ITEMS_DONE.name, "{item}"), (BATCH_SIZE.name, "{item}"), (SLOTS.name, "{slot}")]);
        let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{:?}", metrics[0]) };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        let point = &sum.data_points[0];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (17, 20));
        assert_eq!(point.value, Some(Number::AsDouble(7.0)));
        assert_eq!(point.attributes[0].key, "pipeline");
        let Some(Data::Histogram(histogram)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (9, Some(29.0)));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[4, 0, 5][..], &[1.0, 2.0][..]));
        assert_eq!(point.attributes.len(), 3);
        let Some(Data::Gauge(gauge)) = &metrics[2].data else { panic!("{:?}", metrics[2]) };
        assert_eq!(gauge.data_points[0].value, Some(Number::AsDouble(3.0)));
    }

    #[test]
    fn a_rejection_is_told_and_anything_else_is_none() {
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: 3, error_message: "too old".to_owned() };
        let answer = ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        assert_eq!(rejection(&answer).unwrap(), "3 values were rejected: too old");
        assert_eq!(rejection(&[]), None);
        assert_eq!(rejection(b"\xff\xff"), None);
    }
}
