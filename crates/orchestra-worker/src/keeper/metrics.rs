//! Numbers in the lines of a command: reads them, and keeps of each metric a few, however many lines there are. It compares nothing.

use std::time::{Duration, Instant};

use orchestra_core::tasks::{MetricValues, TaskMetric, TaskMetrics};
use regex_lite::Regex;
use serde_json::{Deserializer, Map, Value};

use crate::keeper::curves::CurveFile;

/// How often orchestra is told of new values.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// Braces of a line at which objects are looked for: each may have all that follows it parsed.
const MOST_STARTS: usize = 16;

enum MetricPattern {
    Key(String),
    Regex(Regex),
}

pub(crate) struct MetricReader {
    sources: Vec<MetricPattern>,
    has_keys: bool,
    /// Of each source, in the same order.
    read: Vec<(String, MetricValues)>,
    pub curves: Option<CurveFile>,
    /// Something was read that was not told, and when the next may be.
    is_new: bool,
    next: Instant,
}

impl MetricReader {
    /// With a file for their curves. Why that cannot be written, or an expression not be used, is a fragment for people.
    pub fn new(order: &[TaskMetric], curves: Option<&str>) -> Result<Self, String> {
        let source = |metric: &TaskMetric| match &metric.regex {
            None => Ok(MetricPattern::Key(metric.name.clone())),
            Some(text) => Regex::new(text)
                .map(MetricPattern::Regex)
                .map_err(|e| format!("the expression `{text}`: {e}")),
        };
        let sources = order.iter().map(source).collect::<Result<Vec<_>, _>>()?;
        let names = || order.iter().map(|metric| &metric.name[..]);
        let create = |path| {
            CurveFile::create(path, names())
                .map_err(|e| format!("its metrics `{path}` cannot be written: {e}"))
        };
        Ok(Self {
            curves: curves.map(create).transpose()?,
            has_keys: sources.iter().any(|source| matches!(source, MetricPattern::Key(_))),
            read: order.iter().map(|metric| (metric.name.clone(), MetricValues::NONE)).collect(),
            sources,
            is_new: false,
            next: Instant::now(),
        })
    }

    pub fn line(&mut self, line: &str) {
        if self.sources.is_empty() {
            return;
        }
        let objects = if self.has_keys { objects(line) } else { Vec::new() };
        self.values(line, objects.first());
        objects.iter().skip(1).for_each(|object| self.values("", Some(object)));
    }

    /// Takes what expressions find in a text, and what keys find in an object, as of one moment.
    fn values(&mut self, text: &str, object: Option<&Map<String, Value>>) {
        let value = |source: &MetricPattern| -> Option<f64> {
            match source {
                MetricPattern::Key(key) => object.and_then(|object| number(object.get(key)?)),
                MetricPattern::Regex(_) if text.is_empty() => None,
                MetricPattern::Regex(regex) => regex
                    .captures(text)
                    .and_then(|found| found.iter().skip(1).flatten().next())
                    .and_then(|group| group.as_str().trim().parse().ok()),
            }
        };
        let found: Vec<Option<f64>> = self.sources.iter().map(value).collect();
        if found.iter().all(Option::is_none) {
            return;
        }
        self.is_new = true;
        for (value, (_, values)) in found.iter().zip(&mut self.read) {
            value.iter().for_each(|value| values.add(*value));
        }
        if let Some(curves) = &mut self.curves {
            curves.add(&found);
        }
    }

    /// What was read so far, if there is something new and it is time to tell it.
    pub fn due(&mut self) -> Option<TaskMetrics> {
        let now = Instant::now();
        (self.is_new && now >= self.next).then(|| {
            (self.is_new, self.next) = (false, now + TELL_EVERY);
            self.with_values()
        })
    }

    /// What was due is due again, after a while.
    pub fn was_not_told(&mut self) {
        self.is_new = true;
    }

    /// How long from now until something is due.
    pub fn wait(&self) -> Option<Duration> {
        self.is_new.then(|| self.next.saturating_duration_since(Instant::now()))
    }

    pub fn finish(&mut self) -> TaskMetrics {
        self.is_new = false;
        self.with_values()
    }

    fn with_values(&self) -> TaskMetrics {
        self.read.iter().filter(|(_, values)| values.count > 0).cloned().collect()
    }
}

/// The objects in which a line ends. Before them may stand what had no end of its own, such as the state of a progress bar; and where several
/// processes write, objects stand on one line before the ends of their lines. Python writes `NaN` and `Infinity`, which are no JSON: they become `null`.
fn objects(line: &str) -> Vec<Map<String, Value>> {
    let line = line.trim_end();
    if !line.ends_with('}') {
        return Vec::new();
    }
    let found = objects_at_end(line);
    if !line.contains("NaN") && !line.contains("Infinity") {
        return found;
    }
    let plain = line.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null");
    let of_plain = objects_at_end(&plain);
    if of_plain.len() > found.len() { of_plain } else { found }
}

/// The objects of which the longest suffix of a line consists that holds nothing else, and is not within another object.
fn objects_at_end(line: &str) -> Vec<Map<String, Value>> {
    for (start, _) in line.match_indices('{').take(MOST_STARTS) {
        let objects = Deserializer::from_str(&line[start..]).into_iter::<Map<String, Value>>();
        match objects.collect::<Result<Vec<_>, _>>() {
            Ok(objects) => return objects,
            // What follows is within an object that has no end.
            Err(error) if error.is_eof() => break,
            Err(_) => {}
        }
    }
    Vec::new()
}

/// `null` is a value that is no number.
fn number(value: &Value) -> Option<f64> {
    if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(metrics: &[TaskMetric]) -> MetricReader {
        MetricReader::new(metrics, None).unwrap()
    }

    fn key(key: &str) -> TaskMetric {
        TaskMetric { name: key.to_owned(), regex: None }
    }

    fn regex(text: &str) -> TaskMetric {
        TaskMetric { name: text.to_owned(), regex: Some(text.to_owned()) }
    }

    #[test]
    fn numbers_are_read_from_lines_of_both_kinds_and_nothing_else_is() {
        let mut reader = reader(&[regex(r"loss[=:] *([-+0-9.eEnaN]+)"), key("val/acc"), key("none")]);
        for line in [
            "epoch 1: loss=2.5e-1, acc 3",
            "loss: seven",
            "{\"val/acc\": 0.5, \"loss\": \"9\", \"text\": \"NaN\"}",
            "{\"val/acc\": 1, \"x\": NaN, \"y\": -Infinity}",
            "{\"val/acc\": \"2\"}",
            "{\"val/acc\": true}",
            "[{\"val/acc\": 7}]",
            "{\"val/acc\": 8",
            "loss=1e1 loss=99",
            "loss=nan",
        ] {
            reader.line(line);
        }
        let read = reader.finish();
        let values: Vec<_> = read.values().collect();
        let [loss, acc] = values[..] else { panic!("of two of them there are values: {read:?}") };
        assert_eq!((loss.count, loss.min, loss.max), (3, 0.25, 10.0));
        assert!(loss.last.is_nan());
        assert_eq!(read["val/acc"], MetricValues { count: 2, last: 1.0, min: 0.5, max: 1.0 });
        assert_eq!(*acc, read["val/acc"]);
        assert!(MetricReader::new(&[regex("(")], None).is_err());
    }

    #[test]
    fn objects_are_read_behind_what_has_no_end_of_line_and_several_in_a_line() {
        let mut reader = reader(&[key("loss"), regex(r"([0-9]+)%")]);
        let mut last = |line: &str| {
            let count = reader.read[0].1.count;
            reader.line(line);
            let loss = reader.read[0].1;
            (loss.count > count).then(|| (loss.count - count, loss.last))
        };
        // A progress bar waits for its next carriage return.
        assert_eq!(last(" 10%|\u{2588}  | {it/s} {\"loss\": 0.5}"), Some((1, 0.5)));
        // Of two processes, both texts came before both ends of lines.
        assert_eq!(last("{\"loss\": 1}{\"loss\": 2} "), Some((2, 2.0)));
        assert_eq!(last("20%{\"loss\": 7, \"text\": \"NaN\"}  {\"loss\": NaN}{\"loss\": 3}"), Some((3, 3.0)));
        assert_eq!(last("{\"lo{\"loss\": 4}"), Some((1, 4.0)), "what was cut by another process");
        // No metrics of their own: within a list, within another object, and within one that has no end.
        assert_eq!(last("[{\"loss\": 5}]"), None);
        assert_eq!(last("{\"a\": {\"loss\": 5}}"), None);
        assert_eq!(last("epoch {\"a\": {\"loss\": 5}"), None);
        assert_eq!(last("{'a': {\"loss\": 5}}"), None);
        assert_eq!(last("{\"loss\": 5} and more"), None);
        // Bounded: what stands behind so many braces is not looked for.
        assert_eq!(last(&("{".repeat(MOST_STARTS - 1) + "{\"loss\": 6}")), Some((1, 6.0)));
        assert_eq!(last(&("{".repeat(MOST_STARTS) + "{\"loss\": 5}")), None);
        let percent = reader.finish()[r"([0-9]+)%"];
        assert_eq!((percent.count, percent.last), (2, 20.0));
    }

    #[test]
    fn values_are_told_once_and_not_all_the_time() {
        let mut reader = reader(&[key("loss")]);
        (0..3).for_each(|n| reader.line(&format!("{{\"loss\": {n}}}")));
        assert_eq!(reader.due().unwrap()["loss"].count, 3);
        reader.line("{\"loss\": 0}");
        assert!(reader.due().is_none() && reader.wait().is_some(), "not so soon");
    }
}
