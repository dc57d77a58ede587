//! Metrics of tasks: where their values are found in the lines of a command, and the few numbers that are kept of them. It reads no line.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use serde::{Deserialize, Deserializer, Serialize};

/// A metric, and where its values are found.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct TaskMetric {
    pub name: String,
    /// The expression whose first group has its values in any line; `None`: its name is a key of the JSON objects in which lines end.
    pub regex: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct MetricValues {
    pub count: u64,
    /// The last one; no number where it was none, which is `null` in JSON.
    #[serde(deserialize_with = "number")]
    pub last: f64,
    /// The least finite number; none where there was no such value.
    #[serde(deserialize_with = "number")]
    pub min: f64,
    /// The greatest finite number.
    #[serde(deserialize_with = "number")]
    pub max: f64,
}

/// What was read of several, by their names.
pub type TaskMetrics = BTreeMap<String, MetricValues>;

impl MetricValues {
    pub const NONE: Self = Self { count: 0, last: f64::NAN, min: f64::NAN, max: f64::NAN };

    pub fn add(&mut self, value: f64) {
        if value.is_finite() {
            (self.min, self.max) = (self.min.min(value), self.max.max(value));
        }
        (self.last, self.count) = (value, self.count + 1);
    }
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}
