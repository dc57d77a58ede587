//! The page for Prometheus: what the statistics of the protocol count.

use std::fmt::Write as _;

use crate::protocol::{ModelStatistics, StatisticDuration};

/// A name, what it counts, and its samples of a model: further labels and the number.
type Family = (&'static str, &'static str, fn(&ModelStatistics) -> Vec<(&'static str, f64)>);

const FAMILIES: [Family; 4] = [
    ("orchestra_serve_requests_total", "Requests that have ended.", |of| {
        ends(of, |ended| ended.count as f64)
    }),
    ("orchestra_serve_request_seconds_total", "Time from a request to its end, summed.", |of| {
        ends(of, |ended| ended.ns as f64 / 1e9)
    }),
    ("orchestra_serve_items_total", "Rows and items that were answered.", |of| {
        vec![("", of.inference_count as f64)]
    }),
    ("orchestra_serve_batches_total", "Batches that were run since the last load.", |of| {
        vec![("", of.execution_count as f64)]
    }),
];

fn ends(of: &ModelStatistics, number: fn(&StatisticDuration) -> f64) -> Vec<(&'static str, f64)> {
    let stats = of.inference_stats.clone().unwrap_or_default();
    let number = |ended: Option<StatisticDuration>| ended.as_ref().map_or(0.0, number);
    vec![(",end=\"done\"", number(stats.success)), (",end=\"failed\"", number(stats.fail))]
}

/// The page.
pub fn page(models: &[ModelStatistics]) -> String {
    let mut page = String::new();
    for (name, help, samples) in FAMILIES {
        // Writing to a text does not fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} counter");
        for model in models {
            let called = model.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            for (labels, number) in samples(model) {
                let _ = writeln!(page, "{name}{{model=\"{called}\"{labels}}} {number}");
            }
        }
    }
    page
}
