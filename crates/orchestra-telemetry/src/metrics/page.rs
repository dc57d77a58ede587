//! A reading in the text format of Prometheus, version 0.0.4. Pure: numbers in, text out.

use std::fmt::{self, Write as _};

use super::names::Instrument;
use super::reading::{Buckets, MetricValue, Point, Reading};

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn render(reading: &Reading) -> String {
    let mut out = String::with_capacity(16 << 10);
    for (instrument, points) in reading.families() {
        family(&mut out, instrument, points).expect("writing to a string cannot fail");
    }
    out
}

fn family(out: &mut String, instrument: &Instrument, points: &[Point]) -> fmt::Result {
    let name = instrument.prometheus_name();
    writeln!(out, "# HELP {name} {}.", escaped(instrument.help))?;
    writeln!(out, "# TYPE {name} {}", instrument.kind.as_str())?;
    for point in points {
        let labels = Labels { names: instrument.labels, values: &point.labels, bound: None };
        match &point.value {
            MetricValue::Number(number) => writeln!(out, "{name}{labels} {}", GoFloat(*number))?,
            MetricValue::Buckets(buckets) => histogram(out, &name, &labels, buckets)?,
        }
    }
    Ok(())
}

fn histogram(out: &mut String, name: &str, labels: &Labels<'_>, buckets: &Buckets) -> fmt::Result {
    let mut below = 0;
    let bounds = buckets.bounds.iter().copied().chain([f64::INFINITY]);
    for (bound, count) in bounds.zip(&buckets.counts) {
        below += count;
        let labels = Labels { bound: Some(bound), ..*labels };
        writeln!(out, "{name}_bucket{labels} {below}")?;
    }
    writeln!(out, "{name}_sum{labels} {}", GoFloat(buckets.sum))?;
    writeln!(out, "{name}_count{labels} {below}")
}

#[derive(Clone, Copy)]
struct Labels<'a> {
    names: &'a [&'a str],
    values: &'a [String],
    /// Of a histogram's bucket.
    bound: Option<f64>,
}

impl fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |value: &String| escaped(value).replace('"', "\\\"");
        let pairs = self.names.iter().zip(self.values).map(|(name, value)| (*name, escaped(value)));
        let bound = self.bound.map(|bound| ("le", GoFloat(bound).to_string()));
        let pairs: Vec<String> =
            pairs.chain(bound).map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        if pairs.is_empty() { Ok(()) } else { write!(f, "{{{}}}", pairs.join(",")) }
    }
}

/// A number as Go reads it.
struct GoFloat(f64);

impl fmt::Display for GoFloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            n => write!(f, "{n}"),
        }
    }
}

/// Text that ends at the end of its line.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::names::{BATCH_SIZE, ITEMS_DONE, PROCESS_CPU};
    use super::*;

    #[test]
    fn a_counter_has_its_help_its_type_and_a_line_per_label() {
        let mut reading = Reading::new();
        reading.add(&ITEMS_DONE, &["a"], 7_u64);
        reading.add(&ITEMS_DONE, &["b"], 1e12);
        assert_eq!(
            render(&reading),
            "# HELP orchestra_items_done_total Items whose records are written.\n\
             # TYPE orchestra_items_done_total counter\n\
             orchestra_items_done_total{pipeline=\"a\"} 7\n\
             orchestra_items_done_total{pipeline=\"b\"} 1000000000000\n"
        );
    }

    #[test]
    fn buckets_are_summed_up_from_below() {
        let mut reading = Reading::new();
        let buckets = Buckets { bounds: vec![1.0, 2.0], counts: vec![3, 0, 2], sum: 13.5 };
        reading.add(&BATCH_SIZE, &["p", "s", "m"], buckets);
        let page = render(&reading);
        let lines: Vec<&str> = page.lines().skip(2).collect();
        let labels = "pipeline=\"p\",stage=\"s\",model=\"m\"";
        assert_eq!(
            lines,
            [
                format!("orchestra_batch_size_bucket{{{labels},le=\"1\"}} 3"),
                format!("orchestra_batch_size_bucket{{{labels},le=\"2\"}} 3"),
                format!("orchestra_batch_size_bucket{{{labels},le=\"+Inf\"}} 5"),
                format!("orchestra_batch_size_sum{{{labels}}} 13.5"),
                format!("orchestra_batch_size_count{{{labels}}} 5"),
            ]
        );
    }

    #[test]
    fn no_label_can_forge_a_line() {
        let mut reading = Reading::new();
        reading.add(&ITEMS_DONE, &["a\"} 1\nforged\\"], 1_u64);
        reading.add(&PROCESS_CPU, &[], 0.5);
        let page = render(&reading);
        assert!(page.contains("{pipeline=\"a\\\"} 1\\nforged\\\\\"} 1\n"), "{page}");
        assert!(page.ends_with("orchestra_process_cpu_time_seconds_total 0.5\n"), "{page}");
    }
}
