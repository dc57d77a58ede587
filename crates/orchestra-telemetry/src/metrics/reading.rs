//! The numbers of all metrics at one moment, as data. It measures nothing and encodes nothing.

use super::names::{ALL, Instrument};

#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// The largest value of each bucket but the last, which has none. In the unit of the instrument.
    pub bounds: Vec<f64>,
    /// Values by bucket, each counted once; one more than there are bounds.
    pub counts: Vec<u64>,
    pub sum: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum MetricValue {
    Number(f64),
    Buckets(Buckets),
}

impl From<u64> for MetricValue {
    fn from(number: u64) -> Self {
        Self::Number(number as f64)
    }
}

impl From<f64> for MetricValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Buckets> for MetricValue {
    fn from(buckets: Buckets) -> Self {
        Self::Buckets(buckets)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Values of the labels, in the order in which the instrument names them.
    pub labels: Vec<String>,
    pub value: MetricValue,
}

#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// By place in [`ALL`].
    points: Vec<Vec<Point>>,
}

impl Reading {
    pub fn new() -> Self {
        Self { points: ALL.iter().map(|_| Vec::new()).collect() }
    }

    /// Adds a value. `labels` are values for those that the instrument names, in that order.
    pub fn add(&mut self, instrument: &Instrument, labels: &[&str], value: impl Into<MetricValue>) {
        debug_assert_eq!(labels.len(), instrument.labels.len(), "labels of {}", instrument.name);
        let place = ALL.iter().position(|i| std::ptr::eq(*i, instrument));
        if let Some(points) = place.and_then(|place| self.points.get_mut(place)) {
            let labels = labels.iter().map(|l| (*l).to_owned()).collect();
            points.push(Point { labels, value: value.into() });
        }
    }

    /// The metrics that have a value, and their values.
    pub fn families(&self) -> impl Iterator<Item = (&'static Instrument, &[Point])> {
        let all = ALL.iter().copied().zip(self.points.iter().map(Vec::as_slice));
        all.filter(|(_, points)| !points.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::{ITEMS, ITEMS_DONE};
    use super::*;

    #[test]
    fn values_of_one_metric_stay_together_in_the_order_of_the_names() {
        let mut reading = Reading::new();
        reading.add(&ITEMS_DONE, &["a"], 1_u64);
        reading.add(&ITEMS, &["a"], 2_u64);
        reading.add(&ITEMS_DONE, &["b"], 3_u64);
        let families: Vec<_> = reading.families().map(|(i, points)| (i.name, points.len())).collect();
        assert_eq!(families, [(ITEMS.name, 1), (ITEMS_DONE.name, 2)]);
    }
}
